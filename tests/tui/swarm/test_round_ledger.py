"""What lines say of the swarm's rounds where it is not simple: pauses, catching up, and hearsay."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from peer.schema.events import (
    Evaluated,
    Event,
    EventLine,
    InnerProgressed,
    PeerStarted,
    PeerStateChanged,
    PenaltyImposed,
    PhaseEntered,
    ReportReceived,
    RoundAborted,
    RoundCommitted,
)
from tui.swarm.reducer import apply_all
from tui.swarm.snapshot import SwarmState


def line(event: Event, *, peer: str = "A", t: float = 100.0) -> EventLine:
    return EventLine(seq=0, t=t, run="tiny", peer=peer, event=event)


def folded(*lines: EventLine, after: SwarmState | None = None) -> SwarmState:
    return apply_all(after or SwarmState(), lines)


def late(about: str, until_round: int, evidence: str = "had nothing ready") -> PenaltyImposed:
    return PenaltyImposed(
        about=about, code="LATE", layer="", evidence=evidence, factor=0.0, until_round=until_round
    )  # fmt: skip


def committed(round: int, *penalties: PenaltyImposed, digest: str = "", **values: Any) -> RoundCommitted:
    fields: dict[str, Any] = {
        "state": f"s{round}", "group": ["A", "B"], "weights": {"A": 40_000, "B": 25_536}, "tokens": 1000,
        "bytes_sent": 10, "bytes_received": 20, "round_s": 8.0, "exposed_s": 1.0,
    }  # fmt: skip
    rows = [asdict(each) for each in penalties]
    return RoundCommitted(round=round, digest=digest or f"d{round}", penalties=rows, **(fields | values))


def state(state: str, *, peer: str = "A", t: float = 100.0) -> EventLine:
    return line(PeerStateChanged(state=state, why=""), peer=peer, t=t)


def heard(round: int, *, about: str = "C", t: float = 100.0, **values: Any) -> EventLine:
    fields: dict[str, Any] = {"ready": False, "tokens": 0, "steps": 0}
    return line(ReportReceived(about=about, round=round, **(fields | values)), t=t)


# ---- a pause is no fault ----


def paused_round(by: str = "A") -> list[EventLine]:
    """B pauses and gives nothing to round 2; it is a member that weighs nothing."""
    row = late("B", 3)
    weightless = {"weights": {"A": 65_536, "B": 0}, "outcomes": {"A": "accepted", "B": "idle"}}
    return [line(committed(2, row, **weightless), peer=by, t=120), line(row, peer=by, t=120)]


def test_a_pause_shows_as_one_in_its_lane_round_after_round() -> None:
    swarm = folded(
        state("TRAINING", t=1), line(PhaseEntered(round=0, phase="exchange"), t=2), line(committed(1), t=3),
        state("PAUSED", t=4), line(PhaseEntered(round=1, phase="prepare"), t=5),
        line(RoundAborted(round=1, ballot=0, why="x"), t=6), line(committed(2), t=7),
        line(PhaseEntered(round=2, phase="prepare"), t=8), state("TRAINING", t=9),
    )  # fmt: skip
    told = [(span.phase, span.round) for span in swarm.peers["A"].spans]
    assert told == [("train", 1), ("exchange", 1), ("idle", 2), ("paused", 2), ("paused", 3), ("train", 3)]


def test_who_paused_is_not_late() -> None:
    swarm = folded(line(committed(1)), state("PAUSED", peer="B", t=105), *paused_round())
    bob = swarm.peers["B"]
    assert (swarm.penalty_log, swarm.history[-1].penalties) == ((), ())
    assert (bob.accepted, bob.late, bob.idle, bob.rejected, bob.missed) == (1, 0, 1, 0, 0)
    assert "LATE" not in [entry.code for entry in swarm.entries]
    assert {span.phase for span in bob.spans} == {"paused"}


def test_who_tells_it_after_the_pause_changes_nothing() -> None:
    swarm = folded(line(committed(1), t=101), line(committed(1), peer="B", t=101), state("PAUSED", peer="B", t=105))
    swarm = folded(*paused_round(), state("TRAINING", peer="B", t=121), *paused_round("C"), after=swarm)
    assert (swarm.penalty_log, swarm.peers["B"].late) == ((), 0)


def test_who_is_heard_to_sit_out_is_paused_and_not_late() -> None:
    swarm = folded(line(committed(1)), heard(1, about="B", t=110, ready=True))
    bob = swarm.peers["B"]
    assert (bob.state, bob.why, bob.spans[-1].phase) == ("PAUSED", "sits this round out", "paused")
    assert folded(*paused_round(), after=swarm).penalty_log == ()
    assert folded(heard(-1, about="B", ready=True)).peers["B"].state == "READY"


def test_who_has_nothing_is_idle_whether_or_not_anybody_knew_of_its_pause() -> None:
    swarm = folded(line(committed(1)), state("TRAINING", peer="B", t=105), *paused_round())
    assert (swarm.penalty_log, swarm.peers["B"].late, swarm.peers["B"].idle) == ((), 0, 1)
    assert [entry.text for entry in swarm.entries if entry.code == "IDLE"] == ["had nothing to give to round 2"]


def test_lines_of_an_older_client_that_tell_no_outcomes_tell_penalties_as_they_did() -> None:
    row = late("B", 2)
    swarm = folded(line(committed(1, row, weights={"A": 65_536, "B": 0})), line(row))
    assert ([each.code for each in swarm.penalty_log], swarm.peers["B"].late) == (["LATE"], 1)


def test_who_paused_is_late_with_what_came_too_late() -> None:
    slow = late("B", 3, "3 of 8 parts came in time")
    swarm = folded(line(committed(1)), state("PAUSED", peer="B", t=105), line(committed(2, slow), t=120))
    assert swarm.peers["B"].late == 1


# ---- traffic ----


def test_the_traffic_of_rounds_outlasts_a_restart() -> None:
    before = [line(committed(1)), line(committed(1), peer="B"), line(committed(2))]
    swarm = folded(*before, line(PeerStarted(name="a", version="0")), line(committed(3)))
    assert (swarm.bytes_sent, swarm.bytes_received) == (40, 80)
    assert (swarm.peers["A"].bytes_sent, swarm.peers["B"].bytes_sent) == (30, 10)
    assert sum(told.bytes_sent for told in swarm.history) == 40


def test_the_tokens_of_a_run_are_the_sum_of_what_counted_for_peers() -> None:
    """Pledged are more: what of them was refused counts for nobody."""
    swarm = folded(line(committed(1, tokens=1000, given={"A": 600, "B": 0})))
    assert (swarm.tokens, swarm.history[-1].tokens, swarm.peers["A"].tokens) == (600, 600, 600)
    assert [point.value for point in swarm.speeds] == [600 / 8.0]


# ---- how long a round took ----


def test_a_round_that_was_caught_up_with_takes_what_its_teller_says() -> None:
    swarm = folded(
        state("SYNCING", t=1), line(committed(1, round_s=0.0), t=2), line(committed(2, round_s=3.0), t=500),
        state("TRAINING", t=501), line(committed(3, round_s=40.0), t=540), line(committed(4, round_s=9.0), t=550),
    )  # fmt: skip
    assert [(view.round_s, view.live) for view in swarm.history] == [(0.0, False), (3.0, False), (40.0, True),
                                                                    (10.0, True)]  # fmt: skip
    assert [(point.round, point.value) for point in swarm.speeds] == [(4, 100.0)]


def test_the_first_round_after_a_restart_did_not_last_all_night() -> None:
    start = PeerStarted(name="alice", version="0")
    swarm = folded(
        line(start, t=0), line(committed(1), t=10), line(committed(2), t=20),
        line(start, t=90_000), line(committed(3, round_s=12.0), t=90_030), line(committed(4), t=90_040),
    )  # fmt: skip
    assert [view.round_s for view in swarm.history] == [8.0, 10.0, 12.0, 10.0]
    assert [point.round for point in swarm.speeds] == [1, 2, 4]


def test_training_losses_are_drawn_for_rounds_without_a_speed() -> None:
    progress = InnerProgressed(round=4, step=1, steps=9, loss=2.5, tokens=64, tokens_per_s=320.0, learning_rate=1e-3)
    swarm = folded(line(progress), line(committed(5)), line(committed(5), peer="B"))
    assert ([point.round for point in swarm.training], swarm.speeds) == ([5], ())


# ---- held-out losses that are heard ----


def test_what_is_heard_never_replaces_what_is_known() -> None:
    swarm = folded(line(committed(1)), line(Evaluated(round=1, loss=2.0, tokens=1)))
    swarm = folded(heard(1, evaluated=0.001, evaluated_round=1), after=swarm)
    assert swarm.losses == ((1, 2.0),)
    assert folded(line(Evaluated(round=1, loss=2.5, tokens=1)), after=swarm).losses == ((1, 2.5),)


def test_a_loss_of_a_round_that_is_not_there_waits_for_it() -> None:
    swarm = folded(line(committed(1)), heard(900, evaluated=0.001, evaluated_round=900),
                   heard(2, about="B", evaluated=2.25, evaluated_round=2))  # fmt: skip
    assert (swarm.losses, swarm.evaluations) == ((), ())
    swarm = folded(line(committed(2), t=120), after=swarm)
    assert swarm.losses == ((2, 2.25),)
    assert [point.value for point in swarm.evaluations] == [2.25]
