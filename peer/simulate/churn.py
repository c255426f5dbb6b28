"""How peers come and go: drawn from rates, by the seed, or as it was recorded."""

from __future__ import annotations

import heapq
import json
from pathlib import Path

from dht.errors import BadInput
from peer.simulate.dice import Dice
from peer.simulate.scenario import Churn, ChurnEvent

HOUR_S = 3600.0
WHAT = ("crash", "return", "leave", "join")


def changes_of(churn: Churn, founders: int, seed: int, until_s: float) -> tuple[ChurnEvent, ...]:
    """Everything that happens before `until_s`, in order. Each peer has dice of its own."""
    if churn.schedule:
        return churn.schedule
    found: list[tuple[float, int, str]] = []
    joins = _joins(churn, founders, Dice(seed, "joins"), until_s)
    found += [(at, -1, "join") for at in joins]
    lives = [(0.0, peer) for peer in range(founders)]
    lives += [(at, founders + number) for number, at in enumerate(joins)]
    for began_s, peer in lives:
        found += _life(churn, peer, began_s, Dice(seed, "churn", peer), until_s)
    heapq.heapify(found)
    return tuple(ChurnEvent(at_s=at, peer=peer, what=what) for at, peer, what in sorted(found))


def _joins(churn: Churn, founders: int, dice: Dice, until_s: float) -> list[float]:
    found: list[float] = []
    at = 0.0
    while churn.joins:
        at += dice.exponential(HOUR_S / (churn.joins * founders))
        if at >= until_s:
            break
        found.append(at)
    return found


def _life(churn: Churn, peer: int, at: float, dice: Dice, until_s: float) -> list[tuple[float, int, str]]:
    """Crashes and returns of one peer, until it leaves or stays away."""
    found: list[tuple[float, int, str]] = []
    rate = churn.crashes + churn.leaves
    while rate:
        at += dice.exponential(HOUR_S / rate)
        if at >= until_s:
            break
        if dice.random() * rate >= churn.crashes:
            return [*found, (at, peer, "leave")]
        found.append((at, peer, "crash"))
        if not churn.back_s:
            break
        at += dice.exponential(churn.back_s)
        found.append((at, peer, "return"))
    return found


def read_churn(text: str) -> Churn:
    """`crash=0.1,leave=0.05,join=0.1,back=600` (per hour, and seconds), or a file of recorded changes.

    A line of the file is `{"t": 12.5, "peer": 3, "do": "crash"}`. Raises BadInput.
    """
    path = Path(text)
    if "=" not in text:
        return Churn(schedule=_recorded(path))
    names = {"crash": "crashes", "leave": "leaves", "join": "joins", "back": "back_s"}
    values: dict[str, float] = {}
    for word in text.split(","):
        name, _, number = word.strip().partition("=")
        if name not in names:
            raise BadInput(f"--churn {text}: {name!r} is no rate; write crash=, leave=, join= (per hour) or back= (s)")
        try:
            values[names[name]] = float(number)
        except ValueError as error:
            raise BadInput(f"--churn {text}: {number!r} is no number") from error
        if not 0 <= values[names[name]] < float("inf"):
            raise BadInput(f"--churn {text}: {name} is {number}; it must be 0 or more")
    return Churn(**values)  # type: ignore[arg-type]  # all but the schedule are numbers


def _recorded(path: Path) -> tuple[ChurnEvent, ...]:
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    except OSError as error:
        raise BadInput(f"--churn {path}: {error.strerror}; give rates as crash=0.1 or a file of changes") from error
    except (ValueError, UnicodeDecodeError) as error:
        raise BadInput(f"--churn {path}: not JSON lines: {error}") from error
    found = []
    for number, row in enumerate(rows, 1):
        try:
            change = ChurnEvent(at_s=float(row["t"]), peer=int(row.get("peer", -1)), what=str(row["do"]))
        except (KeyError, TypeError, ValueError) as error:
            text = 'write {"t": 12.5, "peer": 3, "do": "crash"}'
            raise BadInput(f"--churn {path}: line {number} is no change; {text}") from error
        if change.what not in WHAT or change.at_s < 0:
            raise BadInput(f"--churn {path}: line {number} says {change.what!r} at {change.at_s:g}; use {WHAT}")
        found.append(change)
    return tuple(sorted(found, key=lambda change: change.at_s))
