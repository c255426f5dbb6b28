"""Whether a peer needs a snapshot, and which one it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.network.sync.chain_status import ASK_MOST, ChainStatus, SnapshotOffer, query_status, whom_to_ask
from peer.network.sync.snapshot_sync import is_shorter, offered
from tests.peer.consensus.rounds.build import HEAD
from tests.peer.network.sync.donors import Network, write_snapshot


def offer(round: int, content: bytes = b"m") -> SnapshotOffer:
    return SnapshotOffer(round=round, anchor=b"a" * 32, manifest=content * 32, vector_bytes=800)


def standing(*offers: SnapshotOffer) -> ChainStatus:
    return ChainStatus(round=40, shared=-1, offers=offers)


def test_the_newest_snapshots_come_first_and_then_those_of_most_donors() -> None:
    """How many offer one says nothing of it, but the download is faster."""
    old, new, other = offer(16), offer(32), offer(32, b"x")
    found = offered({"a": standing(old, new), "b": standing(old, other), "c": standing(old, other)}, range(2))
    assert [(item.offer, item.donors) for item in found] == [
        (other, ("b", "c")), (new, ("a",)), (old, ("a", "b", "c")),
    ]  # fmt: skip
    assert offered({"a": standing()}, range(2)) == []


@pytest.mark.parametrize(("round_bytes", "shorter"), [(25, False), (26, True)])
def test_a_snapshot_is_taken_where_it_is_less_than_all_updates(round_bytes: int, shorter: bool) -> None:
    """800 bytes and 8 updates, or 40 updates."""
    assert is_shorter(offer(32), 40, round_bytes) is shorter


async def test_donors_say_what_they_share_and_have(tmp_path: Path) -> None:
    """Who is gone, talks nonsense or has no chain yet is left out, and so is a snapshot that is not on its
    chain, or after which nothing is decided yet."""
    network = Network()
    old = network.add(tmp_path, "old", 6, 2, 4)
    network.add(tmp_path, "young", 1)
    network.add(tmp_path, "left", 3)
    write_snapshot(tmp_path / "left", old, 4)
    write_snapshot(tmp_path / "old", old, 6)

    async def nonsense(peer: str, request: bytes) -> bytes | None:
        return b"\xc1"

    async def nothing(peer: str, request: bytes) -> bytes | None:
        return None

    network.answers |= {"mad": {"chain-status": nonsense}, "new": {"chain-status": nothing}}
    anchors = (old.heads[5].anchor, old.heads[3].anchor)
    found = await query_status(network, ["gone", *network.answers], anchors)
    assert {peer: (item.round, item.shared) for peer, item in found.items()} == {
        "old": (6, 5), "young": (1, -1), "left": (3, 3),
    }  # fmt: skip
    assert [item.round for item in found["old"].offers] == [4]
    assert found["left"].offers == found["young"].offers == ()
    assert (await query_status(network, ["young"], (HEAD.anchor,)))["young"].shared == 0


def test_names_that_cost_nothing_do_not_keep_those_who_are_known_from_being_asked() -> None:
    strangers = [f"stranger{number}" for number in range(8 * ASK_MOST)]
    asked = [whom_to_ask([*strangers, "known"], ("gone", "known")) for _ in range(8)]
    assert {(len(each), each[0]) for each in asked} == {(ASK_MOST, "known")}
    assert len({peer for each in asked for peer in each}) > 2 * ASK_MOST, "others each time"
