"""A contribution on disk: written whole, found again, provable part by part."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from dht.errors import BadInput
from peer.consensus.codec.codec import Codec
from peer.consensus.protocol import merkle
from peer.consensus.protocol.encoding import digest, digest_of
from peer.consensus.protocol.layout import cut
from peer.node.store.contributions import Contribution, WorkStats, prune_contributions, write_contribution

PARTS = cut((100, 30, 7), 64)
CODEC = Codec("float16")
ANCHOR = digest("anchor")
EFFORT = WorkStats(1000, 20, ((3, 0, 8), (5, 2, 4)))
BALANCE = np.linspace(-1, 1, 137, dtype=np.float32)


def write(folder: Path, anchor: bytes = ANCHOR, residual: np.ndarray = BALANCE) -> None:  # type: ignore[type-arg]
    payloads = [CODEC.encode(residual[part.start : part.start + part.size]) for part in PARTS]
    write_contribution(folder, anchor, payloads, EFFORT)


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
    """To the root in the header."""
    write(tmp_path)
    found = Contribution.find(tmp_path, ANCHOR, PARTS, CODEC)
    assert found is not None
    header = found.header("me")
    assert (header.peer, header.anchor, header.tokens, header.leaving) == ("me", ANCHOR, 1000, False)
    for number in range(len(PARTS)):
        leaf = digest_of(found.payload(number))
        assert merkle.proves(header.root, leaf, number, found.path(number), len(PARTS))


def test_a_crash_before_the_pledge_leaves_no_contribution(tmp_path: Path) -> None:
    """The header is written last."""
    write(tmp_path)
    (tmp_path / f"{ANCHOR.hex()}.header").unlink()
    assert Contribution.find(tmp_path, ANCHOR, PARTS, CODEC) is None


def test_a_mapped_contribution_keeps_its_bytes(tmp_path: Path) -> None:
    """Writing the same anchor again neither changes nor cuts what the link has mapped."""
    write(tmp_path)
    found = Contribution.find(tmp_path, ANCHOR, PARTS, CODEC)
    assert found is not None
    before = [found.payload(number) for number in range(len(PARTS))]
    write(tmp_path, residual=2 * BALANCE)
    assert [found.payload(number) for number in range(len(PARTS))] == before


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    """By time of writing; both files of the others go."""
    anchors = [digest(number) for number in range(5)]
    for second, anchor in enumerate(anchors):
        write(tmp_path, anchor)
        os.utime(tmp_path / f"{anchor.hex()}.header", (second, second))
    prune_contributions(tmp_path, 2, anchors[-1])
    assert names_of(tmp_path) == anchors[-2:]


def test_what_was_just_written_is_kept_whatever_the_clock_says(tmp_path: Path) -> None:
    """A machine without a battery wakes up in the past: its contribution of this round must not go at once."""
    anchors = [digest(number) for number in range(4)]
    for second, anchor in zip((10, 11, 12, 3), anchors, strict=True):
        write(tmp_path, anchor)
        os.utime(tmp_path / f"{anchor.hex()}.header", (second, second))
    for rounds, kept in ((3, anchors[1:]), (1, anchors[3:])):
        prune_contributions(tmp_path, rounds, anchors[-1])
        assert names_of(tmp_path) == kept


def names_of(folder: Path) -> list[bytes]:
    """The anchors whose contribution is there, both files of it, in order of `digest(0)`, `digest(1)`…"""
    found = {path.name for path in folder.iterdir()}
    anchors = [digest(number) for number in range(5) if f"{digest(number).hex()}.parts" in found]
    assert found == {f"{anchor.hex()}.{kind}" for anchor in anchors for kind in ("parts", "header")}
    return anchors


@pytest.mark.parametrize("suffix", [".parts", ".header"])
@pytest.mark.parametrize("damage", ["empty", "cut", "flipped"])
def test_damage_is_one_clear_line(tmp_path: Path, suffix: str, damage: str) -> None:
    """Before a byte of it is offered again."""
    write(tmp_path)
    path = tmp_path / f"{ANCHOR.hex()}{suffix}"
    content = path.read_bytes()
    flipped = content[:-1] + bytes([content[-1] ^ 1])
    path.write_bytes({"empty": b"", "cut": content[:-1], "flipped": flipped}[damage])
    with pytest.raises(BadInput, match=r"\.(parts|header) is damaged"):
        find(tmp_path).check()


def find(folder: Path) -> Contribution:
    found = Contribution.find(folder, ANCHOR, PARTS, CODEC)
    assert found is not None
    return found


def test_what_a_crash_left_is_swept(tmp_path: Path) -> None:
    """Parts without a header, half-written files."""
    write(tmp_path)
    (tmp_path / f"{digest('crashed').hex()}.parts").write_bytes(b"whole")
    (tmp_path / f"{digest('crashed').hex()}.parts.new").write_bytes(b"half")
    prune_contributions(tmp_path, 3, ANCHOR)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{ANCHOR.hex()}.header", f"{ANCHOR.hex()}.parts"]
    find(tmp_path).check()
