"""What papers printed, beside what our formulas give for the same settings.

Figures are copied from the papers; where something that a simulator needs is not printed, the value taken is said to be
ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from textwrap import wrap

UTILISATIONS = (0.50, 0.80, 0.90, 0.95, 0.99)
GIGA = 1e9
STREAMING_BITS = 13.5
"""Per parameter and exchange: what fits the data-parallel rows of streaming DiLoCo's table 4, all three sizes. Sixteen
would be the nominal width; the paper prints neither the exact sizes nor what its simulator counts."""
SCALING_BITS = 11.2
"""The same for the scaling laws' table 6."""
FOUR_OF_SIXTEEN = 4 / 16
BACKWARD = 2 / 3
"""Share of a step that its backward pass takes (arXiv:2001.08361, section 2.1)."""
BISECTIONS = 100


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What is averaged, how often, and beside what. Of one replica."""

    bits: float
    """Of one exchange of the whole model, in one direction."""
    step_s: float
    layers: int
    inner_steps: int = 1
    """H; 1 is data parallelism."""
    fragments: int = 1
    """Sets of layers that are averaged one after the other, each once in H steps (arXiv:2501.18512)."""
    delay: int = 0
    """Inner steps that are made while a fragment is averaged (its tau)."""

    def exposed_s(self, bps: float) -> float:
        """Of H inner steps, in which no step can be made (ours).

        Gradients of the last layers are there first, so that an exchange runs beside the backward pass, but for its
        last layer's own part. A delay hides so many whole steps more.
        """
        exchange_s = self.bits / bps / self.fragments
        hidden_s = BACKWARD * self.step_s * (1 - 1 / self.layers) + self.delay * self.step_s
        least_s = 0.0 if self.delay else exchange_s / self.layers
        return self.fragments * max(exchange_s - hidden_s, least_s)

    def utilisation(self, bps: float) -> float:
        """Share of the time in which steps are made."""
        compute_s = self.inner_steps * self.step_s
        return compute_s / (compute_s + self.exposed_s(bps))

    def needed_bps(self, utilisation: float) -> float:
        """The slowest line with which this share is reached."""
        low, high = 1.0, 1e18
        for _ in range(BISECTIONS):
            middle = (low * high) ** 0.5
            low, high = (low, middle) if self.utilisation(middle) >= utilisation else (middle, high)
        return high


def on_grid(bps: float, points: int = 50, low_bps: float = 1e8, high_bps: float = 1e12) -> float:
    """The next point of a geometric grid: both tables list points of 50 between 0.1 and 1,000 Gbit/s.

    Neither paper says so; every figure of theirs but a few is one of these.
    """
    ratio = (high_bps / low_bps) ** (1 / (points - 1))
    point = low_bps
    while point < bps * (1 - 1e-9):
        point *= ratio
    return point


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One row of a table: a way to train a model."""

    label: str
    exchange: Exchange
    published_gbps: tuple[float, ...]
    """The slowest line for each of `UTILISATIONS`."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A published figure and ours."""

    label: str
    utilisation: float
    published_gbps: float
    ours_gbps: float

    @property
    def deviation(self) -> float:
        """Relative, of ours from the published one."""
        return self.ours_gbps / self.published_gbps - 1


@dataclass(frozen=True, kw_only=True)
class Table:
    """A published table."""

    title: str
    source: str
    note: str
    settings: tuple[Setting, ...]

    def compare(self) -> list[Compared]:
        """Every figure of it; ours are points of the same grid."""
        return [
            Compared(
                label=row.label, utilisation=share, published_gbps=published,
                ours_gbps=on_grid(row.exchange.needed_bps(share)) / GIGA,
            )
            for row in self.settings
            for share, published in zip(UTILISATIONS, row.published_gbps, strict=True)
        ]  # fmt: skip


def _streaming(billions: float, step_s: float, layers: int, fragments: int) -> dict[str, Exchange]:
    bits = STREAMING_BITS * billions * GIGA
    whole = {"bits": bits, "step_s": step_s, "layers": layers}
    return {
        "data parallel": Exchange(bits=bits, step_s=step_s, layers=layers),
        "DiLoCo": Exchange(**whole, inner_steps=100),  # type: ignore[arg-type]
        "streaming": Exchange(**whole, inner_steps=100, fragments=fragments),  # type: ignore[arg-type]
        "overlapped": Exchange(**whole, inner_steps=100, fragments=fragments, delay=1),  # type: ignore[arg-type]
        "overlapped, 4 bit": Exchange(
            bits=bits * FOUR_OF_SIXTEEN, step_s=step_s, layers=layers, inner_steps=100, fragments=fragments, delay=1
        ),
    }


def _rows(size: str, exchanges: dict[str, Exchange], published: dict[str, tuple[float, ...]]) -> tuple[Setting, ...]:
    return tuple(
        Setting(label=f"{size} {name}", exchange=exchanges[name], published_gbps=figures)
        for name, figures in published.items()
    )


STREAMING_DILOCO = Table(
    title="Gbit/s for a share of compute utilisation, H = 100",
    source="arXiv:2501.18512, table 4",
    note="24, 48 and 108 layers in fragments of three (its section 3); bits per exchange ours, see STREAMING_BITS",
    settings=(
        *_rows(
            "1B", _streaming(1, 0.1, 24, 8),
            {
                "data parallel": (86.8, 152.6, 184.2, 222.3, 569.0),
                "DiLoCo": (1.4, 6.2, 13.3, 23.3, 86.8),
                "streaming": (1.4, 5.2, 9.1, 16.0, 28.1),
                "overlapped": (1.4, 4.3, 6.2, 9.1, 11.0),
                "overlapped, 4 bit": (0.4, 0.9, 1.7, 2.0, 3.0),
            },
        ),
        *_rows(
            "10B", _streaming(10, 0.8, 48, 16),
            {
                "data parallel": (104.8, 222.3, 222.3, 268.3, 471.5),
                "overlapped, 4 bit": (0.4, 0.9, 1.4, 1.4, 1.7),
            },
        ),
        *_rows(
            "100B", _streaming(100, 4.9, 108, 36),
            {
                "data parallel": (184.2, 323.8, 390.7, 390.7, 471.5),
                "overlapped, 4 bit": (0.5, 0.9, 1.1, 1.1, 1.4),
            },
        ),
    ),
)  # fmt: skip
SCALING_LAWS = Table(
    title="Gbit/s for a share of compute utilisation, 10B",
    source="arXiv:2503.09799, table 6",
    note="0.8 s per step and 48 layers as in arXiv:2501.18512; bits per exchange ours, see SCALING_BITS",
    settings=tuple(
        Setting(
            label=label,
            exchange=Exchange(bits=SCALING_BITS * 10 * GIGA, step_s=0.8, layers=48, inner_steps=steps),
            published_gbps=published,
        )
        for label, steps, published in (
            ("data parallel", 1, (104.8, 184.2, 222.3, 222.3, 390.7)),
            ("DiLoCo, H = 100", 100, (1.4, 6.2, 13.3, 23.3, 86.8)),
            ("DiLoCo, H = 300", 300, (0.5, 2.0, 4.3, 9.1, 41.0)),
        )
    ),
)
TABLES = (STREAMING_DILOCO, SCALING_LAWS)


def mean_deviation(compared: Sequence[Compared]) -> float:
    """Of the absolute values."""
    return fmean(abs(each.deviation) for each in compared)


def lines(tables: Sequence[Table] = TABLES) -> list[str]:
    """The tables for people: ours/published and the deviation, a line per setting, at most 80 columns."""
    text: list[str] = []
    for table in tables:
        compared = table.compare()
        text += [f"{table.title} ({table.source}):", "ours/published, and the deviation.", *wrap(table.note, 80)]
        text.append(f"{'':22}" + "".join(f"{share:>11.0%}" for share in UTILISATIONS))
        for at, row in enumerate(table.settings):
            each = compared[at * len(UTILISATIONS) : (at + 1) * len(UTILISATIONS)]
            pairs = "".join(f"{f'{one.ours_gbps:.3g}/{one.published_gbps:.3g}':>11}" for one in each)
            text.append(f"{row.label:<22}{pairs}")
            text.append(f"{'':22}" + "".join(f"{one.deviation:>+11.0%}" for one in each))
        text += [f"mean deviation {mean_deviation(compared):.1%}; the grid's points are 21% apart", ""]
    return text
