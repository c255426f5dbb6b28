"""Rounds beside gossip and delayed Nesterov, in words."""

from __future__ import annotations

from textwrap import wrap

from tests.benchmarks.compared import PAPER_STEP_S, SMALL, TOY_ROUNDS, TOY_STEPS, Comparison
from tui.text.units import format_bytes

WIDTH = 80
FAST = (
    "Simulated: the real round machine with agreement, judging, churn and attackers, as in `simulate`. The others "
    "are formulas: computing is drawn anew for every step with the same spread, nobody fails, nothing is lost. An "
    "all-reduce waits for the slowest peer and for the slowest line. Gossip (arXiv:2410.11998) goes on while its peer "
    "computes, and waits for one partner alone. All of them are taken to encode like the run."
)
GOSSIP = (
    "With gossip peers differ: after {steps} steps in which nobody learns, {left:.0%} of the distance between them is "
    "left (0% where their number is a power of two). After a round they hold the same bits."
)
FAR = (
    f"A quadratic stands for the loss; small is a {SMALL}th of the beginning; in brackets: times what rounds take; -: "
    f"not in {TOY_ROUNDS} rounds of {TOY_STEPS} steps. Sending takes no time here. Delayed Nesterov "
    "(arXiv:2401.09135): each peer pushes when it is done, and momentum is renewed once in as many pushes as there are "
    "peers. The four "
    f"workers of its authors' own toy need {', '.join(f'{each:g}' for each in PAPER_STEP_S)} s per step. It shows what "
    "waiting costs, and says nothing about language models."
)


def describe(found: Comparison) -> str:
    """A page of at most 80 columns."""
    first = found.reached[0]
    text = [
        f"{found.peers} peers; the model takes {format_bytes(found.model_bytes)} as {found.wire}",
        "",
        f"{'how fast':<34}{'s per step':>12}{'tokens/s':>14}{'sent per step':>16}",
        *(
            f"{each.way:<34}{each.step_s:>12.3f}{each.tokens_per_s:>14,.0f}{format_bytes(round(each.sent_bytes)):>16}"
            for each in found.speeds
        ),
        *wrap(FAST, WIDTH),
        *wrap(GOSSIP.format(steps=found.period, left=found.left), WIDTH),
        "",
        f"{'how far: s until the loss is small':<40}{'these peers':>18}{'four workers':>18}",
        *(
            f"{each.way:<40}{_beside(each.peers_s, first.peers_s):>18}{_beside(each.paper_s, first.paper_s):>18}"
            for each in found.reached
        ),
        *wrap(FAR, WIDTH),
    ]
    return "".join(line + "\n" for line in text)


def _beside(at_s: float | None, rounds_s: float | None) -> str:
    """Seconds, and how many times what rounds take."""
    if at_s is None:
        return "-"
    return f"{at_s:.4g}" if rounds_s is None else f"{at_s:.4g} ({at_s / rounds_s:.2f}x)"
