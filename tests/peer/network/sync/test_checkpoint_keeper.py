"""A peer hears of the organiser's checkpoints from anybody, believes what is signed, and gives the newest to others."""

from __future__ import annotations

from pathlib import Path

import pytest

from dht.access import RejectCode
from dht.errors import BadInput, Unreachable
from peer.consensus.organiser.checkpoints import QUESTION, ChainCheckpoint, answer_to
from peer.consensus.protocol.block import Roster
from peer.network.sync.checkpoint_keeper import FILE, CheckpointKeeper
from peer.testing.memory_peer import ModelKeys

ORGANISER = "organiser"
KEYS = ModelKeys("me")


def checkpoint(round: int, signer: str = ORGANISER, anchor: bytes = b"a" * 32) -> ChainCheckpoint:
    return ChainCheckpoint(round, anchor, ("p0", "p1"), Roster(0, ("p0",))).signed(ModelKeys(signer))


class Others:
    """Who gives which checkpoint; nobody else can be reached."""

    def __init__(self, **given: ChainCheckpoint) -> None:
        self.given, self.refused = given, list[tuple[str, str]]()

    async def ask(self, peer: str, name: str, timeout_s: float, most: int = 0, request: bytes = b"") -> bytes | None:
        assert name == QUESTION
        if peer not in self.given:
            raise Unreachable(peer)
        return answer_to(request, self.given[peer])

    def refuse(self, code: RejectCode, who: str, why: str) -> None:
        self.refused.append((who, why))


def keeper(others: Others, folder: Path, oldest: tuple[int, bytes] = (0, b"")) -> CheckpointKeeper:
    return CheckpointKeeper(others, KEYS, ORGANISER, folder, others.refuse, oldest)


async def test_the_newest_that_is_signed_counts_whoever_gives_it(tmp_path: Path) -> None:
    others = Others(a=checkpoint(3), b=checkpoint(7), liar=checkpoint(9, signer="liar"))
    mine = keeper(others, tmp_path)
    await mine.hear(["a", "b", "liar", "gone"])
    assert mine.newest == checkpoint(7)
    assert others.refused == [("liar", "it gives what is no checkpoint: the organiser has not signed it")]
    assert await mine.answer("somebody", (6).to_bytes(8, "big")) == checkpoint(7).to_bytes()
    assert await mine.answer("somebody", (7).to_bytes(8, "big")) is None
    assert keeper(others, tmp_path).newest == checkpoint(7), "it lies in the folder"


async def test_an_older_one_than_the_invite_names_counts_for_nothing(tmp_path: Path) -> None:
    """Nor is it heard of: who came by an earlier invite has no other, and does not lie."""
    others = Others(a=checkpoint(3), b=checkpoint(5, anchor=b"b" * 32))
    mine = keeper(others, tmp_path, (5, b"a" * 32))
    await mine.hear(["a", "b"])
    assert mine.newest is None
    assert mine.is_due
    assert others.refused == [("b", "it gives what is no checkpoint: the invite names another one, of round 5")]
    others.given[ORGANISER] = checkpoint(5)
    await mine.hear([])
    assert mine.newest == checkpoint(5)
    assert not mine.is_due


async def test_a_newer_invite_in_the_same_folder_outdates_what_lies_there(tmp_path: Path) -> None:
    """People are told to ask for one where two chains part."""
    others = Others(a=checkpoint(3))
    await keeper(others, tmp_path).hear(["a"])
    again = keeper(others, tmp_path, (5, b"a" * 32))
    assert again.is_due
    others.given["a"] = checkpoint(7)
    await again.hear(["a"])
    assert keeper(others, tmp_path, (5, b"a" * 32)).newest == checkpoint(7)


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"nonsense")
    with pytest.raises(BadInput, match=f"{tmp_path / FILE} is damaged"):
        keeper(Others(), tmp_path)
