"""From what members pledged and reducers measured to the judgement of a round.

Everything here is computed alike by the reducers, the coordinator, every voter, whoever catches up and
whoever audits: from the headers, the signed measurements and the head before, and from nothing else.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from peer.consensus.aggregation.aggregate import AggregationResult, aggregate
from peer.consensus.aggregation.evidence import Contributor, LayerNorms
from peer.consensus.aggregation.peer_history import MAX_ROOTS, NOTHING, PeerHistory
from peer.consensus.protocol.block import WEIGHT_ONE, ContributionHeader, NormRow, SignedNorms, givers, token_share
from peer.consensus.protocol.encoding import digest
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.layout import Fragment, Part, assign, shares_of
from peer.consensus.protocol.membership import trusted
from peer.consensus.protocol.rules import Rules, computed_once

REPORTERS = 2
"""Nobody is convicted on the word of one."""
_FLOAT32 = struct.Struct(">f")
INFINITY, NOT_A_NUMBER, SIGN = 0x7F800000, 0x7FC00000, 1 << 31


@computed_once
def judgement_of(
    rules: Rules, head: ChainHead, members: tuple[ContributionHeader, ...], measured: Sequence[SignedNorms]
) -> AggregationResult:
    """What becomes of the contributions to `head`."""
    fragment = rules.fragment(head.round)
    layers = _layers(fragment, members, measured)
    # Where a newcomer begins it takes the records on trust.
    known = [record for record in head.records if len(record.stats) == rules.layers]
    records = [replace(record, stats=tuple(record.stats[layer] for layer in fragment.layers)) for record in known]
    # A replay is known as long as it could come again: two rounds of each fragment at least.
    roots = max(MAX_ROOTS, 2 * rules.fragments)
    found = aggregate(
        rules.aggregation, head.round, records, _claims(rules, head, members), layers, roots, trusted(head)
    )
    findings = (
        replace(item, layer=fragment.layers[item.layer] if item.layer >= 0 else item.layer) for item in found.findings
    )
    return replace(found, findings=tuple(findings), records=_in_model(rules, fragment, known, found.records))


def _in_model(
    rules: Rules, fragment: Fragment, before: Sequence[PeerHistory], after: Sequence[PeerHistory]
) -> tuple[PeerHistory, ...]:
    """Records of the whole model: what is known of layers that a round does not average stays as it was."""
    known = {record.peer: record.stats for record in before}
    records = []
    for record in after:
        stats = list(known.get(record.peer, (NOTHING,) * rules.layers))
        for layer, stat in zip(fragment.layers, record.stats, strict=True):
            stats[layer] = stat
        records.append(replace(record, stats=tuple(stats)))
    return tuple(records)


def caught(head: ChainHead, members: Sequence[ContributionHeader]) -> dict[str, int]:
    """Who counts nothing and reduces nothing because it lied, with the number of members that report it now.

    A member's factor is the median of what all other members say: 0 from those who report it, 1 from the rest. So
    more than half of them must, and at least two. Those who were caught before, or have not earned a vote, are not
    asked.
    """
    found = {peer: 0 for peer, *_ in head.caught}
    believed = trusted(head)
    observers = [header for header in members if header.peer in believed and header.peer not in found]
    accused = {peer for header in observers for peer, _ in header.reports}
    for peer in sorted(accused):
        others = [header for header in observers if header.peer != peer]
        reporting = sum(any(name == peer for name, _ in header.reports) for header in others)
        if reporting > len(others) // 2 and reporting >= REPORTERS:
            found[peer] = reporting
    return found


@computed_once
def shard_owners(
    rules: Rules, head: ChainHead, members: tuple[ContributionHeader, ...], ballot: int
) -> tuple[str, ...]:
    """Who averages each part in this ballot: who has earned a vote and did not lie, unless there is nobody else."""
    owners = trusted(head) - caught(head, members).keys()
    of_owners = [header for header in members if header.peer in owners] or members
    names = [header.peer for header in of_owners]
    shares = shares_of([header.bandwidth_bps for header in of_owners])
    return assign(rules.fragment(head.round).parts, names, shares, head.round // rules.fragments + ballot)


def _claims(rules: Rules, head: ChainHead, members: tuple[ContributionHeader, ...]) -> list[Contributor]:
    guilty = caught(head, members)
    claims = [
        Contributor(
            peer=header.peer,
            share=0 if header.peer in guilty else token_share(header, rules.tokens_cap, rules.max_staleness),
            steps=min(max(header.steps, 1), rules.steps_cap),
            root=header.root,
        )
        for header in members
    ]
    return _newcomers_bounded(claims, trusted(head))


def _newcomers_bounded(claims: list[Contributor], believed: Collection[str]) -> list[Contributor]:
    """All who have not earned a vote weigh together no more than those who have."""
    of_voters = sum(claim.share for claim in claims if claim.peer in believed)
    of_newcomers = sum(claim.share for claim in claims) - of_voters
    if not of_voters or of_newcomers <= of_voters:
        return claims
    return [
        claim if claim.peer in believed else replace(claim, share=claim.share * of_voters // of_newcomers)
        for claim in claims
    ]


# ---- what a reducer measured ----


def measurements(
    rules: Rules, round: int, members: int, received: Mapping[int, int], figures: Mapping[int, Mapping[int, PartNorms]]
) -> SignedNorms:
    """The unsigned measurements of what this reducer received: by part the bits of its members, and their figures."""
    parts, by_layer = rules.fragment(round).parts, dict[int, list[int]]()
    for part in sorted(received):
        by_layer.setdefault(parts[part].layer, []).append(part)
    rows = tuple(
        _row(layer, [figures.get(part, {}) for part in behind], members) for layer, behind in sorted(by_layer.items())
    )
    return SignedNorms(rules.me, tuple(sorted(received.items())), rows)


def _row(layer: int, parts: Sequence[Mapping[int, PartNorms]], members: int) -> NormRow:
    """Sums over the parts of one layer, in their order."""
    squares, dots, direction = [0.0] * members, [0.0] * members, 0.0
    for figures in parts:
        for index, found in figures.items():
            squares[index] += found.square
            dots[index] += found.dot
        direction += next((found.direction for found in figures.values() if found.direction is not None), 0.0)
    if not direction:
        return NormRow(layer, tuple(bits_of(square) for square in squares))
    return NormRow(
        layer, tuple(bits_of(square) for square in squares), tuple(bits_of(dot) for dot in dots), bits_of(direction)
    )


def bits_of(value: float) -> int:
    """The bits of the nearest float32; beyond its range those of infinity.

    There is one NaN, without a sign: those of the bytes have one or not, and a square may not.
    """
    if math.isnan(value):
        return NOT_A_NUMBER
    try:
        return int.from_bytes(_FLOAT32.pack(value), "big")
    except OverflowError:
        return INFINITY if value > 0 else INFINITY | SIGN


def float_of(bits: int) -> float:
    value: float = _FLOAT32.unpack(bits.to_bytes(4, "big"))[0]
    return value


def inputs_digest_of(members: tuple[ContributionHeader, ...], measured: Sequence[SignedNorms]) -> bytes:
    """The name of all that means are computed from, beside the parts."""
    return digest(tuple(header.packed() for header in members), tuple(item.packed() for item in measured))


@computed_once
def fault_of_measurements(
    rules: Rules, head: ChainHead, members: tuple[ContributionHeader, ...], ballot: int, measured: Sequence[SignedNorms]
) -> str:
    """The first reason why these measurements of a ballot cannot be counted, in words; empty if they can."""
    reducers = shard_owners(rules, head, members, ballot)
    fragment, gave = rules.fragment(head.round), givers(members)
    names = []
    for item in measured:
        parts = [part for part, reducer in enumerate(reducers) if reducer == item.reducer]
        layers = sorted({fragment.parts[part].layer for part in parts})
        if not parts or [part for part, _ in item.received] != parts or any(bits & ~gave for _, bits in item.received):
            return f"{item.reducer} does not list the parts that it reduces"
        if [row.layer for row in item.rows] != layers or not all(fits(row, len(members)) for row in item.rows):
            return f"{item.reducer} does not list the layers that it reduces"
        if not _measured_what_it_holds(fragment, item):
            return f"{item.reducer} measured what it does not hold"
        if not item.genuine(rules.keys, head.anchor, ballot, members):
            return f"{item.reducer} has not signed its measurements"
        names.append(item.reducer)
    return "" if names == sorted(set(names)) else "its measurements are not in order"


def fits(row: NormRow, members: int) -> bool:
    return len(row.squares) == members and len(row.dots) in (0, members)


def _measured_what_it_holds(fragment: Fragment, item: SignedNorms) -> bool:
    """Whether there is nothing but 0 of members of whom it holds no part of a layer."""
    held: dict[int, int] = {}
    for part, bits in item.received:
        layer = fragment.parts[part].layer
        held[layer] = held.get(layer, 0) | bits
    return all(
        held[row.layer] >> index & 1
        for row in item.rows
        for figures in (row.squares, row.dots)
        for index, bits in enumerate(figures)
        if bits
    )


def listed(measured: Iterable[SignedNorms]) -> dict[int, int]:
    """Contributors of each part, as its reducer signed them."""
    return {part: bits for item in measured for part, bits in item.received}


# ---- what it comes to ----


def _layers(
    fragment: Fragment, members: tuple[ContributionHeader, ...], measured: Sequence[SignedNorms]
) -> list[LayerNorms]:
    """Norms of the fragment's layers. What was not measured of a layer is taken to be like what was."""
    sizes, rows = _sizes(fragment.parts), _rows_by_layer(measured)
    covered = _covered(fragment.parts, len(members), measured)
    nothing = [0] * (len(members) + 1)
    return [_layer_norms(rows.get(layer, []), covered.get(layer, nothing), sizes[layer]) for layer in fragment.layers]


def _rows_by_layer(measured: Sequence[SignedNorms]) -> dict[int, list[NormRow]]:
    found: dict[int, list[NormRow]] = {}
    for item in measured:
        for row in item.rows:
            found.setdefault(row.layer, []).append(row)
    return found


def _sizes(parts: Sequence[Part]) -> Counter[int]:
    sizes: Counter[int] = Counter()
    for part in parts:
        sizes[part.layer] += part.size
    return sizes


def _covered(parts: Sequence[Part], members: int, measured: Sequence[SignedNorms]) -> dict[int, list[int]]:
    """For each layer how many of its elements were measured of each member; last, of anybody."""
    found: dict[int, list[int]] = {}
    for item in measured:
        for part, bits in item.received:
            row = found.setdefault(parts[part].layer, [0] * (members + 1))
            for index in range(members):
                row[index] += parts[part].size * (bits >> index & 1)
            row[members] += parts[part].size * (bits != 0)
    return found


def _layer_norms(rows: Sequence[NormRow], covered: Sequence[int], size: int) -> LayerNorms:
    members = len(covered) - 1
    norms: list[float | None] = []
    dots: list[float | None] = []
    compared = [row for row in rows if row.dots]
    for index in range(members):
        share = covered[index] / size
        norms.append(math.sqrt(_total(row.squares[index] for row in rows) / share) if share else None)
        dots.append(_total(row.dots[index] for row in compared) / share if share and compared else None)
    square = _total(row.direction for row in compared)
    direction = math.sqrt(square * size / covered[members]) if covered[members] and square > 0 else None
    return LayerNorms(tuple(norms), tuple(dots), direction)


def _total(bits: Iterable[int]) -> float:
    """The sum in their order. (`sum` of floats rounds otherwise since Python 3.12: peers would not agree.)"""
    total = 0.0
    for item in bits:
        total += float_of(item)
    return total


# ---- how it stands in the update ----


def table_of(judgement: AggregationResult) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...], tuple[int, ...]]:
    """Weights, scales and pulls as short as they can be said."""
    weights = judgement.weights[:1] if len(set(judgement.weights)) == 1 else judgement.weights
    scales = () if set(judgement.scales) == {WEIGHT_ONE} else judgement.scales
    return weights, scales, judgement.pulls if any(judgement.pulls) else ()


def row_for(weights: Sequence[tuple[int, ...]], row: int) -> tuple[int, ...]:
    """The weights of one layer in such a table: of number `row` among the layers that the round averages."""
    return weights[0] if len(weights) == 1 else weights[row]


@dataclass(frozen=True, slots=True)
class PartNorms:
    """What one part of one contribution came to, decoded; `dot` and `direction` as in
    `peer.consensus.protocol.block.NormRow`."""

    square: float
    dot: float = 0.0
    direction: float | None = None
    """None if there is no last committed mean of this part."""
