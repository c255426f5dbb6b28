"""No false mean is decided: who makes one is named by what everybody can compare, and nobody else ever is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from peer.consensus.protocol import merkle, norms
from peer.consensus.protocol.block import Update
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.messages import BallotId, Message, Objection, Propose, RowDispute, Start, VoteCast, encode
from peer.consensus.rounds import soundness
from peer.consensus.rounds.driver import Driver
from peer.consensus.rounds.interface import CheckRow, Effect, Received, RowChecked, Send, ShowRow
from peer.consensus.rounds.soundness import OBJECTS_AGAIN_AFTER, SHOWN_MOST
from peer.consensus.rounds.state import Proposal, State
from peer.consensus.rounds.transition import Transition
from peer.schema.events import AlertRaised
from tests.night import at_night
from tests.peer.consensus.rounds.ballot import run
from tests.peer.consensus.rounds.build import (
    HEAD,
    NAMES,
    header,
    leaves_of,
    owner,
    part_of,
    place,
    proposal_signature,
    state_of,
    update,
    vote,
)
from tests.peer.consensus.rounds.false_means import (
    LIAR,
    SECONDS,
    Lie,
    MeansWorld,
    false_norm,
    false_rows,
    false_sum,
    lived,
)

LIES: dict[str, Lie] = {
    "a false sum": false_sum,
    "a false norm": false_norm,
    "a false row": false_rows("p2"),
    "two false rows": false_rows("p0", "p2"),
}


@cache
def honest_rounds(peers: int) -> int:
    """Asked for before anybody lies."""
    with pytest.MonkeyPatch.context() as patches:
        return lived(None, patches, peers=peers).rounds


@pytest.mark.slow
@pytest.mark.parametrize(("what", "peers"), list(zip(LIES, (4, 3, 4, 5), strict=True)))
def test_an_owner_that_makes_false_means_is_convicted(peers: int, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By all others, in the round after its first or second lie; none of its means is decided, and nobody waits."""
    usual = honest_rounds(peers)
    world = lived(LIES[what], monkeypatch, peers=peers)
    assert world.lying is not None
    assert 1 <= len(world.lying.told) <= 3
    assert world.false == set()
    assert {row[0] for row in world.convictions()} == {LIAR}
    assert all(names == {LIAR} for names in world.accused().values()), world.accused()
    assert world.rounds >= 0.8 * usual


def test_whom_two_prove_false_is_caught_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two proofs for one mean are one lie: people are told once."""
    world = lived(LIES["two false rows"], monkeypatch, peers=4)
    for peer in world.peers:
        told = Counter(
            event.text for event in peer.reports if isinstance(event, AlertRaised) and event.code == "MISDECLARED"
        )
        assert all(f"{LIAR} lied in round" in text for text in told), told
        assert set(told.values()) <= {1}


def test_who_misquotes_itself_in_its_own_part_is_as_a_contribution_of_that_norm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody else can tell, and nobody is named; a larger row than it declared is seen by all."""
    world = lived(false_rows(LIAR), monkeypatch)
    assert world.false
    assert world.convictions() == []
    grown = lived(lambda total, rows: (total + 2 * rows[LIAR], {**rows, LIAR: 3 * rows[LIAR]}), monkeypatch)
    assert grown.false == set()
    assert {row[0] for row in grown.convictions()} == {LIAR}


def test_honest_peers_object_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = lived(None, monkeypatch)
    assert world.false == set()
    assert world.convictions() == []
    assert not any(isinstance(event, AlertRaised) for peer in world.peers for event in peer.reports)


def test_without_any_comparison_false_means_are_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above can fail."""
    monkeypatch.setattr(soundness, "on_checked", lambda turn, event: _all_is_well(turn, event))
    assert lived(false_sum, monkeypatch).false
    assert lived(false_rows("p2"), monkeypatch).false


def _all_is_well(turn: Transition, event: soundness.MeanChecked) -> None:
    turn.set(faults={**turn.state.faults, (event.digest, event.part, event.contributors, event.basis): ""})


# ---- proofs on their way ----


@pytest.fixture
def proofs_take(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Called with seconds: from now on whoever proves that its row is false needs so long to send that."""

    def take(seconds: float) -> None:
        perform = Driver._perform

        def slowly(driver: Driver, effect: Effect) -> None:
            if isinstance(effect, ShowRow):
                world[0].scheduler.call_in(seconds, lambda: perform(driver, effect))
            else:
                perform(driver, effect)

        monkeypatch.setattr(Driver, "_perform", slowly)

    world: list[MeansWorld] = []
    init = MeansWorld.__init__

    def remembered(self: MeansWorld, *args: object) -> None:
        world.insert(0, self)
        init(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(MeansWorld, "__init__", remembered)
    return take


@pytest.mark.parametrize("seconds", [0.5, 1.5])
def test_a_proof_that_is_announced_is_waited_for(
    seconds: float, proofs_take: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of `ack_s`, and half as much again: the objection holds the second phase."""
    proofs_take(seconds)
    world = lived(false_rows("p2"), monkeypatch)
    assert world.false == set()
    assert {row[0] for row in world.convictions()} == {LIAR}


def test_without_its_announcement_a_slow_proof_comes_too_late(
    proofs_take: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So objections are worth their bytes; whoever lied is convicted all the same."""
    proofs_take(1.5)
    monkeypatch.setattr(soundness, "on_objection", lambda turn, sender, message: None)
    world = lived(false_rows("p2"), monkeypatch)
    assert world.false
    assert {row[0] for row in world.convictions()} == {LIAR}


def test_a_proof_that_comes_after_the_decision_convicts(
    proofs_take: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slower than `exchange_s`: at most a round or two have gone, and no honest peer is taken for a liar."""
    proofs_take(3.0)
    world = lived(false_rows("p2"), monkeypatch)
    assert len({round for round, _ in world.false}) <= 2
    assert {row[0] for row in world.convictions()} == {LIAR}
    assert all(names <= {LIAR} for names in world.accused().values()), world.accused()


# ---- hostile members ----


@pytest.fixture
def beside_votes(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Driver, VoteCast], None]], None]:
    """Called with what LIAR does from now on whenever it is about to say that it has checked something."""

    def add(also: Callable[[Driver, VoteCast], None]) -> None:
        send = Driver._send

        def sending(driver: Driver, to: tuple[str, ...], message: Message) -> None:
            if driver.state.rules.me == LIAR and isinstance(message, VoteCast) and not message.vote.phase:
                also(driver, message)
            send(driver, to, message)

        monkeypatch.setattr(Driver, "_send", sending)

    return add


def proposed(driver: Driver, vote: VoteCast) -> list[tuple[int, bytes, int]]:
    """(part, digest, contributors) of the means that it votes about."""
    item = driver.state.proposals[vote.vote.update]
    return [(part, digest, bits) for digest, part, bits, _ in soundness.means_of(item.update, item.basis)]


def proof_of(driver: Driver, where: BallotId, part: int, digest: bytes, bits: int) -> RowDispute:
    found = driver._disk.my_part(where.anchor, part)
    assert found is not None
    return RowDispute(where, part, digest, bits, *found)


@pytest.mark.parametrize("peers", [4, *at_night(7)])
def test_a_dispute_that_is_shown_to_one_voter_splits_nobody(
    peers: int, beside_votes: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner that misquotes itself proves so to one of them, in every ballot: that one passes it on, once, all name
    the owner, and no ballot more is lost."""

    def split(driver: Driver, vote: VoteCast) -> None:
        for part, digest, bits in proposed(driver, vote):
            driver._streams.send("p2", encode(proof_of(driver, vote.place, part, digest, bits)))

    usual = honest_rounds(peers)
    beside_votes(split)
    world = lived(false_rows(LIAR), monkeypatch, peers=peers)
    assert {row[0] for row in world.convictions()} == {LIAR}
    assert all(names == {LIAR} for names in world.accused().values()), world.accused()
    assert world.rounds >= 0.8 * usual


def test_who_cries_wolf_is_heard_once(beside_votes: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """One objection holds one round for a while; without a proof its author is not heard again, and nobody is named."""

    def object_to_all(driver: Driver, vote: VoteCast) -> None:
        for part, digest, bits in proposed(driver, vote):
            for name in ("p0", "p2", "p3"):
                driver._streams.send(name, encode(Objection(vote.place, part, digest, bits)))

    usual = honest_rounds(4)
    beside_votes(object_to_all)
    world = lived(None, monkeypatch)
    assert world.rounds >= usual - 1
    assert world.convictions() == []
    assert all(names == set() for names in world.accused().values())
    for name in ("p0", "p2", "p3"):
        assert world.peers[world.index[name]].driver.state.unproven.keys() == {LIAR}


def test_who_shows_what_proves_nothing_is_ignored(
    beside_votes: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own bytes, of which the row is right: nobody is held up, and nobody named."""

    def deny(driver: Driver, vote: VoteCast) -> None:
        for part, digest, bits in proposed(driver, vote):
            for name in ("p0", "p2", "p3"):
                driver._streams.send(name, encode(proof_of(driver, vote.place, part, digest, bits)))

    usual = honest_rounds(4)
    beside_votes(deny)
    world = lived(None, monkeypatch)
    assert world.rounds >= usual - 1
    assert world.convictions() == []
    assert all(names == set() for names in world.accused().values())


# ---- what is looked into ----

ITEM = update()
MEAN = (ITEM.parts[0], 0, ITEM.contributors[0])
BASIS = norms.inputs_digest_of(ITEM.members)


def proposal_of(item: Update) -> Proposal:
    return Proposal(0, item, b"s" * 64, basis=norms.inputs_digest_of(item.members))


def row_checked(mean: tuple[bytes, int, int], *, right: bool, giver: str = "p1") -> RowChecked:
    return RowChecked(5.1, giver, *mean, right=right, basis=BASIS)


def knowing(**changes: object) -> State:
    """A voter that has been proposed something."""
    known = {ITEM.digest: proposal_of(ITEM)}
    return state_of("p0", proposals=known, **changes)


def shown(giver: str = "p1", *, part: int = 0, of: str = "", payload: bytes = b"", **changes: object) -> RowDispute:
    """What `giver` gave, as it shows that itself."""
    digest, _, bits = MEAN
    path = merkle.path(leaves_of(of or giver), part)
    fields = {"digest": digest, "contributors": bits} | changes
    return RowDispute(place(), part, path=path, payload=payload or part_of(of or giver, part), **fields)  # type: ignore[arg-type]


def checks(effects: list[Effect]) -> list[CheckRow]:
    return [effect for effect in effects if isinstance(effect, CheckRow)]


def hears(state: State, message: Message, sender: str = "p1") -> tuple[State, list[Effect]]:
    return run(state, Received(5.0, sender, message))


def test_what_a_member_pledged_is_compared_with_its_row() -> None:
    """Whoever shows it, once; with the norm that it declared."""
    state, effects = hears(knowing(), shown())
    assert checks(effects) == [CheckRow("p1", MEAN[0], 0, MEAN[2], 1, part_of("p1", 0), 1.0, HEAD.anchor, BASIS)]
    _, again = hears(state, shown())
    assert checks(again) == []
    _, effects = hears(knowing(), shown(giver="p1"), "p2")
    assert checks(effects) == [], "p2 has not pledged that"
    forwarded = RowDispute(place(), 0, MEAN[0], MEAN[2], shown().path, shown().payload, "p1")
    _, effects = hears(knowing(), forwarded, "p2")
    assert [item.giver for item in checks(effects)] == ["p1"]


NOTHING: dict[str, RowDispute] = {
    "bytes that were not pledged": shown(payload=b"x" * 8),
    "another's bytes": shown(of="p2"),
    "bytes of another size": shown(payload=b"x" * 9),
    "a part that is not there": RowDispute(place(), 7, MEAN[0], MEAN[2], (), b"x" * 8),
    "a mean without it": shown(contributors=0b101),
    "a mean that nobody proposed": shown(digest=digest_of(b"another")),
    "a stranger's": RowDispute(place(), 0, MEAN[0], MEAN[2], shown().path, shown().payload, "x0"),
}


@pytest.mark.parametrize("what", NOTHING)
def test_nothing_else_costs_a_comparison(what: str) -> None:
    state, effects = hears(knowing(), NOTHING[what])
    assert effects == []
    assert not state.shown


def test_what_is_shown_before_the_proposal_is_compared_under_its_headers() -> None:
    """A proposal may name other members than its exchange, and come to the others later than to who disputes it: which
    row is the giver's depends on that, and it need not be false under the first of them."""
    item = update(members=(header("p1"), header("p2")), contributors=(0b11, 0b11, 0b11), elect=NAMES)
    before = state_of("p0", header=header("p0"))
    before = replace(before, acceptor=replace(before.acceptor, promised=0))
    begun, _ = run(before, Received(4.0, owner(0), Start(place(), tuple(map(header, NAMES)))))
    assert begun.exchange is not None
    state, effects = hears(begun, shown("p1", contributors=0b11))
    assert [(check.rank, check.basis) for check in checks(effects)] == [(1, begun.exchange.basis)]
    state, _ = run(state, RowChecked(5.1, "p1", MEAN[0], 0, 0b11, right=True, basis=begun.exchange.basis))
    assert state.wrong == set()
    state, effects = hears(state, shown("p2", contributors=0b11), "p2")
    assert checks(effects) == [], "by the exchange it is p1's"
    _, effects = run(state, Received(5.2, owner(0), Propose(place(), item, proposal_signature(item))))
    basis = norms.inputs_digest_of(item.members)
    found = [(check.giver, check.rank) for check in checks(effects) if check.basis == basis]
    assert found == [("p1", 0), ("p2", 1)]


def test_who_was_wrong_is_not_heard_again_for_this_anchor() -> None:
    state, _ = hears(knowing(), shown())
    state, effects = run(state, row_checked(MEAN, right=True))
    assert state.wrong == {"p1"}
    assert effects == []
    other = update(time=9)
    state, effects = hears(replace_proposals(state, other), shown("p1", part=1, digest=other.parts[1], contributors=3))
    assert checks(effects) == []


def test_an_objection_whose_proof_proves_nothing_holds_nobody_up() -> None:
    """As one without a proof: else a liar that shows its true bytes could object at every anchor."""
    state, _ = hears(knowing(objections={"p1": (MEAN, 5.0)}), shown())
    assert soundness.is_objected_to(Transition(state, 5.1), proposal_of(ITEM))
    state, _ = run(state, row_checked(MEAN, right=True))
    assert not soundness.is_objected_to(Transition(state, 5.1), proposal_of(ITEM))
    assert state.unproven == {"p1": HEAD.round}
    other = (MEAN[0], 1, MEAN[2])
    state, _ = hears(knowing(objections={"p1": (other, 5.0)}), shown())
    state, _ = run(state, row_checked(MEAN, right=True))
    assert not state.unproven, "it objected to another"


def replace_proposals(state: State, item: object) -> State:
    assert isinstance(item, type(ITEM))
    return state_of("p0", proposals={item.digest: proposal_of(item)}, wrong=state.wrong)


def test_what_is_false_is_passed_on_once() -> None:
    """To all voters but its giver and who has shown it, with the name of the giver; the mean is never voted for."""
    state, _ = hears(knowing(), shown())
    state, effects = run(state, row_checked(MEAN, right=False))
    assert state.faults[*MEAN, BASIS] == soundness.ROW
    sent = [effect for effect in effects if isinstance(effect, Send) and isinstance(effect.message, RowDispute)]
    assert [(item.to, item.message.giver) for item in sent] == [(("p2",), "p1")]  # type: ignore[union-attr]
    state, effects = hears(state, RowDispute(place(), 0, MEAN[0], MEAN[2], shown("p2").path, part_of("p2", 0)), "p2")
    _, effects = run(state, row_checked(MEAN, giver="p2", right=False))
    assert not [effect for effect in effects if isinstance(effect, Send)]


def test_who_was_away_is_shown_it_when_it_votes() -> None:
    """It has checked the proposal in the meantime, and would prepare it once its contributors had time to object."""
    state, _ = run(hears(knowing(), shown())[0], row_checked(MEAN, right=False))
    for voter, told in (("p2", [("p2",)]), ("p1", [])):
        _, effects = hears(state, VoteCast(place(), vote(voter, ITEM, phase=0)), voter)
        sent = [item for item in effects if isinstance(item, Send) and isinstance(item.message, RowDispute)]
        assert [item.to for item in sent] == told
    _, effects = hears(hears(knowing(), shown())[0], VoteCast(place(), vote("p2", ITEM, phase=0)), "p2")
    assert not [item for item in effects if isinstance(item, Send) and isinstance(item.message, RowDispute)]


def test_of_means_that_nobody_has_signed_each_is_passed_on() -> None:
    """Else a proof about one of them would use up those about all others."""
    other = {"digest": ITEM.parts[1], "contributors": ITEM.contributors[1]}
    state, _ = hears(hears(knowing(), shown())[0], shown(part=1, **other))
    for mean in (MEAN, (ITEM.parts[1], 1, ITEM.contributors[1])):
        state, effects = run(state, row_checked(mean, right=False))
        sent = [item.message for item in effects if isinstance(item, Send)]
        assert [(item.digest, item.part) for item in sent if isinstance(item, RowDispute)] == [mean[:2]]


def test_no_sender_is_looked_into_without_end() -> None:
    """For one anchor, whatever it shows."""
    full = {(f"x{index}", MEAN): ("p1", shown()) for index in range(SHOWN_MOST)}
    _, effects = hears(knowing(shown=full), shown())
    assert checks(effects) == []
    _, effects = hears(knowing(shown=full), shown("p2"), "p2")
    assert len(checks(effects)) == 1


def test_objections_are_those_of_voters_one_for_an_anchor() -> None:
    """And of who has not cried wolf lately."""
    digest, part, bits = MEAN
    word = Objection(place(), part, digest, bits)
    state, _ = hears(knowing(), word)
    assert state.objections == {"p1": (MEAN, 5.0)}
    again, _ = hears(state, Objection(place(), part + 1, digest, bits))
    assert again.objections == state.objections
    stranger, _ = hears(knowing(), word, "x0")
    assert not stranger.objections
    elsewhere, _ = hears(knowing(), Objection(BallotId(bytes(32), bytes(32), 0), part, digest, bits))
    assert not elsewhere.objections
    for ago, is_heard in ((0, False), (OBJECTS_AGAIN_AFTER - 1, False), (OBJECTS_AGAIN_AFTER, True)):
        lately, _ = hears(knowing(unproven={"p1": HEAD.round - ago}), word)
        assert bool(lately.objections) is is_heard


def test_an_objection_holds_a_proposal_as_long_as_its_proof_may_take() -> None:
    """`ack_s` and two parts on its author's line, or `exchange_s` of who declares none; then it was none."""
    slow, unknown = header("p1", bandwidth_bps=64), header("p1")
    for mine, until in ((slow, 5.0 + 1.0 + 2.0), (unknown, 5.0 + 2.0)):
        item = update(members=(header("p0"), mine, header("p2")))
        key = (item.parts[0], 0, item.contributors[0])
        state = state_of("p0", proposals={item.digest: proposal_of(item)}, objections={"p1": (key, 5.0)})
        waits = min(until, 5.0 + state.deadlines.exchange_s)
        assert soundness.is_objected_to(Transition(state, waits - 0.01), proposal_of(item))
        turn = Transition(state, waits + 0.01)
        assert not soundness.is_objected_to(turn, proposal_of(item))
        assert turn.state.unproven == {"p1": HEAD.round}
        other = update(parts=(digest_of(b"another"), *ITEM.parts[1:]))
        assert not soundness.is_objected_to(Transition(state, 5.1), proposal_of(other)), "it is about another mean"


def test_the_longest_run_of_all_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is remembered of one anchor at the next."""
    world = lived(false_rows("p2"), monkeypatch, seconds=SECONDS)
    for peer in world.peers:
        state = peer.driver.state
        assert len(state.shown) <= SHOWN_MOST * len(world.peers)
        assert len(state.forwarded) <= len(world.peers)
