"""The result of `homefires plan` for people: a page of at most 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from peer.planning.plan.cluster_cost import no_cluster
from peer.planning.plan.model_shape import memory_of
from peer.planning.plan.peer_set import Machine, PeerSet
from peer.planning.plan.round_cost import MOST, RoundCost
from peer.planning.plan.run_needs import main_bytes
from peer.planning.plan.strategy_search import ALIKE, RankedStrategy, seconds, why_lost
from peer.schema.byte_text import format_bytes
from tui.simulation.model_copies import ModelCopies
from tui.simulation.planner import NoPlan, PlanAnswer
from tui.terminal import columns
from tui.text.units import count

SHOWN = 5
"""The number of strategies in the table."""
PEERS_SHOWN = 12
WIDTH = 80
TOO_LARGE = "= does not fit (the spec as it stands): some peer has too little memory for it"
LATE = 0.1
"""The share of a round's steps from which on a delayed average is reported as hardly measured."""


def describe(found: PlanAnswer) -> str:
    """A page of at most 80 columns."""
    return page([*_head(found), "", *_table(found), "", *_details(found)])


def _head(found: PlanAnswer) -> list[str]:
    spec, question, choice = found.question.spec, found.question, found.choice
    tokens = spec.inner.sequences * spec.inner.accumulation * spec.model.context
    lines = [
        f"{spec.run.name}: {as_short(question.shape.parameters)} parameters, {count(len(question.swarm), 'peer')}, "
        f"{tokens:,} tokens per inner step of each",
        f"{choice.considered} strategies, {choice.tried} predicted"
        + (f", {choice.too_large} too large for a peer's memory" if choice.too_large else ""),
    ]
    return lines + assumptions(question.swarm)


def assumptions(swarm: PeerSet) -> list[str]:
    """The values that nobody measured or stated, one line each."""
    return [f"assumed for {text}" for text in swarm.assumed]


def _table(found: PlanAnswer) -> list[str]:
    """One line per strategy, the best first, and one for the unchanged spec."""
    titles = (
        f"{'':2}{'H':>5} {'overlap':<10}{'frag':>4} {'codec':<8}{'micro':>7}{'round':>9}{'waiting':>8}{'GB/month':>9}"
    )
    lines = [f"{titles}{'tokens/s':>9}{'worth':>7}"]
    shown = list(found.choice.ranked[:SHOWN])
    for place, ranked in enumerate(shown, start=1):
        lines.append(_row(f"{place}{'=' * _is_now(found, ranked)}", ranked))
    if not any(_is_now(found, ranked) for ranked in shown):
        lines.append(_row("=", found.now))
    worth = f"quality, less {100 * found.question.gb_price:.3g} % for each GB a day"
    return [*lines, f"= is the spec as it stands; ranked by tokens/s times worth: {worth}"]


def _is_now(found: PlanAnswer, ranked: RankedStrategy) -> bool:
    """Whether this strategy is that of the unchanged spec."""
    return ranked.strategy == found.now.strategy


def _row(mark: str, ranked: RankedStrategy) -> str:
    chosen, cost = ranked.strategy, ranked.cost
    micro, month_gb = f"{chosen.accumulation}×{chosen.sequences}", 30 * cost.day_bytes / 1e9
    month = f"{month_gb:.1f}" if month_gb < 1e5 else f"{month_gb:.1e}"
    return (
        f"{mark:<2}{chosen.steps:>5} {chosen.overlap:<10}{chosen.fragments:>4} {chosen.wire:<8}{micro:>7}"
        f"{seconds(cost.round_s):>9}{cost.exposed:>8.1%}{month:>9}{as_short(cost.tokens_per_s):>9}"
        f"{ranked.score / cost.tokens_per_s:>7.3f}"
    )


def _details(found: PlanAnswer) -> list[str]:
    best, choice, cost = found.best, found.choice, found.best.cost
    between = f"nine in ten between {seconds(cost.low_s)} and {seconds(cost.high_s)}"
    length = f"a round of {seconds(cost.round_s)}, {between}; {as_short(cost.tokens_per_s)} tokens/s"
    facts = [length, _phases(cost), *_caveats(found), *_traffic(found), *_peers(found)]
    now = " (the spec as it stands)"
    lines = [f"1 is best{now * _is_now(found, best)}: {best.strategy.words()}", *(f"  {fact}" for fact in facts)]
    second = choice.ranked[1] if len(choice.ranked) > 1 else None
    if second is not None:
        is_now = _is_now(found, second)
        lines.append(f"2{' is next' if is_now else ' lost'}{now * is_now}: {why_lost(best, second)}")
    if not any(_is_now(found, ranked) for ranked in choice.ranked[:2]):
        less = " makes less of the time" if found.now.score < (1 - ALIKE) * best.score else ""
        why = f"the spec as it stands{less}: {why_lost(best, found.now)}"
        lines.append(why if found.question.fits(found.now.strategy) else TOO_LARGE)
    return [*lines, f"coefficients: {found.question.given.measured}"]


def _phases(cost: RoundCost) -> str:
    talk = cost.agreement
    return (
        f"train {seconds(cost.train_s)}, freeze {seconds(talk.submit)}, send {seconds(talk.exchange)}, means "
        f"{seconds(talk.reduce)}, apply {seconds(talk.apply)}"
    )


def _caveats(found: PlanAnswer) -> list[str]:
    """The surprising facts about the best strategy, or about its spec."""
    cost, chosen, before, after = found.best.cost, found.best.strategy, found.question.spec.run, found.spec.run
    lines = []
    if cost.uncounted_s:
        lines.append(
            f"{seconds(cost.uncounted_s)} of each round count nothing: a peer's tokens beyond {MOST} × H steps do not"
        )
    if found.question.spec.round.pace == "time":
        lines.append("rounds stay by time (round.pace): how long they take is the organiser's choice, and not compared")
    lines += _about_cuts(found)
    delay = min(MOST * chosen.steps, cost.delay_steps)
    if chosen.overlap == "streaming" and delay > LATE * chosen.steps:
        lines.append(
            f"the average comes {delay:.0f} steps late, of {chosen.steps}: half a per cent of quality is assumed for "
            "streaming whatever the delay (measured on micro: no loss up to a quarter of a round)"
        )
    if after.founders != before.founders:
        lines.append(f"run.founders is {after.founders} instead of {before.founders}, or the run could never start")
    return lines


def _about_cuts(found: PlanAnswer) -> list[str]:
    """A line on micro-batches, if steps were measured only with those of the spec."""
    inner, chosen = found.question.spec.inner, found.best.strategy
    measured = any(machine.step_s for machine in found.question.swarm.machines)
    if not measured or inner.sequences * inner.accumulation == 1:
        return []
    cut = f"{inner.accumulation} × {inner.sequences} sequences"
    if chosen.accumulation == inner.accumulation:
        return [f"steps were measured with {cut}: no other cut of the batch is known to be faster or slower"]
    return [f"steps were measured with {cut}: that another cut of the batch takes as long is assumed"]


def _traffic(found: PlanAnswer) -> list[str]:
    cost = found.best.cost
    if not cost.traffic.up_bytes:
        return []
    return [
        f"each of {len(found.question.swarm)} peers sends {format_bytes(cost.traffic.up_bytes)}, and takes in as much, "
        "per round: "
        f"{format_bytes(cost.day_bytes)} a day, {format_bytes(30 * cost.day_bytes)} a month"
    ]


def _peers(found: PlanAnswer) -> list[str]:
    """The work of each peer; of several alike only the first is listed."""
    question, cost, chosen = found.question, found.best.cost, found.best.strategy
    lines, seen = [], set[Machine]()
    for at, machine in enumerate(question.swarm.machines):
        if machine.kind in seen or len(seen) >= PEERS_SHOWN:
            continue
        seen.add(machine.kind)
        held = format_bytes(question.held_bytes(chosen, machine))
        held += f" of {machine.memory_gb:g} GB" if machine.memory_gb else ""
        if machine.devices > 1:
            held += f" on each of {machine.devices} devices ({question.of_devices(chosen, machine).strategy})"
        lines.append(
            f"{machine.name}: {cost.steps[at]:.0f} steps of {seconds(cost.step_s[at])}, waits "
            f"{seconds(cost.exposed_s[at])} per round, {held} to train"
        )
    lines.append(f"and {format_bytes(main_bytes(memory_of(question.shape, found.spec)))} of main memory each")
    return lines


# ---- a model that some peers do not hold ----

THERE = (0.95, 0.8)
"""Shares of the time that a home may be present, for which the effect on a cluster is shown."""


def describe_options(found: NoPlan) -> str:
    """A page of at most 80 columns: what each way achieves, with a mark at the best one of the others."""
    question, options = found.question, found.options
    lines = [
        f"{question.spec.run.name}: {as_short(question.shape.parameters)} parameters, "
        f"{count(len(question.swarm), 'peer')}; not all of them hold it",
        str(found.why),
        *filter(None, [no_cluster(question.spec)]),
        *assumptions(question.swarm),
        "",
        _way("=", options.whole),
    ]
    for at, ways in enumerate(options.others):
        lines.append(_way("*" if at == 0 else " ", ways))
        lines += [f"    {lead} leads, then {', '.join(others)}" for lead, *others in ways.pipelines[:PEERS_SHOWN]]
    if not options.others:
        return page([*lines, "who does not hold it can do nothing for it, not even together"])
    lines.append("= is done by those that hold it; * is best for those that do not")
    return page([*lines, *map(_there, sorted({ways.homes for ways in options.others} - {1}))])


def _there(homes: int) -> str:
    """The effect on a cluster of homes that come and go independently."""
    shares = ", ".join(f"{share**homes:.0%} for {share:.0%}" for share in THERE)
    return (
        f"a cluster of {homes} homes trains while all of them are there: if each is a share p of the time, "
        f"p^{homes} of it ({shares}); spares raise that"
    )


def _way(mark: str, ways: ModelCopies) -> str:
    made = f"{count(ways.peers, 'peer')}, {as_short(ways.tokens_per_s)} tokens/s" if ways.peers else "no peer"
    return f"{mark} {ways.words}: {made}"


# ---- words ----


def as_short(number: float) -> str:
    """A number with three digits and a unit: 870 k, 1.1 B."""
    for limit, unit in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return f"{number:.3g}"


def page(lines: Iterable[str]) -> str:
    """Lines of at most 80 columns; longer lines are wrapped."""
    return "\n".join(
        textwrap.fill(line, columns(WIDTH), subsequent_indent=" " * (len(line) - len(line.lstrip()) + 2))
        for line in lines
    )
