"""One step of the machine in progress: the state so far, and the effects in the order in which they must happen."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf
from typing import Unpack

from peer.consensus.protocol import validation
from peer.consensus.protocol.block import MAX_REPORTS, ContributionHeader, Roster, Update
from peer.consensus.protocol.block import Report as Reported
from peer.consensus.protocol.electorate import quorum
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.layout import Fragment
from peer.consensus.protocol.messages import FETCH_BYTES, FETCH_MOST, BallotId, GetObjects, Heartbeat, Message
from peer.consensus.protocol.refusals import RULES, TIME, Refusal
from peer.consensus.protocol.rules import Rules
from peer.consensus.rounds import timeouts
from peer.consensus.rounds.interface import Effect, Send, Tell
from peer.consensus.rounds.state import Acceptor, Attempts, FetchRequest, FetchState, State
from peer.consensus.rounds.state_changes import StateChanges
from peer.schema.events import AlertRaised, MessageRefused, PhaseEntered, RoundStalled

ON_THEIR_WAY_S = 0.5
FETCH_RETRY_S = 2.0
SLOWEST_BYTES_PER_S = 250_000
"""A source slower than this is left for another; it would send a part of 1 MB in 4 s."""
FORGET_S = 120.0
"""A stranger that was silent for this long is told nothing any more."""

REFUSALS_MOST = 32
"""Refusals that are remembered of an anchor. Names cost nothing: of strangers none is, once there are so many."""
NAMED_MOST = 4
"""Voters that are missing of whom people are told the names."""
STALLED_AFTER = 3
"""Ballots that come to nothing before people are told."""


REPORT_ROUNDS = 4
"""For so many rounds a peer repeats its report of a lie: not all headers come in time."""


class Transition:
    """Collects what one event changes. Messages to myself are handled within the same step. `state` is a copy that
    belongs to this step until it ends: nobody else sees it change, and setting its fields in place saves a copy per
    change."""

    def __init__(self, state: State, now: float) -> None:
        self.state = object.__new__(State)
        self.state.__dict__.update(state.__dict__)  # a tenth of what `copy` takes, which asks how first
        self.now = now
        self.effects: list[Effect] = []
        self.to_self: deque[Message] = deque()

    @property
    def rules(self) -> Rules:
        return self.state.rules

    @property
    def me(self) -> str:
        return self.state.rules.me

    @property
    def wall_s(self) -> float:
        """Unix time, by my clock."""
        return self.now + self.rules.wall_offset_s

    def set(self, **changes: Unpack[StateChanges]) -> None:
        self.state.__dict__.update(changes)  # it is frozen for everybody else

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)

    def send(self, to: Iterable[str], message: Message) -> None:
        """Send to each peer once; a copy for me is handled before the step ends."""
        receivers = dict.fromkeys(to)
        if self.me in receivers:
            del receivers[self.me]
            self.to_self.append(message)
        if receivers:
            self.emit(Send(tuple(receivers), message))

    def place(self, ballot: int) -> BallotId:
        return BallotId(self.state.head.anchor, self.state.instance, ballot)

    @property
    def fragment(self) -> Fragment:
        """The fragment that the round from my head averages."""
        return self.rules.fragment(self.state.head.round)

    @property
    def part_bytes(self) -> tuple[int, ...]:
        """Encoded sizes of that fragment's parts, as one peer gives them."""
        return self.rules.bytes_in(self.state.head.round)

    @property
    def mean_bytes(self) -> tuple[int, ...]:
        return self.rules.means_in(self.state.head.round)

    def missing(self, update: Update) -> list[bytes]:
        """Digests of the means of this update that I must still fetch."""
        state, needed = self.state, validation.needed_parts(self.rules, update)
        missing = validation.missing_parts(state.held, needed)
        if not state.afar:
            return missing
        parts = zip(update.parts, self.rules.fragment(update.round - 1).parts, strict=True)
        mine = {digest for digest, part in parts if digest in state.afar and not state.delegate_for(part.layer)}
        return sorted({*missing, *mine})

    def owner(self, ballot: int) -> str:
        """The only peer that may lead `ballot` of the instance in which I take part."""
        return self.state.head.leader(ballot)

    def has_left(self, peer: str) -> bool:
        """It said so, proposed two updates, or is in quarantine: nobody waits for it or counts on it."""
        return peer in self.state.quarantined or self.says_nothing(peer)

    def says_nothing(self, peer: str) -> bool:
        """The same for peers that are not even asked for their vote."""
        state = self.state
        return peer in state.equivocators or (peer in state.heard and state.heard[peer][0].leaving)

    def are_enough(self, count: int) -> bool:
        """Whether these are enough of the electorate to go on with."""
        return count >= quorum(self.state.electorate)

    @property
    def roster(self) -> Roster:
        """The organiser's newest list that I know of; of two equal numbers the chain's, which may be the founders
        alone."""
        return max(self.state.head.roster, self.state.roster, key=lambda item: item.number)

    def skip_to(self, ballot: int) -> None:
        """Nobody leads the ballots between this one and the last that I promised."""
        self.set(skipped=self.state.skipped + ballot - self.state.acceptor.promised - 1)

    def stuck_s(self) -> float:
        """For how long I have been ready for this anchor without a decision; a peer that sits out waits for nobody."""
        state = self.state
        if state.header is None or state.decided is not None:
            return 0.0
        return max(0.0, self.now - (state.resumed_at if state.sits_out else state.submitted_at))

    def begin_instance(self, head: ChainHead, acceptor: Acceptor) -> None:
        """Vote on what follows this head. Messages of other instances no longer hold: ballots begin at 0 again."""
        self.set(
            head=head, acceptor=acceptor, voters=self.state.voters.union(head.electorate), lead=None, exchange=None,
            early=(), checks={}, prepared={}, votes={}, proposals={}, decided=None, dead_ballots=frozenset(), skipped=0,
            outbid=-1, postponed=None, unanswered=None, unseen=None, stucks={}, objections={}, forwarded=frozenset(),
            ballot_at=-inf, attempts=Attempts(), alone_since=inf, voted_at={},
        )  # fmt: skip
        self.moved()

    def moved(self) -> None:
        """This instance made progress: the next coordinator's patience starts anew."""
        self.set(last_progress_at=self.now)

    def ballot_moved(self) -> None:
        """The ballot that I promised made progress: no other turn comes before that patience is over."""
        self.set(last_progress_at=self.now, ballot_at=self.now)

    def ballot_over(self) -> None:
        """Nobody waits any longer for the ballot that I promised: now it is the turn of those after it."""
        self.set(ballot_at=self.now - timeouts.patience_s(self.state))

    @property
    def my_root(self) -> bytes:
        """What I have pledged for this anchor; empty if that is nothing, or not yet sent."""
        return self.state.header.root if self.state.header is not None else b""

    def my_header(self) -> ContributionHeader:
        """The header that I fixed, or one that gives nothing but keeps my vote; what it says about others is as of
        now."""
        state, before = self.state, self.state.header
        header = before or ContributionHeader(self.me, state.head.anchor, b"", 0, 0, 0, state.leaving)
        header = replace(header, reports=self.reports_lately(), away=timeouts.away(state, self.now))
        if before is not None and header == before:
            return before
        header = header.signed(self.rules.keys)
        if before is not None:
            self.set(header=header)
        return header

    def reports_lately(self) -> tuple[Reported, ...]:
        """What my header for this anchor reports."""
        oldest = self.state.head.round - REPORT_ROUNDS
        found = sorted(self.state.seen_lying.items(), key=lambda item: -item[1].round)
        return tuple(sorted((peer, seen.evidence) for peer, seen in found[:MAX_REPORTS] if seen.round >= oldest))

    def fetch(
        self, digests: Iterable[bytes], sources: Iterable[str], lanes: int = 1, *, on_their_way: bool = False
    ) -> None:
        """Keep asking `sources`, `lanes` of them at a time, until these digests are held, the first ones first. Bytes
        that are probably `on_their_way`, or being written here, are waited for `ON_THEIR_WAY_S` before."""
        missing = tuple(dict.fromkeys(digests))
        if not missing:
            return
        homes = (peer for *_, peer in self.state.delegates)  # what I accepted before a crash may lie with them alone
        others = tuple(dict.fromkeys(peer for peer in (*sources, *homes) if peer != self.me))
        known = self.state.wanted
        if set(missing).isdisjoint(known.digests):
            known = FetchState(asked=known.asked)
        from_at = self.now + ON_THEIR_WAY_S if on_their_way else self.now
        if known.digests:
            from_at = min(from_at, known.from_at)
        self.set(wanted=replace(known, digests=missing, sources=others, lanes=lanes, from_at=from_at))
        self.ask()

    def drop_fetch(self) -> None:
        """A new ballot begins: missing bytes of earlier ones may never come, and are asked for again if needed."""
        state = self.state
        if state.wanted.digests and state.decided is None and not state.blocks:
            self.set(wanted=FetchState(asked=state.wanted.asked))

    def ask(self) -> None:
        """Give every free source something to do, but no more than it will answer at once."""
        wanted = self.state.wanted
        if self.now < wanted.from_at:
            return
        under_way = {digest for asked in wanted.asked for digest in asked.digests}
        left = [digest for digest in wanted.digests if digest not in under_way]
        busy = {asked.source for asked in wanted.awaited()}
        free = [peer for peer in wanted.sources if peer not in busy and peer not in wanted.silent]
        lanes = min(wanted.lanes - len(busy), len(free))
        if not left or lanes <= 0:
            return
        fit = max(1, FETCH_BYTES // wanted.lanes // max(self.rules.bytes_of_means))
        most = min(FETCH_MOST, fit, -(-len(left) // lanes))
        asked = list(wanted.asked)
        for lane, source in enumerate(free[:lanes]):
            chosen = tuple(left[lane * most : (lane + 1) * most])
            if chosen:
                asked.append(FetchRequest(source, frozenset(chosen), self._patience()))
                self.send((source,), GetObjects(chosen))
        self.set(wanted=replace(wanted, asked=tuple(asked)))

    def _patience(self) -> float:
        """Until when a source that sends one part after the other is not yet silent."""
        return self.now + FETCH_RETRY_S + max(self.rules.bytes_of_means) / SLOWEST_BYTES_PER_S

    def ask_others(self) -> None:
        """Sources that gave nothing for a while: ask others for the same."""
        wanted = self.state.wanted
        if not wanted.digests and not wanted.asked:
            return
        silent = wanted.silent | {asked.source for asked in wanted.awaited() if self.now >= asked.until}
        if silent >= set(wanted.sources):
            silent = frozenset()
        left = tuple(asked for asked in wanted.asked if self.now < asked.until)
        others = replace(wanted, asked=left, silent=silent)
        if len(left) < len(wanted.asked) or (wanted.digests and not others.awaited()):
            self.set(wanted=others)
            self.ask()

    def arrived(self, digest: bytes) -> None:
        """Fetched bytes are here: their source is alive, and is asked for more when it has given all."""
        wanted = self.state.wanted
        if not wanted.is_expected(digest):
            return
        alive = {asked.source for asked in wanted.asked if digest in asked.digests}
        left = (
            replace(asked, digests=asked.digests - {digest}, until=self._patience()) if asked.source in alive else asked
            for asked in wanted.asked
        )
        asked = tuple(item for item in left if item.digests)
        self.set(wanted=replace(wanted, digests=tuple(d for d in wanted.digests if d != digest), asked=asked))
        if len(asked) < len(wanted.asked):
            self.ask()

    def say_head(self) -> None:
        """Tell the electorate, and peers that were heard lately, where I am and whether I am ready."""
        state = self.state
        lately = (peer for peer, (_, at) in state.heard.items() if self.now - at < FORGET_S)
        to = dict.fromkeys((*state.head.electorate, *lately))
        to.pop(self.me, None)
        self.set(said_at=self.now)
        self.emit(Send(tuple(to), self.my_head()))

    def my_head(self) -> Heartbeat:
        """Where I am and whether I am ready. Ready after 0 steps means that I sit out."""
        state, header = self.state, self.state.header
        steps = header.steps if header and not state.sits_out else 0
        return Heartbeat(
            anchor=state.head.anchor, round=state.head.round, weight=state.head.weight, state=state.state_digest,
            ready=header is not None, tokens=header.tokens if header else 0, steps=steps,
            leaving=state.leaving, name=self.rules.name, stuck_s=int(self.stuck_s()),
            unreachable=timeouts.unreachable_bits(state, self.now), train_s=state.train_s,
        )  # fmt: skip

    def phase(self, name: str, ballot: int, until: float | None = None) -> None:
        deadline = None if until is None else until + self.rules.wall_offset_s
        self.emit(
            Tell(
                PhaseEntered(
                    round=self.state.head.round, phase=name, deadline=deadline, ballot=ballot,
                    coordinator=self.owner(ballot),
                )
            )
        )  # fmt: skip

    def alert(self, level: str, code: str, text: str) -> None:
        self.emit(Tell(AlertRaised(level=level, code=code, text=text)))

    # ---- what people are told if nothing moves ----

    def refuse(self, peer: str, rule: str, why: str) -> None:
        """A message of `peer` breaks `rule`, one of `peer.consensus.protocol.refusals`, in words `why`: people are told
        once per anchor, and again if this anchor stands still."""
        assert rule in RULES, rule
        attempts = self.state.attempts
        others = tuple(known for known in attempts.refusals if (known.peer, known.rule) != (peer, rule))
        is_new = len(others) == len(attempts.refusals)
        if is_new and len(others) >= REFUSALS_MOST:
            stranger = next((known for known in others if known.peer not in self.state.electorate), None)
            if stranger is None or peer not in self.state.electorate:
                return
            others = tuple(known for known in others if known is not stranger)
        self.set(attempts=replace(attempts, refusals=(*others, Refusal(peer, rule, why))))
        if is_new:
            self.emit(Tell(MessageRefused(round=self.state.head.round, about=peer, rule=rule, why=why)))
            self._tell_if_stalled()

    def ballot_begins(self) -> None:
        """I begin or promise a ballot of this anchor, so the one before has failed."""
        attempts = self.state.attempts
        self.set(attempts=replace(attempts, over=attempts.over + attempts.under_way, under_way=True))
        if attempts.under_way:
            self._tell_if_stalled()

    def ballot_fails(self, why: str) -> None:
        """The ballot that I led has failed."""
        attempts = self.state.attempts
        self.set(attempts=replace(attempts, over=attempts.over + attempts.under_way, under_way=False, failure=why))
        self._tell_if_stalled()

    def _tell_if_stalled(self) -> None:
        """After STALLED_AFTER ballots of this anchor."""
        attempts = self.state.attempts
        if attempts.over >= STALLED_AFTER:
            round = self.state.head.round + 1
            self._tell_stall(f"round {round} stands still after {attempts.over} ballots")

    def how_far_ahead(self, time_s: int) -> str:
        return f"it is dated {time_s - self.wall_s:.0f} s ahead of this machine's clock"

    def tell_if_head_is_ahead(self) -> None:
        """If the last update is dated ahead of my clock, no ballot can begin: one of the two clocks is wrong."""
        state = self.state
        if validation.timely(self.wall_s, state.head.time) or state.attempts.alerted:
            return
        self.refuse(self._head_author, TIME, self.how_far_ahead(state.head.time))
        self._tell_stall(f"round {state.head.round + 1} cannot begin")

    def _tell_stall(self, what: str) -> None:
        """Tell that this anchor stands still, and why; the alert comes once per anchor."""
        attempts = self.state.attempts
        deciding = {*self.state.electorate, self._head_author}  # what strangers send stops nobody
        refused = next((known for known in reversed(attempts.refusals) if known.peer in deciding), None)
        why = f"{what}: {self._why_still(refused)}"
        rule, about = (refused.rule, refused.peer) if refused is not None else ("", "")
        stalled = RoundStalled(round=self.state.head.round, ballots=attempts.over, rule=rule, about=about, why=why)
        self.emit(Tell(stalled))
        if not attempts.alerted:
            self.set(attempts=replace(attempts, alerted=True))
            self.alert("warning", "STANDS_STILL", why)

    @property
    def _head_author(self) -> str:
        """The author of the last update; empty if that is unknown, as after a snapshot."""
        return self.state.trail[-1].block.update.coordinator if self.state.trail else ""

    def _why_still(self, refused: Refusal | None) -> str:
        """What was refused, or how my last ballot failed and how many voters are heard; which have not voted though I
        have, and which are not heard."""
        state = self.state
        silent = [peer for peer in state.electorate if peer != self.me and not self._is_heard(peer)]
        if refused is not None:
            parts = [f"{refused.rule} refuses what {self._called(refused.peer)} sent: {refused.why}"]
        else:
            count = len(state.electorate)
            parts = [state.attempts.failure, f"{count - len(silent)} of {count} voters are heard"]
        has_voted = self.me in state.voted_at
        mute = [peer for peer in state.electorate if has_voted and peer not in silent and peer not in state.voted_at]
        parts += [f"not voting: {self.named(mute)}"] * bool(mute) + [f"not heard: {self.named(silent)}"] * bool(silent)
        return "; ".join(filter(None, parts))

    def named(self, peers: Sequence[str]) -> str:
        """The first few by the names that people know."""
        names = ", ".join(map(self._called, peers[:NAMED_MOST]))
        return names + (f" and {len(peers) - NAMED_MOST} more" if len(peers) > NAMED_MOST else "")

    def _is_heard(self, peer: str) -> bool:
        return peer in self.state.heard and self.now - self.state.heard[peer][1] < timeouts.HEARD_S

    def _called(self, peer: str) -> str:
        """Its name and the end of its id."""
        if not peer:
            return "a peer that is not known here"
        said, _ = self.state.heard.get(peer, (None, 0.0))
        name = self.rules.name if peer == self.me else said.name if said else ""
        return f"{name} ({peer[-6:]})" if name else peer[-8:]
