"""The cost model from the equations alone (DT-FM, and AMP's of a pipeline that fills), in loops over all permutations:
slow, and shares no code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, permutations, product

from peer.planning.placement.pairwise_network import Network
from peer.planning.placement.stage_workload import StageWorkload

Group = tuple[int, ...]


def seconds(network: Network, one: int, other: int, message_bytes: float) -> float:
    """α + c / β of a link whose two directions are averaged."""
    delay_s = (network.delay_s[one, other] + network.delay_s[other, one]) / 2
    speed_bps = (network.bandwidth_bps[one, other] + network.bandwidth_bps[other, one]) / 2
    return float(delay_s + 8 * message_bytes / speed_bps)


def data_parallel_s(network: Network, work: StageWorkload, groups: Sequence[Group]) -> float:
    size = len(groups[0])
    return max(
        sum(2 * seconds(network, device, other, work.stage_bytes / size) for other in group if other != device)
        for group in groups
        for device in group
    )


def cut_s(network: Network, work: StageWorkload, left: Group, right: Group) -> float:
    """Over all perfect matchings, the smallest largest link."""
    return min(
        max(2 * seconds(network, one, other, work.cut_bytes) for one, other in zip(left, matched, strict=True))
        for matched in permutations(right)
    )


def pipeline_s(network: Network, work: StageWorkload, groups: Sequence[Group]) -> float:
    """Over all orders of the groups, the shortest path."""
    cuts = {
        pair: cut_s(network, work, groups[pair[0]], groups[pair[1]]) for pair in combinations(range(len(groups)), 2)
    }
    return min(sum(cuts[min(step), max(step)] for step in pairwise(path)) for path in permutations(range(len(groups))))


def comm_s(network: Network, work: StageWorkload, groups: Sequence[Group]) -> float:
    return data_parallel_s(network, work, groups) / work.sync_steps + pipeline_s(network, work, groups)


def partitions(devices: Sequence[int], size: int) -> Iterator[tuple[Group, ...]]:
    """All ways to cut the devices into groups of one size, each once."""
    if not devices:
        yield ()
        return
    for rest in combinations(devices[1:], size - 1):
        group = (devices[0], *rest)
        for others in partitions([device for device in devices if device not in group], size):
            yield (group, *others)


# ---- pipelines of devices that compute at unlike speeds ----


def step_s(network: Network, work: StageWorkload, speeds: Sequence[float], pipelines: Sequence[Group]) -> float:
    """Of pipelines that are decided. The first micro-batch passes all stages, then the slowest one sets the pace. With
    H = 1 all wait for the slowest pipeline; else the pace of all is the mean of theirs."""
    stages = list(zip(*pipelines, strict=True))
    talk_s = data_parallel_s(network, work, stages) / work.sync_steps + sum(
        max(2 * seconds(network, one, other, work.cut_bytes) for one, other in zip(left, right, strict=True))
        for left, right in pairwise(stages)
    )
    each_s = []
    for pipeline in pipelines:
        pieces_s = [work.compute_s / speeds[device] / work.micro_batches for device in pipeline]
        each_s.append(talk_s + sum(pieces_s) + (work.micro_batches - 1) * max(pieces_s))
    return max(each_s) if work.sync_steps == 1 else len(each_s) / sum(1 / seconds for seconds in each_s)


def layouts(devices: int, stages: int, pipelines: int) -> Iterator[list[Group]]:
    """All pipelines there are: who is left out, who is in which stage, and who is in which pipeline."""
    for peers in combinations(range(devices), stages * pipelines):
        for groups in partitions(peers, pipelines):
            for first, *others in permutations(groups):
                for columns in product(*(permutations(group) for group in others)):
                    yield list(zip(first, *columns, strict=True))


def least_step_s(network: Network, work: StageWorkload, speeds: Sequence[float], pipelines: int) -> float:
    return min(
        step_s(network, work, speeds, layout) for layout in layouts(len(network), work.stages, pipelines)
    )  # fmt: skip
