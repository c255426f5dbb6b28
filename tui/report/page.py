"""The page: facts, charts and tables of a run as HTML5. `page.html.j2` is its template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from peer.schema.byte_text import format_bytes
from tui.report.charts import ReportFigure
from tui.swarm import figures
from tui.swarm.figure_text import agreement_words, rounds_words, why_words
from tui.swarm.snapshot import PeerView, SwarmState, labels_of
from tui.text.event_text import counts_words, layer_words
from tui.text.explain import PENALTY_PAGES
from tui.text.units import format_elapsed, format_percent


def make_page(swarm: SwarmState, charts: Iterable[ReportFigure]) -> str:
    """The page as text; everything that a peer wrote is escaped."""
    labels, codes = labels_of(swarm), {penalty.code for penalty in swarm.penalty_log}

    def since_start(t: float) -> str:
        return format_elapsed(t - (swarm.started_t or 0.0))

    def doing(peer: PeerView) -> str:
        now = swarm.last_t or 0.0
        name, why = figures.state(swarm, peer, now).name, why_words(swarm, peer, now)
        return f"{name}: {why}" if why else name

    return _template().render(
        swarm=swarm, charts=charts, labels=labels, began=_when(swarm), facts=_facts(swarm, labels),
        meanings="; ".join(f"{code}: {page.short}" for code, page in sorted(PENALTY_PAGES.items()) if code in codes),
        since_start=since_start, doing=doing, figures=figures, percent=format_percent, counts_words=counts_words,
        layer_words=layer_words,
    )  # fmt: skip


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("tui.report", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["bytes"] = format_bytes
    return environment.get_template("page.html.j2")


def _facts(swarm: SwarmState, labels: Mapping[str, str]) -> dict[str, str]:
    peers, reporting = len(swarm.peers), len(swarm.reporting)
    whose = "the peer that reports" if reporting == 1 else f"the {reporting} peers that report"
    facts = {
        "committed": rounds_words(swarm),
        "peers": str(peers) if reporting == peers else f"{peers}, {reporting} of them reporting",
        "tokens": f"{swarm.tokens:,}",
        f"sent in rounds by {'all peers' if reporting == peers else whose}": format_bytes(
            figures.round_traffic(swarm).sent
        ),
        "time": format_elapsed(swarm.seconds),
        "held-out loss": _loss(swarm),
        "penalties": str(len(swarm.penalty_log)),
        "bits": agreement_words(swarm, labels),
    }
    if swarm.skipped:
        facts["lines that could not be read"] = f"{swarm.skipped:,}"
    return facts


def _loss(swarm: SwarmState) -> str:
    if not swarm.losses:
        return "not measured"
    (_, first), (round, last) = swarm.losses[0], swarm.losses[-1]
    words = swarm.sources_in_words(round)
    return f"{first:.3f} → {last:.3f}, lower is better (round {round}{f'; {words}' if words else ''})"


def _when(swarm: SwarmState) -> str:
    began = swarm.started_t
    # What no calendar has: a peer may write any number there.
    if began is None or not 0 <= began < datetime(9999, 1, 1, tzinfo=UTC).timestamp():
        return "It is not known when it began."
    return f"It began on {datetime.fromtimestamp(began, UTC):%d %B %Y at %H:%M:%S} UTC."
