"""What a newcomer believes of a chain that it did not see: certificates from the genesis on, and no headcount.

A vote names its instance, which is H(anchor, electorate): as long as the electorate stays the same one certificate, the
newest, says all. So the way from the genesis is the blocks that changed the electorate, and the newest block.
"""

from __future__ import annotations

from collections.abc import Sequence

from peer.consensus.protocol.block import Block
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.rules import Rules
from peer.consensus.protocol.validation import after_restarts, fault_of_votes


def follow(rules: Rules, genesis: ChainHead, way: Sequence[Block]) -> tuple[str, ...]:
    """Who votes after the last of these blocks. Raises ValueError if one is not decided by those before it."""
    electorate, round, roster = genesis.electorate, genesis.round, genesis.roster
    for block in way:
        update = block.update
        if update.round <= round:
            raise ValueError("its blocks are not in order")
        before = ChainHead(
            anchor=update.parent, round=update.round - 1, weight=0, electorate=electorate, members=electorate,
            roster=roster,
        )  # fmt: skip
        before, phase, fault = after_restarts(rules.keys, rules.organiser, before, block)
        fault = fault or fault_of_votes(rules.keys, before, block.votes, update.digest, phase, led=False)
        if fault:
            raise ValueError(f"round {update.round}: {fault}")
        electorate, round, roster = update.elect, update.round, update.roster
    return electorate


def way_of(blocks: Sequence[Block], electorate: tuple[str, ...]) -> tuple[Block, ...]:
    """Those of a chain that a newcomer needs: where the electorate changes, and the newest."""
    needed = []
    for block in blocks:
        if block.update.elect != electorate or block.restarts or block is blocks[-1]:
            needed.append(block)
        electorate = block.update.elect
    return tuple(needed)
