"""torch's random generators, which dropout draws from, as tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def generator_states(device: torch.device) -> dict[str, Tensor]:
    """States of the generators of the CPU and of `device`."""
    states = {"generator.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["generator.cuda"] = torch.cuda.get_rng_state(device)
    if device.type == "mps":
        states["generator.mps"] = torch.mps.get_rng_state()
    return states


def set_generator_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    """The inverse; a device that was not there when they were taken keeps its own."""
    torch.set_rng_state(states["generator.cpu"])
    if device.type == "cuda" and "generator.cuda" in states:
        torch.cuda.set_rng_state(states["generator.cuda"], device)
    if device.type == "mps" and "generator.mps" in states:
        torch.mps.set_rng_state(states["generator.mps"])
