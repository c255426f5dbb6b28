"""The results of the GPU benchmark for people: two tables and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from tests.benchmarks.rows import markdown


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How fast one loop trains one model."""

    model: str
    parameters: int
    loop: str
    compiled: bool
    tokens_per_s: float
    flops: float
    """FLOP/s by PaLM's formula (arXiv:2204.02311, appendix B): what is recomputed, masked or moved does not count."""
    spread: float
    """How much longer the longest of its measurements took than the shortest."""

    @property
    def name(self) -> str:
        return f"{self.loop}, compiled" if self.compiled else self.loop

    def told(self, reached: float) -> str:
        """A line while it is measured; `reached` is what a product of large matrices does."""
        return (
            f"{self.model}: {self.name}: {self.tokens_per_s:,.0f} tokens/s, {self.flops / 1e12:.2f} TFLOP/s, "
            f"{self.flops / reached:.1%} of a product, spread {self.spread:.1%}"
        )


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds of what a round does at one peer beside inner steps."""

    model: str
    parameters: int
    step_s: float
    round_steps: int
    to_host_s: float
    """All parameters from the device to main memory."""
    to_device_s: float
    encode_s: float
    submit_s: float
    """Collect what was learned, encode it and have it on disk."""
    apply_s: float
    """Check and decode the means, outer step, new local parameters."""

    @property
    def share(self) -> float:
        """Of a round that overlaps nothing, without network and agreement."""
        exposed_s = self.submit_s + self.apply_s
        return exposed_s / (exposed_s + self.round_steps * self.step_s)

    def told(self) -> str:
        """A line while it is measured."""
        return f"{self.model}: freeze {self.submit_s:.3f} s, apply {self.apply_s:.3f} s: {self.share:.2%} of a round"


def table(speeds: Sequence[Speed], costs: Sequence[Cost], reached: float) -> str:
    """Markdown."""
    bare = {(speed.model, speed.compiled): speed.tokens_per_s for speed in speeds if speed.loop == "bare"}
    fast = [["model", "parameters", "loop", "tokens/s", "TFLOP/s", "of a product", "of the bare loop", "spread"]]
    fast += [
        [
            speed.model, f"{speed.parameters:,}", speed.name, f"{speed.tokens_per_s:,.0f}", f"{speed.flops / 1e12:.2f}",
            f"{speed.flops / reached:.1%}", f"{speed.tokens_per_s / bare[speed.model, speed.compiled]:.3f}",
            f"{speed.spread:.1%}",
        ]
        for speed in speeds
    ]  # fmt: skip
    dear = [["model", "to host s", "to device s", "encode s", "freeze s", "apply s", "step s", "share of a round"]]
    dear += [
        [
            cost.model, *(f"{seconds:.3f}" for seconds in
            (cost.to_host_s, cost.to_device_s, cost.encode_s, cost.submit_s, cost.apply_s, cost.step_s)),
            f"{cost.share:.2%}",
        ]
        for cost in costs
    ]  # fmt: skip
    return f"{markdown(fast)}\n{markdown(dear)}"


def draw(speeds: Sequence[Speed], reached: float, path: Path) -> None:
    """The share of what a product reaches, by model and loop."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    names, models = list(dict.fromkeys(speed.name for speed in speeds)), list(dict.fromkeys(s.model for s in speeds))
    width = 0.8 / len(names)
    for place, name in enumerate(names):
        shares = {speed.model: speed.flops / reached for speed in speeds if speed.name == name}
        axes.bar(
            [models.index(model) + (place - (len(names) - 1) / 2) * width for model in shares],
            [100 * share for share in shares.values()], width, label=name,
        )  # fmt: skip
    axes.set_xticks(range(len(models)), models)
    axes.set(ylabel="% of what a product of large matrices reaches", xlabel="parameters")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=110)
