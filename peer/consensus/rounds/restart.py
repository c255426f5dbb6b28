"""Goes on without a quorum: voters seal their state, and the organiser lets those who are left continue.

A voter that saw no quorum for `restart_s` signs `Stuck`, which is on disk before it is sent. From then on it does not
vote in this instance, and it shows what it has accepted there. The organiser's node makes a `Restart` from these
messages (`peer.consensus.organiser.restart_desk`). If one of them shows an accepted update, the newest such update is
decided; otherwise their authors are the electorate of a new instance after the same anchor.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from peer.consensus.protocol import validation
from peer.consensus.protocol.block import MAX_RESTARTS, Block, Restart, Stuck
from peer.consensus.protocol.electorate import quorum
from peer.consensus.protocol.head import ChainEntry
from peer.consensus.protocol.messages import Restarted, StuckSaid
from peer.consensus.protocol.refusals import BLOCK
from peer.consensus.rounds import soundness, timeouts
from peer.consensus.rounds.interface import AskOrganiser, NeedSnapshot, PersistAcceptor
from peer.consensus.rounds.state import Acceptor
from peer.consensus.rounds.transition import Transition

DOUBLINGS = 4
LEFT_S = 10.0
"""So long those are waited for who said goodbye: somebody may come back at once."""
YIELD_EVERY_S = 60.0
"""People are told, and the others' chains looked at, no more often."""
REPEAT_S = 5.0
"""How often the organiser's node is asked, and the other voters are told."""


def poll(turn: Transition) -> None:
    """Ask whether the organiser's node is there, sign, and show the signature until there is an answer."""
    state, rules = turn.state, turn.rules
    if not rules.restart_s or not rules.organiser or rules.holds is not None or turn.me not in state.electorate:
        return
    if state.blocks or state.decided is not None or _is_decided_by_restart(state.acceptor):
        return
    if state.head.number >= MAX_RESTARTS:
        return
    missing = timeouts.out_of_sight(state, turn.now)
    alone = timeouts.lacks_quorum(state, turn.now)
    turn.set(alone_since=min(state.alone_since, turn.now) if alone else inf)
    waited = turn.now - turn.state.alone_since >= _patience_s(turn, missing) and _hears_the_organiser(turn)
    dead = len(state.stucks) > len(state.electorate) - quorum(state.electorate)
    # Who does not know its own bits cannot vote, and those who go on would wait for it again.
    if state.acceptor.stuck is None and state.state_digest and (waited or dead):
        _seal(turn)
    if (alone or turn.state.acceptor.stuck is not None) and turn.now >= state.stuck_said_at + REPEAT_S:
        _say(turn)


def _patience_s(turn: Transition, missing: frozenset[str]) -> float:
    """How long a voter waits for those that are missing: hardly at all if all of them have said that they leave."""
    state, rules = turn.state, turn.rules
    if missing <= timeouts.leavers(state):
        return min(LEFT_S, rules.restart_s)
    # Where one Restart has not helped, another needs longer: the line may be what is bad.
    return rules.restart_s * (1 << min(state.head.number, DOUBLINGS))


def _is_decided_by_restart(acceptor: Acceptor) -> bool:
    return bool(acceptor.restarts) and acceptor.restarts[-1].value is not None


def _hears_the_organiser(turn: Transition) -> bool:
    """A voter that signs must be able to go on: without the organiser's node nobody could, even if all came back."""
    return turn.now - turn.state.organiser_at < 3 * REPEAT_S


def _seal(turn: Transition) -> None:
    mine, head = turn.state.acceptor, turn.state.head
    plain = Stuck(turn.me, head.anchor, head.electorate, head.number + 1, mine.accepted, mine.certificate)
    mine = replace(mine, stuck=plain.signed(turn.rules.keys))
    turn.emit(PersistAcceptor(mine))
    turn.set(acceptor=mine, lead=None, stuck_said_at=-inf)
    missing = turn.named(sorted(timeouts.out_of_sight(turn.state, turn.now))) or "those who do not vote"
    text = f"round {head.round + 1} waits for {missing}; the organiser's node is asked to let the others go on"
    turn.alert("warning", "STUCK", text)


def _say(turn: Transition) -> None:
    stuck = turn.state.acceptor.stuck
    turn.set(stuck_said_at=turn.now)
    turn.emit(AskOrganiser(stuck))
    if stuck is not None:
        turn.send(turn.state.electorate, StuckSaid(stuck))


def on_answer(turn: Transition, restart: Restart | None) -> None:
    """The organiser's node is there, and may have let the remaining voters go on."""
    turn.set(organiser_at=turn.now)
    if restart is not None:
        on_restart(turn, turn.rules.organiser, Restarted(restart))


def on_stuck(turn: Transition, sender: str, message: StuckSaid) -> None:
    """Accepted for its signature, whoever passes it on; a peer that is behind is told how the run went on."""
    stuck, state = message.stuck, turn.state
    if stuck.anchor != state.head.anchor:
        return
    known = state.acceptor.restarts
    if stuck.number <= state.head.number or (known and known[-1].number == stuck.number):
        tell(turn, sender)
        return
    fault = validation.fault_of_stuck(turn.rules.keys, state.head, stuck)
    if fault:
        turn.refuse(sender, BLOCK, fault)
        return
    turn.set(stucks={**state.stucks, stuck.voter: stuck})


def tell(turn: Transition, peer: str) -> None:
    """Tell those that stand at my anchor how the run went on."""
    for restart in turn.state.acceptor.restarts:
        turn.send((peer,), Restarted(restart))


def on_restart(turn: Transition, sender: str, message: Restarted) -> None:
    """Written to disk before anybody acts on it."""
    restart, state = message.restart, turn.state
    known = state.acceptor.restarts
    entry = next((item for item in state.trail if item.before.anchor == restart.anchor), None)
    if entry is not None and not validation.fault_of_restart(
        turn.rules.keys, turn.rules.organiser, entry.before, restart
    ):
        _yield_to(turn, entry, restart)
        return
    if restart.anchor != state.head.anchor or restart.number != state.head.number + 1 or restart in known:
        return
    if known and known[-1].number == restart.number:
        turn.alert("error", "TWO_RESTARTS", f"the organiser signed two Restarts of round {state.head.round + 1}")
        return
    fault = validation.fault_of_restart(turn.rules.keys, turn.rules.organiser, state.head, restart)
    if fault:
        turn.refuse(sender, BLOCK, fault)
        return
    if restart.value is not None:
        mine = replace(state.acceptor, restarts=(*known, restart))
        turn.emit(PersistAcceptor(mine))
        turn.set(acceptor=mine, lead=None, exchange=None)
        return
    head = state.head.restarted(restart)
    mine = Acceptor(head.anchor, head.instance, restarts=(*known, restart))
    turn.emit(PersistAcceptor(mine))
    turn.begin_instance(head, mine)
    turn.say_head()
    turn.alert("warning", "RESTART", f"round {head.round + 1} goes on with {', '.join(head.electorate)}")


def on_other_branch(turn: Transition, block: Block) -> None:
    """A block that follows an earlier anchor of mine and is not on my chain: its voters went on by a Restart, or more
    than f voters lie."""
    entry = next((item for item in turn.state.trail if item.before.anchor == block.update.parent), None)
    if entry is None or entry.block.update.digest == block.update.digest:
        return
    if validation.check_block(turn.rules, entry.before, block):
        return
    if block.restarts and not entry.block.restarts:
        _yield_to(turn, entry, block.restarts[0])
        return
    both = {vote.voter for vote in block.votes} & {vote.voter for vote in entry.block.votes}
    turn.alert(
        "error",
        "TWO_DECISIONS",
        f"round {block.update.round} was decided twice; these voted for both: {', '.join(sorted(both)) or 'nobody'}",
    )


def _yield_to(turn: Transition, entry: ChainEntry, restart: Restart) -> None:
    """A Restart outranks a certificate at its anchor that it does not carry: it was made when a quorum was gone for
    long, and the holder of the certificate did not show it. What was learned since is kept and contributed again."""
    made = entry.block
    if restart in made.restarts or (restart.value is not None and restart.value[1] == made.update.digest):
        return
    if turn.now - turn.state.yielded_at < YIELD_EVERY_S:
        return  # perhaps nobody went on by it, and somebody who sealed shows it again and again
    turn.set(yielded_at=turn.now)
    for stuck in restart.stuck:
        ballots = [vote.ballot for vote in made.votes if vote.voter == stuck.voter]
        if ballots and (stuck.accepted is None or stuck.accepted[0] < max(ballots)):
            soundness.catch(turn, stuck.voter, -1, f"it hid what it had accepted for round {made.update.round}")
    why = f"the organiser let {', '.join(restart.electorate)} go on before round {made.update.round} was known to them"
    turn.alert("warning", "OUTRANKED", f"round {made.update.round} and what follows it do not count: {why}")
    turn.emit(NeedSnapshot(why))


def block_if_decided(turn: Transition) -> Block | None:
    """Commit what a Restart has decided, as soon as its bytes are here."""
    state = turn.state
    restarts = state.acceptor.restarts
    if not restarts or restarts[-1].value is None:
        return None
    _, digest = restarts[-1].value
    sources = [stuck.voter for stuck in restarts[-1].stuck if stuck.accepted is not None]
    sources += [vote.voter for vote in restarts[-1].certificate]
    proposal = state.proposals.get(digest)
    missing = {digest} if proposal is None else turn.missing(proposal.update)
    if missing:
        if not set(missing) <= set(state.wanted.digests):
            turn.fetch(missing, sources)
        return None
    assert proposal is not None
    return Block(proposal.update, restarts[-1].certificate, restarts)
