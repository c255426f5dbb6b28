"""All that is known about one peer: what it does, what it gave, what counted, and every penalty with its reason."""

from __future__ import annotations

from textual.app import ComposeResult

from peer.schema.byte_text import format_bytes
from tui.dashboard.screens.home import add_devices, add_speed, outcome_facts, traffic_facts
from tui.dashboard.styles import shown_state, state_of
from tui.dashboard.view import Panel, TextBlock, View
from tui.dashboard.widgets.facts import FactSheet, add_penalty
from tui.swarm import figures
from tui.swarm.figure_text import cost_words, why_words
from tui.swarm.snapshot import PeerView
from tui.text.explain import PENALTY_PAGES
from tui.text.units import (
    MISSING,
    format_ago,
    format_count,
    format_line,
    format_loss,
    format_percent,
    format_transfer,
    format_uptime,
)

MOST_PENALTIES = 64
"""The maximal number of a peer's penalties that are listed, the newest first."""


class PeerPanel(Panel):
    TITLE = "Peer"

    def compose(self) -> ComposeResult:
        yield TextBlock(id="peer-page")

    def draw_view(self, view: View) -> None:
        sheet = FactSheet(view, view.width - (3 if view.mini else 5))
        peer = view.swarm.peers.get(view.selected)
        if peer is None:
            sheet.line(("no such peer at this moment", view.ink.muted))
        else:
            draw_peer(sheet, view, peer)
        self.query_one(TextBlock).draw(sheet.text)


def draw_peer(sheet: FactSheet, view: View, peer: PeerView) -> None:
    sheet.line((f"{view.glyphs.mark} {peer.label}", view.ink.mine if peer.peer == view.me else view.ink.strong),
               (f"  {peer.peer}", view.ink.muted))  # fmt: skip
    seen = format_ago(None if peer.seen_t is None else view.now - peer.seen_t)
    ago = f"seen {seen}{'' if seen in ('now', 'never') else ' ago'}"
    sheet.row("state", state_of(peer, view), why_words(view.swarm, peer, view.now), (ago, view.ink.muted))
    _add_cluster(sheet, view, peer)
    _add_rounds(sheet, view, peer)
    _add_work(sheet, view, peer)
    _add_machine(sheet, view, peer)
    _add_penalties(sheet, view, peer)


def _add_rounds(sheet: FactSheet, view: View, peer: PeerView) -> None:
    behind = view.swarm.behind(peer.peer)
    where = (f"{behind} behind", view.ink.warn) if behind else ("up to date", view.ink.muted)
    is_here = shown_state(peer, view).is_here
    round = figures.in_round(view.swarm, peer) if is_here else None
    step = f"step {peer.step} of {peer.steps}" if peer.steps and round is not None else ""
    doing = f"in round {round}" if round is not None else ""
    sheet.row("rounds", f"{figures.anchor(peer)} committed", doing, step, where)
    sheet.row("counted", *outcome_facts(peer, view))
    newest = f"of round {view.swarm.history[-1].round}" if view.swarm.history else ""
    weight = format_percent(figures.weight(view.swarm, peer.peer))
    sheet.trend("weight", weight, figures.weights(view.swarm, peer.peer), newest)


def _add_work(sheet: FactSheet, view: View, peer: PeerView) -> None:
    norm = f"{peer.norm:.3g}" if peer.norm is not None else MISSING
    median = view.swarm.history[-1].median_norm if view.swarm.history else None
    sheet.trend("norm", norm, peer.norms, f"the group's median is {median:.3g}" if median is not None else "")
    sheet.trend("loss", format_loss(figures.own_loss(view.swarm, peer, view.now)), peer.losses)
    add_speed(sheet, view, peer)
    computes = peer.learning_rate is not None and figures.device_speed(view.swarm, peer, view.now) is not None
    rate = f"learning rate {peer.learning_rate:.2g}" if computes else ""
    sheet.row("given", f"{format_count(peer.tokens)} tokens in committed rounds", rate)


def _add_machine(sheet: FactSheet, view: View, peer: PeerView) -> None:
    uptime = f"up {format_uptime((peer.seen_t or view.now) - peer.started_t)}" if peer.started_t is not None else ""
    version = f"homefires {peer.version}" if peer.version else ""
    if peer.device or version:
        sheet.row("machine", peer.device, version, uptime)
    add_devices(sheet, view, peer)
    if peer.reports:
        sheet.row("network", *traffic_facts(peer, view))
    if (upload := figures.upload(peer)) is not None:
        how = "measured" if upload.is_measured else "pledged"
        sheet.row("line", f"{format_line(upload.bps)} up, {how}", "its share of the averaging follows that")
    if peer.network is not None:
        sheet.row("address", *peer.network.addresses[:2])
    if peer.transfer is not None:
        sheet.row("receiving", f"{peer.transfer.what} {format_transfer(peer.transfer)}")


def _add_cluster(sheet: FactSheet, view: View, peer: PeerView) -> None:
    if peer.lead:
        lead = view.swarm.peers.get(peer.lead)
        sheet.row("cluster", f"works for {lead.label if lead else peer.lead[-8:]}, under whose name its work counts")
    if not peer.stages:
        return
    took = f"a step takes {peer.step_s:.2f} s" if peer.step_s is not None else ""
    sheet.row("cluster", f"leads {peer.homes} homes, one stage of the model each", took)
    for number, stage in enumerate(peer.stages, start=1):
        home = view.swarm.peers.get(stage.peer)
        name = home.label if home is not None else stage.peer[-8:]
        computes = f"{1e3 * stage.compute_s:.0f} ms a micro-batch" if stage.compute_s is not None else ""
        sends = f"sends {format_bytes(round(stage.wire_bytes))} of it on" if stage.wire_bytes else ""
        state = shown_state(home, view).name if home is not None else ""
        sheet.row(f"stage {number}", name, stage.layers, state, computes, sends)


def _add_penalties(sheet: FactSheet, view: View, peer: PeerView) -> None:
    mine = [penalty for penalty in view.swarm.penalty_log if penalty.about == peer.peer]
    sheet.heading("Penalties", f"{len(mine)}, the newest first" if mine else "")
    if not mine:
        sheet.line((f"{view.glyphs.done} none so far", view.ink.muted))
    explained: set[str] = set()
    for penalty in list(reversed(mine))[:MOST_PENALTIES]:
        add_penalty(sheet, view, penalty, f"round {penalty.imposed_in} ", view.ink.text)
        if cost := cost_words(view.swarm, penalty):
            sheet.prose("", cost, view.ink.text)
        if penalty.code not in explained and not view.mini and penalty.code in PENALTY_PAGES:
            sheet.prose("", PENALTY_PAGES[penalty.code].short, view.ink.muted)
        explained.add(penalty.code)
