"""What one place says, every place says: at each position of the recording all figures that are shown twice are equal.

Screens, `status`, its JSON, the report and the metrics are read as people and scripts read them, and what they say of
one figure is compared. A figure of JSON or of a metric is first written as the screens write it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import unescape

import pytest

from peer.node.telemetry.metrics import Metrics
from peer.schema.byte_text import format_bytes
from tests.tui.dashboard.live import recorded
from tui.commands.status import describe, to_json
from tui.dashboard.header import draw_header
from tui.dashboard.screens import home, network
from tui.dashboard.screens.home import add_learning, add_peers, add_run
from tui.dashboard.screens.peer import draw_peer
from tui.dashboard.screens.peers import COLUMNS, shown
from tui.dashboard.view import View
from tui.dashboard.widgets.facts import FactSheet
from tui.report.page import make_page
from tui.swarm.reducer import apply
from tui.swarm.snapshot import PeerView, SwarmState
from tui.text.event_text import PeerStatus
from tui.text.units import MISSING, format_count, format_loss, format_percent, format_round

WIDTH = 160
PARTS = 4
"""The positions are shared among so many tests, of which one runs by day."""

Said = dict[tuple[str, str], dict[str, str]]
"""By (figure, whose): what each place says of it."""


def note(said: Said, place: str, figure: str, whose: str, text: str | None) -> None:
    if text is not None:
        said[figure, whose].setdefault(place, text.strip() or MISSING)


def find(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1] if found else None


def sheet_of(view: View, *drawers: Callable[[FactSheet, View], None]) -> str:
    sheet = FactSheet(view, WIDTH)
    for draw in drawers:
        draw(sheet, view)
    return sheet.text.plain


# ---- places ----


def read_home(said: Said, view: View) -> None:
    """The first screen of who only watches."""
    text = sheet_of(view, add_run, add_learning)
    note(said, "home", "rounds", "run", find(r"^rounds +\S* ?(\d+ of \d+)", text))
    note(said, "home", "held-out", "run", find(r"^held out +(\S+)", text))
    note(said, "home", "training", "run", find(r"^training +(\S+)", text))
    note(said, "home", "throughput", "run", find(r"^speed +(\S+) tokens/s counted", text) or "N/A")
    note(said, "home", "tokens", "run", find(r"^tokens +(\S+) in all", text))
    note(said, "home", "sent in rounds", "run", find(r"^traffic +. (\S+ \S+)", text))
    note(said, "home", "seconds", "last round", find(r"^last +(\S+)(?: s)? ·", text))
    for line in sheet_of(view, add_peers).splitlines()[1:]:
        row = re.match(r"\S (\w+) +(\S+) +(\S+ ?%?) *(?:(\S+) tok/s)? *(?:(\d+) behind)?$", line)
        assert row is not None, line
        state, name, weight, speed, behind = row.groups()
        note(said, "home list", "state", name, state)
        note(said, "home list", "weight", name, weight)
        note(said, "home list", "speed", name, speed or "")
        note(said, "home list", "behind", name, behind or "0")


def read_mine(said: Said, view: View, peer: PeerView) -> None:
    """The first screen of a volunteer."""
    parts = (home._add_machine, home._add_credit)
    text = sheet_of(view, add_learning, *(lambda sheet, view, add=add: add(sheet, view, peer) for add in parts))
    note(said, "home of mine", "tokens", peer.label, find(r"^given +(\S+) tokens", text))
    note(said, "home of mine", "token share", peer.label, find(r"^given .*· (\S+ %) of the swarm", text))
    note(said, "home of mine", "weight", peer.label, find(r"^weight +(\S+ %) of the last", text))
    note(said, "home of mine", "held-out", "run", find(r"held out (\S+) at round", text))
    note(said, "home of mine", "loss", peer.label, find(r"^loss +(\S+)", text))
    note(said, "home of mine", "speed", peer.label, find(r"^speed +(\S+) tokens/s while", text) or "")
    note(said, "home of mine", "link sent", peer.label, find(r"^network +. (\S+ \S+) .*since it started", text))
    note_counts(said, "home of mine", peer.label, find(r"^counted +(.*)$", text) or "")
    header = draw_header(view).plain
    note(said, "header", "rounds", "run", find(r"(\d+ of \d+) rounds", header))
    note(said, "header", "state", peer.label, find(r"\n\S ([A-Z]+)", header))


def note_counts(said: Said, place: str, whose: str, words: str) -> None:
    told = {word: int(number) for number, word in re.findall(r"(\d+) (accepted|late|idle|rejected|missed)", words)}
    for word in ("accepted", "late", "idle", "rejected", "missed"):
        note(said, place, word, whose, str(told.get(word, 0)))


def read_peers_table(said: Said, view: View, peer: PeerView) -> None:
    for column in COLUMNS:
        text = shown(column, peer, view).plain
        figure = {"tok/s": "speed", "weight": "weight", "behind": "behind", "loss": "loss", "state": "state"}
        if column.name in figure:
            told = text.split(" ")[-1] if column.name == "state" else text
            note(said, "peers", figure[column.name], peer.label, told or ("N/A" if column.name == "loss" else ""))


def read_peer_page(said: Said, view: View, peer: PeerView) -> None:
    text = sheet_of(view, lambda sheet, view: draw_peer(sheet, view, peer))
    note(said, "peer", "state", peer.label, find(r"^state +\S (\w+)", text))
    note(said, "peer", "weight", peer.label, find(r"^weight +(\S+(?: %)?)", text))
    note(said, "peer", "speed", peer.label, find(r"^speed +(\S+) tokens/s while", text) or "")
    note(said, "peer", "loss", peer.label, find(r"^loss +(\S+)", text))
    note(said, "peer", "tokens", peer.label, find(r"^given +(\S+) tokens", text))
    note(said, "peer", "committed", peer.label, find(r"^rounds +(\d+) committed", text))
    note(said, "peer", "link sent", peer.label, find(r"^network +. (\S+ \S+) .*since it started", text))
    note_counts(said, "peer", peer.label, find(r"^counted +(.*)$", text) or "")


def read_network(said: Said, view: View, peer: PeerView) -> None:
    lines = network._traffic(peer, view, WIDTH)
    text = "\n".join("".join(text for text, _ in line) for line in lines)
    note(said, "network", "link sent", peer.label, find(r"^Traffic +. (\S+ \S+) .*since it started", text))
    note(said, "network", "sent", "last round", find(r"^Per round +. (\S+ \S+)", text))


def read_status(said: Said, swarm: SwarmState, now: float, peer: PeerView) -> None:
    """Of the peer that reported last, as if it ran here."""
    text = "\n".join(describe(swarm, peer.state != "GONE", PeerStatus(), now))
    note(said, "status", "state", peer.label, find(r"^[^:]+: (\w+)", text))
    note(said, "status", "rounds", "run", find(r": (\d+ of \d+) rounds", text))
    note(said, "status", "loss", peer.label, find(r"^training loss ([\d.]+)", text))
    note(said, "status", "speed", peer.label, find(r", (\S+) tokens/s while", text) or "")
    note(said, "status", "held-out", "run", find(r"^held-out loss (\S+) at", text))
    note(said, "status", "token share", peer.label, find(r"tokens, (\S+ %) of all", text))
    if (tokens := find(r"^gave (\S+) tokens", text)) is not None:
        note(said, "status", "tokens", peer.label, format_count(int(tokens.replace(",", ""))))
    if (counted := find(r"^rounds: ([^;]*)", text)) is not None:
        note_counts(said, "status", peer.label, counted)
        note(said, "status", "weight", peer.label, find(r"; weight (\S+ %) in round", text))
    note(said, "status", "lasting", "run", str(len(re.findall(r"^penalty: ", text, re.MULTILINE))))


def read_json(said: Said, swarm: SwarmState, now: float) -> None:
    row = to_json(swarm, now)
    note(said, "json", "rounds", "run", f"{row['round']} of {row['rounds']}")
    note(said, "json", "tokens", "run", format_count(row["tokens"]))
    note(said, "json", "sent in rounds", "run", format_bytes(row["bytes_sent"]))
    note(said, "json", "lasting", "run", str(len(row["penalties"])))
    note(said, "json", "held-out", "run", format_loss(row["losses"][-1][1]) if row["losses"] else None)
    speed = row["tokens_per_s"]
    note(said, "json", "throughput", "run", "N/A" if speed is None else format_count(speed))
    for peer in row["peers"]:
        name = swarm.label(peer["peer"])
        note(said, "json", "state", name, peer["shown"])
        note(said, "json", "behind", name, str(peer["behind"]))
        note(said, "json", "weight", name, format_percent(peer["weight"]))
        note(said, "json", "speed", name, format_count(peer["tokens_per_s"]) if peer["tokens_per_s"] else "")
        note(said, "json", "loss", name, format_loss(peer["loss"]))
        note(said, "json", "tokens", name, format_count(peer["tokens"]))
        for word in ("accepted", "late", "idle", "rejected", "missed"):
            note(said, "json", word, name, str(peer[word]))
    note(said, "json", "sent by each", "run", format_bytes(sum(peer["bytes_sent"] for peer in row["peers"])))
    note(said, "json", "sent in rounds", "sum", format_bytes(row["bytes_sent"]))


def read_report(said: Said, swarm: SwarmState) -> None:
    page = make_page(swarm, ())
    facts = {unescape(name): unescape(value) for name, value in re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page)}
    note(said, "report", "rounds", "run", find(r"^(\d+ of \d+)", facts["committed"]))
    note(said, "report", "tokens", "run", format_count(int(facts["tokens"].replace(",", ""))))
    sent = next(value for name, value in facts.items() if name.startswith("sent in rounds"))
    note(said, "report", "sent in rounds", "run", sent)
    note(said, "report", "held-out", "run", find(r"→ (\S+) nats", facts["held-out loss"]))
    tables = re.findall(r"<tbody>(.*?)</tbody>", page, re.DOTALL)
    rows = [[[unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)]
             for row in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)] for table in tables]  # fmt: skip
    peers, rounds = rows[-2], rows[-1]
    for name, _, *figures in peers:
        for word, number in zip(("accepted", "late", "idle", "rejected", "missed"), figures, strict=False):
            note(said, "report", word, name, number)
        note(said, "report", "tokens", name, format_count(int(figures[5].replace(",", ""))))
        note(said, "report", "state", name, figures[-1].split(":")[0])
    note(
        said, "report", "tokens of the rounds", "run", format_count(sum(int(row[3].replace(",", "")) for row in rounds))
    )
    note(said, "report", "tokens of the peers", "run", format_count(sum(int(row[7].replace(",", "")) for row in peers)))
    if rounds:
        note(said, "report", "seconds", "last round", rounds[-1][4])
        note(said, "report", "sent", "last round", rounds[-1][6])


def read_metrics(said: Said, metrics: Metrics, own: SwarmState, now: float) -> None:
    """Those of one peer, beside what `status` in its folder knows: its own lines."""
    (peer,) = own.reporting
    whose, row = f"{peer.label} alone", to_json(own, now)
    mine = next(each for each in row["peers"] if each["peer"] == peer.peer)
    value = {sample.name: sample.value for family in metrics.collect() for sample in family.samples}
    pairs = {
        "committed": ("homefires_round", row["round"]),
        "tokens": ("homefires_tokens_given_total", mine["tokens"]),
        "weight": ("homefires_round_weight", mine["weight"]),
    }
    for figure, (name, told) in pairs.items():
        if name in value:
            note(said, "metrics", figure, whose, f"{value[name]:.9g}")
            note(said, "json", figure, whose, f"{told:.9g}")


# ---- the test ----


@dataclass
class Moment:
    """What is known at a position of the recording: of the swarm, and by each peer's own lines alone."""

    number: int
    now: float
    swarm: SwarmState
    own: dict[str, SwarmState]
    metrics: dict[str, Metrics]


def moments(part: int) -> Iterator[Moment]:
    at = Moment(0, 0.0, SwarmState(), {}, {})
    for number, line in enumerate(recorded(), start=1):
        at.number, at.now, at.swarm = number, line.t, apply(at.swarm, line)
        at.own[line.peer] = apply(at.own.get(line.peer, SwarmState()), line)
        at.metrics.setdefault(line.peer, Metrics(line.peer, line.t)).note(type(line.event).__name__, vars(line.event))
        if number % PARTS == part:
            yield at


def differing(said: Said) -> dict[tuple[str, str], dict[str, str]]:
    return {figure: places for figure, places in said.items() if len(set(places.values())) > 1}


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.nightly) for part in range(1, PARTS))])
def test_every_place_says_the_same_at_each_position_of_the_recording(part: int) -> None:
    compared = set[tuple[str, str]]()
    for at in moments(part):
        number, swarm, now = at.number, at.swarm, at.now
        said: Said = defaultdict(dict)
        read_home(said, View(swarm=swarm, now=now))
        for peer in swarm.peers.values():
            view = View(swarm=swarm, now=now, me=peer.peer)
            if peer.reports:
                read_mine(said, view, peer)
                read_network(said, view, peer)
            read_peers_table(said, view, peer)
            read_peer_page(said, view, peer)
        read_status(said, swarm, now, swarm.reporting[-1])
        read_json(said, swarm, now)
        read_report(said, swarm)
        for peer_id, own in at.own.items():
            read_metrics(said, at.metrics[peer_id], own, now)
        total = said["tokens", "run"]["json"]
        assert said["tokens of the rounds", "run"]["report"] == total, number
        assert said["tokens of the peers", "run"]["report"] == total, number
        assert said["sent by each", "run"] == said["sent in rounds", "sum"], number
        weights = [said["weight", peer.label]["json"] for peer in swarm.peers.values()]
        if swarm.history:  # what came too late weighs nothing, and nobody weighs more for that
            assert sum(float(share.split()[0]) for share in weights) < 100.3, number
        assert differing(said) == {}, f"position {number}: {swarm.last_t}"
        compared |= {figure for figure, places in said.items() if len(places) > 1}
    assert {figure for figure, _ in compared} == {
        "rounds", "held-out", "throughput", "tokens", "sent in rounds", "seconds", "state", "weight", "speed", "behind",
        "token share", "loss", "link sent", "accepted", "late", "idle", "rejected", "missed", "committed", "lasting",
        "sent",
    }  # fmt: skip


def test_the_plain_log_says_what_the_screens_say() -> None:
    """The line of each round, against the report's row of it."""
    import io

    from tui.output.plain import PlainOutput

    stream, swarm = io.StringIO(), SwarmState()
    output = PlainOutput(stream, rounds=20, terse=True)
    for line in recorded():
        output.show(line)
        swarm = apply(swarm, line)
    output.close()
    losses = dict(swarm.losses)
    told = {int(row[1]): row[0] for row in re.finditer(r"round (\d+)/20 · \d+ peers? · .*digest", stream.getvalue())}
    assert sorted(told) == list(range(1, 21))
    for done in swarm.history:
        line_of = told[done.round]
        assert f"held-out loss {losses[done.round]:.3f}" in line_of
        assert f" · {format_round(done.round_s)} · " in line_of
        training = next(point.value for point in swarm.training if point.round == done.round)
        assert f"training loss {training:.3f}" in line_of
