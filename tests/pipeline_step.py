"""What an inner step of a model in stages takes, by the formula of AMP: the plan is held against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Some consecutive blocks on one peer."""

    blocks: int
    micro_s: float
    """Forward and backward of one micro-batch."""


def pipeline_step_s(stages: Sequence[Stage], cut_s: Sequence[float], micro_batches: int) -> float:
    """AMP's T = Σ e + Σ c + (B − 1) · max e (arXiv:2210.07297): fill, then the slowest stage sets the pace.

    `cut_s` is of each cut, both ways of one micro-batch. A cut that is slower than every stage sets the pace instead,
    which AMP leaves out and DT-FM's overlapped streams do not (arXiv:2206.01288, section 2): ours takes the larger.
    """
    assert len(cut_s) == len(stages) - 1
    assert micro_batches >= 1
    slowest = max([stage.micro_s for stage in stages] + list(cut_s))
    return sum(stage.micro_s for stage in stages) + sum(cut_s) + (micro_batches - 1) * slowest
