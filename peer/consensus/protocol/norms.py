"""Judges a round from what its members pledged and declared.

Reducers, the coordinator, every voter, peers that catch up and auditors all compute the same result here: from the
headers and the head before, and from nothing else.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import median_low

from peer.consensus.aggregation.aggregate import AggregationResult, aggregate
from peer.consensus.aggregation.evidence import Contributor, LayerNorms
from peer.consensus.aggregation.peer_history import MAX_ROOTS, NOTHING, PeerHistory
from peer.consensus.protocol.block import WEIGHT_ONE, ContributionHeader, token_share
from peer.consensus.protocol.electorate import quorum
from peer.consensus.protocol.encoding import digest
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.layout import Fragment, assign, shares_of
from peer.consensus.protocol.membership import trusted
from peer.consensus.protocol.rules import Rules, computed_once

REPORTERS = 2
"""Nobody is convicted on the word of one."""
_FLOAT32, _DIRECTION = struct.Struct(">f"), struct.Struct(">2f")
NOT_A_NUMBER = bytes.fromhex("7fc00000")


@computed_once
def judgement_of(rules: Rules, head: ChainHead, members: tuple[ContributionHeader, ...]) -> AggregationResult:
    """Judges the contributions to `head`."""
    fragment = rules.fragment(head.round)
    layers = _layers(rules, head, members)
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
    """Records of the whole model: those of layers that a round does not average stay as they were."""
    known = {record.peer: record.stats for record in before}
    records = []
    for record in after:
        stats = list(known.get(record.peer, (NOTHING,) * rules.layers))
        for layer, stat in zip(fragment.layers, record.stats, strict=True):
            stats[layer] = stat
        records.append(replace(record, stats=tuple(stats)))
    return tuple(records)


def convictions(head: ChainHead, members: Sequence[ContributionHeader]) -> dict[str, int]:
    """The peers that count nothing and reduce nothing because they lied, with the number of members that report it
    now.

    A member's factor is the median of what all other members say: 0 from those that report it, 1 from the rest. So more
    than half of them must report it, and at least two. Peers that were convicted before, or have not earned a vote, are
    not asked.
    """
    found = {peer: 0 for peer, *_ in head.convicted}
    believed = trusted(head)
    observers = [header for header in members if header.peer in believed and header.peer not in found]
    reported = {peer for header in observers for peer, _ in header.reports}
    for peer in sorted(reported):
        others = [header for header in observers if header.peer != peer]
        reporting = sum(any(name == peer for name, _ in header.reports) for header in others)
        if reporting > len(others) // 2 and reporting >= REPORTERS:
            found[peer] = reporting
    return found


@computed_once
def shard_owners(
    rules: Rules, head: ChainHead, members: tuple[ContributionHeader, ...], ballot: int
) -> tuple[str, ...]:
    """The owner of each part in this ballot: peers that have earned a vote and did not lie, unless there is nobody
    else. A peer whose means never came in the round before has no parts now, if such peers are at most as many as
    may lie: otherwise a coordinator that claims this about all others would have all parts."""
    owners = trusted(head) - convictions(head, members).keys()
    if len(head.withheld) <= len(head.electorate) - quorum(head.electorate):
        owners -= set(head.withheld)
    of_owners = [header for header in members if header.peer in owners] or members
    names = [header.peer for header in of_owners]
    shares = shares_of([header.bandwidth_bps for header in of_owners])
    return assign(rules.fragment(head.round).parts, names, shares, head.round // rules.fragments + ballot)


def _claims(rules: Rules, head: ChainHead, members: tuple[ContributionHeader, ...]) -> list[Contributor]:
    convicted, tokens = convictions(head, members), tokens_learned(rules, head, members)
    claims = [
        Contributor(
            peer=header.peer,
            share=0
            if header.peer in convicted
            else token_share(header, min(learned, rules.tokens_cap), rules.max_staleness),
            steps=min(max(header.steps, 1), rules.steps_cap),
            root=header.root,
        )
        for header, learned in zip(members, tokens, strict=True)
    ]
    return _newcomers_bounded(claims, trusted(head))


def tokens_learned(rules: Rules, head: ChainHead, members: Sequence[ContributionHeader]) -> list[int]:
    """The tokens of each member that count, within the cap of all.

    What was predicted nobody can check, other than steps, which bound what was read: so of what a member can have read,
    at most twice the share counts that is usual among those with a vote; of two givers the larger, since one of them
    could else leave the other nothing.
    """
    if not rules.weighs_predicted:
        return [header.tokens for header in members]
    most = [max(1, header.steps) * rules.step_tokens for header in members]
    believed = trusted(head)
    shares = [
        Fraction(header.tokens, read)
        for header, read in zip(members, most, strict=True)
        if header.root and header.tokens and header.peer in believed
    ]
    usual = (median_low(shares) if len(shares) > 2 else max(shares)) if shares else Fraction(1)
    return [min(header.tokens, int(2 * usual * read)) for header, read in zip(members, most, strict=True)]


def _newcomers_bounded(claims: list[Contributor], believed: Collection[str]) -> list[Contributor]:
    """All peers that have not earned a vote weigh together at most as much as those that have."""
    of_voters = sum(claim.share for claim in claims if claim.peer in believed)
    of_newcomers = sum(claim.share for claim in claims) - of_voters
    if not of_voters or of_newcomers <= of_voters:
        return claims
    return [
        claim if claim.peer in believed else replace(claim, share=claim.share * of_voters // of_newcomers)
        for claim in claims
    ]


# ---- what a contributor declares ----


def declare(fragment: Fragment, figures: Mapping[int, PartNorms]) -> bytes:
    """What a header declares of a contribution, from the figures of each part of a fragment: for each part a float32
    (big-endian), the square of its L2 norm; then for each layer two, its inner product with the last committed mean of
    the layer and the square of that mean. These are 0 if there is no such mean.

    Of parts, since no reducer holds all of a layer: whoever declared one number for a layer of nine parts could give
    three times that norm.
    """
    sums = {layer: [0.0, 0.0] for layer in fragment.layers}
    for index, part in enumerate(fragment.parts):
        sums[part.layer][0] += figures[index].dot
        sums[part.layer][1] += figures[index].direction or 0.0
    squares = [figures[index].square for index in range(len(fragment.parts))]
    return b"".join(map(_float32, [*squares, *(value for layer in fragment.layers for value in sums[layer])]))


def declared_square(header: ContributionHeader, part: int) -> float:
    """The square of the L2 norm that it declares for one part; NaN and infinity are possible."""
    square: float = _FLOAT32.unpack_from(header.norms, part * _FLOAT32.size)[0]
    return square


def declared_of_part(header: ContributionHeader, part: int) -> float:
    """The L2 norm that it declares for one part; 0 for a peer that gives nothing."""
    return _root(declared_square(header, part)) if header.norms else 0.0


def declared_norm(header: ContributionHeader, parts: int) -> float:
    """The L2 norm of all parts, so many, of one that gives something."""
    return _root(sum(declared_square(header, part) for part in range(parts)))


def declared(fragment: Fragment, header: ContributionHeader) -> list[tuple[float, float, float]]:
    """(square, inner product, square of the last mean) of each layer of the fragment, from a header that gives
    something. Any of them may be NaN or infinite; a negative square of a part is NaN."""
    squares = [0.0] * len(fragment.layers)
    for part, row in enumerate(fragment.rows):
        square = declared_square(header, part)
        squares[row] += square if square >= 0.0 else math.nan
    directions = _DIRECTION.iter_unpack(header.norms[len(fragment.rows) * _FLOAT32.size :])
    return [(square, *direction) for square, direction in zip(squares, directions, strict=True)]


def fault_of_declared(rules: Rules, head: ChainHead, header: ContributionHeader) -> str:
    """Why the declared norms cannot be read; empty if they can."""
    fragment = rules.fragment(head.round)
    needed = _FLOAT32.size * len(fragment.parts) + _DIRECTION.size * len(fragment.layers) if header.root else 0
    return "" if len(header.norms) == needed else f"it declares {len(header.norms)} bytes of norms, not {needed}"


def _float32(value: float) -> bytes:
    """The nearest float32; infinity beyond its range. There is only one NaN, since those of different processors
    differ in their sign."""
    if math.isnan(value):
        return NOT_A_NUMBER
    try:
        return _FLOAT32.pack(value)
    except OverflowError:
        return _FLOAT32.pack(math.copysign(math.inf, value))


def inputs_digest_of(members: tuple[ContributionHeader, ...]) -> bytes:
    """The digest of everything from which means are computed, beside the parts."""
    return digest(tuple(header.packed() for header in members))


def _layers(rules: Rules, head: ChainHead, members: tuple[ContributionHeader, ...]) -> list[LayerNorms]:
    """The declared norms of the fragment's layers. The norm of the last mean is the median of what peers with a vote
    say; if there is one, a missing inner product counts as 0."""
    believed, fragment = trusted(head), rules.fragment(head.round)
    tables = [declared(fragment, header) if header.root else None for header in members]
    sizes = [0] * len(fragment.layers)
    for part, row in zip(fragment.parts, fragment.rows, strict=True):
        sizes[row] += part.size
    found = []
    for row in range(len(fragment.layers)):
        said = [None if table is None else table[row] for table in tables]
        directions = sorted(
            item[2]
            for header, item in zip(members, said, strict=True)
            if item is not None and header.peer in believed and 0.0 < item[2] < math.inf
        )
        direction = math.sqrt(directions[len(directions) // 2]) if directions else None
        found.append(
            LayerNorms(
                tuple(None if item is None else _root(item[0]) for item in said),
                tuple(None if item is None or direction is None else item[1] for item in said),
                direction,
                sizes[row],
            )
        )
    return found


def _root(square: float) -> float:
    return math.sqrt(square) if square >= 0.0 else math.nan


# ---- how it stands in the update ----


def table_of(judgement: AggregationResult) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...], tuple[int, ...]]:
    """Weights, scales and pulls in their shortest form."""
    weights = judgement.weights[:1] if len(set(judgement.weights)) == 1 else judgement.weights
    scales = () if set(judgement.scales) == {WEIGHT_ONE} else judgement.scales
    return weights, scales, judgement.pulls if any(judgement.pulls) else ()


def row_for(weights: Sequence[tuple[int, ...]], row: int) -> tuple[int, ...]:
    """The weights of one layer in such a table: of number `row` among the layers that the round averages."""
    return weights[0] if len(weights) == 1 else weights[row]


@dataclass(frozen=True, slots=True)
class PartNorms:
    """The figures of one decoded part of one contribution."""

    square: float
    """Of the L2 norm."""
    dot: float = 0.0
    """Inner product with the last committed mean of this part."""
    direction: float | None = None
    """Square of that mean; None if there is none."""
