"""Which devices a peer goes on with: one lost rank is no reason to do without its device, two in ten minutes are."""

from __future__ import annotations

import pytest
import torch

from dht.errors import DeviceLost
from peer.parallel.ranks.rank_group import RankLost
from peer.parallel.ranks.roster import AGAIN_S, DeviceRoster

GPUS = tuple(torch.device(f"cuda:{index}") for index in range(3))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def roster(clock: Clock) -> DeviceRoster:
    return DeviceRoster(clock)


def lost(rank: int, *, is_device: bool = False) -> RankLost:
    return RankLost(rank, "cuda", "was killed by SIGKILL", is_device=is_device)


def test_a_device_is_tried_once_more(roster: DeviceRoster, clock: Clock) -> None:
    """And again, if the time between is long enough."""
    for _ in range(3):
        assert roster.present(lambda: GPUS) == GPUS
        assert roster.lost(lost(1)) == "it is tried once more"
        assert roster.is_whole
        clock.now += AGAIN_S


def test_one_that_is_lost_twice_is_left_out(roster: DeviceRoster, clock: Clock) -> None:
    """The others' numbers stay theirs: the next rank 1 is the third device."""
    roster.present(lambda: GPUS)
    roster.lost(lost(1))
    clock.now += AGAIN_S - 1
    roster.present(lambda: GPUS)
    assert roster.lost(lost(1)) == "going on with 2 others"
    assert not roster.is_whole
    assert roster.present(lambda: GPUS) == (GPUS[0], GPUS[2])
    assert roster.lost(lost(1)) == "it is tried once more"
    assert roster.present(lambda: GPUS) == (GPUS[0], GPUS[2])
    assert roster.lost(lost(1)) == "going on with 1 other"
    assert roster.present(lambda: GPUS) == GPUS[:1]


def test_two_devices_that_are_lost_once_each_are_both_tried_again(roster: DeviceRoster) -> None:
    roster.present(lambda: GPUS)
    roster.lost(lost(0))
    roster.lost(lost(2))
    assert roster.present(lambda: GPUS) == GPUS


def test_one_that_says_that_it_has_failed_is_left_out_at_once(roster: DeviceRoster) -> None:
    """And is not looked for again, which would find that it does not work."""
    roster.present(lambda: GPUS)
    assert roster.lost(lost(0, is_device=True)) == "going on with 2 others"

    def find() -> tuple[torch.device, ...]:
        raise AssertionError("it was found before")

    assert roster.present(find) == GPUS[1:]


def test_none_is_left(roster: DeviceRoster) -> None:
    roster.present(lambda: GPUS[:1])
    with pytest.raises(DeviceLost, match="rank 0 on cuda was killed by SIGKILL, and there is no other device; join"):
        roster.lost(lost(0, is_device=True))
