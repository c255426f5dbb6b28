"""Whether compiled blocks repay the time that compiling takes, on a processor, where that is long and the gain small.

On a GPU the gain is two- to threefold, and the question is not asked.
"""

from __future__ import annotations

import math
import os
import shutil

import torch

from peer.node.host.matrix_speed import flops_of
from peer.node.host.threads import threads_for
from peer.planning.plan.model_shape import shape_of
from peer.schema.settings import PeerSettings
from peer.schema.spec import RunSpec
from peer.training.train.optimizers import steps_before

SAVES = 0.12
"""The share of a step's time that compiled blocks save on a processor: 0.11 of `tiny` on one thread."""
DRY_RUN_S = 60.0
"""What a dry run takes there, the compiling with it."""


def repays(spec: RunSpec, saved_s: float, compiling_s: float) -> bool:
    """Whether all steps of a run, which save so much each, save more than compiling took."""
    return _steps(spec) * saved_s > compiling_s


def may_repay(spec: RunSpec, settings: PeerSettings) -> bool:
    """Whether a dry run on a processor is worth its time: a guess from how fast that multiplies matrices at best."""
    if settings.compile != "auto":
        return settings.compile == "yes"
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        return False
    device, shape = torch.device("cpu"), shape_of(spec)
    threads = threads_for(device.type, settings.threads or torch.get_num_threads()).torch
    flops = flops_of(device, threads, shape.width, bfloat16=False)
    step_tokens = spec.inner.sequences * spec.inner.accumulation * spec.model.context
    step_s = step_tokens * shape.flops_per_token(spec.model.context) / flops
    return _steps(spec) * step_s * SAVES > DRY_RUN_S


def _steps(spec: RunSpec) -> float:
    """Inner steps of one peer in the whole run; infinite where that has no end."""
    return steps_before(spec, spec.run.rounds) if spec.run.rounds else math.inf
