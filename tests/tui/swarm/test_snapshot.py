from __future__ import annotations

import json
from typing import Any

from peer.schema.events import (
    AlertRaised,
    Evaluated,
    Event,
    EventLine,
    InnerProgressed,
    PeerStarted,
    PeerStateChanged,
    PeerStopped,
    PenaltyImposed,
    ReportReceived,
    RoundCommitted,
    RoundStarted,
    TransferProgressed,
)
from tui.commands.status import to_json
from tui.swarm.reducer import MAX_ALERTS, apply
from tui.swarm.snapshot import CommittedAnchor, SwarmState


def line(event: Event, *, peer: str = "QmAlice", t: float = 100.0) -> EventLine:
    return EventLine(seq=0, t=t, run="tiny", peer=peer, event=event)


def folded(*lines: EventLine) -> SwarmState:
    swarm = SwarmState()
    for each in lines:
        swarm = apply(swarm, each)
    return swarm


def committed(round: int, **values: Any) -> RoundCommitted:
    fields: dict[str, Any] = {
        "digest": f"d{round}",
        "state": f"s{round}",
        "group": ["QmAlice", "QmBob"],
        "weights": {},
        "penalties": [],
        "tokens": 1000,
        "bytes_sent": 10,
        "bytes_received": 20,
        "round_s": 2.0,
        "exposed_s": 1.0,
    }
    return RoundCommitted(round=round, **(fields | values))


def test_a_peer_is_what_it_last_said_of_itself() -> None:
    swarm = folded(
        line(PeerStarted(name="alice", version="0.1.0", device="cpu", parameters=7)),
        line(PeerStateChanged(state="TRAINING", why="round 1 began")),
        line(RoundStarted(round=1, steps=50)),
        line(InnerProgressed(round=1, step=20, steps=50, loss=2.5, tokens=640, tokens_per_s=320.0, learning_rate=1e-3)),
    )
    alice = swarm.peers["QmAlice"]
    assert (alice.label, alice.device, alice.parameters) == ("alice", "cpu", 7)
    assert (alice.state, alice.why) == ("TRAINING", "round 1 began")
    assert (alice.round, alice.step, alice.steps, alice.loss) == (1, 20, 50, 2.5)


def test_the_tokens_of_a_round_count_once_however_many_peers_report_it() -> None:
    swarm = folded(line(committed(1)), line(committed(1), peer="QmBob"), line(committed(2)))
    assert (swarm.round, swarm.tokens, swarm.bytes_sent) == (2, 2000, 30)


def test_commits_are_kept_per_peer() -> None:
    swarm = folded(line(committed(1)), line(committed(2)), line(committed(1), peer="QmBob"))
    assert tuple(swarm.peers["QmAlice"].commits) == (
        CommittedAnchor(round=1, digest="d1", state="s1"),
        CommittedAnchor(round=2, digest="d2", state="s2"),
    )
    assert [commit.round for commit in swarm.peers["QmBob"].commits] == [1]


def test_a_new_start_forgets_the_process_before() -> None:
    swarm = folded(
        line(committed(3)),
        line(PeerStopped(why="asked to leave")),
        line(PeerStarted(name="alice", version="0.1.0")),
    )
    assert not swarm.peers["QmAlice"].stopped
    assert tuple(swarm.peers["QmAlice"].commits) == ()


def test_hearsay_never_overrides_what_a_peer_says_itself() -> None:
    report = ReportReceived(about="QmAlice", round=9, ready=True, tokens=1, steps=1, name="mallory")
    swarm = folded(line(PeerStarted(name="alice", version="0.1.0")), line(report, peer="QmBob"))
    assert swarm.peers["QmAlice"].label == "alice"
    assert swarm.peers["QmAlice"].round == 0


def test_a_peer_known_by_hearsay_does_not_count_as_reporting() -> None:
    swarm = folded(line(ReportReceived(about="QmCarol", round=4, ready=False, tokens=1, steps=8, name="carol")))
    assert swarm.peers["QmCarol"].label == "carol"
    assert swarm.peers["QmCarol"].state == "TRAINING"
    assert swarm.reporting == []


def test_losses_are_by_round_whatever_the_order_of_the_lines() -> None:
    swarm = folded(
        line(Evaluated(round=2, loss=2.0, tokens=10)),
        line(Evaluated(round=0, loss=5.5, tokens=10), peer="QmBob"),
        line(Evaluated(round=2, loss=2.0, tokens=10), peer="QmBob"),
    )
    assert swarm.losses == ((0, 5.5), (2, 2.0))


def test_only_the_newest_alerts_are_kept() -> None:
    alerts = [line(AlertRaised(level="warning", code="X", text=str(number))) for number in range(MAX_ALERTS + 3)]
    kept = folded(*alerts).peers["QmAlice"].alerts
    assert len(kept) == MAX_ALERTS
    assert kept[-1] == f"warning: {MAX_ALERTS + 2}"


def test_what_a_peer_receives_is_shown_while_it_catches_up() -> None:
    transfer = TransferProgressed(what="updates", source="bob", bytes_done=7, bytes_total=20)
    swarm = folded(line(PeerStateChanged(state="SYNCING", why="")), line(transfer))
    assert swarm.peers["QmAlice"].transfer == transfer
    assert json.loads(json.dumps(to_json(swarm, 0.0)))["peers"][0]["transfer"]["bytes_done"] == 7
    assert apply(swarm, line(PeerStateChanged(state="READY", why=""))).peers["QmAlice"].transfer is None


def test_seconds_run_from_the_first_line_to_the_last() -> None:
    swarm = folded(line(committed(1), t=130.0), line(committed(1), peer="QmBob", t=110.0))
    assert swarm.seconds == 20.0


def test_folding_leaves_the_old_snapshot_alone() -> None:
    before = folded(line(committed(1)))
    apply(before, line(committed(2)))
    assert before.round == 1
    assert len(before.peers["QmAlice"].commits) == 1


def test_the_json_form_is_json() -> None:
    row = json.loads(json.dumps(to_json(folded(line(committed(1))), 0.0), allow_nan=False))
    assert row["round"] == 1
    assert row["peers"][0]["last_commit"] == {"round": 1, "digest": "d1", "state": "s1"}


def test_a_peer_that_changed_over_stands_on_its_new_chain_and_no_round_counts_twice() -> None:
    """A restart went past its chain: it says the same rounds again."""
    before = [line(committed(round, tokens=10)) for round in (1, 2, 3)]
    swarm = folded(*before, line(committed(2, digest="other", tokens=25)))
    assert [(commit.round, commit.digest) for commit in swarm.peers["QmAlice"].commits] == [(1, "d1"), (2, "other")]
    swarm = apply(swarm, line(committed(4, digest="other, too", tokens=30)))
    assert (swarm.round, swarm.tokens) == (4, 10 + 10 + 10 + 30)


def test_a_peer_that_is_behind_takes_nothing_back() -> None:
    """The swarm is where its first peer is."""
    swarm = folded(*(line(committed(round, tokens=10)) for round in (1, 2, 3)), line(committed(1), peer="QmBob"))
    assert swarm.round == 3


def late(until_round: int, about: str = "QmBob", factor: float = 0.5) -> PenaltyImposed:
    evidence = "12 of 24 parts came in time"
    return PenaltyImposed(
        about=about, code="LATE", layer="", evidence=evidence, factor=factor, until_round=until_round
    )  # fmt: skip


def test_penalties_are_kept_while_they_last_and_told_once() -> None:
    """Every member tells them; who catches up tells some that are over."""
    told = folded(line(committed(1)), line(late(2)), line(committed(1), peer="QmBob"), line(late(2), peer="QmBob"))
    assert [(each.about, each.until_round) for each in told.lasting] == [("QmBob", 2)]
    assert json.loads(json.dumps(to_json(told, 0.0)))["penalties"][0]["evidence"] == "12 of 24 parts came in time"
    later = apply(apply(told, line(committed(2))), line(late(3, about="QmAlice")))
    assert [(each.about, each.until_round) for each in later.lasting] == [("QmAlice", 3)]
    assert apply(later, line(late(2), peer="QmBob")).lasting == later.lasting
