"""What ranks gather beside an update: never half of it, never a copy of the version before."""

from __future__ import annotations

import pytest

from peer.planning.plan.sharding_strategy import Sharding, ShardingStrategy, strategies_of
from tests.gather_race import Broken, GatherRace
from tests.gloo_ranks import run_ranks
from tests.sharded_ranks import UPDATES, Told, tell

SCHEDULES = 400
"""`python -m tests.benchmarks gathers` runs 10,000."""
BROKEN_SCHEDULES = 200
FULL_FROM_MEMORY = ShardingStrategy(kind=Sharding.FULL, ranks=2, offloads=True)


@pytest.mark.slow
def test_guarded_ranks_never_read_a_mix() -> None:
    """Nor are they refused, unless somebody was careless."""
    refused = 0  # of the schedules with a careless evaluation
    for seed in range(SCHEDULES):
        race = GatherRace(seed)
        race.run()
        assert not race.failed, f"schedule {seed}"
        refused += race.refused
    assert 0 < refused < SCHEDULES / 2


@pytest.mark.slow
@pytest.mark.parametrize("broken", Broken)
def test_each_guard_is_needed(broken: Broken) -> None:
    """So that the schedules are hard enough for the guarded ones' result to mean something."""
    races = [GatherRace(seed, broken) for seed in range(BROKEN_SCHEDULES)]
    for race in races:
        race.run()
    assert sum(race.failed for race in races) > BROKEN_SCHEDULES / 10


@pytest.mark.slow
@pytest.mark.parametrize("broken", [Broken.NO_WAIT, Broken.NO_VERSION_OF_COPIES, Broken.READERS_IGNORED])
def test_what_no_other_guard_catches_is_a_mix(broken: Broken) -> None:
    """Behind FSDP's hook, and with copies kept, the version of the copies is still a refusal."""
    races = [GatherRace(seed, broken) for seed in range(BROKEN_SCHEDULES)]
    for race in races:
        race.run()
    assert any(race.mixed for race in races)


# ---- with FSDP: two and four processes ----

STRATEGIES = (*strategies_of(2), FULL_FROM_MEMORY, *strategies_of(4))


@pytest.fixture(scope="module")
def told() -> dict[ShardingStrategy, list[Told]]:
    """By way to share the model, what each rank said."""
    found = {}
    for ranks in (2, 4):
        strategies = [strategy for strategy in STRATEGIES if strategy.ranks == ranks]
        by_rank: list[list[Told]] = run_ranks(ranks, tell, strategies)
        found |= {strategy: list(each) for strategy, each in zip(strategies, zip(*by_rank, strict=True), strict=True)}
    return found


@pytest.mark.outside
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
class TestRanks:
    def test_a_gate_is_told_what_is_gathered_next_and_before_it_is(
        self, told: dict[ShardingStrategy, list[Told]], strategy: ShardingStrategy
    ) -> None:
        """The whole model's gate is first: what lies outside of the blocks is gathered there."""
        root, blocks = ["embedding", "norm", "head"], ["layers.0", "layers.1"]
        for rank in told[strategy]:
            assert rank.entered == [root, *([block] for block in blocks), root + blocks]
            assert not rank.any_was_gathered

    def test_without_the_guard_an_old_copy_is_read(
        self, told: dict[ShardingStrategy, list[Told]], strategy: ShardingStrategy
    ) -> None:
        """Hierarchical leaves second copies of blocks behind, and every way what is outside of them."""
        assert [rank.right_without_guard for rank in told[strategy]] == [False] * strategy.ranks

    def test_with_the_guard_a_pass_beside_an_update_reads_all_of_it(
        self, told: dict[ShardingStrategy, list[Told]], strategy: ShardingStrategy
    ) -> None:
        """Also of a layer of which a rank holds nothing."""
        for rank in told[strategy]:
            assert rank.right_beside_updates == [True] * UPDATES * 2
        assert any(rank.empty_shares for rank in told[strategy]) == (strategy.shares > 1)

    def test_an_old_copy_that_is_still_there_is_refused(
        self, told: dict[ShardingStrategy, list[Told]], strategy: ShardingStrategy
    ) -> None:
        """By every rank, before it joins a gather."""
        for rank in told[strategy]:
            assert rank.refusal == "layer 0 would be read from a copy of version 0, not 1"
