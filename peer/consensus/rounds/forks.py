"""Two sides went on without each other: all end on one branch, by a rule that reads only the chain.

The heavier branch wins: signed contributions are counted, of those who had earned a vote where the
branches part. Between equal ones the branch whose first differing update is firm, then the one where
its digest is lower. The losers undo back to where the branches part and apply the other updates; what
the undone ones held of a peer's own work returns to its residual. Nothing older than `keep_rounds` is
undone. Of blocks that only wait for their bytes there is nothing to undo: a branch that wins takes
their place, for those who made them may have left them, and then nobody holds the bytes any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from peer.consensus.protocol import validation
from peer.consensus.protocol.block import Block
from peer.consensus.protocol.head import ChainEntry, ChainHead
from peer.consensus.protocol.membership import trusted
from peer.consensus.protocol.messages import FETCH_MOST
from peer.consensus.protocol.refusals import BLOCK, TIME
from peer.consensus.rounds import acceptor
from peer.consensus.rounds.interface import PersistAcceptor, Rollback
from peer.consensus.rounds.state import CandidateFork
from peer.consensus.rounds.timeouts import HEARD_S
from peer.consensus.rounds.transition import Transition

TOO_EARLY = "those who took over cannot have waited for that as long as they must, by the clock of this machine"


def fork_point(turn: Transition, blocks: tuple[Block, ...]) -> tuple[ChainEntry, tuple[Block, ...]] | None:
    """The step of my chain beside which these blocks leave it, and those that do; None if they do not fork off."""
    mine = {step.before.anchor: step for step in (*turn.state.trail, *_queue(turn))}
    for index, block in enumerate(blocks):
        step = mine.get(block.update.parent)
        if step is not None and block.update.digest != step.block.update.digest:
            return step, blocks[index:]
    return None


def _queue(turn: Transition) -> Iterator[ChainEntry]:
    """The blocks that wait for their bytes, each with the head before it."""
    tip = turn.state.head
    for block in turn.state.blocks:
        yield ChainEntry(before=tip, block=block)
        tip = tip.after(block.update)


def evaluate_fork(turn: Transition, source: str, step: ChainEntry, blocks: tuple[Block, ...]) -> tuple[bool, bool]:
    """Change over to this branch if it wins, or queue it in the place of what waits there.

    Returns whether every block is genuine, and whether it won.
    """
    tip, genuine, honest = step.before, [], True
    for block in blocks:
        fault = validation.check_block(turn.rules, tip, block)
        honest = not fault
        if fault:
            turn.refuse(source, BLOCK, fault)
            break
        if not validation.timely(turn.wall_s, block.update.time):
            turn.refuse(block.update.coordinator, TIME, turn.how_far_ahead(block.update.time))
            break
        if not validation.may_be_over(turn.rules, turn.wall_s, tip, block):
            turn.refuse(block.update.coordinator, TIME, TOO_EARLY)
            break
        tip = tip.after(block.update)
        genuine.append(block)
    if not genuine or not _wins(turn, step, tuple(genuine)):
        return honest, False
    known = turn.state.branch
    if step.before.round >= turn.state.head.round:
        waiting = turn.state.blocks[: step.before.round - turn.state.head.round]
        turn.set(blocks=(*waiting, *genuine), last=tip, block_source=source, strangers={})
    elif known is None or tip.weight >= known.tip.weight:
        turn.set(branch=CandidateFork(trunk=step.before, blocks=tuple(genuine), tip=tip, source=source))
        switch_if_stored(turn)
    return honest, True


def _wins(turn: Transition, step: ChainEntry, blocks: tuple[Block, ...]) -> bool:
    """Larger W since the branches parted, of those who had earned a vote there: identities cost nothing."""
    known = trusted(step.before)
    steps = (*turn.state.trail, *_queue(turn))
    mine = [later.block for later in steps if later.before.round >= step.before.round]
    ours, theirs = mine[0], blocks[0]
    return (_work(blocks, known), theirs.firm, ours.update.digest) > (
        _work(mine, known),
        ours.firm,
        theirs.update.digest,
    )


def _work(blocks: Iterable[Block], known: Collection[str]) -> int:
    """Contributions that these peers signed."""
    return sum(header.peer in known for block in blocks for header in block.update.members)


def switch_if_stored(turn: Transition) -> bool:
    """Undo, and queue the blocks of the winning branch, once the bytes of its first block are here."""
    branch = turn.state.branch
    if branch is None:
        return False
    missing = turn.missing(branch.blocks[0].update)
    if missing:
        turn.fetch(missing[:FETCH_MOST], (branch.source, *(vote.voter for vote in branch.blocks[0].votes)))
        return False
    if not validation.fits(turn.rules, turn.state.held, branch.blocks[0].update):
        turn.set(branch=None)
        return False
    undone = turn.state.head.round - branch.trunk.round
    turn.alert(
        "warning",
        "FORK",
        f"others went on apart after round {branch.trunk.round} and did more: this peer changes over to them, undoes "
        f"{undone} of its rounds, and keeps its own work of them",
    )
    rollback_to(turn, branch.trunk)
    turn.set(blocks=branch.blocks, last=branch.tip, block_source=branch.source, branch=None, strangers={})
    return True


FUTURE_S = 30.0
"""A peer that is ready for so long leaves an anchor whose date lies ahead of its clock."""


def leave_future(turn: Transition) -> None:
    """Stand before the updates that are dated ahead of my clock again: nothing could follow them until then.

    No honest voter accepts one, so a majority had wrong clocks, or lied. All who wait with me do the same, and decide
    anew what follows, as if nothing had been accepted: the one case in which two firm updates follow an anchor. While
    anybody is further, it is my clock that is wrong.
    """
    state = turn.state
    if validation.timely(turn.wall_s, state.head.time) or turn.stuck_s() < FUTURE_S or state.blocks:
        return
    if any(said.round > state.head.round and turn.now - at < HEARD_S for said, at in state.heard.values()):
        return
    steps = (step for step in reversed(state.trail) if validation.timely(turn.wall_s, step.before.time))
    last = next(steps, None)
    if last is None:
        return
    by = last.block.update.coordinator
    turn.alert("warning", "FUTURE", f"{by} dated round {last.before.round + 1} ahead of all clocks: it is decided anew")
    rollback_to(turn, last.before)
    _forget_accepted(turn)


def _forget_accepted(turn: Transition) -> None:
    """Of what I accepted at this anchor nothing binds me any more; what I promised does."""
    state, anchor = turn.state, turn.state.head.anchor
    others = {
        name: replace(other, accepted=None) if other.anchor == anchor else other
        for name, other in state.acceptors.items()
    }
    turn.set(acceptor=replace(state.acceptor, accepted=None), acceptors=others)
    for forgetful in (turn.state.acceptor, *(other for other in others.values() if other.anchor == anchor)):
        turn.emit(PersistAcceptor(forgetful))


def rollback_to(turn: Transition, head: ChainHead) -> None:
    """Stand at an earlier anchor of my chain again."""
    state = turn.state
    turn.emit(Rollback(head))
    turn.set(
        ancestors={anchor: round for anchor, round in state.ancestors.items() if round <= head.round},
        trail=tuple(step for step in state.trail if step.before.round < head.round),
        applied_round=min(state.applied_round, head.round),
    )  # fmt: skip
    acceptor.reset_to(turn, head)
