"""What a delegate says counts as its member's, for its layers and nothing else; and what it holds, its lead holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.consensus.protocol import merkle
from peer.consensus.protocol.block import Delegate
from peer.consensus.protocol.encoding import digest_of
from peer.consensus.protocol.messages import Heartbeat, MeanData, PartData, Promise, Propose, RowDispute
from peer.consensus.rounds.interface import (
    SUM,
    BufferPart,
    CheckMean,
    CheckRow,
    DelegateHolds,
    DelegatesChanged,
    Input,
    MeanChecked,
    MeasureOwn,
    MeasurePart,
    ObjectStored,
    OwnMeasured,
    PartMeasured,
    PartReduced,
    Received,
    Send,
    SendMean,
    StoreObject,
    Submitted,
    Tell,
    Tick,
)
from peer.consensus.rounds.machine import step
from peer.consensus.rounds.member import MEASURE_S
from peer.consensus.rounds.soundness import CHECK_AGAIN_S
from peer.consensus.rounds.state import Proposal, State
from peer.consensus.rounds.transition import Transition
from peer.schema.events import RoundAborted
from peer.testing.memory_peer import ModelKeys
from tests.peer.consensus.rounds.ballot import (
    FIGURES,
    LEADER,
    OTHERS,
    PLACE,
    mean_of,
    measuring,
    mine,
    part_from,
    reducing,
    run,
)
from tests.peer.consensus.rounds.build import (
    HEAD,
    NAMES,
    NORMS,
    PART_BYTES,
    PAYLOADS,
    header,
    leaves_of,
    part_of,
    proposal_signature,
    state_of,
    update,
)

WORKER = "w0"
ALL: Delegate = (0, 2, WORKER)


def of_second(*delegates: Delegate) -> State:
    """The coordinator's exchange, in which the second of the others has these delegates."""
    return reducing(delegates=delegates)  # type: ignore[arg-type]


def from_worker(part: int, *, of: str = OTHERS[1], sender: str = WORKER, attempt: int = 0) -> Received:
    message = PartData(PLACE, attempt, part, merkle.path(leaves_of(of), part), part_of(of, part))
    return Received(4.1, sender, message)


def givers(effects: list[object]) -> list[str]:
    return [effect.sender for effect in effects if isinstance(effect, BufferPart)]


def test_a_part_from_a_delegate_is_its_members() -> None:
    """Kept, measured and counted under the member's name; once, whoever sends it again."""
    state = of_second(ALL)
    (part,) = mine(state, LEADER)
    state, effects = measuring(state, from_worker(part), from_worker(part), part_from(OTHERS[1], part))
    assert givers(effects) == [OTHERS[1]]
    assert {effect.giver for effect in effects if isinstance(effect, MeasurePart)} == {OTHERS[1]}
    assert state.exchange is not None
    index = state.exchange.names.index(OTHERS[1])
    assert state.exchange.received[part] >> index & 1


@pytest.mark.parametrize("spoil", ["layer", "member", "stranger", "part"])
def test_a_delegate_speaks_for_nothing_else(spoil: str) -> None:
    """Frames for other layers, other members, of strangers, of parts that are not."""
    (part,) = mine(of_second(ALL), LEADER)
    elsewhere = next(layer for layer in range(3) if layer != part)
    state = of_second((elsewhere, elsewhere, WORKER) if spoil == "layer" else ALL)
    bad = {
        "layer": from_worker(part),
        "member": from_worker(part, of=OTHERS[0]),
        "stranger": from_worker(part, sender="w1"),
        "part": replace(from_worker(part), message=PartData(PLACE, 0, 65_536, (), b"x" * 8)),
    }
    _, effects = measuring(state, bad[spoil])
    assert givers(effects) == []


def test_a_part_of_a_delegate_may_come_before_the_start() -> None:
    """Of whoever was heard, or named in the last round."""
    state = of_second(ALL)
    (part,) = mine(state, LEADER)
    word = Heartbeat(HEAD.anchor, 0, 0, b"", False, 0, 0, False)
    heard, _ = run(state_of(LEADER), Received(1.0, WORKER, word))
    early = replace(from_worker(part), now=3.9)
    promises = [Received(4.0, peer, Promise(PLACE, header(peer))) for peer in OTHERS[:1]]
    promises.append(Received(4.0, OTHERS[1], Promise(PLACE, header(OTHERS[1], delegates=(ALL,)))))
    begun, _ = measuring(heard, Submitted(0.0, header(LEADER)), Tick(3.5))
    assert begun.lead is not None
    _, effects = measuring(begun, early, *promises)
    assert givers(effects) == [OTHERS[1]]
    strange, _ = measuring(state_of(LEADER), Submitted(0.0, header(LEADER)), Tick(3.5))
    _, effects = measuring(strange, early, *promises)
    assert givers(effects) == []


def test_whom_two_headers_name_is_told_by_the_path() -> None:
    """Else anybody could keep a member out by naming the peers that it names, or a member itself."""
    named = header(OTHERS[0], delegates=((0, 1, WORKER), (2, 2, OTHERS[1])))
    state, _ = measuring(
        state_of(LEADER), Submitted(0.0, header(LEADER)), Tick(4.0), Received(4.0, OTHERS[0], Promise(PLACE, named)),
        Received(4.0, OTHERS[1], Promise(PLACE, header(OTHERS[1], delegates=(ALL,)))),
    )  # fmt: skip
    (part,) = mine(state, LEADER)
    state, effects = measuring(state, from_worker(part), part_from(OTHERS[0], part))
    assert givers(effects) == [OTHERS[1], OTHERS[0]]


def test_garbage_of_a_delegate_is_not_waited_for() -> None:
    """As that of its member would not be; nobody else suffers."""
    state = of_second(ALL)
    (part,) = mine(state, LEADER)
    junk = PartData(PLACE, 0, part, (), bytes(PART_BYTES[part]))
    state, _ = measuring(state, Received(4.1, WORKER, junk))
    assert state.exchange is not None
    assert state.exchange.refused[part] == 1 << state.exchange.names.index(OTHERS[1])


def test_means_go_to_delegates() -> None:
    """In the place of their members, and of the coordinator that asks for them."""
    state = of_second(ALL)
    (part,) = mine(state, LEADER)
    state, _ = measuring(state, part_from(OTHERS[0], part), from_worker(part))
    _, effects = run(state, PartReduced(5.0, PLACE, part, 7, digest_of(PAYLOADS[part])))
    (sent,) = [effect for effect in effects if isinstance(effect, SendMean)]
    assert set(sent.to) == {OTHERS[0], WORKER}


def test_what_a_delegate_shows_is_its_members() -> None:
    """A home proves in its lead's name that a mean misquotes it; what is proven by a pledge anybody may show."""
    item = update(members=tuple(header(name, delegates=(ALL,) if name == OTHERS[1] else ()) for name in NAMES))
    state = state_of(LEADER, proposals={item.digest: Proposal(0, item, b"s" * 64)})
    path, payload = merkle.path(leaves_of(OTHERS[1]), 0), part_of(OTHERS[1], 0)
    shown = RowDispute(PLACE, 0, item.parts[0], item.contributors[0], path, payload, OTHERS[1])
    _, effects = run(state, Received(4.5, WORKER, shown))
    assert [effect.giver for effect in effects if isinstance(effect, CheckRow)] == [OTHERS[1]]
    _, effects = run(state, Received(4.5, WORKER, replace(shown, giver="")))
    assert effects == []


# ---- a lead ----


def lead_state(*delegates: Delegate) -> State:
    """The coordinator is itself a lead, amid the exchange."""
    promises = [Received(4.0, peer, Promise(PLACE, header(peer))) for peer in OTHERS]
    mine_says = Submitted(0.0, header(LEADER, delegates=delegates))
    changed = DelegatesChanged(0.0, delegates)
    state, _ = measuring(state_of(LEADER), changed, mine_says, Tick(4.0), *promises)
    assert state.exchange is not None
    return state


def bare(state: State, part: int) -> MeanData:
    message = mean_of(state, part, 7).message
    assert isinstance(message, MeanData)
    return replace(message, payload=b"")


def holds(state: State, part: int, worker: str = WORKER, mean: MeanData | None = None, size: int = -1) -> DelegateHolds:
    size = PART_BYTES[part] if size < 0 else size
    return DelegateHolds(5.1, worker, digest_of(PAYLOADS[part]), size, mean or bare(state, part))


def test_what_a_worker_holds_its_lead_holds() -> None:
    """The mean is known, its bytes count as held, and nothing is stored here."""
    state = lead_state(ALL)
    (part,) = mine(state, OTHERS[0])
    after, effects = run(state, holds(state, part))
    assert after.exchange is not None
    assert after.exchange.means[part] == bare(state, part)
    assert after.held[digest_of(PAYLOADS[part])] == PART_BYTES[part]
    assert not [effect for effect in effects if isinstance(effect, StoreObject)]


@pytest.mark.parametrize("spoil", ["worker", "layer", "size", "unsigned", "digest", "contributors", "payload"])
def test_a_worker_is_believed_of_its_layers_alone(spoil: str) -> None:
    """And only what its reducer signed."""
    state = lead_state(ALL)
    (part,) = mine(state, OTHERS[0])
    word = bare(state, part)
    if spoil == "layer":
        elsewhere = (part + 1) % 3
        state = lead_state((elsewhere, elsewhere, WORKER))
    bad: dict[str, Input] = {
        "worker": holds(state, part, "w1"),
        "layer": holds(state, part),
        "size": holds(state, part, size=3),
        "unsigned": holds(state, part, mean=replace(word, signature=b"s" * 64)),
        "digest": holds(state, part, mean=replace(word, digest=bytes(32)).signed(ModelKeys(OTHERS[0]))),
        "contributors": holds(state, part, mean=replace(word, contributors=8).signed(ModelKeys(OTHERS[0]))),
        "payload": holds(state, part, mean=replace(word, payload=b"x")),
    }
    after, _ = run(state, bad[spoil])
    assert after.exchange is not None
    assert part not in after.exchange.means
    assert digest_of(PAYLOADS[part]) not in after.held


def test_a_worker_cannot_fill_its_lead() -> None:
    """Of bytes that no update names nothing is remembered, nor are words of other ballots without end."""
    state = lead_state(ALL)
    for number in range(200):
        digest = digest_of(str(number).encode())
        mean = replace(bare(state, 0), digest=digest, place=replace(PLACE, ballot=1 + number % 3))
        signed = mean.signed(ModelKeys(OTHERS[0]))
        state, _ = run(state, DelegateHolds(5.2, WORKER, digest, 8), DelegateHolds(5.2, WORKER, digest, 8, signed))
    assert not state.held
    assert len(state.early) <= 2 * len(PART_BYTES)


def test_a_lead_stores_itself_what_its_own_layer_needs() -> None:
    """Also where a worker's layer has the same bytes."""
    mine_is, theirs = 0, 1
    state = lead_state((theirs, theirs, WORKER))
    assert state.exchange is not None
    digest, reducer = digest_of(PAYLOADS[mine_is]), state.exchange.reducers[theirs]
    word = MeanData(PLACE, 0, theirs, reducer, 7, digest, b"", basis=state.exchange.basis).signed(ModelKeys(reducer))
    state, _ = run(state, DelegateHolds(5.1, WORKER, digest, PART_BYTES[theirs], word))
    assert digest in state.held
    _, effects = run(state, mean_of(state, mine_is, 7, now=5.2))
    assert [effect.digest for effect in effects if isinstance(effect, StoreObject)] == [digest]


def test_a_part_of_my_worker_counts_once_it_is_here() -> None:
    """What I reduce of my own contribution comes from it; that it was measured there does not bring the bytes."""
    state = lead_state(ALL)
    (part,) = mine(state, LEADER)
    assert state.exchange is not None
    index = state.exchange.names.index(LEADER)
    told, _ = run(state, PartMeasured(4.2, PLACE, LEADER, part, 1.0))
    assert told.exchange is not None
    assert not told.exchange.received[part] >> index & 1
    state, effects = measuring(state, from_worker(part, of=LEADER))
    assert givers(effects) == [LEADER]
    assert state.exchange is not None
    assert state.exchange.received[part] >> index & 1


def test_a_home_that_keeps_some_layers_decides_nothing() -> None:
    """It is never ready, whatever it is told."""
    state = state_of(LEADER)
    state = replace(state, rules=replace(state.rules, holds=range(1, 2)))
    after, _ = run(state, Submitted(0.0, header(LEADER)), Tick(4.0), Tick(60.0))
    assert after.header is None
    assert after.lead is None
    assert after.acceptor.promised == -1


def test_a_workers_word_is_not_enough_for_a_layer_of_mine() -> None:
    """Where the bytes of its layer and of mine are the same, I must have them as well."""
    same = digest_of(PAYLOADS[0])
    item = update(parts=(same, same, digest_of(PAYLOADS[2])))
    state = replace(
        state_of(LEADER), delegates=((1, 1, WORKER),), proposals={item.digest: Proposal(0, item, b"")}
    )  # fmt: skip
    told, _ = run(state, DelegateHolds(1.0, WORKER, same, PART_BYTES[0]))
    assert same not in told.held
    afar = replace(state, held={same: PART_BYTES[0]}, afar=frozenset({same}))
    assert same in Transition(afar, 1.0).missing(item)
    stored, _ = run(afar, ObjectStored(1.0, same, PART_BYTES[0]))
    assert same not in Transition(stored, 1.0).missing(item)
    theirs = replace(afar, delegates=((0, 1, WORKER),))
    assert same not in Transition(theirs, 1.0).missing(item)


def test_a_home_that_says_nothing_is_asked_again_what_our_part_comes_to() -> None:
    """Its lead is not ready before it knows; what it knows it does not ask for."""
    state = state_of(LEADER, delegates=((1, 2, WORKER),))
    offered = Submitted(0.0, header(LEADER, delegates=((1, 2, WORKER),)))
    state, asked = step(state, offered)
    assert [effect.part for effect in asked if isinstance(effect, MeasureOwn)] == [0, 1, 2]
    for part in (0, 1):
        state, _ = step(state, OwnMeasured(0.1, HEAD.anchor, part, FIGURES))
    assert state.header is None
    state, asked = step(state, Tick(MEASURE_S - 0.1))
    assert not [effect for effect in asked if isinstance(effect, MeasureOwn)]
    state, asked = step(state, Tick(MEASURE_S))
    assert [effect.part for effect in asked if isinstance(effect, MeasureOwn)] == [2]
    state, _ = step(state, OwnMeasured(MEASURE_S + 0.1, HEAD.anchor, 2, FIGURES))
    assert state.header is not None
    assert state.header.norms == NORMS


def test_what_a_home_found_false_its_lead_does_not_vote_for() -> None:
    """It asks the home that keeps the layer, and again if nothing comes; the lead speaks once all of them have."""
    held = {digest_of(payload): len(payload) + 8 * bits for payload, bits in zip(PAYLOADS, (3, 2, 2), strict=True)}
    state = state_of(OTHERS[0], delegates=(ALL,), held=held, afar=frozenset(held))
    state = replace(state, rules=replace(state.rules, row_bytes=8))
    item = update()
    proposed = Received(4.0, LEADER, Propose(PLACE, item, proposal_signature(item)))
    state, effects = run(state, proposed)
    asked = [effect for effect in effects if isinstance(effect, CheckMean)]
    assert [(effect.part, effect.names) for effect in asked] == [(0, NAMES), (1, NAMES[:2]), (2, NAMES[::2])]
    answers = [MeanChecked(4.1, check.digest, check.part, check.contributors, "", check.basis) for check in asked]
    state, _ = run(state, *answers[:2])
    assert state.acceptor.checked is None
    state, effects = run(state, replace(proposed, now=4.0 + CHECK_AGAIN_S / 2))
    assert not [effect for effect in effects if isinstance(effect, CheckMean)]
    state, effects = run(state, replace(proposed, now=4.1 + CHECK_AGAIN_S))
    assert [effect.part for effect in effects if isinstance(effect, CheckMean)] == [2]
    fine, _ = run(state, replace(answers[2], now=7.5))
    assert fine.acceptor.checked == (0, item.digest)
    false, _ = run(state, replace(answers[2], now=7.5, fault=SUM))
    assert false.acceptor.checked is None


@pytest.mark.parametrize("delegates", [(), (ALL,)])
def test_a_lead_steps_back_rather_than_void_what_its_home_has_not(delegates: tuple[Delegate, ...]) -> None:
    """It cannot tell whether the mean or its home is missing; the next coordinator can."""
    state = lead_state(*delegates)
    (part,) = mine(state, LEADER)
    state, effects = run(state, PartReduced(5.0, PLACE, part, 7, digest_of(PAYLOADS[part])))
    for number in range(60):
        state, more = run(state, Tick(5.5 + number / 2))
        effects += more
    told = [effect.event for effect in effects if isinstance(effect, Tell)]
    aborted = [event.why for event in told if isinstance(event, RoundAborted) and event.ballot == 0]
    proposed = [
        effect for effect in effects if isinstance(effect, Send) and isinstance(effect.message, Propose)
    ]  # fmt: skip
    assert bool(proposed) != bool(delegates)
    assert not delegates or aborted == ["a home of this peer does not hold every mean"]


def test_a_lead_asks_its_homes_as_well() -> None:
    """What it accepted before a crash may lie with them alone."""
    turn = Transition(replace(state_of(LEADER), delegates=((1, 1, "w1"), (2, 2, WORKER))), 1.0)
    turn.fetch([digest_of(PAYLOADS[1])], (LEADER,))
    assert turn.state.wanted.sources == ("w1", WORKER)
