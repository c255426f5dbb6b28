"""Two sides went on without each other: all end on one branch, by a rule that reads only the chain.

The heavier branch wins: signed contributions are counted, of those who were known where the
branches part. Between equal ones the branch whose first differing update is firm, then the one where
its digest is lower. The losers undo back to where the branches part and apply the other updates; what
the undone ones held of a peer's own work returns to its residual. Nothing older than `keep_rounds` is
undone. Of blocks that only wait for their bytes there is nothing to undo: a branch that wins takes
their place, for those who made them may have left them, and then nobody holds the bytes any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from peer.protocol import validation
from peer.protocol.block import Block
from peer.protocol.head import ChainEntry, ChainHead
from peer.protocol.messages import FETCH_MOST
from peer.refusals import BLOCK, TIME
from peer.rounds import acceptor
from peer.rounds.interface import Rollback
from peer.rounds.state import CandidateFork
from peer.rounds.transition import Transition

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
        if not validation.timely(turn.rules, turn.wall_s, block.update):
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
    """Larger W since the branches parted, of those who were known there: identities cost nothing."""
    known = {*step.before.electorate, *step.before.members}
    steps = (*turn.state.trail, *_queue(turn))
    mine = [later.block for later in steps if later.before.round >= step.before.round]
    ours, theirs = mine[0], blocks[0]
    return (_work(blocks, known), theirs.firm, ours.update.digest) > (
        _work(mine, known),
        ours.firm,
        theirs.update.digest,
    )


def _work(blocks: Iterable[Block], known: set[str]) -> int:
    """Contributions that known peers signed."""
    return sum(header.peer in known for block in blocks for header in block.update.members)


def switch_if_stored(turn: Transition) -> bool:
    """Undo, and queue the blocks of the winning branch, once the bytes of its first block are here."""
    branch = turn.state.branch
    if branch is None:
        return False
    missing = validation.missing_parts(turn.state.held, branch.blocks[0].update)
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
