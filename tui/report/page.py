"""The page: facts, charts and tables of a run as HTML5. Every text of a peer is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape

from tui.report.charts import ReportFigure
from tui.swarm.snapshot import WEIGHT_ONE, Round, SwarmState, labels_of
from tui.text.codes import PENALTY_PAGES
from tui.text.units import format_bytes, format_elapsed

Row = Sequence[str]

STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #ffffff; --faint: #6b6b6b; --line: #d5d5d5; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #161616; --faint: #a5a5a5; --line: #3c3c3c; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 74rem; padding: 1.5rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .75rem; }
p, figcaption, .unit { color: var(--faint); }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: 1rem; margin: 1.5rem 0; }
dl div { border-left: 3px solid #0072b2; padding-left: .75rem; }
dt { color: var(--faint); font-size: .85rem; }
dd { margin: 0; font-size: 1.15rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
figure { margin: 0 0 2rem; }
figcaption { font-size: .9rem; }
svg { width: 100%; height: auto; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--faint); padding-bottom: .5rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line); }
.number { text-align: right; }
summary { cursor: pointer; }
"""

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""The page may ask for nothing and run nothing, whatever is in it."""


def make_page(swarm: SwarmState, charts: Iterable[ReportFigure]) -> str:
    labels = labels_of(swarm)
    title = f"homefires run {swarm.run}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(_when(swarm))}</p>",
        _facts(swarm, labels),
        "<h2>How it went</h2>",
        *map(_figure, charts),
        *_samples(swarm),
        "<h2>Penalties</h2>",
        _penalties(swarm, labels),
        "<h2>Peers</h2>",
        _peers(swarm, labels),
        "<h2>Rounds</h2>",
        f"<details><summary>Every round</summary>{_rounds(swarm, labels)}</details>",
    ]
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>",
            *body,
            "</main>\n</body>\n</html>\n",
        ]
    )


# ---- facts ----


def _facts(swarm: SwarmState, labels: Mapping[str, str]) -> str:
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
    rows = "\n".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    return f"<dl>\n{rows}\n</dl>"


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


# ---- charts and tables ----


def _figure(chart: ReportFigure) -> str:
    caption = f"<b>{escape(chart.title)}.</b> {escape(chart.caption)}"
    return f"<figure>\n{chart.svg}\n<figcaption>{caption}</figcaption>\n</figure>"


def _table(caption: str, heads: Mapping[str, bool], rows: Iterable[Row]) -> str:
    """`heads` says of each column whether it holds numbers."""
    kinds = [' class="number"' if number else "" for number in heads.values()]
    top = "".join(f'<th scope="col"{kind}>{escape(head)}</th>' for head, kind in zip(heads, kinds, strict=True))
    lines = []
    for row in rows:
        cells = "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(row, kinds, strict=True))
        lines.append(f"<tr>{cells}</tr>")
    body = "\n".join(lines)
    return (
        f'<div class="table" role="region" tabindex="0" aria-label="{escape(caption)}">\n<table>\n'
        f"<caption>{escape(caption)}</caption>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody>\n"
        "</table>\n</div>"
    )


def _samples(swarm: SwarmState) -> list[str]:
    """By prompt, so that one sees what has changed; nothing where a run has no prompts."""
    if not swarm.samples:
        return []
    heads = {"prompt": False, "round": True, "how it goes on": False}
    told = sorted(swarm.samples, key=lambda sample: (sample.prompt, sample.round))
    rows = [(sample.prompt, str(sample.round), sample.text) for sample in told]
    return ["<h2>What it writes</h2>", _table("How anchors continue the prompts of the run", heads, rows)]


def _penalties(swarm: SwarmState, labels: Mapping[str, str]) -> str:
    if not swarm.penalty_log:
        return "<p>Nobody was penalised.</p>"
    heads = {
        "time": True, "peer": False, "code": False, "layer": False, "evidence": False, "weight ×": True,
        "until round": True,
    }  # fmt: skip
    rows = [
        (
            format_elapsed(penalty.t - (swarm.started_t or 0.0)), labels.get(penalty.about, penalty.about),
            penalty.code, penalty.layer or "whole model", penalty.evidence, f"{penalty.factor:.3g}",
            str(penalty.until_round),
        )
        for penalty in swarm.penalty_log
    ]  # fmt: skip
    codes = {penalty.code for penalty in swarm.penalty_log}
    meanings = "; ".join(f"{code}: {advice.short}" for code, advice in sorted(PENALTY_PAGES.items()) if code in codes)
    return _table("Who counted less, why, by how much and until when", heads, rows) + f"\n<p>{escape(meanings)}.</p>"


def _peers(swarm: SwarmState, labels: Mapping[str, str]) -> str:
    heads = {
        "peer": False, "device": False, "accepted": True, "late": True, "rejected": True, "missed": True,
        "tokens": True, "mean share": True, "sent": True, "received": True, "last state": False,
    }  # fmt: skip
    rows = [
        (
            labels[view.peer], view.device, *map(str, (view.accepted, view.late, view.rejected, view.missed)),
            f"{view.tokens:,}", _mean_share(swarm.history, view.peer), format_bytes(view.bytes_sent),
            format_bytes(view.bytes_received), f"{view.state}: {view.why}" if view.why else view.state,
        )
        for view in swarm.peers.values()
    ]  # fmt: skip
    caption = "What each peer gave: rounds in which it counted, came late, was refused or did not answer"
    return _table(caption, heads, rows)


def _mean_share(history: Sequence[Round], peer: str) -> str:
    shares = [round.weights[peer] / WEIGHT_ONE for round in history if peer in round.weights]
    return f"{100 * sum(shares) / len(shares):.1f} %" if shares else ""


def _rounds(swarm: SwarmState, labels: Mapping[str, str]) -> str:
    heads = {
        "round": True, "time": True, "members": True, "tokens": True, "seconds": True, "of them idle": True,
        "sent": True, "void parts": True, "failed tries": True, "penalised": False, "digest": False,
    }  # fmt: skip
    rows = [
        (
            str(round.round), format_elapsed(round.t - (swarm.started_t or 0.0)), str(len(round.group)),
            f"{round.tokens:,}", f"{round.round_s:.1f}" if round.round_s else "", f"{round.exposed_s:.1f}",
            format_bytes(round.bytes_sent),
            str(round.void), str(round.aborted),
            ", ".join(f"{labels.get(each.about, each.about)} {each.code}" for each in round.penalties),
            round.digest[:12],
        )
        for round in swarm.history
    ]  # fmt: skip
    return _table("The committed rounds, one by one", heads, rows)
