from __future__ import annotations

import dataclasses
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dht.identity import Identity
from peer.schema.events import (
    AlertRaised,
    Evaluated,
    Event,
    EventLine,
    InnerProgressed,
    InviteIssued,
    MessageRefused,
    NetworkMeasured,
    PeerStarted,
    PeerStateChanged,
    PeerStopped,
    PenaltyImposed,
    PhaseEntered,
    ReportReceived,
    RoundAborted,
    RoundCommitted,
    RoundForecast,
    RoundStalled,
    RoundStarted,
    SettingsChanged,
    read_line,
)
from tests.tui.many_lines import make_lines
from tui.commands.status import to_json
from tui.swarm import figures
from tui.swarm.builder import MAX_ENTRIES, MAX_LOSSES, MAX_PEERS, MAX_PENALTIES, MAX_ROUNDS
from tui.swarm.reducer import NAME_CELLS, apply, apply_all, short_name
from tui.swarm.snapshot import PeerView, SwarmState
from tui.swarm.timeline import MAX_SPANS, PEER_POINTS, SWARM_POINTS

RECORDING = Path(__file__).parents[1] / "recordings" / "demo.jsonl"
WORK = 10.0
"""Reading and folding a line may cost so many times what `json.loads` of it costs. Measured: 3.4."""


def line(event: Event, *, peer: str = "A", t: float = 100.0) -> EventLine:
    return EventLine(seq=0, t=t, run="tiny", peer=peer, event=event)


def folded(*lines: EventLine | None) -> SwarmState:
    return apply_all(SwarmState(), lines)


def penalty(about: str, code: str, until_round: int, *, factor: float = 0.0, layer: str = "") -> PenaltyImposed:
    return PenaltyImposed(
        about=about, code=code, layer=layer, evidence="as measured", factor=factor, until_round=until_round
    )


def committed(round: int, *penalties: PenaltyImposed, digest: str = "", **values: Any) -> RoundCommitted:
    fields: dict[str, Any] = {
        "state": f"s{round}", "group": ["A", "B"], "weights": {"A": 40_000, "B": 25_536}, "norms": {"A": 3.0, "B": 2.0},
        "tokens": 1000, "bytes_sent": 10, "bytes_received": 20, "round_s": 8.0, "exposed_s": 1.0,
    }  # fmt: skip
    rows = [dataclasses.asdict(each) for each in penalties]
    return RoundCommitted(round=round, digest=digest or f"d{round}", penalties=rows, **(fields | values))


def progressed(round: int, *, loss: float | None = 2.5, tokens: int = 64) -> InnerProgressed:
    return InnerProgressed(
        round=round, step=1, steps=9, loss=loss, tokens=tokens, tokens_per_s=320.0, learning_rate=1e-3
    )


def counts(swarm: SwarmState, peer: str) -> tuple[int, int, int, int]:
    view = swarm.peers[peer]
    return view.accepted, view.late, view.rejected, view.missed


# ---- many lines at once, and lines that cannot be read ----


def test_settings_are_the_newest_and_the_log_says_what_changed() -> None:
    before = {"max_power_w": 0.0, "schedule": ""}
    swarm = folded(
        line(PeerStarted(name="alice", version="0", settings=before)),
        line(SettingsChanged(settings={**before, "max_power_w": 180.0})),
    )
    assert swarm.peers["A"].settings["max_power_w"] == 180.0
    assert [entry.text for entry in swarm.entries if entry.code == "SETTINGS"] == ["max_power_w: no limit -> 180 W"]


def test_many_lines_at_once_are_the_same_as_one_by_one() -> None:
    lines = [read_line(text) for text in RECORDING.read_bytes().splitlines()[:400]]
    swarm = SwarmState()
    for each in lines:
        assert each is not None
        swarm = apply(swarm, each)
    assert swarm == apply_all(SwarmState(), lines)


def test_a_draft_has_the_fields_of_what_it_freezes_to() -> None:
    names = [[each.name for each in dataclasses.fields(kind)] for kind in (PeerView, PeerView)]
    assert sorted(names[0]) == sorted(names[1])


def test_a_line_that_cannot_be_read_is_counted() -> None:
    swarm = folded(None, line(committed(1)), None, None)
    assert (swarm.skipped, swarm.round) == (3, 1)
    assert folded().skipped == 0


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
REAL = [text for number, text in enumerate(RECORDING.read_bytes().splitlines()) if number % 13 == 0] + [
    text.encode() for text in make_lines(1200, peers=5, group=4)[::17]
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A real line, cut, with a byte or a field changed, or with a field taken away."""
    text = draw(st.sampled_from(REAL))
    how = draw(st.sampled_from(["whole", "cut", "byte", "field", "missing"]))
    if how == "whole":
        return text
    if how == "cut":
        return text[: draw(st.integers(0, len(text)))]
    if how == "byte":
        where = draw(st.integers(0, len(text) - 1))
        return text[:where] + bytes([draw(st.integers(0, 255))]) + text[where + 1 :]
    row = json.loads(text)
    key = draw(st.sampled_from(sorted(row)))
    del row[key]
    return json.dumps(row | ({key: draw(JSON_VALUES)} if how == "field" else {})).encode()


@pytest.mark.slow
@settings(derandomize=True, max_examples=150, deadline=None)
@given(st.lists(mutated(), min_size=1, max_size=12))
def test_whatever_a_line_holds_nothing_is_raised_and_every_line_counts(texts: list[bytes]) -> None:
    """What comes of it can be written as JSON: numbers are finite, and text is text."""
    lines = [read_line(text) for text in texts]
    swarm = apply_all(SwarmState(), lines)
    assert swarm.skipped == lines.count(None)
    told = json.dumps(to_json(swarm, 0.0), allow_nan=False)
    assert json.loads(told)["skipped"] == swarm.skipped
    told.encode()


@pytest.mark.slow
def test_the_work_per_line_stays_a_few_times_that_of_reading_json() -> None:
    """Both are timed in the same run, the best of three: how fast the machine is does not matter."""
    texts = [text.encode() for text in make_lines(6_000)]

    def cost(of: Any) -> float:
        best_s = float("inf")
        for _ in range(3):
            begun = time.process_time()
            of()
            best_s = min(best_s, time.process_time() - begun)
        return best_s

    reading_s = cost(lambda: [json.loads(text) for text in texts])
    folding_s = cost(lambda: apply_all(SwarmState(), map(read_line, texts)))
    assert folding_s / reading_s < WORK


@pytest.mark.slow
def test_what_is_kept_is_bounded_however_long_a_run_lasts() -> None:
    lines: list[EventLine] = []
    for round in range(1, 2500):
        t = 100.0 * round
        late = penalty("A", "LATE", round + 1, factor=0.5)
        lines += [line(RoundStarted(round=round - 1, steps=9), t=t), line(progressed(round - 1), t=t + 1)]
        lines += [line(PhaseEntered(round=round - 1, phase="exchange"), t=t + 2)]
        lines += [line(RoundAborted(round=round - 1, ballot=0, why="no quorum"), t=t + 3)]
        lines += [line(committed(round, late), t=t + 4), line(Evaluated(round=round, loss=2.0, tokens=1), t=t + 5)]
        hearsay = ReportReceived(about=f"stranger-{round}", round=round, ready=False, tokens=0, steps=0)
        lines += [line(hearsay, t=t + 6)]
    swarm = apply_all(SwarmState(), lines)
    alice = swarm.peers["A"]
    assert (len(swarm.history), len(swarm.penalty_log), len(swarm.entries)) == (MAX_ROUNDS, MAX_PENALTIES, MAX_ENTRIES)
    assert len(swarm.peers) == MAX_PEERS
    assert len(alice.spans) == MAX_SPANS
    assert all(len(points) <= PEER_POINTS for points in (alice.losses, alice.norms, alice.speeds))
    assert all(len(points) <= SWARM_POINTS for points in (swarm.training, swarm.speeds))
    assert len(swarm.evaluations) <= MAX_LOSSES
    assert (swarm.tokens, alice.late) == (2499 * 1000, 2499)


# ---- a round counts once ----


def test_a_round_counts_once_however_many_peers_report_it() -> None:
    swarm = folded(
        line(committed(1), t=10),
        line(committed(1, exposed_s=3.0), peer="B", t=11),
        line(committed(2, round_s=99.0), t=20),
    )
    first, second = swarm.history
    assert (first.reporters, first.bytes_sent, first.bytes_received, first.exposed_s) == (2, 20, 40, 2.0)
    assert (first.round_s, second.round_s) == (8.0, 10.0)
    assert swarm.tokens == 2000
    assert [point.value for point in swarm.speeds] == [1000 / 8.0, 1000 / 10.0]
    assert counts(swarm, "A") == counts(swarm, "B") == (2, 0, 0, 0)
    assert (figures.weight(swarm, "A"), swarm.peers["A"].norm) == (40_000 / 65_536, 3.0)


@pytest.mark.parametrize(
    ("imposed", "outcome"),
    [
        ([], "accepted"),
        ([penalty("B", "LATE", 2, factor=0.5)], "late"),
        ([penalty("B", "LATE", 2)], "late"),
        ([penalty("B", "STALE", 2, factor=0.7)], "late"),
        ([penalty("B", "CLIPPED", 2, factor=0.7)], "accepted"),
        ([penalty("B", "ANOMALY", 2)], "rejected"),
        ([penalty("B", "NONFINITE", 2)], "rejected"),
        ([penalty("B", "MISDECLARED", 9)], "rejected"),
        ([penalty("B", "ANOMALY", 2, layer="model.norm")], "accepted"),
        ([penalty("B", "ANOMALY", 2, factor=0.8)], "accepted"),
        ([penalty("A", "ANOMALY", 2)], "accepted"),
    ],
)
def test_what_a_round_counted_for_a_member(imposed: list[PenaltyImposed], outcome: str) -> None:
    swarm = folded(line(committed(1, *imposed)), line(committed(1, *imposed), peer="B"))
    assert swarm.history[0].outcomes["B"] == outcome
    assert getattr(swarm.peers["B"], outcome) == sum(counts(swarm, "B")) == 1


def test_a_member_that_weighs_nothing_was_rejected() -> None:
    swarm = folded(line(committed(1, weights={"A": 65_536, "B": 0})))
    assert counts(swarm, "B") == (0, 0, 1, 0)
    assert figures.weight(swarm, "B") == 0.0


def test_who_was_expected_and_did_not_answer_missed_the_round() -> None:
    gone = penalty("C", "ABSENT", 2)
    swarm = folded(line(PeerStarted(name="carol", version="0"), peer="C", t=10), line(committed(1, gone), t=100))
    assert counts(swarm, "C") == (0, 0, 0, 1)
    assert (swarm.peers["C"].state, swarm.peers["C"].why) == ("GONE", "did not answer in round 1")
    assert swarm.peers["C"].spans[-1].phase == "failed"
    back = apply(swarm, line(progressed(1), peer="C", t=110))
    assert back.peers["C"].state == "TRAINING"


def test_what_the_chain_counted_stands_above_what_a_peer_told() -> None:
    """And stays, whatever is told of the round later."""
    lines = [
        line(RoundStarted(round=0, steps=9)),
        line(progressed(0, tokens=500)),
        line(committed(1, given={"A": 70, "B": 30})),
        line(committed(2, given={"A": 80, "B": 20})),
    ]
    swarm = folded(*lines)
    assert (swarm.peers["A"].tokens, swarm.peers["B"].tokens) == (150, 50)
    again = folded(*lines, line(committed(1, digest="other", given={"A": 1, "B": 2})))
    assert (again.peers["A"].tokens, again.peers["B"].tokens) == (150, 50)


def test_tokens_of_a_peer_are_those_of_rounds_that_counted() -> None:
    swarm = folded(
        line(RoundStarted(round=0, steps=9)),
        line(progressed(0, tokens=300)),
        line(progressed(0, tokens=200)),
        line(ReportReceived(about="B", round=0, ready=True, tokens=400, steps=5)),
        line(committed(1, penalty("B", "ANOMALY", 2))),
        line(RoundStarted(round=1, steps=9)),
        line(progressed(1, tokens=70)),
    )
    assert (swarm.peers["A"].tokens, swarm.peers["A"].tokens_now, swarm.peers["B"].tokens) == (500, 70, 0)
    assert swarm.history[0].counted == {"A": 500, "B": 0}


def test_what_is_trained_while_a_round_is_agreed_counts_for_the_next() -> None:
    """A streaming peer goes on after it gave its part; its step and its tokens outlast the commit."""
    begun = [
        line(RoundStarted(round=0, steps=9)),
        line(progressed(0, tokens=500)),
        line(PhaseEntered(round=0, phase="submit")),
        line(progressed(1, tokens=40)),
    ]
    ahead = folded(*begun).peers["A"]
    assert (ahead.round, ahead.step, ahead.tokens_now, ahead.tokens_ahead) == (0, 1, 500, 40)
    swarm = folded(*begun, line(committed(1)), line(RoundStarted(round=1, steps=9)))
    after = swarm.peers["A"]
    assert swarm.history[0].counted["A"] == 500
    assert (after.round, after.step, after.tokens, after.tokens_now, after.tokens_ahead) == (1, 1, 500, 40, 0)
    assert swarm.behind("A") == 0


def test_a_round_counts_as_it_was_told_first() -> None:
    """One peer tells it again, with another digest: nothing counts twice, and nothing is taken back."""
    first = [
        line(RoundStarted(round=0, steps=9)),
        line(progressed(0, tokens=500)),
        line(committed(1, penalty("B", "LATE", 2, factor=0.5)), t=10),
        line(committed(2), t=20),
        line(committed(3), t=30),
    ]
    swarm = folded(*first, line(committed(1, digest="other", tokens=7), t=40))
    before = folded(*first)
    assert [view.digest for view in swarm.history] == [view.digest for view in before.history]
    assert (swarm.round, swarm.tokens, swarm.penalty_log) == (3, before.tokens, before.penalty_log)
    assert counts(swarm, "A") == counts(before, "A")
    assert (swarm.speeds, swarm.peers["A"].norms) == (before.speeds, before.peers["A"].norms)


def test_the_round_of_one_peer_that_parted_does_not_replace_that_of_the_others() -> None:
    told = [line(committed(1), peer=peer) for peer in ("A", "B")]
    swarm = folded(*told, line(committed(1, digest="own"), peer="C"))
    assert [view.digest for view in swarm.history] == ["d1"]
    assert swarm.tokens == 1000


def test_tries_without_a_decision_are_in_the_round_that_follows() -> None:
    aborted = [RoundAborted(round=0, ballot=ballot, why="no quorum") for ballot in (0, 1, 1)]
    swarm = folded(*(line(event) for event in aborted), line(committed(1)), line(committed(2)))
    assert [view.aborted for view in swarm.history] == [2, 0]
    assert swarm.aborted == ()
    assert [entry.code for entry in swarm.entries].count("ABORTED") == 3


# ---- penalties ----


def test_each_penalty_is_in_the_log_once_with_the_round_that_told_it() -> None:
    late = penalty("B", "LATE", 5, factor=0.5)
    told = [line(event, peer=peer) for peer in "AB" for event in (committed(4, late), late)]
    swarm = folded(*told, line(committed(5)))
    assert [(each.about, each.code, each.imposed_in, each.until_round) for each in swarm.penalty_log] == [
        ("B", "LATE", 4, 5)
    ]
    assert swarm.lasting == ()
    assert [entry.text for entry in swarm.entries if entry.code == "LATE"] == [
        "as measured; counts 50 %, until round 5"
    ]


def test_a_penalty_lasts_until_the_swarm_has_reached_its_round() -> None:
    lie = penalty("B", "MISDECLARED", 9, layer="model.norm")
    swarm = folded(line(committed(4)), line(lie))
    assert [each.imposed_in for each in swarm.lasting] == [5]
    assert folded(line(committed(4)), line(lie), line(committed(9))).lasting == ()


# ---- lanes ----


def test_the_lane_of_a_peer_tells_what_it_did_in_each_round() -> None:
    steps: list[Event] = [
        PeerStarted(name="alice", version="0"),
        PeerStateChanged(state="SYNCING", why=""),
        RoundCommitted(**(vars(committed(1)))),
        PeerStateChanged(state="TRAINING", why=""),
        RoundStarted(round=1, steps=9),
        progressed(1),
        *(PhaseEntered(round=1, phase=phase) for phase in ("submit", "prepare", "exchange")),
        PeerStateChanged(state="AVERAGING", why=""),
        RoundAborted(round=1, ballot=0, why="no quorum"),
        *(PhaseEntered(round=1, phase=phase) for phase in ("exchange", "weigh", "reduce", "commit", "apply")),
        committed(2),
        PeerStateChanged(state="PAUSED", why="asked to"),
        PeerStopped(why="asked to leave"),
    ]
    swarm = folded(*(line(event, t=float(t)) for t, event in enumerate(steps)))
    told = [(span.phase, span.round) for span in swarm.peers["A"].spans]
    assert told == [
        ("idle", 1), ("sync", 1), ("train", 2), ("submit", 2), ("prepare", 2), ("exchange", 2), ("failed", 2),
        ("exchange", 2), ("weigh", 2), ("reduce", 2), ("commit", 2), ("apply", 2), ("idle", 3),
        ("paused", 3), ("gone", 3),
    ]  # fmt: skip


def test_a_late_peer_is_late_in_its_lane_whoever_tells_it_first() -> None:
    late = penalty("B", "LATE", 2, factor=0.5)
    mine = [
        line(RoundStarted(round=0, steps=9), peer="B", t=1),
        line(PhaseEntered(round=0, phase="exchange"), peer="B", t=5),
    ]
    after = [line(committed(1, late), peer="B", t=9), line(RoundStarted(round=1, steps=9), peer="B", t=9.5)]
    by_a = line(committed(1, late), t=9.2)
    for lines in ([*mine, by_a, *after], [*mine, *after, by_a]):
        spans = folded(*lines).peers["B"].spans
        assert [(span.phase, span.round) for span in spans] == [("train", 1), ("late", 1), ("idle", 2), ("train", 2)]


def test_a_peer_known_by_hearsay_has_a_lane_and_a_speed() -> None:
    def heard(t: float, *, round: int = 0, ready: bool = False, leaving: bool = False) -> EventLine:
        tokens = 1000 if ready else 0
        event = ReportReceived(about="B", round=round, ready=ready, tokens=tokens, steps=9, name="bob", leaving=leaving)
        return line(event, t=t)

    swarm = folded(heard(10), heard(20, ready=True), line(committed(1), t=25), heard(26, round=1))
    bob = swarm.peers["B"]
    assert [(span.t, span.phase, span.round) for span in bob.spans] == [
        (10, "train", 1), (20, "prepare", 1), (25, "idle", 2), (26, "train", 2),
    ]  # fmt: skip
    assert (bob.name, bob.tokens_per_s, bob.tokens, bob.seen_t, bob.accepted) == ("bob", 100.0, 1000, 26, 1)
    assert swarm.behind("B") == 0
    assert apply(swarm, heard(30, round=1, leaving=True)).peers["B"].state == "GONE"
    assert apply(swarm, line(committed(2), t=40)).behind("B") == 0
    assert apply(apply(swarm, line(committed(2), t=40)), heard(41, round=0)).behind("B") == 2


def test_what_the_board_says_of_a_peer_is_taken_too() -> None:
    report = ReportReceived(
        about="B",
        round=3,
        ready=False,
        tokens=0,
        steps=0,
        loss=2.25,
        tokens_per_s=70.0,
        evaluated=2.5,
        evaluated_round=3,
    )
    swarm = folded(line(committed(3)), line(report))
    bob = swarm.peers["B"]
    assert (bob.loss, bob.tokens_per_s, swarm.losses) == (2.25, 70.0, ((3, 2.5),))


# ---- what a peer tells ----


def test_traffic_is_the_difference_of_two_measurements() -> None:
    def measured(sent: int) -> NetworkMeasured:
        return NetworkMeasured(addresses=[], reach="direct", bytes_sent=sent, bytes_received=2 * sent, peers=[])

    swarm = folded(line(measured(100), t=10), line(measured(300), t=20), line(measured(50), t=30))
    alice = swarm.peers["A"]
    assert [point.value for point in alice.ups] == [20.0, 0.0]
    assert [point.value for point in alice.downs] == [40.0, 0.0]


def test_a_loss_that_is_not_a_number_is_told_once_and_not_drawn() -> None:
    swarm = folded(line(progressed(0)), line(progressed(0, loss=None)), line(progressed(0, loss=None)))
    assert swarm.peers["A"].loss is None
    assert len(swarm.peers["A"].losses) == 1
    assert [entry.text for entry in swarm.entries] == ["the training loss is not a number"]
    swarm = folded(line(Evaluated(round=1, loss=None, tokens=1)))
    assert (swarm.losses, len(swarm.entries)) == ((), 1)


def test_the_losses_of_sources_are_held_against_the_first_ones() -> None:
    """So that it is seen if one of them gets worse; a run on one source has none."""
    rounds = ((0, {"talks": 3.0, "books": 2.0}), (4, {"talks": 2.5, "books": 2.25}))
    told = [line(Evaluated(round=round, loss=2.4, tokens=1, by_source=losses)) for round, losses in rounds]
    swarm = folded(*told, line(Evaluated(round=5, loss=2.0, tokens=1)))
    assert swarm.sources_in_words(4) == "talks 2.500 (-0.500), books 2.250 (+0.250)"
    assert swarm.sources_in_words(5) == ""
    assert folded(told[0], told[0]).sources_in_words(0) == "talks 3.000 (+0.000), books 2.000 (+0.000)"


def test_the_log_leaves_out_what_every_round_goes_through() -> None:
    states = ["JOINING", "TRAINING", "AVERAGING", "TRAINING", "READY", "PAUSED", "TRAINING"]
    swarm = folded(*(line(PeerStateChanged(state=state, why="")) for state in states))
    assert [entry.code for entry in swarm.entries] == ["JOINING", "TRAINING", "PAUSED", "TRAINING"]
    assert [entry.level for entry in swarm.entries] == ["info", "info", "warning", "info"]


def test_an_invite_is_a_secret_and_not_in_the_log() -> None:
    swarm = folded(line(InviteIssued(invite="hf1:secret")))
    assert [entry.code for entry in swarm.entries] == ["INVITE"]
    assert "secret" not in swarm.entries[0].text


def test_a_process_without_an_identity_is_in_the_log_and_no_peer() -> None:
    swarm = folded(line(PeerStopped(why="no such invite", exit_code=2), peer=""))
    assert dict(swarm.peers) == {}
    assert (swarm.entries[0].level, swarm.entries[0].text) == ("error", "no such invite")


def test_a_level_that_is_not_known_is_a_warning() -> None:
    assert folded(line(AlertRaised(level="loud", code="X", text="hm"))).entries[0].level == "warning"


def test_a_new_start_keeps_what_the_peer_gave() -> None:
    swarm = folded(line(committed(1)), line(PeerStopped(why="")), line(PeerStarted(name="a", version="1", rounds=40)))
    assert counts(swarm, "A") == (1, 0, 0, 0)
    assert (swarm.rounds, swarm.behind("A")) == (40, 0)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("alice", "alice"),
        ("Ærø · 東京", "Ærø · 東京"),
        ("x" * 100, "x" * 31 + "…"),
        ("東" * 40, "東" * 15 + "…"),
        ("a" + "\u0301" * 500, "a" + "\u0301" * 63 + "…"),
    ],
)
def test_a_name_takes_at_most_so_many_columns(name: str, shown: str) -> None:
    assert short_name(name) == shown
    assert len(shown) <= 2 * NAME_CELLS + 1


def test_a_forecast_is_of_the_round_in_training() -> None:
    """One of a round that is over says nothing any more, nor that of a peer that rests or has started anew."""
    forecast = RoundForecast(round=2, expected_s=60.0, low_s=50.0, high_s=70.0, took_s=61.0)
    training = PeerStateChanged(state="TRAINING", why="")
    swarm = folded(line(PeerStarted(name="a", version="0")), line(training), line(committed(1)), line(forecast))
    assert figures.forecast_now(swarm, swarm.peers["A"], 0.0) == forecast
    assert to_json(swarm, 0.0)["peers"][0]["forecast"]["expected_s"] == 60.0
    paused = PeerStateChanged(state="PAUSED", why="its owner paused it")
    for event in (committed(2), paused, PeerStarted(name="a", version="0"), PeerStopped(why="left")):
        after = apply(swarm, line(event))
        assert figures.forecast_now(after, after.peers["A"], 0.0) is None


def test_random_order_of_the_lines_of_different_peers_leads_to_the_same_counts() -> None:
    """Each peer's own lines are in order; how they are merged does not matter."""
    by_peer: dict[str, list[EventLine]] = {}
    for text in RECORDING.read_bytes().splitlines():
        parsed = read_line(text)
        assert parsed is not None
        by_peer.setdefault(parsed.peer, []).append(parsed)
    expected = apply_all(
        SwarmState(), sorted((each for lines in by_peer.values() for each in lines), key=lambda one: one.t)
    )
    rng = random.Random(1)
    queues = {peer: list(lines) for peer, lines in by_peer.items()}
    merged: list[EventLine] = []
    while queues:
        peer = rng.choice(sorted(queues))
        merged.append(queues[peer].pop(0))
        queues = {key: left for key, left in queues.items() if left}
    swarm = apply_all(SwarmState(), merged)
    assert (swarm.round, swarm.tokens, swarm.losses) == (expected.round, expected.tokens, expected.losses)
    for peer in by_peer:
        assert counts(swarm, peer) == counts(expected, peer)


def test_a_refusal_is_in_the_log_of_whom_it_is_about() -> None:
    swarm = folded(line(MessageRefused(round=3, about="B", rule="RANGES", why="it read shard 9")))
    entry = swarm.entries[-1]
    assert (entry.peer, entry.code, entry.level) == ("B", "RANGES", "warning")
    assert entry.text == "what it sent for round 4 is refused by A: it read shard 9"


def test_a_standstill_lasts_until_the_next_commit_or_start() -> None:
    stalled = RoundStalled(round=1, ballots=3, rule="", about="", why="round 2 stands still")
    swarm = folded(line(committed(1)), line(stalled))
    assert swarm.peers["A"].stalled == swarm.stalled == stalled
    for ends in (committed(2), PeerStarted(name="alice", version="0")):
        after = apply(swarm, line(ends))
        assert after.peers["A"].stalled is after.stalled is None


def test_a_standstill_of_who_is_behind_is_not_the_swarms() -> None:
    stalled = RoundStalled(round=1, ballots=3, rule="", about="", why="round 2 stands still")
    swarm = folded(line(committed(1)), line(stalled), line(committed(2), peer="B"))
    assert swarm.stalled is None
    assert swarm.peers["A"].stalled == stalled


def test_an_alert_calls_peers_by_their_names() -> None:
    known, unknown = Identity.from_seed(b"k" * 32).peer_id, Identity.from_seed(b"u" * 32).peer_id
    swarm = folded(
        line(PeerStarted(name="attic", version="0"), peer=known),
        line(AlertRaised(level="warning", code="RESTART", text=f"round 54 goes on with {known}, {unknown}")),
    )
    assert swarm.entries[-1].text == f"round 54 goes on with attic, {unknown}"
    assert list(swarm.peers["A"].alerts) == [f"warning: round 54 goes on with attic, {unknown}"]
