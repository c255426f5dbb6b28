"""Whatever list of a message is longer or shorter than what it is held against: a refusal of it, and nothing else."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from peer.consensus.aggregation.peer_history import NOTHING
from peer.consensus.protocol.block import ContributionHeader, Restart, Stuck, Vote
from peer.consensus.protocol.frame_reader import ON_THE_WIRE, FrameReader, at_once
from peer.consensus.protocol.messages import (
    _TYPES,
    EquivocationProof,
    MeanData,
    Message,
    Nack,
    Objection,
    Prepare,
    Promise,
    Propose,
    Start,
    VoteCast,
    encode,
)
from peer.consensus.protocol.refusals import MESSAGE
from peer.consensus.rounds.interface import Received, Tell
from peer.consensus.rounds.machine import step
from peer.consensus.rounds.state import State
from peer.schema.events import MessageRefused
from peer.testing.memory_peer import ModelKeys
from tests.fields.extremes import NotSaid
from tests.fields.wrong_lengths import LENGTHS, LONGER, SHORTER, WrongLengths, lists_of
from tests.peer.consensus.rounds.build import HEAD, NAMES, block, header, update, vote
from tests.peer.consensus.rounds.hostile import CROWD, RECORD, Hostile, check_bounds

ORGANISER = "o"
OFTEN, AT_ONCE, EVENTS, SEEDS = 2, 8, 60, 35
"""How often each is said at least; how many are made of one message, of how many events, of how many rounds."""
CASES = [(kind, path, length) for kind in _TYPES.values() for path in lists_of(kind) for length in LENGTHS]
OFTEN_EMPTY = {"delegates", "basis", "away", "took", "scales", "pulls", "known", "out", "certificate", "signature"}
"""Some of these may never have come shorter than they are."""
FIXED = {Prepare, Nack, VoteCast, EquivocationProof, Objection}
"""All that has a length in them has one alone, so that their declarations refuse every other."""


def samples() -> dict[type, object]:
    """What lists that are mostly empty may have."""
    named = vote("p1", update(), phase=1)
    stuck = Stuck("p1", HEAD.anchor, NAMES, 1, (0, named.update), (named,)).signed(ModelKeys("p1"))
    restart = Restart(HEAD.anchor, 1, (stuck,), True).signed(ModelKeys(ORGANISER))
    tenure = update().tenures[0]
    made = (header("p1"), named, stuck, restart, replace(block(), restarts=(restart,)), RECORD, NOTHING, tenure)
    return {type(one): one for one in made}


def sender_of(message: Message, state: State, dice: Random) -> str:
    """Who is listened to, if it is said by that one alone."""
    match message:
        case Promise(header=ContributionHeader(peer=author)) | VoteCast(vote=Vote(voter=author)):
            return author
        case MeanData(reducer=author):
            return author
        case Propose(place=place) | Start(place=place):
            return state.head.leader(place.ballot)
    return dice.choice(CROWD)


def hear(state: State, sender: str, message: Message, now: float) -> bool:
    """Whether it comes to the machine, which is as well afterwards."""
    heard = list[Message]()
    FrameReader(lambda: state, ON_THE_WIRE, lambda _, said: heard.append(said), at_once).read(sender, encode(message))
    for said in heard:
        after, effects = step(state, Received(now, sender, said))
        check_bounds(after)
        told = [effect.event for effect in effects if isinstance(effect, Tell)]
        raised = [event.why for event in told if isinstance(event, MessageRefused) and event.rule == MESSAGE]
        assert not raised, f"{said} raised: {raised}"
    return bool(heard)


@pytest.mark.slow
def test_each_list_of_each_message_in_each_wrong_length_raises_nothing() -> None:
    """Of whatever a round has come to, and signed by whoever signs it."""
    wrong, dice = WrongLengths(lambda author: ModelKeys(author or ORGANISER), samples()), Random(1)
    left, heard = Counter(dict.fromkeys(CASES, OFTEN)), Counter[type[Message]]()
    for seed in range(SEEDS):
        hostile = Hostile(seed)
        hostile.state = replace(hostile.state, rules=replace(hostile.state.rules, organiser=ORGANISER))
        for _ in range(EVENTS):
            hostile.run(1)
            message = hostile._message()
            mine = [case for case in left if case[0] is type(message)]
            for case in dice.sample(mine, min(AT_ONCE, len(mine))):
                with suppress(NotSaid):
                    said = wrong.said(message, *case[1:])
                    sender = sender_of(said, hostile.state, dice)
                    heard[type(message)] += hear(hostile.state, sender, said, hostile.now)
                    left -= Counter([case])
    assert {path[-1] for _, path, length in left if length in SHORTER} <= OFTEN_EMPTY
    assert not [case for case in left if case[2] in LONGER]
    assert {kind for kind in heard if heard[kind]} == set(_TYPES.values()) - FIXED, "these come to the machine"
