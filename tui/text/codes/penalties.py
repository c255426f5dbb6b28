"""Penalties: why a contribution counted less. Each reduction is in the update that all members of a round agreed on."""

from __future__ import annotations

from tui.text.codes.advice import CodePage

PENALTY_PAGES = {
    "LATE": CodePage(
        short="it had nothing ready, or not all of it came in time",
        category="late",
        meaning="Its work, or part of it, was not there when the round closed. Only what came in time counts.",
        remedy="Nothing is lost: the rest is offered again next round. If it happens often, the upload or the machine "
        "is too slow for this run: free the line, or raise the upload limit.",
    ),
    "STALE": CodePage(
        short="what it gave was learned some rounds ago",
        category="late",
        meaning="What it offers was measured from an older anchor, or was offered before, so it counts less.",
        remedy="It fades by itself once the peer has caught up with the others.",
    ),
    "ABSENT": CodePage(
        short="it was expected and did not answer",
        category="late",
        meaning="It belongs to those whose vote is needed, and did not answer in this round.",
        remedy="Look whether it runs and is connected. Who leaves with Q is not missed.",
    ),
    "ANOMALY": CodePage(
        short="its update was not like its own before, or not like the others'",
        category="judge",
        meaning="The size or direction of its update in this layer is not like its own before, or like the others'.",
        remedy="Once means little: hard data does this. Again and again points to bad memory or an overclocked GPU: "
        "test the memory, lower the clocks.",
    ),
    "CLIPPED": CodePage(
        short="more than counts in full, of norm or of tokens: what is beyond was left out",
        category="judge",
        meaning="Its update was larger than what counts in full, so it was shortened. Its direction still counts.",
        remedy="Nothing needs to be done. Often, together with ANOMALY: look at the machine.",
    ),
    "NONFINITE": CodePage(
        short="its update held values that are not numbers",
        category="errors",
        meaning="Its update held values that are not numbers. Such a contribution counts nothing.",
        remedy="The peer goes on from the next anchor. Again: lower clocks, update the driver, or test the memory.",
    ),
    "MISDECLARED": CodePage(
        short="the others measured otherwise than it said",
        category="errors",
        meaning="What it signed did not agree with what the others measured from its bytes, and most of them say so.",
        remedy="It counts nothing and reduces nothing until the penalty ends. Use an unchanged client; "
        "if it is one, report a bug.",
    ),
}  # fmt: skip
"""By code."""
