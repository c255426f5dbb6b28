"""The page: facts, charts and tables of a run as HTML5. `page.html.j2` is what it looks like."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from jinja2 import Environment, PackageLoader, StrictUndefined

from tui.report.charts import ReportFigure
from tui.swarm.snapshot import WEIGHT_ONE, SwarmState, labels_of
from tui.text.codes import PENALTY_PAGES
from tui.text.units import format_bytes, format_elapsed


def make_page(swarm: SwarmState, charts: Iterable[ReportFigure]) -> str:
    """The page as text; whatever a peer wrote is escaped in it."""
    environment = Environment(
        loader=PackageLoader("tui.report", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["bytes"] = format_bytes
    labels, codes = labels_of(swarm), {penalty.code for penalty in swarm.penalty_log}

    def since_start(t: float) -> str:
        return format_elapsed(t - (swarm.started_t or 0.0))

    def mean_share(peer: str) -> str:
        shares = [round.weights[peer] / WEIGHT_ONE for round in swarm.history if peer in round.weights]
        return f"{100 * sum(shares) / len(shares):.1f} %" if shares else ""

    return environment.get_template("page.html.j2").render(
        swarm=swarm,
        charts=charts,
        labels=labels,
        began=_when(swarm),
        facts=_facts(swarm, labels),
        meanings="; ".join(f"{code}: {page.short}" for code, page in sorted(PENALTY_PAGES.items()) if code in codes),
        since_start=since_start,
        mean_share=mean_share,
    )


def _facts(swarm: SwarmState, labels: Mapping[str, str]) -> dict[str, str]:
    peers, reporting = len(swarm.peers), len(swarm.reporting)
    whose = "the peer that reports" if reporting == 1 else f"the {reporting} peers that report"
    facts = {
        "rounds committed": f"{swarm.round} of {swarm.rounds}" if swarm.rounds else str(swarm.round),
        "peers": str(peers) if reporting == peers else f"{peers}, {reporting} of them reporting",
        "tokens": f"{swarm.tokens:,}",
        f"sent by {'all peers' if reporting == peers else whose}": format_bytes(swarm.bytes_sent),
        "time": format_elapsed(swarm.seconds),
        "held-out loss": _loss(swarm),
        "penalties": str(len(swarm.penalty_log)),
        "bits": agreement(swarm, labels),
    }
    if swarm.skipped:
        facts["lines that could not be read"] = f"{swarm.skipped:,}"
    return facts


def agreement(swarm: SwarmState, labels: Mapping[str, str]) -> str:
    """Whether all who report a round report the same digest and the same state; else the first round that differs.

    That one peer agrees with itself says nothing.
    """
    seen: dict[int, tuple[str, str, str]] = {}
    commits = sorted(
        (commit.round, view.peer, commit.digest, commit.state) for view in swarm.reporting for commit in view.commits
    )
    for round, peer, digest, state in commits:
        first, *expected = seen.setdefault(round, (peer, digest, state))
        if [digest, state] != expected:
            return f"round {round} differs: {labels[first]} and {labels[peer]}"
    if not seen:
        return "nothing was committed"
    _, digest, _ = seen[max(seen)]
    reporting = len({peer for _, peer, _, _ in commits})
    if reporting < 2:
        return f"one peer reports: nothing to compare (digest {digest[:12]})"
    whose = "all peers" if reporting == len(swarm.peers) else f"the {reporting} peers that report"
    return f"equal on {whose} in every round (digest {digest[:12]})"


def _loss(swarm: SwarmState) -> str:
    if not swarm.losses:
        return "not measured"
    (_, first), (round, last) = swarm.losses[0], swarm.losses[-1]
    words = swarm.sources_in_words(round)
    return f"{first:.3f} → {last:.3f} nats per token (round {round}{f'; {words}' if words else ''})"


def _when(swarm: SwarmState) -> str:
    began = swarm.started_t
    # What no calendar has: a peer may write any number there.
    if began is None or not 0 <= began < datetime(9999, 1, 1, tzinfo=UTC).timestamp():
        return "It is not known when it began."
    return f"It began on {datetime.fromtimestamp(began, UTC):%d %B %Y at %H:%M:%S} UTC."
