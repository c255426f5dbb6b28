"""The first screen: what my peer does, what it has contributed, and what needs attention. Without a peer: the swarm."""

from __future__ import annotations

import textwrap
from functools import partial
from itertools import islice

from rich.cells import cell_len
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical

from peer.schema.byte_text import format_bytes
from peer.schema.events import RoundForecast
from tui.dashboard.appearance import draw_bar
from tui.dashboard.screens.curves import plot_of, range_of
from tui.dashboard.styles import level_style, shown_state, state_of
from tui.dashboard.view import Panel, TextBlock, View
from tui.dashboard.widgets.chart import SeriesChart
from tui.dashboard.widgets.facts import TALL, FactSheet, Piece, add_holds, add_penalty, has_holds
from tui.dashboard.widgets.lines import StyledLine, cut, fit
from tui.swarm import figures
from tui.swarm.figure_text import left_words, rounds_words
from tui.swarm.phase_styles import STAGES, phase
from tui.swarm.snapshot import PeerView
from tui.text.event_text import (
    before_words,
    counts_words,
    length_brief,
    length_words,
    margin_brief,
    margin_words,
    stall_lines,
)
from tui.text.explain import PENALTY_PAGES
from tui.text.units import (
    MISSING,
    count,
    format_count,
    format_elapsed,
    format_loss,
    format_percent,
    format_round,
    format_seconds,
    format_transfer,
)

TWO_COLUMNS, ROOMY = 120, 48
"""From this number of cells on, the page has two columns; from this number of lines on, a volunteer's page also
shows the other peers."""
ROOMY_CELLS = 80
"""From this width of a column in cells on, bars are long and penalties are described in words."""
LEAST_ROWS = 8
"""The lines that a chart needs."""
NEWEST = 3 / 4
"""The newest part of the run that charts show: the fall at its beginning would leave no height for the present."""


class HomePanel(Panel):
    """The state comes first, then what needs attention; charts get the remaining space."""

    TITLE = "Home"

    def compose(self) -> ComposeResult:
        for side, chart in (("left", "loss"), ("right", "tokens")):
            with Vertical(id=f"home-{side}"):
                yield TextBlock(id=f"home-{side}-facts")
                yield SeriesChart(id=f"home-{chart}")

    def draw_view(self, view: View) -> None:
        wide, dense = view.width >= TWO_COLUMNS, view.height < TALL
        width = view.width - (3 if view.mini else 5)
        left = FactSheet(view, (width - 4) // 2 if wide else width, dense=dense)
        right = FactSheet(view, left.width, dense=dense)
        _add_left(left, view)
        _add_right(right, view, roomy=wide and view.height >= ROOMY)
        add_sample(right if dense else left, view)
        self.query_one("#home-left-facts", TextBlock).draw(left.text)
        self.query_one("#home-right-facts", TextBlock).draw(right.text)
        beside = 0 if wide else right.height
        self._show_chart("loss", view, 0 if dense else max(LEAST_ROWS, self._room - left.height - beside))
        self._show_chart("tokens", view, self._room - right.height if wide and not dense else 0)

    @property
    def _room(self) -> int:
        """The lines of the page, except for the empty one above a chart."""
        return self.content_size.height - 1

    def _show_chart(self, name: str, view: View, rows: int) -> None:
        chart = self.query_one(f"#home-{name}", SeriesChart)
        chart.display = rows >= LEAST_ROWS
        if chart.display:
            chart.styles.height = rows
            low, high = range_of("rounds", view, view.mine)
            low = high - NEWEST * (high - low)
            chart.show(partial(plot_of, name, "rounds", view, view.mine, low, high), view)


def _add_left(sheet: FactSheet, view: View) -> None:
    """The left side: the run, my peer's round, and how the model learns."""
    mine = view.mine
    if mine is not None and has_holds(view):
        sheet.heading("Held up" if view.status and view.status.paused else "Slowed down", "key 7 shows what you allow")
        add_holds(sheet, view, most=1 if view.mini else 4)
    if mine is None or not view.mini:
        add_run(sheet, view)
    if mine is not None:
        _add_round(sheet, view, mine)
    if view.mini:
        add_penalties(sheet, view)
    add_learning(sheet, view)


def _add_right(sheet: FactSheet, view: View, *, roomy: bool) -> None:
    """The right side: my peer's credit and machine, or the peers of the swarm; what needs attention; the last
    rounds."""
    if view.mine is None:
        add_peers(sheet, view)
    else:
        _add_credit(sheet, view, view.mine)
    if not view.mini:
        add_penalties(sheet, view)
    add_alerts(sheet, view)
    if view.mine is not None:
        _add_machine(sheet, view, view.mine)
    if view.height >= TALL:
        add_rounds(sheet, view)
    if view.mine is not None and roomy:
        add_peers(sheet, view)


def add_run(sheet: FactSheet, view: View) -> None:
    """The run's model, its progress, and its expected end; for a watcher also the newest round."""
    swarm = view.swarm
    sheet.heading("Run")
    parameters = figures.parameters(swarm)
    if not view.mini:
        size = f"{format_count(parameters)} parameters" if parameters is not None else ""
        sheet.flow("model", figures.trains(swarm), size)
    left = left_words(figures.seconds_left(swarm, view.now, view.mine))
    far = _bar(sheet, view, swarm.round, swarm.rounds) if swarm.rounds else rounds_words(swarm)
    sheet.row("rounds", far, left)
    if view.mine is None and swarm.history:
        last = swarm.history[-1]
        void = (count(last.void, "void part"), view.ink.warn) if last.void else ""
        took, tokens = format_round(figures.round_seconds(last)), f"{format_count(last.tokens)} tokens"
        sheet.row("last", took, count(len(last.group), "peer"), tokens, void)
        aborted = f"{last.aborted} tries aborted" if last.aborted else ""
        if aborted or view.height >= TALL:
            sheet.row("digest", last.digest[:12], aborted)


def _bar(sheet: FactSheet, view: View, done: int, whole: int) -> Text:
    """━━━━━━━━━━─────── 21 of 40, with space for a duration after it."""
    width = max(4, min(40, sheet.room - (14 if view.mini else 34)))
    full, rest = draw_bar(done / max(1, whole), width, view.glyphs)
    return Text.assemble((full, view.ink.good), (rest, view.ink.track), (f" {done} of {whole}", view.ink.text))


def _add_round(sheet: FactSheet, view: View, mine: PeerView) -> None:
    """round 6  ━━━━━━━━━━─────── 21 of 40, and below it train → wait → average → apply"""
    round = figures.in_round(view.swarm, mine)
    if round is None or not shown_state(mine, view).is_here or not (mine.steps or mine.phase or mine.stalled):
        return  # also before the run has begun: no peer has a round yet
    sheet.heading("Round")
    left = left_words(figures.round_seconds_left(view.swarm, view.now, mine))
    sheet.row(f"round {round}", _bar(sheet, view, mine.step, mine.steps), left)
    if mine.stalled is not None and not view.mini:
        sheet.prose("", mine.stalled.why, view.ink.bad)
    current = phase(mine.phase).stage or "train"
    if view.mini:
        sheet.row("stage", (current, view.ink.strong), mine.phase)
    else:
        stages = Text()
        for number, name in enumerate(STAGES):
            style = view.ink.strong if name == current else view.ink.muted
            stages.append(f" {view.glyphs.arrow} " if number else "", style=view.ink.track)
            stages.append(f"{view.glyphs.done} {name}" if number < STAGES.index(current) else name, style=style)
        sheet.row("stage", stages, mine.phase if mine.phase != current else "")
    add_outlook(sheet, view, mine)


def add_learning(sheet: FactSheet, view: View) -> None:
    """The state of learning in words, with small curves where large ones do not fit."""
    swarm, mine, dense = view.swarm, view.mine, view.height < TALL
    sheet.heading("Learning")
    held_out = figures.held_out(swarm)
    if mine is None:
        where = f"at round {held_out.round}, lower is better" if held_out is not None else ""
        told = format_loss(held_out.value if held_out is not None else None)
        sheet.trend("held out", told, swarm.evaluations if dense else (), where)
        sheet.trend("training", format_loss(figures.training_loss(swarm)), swarm.training if dense else ())
    else:
        where = f"held out {held_out.value:.3f} at round {held_out.round}" if held_out is not None else ""
        told = format_loss(figures.own_loss(swarm, mine, view.now))
        sheet.trend("loss", told, mine.losses if dense else (), where)
    for round, _ in swarm.source_losses[-1:]:  # of a mix: what is learned of one source may be lost of another
        sheet.row("by source", swarm.sources_in_words(round))
    add_speed(sheet, view, mine)
    if mine is None:
        sheet.row("tokens", f"{format_count(swarm.tokens)} in all rounds")
        sheet.row("traffic", *_up_and_down(figures.round_traffic(swarm), view), "in rounds")


def add_speed(sheet: FactSheet, view: View, peer: PeerView | None) -> None:
    """The speed of a peer, or of the run."""
    speed = figures.device_speed(view.swarm, peer, view.now) if peer is not None else figures.throughput(view.swarm)
    when = "" if view.mini else " counted" if peer is None else " while it computes"
    told = f"{format_count(speed)} tokens/s{when}" if speed is not None else MISSING
    sheet.trend("speed", told, view.swarm.speeds if peer is None else peer.speeds)


def add_sample(sheet: FactSheet, view: View) -> None:
    """The newest sample, in about two lines; nothing if the run has no prompts."""
    if not view.swarm.samples or view.mini:
        return
    sample = view.swarm.samples[-1]
    sheet.row("prompt", (sample.prompt, view.ink.muted))
    text, room = f"round {sample.round}: {sample.text}", 2 * sheet.room
    sheet.prose("continued", text if len(text) <= room else text[: room - 1] + view.glyphs.ellipsis)


def _add_machine(sheet: FactSheet, view: View, mine: PeerView) -> None:
    sheet.heading("This machine", mine.device)
    add_devices(sheet, view, mine)
    sheet.row("network", *traffic_facts(mine, view))
    if mine.transfer is not None:
        sheet.row("receiving", f"{mine.transfer.what} {format_transfer(mine.transfer)}")


def add_devices(sheet: FactSheet, view: View, peer: PeerView) -> None:
    """The peer's devices and how they share the model, if there are several, and the load of training on each."""
    if len(peer.devices) > 1:
        sheet.row("devices", ", ".join(peer.devices), peer.sharding)
    elif peer.sharding:
        sheet.row("layers", peer.sharding)
    measured = figures.gauges(view.swarm, peer, view.now)
    if measured is None:
        return
    memory = f"memory {format_bytes(measured.memory_bytes)}" if measured.memory_bytes is not None else ""
    sheet.flow("processor", _figure(measured.cpu_percent, "%"), memory)
    most_c = peer.settings.get("max_temperature_c")
    for gpu in measured.gpus or [{"device": "GPU", **vars(measured)}]:
        use, used, whole = gpu["gpu_percent"], gpu["vram_used_bytes"], gpu["vram_bytes"]
        vram = " of ".join(format_bytes(number) for number in (used, whole) if number is not None)
        throttled = (f"throttled: {gpu['throttled']}", view.ink.warn) if gpu["throttled"] else ""
        sheet.flow(
            gpu["device"], _gauge(sheet, view, use and use / 100, _figure(use, "%")),
            _gauge(sheet, view, used / whole if used is not None and whole else None, vram),
            _limited(gpu["temperature_c"], most_c, "°C"), _limited(gpu["power_w"], gpu["power_limit_w"], "W"),
            throttled, f"fan {fan}" if (fan := _figure(gpu["fan_percent"], "%")) and sheet.room >= ROOMY_CELLS else "",
        )  # fmt: skip


def _gauge(sheet: FactSheet, view: View, share: float | None, told: str) -> Piece:
    """━━━━━━━━── 81 %, with the bar only if it fits."""
    cells = 10 if sheet.room >= ROOMY_CELLS else 6 if sheet.room >= 40 else 0
    if share is None or not cells:
        return told
    full, rest = draw_bar(share, cells, view.glyphs)
    return Text.assemble((full, view.ink.good), (rest, view.ink.track), (f" {told}", view.ink.text))


def _limited(value: float | None, most: float | None, unit: str) -> str:
    """181 of 220 W; without the limit if the machine has none."""
    return _figure(value, unit) if value is None or most is None else f"{value:.0f} of {most:.0f} {unit}"


def _figure(value: float | None, unit: str) -> str:
    """The value with its unit; empty if the machine does not report it."""
    return "" if value is None else f"{value:.0f} {unit}"


def traffic_facts(peer: PeerView, view: View) -> list[str]:
    """The traffic of the peer's link, or of its rounds if the link was not measured; and how others reach the peer."""
    traffic, since = figures.link_traffic(peer), "since it started"
    if traffic is None:
        traffic, since = figures.round_traffic(peer), "in rounds"
    reach = (peer.network.reach if peer.network is not None else "") or "reach unknown"
    return [*_up_and_down(traffic, view), since, reach]


def _up_and_down(traffic: figures.Volume, view: View) -> list[str]:
    return [f"{view.glyphs.up} {format_bytes(traffic.sent)}", f"{view.glyphs.down} {format_bytes(traffic.received)}"]


def _add_credit(sheet: FactSheet, view: View, mine: PeerView) -> None:
    sheet.heading("You")
    weight = figures.weight(view.swarm, mine.peer)
    share = f"{format_percent(weight)} of the last round" if weight is not None else "no round yet"
    part = f"{format_percent(figures.token_share(view.swarm, mine))} of the swarm's" if view.swarm.tokens else ""
    sheet.row("given", (f"{format_count(mine.tokens)} tokens", view.ink.strong), part)
    sheet.row("weight", (share, view.ink.strong))
    sheet.row("counted", *outcome_facts(mine, view))


def outcome_facts(peer: PeerView, view: View) -> list[Piece]:
    """The number of rounds by how the peer's contributions counted; zeros other than `accepted` are left out."""
    facts: list[Piece] = []
    for word, number in figures.counts(peer).items():
        if number or word == "accepted":
            short = "ok" if view.mini and word == "accepted" else word
            facts.append((f"{number} {short}", view.ink.text if word in ("accepted", "idle") else view.ink.warn))
    return facts


def add_penalties(sheet: FactSheet, view: View) -> None:
    """The penalties in force: those of my peer, or of all peers if there is none."""
    lasting = figures.active_penalties(view.swarm, view.me if view.mine is not None else "")
    sheet.heading("Penalties" if view.mine is None else "Penalties against you")
    if not lasting and not view.mini:
        sheet.nothing("penalties", "none lasts now")
    for penalty in lasting[-4:]:
        about = f"{view.swarm.label(penalty.about)} " if view.mine is None else ""
        add_penalty(sheet, view, penalty, about, view.ink.muted)
    if len(lasting) > 4:
        sheet.row("", (f"and {len(lasting) - 4} more (key 3)", view.ink.muted))


def add_alerts(sheet: FactSheet, view: View) -> None:
    """The last three warnings and errors that still stand. Penalties are shown elsewhere, and what holds my peer up."""
    alerts = [
        entry
        for entry in figures.standing_alerts(view.swarm)
        if entry.code not in PENALTY_PAGES
        and not (entry.code == "PAUSED" and entry.peer == view.me and has_holds(view))
    ][-3:]
    sheet.heading("Alerts", "a shows all" if alerts else "")
    if not alerts and not view.mini:
        sheet.nothing("alerts", "none")
    for entry in reversed(alerts):
        time = format_elapsed(entry.t - (view.swarm.started_t or entry.t))
        who = f"{view.swarm.label(entry.peer)}: " if entry.peer and entry.peer != view.me else ""
        sheet.prose(time, f"{entry.level}: {who}{entry.text}", level_style(entry.level, view.ink))


STATE_CELLS, OTHER_CELLS = 12, 43
"""Cells of a peer's row: its state, and everything except its name, such as `99 behind`."""


def add_peers(sheet: FactSheet, view: View) -> None:
    """One line per peer; those that need attention come first."""
    swarm = view.swarm
    sheet.heading("Peers", f"{len(swarm.peers)}: last weight, tokens/s while it computes")
    shown = figures.by_urgency(swarm, view.now)[: max(4, view.height // 3 - 1)]
    longest = max((cell_len(peer.label) for peer in shown), default=0)
    name = min(max(15, longest), max(8, sheet.width - OTHER_CELLS))
    for peer in shown:
        behind, state = swarm.behind(peer.peer), state_of(peer, view)
        speed = figures.device_speed(swarm, peer, view.now)
        sheet.line(
            state, " " * max(1, STATE_CELLS - state.cell_len),
            (fit(peer.label, name, view.glyphs.ellipsis), view.ink.text),
            (f"{format_percent(figures.weight(swarm, peer.peer)):>8}", view.ink.text),
            (f"{format_count(speed):>6} tok/s" if speed is not None else " " * 12, view.ink.muted),
            (f"  {behind} behind" if behind else "", view.ink.warn),
        )  # fmt: skip
    if len(swarm.peers) > len(shown):
        sheet.line((f"and {len(swarm.peers) - len(shown)} more (key 2)", view.ink.muted))


def add_rounds(sheet: FactSheet, view: View) -> None:
    """The last rounds, the newest first: how long each took, and how my peer's contribution counted."""
    if view.mine is None:
        sheet.heading("Last rounds", "peers, tokens, time, held-out loss")
    else:
        sheet.heading("What your last rounds counted for", "weight, tokens, time")
    losses, roomy = dict(view.swarm.losses), sheet.width >= ROOMY_CELLS
    for done in list(reversed(view.swarm.history))[: view.height // 4]:
        took = f"{format_round(figures.round_seconds(done)):>10}"
        if view.mine is None:
            loss = (f"{losses[done.round]:>9.3f}" if done.round in losses else "", view.ink.strong)
            facts: list[Piece] = [
                f"{count(len(done.group), 'peer'):<9}", f"{format_count(done.tokens):>6} tokens", took, loss
            ]  # fmt: skip
        elif view.me in done.weights:
            mine = [penalty for penalty in done.penalties if penalty.about == view.me]
            codes = ", ".join(f"{each.code} {counts_words(each)}" if roomy else each.code for each in mine)
            share = (f"{format_percent(figures.weight(view.swarm, view.me, done)):>7}", view.ink.strong)
            tokens = f"{format_count(done.counted.get(view.me, 0)):>8} tokens"
            facts = [share, tokens, took, (f"  {codes}", view.ink.warn)]
        else:
            facts = [("not in the group", view.ink.warn)]
        sheet.line((f"round {done.round:<{sheet.gutter - 6}}", view.ink.muted), *facts)
    if not view.swarm.history:
        sheet.nothing("rounds", "none is committed yet")


MOST_ADVICE = 2
"""The maximal lines of advice."""
MOST_STALL = 4
"""The maximal lines on why a round stands still."""


def draw_outlook(view: View, width: int, *, roomy: bool) -> list[Text]:
    """The lines above the lanes, for my peer, or for the selected one if there is none: why its round stands still,
    if it does. Otherwise a line on the round, one on the margin, and advice. If there is little space, only a late
    or nearly late part has a line; a round that stands still is shown in the header."""
    peer = view.mine or view.swarm.peers.get(view.selected)
    if peer is not None and peer.stalled is not None and roomy:
        said = (text for told in stall_lines(peer.stalled) for text in textwrap.wrap(told, max(20, width - 2)))
        return [_line([("  ", ""), (text, view.ink.bad)], width, view) for text in islice(said, MOST_STALL)]
    forecast = figures.forecast_now(view.swarm, peer, view.now) if peer is not None else None
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
    if (so_far := figures.so_far_seconds(view.swarm, forecast, view.now)) is not None:
        over = so_far > forecast.high_s
        head.append((f"{dot}{format_seconds(so_far)} so far", view.ink.warn if over else view.ink.muted))
    margin: StyledLine = [("  ", ""), (words, style), (f"{dot}{before_words(forecast)}", view.ink.muted)]
    lines = [_line(head, width, view), _line(margin, width, view)]
    for text in textwrap.wrap(forecast.advice, max(20, width - 2))[:MOST_ADVICE]:
        lines.append(_line([("  ", ""), (text, view.ink.warn)], width, view))
    return lines


def add_outlook(sheet: FactSheet, view: View, mine: PeerView) -> None:
    """The forecast on the first screen; on the smallest page only if it needs attention."""
    forecast = figures.forecast_now(view.swarm, mine, view.now)
    if forecast is None or (view.mini and not forecast.advice):
        return
    sheet.row("forecast", (margin_brief(forecast), _style(forecast, view)), length_brief(forecast))
    if forecast.advice and not view.mini:
        sheet.prose("", forecast.advice, view.ink.warn)


def _style(forecast: RoundForecast, view: View) -> str:
    if forecast.late_s is None:
        return view.ink.muted
    return view.ink.warn if forecast.advice or forecast.late_s > 0 else view.ink.good


def _line(pieces: StyledLine, width: int, view: View) -> Text:
    return Text.assemble(*cut(pieces, width, view.glyphs.ellipsis))
