"""What a voter checks: no update, vote or certificate gets past it with anything forged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from peer.consensus.protocol.block import VOID, Block, Stuck, Update, Vote
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.messages import (
    Blocks,
    GetObjects,
    Message,
    Nack,
    ObjectData,
    Prepare,
    Promise,
    Propose,
    VoteCast,
)
from peer.consensus.protocol.refusals import BLOCK, VOTES
from peer.consensus.protocol.refusals import STATE as STATE_RULE
from peer.consensus.protocol.validation import check_block, vote_valid
from peer.consensus.rounds.coordinator import REPEAT_S
from peer.consensus.rounds.interface import (
    Applied,
    CommitBlock,
    Effect,
    ObjectStored,
    PersistAcceptor,
    Received,
    RequestSubmit,
    Send,
    StoreObject,
    Submitted,
    Tick,
    TrainingProgress,
)
from peer.consensus.rounds.state import State
from peer.consensus.rounds.transition import ON_THEIR_WAY_S
from peer.testing.memory_peer import ModelKeys
from tests.peer.consensus.rounds.ballot import run
from tests.peer.consensus.rounds.build import (
    HEAD,
    NAMES,
    PAYLOADS,
    STATE,
    block,
    fault_of,
    header,
    owner,
    place,
    proposal_signature,
    rules,
    state_of,
    update,
    vote,
)

HELD = {digest_of(payload): len(payload) for payload in PAYLOADS}
FORGED = b"\x01" * 64
TURN_OVER_S = 20.0
"""By then whoever is next in turn may lead."""
ALL = tuple(header(name) for name in NAMES)


def test_an_honest_update_is_valid() -> None:
    """All of the manipulations below start from it."""
    assert not fault_of(state_of("p0"), update())


def test_members_who_gave_nothing_or_leave_are_fine() -> None:
    """A vote without a contribution, and a last contribution."""
    members = (header("p0"), header("p1", root=b"", tokens=0), header("p2", leaving=True))
    decided = update(members=members, contributors=(0b101, 0b001, 0b100), elect=("p0", "p1"))
    assert not fault_of(state_of("p0"), decided)


MANIPULATED: dict[str, Callable[[], Update]] = {
    "another parent": lambda: update(parent=digest_of(b"elsewhere")),
    "another round": lambda: update(round=2),
    "another weight of the chain": lambda: update(weight=4),
    "a coordinator that is no member": lambda: update(coordinator="p9"),
    "members out of order": lambda: update(members=ALL[::-1], elect=NAMES),
    "a member twice": lambda: update(members=(ALL[0], ALL[1], ALL[1]), elect=NAMES[:2]),
    "too few members of the electorate": lambda: update(
        members=(ALL[0], header("x")), contributors=(3, 3, 3), elect=("p0", "x")
    ),
    "a forged header": lambda: update(members=(replace(ALL[0], tokens=10**6), *ALL[1:])),
    "a header for another anchor": lambda: update(members=(header("p0", anchor=digest_of(b"old")), *ALL[1:])),
    "data of a shard that is not there": lambda: update(members=(header("p0", ranges=((1 << 20, 0, 5),)), *ALL[1:])),
    "data that runs backwards": lambda: update(members=(header("p0", ranges=((0, 5, 4),)), *ALL[1:])),
    "a part less": lambda: update(parts=update().parts[:2]),
    "a part more": lambda: update(parts=(*update().parts, digest_of(b"more"))),
    "contributors of a part less": lambda: update(contributors=(7, 7)),
    "nothing but void parts": lambda: update(parts=(VOID,) * 3, contributors=(0,) * 3),
    "a void part with contributors": lambda: update(parts=(VOID, *update().parts[1:])),
    "a part without contributors": lambda: update(contributors=(0, 3, 1)),
    "a contributor who is no member": lambda: update(contributors=(0b1111, 3, 1)),
    "a contributor who gave nothing": lambda: update(members=(header("p0", root=b""), *ALL[1:])),
    "a weight out of proportion": lambda: update(weights=((21843, 21845, 21845),)),
    "a second table of weights": lambda: update(weights=(update().weights[0],) * 2),
    "no weights": lambda: update(weights=()),
    "an electorate without a member that stays": lambda: update(elect=NAMES[:2]),
    "an electorate with a stranger": lambda: update(elect=(*NAMES, "x")),
    "an electorate with one who leaves": lambda: update(members=(*ALL[:2], header("p2", leaving=True)), elect=NAMES),
    "an electorate out of order": lambda: update(elect=NAMES[::-1]),
    "an electorate with one twice": lambda: update(elect=("p0", "p1", "p1", "p2")),
}


@pytest.mark.parametrize("what", MANIPULATED)
def test_a_manipulated_update_is_refused(what: str) -> None:
    """Each of these differs from an honest one in one thing."""
    assert fault_of(state_of("p0"), MANIPULATED[what]())


def test_a_weight_that_is_off_by_one_is_refused() -> None:
    """Judging is integer arithmetic on float64, the same on every machine: there is no last bit to forgive."""
    assert update().weights == ((21845, 21845, 21845),)
    assert fault_of(state_of("p0"), update(weights=((21846, 21844, 21845),)))


def test_a_genuine_vote_is_valid() -> None:
    """In the ballot of the proposal."""
    assert vote_valid(rules("p0").keys, HEAD, vote("p1", update(2), 2))


@pytest.mark.parametrize(
    "forge",
    [
        lambda honest: replace(honest, voter="p2"),
        lambda honest: replace(honest, signature=FORGED),
        lambda honest: replace(honest, update=digest_of(b"other")),
        lambda honest: vote("p1", update(), instance=digest_of(b"elsewhere")),
        lambda honest: vote("x", update()),
        lambda honest: vote("p1", update(), proposal_signature=FORGED),
        lambda honest: vote("p1", update(), proposal_signature=proposal_signature(update(), 1)),
        lambda honest: replace(honest, ballot=1).signed(ModelKeys("p1")),
        lambda honest: replace(honest, phase=1),
    ],
)
def test_a_forged_vote_is_refused(forge: Callable[..., object]) -> None:
    """Another voter, content, instance or ballot, or a proposal that its coordinator never signed."""
    forged = forge(vote("p1", update()))
    assert not vote_valid(rules("p0").keys, HEAD, forged)  # type: ignore[arg-type]


def test_a_certificate_is_the_votes_of_a_quorum() -> None:
    """Two of three are enough, three also."""
    assert not check_block(rules("p0"), HEAD, block())
    assert not check_block(rules("p0"), HEAD, block(voters=NAMES))


@pytest.mark.parametrize(
    "forged",
    [
        Block(update(), ()),
        block(voters=NAMES[:1]),
        Block(update(), (vote("p0", update()),) * 2),
        Block(update(), (vote("p0", update()), vote("p1", update(1), 1))),
        Block(update(), (vote("p0", update()), vote("x", update()))),
        Block(update(), (vote("p0", update()), replace(vote("p1", update()), signature=FORGED))),
        Block(update(time=5), block().votes),
    ],
    ids=["none", "too few", "one twice", "two ballots", "a stranger", "forged", "of another update"],
)
def test_a_certificate_that_is_none_is_refused(forged: Block) -> None:
    """Whatever the block holds besides."""
    assert check_block(rules("p0"), HEAD, forged)


# ---- voting ----


def proposed(item: Update, ballot: int = 0, now: float = 4.0) -> Received:
    return Received(now, owner(ballot), Propose(place(ballot), item, proposal_signature(item, ballot)))


def certificate(item: Update, ballot: int) -> tuple[Vote, ...]:
    """The second votes of a quorum."""
    return tuple(vote(name, item, ballot, phase=1) for name in NAMES[:2])


def cast(phase: int, item: Update | None = None, ballot: int = 0) -> list[Received]:
    """The votes of all others in one phase."""
    others = (name for name in NAMES if name != voter())
    item = item or update(ballot)
    return [Received(4.2, name, VoteCast(place(ballot), vote(name, item, ballot, phase=phase))) for name in others]


def sent(effects: list[Effect], kind: type[Message]) -> list[Send]:
    return [effect for effect in effects if isinstance(effect, Send) and isinstance(effect.message, kind)]


def voter() -> str:
    """A peer that does not coordinate ballot 0."""
    return next(name for name in NAMES if name != owner())


def test_a_vote_is_on_disk_before_it_is_sent() -> None:
    """The update and the acceptor, then the vote: in the first phase and, with a quorum of the second, in the third."""
    state, effects = run(state_of(voter(), held=HELD), proposed(update()))
    (checked,) = sent(effects, VoteCast)
    assert effects.index(PersistAcceptor(state.acceptor, update())) < effects.index(checked)
    assert (checked.message.vote.phase, state.acceptor.checked) == (0, (0, update().digest))
    assert state.acceptor.accepted is None
    state, effects = run(state, *cast(0), *cast(1))
    prepared, accepted = sent(effects, VoteCast)
    assert (prepared.message.vote.phase, accepted.message.vote.phase) == (1, 2)
    assert effects.index(PersistAcceptor(state.acceptor, update())) < effects.index(accepted)
    assert state.acceptor.accepted == (0, update().digest)
    assert len(state.acceptor.certificate) == 2


def test_who_has_sealed_what_it_holds_votes_no_more() -> None:
    """What it showed the organiser must stay all that it stands for in this instance."""
    seal = Stuck("p0", HEAD.anchor, HEAD.electorate, 1)
    waiting, _ = run(state_of(voter(), held=HELD), proposed(update()))
    sealed = replace(waiting, acceptor=replace(waiting.acceptor, stuck=seal))
    for state, expected in ((waiting, [1, 2]), (sealed, [])):
        _, effects = run(state, *cast(0), *cast(1))
        assert [item.message.vote.phase for item in sent(effects, VoteCast)] == expected


def test_who_gave_has_time_to_object_before_anybody_prepares() -> None:
    """The second phase waits for the first votes of all contributors, or for `ack_s`."""
    state, effects = run(state_of(voter(), held=HELD), proposed(update()), *cast(0)[:1])
    assert [item.message.vote.phase for item in sent(effects, VoteCast)] == [0]
    _, effects = run(state, Tick(4.2 + state.rules.ack_s + 0.1))
    assert [item.message.vote.phase for item in sent(effects, VoteCast)] == [1]


def test_a_minority_that_has_prepared_locks_nobody() -> None:
    state, _ = run(state_of(voter(), held=HELD), proposed(update()), *cast(1)[:1])
    assert state.acceptor.accepted is None


def test_a_locked_voter_follows_another_update_only_with_a_newer_certificate() -> None:
    """Else two quorums of different ballots could decide two things."""
    locked, _ = run(state_of(voter(), held=HELD), proposed(update()), *cast(0), *cast(1))
    later = next(ballot for ballot in (1, 2, 3) if owner(ballot) != voter())
    bare = proposed(update(later), later, TURN_OVER_S)
    state, effects = run(locked, bare)
    assert not sent(effects, VoteCast)
    again = replace(bare.message, certificate=certificate(update(later), later - 1))  # type: ignore[call-arg]
    state, effects = run(state, replace(bare, now=TURN_OVER_S + 1, message=again))
    if later > 1:
        assert state.acceptor.checked == (later, update(later).digest)


def test_nobody_votes_for_what_it_does_not_hold() -> None:
    """The missing part is fetched; the vote follows when it is on disk."""
    *most, last = HELD
    state, effects = run(state_of(voter(), held={name: HELD[name] for name in most}), proposed(update()))
    assert not sent(effects, VoteCast)
    state, effects = run(state, ObjectStored(4.5, last, HELD[last]))
    assert sent(effects, VoteCast)


def test_a_chain_that_leads_by_another_round_than_the_organiser_signed_is_not_followed() -> None:
    """However it is certified: the keys of an old electorate certify what they like."""
    following = block()
    after = HEAD.after(following.update)
    for anchor, is_followed in ((after.anchor, True), (b"a" * 32, False)):
        mine = replace(rules("p0"), checkpoint=(1, anchor))
        state, _ = run(state_of("p0", rules=mine), Received(4.0, "p1", Blocks((following,))))
        assert (state.blocks == (following,)) is is_followed
        assert [refusal.rule for refusal in state.attempts.refusals] == ([] if is_followed else [BLOCK])


def test_nobody_votes_for_other_bits_than_its_own() -> None:
    """Whoever has not computed its own yet votes once it has."""
    state, effects = run(state_of(voter(), held=HELD, state_digest=digest_of(b"other")), proposed(update()))
    assert not sent(effects, VoteCast)
    assert [refusal.rule for refusal in state.attempts.refusals] == [STATE_RULE]
    state, effects = run(state_of(voter(), held=HELD, state_digest=b""), proposed(update()))
    assert not sent(effects, VoteCast)
    assert not state.attempts.refusals
    _, effects = run(state, Applied(4.5, HEAD.anchor, STATE))
    assert sent(effects, VoteCast)


def test_bytes_that_are_on_their_way_are_not_asked_for_at_once() -> None:
    """A mean may arrive, or reach the disk, a moment after the proposal that names it: asking costs its bytes again."""
    *most, last = HELD
    state, effects = run(
        state_of(voter(), held={name: HELD[name] for name in most}), proposed(update()), Tick(4.0 + ON_THEIR_WAY_S / 2)
    )
    assert not sent(effects, GetObjects)
    _, effects = run(state, Tick(4.1 + ON_THEIR_WAY_S))
    assert [send.message for send in sent(effects, GetObjects)] == [GetObjects((last,))]
    _, effects = run(state, ObjectStored(4.2, last, HELD[last]), Tick(4.1 + ON_THEIR_WAY_S))
    assert not sent(effects, GetObjects)


def test_nobody_votes_for_bytes_of_the_wrong_size() -> None:
    """They would have the right digest, and no trainer could apply them."""
    long = b"far too long for this part"
    poisoned = update(parts=(digest_of(long), *update().parts[1:]))
    state, effects = run(state_of(voter(), held=HELD), proposed(poisoned))
    state, effects = run(state, Received(1.5, owner(), ObjectData(b"", long)))
    assert not any(isinstance(effect, StoreObject) for effect in effects)
    state, effects = run(state, ObjectStored(2.0, digest_of(long), len(long)), Tick(3.0))
    assert not sent(effects, VoteCast)


def test_one_vote_per_ballot() -> None:
    """A coordinator that proposes two updates in one ballot gets a vote for the first."""
    state, effects = run(state_of(voter(), held=HELD), proposed(update()), proposed(update(time=9)))
    assert [send.message.vote.update for send in sent(effects, VoteCast)] == [update().digest]
    state, effects = run(replace(state, proposals={}), proposed(update(time=9)))
    assert not sent(effects, VoteCast)


def test_a_lower_ballot_is_refused() -> None:
    """NACK with what was promised; a proposal of it is ignored."""
    state, _ = run(state_of(voter(), held=HELD), Received(TURN_OVER_S, owner(4), Prepare(place(4))))
    lower = next(ballot for ballot in (1, 2, 3) if owner(ballot) != voter())
    _, effects = run(
        state,
        Received(TURN_OVER_S + 1, owner(lower), Prepare(place(lower))),
        proposed(update(lower), lower, TURN_OVER_S + 1),
    )
    assert [send.message for send in sent(effects, Nack)] == [Nack(place(lower), 4)]
    assert not sent(effects, VoteCast)


def test_a_promise_tells_what_was_accepted() -> None:
    """So that the next coordinator finishes it."""
    state, _ = run(state_of(voter(), held=HELD), proposed(update()), *cast(0), *cast(1))
    later = next(ballot for ballot in (1, 2, 3) if owner(ballot) != voter())
    state, effects = run(state, Received(TURN_OVER_S, owner(later), Prepare(place(later))))
    (promise,) = sent(effects, Promise)
    assert promise.message.accepted == (0, update().digest)
    assert promise.message.certificate == state.acceptor.certificate
    assert effects.index(PersistAcceptor(state.acceptor)) < effects.index(promise)


def test_only_the_owner_of_a_ballot_is_answered() -> None:
    """Whoever else prepares or proposes it."""
    stranger = next(name for name in NAMES if name not in (owner(), voter()))
    forged = Propose(place(), update(), proposal_signature(update()))
    state, effects = run(
        state_of(voter(), held=HELD), Received(1.0, stranger, Prepare(place())), Received(1.0, stranger, forged)
    )
    assert effects == []
    assert state.acceptor.promised == -1


def test_a_question_that_waits_for_the_freeze_is_answered_with_it() -> None:
    """At once: until the coordinator asks again the list of members may be closed."""
    asked = Received(4.0, owner(), Prepare(place()))
    state, effects = run(state_of(voter(), in_step=True), TrainingProgress(0.5, 0.6), asked)
    assert [type(effect) for effect in effects] == [RequestSubmit]
    _, effects = run(state, Submitted(4.1, header(voter())))
    (promise,) = [item.message for item in effects if isinstance(item, Send) and isinstance(item.message, Promise)]
    assert promise.header == header(voter())


def test_nobody_uses_the_ballots_up() -> None:
    """A ballot far beyond the next ones is refused, so that there is always a higher one."""
    far = next(ballot for ballot in range(1 << 30, (1 << 30) + 3) if owner(ballot) != voter())
    state, effects = run(state_of(voter(), held=HELD), Received(1.0, owner(far), Prepare(place(far))))
    assert effects == []
    assert state.acceptor.promised == -1


def test_a_quorum_of_votes_commits_once_the_bytes_are_held() -> None:
    """Two of three, wherever they come from."""
    votes = [Received(4.1, "p2", VoteCast(place(), vote(name, update()))) for name in NAMES[:2]]
    state, effects = run(state_of(voter(), held=HELD), proposed(update()), *votes)
    (commit,) = [effect for effect in effects if isinstance(effect, CommitBlock)]
    assert commit.head == HEAD.after(update()) == state.head
    assert not check_block(rules("p0"), HEAD, commit.block)


def test_a_minority_of_votes_commits_nothing() -> None:
    """One vote twice is one vote; one's own does not come from outside the electorate either."""
    once = Received(1.0, "p2", VoteCast(place(), vote("p2", update())))
    watcher = state_of("x", held=HELD)
    state, effects = run(watcher, proposed(update()), once, once)
    assert not any(isinstance(effect, CommitBlock) for effect in effects)
    assert state.head == HEAD


# ---- coordinating among liars ----


def leader_with_promises(**accepted: Promise) -> tuple[State, list[Effect]]:
    """The coordinator of ballot 3 after all have promised; `accepted` by name are the promises of some."""
    me = owner(3)
    state = state_of(me, held=HELD)
    state = replace(state, acceptor=replace(state.acceptor, promised=2))
    state, _ = run(state, Submitted(0.0, header(me)), Tick(9.0))
    assert state.lead is not None
    assert state.lead.ballot == 3
    others = [name for name in NAMES if name != me]
    promises = [
        Received(
            9.1, name, replace(accepted.get(f"other{index}", Promise(place(3), header(name))), header=header(name))
        )
        for index, name in enumerate(others)
    ]
    return run(state, *promises)


def accepts(item: Update, ballot: int, certificate: tuple[Vote, ...]) -> Promise:
    return Promise(place(3), header(NAMES[0]), (ballot, item.digest), certificate)


@pytest.mark.parametrize("votes", [0, 1], ids=["without a certificate", "with the vote of one"])
def test_a_liar_about_an_accepted_update_is_refused(votes: int) -> None:
    """Nobody can invent an acceptance: it comes with the votes of a quorum, or the promise counts for nothing."""
    lie = accepts(update(2), 2, certificate(update(2), 2)[:votes])
    state, _ = leader_with_promises(other0=lie)
    assert state.lead is not None
    assert len(state.lead.promises) == 2
    assert state.lead.update == b""
    assert [refusal.rule for refusal in state.attempts.refusals] == [VOTES]


def test_what_a_quorum_has_checked_is_finished() -> None:
    """Whoever reports it, and with the votes that prove it."""
    state, effects = leader_with_promises(other0=accepts(update(2), 2, certificate(update(2), 2)))
    assert state.lead is not None
    assert state.lead.update == update(2).digest
    assert sent(effects, GetObjects)


def test_of_two_accepted_updates_the_later_one_is_finished() -> None:
    """That of the earlier ballot was not decided, or else nobody could have accepted another one after it."""
    one, other = (accepts(update(ballot), ballot, certificate(update(ballot), ballot)) for ballot in (1, 2))
    state, _ = leader_with_promises(other0=one, other1=other)
    assert state.lead is not None
    assert state.lead.update == update(2).digest


def test_what_its_coordinator_refuses_itself_is_not_said_again() -> None:
    """By its clock that is of the future. A frame without a signature would be none to anybody."""
    item = update(2, time=60)
    state, _ = leader_with_promises(other0=accepts(item, 2, certificate(item, 2)))
    state, effects = run(state, Received(9.2, "p0", ObjectData(b"", item.to_bytes())), Tick(9.3))
    assert [proposal.message.signature != b"" for proposal in sent(effects, Propose)] == [True]
    _, effects = run(state, Tick(9.3 + REPEAT_S))
    assert not sent(effects, Propose)


def test_garbage_under_a_promised_digest_is_no_update() -> None:
    """Whoever reports an accepted update chooses the digest, and so the bytes behind it."""
    garbage = b"\xc1 not msgpack"
    state, _ = leader_with_promises(other0=accepts(update(2), 2, certificate(update(2), 2)))
    state, effects = run(state, Received(9.2, "p0", ObjectData(b"", garbage)))
    assert state.proposals == {}
    assert not any(isinstance(effect, StoreObject) for effect in effects)


def test_a_coordinator_that_was_overtaken_steps_back() -> None:
    """A later proposal that it voted for ends its role, also if it never saw the PREPARE."""
    state, _ = leader_with_promises()
    later = next(ballot for ballot in (4, 5) if owner(ballot) != state.rules.me)
    state, _ = run(state, proposed(update(later), later, TURN_OVER_S), Tick(TURN_OVER_S + 0.5))
    assert state.acceptor.promised == later
    assert state.lead is None


def test_no_single_peer_can_nack_a_ballot_away() -> None:
    """Only voters count, and only when those who are left are no quorum."""
    state, _ = leader_with_promises()
    first, second = (name for name in NAMES if name != state.rules.me)
    for sender in ("x", first, first):
        state, _ = run(state, Received(9.2, sender, Nack(place(3), 9)))
        assert state.lead is not None
    state, _ = run(state, Received(9.3, second, Nack(place(3), 9)))
    assert state.lead is None
