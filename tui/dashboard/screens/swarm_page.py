"""A run in which this machine takes no part, or a recording of one: the swarm as a whole."""

from __future__ import annotations

from tui.dashboard.glyphs import draw_bar
from tui.dashboard.view import View
from tui.dashboard.widgets.facts import FactSheet
from tui.dashboard.widgets.lines import fit
from tui.dashboard.words import MISSING, format_count, format_percent, format_round, sort_peers, state_of
from tui.swarm.snapshot import WEIGHT_ONE
from tui.text.units import count, format_bytes

MOST_PEERS, MOST_ROUNDS = 12, 8
"""Rows of the first screen; the Peers and the Rounds screen have all of them."""

STATE_CELLS, OTHER_CELLS = 12, 43
"""Of a peer's row: its state, and all but its name, as in `99 behind`."""


def add_swarm(sheet: FactSheet, view: View) -> None:
    """How far the run is, how well it learns, what it takes."""
    swarm, ink, glyphs = view.swarm, view.ink, view.glyphs
    sheet.heading("Run")
    if swarm.rounds:
        full, rest = draw_bar(swarm.round / swarm.rounds, min(40, sheet.room - 10), glyphs)
        sheet.line((f"{'rounds':<{sheet.gutter}}", ink.muted), (full, ink.good), (rest, ink.track),
                   (f" {swarm.round} of {swarm.rounds}", ink.text))  # fmt: skip
    last = swarm.history[-1] if swarm.history else None
    if last is not None:
        void = (count(last.void, "void part"), ink.warn) if last.void else ""
        tokens = f"{format_count(last.tokens)} tokens"
        sheet.row("last", format_round(last.round_s), count(len(last.group), "peer"), tokens, void)
        sheet.row("anchor", last.digest[:12], f"{last.aborted} tries aborted" if last.aborted else "")
    sheet.heading("Learning")
    held_out = f"{swarm.losses[-1][1]:.3f}" if swarm.losses else MISSING
    sheet.row(
        "held out", (held_out, ink.strong), f"nats per token at round {swarm.losses[-1][0]}" if swarm.losses else ""
    )
    sheet.curve(swarm.evaluations)
    sheet.trend("training", f"{swarm.training[-1].value:.3f}" if swarm.training else MISSING, swarm.training)
    speed = f"{format_count(swarm.speeds[-1].value)} tokens/s" if swarm.speeds else MISSING
    sheet.trend("speed", speed, swarm.speeds)
    sheet.row("tokens", f"{format_count(swarm.tokens)} in all rounds")
    received = sum(peer.bytes_received for peer in swarm.reporting)
    sheet.row("traffic", f"{glyphs.up} {format_bytes(swarm.bytes_sent)}", f"{glyphs.down} {format_bytes(received)}")


def add_peers(sheet: FactSheet, view: View) -> None:
    """One line per peer, those that need a look first."""
    swarm = view.swarm
    sheet.heading("Peers", f"{len(swarm.peers)}")
    shown = sort_peers(swarm.peers.values(), view)[:MOST_PEERS]
    name = min(15, max(8, sheet.width - OTHER_CELLS))
    for peer in shown:
        behind, state = swarm.behind(peer.peer), state_of(peer, view)
        sheet.line(
            state, " " * max(1, STATE_CELLS - state.cell_len),
            (fit(peer.label, name, view.glyphs.ellipsis), view.ink.text),
            (f"{format_percent(peer.weight):>8}", view.ink.text),
            (f"{format_count(peer.tokens_per_s):>6} tok/s", view.ink.muted),
            (f"  {behind} behind" if behind else "", view.ink.warn),
        )  # fmt: skip
    if len(swarm.peers) > len(shown):
        sheet.line((f"and {len(swarm.peers) - len(shown)} more (key 2)", view.ink.muted))


def add_rounds(sheet: FactSheet, view: View) -> None:
    """The last rounds, the newest first: what each took, and what mine was in it."""
    if view.mine is None:
        sheet.heading("Last rounds", "peers, tokens, time, held-out loss")
    else:
        sheet.heading("What your last rounds counted for", "weight, tokens, time")
    losses = dict(view.swarm.losses)
    for done in list(reversed(view.swarm.history))[:MOST_ROUNDS]:
        number = (f"round {done.round:<{sheet.gutter - 6}}", view.ink.muted)
        if view.mine is None:
            loss = f"{losses[done.round]:>9.3f}" if done.round in losses else " " * 9
            sheet.line(number, f"{count(len(done.group), 'peer'):<9}", f"{format_count(done.tokens):>6} tokens",
                       f"{format_round(done.round_s):>10}", (loss, view.ink.strong))  # fmt: skip
            continue
        if view.me not in done.weights:
            sheet.line(number, ("not in the group", view.ink.warn))
            continue
        mine = [penalty for penalty in done.penalties if penalty.about == view.me]
        codes = ", ".join(f"{penalty.code} counts {100 * penalty.factor:.0f} %" for penalty in mine)
        share = (f"{format_percent(done.weights[view.me] / WEIGHT_ONE):>7}", view.ink.strong)
        tokens = f"{format_count(done.given.get(view.me, 0)):>8} tokens"
        sheet.line(number, share, tokens, f"{format_round(done.round_s):>10}", (f"  {codes}", view.ink.warn))
    if not view.swarm.history:
        sheet.nothing("rounds", "none is committed yet")
