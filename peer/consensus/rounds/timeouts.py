"""How long each wait of a round lasts: learned from the arrivals of the last rounds, and never more than the spec
allows.

Every update carries what its coordinator measured (`Update.waited`, `Update.took`), so peers with the same chain
compute the same deadlines. A wrong measurement costs time, never agreement.

For each wait, over the last rounds:

    deadline = MARGIN · max(arrival of a quorum, median + patience · MAD)      (MAD: median absolute deviation)

A peer that did not come counts as `MISSED` times the deadline it missed. One such peer moves neither median nor MAD;
when the whole group gets slower, the deadlines follow. Where nobody comes in time nothing commits and nothing is
learned, so every further ballot of a round waits twice as long.

Little is known of the first rounds, so `SLACK` multiplies what is known: before any round, the pace that voters report
and the time their lines need for a model of this size; after one or two, the arrival of the slowest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from statistics import median
from typing import TYPE_CHECKING

from peer.consensus.protocol.block import NEVER, NOT_AWAITED, ContributionHeader, Times, Update
from peer.consensus.protocol.electorate import majority, quorum
from peer.consensus.protocol.membership import trusted

if TYPE_CHECKING:
    from peer.consensus.protocol.rules import Rules
    from peer.consensus.rounds.state import CoordinatorState, MemberState, State

WINDOW = 8
"""Rounds that are looked at."""
KNOWN = 3
"""With fewer the slowest that came is given `SLACK` times as long."""
SLACK = 3.0
FIRST_FLOOR_S = 15.0
"""Of waits that rest on so little."""
MEASURED_SHARE = 0.1
"""Of a round: after so much of it a peer says how long all of it takes."""
MARGIN = 1.25
MISSED = 1.5
CONTROL_FLOOR_S = 2.0
DATA_FLOOR_S = 3.0
DOUBLINGS = 16
HEARD_S = 20.0
"""Whoever was silent for longer is out of sight; a peer that trains says Heartbeat every 15 s."""
SILENT_S = 45.0
"""Whoever missed three of them is as good as out of reach: stopped, asleep, or behind a line that swallows all."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds, in the order of `Update.took`."""

    gather_s: float
    """From the first peer that is ready until the coordinator asks the others for what they have."""
    ack_s: float
    """From a request to its answer, by a peer that is ready."""
    exchange_s: float
    """From Start to the last part."""
    means_s: float
    """From Start to the last mean."""

    def packed(self) -> Times:
        """In the form of `Update.waited`."""
        return (_ms(self.gather_s), _ms(self.ack_s), _ms(self.exchange_s), _ms(self.means_s))


def caps(rules: Rules) -> Deadlines:
    """The upper bounds of the spec."""
    return Deadlines(rules.gather_s, rules.ack_s, rules.exchange_s, 2 * rules.exchange_s)


def learn(updates: Sequence[Update], rules: Rules) -> Deadlines:
    """The deadlines of a first ballot after these updates, the newest of them last."""
    if rules.shared is None or not updates:
        return _learn(updates, rules)
    key = ("deadlines", len(updates), updates[-1].digest)
    return rules.shared.once(key, (), lambda: _learn(updates, rules))


def _learn(updates: Sequence[Update], rules: Rules) -> Deadlines:
    known = [update for update in updates if update.took][-WINDOW:]
    most = caps(rules)
    if not known:
        return most
    # What carries bytes takes longer for a larger fragment than those that were averaged before it.
    carried = sum(rules.bytes_in(updates[-1].round))
    larger = [max(1.0, carried / sum(rules.bytes_in(update.round - 1))) for update in known]
    arrivals = [
        [_arrivals(update, wait, factor if wait > 1 else 1.0) for update, factor in zip(known, larger, strict=True)]
        for wait in range(4)
    ]
    if len(known) < KNOWN:
        slowest_s = [max((seconds for came in rounds for seconds in came), default=inf) for rounds in arrivals]
        gather_s, _, exchange_s, means_s = map(with_slack, slowest_s)
        return _capped(Deadlines(gather_s, inf, exchange_s, means_s), most)
    return Deadlines(
        deadline(arrivals[0], DATA_FLOOR_S, most.gather_s, rules.patience),
        deadline(arrivals[1], CONTROL_FLOOR_S, most.ack_s, rules.patience),
        deadline(arrivals[2], DATA_FLOOR_S, most.exchange_s, rules.patience),
        deadline(arrivals[3], DATA_FLOOR_S, most.means_s, rules.patience),
    )


def with_slack(slowest_s: float) -> float:
    """A wait in seconds while fewer than `KNOWN` rounds are known, of which this is the slowest arrival."""
    return max(FIRST_FLOOR_S, SLACK * slowest_s)


def _capped(waits: Deadlines, most: Deadlines) -> Deadlines:
    return Deadlines(
        min(waits.gather_s, most.gather_s), min(waits.ack_s, most.ack_s),
        min(waits.exchange_s, most.exchange_s), min(waits.means_s, most.means_s),
    )  # fmt: skip


def by_lines(state: State, headers: Sequence[ContributionHeader]) -> Deadlines:
    """The deadlines of a ballot with these members before anything was learned, from the bandwidths that they declare.
    The slowest sends all of its contribution; as a reducer it sends its share of the means, rounded up to a part, to
    all. If one member does not know its bandwidth, the upper bound holds."""
    first, rules = state.deadlines, state.rules
    slowest_bps = min(header.bandwidth_bps for header in headers)
    if first != caps(rules) or not slowest_bps:
        return first
    sizes = rules.bytes_in(state.head.round), rules.means_in(state.head.round)
    most_bytes = max(sum(parts) + len(headers) * max(parts) for parts in sizes)
    wait_s = with_slack(8 * most_bytes / slowest_bps)
    return _capped(replace(first, exchange_s=wait_s, means_s=2 * wait_s), first)


def train_s(first: tuple[float, float], now: tuple[float, float]) -> int:
    """Seconds that all steps of a round take, from two of (time, share that is done); 0 if they are too close."""
    (began_at, before), (at, done) = first, now
    return ceil((at - began_at) / (done - before)) if done - before >= MEASURED_SHARE else 0


def deadline(rounds: list[list[float]], floor_s: float, cap_s: float, patience: float) -> float:
    """From arrival times by round, in seconds, to a deadline in seconds."""
    awaited = [arrivals for arrivals in rounds if arrivals]
    if not awaited:
        return cap_s
    everything = [seconds for arrivals in awaited for seconds in arrivals]
    middle = median(everything)
    spread = median(abs(seconds - middle) for seconds in everything)
    majority = median(sorted(arrivals)[len(arrivals) // 2] for arrivals in awaited)
    return min(cap_s, max(floor_s, MARGIN * max(majority, middle + patience * spread)))


def _arrivals(update: Update, wait: int, factor: float) -> list[float]:
    """Seconds after which each peer came in one round, times `factor`; a peer that did not answer at all missed the
    wait for answers. Newcomers, whose ids cost nothing, make no wait longer."""
    voters = {*update.elect, *(header.peer for header in update.members if header.leaving)}
    times = [row[wait] for header, row in zip(update.members, update.took, strict=True) if header.peer in voters]
    if wait == 1:
        times += [NEVER] * sum(code == "ABSENT" for _, code, *_ in update.penalties)
    missed_s = MISSED * update.waited[wait] / 1000
    return [factor * (missed_s if ms == NEVER else ms / 1000) for ms in times if ms != NOT_AWAITED]


def ready_after_others_s(update: Update, peer: str) -> float:
    """How much later than half of all members that came a member was ready; 0.0 if it was not later. Half of them and
    not the first, so that no early peer hurries all others."""
    came = sorted(row[0] for row in update.took if row[0] not in (NEVER, NOT_AWAITED))
    if not came:
        return 0.0
    return max(0.0, ready_after_s(update, peer) - came[(len(came) - 1) // 2] / 1000)


def ready_after_s(update: Update, peer: str) -> float:
    """How much later than the first a member was ready, as the coordinator measured it; 0.0 if that is not known."""
    for member, row in zip(update.members, update.took, strict=False):
        if member.peer == peer and row[0] not in (NEVER, NOT_AWAITED):
            return row[0] / 1000
    return 0.0


# ---- what a peer waits for now ----


def at(state: State, ballot: int) -> Deadlines:
    """The deadlines of a ballot: twice as long in each further one that was led, up to the upper bounds."""
    factor = 2 ** min(max(ballot - state.skipped, 0), DOUBLINGS)
    first, most = state.deadlines, caps(state.rules)
    longer = (factor * first.gather_s, factor * first.ack_s, factor * first.exchange_s, factor * first.means_s)
    return _capped(Deadlines(*longer), most)


def asks_at(state: State) -> float:
    """When the first coordinator asks although not all are ready; never while all ready peers sit out.

    Counted from the first peer that was ready, whichever it was: a fast coordinator must not hurry the others. Before a
    quorum is ready, or while the ready peers have made too few steps together, it waits for the upper bound, which
    counts from its own submission, or from when one more voter was ready than may lie, if that was earlier: too few
    steps stop nothing. Peers that sit out are ready before others can be, and hurry nobody. Once they train again the
    upper bound counts for them, too, since the others may be gone.

    What all have waited for counts from when it came: where it lay before, the turns of all coordinators would be over
    at once, and all of them would begin.
    """
    first_at, ready_at = _first_ready_at(state), _ready_at(state)
    mine_at = min(first_at, state.resumed_at) if sits_out(state, state.rules.me) else _longest_from(state, ready_at)
    latest = mine_at + state.rules.gather_s
    enough_at = _enough_ready_at(state, ready_at)
    if enough_at == inf:
        return latest
    if state.deadlines.gather_s < state.rules.gather_s:
        return min(latest, max(first_at + state.deadlines.gather_s, enough_at))
    late = (state.expected_by.get(peer, inf) for peer in state.electorate if peer not in ready_at)
    # Who came last was waited for until then: the turns of later ballots count from there.
    return min(latest, max((first_at + FIRST_FLOOR_S, *state.ready_at.values(), *late)))


def begins_at(state: State) -> float:
    """When a voter follows a first ballot although not all are ready: by the same rule, from what it has heard itself.
    A voter that still trains counts from the first that was ready, since nobody asks earlier; it need not be ready
    itself."""
    if state.header is not None:
        return asks_at(state)
    came = sorted(state.ready_at.values())
    first_at, needed = min(came, default=state.stood_at), quorum(state.electorate)
    if len(came) < needed:
        return first_at + state.rules.gather_s
    return max(first_at + state.deadlines.gather_s, came[needed - 1])


def _ready_at(state: State) -> dict[str, float]:
    """When the voters that are ready were so, I among them; those that sit out always were."""
    outside = {peer: -inf for peer in state.electorate if sits_out(state, peer)}
    return {state.rules.me: state.submitted_at, **state.ready_at, **outside}


def _enough_ready_at(state: State, ready_at: Mapping[str, float]) -> float:
    """When a quorum was ready that had made `min_steps` together; infinity before that."""
    # A header counts the steps since its fragment's turn before, which are those of fewer rounds at the very start.
    needed, steps = state.rules.min_steps * min(state.rules.fragments, state.head.round + 1), 0
    for count, (peer, at_s) in enumerate(sorted(ready_at.items(), key=lambda item: item[1]), 1):
        steps += min(_steps_of(state, peer), state.rules.steps_cap)
        if count >= quorum(state.electorate) and steps >= needed:
            return at_s
    return inf


def _longest_from(state: State, ready_at: Mapping[str, float]) -> float:
    """From when the longest wait counts for me: when I was ready, or when one more voter was than may lie, if that was
    earlier. So who comes late follows the ballots of those that came first, and nobody can make the wait longer."""
    came = sorted(at_s for at_s in ready_at.values() if at_s > -inf)
    liars = len(state.electorate) - quorum(state.electorate)
    return min([state.submitted_at, *came[liars : liars + 1]])


def _steps_of(state: State, peer: str) -> int:
    """The inner steps that a ready voter reports for this anchor."""
    if peer == state.rules.me:
        return state.header.steps if state.header is not None else 0
    said, _ = state.heard.get(peer, (None, 0.0))
    return said.steps if said is not None and said.anchor == state.head.anchor and said.ready else 0


def sits_out(state: State, peer: str) -> bool:
    """Whether its owner paused a peer before it was ready for this anchor: then it is ready whenever the others are."""
    if peer == state.rules.me:
        return state.sits_out
    said, _ = state.heard.get(peer, (None, 0.0))
    return said is not None and said.anchor == state.head.anchor and said.ready and not said.steps


def _first_ready_at(state: State) -> float:
    """Among the voters that do not sit out; infinity if there is none."""
    mine = () if sits_out(state, state.rules.me) else (state.submitted_at,)
    return min((*mine, *state.ready_at.values()), default=inf)


def answers_s(state: State, ballot: int, now: float, asked: Sequence[str]) -> float:
    """How long promises are awaited: up to the upper bound if a peer heard lately must still encode its
    contribution."""
    waiting = any(
        not said.ready and said.anchor == state.head.anchor and now - at_s < HEARD_S
        for said, at_s in (state.heard[peer] for peer in asked if peer in state.heard and not is_hurried(state, peer))
    )
    return state.rules.ack_s if waiting else at(state, ballot).ack_s


def reduced_s(waits: Deadlines) -> float:
    """How long after Start means are awaited: reducers wait `exchange_s` of it for parts."""
    return max(waits.means_s, waits.exchange_s + min(waits.exchange_s, DATA_FLOOR_S))


def patience_s(state: State) -> float:
    """Silence after which the next coordinator takes over: longer than any wait of the one before."""
    current = at(state, state.acceptor.promised)
    return max(reduced_s(current), state.rules.ack_s) + 2 * current.ack_s


# ---- who is waited for ----

GRACE_S = 2.0
SILENT_MOST = 256
"""Peers of whom it is remembered that they were silent."""
ONCE, AGAIN = 8, 32
"""Waits, up to three in a round, after which a voter that was waited for in vain is waited for as before, whether it
comes in them or not: it may be slow, and what comes late does not count. Again: one that kept something from others in
each round would else be waited for in each of them."""
REMEMBERED = 32
"""Waits after that within which another in vain is one again."""


def steady(state: State) -> frozenset[str]:
    """The peers that have earned a vote, without those that I lately waited for in vain. What others say of a peer
    makes no difference."""
    return frozenset(peer for peer in trusted(state.head) if not is_hurried(state, peer))


def is_hurried(state: State, peer: str) -> bool:
    """Whether I wait less for a peer, since I lately waited for it in vain."""
    return state.silent.get(peer, 0) > REMEMBERED


def was_silent(state: State, peer: str) -> bool:
    """A newcomer that was waited for in vain the last time: it is asked, accepted if it comes, and not waited for."""
    return is_hurried(state, peer) and peer not in trusted(state.head)


def others_until(began_at: float, steady_at: Sequence[float], wait_s: float = inf) -> float:
    """Until when newcomers, and voters that were silent, are waited for once all steady ones have come: as long again,
    and a little of the whole wait, since ids cost nothing. Where no steady one was waited for nothing is known."""
    return 2 * max(steady_at) - began_at + min(GRACE_S, wait_s / 4) if steady_at else inf


def silent_after(
    state: State, awaited: Collection[str], came: Collection[str], in_full: Collection[str]
) -> dict[str, int]:
    """`State.silent` after a wait for these peers, some of which came. A voter that did not was waited for in vain if I
    waited for it `in_full`, and a newcomer in any case."""
    believed, left = trusted(state.head), dict(state.silent)
    for peer in awaited:
        is_voter = peer in believed
        if peer not in came and (peer in in_full or not is_voter):
            times = 1 if not is_voter else AGAIN if left.pop(peer, 0) else ONCE
            left[peer] = REMEMBERED + times
        elif peer in left:
            left[peer] -= 1
    newcomers_first = sorted(left.items(), key=lambda item: item[0] in believed)  # names cost nothing
    return {peer: times for peer, times in newcomers_first[-SILENT_MOST:] if times}


def silent_bits(state: State, members: Sequence[str]) -> int:
    """The silent ones among these peers, as bits over them."""
    return sum(1 << index for index, peer in enumerate(members) if was_silent(state, peer))


def is_gone(state: State, peer: str, now: float) -> bool:
    """Whether no peer in sight reaches a voter: neither I nor any other voter that I reach, each by its own report. If
    those are no majority I may be the one that is cut off, and nobody is gone."""
    voters, me = state.head.electorate, state.rules.me
    if peer not in voters or lost_at(state, peer) > now:
        return False
    others = [other for other in voters if other not in (me, peer) and lost_at(state, other) > now]
    if len(others) + (me in voters) < majority(voters):
        return False
    bit = 1 << voters.index(peer)
    words = (state.heard[other][0] if other in state.heard else None for other in others)
    return all(said is not None and said.anchor == state.head.anchor and said.unreachable & bit for said in words)


def gone_bits(state: State, members: Sequence[str], now: float) -> int:
    """The gone ones among these peers, as bits over them."""
    return sum(1 << index for index, peer in enumerate(members) if is_gone(state, peer, now))


def unreachable_bits(state: State, now: float) -> int:
    """My own report, as in `Heartbeat.unreachable`."""
    voters = enumerate(state.head.electorate)
    return sum(1 << bit for bit, peer in voters if peer != state.rules.me and lost_at(state, peer) <= now)


def lost_at(state: State, peer: str) -> float:
    """Since when a peer's connection is gone, or when I take it for lost if it stays silent on a working one. Silence
    says nothing about a peer that was never heard."""
    _, heard_at = state.heard.get(peer, (None, inf))
    return min(heard_at + SILENT_S, state.unreachable.get(peer, inf))


def away(state: State, now: float) -> tuple[str, ...]:
    """The voters that I, if I am one, have not heard for SILENT_S, or that told me that they leave. For a voter that
    was never heard silence counts from my start."""
    if state.rules.me not in state.head.electorate:
        return ()
    silent = silent_voters(state, now)
    left = (peer for peer in state.head.electorate if peer in state.heard and state.heard[peer][0].leaving)
    return tuple(sorted({*silent, *left}))


def silent_voters(state: State, now: float) -> tuple[str, ...]:
    voters, me = state.head.electorate, state.rules.me
    heard = ((peer, state.heard[peer][1] if peer in state.heard else state.began_at) for peer in voters if peer != me)
    return tuple(peer for peer, at in heard if now - at >= SILENT_S)


def out_of_sight(state: State, now: float) -> frozenset[str]:
    """Voters that will hardly decide this round: silent, gone with a goodbye, or for `restart_s` ready without taking
    part in any ballot, or without a vote where I have voted. If Heartbeats or answers counted alone, a liar could keep
    the others from a restart; and the lead of a cluster that is not whole cannot vote, since it does not know its
    bits."""
    late_s = state.rules.restart_s or inf
    mute = {
        peer for peer, ready_at in state.ready_at.items()
        if now - max(ready_at, state.spoke_at.get(peer, ready_at)) >= late_s
    }  # fmt: skip
    idle = (peer for peer in state.electorate if peer != state.rules.me and not _votes(state, peer, now - late_s))
    return frozenset({*silent_voters(state, now), *mute, *idle, *leavers(state)}).intersection(state.head.electorate)


def _votes(state: State, peer: str, since: float) -> bool:
    """Whether a voter has voted after `since`, or I myself had not yet."""
    mine = state.voted_at.get(state.rules.me, inf)
    return max(mine, state.voted_at.get(peer, mine)) > since


def lacks_quorum(state: State, now: float) -> bool:
    """Whether too few voters are in sight to decide anything."""
    voters = state.head.electorate
    return len(voters) - len(out_of_sight(state, now)) < quorum(voters)


def leavers(state: State) -> frozenset[str]:
    """Voters whose last word was that they leave."""
    return frozenset(peer for peer, (said, _) in state.heard.items() if said.leaving)


# ---- what a coordinator measures ----


def measure(state: State, lead: CoordinatorState, exchange: MemberState) -> tuple[Times, tuple[Times, ...]]:
    """`Update.waited` and `Update.took` of a ballot of mine."""
    waited = at(state, lead.ballot).packed()
    return waited, tuple(
        (
            _ready(state, lead, member.peer),
            _answered(state, lead, member.peer),
            _gave(state, exchange, index),
            _reduced(state, lead, exchange, member.peer),
        )
        for index, member in enumerate(exchange.members)
    )


def _was_ready(state: State, lead: CoordinatorState, peer: str) -> bool:
    return state.ready_at.get(peer, inf) <= lead.began_at


def _ready(state: State, lead: CoordinatorState, peer: str) -> int:
    """From the first peer that was ready. Newcomers and peers that sit out are not waited for."""
    if sits_out(state, peer):
        return NOT_AWAITED
    if peer == state.rules.me:
        return _ms(state.submitted_at - _first_ready_at(state))
    if _was_ready(state, lead, peer):
        return _ms(state.ready_at[peer] - _first_ready_at(state))
    return NEVER if peer in state.electorate else NOT_AWAITED


def _answered(state: State, lead: CoordinatorState, peer: str) -> int:
    """From Prepare. A peer that had to encode first says nothing about the time of messages."""
    if peer == state.rules.me:
        return 0
    if not _was_ready(state, lead, peer) or peer not in lead.promised_at:
        return NOT_AWAITED
    return _ms(lead.promised_at[peer] - lead.began_at)


def _gave(state: State, exchange: MemberState, index: int) -> int:
    """From Start until all its parts for me were here."""
    member = exchange.members[index]
    if not exchange.received or not member.root:
        return NOT_AWAITED
    if member.peer == state.rules.me:
        return 0
    if not all(bits >> index & 1 for bits in exchange.received.values()):
        return NEVER
    return _ms(exchange.part_at.get(member.peer, exchange.began_at) - exchange.began_at)


def _reduced(state: State, lead: CoordinatorState, exchange: MemberState, peer: str) -> int:
    """From Start until all its means were here."""
    expected = [part for part in lead.expected or () if exchange.reducers[part] == peer]
    if not expected:
        return NOT_AWAITED
    if peer == state.rules.me:
        return 0
    came = all(part in exchange.means and exchange.means[part].reducer == peer for part in expected)
    return _ms(exchange.mean_at[peer] - exchange.began_at) if came else NEVER


def _ms(seconds: float) -> int:
    return min(max(0, round(1000 * seconds)), NOT_AWAITED - 1)
