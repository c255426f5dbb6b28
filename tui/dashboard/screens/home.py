"""The first screen: what my peer does, what it is worth, and what needs a look. Without a peer: the swarm."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from itertools import islice
from typing import Any

from rich.text import Text
from textual.app import ComposeResult

from peer.events import DeviceMeasured, RoundForecast
from tui.dashboard.appearance import draw_bar
from tui.dashboard.view import Panel, TextBlock, View
from tui.dashboard.widgets.facts import TALL, FactSheet, add_holds, add_penalty, has_holds
from tui.dashboard.widgets.lines import StyledLine, cut, fit
from tui.dashboard.words import MISSING, format_count, format_percent, format_round, level_style, sort_peers, state_of
from tui.swarm.snapshot import WEIGHT_ONE, PeerView, SwarmState
from tui.text.codes import PENALTY_PAGES
from tui.text.phrases import before_words, length_brief, length_words, margin_brief, margin_words, stall_lines
from tui.text.units import count, format_bytes, format_elapsed, format_seconds, format_transfer

STAGES = (
    ("train", frozenset({""})),
    ("wait", frozenset({"submit", "prepare"})),
    ("average", frozenset({"exchange", "weigh", "reduce", "commit"})),
    ("apply", frozenset({"apply"})),
)
"""What a round consists of for a volunteer, and the phases that each stage stands for."""

TWO_COLUMNS = 120
"""Cells from which the page has two columns."""


class HomePanel(Panel):
    TITLE = "Home"

    def compose(self) -> ComposeResult:
        yield TextBlock(id="home-left")
        yield TextBlock(id="home-right")

    def draw_view(self, view: View) -> None:
        wide = view.width >= TWO_COLUMNS
        width = view.width - (3 if view.mini else 5)
        dense = view.height < TALL
        left = FactSheet(view, (width - 4) // 2 if wide else width, dense=dense)
        right = FactSheet(view, left.width, dense=dense)
        if view.mine is None:
            add_swarm(left, view)
            add_peers(right, view)
            add_penalties(right, view)
            add_alerts(right, view)
        else:
            if view.status is not None and has_holds(view):
                held = "Held up" if view.status.paused else "Slowed down"
                left.heading(held, "key 7 shows what you allow")
                add_holds(left, view, most=1 if view.mini else 4)
            _add_round(left, view, view.mine)
            if view.mini:
                add_penalties(left, view)
            _add_work(left, view, view.mine)
            _add_machine(left if wide else right, view, view.mine)
            _add_credit(right if wide else left, view, view.mine)
            if not view.mini:
                add_penalties(right if wide else left, view)
            add_alerts(right if wide else left, view)
        if view.height >= TALL:
            add_rounds(right, view)
        self.query_one("#home-left", TextBlock).draw(left.text)
        self.query_one("#home-right", TextBlock).draw(right.text)


def _add_round(sheet: FactSheet, view: View, mine: PeerView) -> None:
    """round 6  ━━━━━━━━━━─────── 21 of 40, and below it train → wait → average → apply"""
    sheet.heading("Round")
    steps = f" {mine.step} of {mine.steps}" if mine.steps else ""
    full, rest = draw_bar(mine.step / max(1, mine.steps), min(64, sheet.room - 12), view.glyphs)
    bar = Text.assemble((full, view.ink.good), (rest, view.ink.track), (steps, view.ink.text))
    sheet.row(f"round {mine.round + 1}", bar)
    if mine.stalled is not None and not view.mini:
        sheet.prose("", mine.stalled.why, view.ink.bad)
    current = next((number for number, (_, phases) in enumerate(STAGES) if mine.phase in phases), 0)
    if view.mini:
        sheet.row("stage", (STAGES[current][0], view.ink.strong), mine.phase)
        add_outlook(sheet, view, mine)
        return
    stages = Text()
    for number, (name, _) in enumerate(STAGES):
        style = view.ink.strong if number == current else view.ink.muted
        stages.append(f" {view.glyphs.arrow} " if number else "", style=view.ink.track)
        stages.append(f"{view.glyphs.done} {name}" if number < current else name, style=style)
    sheet.row("stage", stages, mine.phase if mine.phase and mine.phase != STAGES[current][0] else "")
    add_outlook(sheet, view, mine)


def _add_work(sheet: FactSheet, view: View, mine: PeerView) -> None:
    sheet.heading("Learning")
    loss = f"{mine.loss:.3f}" if mine.loss is not None else MISSING
    held_out = [f"held out {loss:.3f} at round {round}" for round, loss in view.swarm.losses[-1:]]
    sheet.row("loss", (loss, view.ink.strong), *held_out)
    sheet.curve(mine.losses)
    _add_sources(sheet, view.swarm)
    speed = f"{format_count(mine.tokens_per_s)} tokens/s" if mine.tokens_per_s else MISSING
    sheet.trend("speed", speed, mine.speeds)
    add_sample(sheet, view)


def add_sample(sheet: FactSheet, view: View) -> None:
    """The newest one, in about two lines; nothing where the run has no prompts."""
    if not view.swarm.samples or view.mini:
        return
    sample = view.swarm.samples[-1]
    sheet.row("prompt", (sample.prompt, view.ink.muted))
    text, room = f"round {sample.round}: {sample.text}", 2 * sheet.room
    sheet.prose("continued", text if len(text) <= room else text[: room - 1] + view.glyphs.ellipsis)


def _add_sources(sheet: FactSheet, swarm: SwarmState) -> None:
    """Of a mix: what is learned of one source may be lost of another."""
    for round, _ in swarm.source_losses[-1:]:
        sheet.row("by source", swarm.sources_in_words(round))


def _add_machine(sheet: FactSheet, view: View, mine: PeerView) -> None:
    sheet.heading("This machine", mine.device)
    add_devices(sheet, mine)
    sheet.row("network", *traffic_facts(mine, view))
    if mine.transfer is not None:
        sheet.row("receiving", f"{mine.transfer.what} {format_transfer(mine.transfer)}")


def add_devices(sheet: FactSheet, peer: PeerView) -> None:
    """Which they are and how they share the model, where there are several, and what training takes of each."""
    if len(peer.devices) > 1:
        sheet.row("devices", ", ".join(peer.devices), peer.sharding)
    elif peer.sharding:
        sheet.row("layers", peer.sharding)
    for label, facts in device_facts(peer.device_figures):
        sheet.row(label, *facts)


def device_facts(figures: DeviceMeasured | None) -> list[tuple[str, list[str]]]:
    """(label, facts) of what training takes; a figure that the machine does not give is N/A."""
    if figures is None:
        return []
    rows = []
    if figures.cpu_percent is not None or figures.memory_bytes is not None:
        rows.append(("processor", [_figure(figures.cpu_percent, "%"), f"memory {_bytes(figures.memory_bytes)}"]))
    if figures.gpus:
        return [*rows, *((gpu["device"], _gauge(gpu)) for gpu in figures.gpus)]
    if figures.vram_bytes is not None or figures.gpu_percent is not None:
        vram = f"{_bytes(figures.vram_used_bytes)} of {_bytes(figures.vram_bytes)}"
        rows.append(("GPU", [_figure(figures.gpu_percent, "%"), vram]))
        power = f"{_figure(figures.power_w, '')} of {_figure(figures.power_limit_w, 'W')}"
        heat = [_figure(figures.temperature_c, "°C"), power, f"fan {_figure(figures.fan_percent, '%')}"]
        rows.append(("", [*heat, f"throttled: {figures.throttled}" if figures.throttled else ""]))
    return rows


def _gauge(gpu: Mapping[str, Any]) -> list[str]:
    """One of several GPUs: as many figures as half a page has room for."""
    vram = f"{_bytes(gpu['vram_used_bytes'])} of {_bytes(gpu['vram_bytes'])}"
    throttled = f"throttled: {gpu['throttled']}" if gpu["throttled"] else ""
    heat = [_figure(gpu["temperature_c"], "°C"), _figure(gpu["power_w"], "W")]
    return [_figure(gpu["gpu_percent"], "%"), vram, *heat, throttled]


def traffic_facts(peer: PeerView, view: View) -> list[str]:
    """What went up and down since its start, and how others reach it."""
    network, glyphs = peer.network, view.glyphs
    sent = network.bytes_sent if network else peer.bytes_sent
    received = network.bytes_received if network else peer.bytes_received
    reach = (network.reach if network else "") or "reach unknown"
    return [f"{glyphs.up} {format_bytes(sent)}", f"{glyphs.down} {format_bytes(received)}", reach]


def _add_credit(sheet: FactSheet, view: View, mine: PeerView) -> None:
    sheet.heading("You")
    share = f"{format_percent(mine.weight)} of the last round" if mine.weight is not None else "not in a round yet"
    part = f"{format_percent(mine.tokens / view.swarm.tokens)} of the swarm's" if view.swarm.tokens else ""
    sheet.row("given", (f"{format_count(mine.tokens)} tokens", view.ink.strong), part)
    sheet.row("weight", (share, view.ink.strong))
    late = (f"{mine.late} late", view.ink.warn if mine.late else view.ink.text)
    rejected = (f"{mine.rejected} rejected", view.ink.warn if mine.rejected else view.ink.text)
    missed = (f"{mine.missed} missed" if mine.missed else "", view.ink.warn)
    sheet.row("rounds", f"{mine.accepted} {'ok' if view.mini else 'accepted'}", late, rejected, missed)


def add_penalties(sheet: FactSheet, view: View) -> None:
    """Those that last now: those of my peer, or of all where there is none."""
    lasting = [penalty for penalty in view.swarm.lasting if view.mine is None or penalty.about == view.me]
    sheet.heading("Penalties" if view.mine is None else "Penalties against you")
    if not lasting and not view.mini:
        sheet.nothing("penalties", "none lasts now")
    for penalty in lasting[-4:]:
        about = f"{view.swarm.label(penalty.about)} " if view.mine is None else ""
        add_penalty(sheet, view, penalty, about, view.ink.muted)
    if len(lasting) > 4:
        sheet.row("", (f"and {len(lasting) - 4} more (key 3)", view.ink.muted))


def add_alerts(sheet: FactSheet, view: View) -> None:
    """The last three warnings and errors; penalties have their own place."""
    alerts = [entry for entry in view.swarm.entries if entry.level != "info" and entry.code not in PENALTY_PAGES][-3:]
    sheet.heading("Alerts", "a shows all" if alerts else "")
    if not alerts and not view.mini:
        sheet.nothing("alerts", "none")
    for entry in reversed(alerts):
        time = format_elapsed(entry.t - (view.swarm.started_t or entry.t))
        who = f"{view.swarm.label(entry.peer)}: " if entry.peer and entry.peer != view.me else ""
        sheet.prose(time, f"{entry.level}: {who}{entry.text}", level_style(entry.level, view.ink))


def _figure(value: float | None, unit: str) -> str:
    return MISSING if value is None else f"{value:.0f} {unit}".rstrip()


def _bytes(count: int | None) -> str:
    return MISSING if count is None else format_bytes(count)


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
    _add_sources(sheet, swarm)
    sheet.trend("training", f"{swarm.training[-1].value:.3f}" if swarm.training else MISSING, swarm.training)
    speed = f"{format_count(swarm.speeds[-1].value)} tokens/s" if swarm.speeds else MISSING
    sheet.trend("speed", speed, swarm.speeds)
    add_sample(sheet, view)
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


MOST_ADVICE = 2
"""Lines of what helps."""
MOST_STALL = 4
"""Lines of why a round stands still."""


def draw_outlook(view: View, width: int, *, roomy: bool) -> list[Text]:
    """Above the lanes, of my peer or without one of mine of the selected one: why its round stands still, if it does; a
    line on the round, one on the margin, and what helps. Where there is no room only what is late, or nearly so, has a
    line; the header says what stands still."""
    peer = view.mine or view.swarm.peers.get(view.selected)
    if peer is not None and peer.stalled is not None and roomy:
        said = (text for told in stall_lines(peer.stalled) for text in textwrap.wrap(told, max(20, width - 2)))
        return [_line([("  ", ""), (text, view.ink.bad)], width, view) for text in islice(said, MOST_STALL)]
    forecast = peer.expected if peer is not None else None
    if peer is None or forecast is None or not (roomy or forecast.advice):
        return []
    words, style = margin_words(forecast), _style(forecast, view)
    if not roomy:
        return [_line([(f"{view.glyphs.alert} round {forecast.round}: {words}", style)], width, view)]
    dot = f" {view.glyphs.dot} "
    whose = f" for {peer.label}" if view.mine is None else ""
    head: StyledLine = [
        (f"Round {forecast.round}{whose}", view.ink.strong),
        (f" {length_words(forecast)}", view.ink.text),
    ]
    if (so_far := _so_far(view, forecast)) is not None:
        over = so_far > forecast.high_s
        head.append((f"{dot}{format_seconds(so_far)} so far", view.ink.warn if over else view.ink.muted))
    margin: StyledLine = [("  ", ""), (words, style), (f"{dot}{before_words(forecast)}", view.ink.muted)]
    lines = [_line(head, width, view), _line(margin, width, view)]
    for text in textwrap.wrap(forecast.advice, max(20, width - 2))[:MOST_ADVICE]:
        lines.append(_line([("  ", ""), (text, view.ink.warn)], width, view))
    return lines


def add_outlook(sheet: FactSheet, view: View, mine: PeerView) -> None:
    """The same on the first screen; on the smallest page only what needs a look."""
    forecast = mine.expected
    if forecast is None or (view.mini and not forecast.advice):
        return
    sheet.row("forecast", (margin_brief(forecast), _style(forecast, view)), length_brief(forecast))
    if forecast.advice and not view.mini:
        sheet.prose("", forecast.advice, view.ink.warn)


def _so_far(view: View, forecast: RoundForecast) -> float | None:
    """Whole seconds since the round before was committed; None if that was not told."""
    last = view.swarm.history[-1] if view.swarm.history else None
    if last is None or last.round != forecast.round - 1:
        return None
    return max(0.0, float(int(view.now - last.t)))


def _style(forecast: RoundForecast, view: View) -> str:
    if forecast.late_s is None:
        return view.ink.muted
    return view.ink.warn if forecast.advice or forecast.late_s > 0 else view.ink.good


def _line(pieces: StyledLine, width: int, view: View) -> Text:
    return Text.assemble(*cut(pieces, width, view.glyphs.ellipsis))
