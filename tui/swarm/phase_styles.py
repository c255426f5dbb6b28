"""Every phase, state and penalty code that a screen names: its word, its signs, and how urgent it is.

A role is the name of a style of `Palette`; screens, the report and the plain log take all of it from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Phase:
    """What a peer does at a moment, as a lane shows it."""

    does: str
    """In words, of a peer."""
    glyph: str
    ascii: str
    role: str
    rank: int
    """Of several phases in one column of a lane the highest shows."""
    stage: str = ""
    """Which part of a round it is for a volunteer: train, wait, average or apply; empty: it is in no round."""
    stands: bool = False
    """Whether the peer takes no part: no phase of a round takes its place."""

    @property
    def exchanges(self) -> bool:
        """Whether it lies between the end of training and the next anchor."""
        return self.stage not in ("", "train")


PHASES: Mapping[str, Phase] = {
    "idle": Phase(does="waits", glyph="·", ascii=".", role="track", rank=1),
    "train": Phase(does="trains", glyph="▒", ascii="#", role="good", rank=2, stage="train"),
    "submit": Phase(does="prepares its update", glyph="▓", ascii="=", role="busy", rank=3, stage="wait"),
    "prepare": Phase(does="waits for the group", glyph="▓", ascii="=", role="busy", rank=3, stage="wait"),
    "exchange": Phase(does="sends its update", glyph="↑", ascii="^", role="busy", rank=4, stage="average"),
    # Of recordings from before protocol 5.
    "weigh": Phase(does="averages: norms are compared", glyph="Σ", ascii="+", role="busy", rank=5, stage="average"),
    "reduce": Phase(does="averages", glyph="Σ", ascii="+", role="busy", rank=5, stage="average"),
    "commit": Phase(does="averages: votes are counted", glyph="Σ", ascii="+", role="busy", rank=5, stage="average"),
    "apply": Phase(does="applies the update", glyph="Σ", ascii="+", role="busy", rank=5, stage="apply"),
    "late": Phase(does="is late", glyph="!", ascii="!", role="warn", rank=8),
    "failed": Phase(
        does="failed: it did not answer, or the try was given up", glyph="✗", ascii="x", role="bad", rank=9
    ),
    "paused": Phase(does="is paused", glyph="‖", ascii="|", role="muted", rank=7, stands=True),
    "sync": Phase(does="catches up", glyph="↓", ascii="v", role="busy", rank=6, stands=True),
    "gone": Phase(does="is gone", glyph="-", ascii="-", role="bad", rank=0, stands=True),
}
STAGES = ("train", "wait", "average", "apply")
"""What a round consists of for a volunteer."""


def phase(name: str) -> Phase:
    """One of a newer client is shown as idle."""
    return PHASES.get(name, PHASES["idle"])


@dataclass(frozen=True, kw_only=True)
class ShownState:
    """What a screen calls what a peer does for some time."""

    name: str
    glyph: str
    ascii: str
    role: str
    urgency: int = 0
    """How much it asks for a look."""
    is_here: bool = True
    """Whether it runs: only then there are live figures."""
    takes_part: bool = False
    """Whether it trains, or has its training averaged."""
    phase: str = ""
    """In its lane; empty: the phase of the round says more."""
    notable: bool = True
    """Whether that it begins is worth a line of a log: each round goes through the others."""


STATES: Mapping[str, ShownState] = {
    state.name: state
    for state in (
        ShownState(name="TRAINING", glyph="▒", ascii="#", role="good", takes_part=True, phase="train", notable=False),
        ShownState(name="READY", glyph="●", ascii="*", role="good", takes_part=True, notable=False),
        ShownState(name="AVERAGING", glyph="Σ", ascii="+", role="busy", takes_part=True, notable=False),
        ShownState(name="SYNCING", glyph="↓", ascii="v", role="busy", urgency=1, phase="sync"),
        ShownState(name="JOINING", glyph="◌", ascii="o", role="muted", urgency=1, phase="idle"),
        ShownState(name="LATE", glyph="!", ascii="!", role="warn", urgency=3, takes_part=True, phase="late"),
        ShownState(name="PENALISED", glyph="▼", ascii="V", role="warn", urgency=3, takes_part=True),
        ShownState(name="PAUSED", glyph="‖", ascii="|", role="muted", urgency=1, phase="paused"),
        ShownState(name="FINISHED", glyph="✓", ascii="*", role="muted", is_here=False, phase="gone"),
        ShownState(name="LEFT", glyph="-", ascii="-", role="muted", urgency=1, is_here=False, phase="gone"),
        ShownState(name="FROZEN", glyph="■", ascii="@", role="bad", urgency=3, is_here=False, phase="gone"),
        ShownState(name="GONE", glyph="✗", ascii="x", role="bad", urgency=2, is_here=False, phase="gone"),
    )
}
"""In the order in which an overview counts them."""


def state_named(name: str) -> ShownState:
    """One of a newer client is in order and needs no look."""
    return STATES.get(name) or ShownState(name=name or "UNKNOWN", glyph="?", ascii="?", role="text")


@dataclass(frozen=True, kw_only=True)
class PenaltyCode:
    """Why a contribution counted less. In words: `tui.text.explain`."""

    letter: str
    """Of a chart."""
    kind: str = "judge"
    """errors: its work could not be used; late: it came late or not; judge: it was not like the others'."""
    phase: str = ""
    """That it leaves in a lane."""
    level: str = "warning"
    """Of its line in the log."""


PENALTY_CODES: Mapping[str, PenaltyCode] = {
    "LATE": PenaltyCode(letter="L", kind="late", phase="late"),
    "STALE": PenaltyCode(letter="S", kind="late"),
    "ABSENT": PenaltyCode(letter="X", kind="late", phase="failed"),
    "ANOMALY": PenaltyCode(letter="A"),
    "CLIPPED": PenaltyCode(letter="C"),
    "NONFINITE": PenaltyCode(letter="N", kind="errors"),
    "MISDECLARED": PenaltyCode(letter="M", kind="errors", level="error"),
}


def penalty_code(code: str) -> PenaltyCode:
    """One of a newer client is an error that a newer client explains."""
    return PENALTY_CODES.get(code) or PenaltyCode(letter="?", kind="errors")
