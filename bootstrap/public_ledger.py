"""What the organiser's page tells of a run, gathered look by look: whose work counted, and what the model has learned.

Whose work counted is in the updates that voters have certified, of which this node sees one a minute. The loss is the
median of what voters say in their signed records, so that less than a half of them cannot move it at will.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError

from dht.atomic_files import write_atomic
from dht.errors import BadInput
from dht.records import PeerRecord
from peer.consensus.protocol.block import WEIGHT_ONE, Update

FILE = "public.json"
MOST_PEERS = 1024
"""Those with the smallest share are forgotten."""
MOST_LOSSES = 200
"""With more of them every other one goes."""


@dataclass(frozen=True, kw_only=True)
class GivenWork:
    """Of one peer: what it calls itself, in how many of the updates its work counted, the last of these rounds, and
    the sum of its weights, of which 1 is all of one round."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str = ""
    rounds: int = 0
    last: int = 0
    weight: float = 0.0


@dataclass(frozen=True, kw_only=True)
class PublicLedger:
    """The updates that this node has looked at, the newest of their rounds, and the losses by round."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    looked: int = 0
    round: int = 0
    given: Mapping[str, GivenWork] = field(default_factory=dict)
    """By peer id."""
    losses: tuple[tuple[int, float], ...] = ()

    def and_updates(self, updates: Iterable[Update]) -> PublicLedger:
        """With those that are newer."""
        ledger = self
        for update in updates:
            if update.round > ledger.round:
                ledger = ledger._and_update(update)
        return ledger

    def and_said(self, heads: Mapping[str, PeerRecord], voters: Collection[str]) -> PublicLedger:
        """With what the peers say of themselves: their names, and the voters' losses."""
        given = {
            peer: replace(work, name=heads[peer].name) if peer in heads else work for peer, work in self.given.items()
        }
        said = [(head.evaluated_round, head.evaluated) for peer, head in heads.items() if peer in voters]
        measured = [(round, loss) for round, loss in said if round is not None and loss is not None]
        losses = self.losses
        if measured:
            round = statistics.median_high(round for round, _ in measured)
            loss = statistics.median_high(loss for _, loss in measured)
            losses = losses if losses and losses[-1][0] >= round else (*losses, (round, round_off(loss)))
        return replace(self, given=given, losses=losses if len(losses) <= MOST_LOSSES else losses[::2])

    def ranked(self) -> list[tuple[str, GivenWork]]:
        """The largest share first."""
        return sorted(self.given.items(), key=lambda row: (-row[1].weight, row[0]))

    def share(self, work: GivenWork) -> float:
        """Of all that counted in these updates, from 0 to 1."""
        return work.weight / max(1, self.looked)

    def _and_update(self, update: Update) -> PublicLedger:
        given = dict(self.given)
        for peer, weight in weights_in(update).items():
            before = given.get(peer, GivenWork())
            given[peer] = replace(
                before, rounds=before.rounds + 1, last=update.round, weight=before.weight + weight
            )  # fmt: skip
        ledger = replace(self, looked=self.looked + 1, round=update.round, given=given)
        return replace(ledger, given=dict(ledger.ranked()[:MOST_PEERS]))


def round_off(loss: float) -> float:
    return float(f"{loss:.4g}")


def weights_in(update: Update) -> dict[str, float]:
    """Of each member some of whose parts are in the means: what it weighs, 1 for all, on average over the layers."""
    found = {}
    for index, header in enumerate(update.members):
        weight = sum(row[index] for row in update.weights) / max(1, len(update.weights)) / WEIGHT_ONE
        if weight and any(bits >> index & 1 for bits in update.contributors):
            found[header.peer] = weight
    return found


def read_ledger(directory: Path) -> PublicLedger:
    """Raises BadInput if it is damaged."""
    path = directory / FILE
    if not path.exists():
        return PublicLedger()
    try:
        return TypeAdapter(PublicLedger).validate_json(path.read_bytes())
    except ValidationError as error:
        raise BadInput(f"{path} is damaged; remove it, and the page begins anew") from error


def write_ledger(directory: Path, ledger: PublicLedger) -> None:
    """Raises DiskFull."""
    write_atomic(directory / FILE, json.dumps(asdict(ledger)).encode())
