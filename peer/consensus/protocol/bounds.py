"""Bounds of the numbers in a contribution header: what can be computed bounds what cannot be measured."""

from __future__ import annotations

from dataclasses import replace

from peer.consensus.protocol.block import CURSOR_END, MAX_RANGES, ContributionHeader, Ranges
from peer.consensus.protocol.refusals import BANDWIDTH, DELEGATES, RANGES, STALENESS, STEPS, TOKENS
from peer.consensus.protocol.rules import Rules

OLDEST = 1 << 31
"""Rounds: what is so old was given up long before."""
MOST_BPS = 10**13
"""Ten terabits a second: no home sends faster."""


def fault_of_header(rules: Rules, header: ContributionHeader) -> tuple[str, str]:
    """The first bound that a header exceeds: its rule, and why in words; empty if there is none."""
    if not 0 <= header.steps <= rules.steps_most:
        return STEPS, f"it says {header.steps:,} steps, where nobody makes more than {rules.steps_most:,}"
    most_tokens = _most_tokens(rules, header.steps)
    if not 0 <= header.tokens <= most_tokens:
        return TOKENS, f"it says {header.tokens:,} tokens, where {header.steps:,} steps read {most_tokens:,} at most"
    if not 0 <= header.staleness <= OLDEST:
        return STALENESS, f"it says that its work is {header.staleness:,} rounds old"
    if not 0 <= header.bandwidth_bps <= MOST_BPS:
        return BANDWIDTH, f"it says that it uploads {header.bandwidth_bps:,} bit/s"
    why = _fault_of_ranges(rules, header)
    if why:
        return RANGES, why
    why = _fault_of_delegates(rules, header)
    return (DELEGATES, why) if why else ("", "")


def within(rules: Rules, header: ContributionHeader) -> ContributionHeader:
    """The same header with no more than it may claim: a peer that was alone for long has read more than anybody may
    claim."""
    steps = min(header.steps, rules.steps_most)
    tokens = min(header.tokens, _most_tokens(rules, steps))
    return replace(
        header, steps=steps, tokens=tokens, staleness=min(header.staleness, OLDEST),
        bandwidth_bps=min(header.bandwidth_bps, MOST_BPS),
        ranges=_ranges_of(rules, header.ranges, _tokens_read(rules, steps, tokens)),
    )  # fmt: skip


def _most_tokens(rules: Rules, steps: int) -> int:
    """The most tokens that so many steps can read: some have fewer micro-batches, none has more."""
    return steps * rules.step_tokens if rules.step_tokens else OLDEST * rules.tokens_cap


def _tokens_read(rules: Rules, steps: int, tokens: int) -> int:
    """The most tokens that somebody has read who says so many steps and tokens."""
    return _most_tokens(rules, steps) if rules.weighs_predicted else tokens


def _ranges_of(rules: Rules, ranges: Ranges, tokens: int) -> Ranges:
    """As many of the windows as the tokens read; the others are read again."""
    left, ends, kept = tokens // rules.context if rules.context else CURSOR_END, dict[int, int](), []
    for shard, first, last in sorted(ranges):
        begin = max(first, ends.get(shard, 0))
        end = min(last, begin + left, CURSOR_END)
        if begin < end:
            kept.append((shard, begin, end))
            left, ends[shard] = left - (end - begin), end
    return tuple(kept[:MAX_RANGES])


def _fault_of_ranges(rules: Rules, header: ContributionHeader) -> str:
    ends: dict[int, int] = {}
    for shard, first, last in header.ranges:
        if not 0 <= shard < rules.shards:
            return f"it says that it read shard {shard:,}, which the run has not"
        if not ends.get(shard, 0) <= first < last <= CURSOR_END:
            return f"it says that it read windows {first:,} to {last:,} of shard {shard}"
        ends[shard] = last
    windows = sum(last - first for _, first, last in header.ranges)
    read = _tokens_read(rules, header.steps, header.tokens)
    if rules.context and windows * rules.context > read:
        return f"it says {windows:,} windows of {rules.context:,} tokens, and {read:,} tokens"
    return ""


def _fault_of_delegates(rules: Rules, header: ContributionHeader) -> str:
    """Whether delegates are in order, within the model, and not the author itself. A peer that another header names
    too, or that is a member itself, may still be named: the Merkle path of a part tells whose it is. Otherwise
    anybody could keep a member out by naming its delegates."""
    end, named = 0, {header.peer, ""}
    for first, last, peer in header.delegates:
        if not end <= first <= last < rules.layers:
            return f"it names {peer or 'nobody'} for layers {first:,} to {last:,} of {rules.layers:,}"
        if peer in named:
            return f"it names {peer or 'nobody'} where another is to be named"
        named.add(peer)
        end = last + 1
    return ""
