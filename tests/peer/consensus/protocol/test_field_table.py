"""The tables of every field in `peer/consensus/protocol/README.md` have a line for each that is declared, and no
other."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from dht.admission import Admission, QuarantineList
from dht.invite import Invite
from dht.records import Genesis, PeerRecord, Record
from peer.network.sync.chain_status import ChainStatus, SnapshotOffer
from peer.node.store.snapshots import SnapshotManifest
from tests.fields.declared import names_of, structures

README = Path(__file__).parents[4] / "peer" / "consensus" / "protocol" / "README.md"
OUTSIDE_OF_ROUNDS = (
    Record, PeerRecord, Genesis, Admission, QuarantineList, Invite, ChainStatus, SnapshotOffer, SnapshotManifest,
)  # fmt: skip
NOT_SAID = {"Invite.text"}
"""The whole of it."""
COLUMNS = ("field", "said by", "told by whom else", "bound", "a lie costs the others")


def declared() -> set[str]:
    said = {f"{kind.__name__}.{name}" for kind in structures() for name in names_of(kind)}
    said |= {f"{kind.__name__}.{field.name}" for kind in OUTSIDE_OF_ROUNDS for field in dataclasses.fields(kind)}
    return said - NOT_SAID


def lines() -> list[tuple[str, ...]]:
    found = re.findall(r"^\| ([A-Z]\w+\.\w+) \| (.*) \|$", README.read_text(), re.MULTILINE)
    return [(field, *rest.split(" | ")) for field, rest in found]


def test_every_field_has_a_line() -> None:
    named = [field for field, *_ in lines()]
    assert (declared() - set(named), set(named) - declared()) == (set(), set())
    assert len(named) == len(set(named))


def test_a_line_says_everything() -> None:
    for line in lines():
        assert len(line) == len(COLUMNS), line
        assert all(cell.strip() for cell in line), line
