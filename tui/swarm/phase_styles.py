"""Every phase, state and penalty code that a screen names: its word, its signs, and how urgent it is.

A role is the name of a style of `Palette`; screens, the report and the plain log take all of it from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Phase:
    """What a peer does at a time, as a lane shows it."""

    does: str
    """What the peer does, in words."""
    glyph: str
    ascii: str
    role: str
    rank: int
    """If one column of a lane contains several phases, the one with the highest rank is shown."""
    stage: str = ""
    """The part of a round for a volunteer: train, wait, average or apply; empty: outside of any round."""
    stands: bool = False
    """Whether the peer does not take part: then no phase of a round replaces this one."""

    @property
    def exchanges(self) -> bool:
        """Whether the phase lies between the end of training and the next anchor."""
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
"""The parts of a round for a volunteer."""


def phase(name: str) -> Phase:
    """The phase with this name; an unknown one, from a newer client, is shown as idle."""
    return PHASES.get(name, PHASES["idle"])


@dataclass(frozen=True, kw_only=True)
class ShownState:
    """The state of a peer as shown on a screen."""

    name: str
    glyph: str
    ascii: str
    role: str
    urgency: int = 0
    """How much attention the state needs."""
    is_here: bool = True
    """Whether the peer runs: only then there are live values."""
    takes_part: bool = False
    """Whether it trains, or has its training averaged."""
    phase: str = ""
    """The phase in the peer's lane; empty: that of the round is more informative."""
    notable: bool = True
    """Whether its beginning is worth a log line: every round goes through the other states."""


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
"""In the order of an overview."""


def state_named(name: str) -> ShownState:
    """The state with this name; an unknown one, from a newer client, needs no attention."""
    return STATES.get(name) or ShownState(name=name or "UNKNOWN", glyph="?", ascii="?", role="text")


@dataclass(frozen=True, kw_only=True)
class PenaltyCode:
    """Why a contribution counted less. It is explained in `tui.text.explain`."""

    letter: str
    """The letter in a chart."""
    kind: str = "judge"
    """errors: its work could not be used; late: it came late or not at all; judge: it differed from the others'."""
    phase: str = ""
    """The phase that it leaves in a lane."""
    level: str = "warning"
    """The level of its log line."""


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
    """The code with this name; an unknown one, from a newer client, counts as an error."""
    return PENALTY_CODES.get(code) or PenaltyCode(letter="?", kind="errors")
