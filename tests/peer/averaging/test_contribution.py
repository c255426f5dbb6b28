"""A contribution on disk: written whole, found again, provable part by part."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from peer.averaging.codec import Codec
from peer.averaging.contribution import Contribution, Effort, keep_newest, write_contribution
from peer.rounds import merkle
from peer.rounds.layout import cut
from peer.rounds.names import digest, digest_of

PARTS = cut((100, 30, 7), 64)
CODEC = Codec("float16")
ANCHOR = digest("anchor")
EFFORT = Effort(1000, 20, ((3, 0, 8), (5, 2, 4)))
BALANCE = np.linspace(-1, 1, 137, dtype=np.float32)


def write(folder: Path, anchor: bytes = ANCHOR, balance: np.ndarray = BALANCE) -> None:  # type: ignore[type-arg]
    write_contribution(folder, anchor, balance, PARTS, CODEC, EFFORT)


def test_what_was_written_is_found(tmp_path: Path) -> None:
    """Bytes, effort and anchor."""
    write(tmp_path)
    found = Contribution.find(tmp_path, ANCHOR, PARTS, CODEC)
    assert found is not None
    assert found.effort == EFFORT
    for number, part in enumerate(PARTS):
        assert found.payload(number) == CODEC.encode(BALANCE[part.start : part.start + part.size])
    assert Contribution.find(tmp_path, digest("other"), PARTS, CODEC) is None


def test_every_part_is_proven_by_its_path(tmp_path: Path) -> None:
    """To the root in the pledge."""
    write(tmp_path)
    found = Contribution.find(tmp_path, ANCHOR, PARTS, CODEC)
    assert found is not None
    pledge = found.pledge("me")
    assert (pledge.peer, pledge.anchor, pledge.tokens, pledge.leaving) == ("me", ANCHOR, 1000, False)
    for number in range(len(PARTS)):
        leaf = digest_of(found.payload(number))
        assert merkle.proves(pledge.root, leaf, number, found.path(number), len(PARTS))


def test_a_crash_before_the_pledge_leaves_no_contribution(tmp_path: Path) -> None:
    """The pledge is written last."""
    write(tmp_path)
    (tmp_path / f"{ANCHOR.hex()}.pledge").unlink()
    assert Contribution.find(tmp_path, ANCHOR, PARTS, CODEC) is None


def test_a_mapped_contribution_keeps_its_bytes(tmp_path: Path) -> None:
    """Writing the same anchor again neither changes nor cuts what the link has mapped."""
    write(tmp_path)
    found = Contribution.find(tmp_path, ANCHOR, PARTS, CODEC)
    assert found is not None
    before = [found.payload(number) for number in range(len(PARTS))]
    write(tmp_path, balance=2 * BALANCE)
    assert [found.payload(number) for number in range(len(PARTS))] == before


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    """By time of writing; both files of the others go."""
    anchors = [digest(number) for number in range(5)]
    for second, anchor in enumerate(anchors):
        write(tmp_path, anchor)
        os.utime(tmp_path / f"{anchor.hex()}.pledge", (second, second))
    keep_newest(tmp_path, 2)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {f"{anchor.hex()}.{kind}" for anchor in anchors[-2:] for kind in ("parts", "pledge")}
