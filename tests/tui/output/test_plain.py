from __future__ import annotations

import io

import pytest

from peer.schema.byte_text import format_bytes
from peer.schema.events import (
    AlertRaised,
    BoardSeen,
    Evaluated,
    Event,
    EventLine,
    InnerProgressed,
    InviteIssued,
    MessageRefused,
    PeerIntroduced,
    PeerStarted,
    PeerStateChanged,
    PeerStopped,
    PenaltyImposed,
    RoundAborted,
    RoundCommitted,
    RoundStarted,
    SampleWritten,
    SettingsChanged,
    TransferProgressed,
    printable,
)
from tui.output.plain import PlainOutput
from tui.terminal import GatedStream
from tui.text.units import format_elapsed

GOLDEN = """\
00:00  alice: started · cpu · 812,345 parameters
00:00  bob: started · cuda
00:03  alice: JOINING: looking for the other founders
00:05  alice: TRAINING: round 0
00:06  round 0/2 · held-out loss 5.541
00:20  round 1/2 · 2 peers · held-out loss 2.050 · training loss 2.200 · 8.4 s · digest 5f3a0000
00:24  bob: warning: alice is slow
00:30  alice: round 2 is tried again: bob did not answer
00:41  round 2/2 · 2 peers · training loss 2.200 · 21.0 s · 1 void part · digest 77aa0000
00:41  alice: stopped: the run is finished
"""


def committed(round: int, digest: str, round_s: float, void: int = 0) -> RoundCommitted:
    return RoundCommitted(
        round=round,
        digest=digest,
        state="00",
        group=["A", "B"],
        weights={},
        penalties=[],
        tokens=1,
        bytes_sent=61_240,
        bytes_received=1,
        round_s=round_s,
        exposed_s=round_s,
        void=void,
    )


def progressed(loss: float) -> InnerProgressed:
    return InnerProgressed(round=0, step=5, steps=10, loss=loss, tokens=1, tokens_per_s=1500.0, learning_rate=1e-3)


def play(output: PlainOutput, *events: tuple[float, str, Event]) -> None:
    for t, peer, event in events:
        output.show(EventLine(seq=0, t=1000.0 + t, run="tiny", peer=peer, event=event))


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def test_a_short_run_reads_like_this(stream: io.StringIO) -> None:
    output = PlainOutput(stream, rounds=2, terse=True)
    play(
        output,
        (0, "A", PeerStarted(name="alice", version="0", device="cpu", parameters=812_345)),
        (0, "B", PeerStarted(name="bob", version="0", device="cuda")),
        (3, "A", PeerStateChanged(state="JOINING", why="looking for the other founders")),
        (5, "A", PeerStateChanged(state="TRAINING", why="round 0")),
        (6, "A", Evaluated(round=0, loss=5.541, tokens=1)),
        (9, "A", progressed(2.1)),
        (9, "B", progressed(2.3)),
        (19, "A", PeerStateChanged(state="AVERAGING", why="round 0")),
        (19, "A", committed(1, "5f3a0000ff", 8.4)),
        (19, "B", committed(1, "5f3a0000ff", 9.9)),
        (20, "B", Evaluated(round=1, loss=2.05, tokens=1)),
        (21, "A", Evaluated(round=1, loss=2.05, tokens=1)),
        (24, "B", AlertRaised(level="warning", code="SLOW", text="alice is slow")),
        (30, "A", RoundAborted(round=1, ballot=0, why="bob did not answer")),
        (40, "A", committed(2, "77aa0000ff", 9.0, void=1)),
        (41, "A", PeerStopped(why="the run is finished")),
    )
    output.close()
    assert stream.getvalue() == GOLDEN


def test_a_sample_is_one_line_of_bounded_length(stream: io.StringIO) -> None:
    output = PlainOutput(stream, rounds=9)
    sample = SampleWritten(round=3, prompt="Once", text=" upon a time " + "x" * 1000)
    output.show(EventLine(seq=0, t=0.0, run="r", peer="A", event=sample))
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("00:00  round 3/9 · 'Once' goes on: ' upon a time xxx")
    assert line.endswith("x…'")
    assert len(line) < 260


def test_a_mix_tells_the_loss_of_each_source(stream: io.StringIO) -> None:
    """With its round, or alone."""
    output = PlainOutput(stream, terse=True)
    play(
        output,
        (0, "A", Evaluated(round=0, loss=5.5, tokens=1, by_source={"talks": 5.0, "books": 6.0})),
        (9, "A", committed(1, "5f3a0000ff", 8.4)),
        (9, "A", Evaluated(round=1, loss=4.5, tokens=1, by_source={"talks": 2.9, "books": 6.1})),
    )
    output.close()
    assert "held-out loss 5.500 (talks 5.000 (+0.000), books 6.000 (+0.000))" in stream.getvalue()
    assert "held-out loss 4.500 (talks 2.900 (-2.100), books 6.100 (+0.100))" in stream.getvalue()


def test_several_devices_and_how_they_share_the_model_are_told(stream: io.StringIO) -> None:
    devices = ("cuda:0", "cuda:1")
    play(
        PlainOutput(stream),
        (0, "A", PeerStarted(name="alice", version="0", device="cuda:0+1", devices=devices, sharding="full")),
        (0, "B", PeerStarted(name="bob", version="0", device="cpu", devices=("cpu",))),
    )
    assert stream.getvalue().splitlines() == [
        "00:00  alice: started · cuda:0, cuda:1 (full)", "00:00  bob: started · cpu",
    ]  # fmt: skip


def test_one_peer_alone_is_told_in_every_change_but_no_repetition(stream: io.StringIO) -> None:
    output = PlainOutput(stream)
    play(
        output,
        (0, "A", PeerStateChanged(state="TRAINING", why="round 4")),
        (1, "A", PeerStateChanged(state="TRAINING", why="round 4")),
        (2, "A", PeerStateChanged(state="READY", why="waiting for 2 peers")),
    )
    assert stream.getvalue() == "00:00  A: TRAINING: round 4\n00:02  A: READY: waiting for 2 peers\n"


@pytest.mark.usefixtures("greenwich")
def test_a_pause_says_until_when_and_a_change_of_settings_what_it_was(stream: io.StringIO) -> None:
    settings = {"schedule": "", "nice": 10}
    play(
        PlainOutput(stream),
        (0.0, "A", PeerStarted(name="alice", version="0", settings=settings)),
        (1.0, "A", SettingsChanged(settings={**settings, "schedule": "sat 22:00-24:00"})),
        (2.0, "A", PeerStateChanged(state="PAUSED", why="outside its hours", until=4600.0)),
    )
    assert stream.getvalue().splitlines()[1:] == [
        "00:01  alice: schedule: always -> sat 22:00-24:00", "00:02  alice: PAUSED: outside its hours; until 01:16",
    ]  # fmt: skip


def test_a_round_is_not_held_back_for_an_evaluation_that_does_not_come(stream: io.StringIO) -> None:
    output = PlainOutput(stream)
    play(output, (0, "A", committed(1, "ab", 1.0)))
    output.tick(1004.0)
    assert stream.getvalue() == ""
    output.tick(1005.0)
    assert stream.getvalue().startswith("00:05  round 1 · 2 peers · 1.0 s")


def test_the_last_round_is_printed_at_the_end(stream: io.StringIO) -> None:
    output = PlainOutput(stream)
    play(output, (0, "A", committed(1, "ab", 1.0)))
    output.close()
    assert stream.getvalue().startswith("00:00  round 1")


def test_a_minute_of_silence_ends_with_a_heartbeat(stream: io.StringIO) -> None:
    output = PlainOutput(stream, rounds=40)
    play(
        output,
        (0, "A", PeerStarted(name="alice", version="0")),
        (1, "A", RoundStarted(round=0, steps=10)),
        (2, "A", progressed(2.0)),
    )
    output.tick(1059.0)
    assert len(stream.getvalue().splitlines()) == 1
    output.tick(1060.0)
    output.tick(1061.0)
    assert stream.getvalue().splitlines()[1:] == ["01:00  1 peer · round 0/40 · step 5/10 of alice"]


def test_an_invite_is_printed_whole(stream: io.StringIO) -> None:
    play(PlainOutput(stream), (0, "A", InviteIssued(invite="hf1:" + "x" * 500)))
    assert stream.getvalue() == f"00:00  invite: hf1:{'x' * 500}\n"


@pytest.mark.parametrize("evil", ["\x1b[2J", "\x07", "a\nb", "\u202egnp.exe", "\x9b31m", "\r"])
def test_a_peer_cannot_write_control_characters_on_our_screen(stream: io.StringIO, evil: str) -> None:
    play(PlainOutput(stream), (0, "A", PeerStarted(name=evil, version="0")))
    body = stream.getvalue().removesuffix("\n")
    assert body.isprintable()


def test_printable_keeps_words_in_any_script() -> None:
    assert printable("Ærø · 東京 θ") == "Ærø · 東京 θ"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (61_240, "61.2 kB"), (3_500_000_000, "3.5 GB")]
)
def test_bytes_have_decimal_units(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "00:00"), (61.9, "01:01"), (3661, "1:01:01"), (-1, "00:00")])
def test_elapsed_time(seconds: float, text: str) -> None:
    assert format_elapsed(seconds) == text


def syncing(round: int) -> PeerStateChanged:
    return PeerStateChanged(state="SYNCING", why=f"round {round} of 40 from bob")


def received(megabytes: int) -> TransferProgressed:
    return TransferProgressed(what="updates", source="bob", bytes_done=megabytes * 10**6, bytes_total=20 * 10**6)


def test_a_peer_that_catches_up_is_told_every_few_seconds_and_its_old_rounds_are_not(stream: io.StringIO) -> None:
    output = PlainOutput(stream, terse=True)
    play(output, (0, "A", syncing(0)))
    for second in range(1, 12):
        play(output, (second, "A", received(second)), (second, "A", committed(second, "ab", 0.1)))
        play(output, (second, "A", syncing(second)))
    play(output, (12, "A", received(20)))
    play(output, (12, "A", PeerStateChanged(state="READY", why="in step at round 40 after 12 s, 20.0 MB")))
    output.tick(1030.0)
    assert stream.getvalue() == (
        "00:00  A: SYNCING: round 0 of 40 from bob\n"
        "00:05  A: SYNCING: round 5 of 40 from bob · 5.0 MB of 20.0 MB\n"
        "00:10  A: SYNCING: round 10 of 40 from bob · 10.0 MB of 20.0 MB\n"
        "00:12  A: READY: in step at round 40 after 12 s, 20.0 MB\n"
    )


def test_a_round_is_told_once_though_some_say_another(stream: io.StringIO) -> None:
    """As it was told first."""
    output = PlainOutput(stream, rounds=9, terse=True)
    rounds = [(1, "aa"), (2, "bb"), (2, "cc"), (3, "dd")]
    both = [(n, peer, committed(*each, 1.0)) for n, each in enumerate(rounds) for peer in "AB"]
    play(output, *both)
    output.close()
    said = [text.split("  ")[1] for text in stream.getvalue().splitlines()]
    assert [(text.split()[1], text.split()[-1]) for text in said] == [
        ("1/9", "aa"),
        ("2/9", "bb"),
        ("3/9", "dd"),
    ]


def test_a_penalty_is_one_line_however_many_peers_tell_it(stream: io.StringIO) -> None:
    """Who, which code, why, what still counts, and until when."""
    output = PlainOutput(stream)
    late = PenaltyImposed(
        about="C", code="LATE", layer="", evidence="12 of 24 parts came in time", factor=0.5, until_round=13
    )
    play(
        output,
        (0, "C", PeerStarted(name="peer-3", version="0")),
        (1, "A", committed(12, "ab", 1.0)),
        (1, "A", late),
        (2, "B", committed(12, "ab", 1.0)),
        (2, "B", late),
    )
    assert stream.getvalue().splitlines()[1:] == [
        "00:01  peer-3: LATE: 12 of 24 parts came in time; counts 50 %, until round 13"
    ]


def test_a_refusal_names_its_rule_and_its_author(stream: io.StringIO) -> None:
    output = PlainOutput(stream)
    play(
        output,
        (0, "B", PeerStarted(name="bob", version="0")),
        (1, "A", MessageRefused(round=3, about="B", rule="TIME", why="it is dated 40 s ahead")),
    )
    said = "00:01  bob: TIME: what it sent for round 4 is refused by A: it is dated 40 s ahead"
    assert stream.getvalue().splitlines()[-1] == said


def test_a_peer_has_its_name_before_it_has_its_model(stream: io.StringIO) -> None:
    output = PlainOutput(stream)
    play(output, (0, "A", PeerIntroduced(name="anna")))
    play(output, (1, "A", PeerStateChanged(state="JOINING", why="looking for the run")))
    assert stream.getvalue() == "00:01  anna: JOINING: looking for the run\n"


def test_the_organisers_node_counts_the_peers_and_not_itself(stream: io.StringIO) -> None:
    output = PlainOutput(stream)
    play(
        output,
        (0, "N", PeerStarted(name="bootstrap", version="0", rounds=100)),
        (1, "N", BoardSeen(present=2, missing=1)),
    )
    output.tick(1070.0)
    play(output, (75, "N", BoardSeen(present=3, round=42)))
    output.tick(1140.0)
    play(output, (145, "N", BoardSeen(present=0, round=43)))
    output.tick(1210.0)
    play(output, (215, "N", BoardSeen(present=0, round=100)))
    output.tick(1280.0)
    assert stream.getvalue().splitlines()[1:] == [
        "01:10  2 peers · the run has not begun, and waits for 1 more peer", "02:20  3 peers · round 42/100",
        "03:30  0 peers · last seen in round 43/100", "04:40  0 peers · round 100/100, the run is finished",
    ]  # fmt: skip


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("gated", [False, True])
def test_on_a_terminal_a_line_is_broken_between_words_and_an_invite_nowhere(
    gated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a dashboard; a pipe gets each event as one line."""
    monkeypatch.setenv("COLUMNS", "40")
    why = "the network starts, and the addresses of the invite are dialled"
    events = [PeerStateChanged(state="JOINING", why=why), InviteIssued(invite="hf1:" + "x" * 60)]
    screen, pipe = Screen(), io.StringIO()
    for stream in GatedStream(screen) if gated else screen, pipe:
        output = PlainOutput(stream)  # type: ignore[arg-type]
        for seq, event in enumerate(events):
            output.show(EventLine(seq=seq, t=100.0, run="", peer="A", event=event))
    assert screen.getvalue().splitlines() == [
        "00:00  A: JOINING: the network starts,", "       and the addresses of the invite",
        "       are dialled", "00:00  invite:", f"       hf1:{'x' * 60}",
    ]  # fmt: skip
    assert pipe.getvalue().splitlines() == [f"00:00  A: JOINING: {why}", f"00:00  invite: hf1:{'x' * 60}"]
