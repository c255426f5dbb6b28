"""The inner optimizers of a run: AdamW, or Muon for the hidden matrices and AdamW for the rest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from peer.schema.peak_memory import PLAIN, Rung
from peer.schema.spec import RunSpec
from peer.training.model.flat_parameters import hidden_matrices, trained
from peer.training.train.eight_bit_adamw import CODES, KEYS, LEAST, EightBitAdamW, packed, unpacked

STATE_KEYS: Mapping[type[Optimizer], tuple[str, ...]] = {
    torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"),
    EightBitAdamW: KEYS,
    torch.optim.Muon: ("momentum_buffer",),
}
"""What each optimizer remembers of a parameter from its first step on."""
NO_STATE = "none"
"""Stands for the state of a parameter that has had no gradient yet."""


class Optimizers:
    """One or several torch optimizers that step together, each parameter in one of them."""

    def __init__(self, *members: Optimizer) -> None:
        self.members = members
        self._member_of = {
            id(parameter): member
            for member in members
            for group in member.param_groups
            for parameter in group["params"]
        }

    def step(self, learning_rate: float) -> None:
        """One step of all of them at `learning_rate`; clears the gradients."""
        for member in self.members:
            for group in member.param_groups:
                group["lr"] = learning_rate
            member.step()
        for member in self.members:  # not before all are done: a step that is taken back is made again
            member.zero_grad()

    @torch.no_grad()
    def take_memory(self) -> None:
        """Allocate what AdamW allocates in its first step: after this no step allocates memory."""
        for member in self.members:
            if not isinstance(member, torch.optim.AdamW):
                continue
            for parameter in (value for group in member.param_groups for value in group["params"]):
                zeros = {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
                member.state[parameter] = {"step": _placed(member, parameter, "step", torch.zeros(())), **zeros}

    def memory_of(self, parameter: Tensor) -> MutableMapping[str, Tensor]:
        """The state of one parameter, to be read or replaced; empty before its first gradient."""
        memory: MutableMapping[str, Tensor] = self._member_of[id(parameter)].state[parameter]
        return memory

    def state_of(self, parameters: Sequence[Tensor]) -> dict[str, Tensor]:
        """The state of these parameters in place, as `<optimizer>.<position>.<key>`. A parameter without a gradient
        so far has one empty tensor under the key `none`."""
        found: dict[str, Tensor] = {}
        for prefix, member, parameter in self._named(parameters):
            state = member.state.get(parameter) or {NO_STATE: torch.empty(0)}
            for key, value in state.items():
                assert isinstance(value, Tensor), f"{prefix}.{key} is no tensor"
                found[f"{prefix}.{key}"] = value
        return found

    def load_state_of(self, parameters: Sequence[Tensor], state: Mapping[str, Tensor]) -> None:
        """The inverse of `state_of`, which is copied; exactly its names are accepted (AssertionError)."""
        unread = dict(state)
        for prefix, member, parameter in self._named(parameters):
            taken = _translated(unread, prefix, member, parameter)
            member.state.pop(parameter, None)
            if taken:
                member.state[parameter] = {key: _placed(member, parameter, key, taken[key]) for key in taken}
        assert not unread, f"no such optimizer state: {', '.join(sorted(unread))}"

    def _named(self, parameters: Sequence[Tensor]) -> Iterator[tuple[str, Optimizer, Tensor]]:
        """(name, optimizer, parameter) of each."""
        for position, parameter in enumerate(parameters):
            member = self._member_of[id(parameter)]
            name = "adamw" if isinstance(member, EightBitAdamW) else type(member).__name__.lower()
            yield f"{name}.{position}", member, parameter


def make_optimizers(
    model: nn.Module, spec: RunSpec, device: torch.device, rung: Rung = PLAIN
) -> Optimizers:  # fmt: skip
    """The optimizers that `spec.inner.optimizer` names, over the trained parameters of `model`. `rung` says in how many
    bits AdamW's moments of large parameters and their gradients are kept."""
    if spec.inner.optimizer == "adamw":
        return Optimizers(*_adamws(trained(model), spec, device, rung))
    matrices = hidden_matrices(model)
    assert matrices, f"{spec.model.architecture} has blocks, but no hidden matrix"
    taken = {id(value) for value in matrices}
    rest = [value for value in trained(model) if id(value) not in taken]
    return Optimizers(muon(matrices, spec), *_adamws(rest, spec, device, rung))


def _adamws(
    parameters: Sequence[Tensor], spec: RunSpec, device: torch.device, rung: Rung
) -> Iterator[Optimizer]:  # fmt: skip
    large = [value for value in parameters if rung.eight_bits and value.numel() >= LEAST]
    taken = set(map(id, large))
    small = [value for value in parameters if id(value) not in taken]
    if small:
        yield adamw(small, spec, device)
    for value in large:  # each is cast where it arrives; torch 2.9 casts none, and keeps them in float32
        value.grad_dtype = torch.bfloat16 if rung.half_gradients else value.dtype
    if large:
        yield EightBitAdamW(_groups(large, spec), lr=spec.inner.learning_rate, betas=_betas(spec))


def adamw(parameters: Sequence[Tensor], spec: RunSpec, device: torch.device) -> Optimizer:
    """AdamW with weight decay on matrices only, fused where torch has that for the device."""
    return torch.optim.AdamW(
        _groups(parameters, spec), lr=spec.inner.learning_rate, betas=_betas(spec),
        fused=device.type in ("cuda", "cpu", "mps"),
    )  # fmt: skip


def _groups(parameters: Sequence[Tensor], spec: RunSpec) -> list[dict[str, Any]]:
    groups = [
        {"params": [value for value in parameters if value.dim() >= 2], "weight_decay": spec.inner.weight_decay},
        {"params": [value for value in parameters if value.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _betas(spec: RunSpec) -> tuple[float, float]:
    return spec.inner.beta1, spec.inner.beta2


def muon(matrices: Sequence[Tensor], spec: RunSpec) -> Optimizer:
    """Muon (https://kellerjordan.github.io/posts/muon/) with torch's five Newton-Schulz steps.

    Its step is scaled by 0.2 √(longer side), which gives it the root mean square of AdamW's steps, so that one
    learning rate and weight decay serve both (arXiv:2502.16982, §2.2). The other scale in use, √(rows / columns),
    would depend on whether a layer keeps its matrix transposed, as GPT-2's do.
    """
    table = spec.inner
    return torch.optim.Muon(
        matrices,
        lr=table.learning_rate,
        weight_decay=table.weight_decay,
        momentum=table.muon_momentum,
        adjust_lr_fn="match_rms_adamw",
    )


def _taken(unread: dict[str, Tensor], prefix: str, keys: Sequence[str]) -> dict[str, Tensor]:
    """One parameter's state, removed from `unread`; empty if it had none."""
    if unread.pop(f"{prefix}.{NO_STATE}", None) is not None:
        return {}
    missing = [f"{prefix}.{key}" for key in keys if f"{prefix}.{key}" not in unread]
    assert not missing, f"optimizer state lacks {', '.join(missing)}"
    return {key: unread.pop(f"{prefix}.{key}") for key in keys}


def _translated(unread: dict[str, Tensor], prefix: str, member: Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """As `_taken`, also of a checkpoint that was written with moments in another number of bits."""
    has_bytes, wants_bytes = f"{prefix}.exp_avg_scale" in unread, isinstance(member, EightBitAdamW)
    if isinstance(member, torch.optim.AdamW) and has_bytes:
        return unpacked(_taken(unread, prefix, KEYS), parameter)
    if wants_bytes and not has_bytes:
        taken = _taken(unread, prefix, STATE_KEYS[torch.optim.AdamW])
        return packed(taken) if taken else {}
    return _taken(unread, prefix, STATE_KEYS.get(type(member), ()))


def _placed(member: Optimizer, parameter: Tensor, key: str, value: Tensor) -> Tensor:
    """A copy where the optimizer wants it, in its dtype, as in torch's own loading."""
    if isinstance(member, EightBitAdamW):
        dtype = torch.uint8 if key in CODES else torch.float32  # a checkpoint holds float32 alone
        return value.to("cpu" if key == "step" else parameter.device, dtype, copy=True)
    if key != "step":
        return value.to(parameter.device, parameter.dtype, copy=True)
    return value.to(parameter.device if member.defaults.get("fused") else "cpu", torch.float32, copy=True)


def steps_before(spec: RunSpec, round: int) -> int:
    """Inner steps of one peer from the start of the run to anchor `round`."""
    table = spec.round
    first_synchronous = min(round, table.sync_rounds)
    ramp_end = table.sync_rounds + table.ramp_rounds
    ramp = sum(spec.steps_in(number) for number in range(first_synchronous, min(round, ramp_end)))
    return first_synchronous + ramp + max(0, round - ramp_end) * table.steps


def learning_rate(spec: RunSpec, round: int, step: float) -> float:
    """Inner learning rate of inner step `step` (from 0) of round `round`; between two of them at another pace than H.

    Linear warm-up over `inner.warmup_steps`, then a cosine that reaches `inner.final_fraction` of
    the peak at the end of the schedule. A run without an end keeps the peak.
    """
    table = spec.inner
    position = steps_before(spec, round) + step
    if position < table.warmup_steps:
        return table.learning_rate * (position + 1) / table.warmup_steps
    rounds = table.schedule_rounds or spec.run.rounds
    if rounds == 0:
        return table.learning_rate
    total = steps_before(spec, rounds)
    progress = min(1.0, (position - table.warmup_steps) / max(1, total - table.warmup_steps))
    cosine = (1 + math.cos(math.pi * progress)) / 2
    return table.learning_rate * (table.final_fraction + (1 - table.final_fraction) * cosine)
