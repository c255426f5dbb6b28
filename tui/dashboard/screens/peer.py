"""All that is known of one peer: what it does, what it gave, what it counted for, and every penalty with its reason."""

from __future__ import annotations

from textual.app import ComposeResult

from tui.dashboard.screens.home import add_devices, traffic_facts
from tui.dashboard.view import Panel, TextBlock, View
from tui.dashboard.widgets.facts import FactSheet, add_penalty
from tui.dashboard.widgets.penalties import cost_words, told_in
from tui.dashboard.words import (
    MISSING,
    format_ago,
    format_count,
    format_percent,
    format_uptime,
    shown_state,
    shown_why,
    state_of,
)
from tui.swarm.snapshot import WEIGHT_ONE, PeerView, Point
from tui.text.codes import PENALTY_PAGES
from tui.text.units import format_bytes, format_line, format_transfer

MOST_PENALTIES = 64
"""Of one peer that are listed, the newest first."""


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
    sheet.row("state", state_of(peer, view), shown_why(peer, view), (ago, view.ink.muted))
    _add_cluster(sheet, view, peer)
    _add_rounds(sheet, view, peer)
    _add_work(sheet, view, peer)
    _add_machine(sheet, view, peer)
    _add_penalties(sheet, view, peer)


def _add_rounds(sheet: FactSheet, view: View, peer: PeerView) -> None:
    behind = view.swarm.behind(peer.peer)
    where = (f"{behind} behind", view.ink.warn) if behind else ("up to date", view.ink.muted)
    sheet.row("round", f"{peer.round}", f"step {peer.step} of {peer.steps}" if peer.steps else "", where)
    late = (f"{peer.late} late", view.ink.warn if peer.late else view.ink.text)
    rejected = (f"{peer.rejected} rejected", view.ink.warn if peer.rejected else view.ink.text)
    sheet.row("counted", f"{peer.accepted} accepted", late, rejected, f"{peer.missed} missed")
    history = [done for done in view.swarm.history if peer.peer in done.weights]
    weights = [done.weights[peer.peer] / WEIGHT_ONE for done in history]
    shares = [Point(t=at.t, round=at.round, tokens=0, value=share) for at, share in zip(history, weights, strict=True)]
    sheet.trend("weight", format_percent(peer.weight), shares, f"of round {history[-1].round}" if history else "")


def _add_work(sheet: FactSheet, view: View, peer: PeerView) -> None:
    norm = f"{peer.norm:.3g}" if peer.norm is not None else MISSING
    group = sorted(view.swarm.history[-1].norms.values()) if view.swarm.history else []
    usual = f"the group's median is {group[len(group) // 2]:.3g}" if group else ""
    sheet.trend("norm", norm, peer.norms, usual)
    loss = f"{peer.loss:.3f}" if peer.loss is not None else MISSING
    sheet.trend("loss", loss, peer.losses)
    speed = f"{format_count(peer.tokens_per_s)} tokens/s" if peer.tokens_per_s else MISSING
    sheet.trend("speed", speed, peer.speeds)
    rate = f"learning rate {peer.learning_rate:.2g}" if peer.learning_rate is not None else ""
    sheet.row("given", f"{format_count(peer.tokens)} tokens in committed rounds", rate)


def _add_machine(sheet: FactSheet, view: View, peer: PeerView) -> None:
    uptime = f"up {format_uptime((peer.seen_t or view.now) - peer.started_t)}" if peer.started_t is not None else ""
    version = f"homefires {peer.version}" if peer.version else ""
    if peer.device or version:
        sheet.row("machine", peer.device, version, uptime)
    add_devices(sheet, peer)
    if peer.reports:
        sheet.row("network", *traffic_facts(peer, view))
    if peer.upload_bps:
        sheet.row("line", f"{format_line(peer.upload_bps)} up", "its share of the averaging follows that")
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
        state = shown_state(home, view) if home is not None else ""
        sheet.row(f"stage {number}", name, stage.layers, state, computes, sends)


def _add_penalties(sheet: FactSheet, view: View, peer: PeerView) -> None:
    mine = [penalty for penalty in view.swarm.penalty_log if penalty.about == peer.peer]
    sheet.heading("Penalties", f"{len(mine)}, the newest first" if mine else "")
    if not mine:
        sheet.line((f"{view.glyphs.done} none so far", view.ink.muted))
    explained: set[str] = set()
    for penalty in list(reversed(mine))[:MOST_PENALTIES]:
        add_penalty(sheet, view, penalty, f"round {penalty.imposed_in} ", view.ink.text)
        if cost := cost_words(penalty, told_in(view.swarm, penalty)):
            sheet.prose("", cost, view.ink.text)
        if penalty.code not in explained and not view.mini and penalty.code in PENALTY_PAGES:
            sheet.prose("", PENALTY_PAGES[penalty.code].short, view.ink.muted)
        explained.add(penalty.code)
