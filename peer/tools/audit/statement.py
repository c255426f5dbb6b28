"""`homefires credit`: what each peer has put into the run of a directory, from the certificates of its chain.

Every block is checked as in an audit, except for the bytes of its parts. The tally beside the base holds the counts of
blocks that the quota has dropped; this peer checked those when they were decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from peer.consensus.codec.run_rules import rules_of
from peer.consensus.credit.tally import Counting, Credit, Tally, read_tally, total
from peer.consensus.protocol.block import WEIGHT_ONE
from peer.consensus.protocol.layout import cut
from peer.consensus.protocol.validation import check_block
from peer.node.store.run_directory import block_path, read_organiser
from peer.schema.events import PeerStarted, ReportReceived, read_events
from peer.tools.audit.run_files import RunFiles, SignatureChecker, blaming, require
from peer.training.model.build import build_meta
from peer.training.model.flat_parameters import FlatParameters

HEADINGS = ("peer", "id", "tokens", "weight", "accepted", "late", "idle", "rejected", "missed")
CHECKED = "votes, signatures and weights were checked now, means were not (homefires audit does)"
ID_LETTERS = 8
"""Of a peer's id, the last ones: two may have chosen one name."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What is known of every peer's contributions."""

    tally: Tally
    checked_from: int
    """The first round whose votes and signatures were checked just now."""
    names: Mapping[str, str]
    """What volunteers call their peers, as these signed it."""

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints. Weights are in rounds: 1 is as much as all of one round."""
        rows = [
            {"peer": peer, "name": self.names.get(peer, ""), **asdict(credit), "weight": _in_rounds(credit)}
            for peer, credit in self._ranked()
        ]
        return {
            "first_round": self.tally.first, "last_round": self.tally.last, "checked_from": self.checked_from,
            "anchor": self.tally.anchor.hex(), "peers": rows,
        }  # fmt: skip

    def page(self) -> str:
        """A table for people, and how far it goes back."""
        whole = total(self.tally.credits).weight or 1
        table = [HEADINGS] + [
            (
                self.names.get(peer) or "-", peer[-ID_LETTERS:], f"{credit.tokens:,}", f"{credit.weight / whole:.1%}",
                *map(str, (credit.accepted, credit.late, credit.idle, credit.rejected, credit.missed)),
            )
            for peer, credit in self._ranked()
        ]  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        return "\n".join([*(_aligned(row, widths) for row in table), self._reach()])

    def _ranked(self) -> list[tuple[str, Credit]]:
        """Whoever counted most comes first."""
        return sorted(self.tally.credits.items(), key=lambda item: (-item[1].weight, -item[1].tokens, item[0]))

    def _reach(self) -> str:
        first, last = self.tally.first, self.tally.last
        if last < first:
            return f"no round was decided here since round {last}"
        if self.checked_from > last:
            return f"rounds {first} to {last}, as this peer counted them when it checked them"
        since = "" if first == 1 else "; the chain on this disk knows nothing of those before"
        if self.checked_from == first:
            return f"rounds {first} to {last}: {CHECKED}{since}"
        counted = f"those before round {self.checked_from} as this peer counted them when it checked them"
        return f"rounds {first} to {last}: {counted}; of the others {CHECKED}{since}"


def credit(directory: Path) -> Statement:
    """What every peer contributed to the run of this directory, whose peer is stopped or at work.

    Raises BadLink for the first block that is not what the peers agreed on, BadInput for a folder without a chain.
    """
    files = RunFiles(directory)
    tally, checked_from = files.settled(lambda: _count(files))
    return Statement(tally=tally, checked_from=checked_from, names=_names(directory))


def _count(files: RunFiles) -> tuple[Tally, int]:
    """The tally of the base, with every block since; and which of them is the first."""
    spec, genesis = files.beginning()
    sizes = [layer.size for layer in FlatParameters(build_meta(spec)).layers]
    layout = cut(sizes, spec.codec.part_elements)
    counting = Counting.of_model(sizes, spec.codec.part_elements, spec.round.fragments, spec.tokens_cap)
    pointer = files.pointer(genesis)
    head = files.base(pointer, genesis).head
    rules = rules_of(spec, layout, SignatureChecker(genesis.run), organiser=read_organiser(files.directory))
    tally, first = read_tally(files.directory, head), head.round + 1
    for round in range(first, pointer.round + 1):
        block = files.block(round)
        with blaming(round, block_path(files.directory, round)):
            fault = check_block(rules, head, block)
            require(not fault, fault)
        head = head.after(block.update)
        tally = tally.plus(counting.of(block.update), head)
    files.check_pointer(pointer, head)
    return tally, first


def _names(directory: Path) -> dict[str, str]:
    """What each peer calls itself, as it last said in a signed HEAD; of this peer, what it said at its start."""
    names: dict[str, str] = {}
    for line in read_events(directory):
        match line.event:
            case ReportReceived(about=about, name=name) if name:
                names[about] = name
            case PeerStarted(name=name) if line.peer:
                names[line.peer] = name
    return names


def _in_rounds(credit: Credit) -> float:
    return round(credit.weight / WEIGHT_ONE, 4)


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    """Names to the left, numbers to the right."""
    texts, numbers = list(zip(row, widths, strict=True))[:2], list(zip(row, widths, strict=True))[2:]
    cells = [text.ljust(width) for text, width in texts] + [number.rjust(width) for number, width in numbers]
    return "  ".join(cells).rstrip()
