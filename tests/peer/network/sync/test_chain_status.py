"""Whether a peer needs a snapshot, and which one it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.network.sync.chain_status import ChainStatus, SnapshotChoice, SnapshotOffer, query_status
from peer.network.sync.snapshot_sync import choose_snapshot, is_cut_off, is_shorter
from tests.peer.consensus.rounds.build import HEAD
from tests.peer.network.sync.donors import Network, write_snapshot


def offer(round: int, content: bytes = b"m") -> SnapshotOffer:
    return SnapshotOffer(round=round, anchor=b"a" * 32, manifest=content * 32, vector_bytes=800)


def standing(*offers: SnapshotOffer, round: int = 40, shared: int = -1) -> ChainStatus:
    return ChainStatus(round=round, weight=3 * round, shared=shared, offers=offers)


LAYERS = range(2)


def test_the_newest_snapshot_on_which_two_agree() -> None:
    """One that a single peer offers may be anything; if only one peer answers there is no choice."""
    old, new = offer(16), offer(32)
    three = {"a": standing(old, new), "b": standing(old, new), "c": standing(old)}
    assert choose_snapshot(three, LAYERS) == SnapshotChoice(offer=new, donors=("a", "b"))
    assert choose_snapshot({"a": standing(old, new), "b": standing(old), "c": standing()}, LAYERS) == SnapshotChoice(
        offer=old, donors=("a", "b")
    )
    assert choose_snapshot({"a": standing(old, new)}, LAYERS) == SnapshotChoice(offer=new, donors=("a",))
    assert choose_snapshot({"a": standing(old), "b": standing()}, LAYERS) is None
    assert choose_snapshot({}, LAYERS) is None


def test_those_that_disagree_need_a_majority() -> None:
    """Two against two decide nothing: an older one that all have is taken."""
    old, mine, theirs = offer(16), offer(32, b"x"), offer(32, b"y")
    two = {"a": standing(old, mine), "b": standing(old, mine), "c": standing(old, theirs), "d": standing(old, theirs)}
    chosen = choose_snapshot(two, LAYERS)
    assert chosen is not None
    assert chosen.offer == old
    chosen = choose_snapshot({**two, "e": standing(old, theirs)}, LAYERS)
    assert chosen == SnapshotChoice(offer=theirs, donors=("c", "d", "e"))
    assert choose_snapshot({**two, "e": standing(old, theirs)}, LAYERS, frozenset({theirs.manifest})) == SnapshotChoice(
        offer=old, donors=("a", "b", "c", "d", "e")
    )


def test_cut_off_is_who_shares_no_anchor_with_anybody_that_did_more() -> None:
    """One peer that still has the blocks is enough; peers behind me do not count."""
    assert is_cut_off({"a": standing(), "b": standing()}, my_weight=10)
    assert not is_cut_off({"a": standing(), "b": standing(shared=0)}, my_weight=10)
    assert not is_cut_off({"a": standing(round=1)}, my_weight=10)
    assert not is_cut_off({}, my_weight=0)


@pytest.mark.parametrize(("round_bytes", "shorter"), [(25, False), (26, True)])
def test_a_snapshot_is_taken_where_it_is_less_than_all_updates(round_bytes: int, shorter: bool) -> None:
    """800 bytes and 8 updates, or 40 updates."""
    choice = SnapshotChoice(offer=offer(32), donors=("a",))
    assert is_shorter(choice, {"a": standing(round=40)}, 0, round_bytes) is shorter


async def test_donors_say_what_they_share_and_have(tmp_path: Path) -> None:
    """Who is gone, talks nonsense or has no chain yet is left out, and so is a snapshot that is not on its chain."""
    network = Network()
    old = network.add(tmp_path, "old", 6, 2, 4)
    network.add(tmp_path, "young", 1)
    network.add(tmp_path, "left", 3)
    write_snapshot(tmp_path / "left", old, 4)

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
    assert [item.round for item in found["old"].offers] == [2, 4]
    assert found["old"].weight == old.head.weight
    assert found["left"].offers == found["young"].offers == ()
    assert (await query_status(network, ["young"], (HEAD.anchor,)))["young"].shared == 0
