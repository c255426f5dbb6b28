"""Why one strategy is better than another, in words that name what is different and what it costs."""

from __future__ import annotations

from dataclasses import fields

from peer.plan.strategy import Strategy
from peer.plan.strategy_search import RankedStrategy

ALIKE = 0.0005
"""Relative differences below this are none."""
NAMES = {
    "steps": "H", "fragments": "fragments", "wire": "", "overlap": "", "shards": "devices", "inner_shards": "within",
    "stages": "peers per replica", "accumulation": "micro-batches", "pace": "pace",
}  # fmt: skip


def differences(one: Strategy, other: Strategy) -> str:
    """`H 400 instead of 200, int8 instead of int4`: what `one` has where `other` has another thing."""
    parts = []
    for each in fields(Strategy):
        mine, theirs = getattr(one, each.name), getattr(other, each.name)
        if mine != theirs and each.name in NAMES:
            parts.append(f"{NAMES[each.name]} {mine} instead of {theirs}".strip())
    return ", ".join(parts)


def why_lost(best: RankedStrategy, other: RankedStrategy) -> str:
    """One sentence on what `other` would change of `best`, and what is lost by it."""
    change = differences(other.strategy, best.strategy) or "the same"
    faster = other.cost.tokens_per_s / best.cost.tokens_per_s - 1
    worth = (other.score / other.cost.tokens_per_s) / (best.score / best.cost.tokens_per_s) - 1
    if faster < -ALIKE:
        text = f"{change}: {-faster:.2%} fewer tokens/s, since {_cause(best, other)}"
        return text + (f", which a gain of {worth:.1%} in quality is not worth" if worth > ALIKE else "")
    if faster > ALIKE:
        return f"{change}: {faster:.1%} more tokens/s, but each is worth {-worth:.1%} less (perplexity)"
    if worth < -ALIKE:
        return f"{change}: as fast, but each token is worth {-worth:.1%} less (perplexity)"
    return f"{change}: as good, and changes more"


def _cause(best: RankedStrategy, other: RankedStrategy) -> str:
    """The largest thing that makes `other` slower, per token."""
    mine, theirs = best.cost, other.cost
    scale = mine.tokens / theirs.tokens
    step_s = sum(theirs.step_s) / len(theirs.step_s) - sum(mine.step_s) / len(mine.step_s)
    if step_s > ALIKE * sum(mine.step_s):
        return f"an inner step takes {seconds(step_s)} more"
    exposed = (theirs.exposed * theirs.round_s * scale - mine.exposed * mine.round_s) / mine.round_s
    if exposed > ALIKE:
        return f"{theirs.exposed:.2%} of a round is waited instead of {mine.exposed:.2%}"
    talk_s = theirs.agreement.talking - mine.agreement.talking
    if talk_s > 0:
        return f"the exchange takes {seconds(talk_s)} longer than training hides"
    return f"rounds take {seconds(theirs.round_s)} for {theirs.tokens:,.0f} tokens"


def seconds(value: float) -> str:
    """Two or three digits and a unit, nine characters at most: 3.1 ms, 0.42 s, 18.2 s, 12m30s, 3h12m, 12d04h."""
    if 0 < value < 0.01:
        return f"{value * 1000:.2g} ms"
    if 0 < value < 0.1:
        return f"{value * 1000:.0f} ms"
    if value < 10:
        return f"{value:.2f} s"
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours = minutes // 60
    if hours < 100:
        return f"{hours}h{minutes % 60:02d}m"
    return f"{hours // 24}d{hours % 24:02d}h" if hours < 240_000 else f"{value / 86400:.2g} d"
