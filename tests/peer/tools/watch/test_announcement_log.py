"""What the board says is told once, as its author signed it."""

from __future__ import annotations

from dataclasses import replace

from dht.records import PeerRecord
from peer.schema.events import ReportReceived
from peer.tools.watch.watcher import ANCHORS_MOST, PEERS_MOST, AnnouncementLog

HEAD = PeerRecord(
    run=b"r" * 32, anchor=b"a" * 32, round=7, weight=21, state=b"s" * 32, ready=True, tokens=1000,
    steps=50, leaving=False, name="Zoë", version="1",
)  # fmt: skip


def test_news_are_what_has_changed() -> None:
    hearsay = AnnouncementLog()
    assert hearsay.news({"zoe": HEAD}) == [
        ReportReceived(about="zoe", round=7, ready=True, tokens=1000, steps=50, name="Zoë")
    ]
    assert hearsay.news({"zoe": replace(HEAD, addrs=("/ip4/10.0.0.1/tcp/1",), weight=22)}) == []
    (report,) = hearsay.news({"zoe": replace(HEAD, leaving=True), "yan": replace(HEAD, name="Yan")})[1:]
    assert (report.about, report.leaving) == ("zoe", True)
    assert hearsay.news({"yan": replace(HEAD, name="Yan")}) == []
    assert [report.about for report in hearsay.news({"zoe": replace(HEAD, leaving=True)})] == ["zoe"], "it is back"


def test_how_training_goes_is_told_where_a_peer_says_it() -> None:
    said = replace(HEAD, loss=2.5, tokens_per_s=1e4, evaluated=2.25, evaluated_round=6, device_gb=24.0)
    (report,) = AnnouncementLog().news({"zoe": said})
    assert (report.loss, report.tokens_per_s, report.evaluated, report.evaluated_round) == (2.5, 1e4, 2.25, 6)
    assert report.device_gb == 24.0


def test_before_the_first_round_nobody_is_ready_for_one() -> None:
    """A founder offers itself with round -1."""
    (report,) = AnnouncementLog().news({"zoe": replace(HEAD, anchor=b"", round=-1)})
    assert (report.round, report.ready, report.name) == (0, False, "Zoë")


def test_the_state_is_what_most_at_this_anchor_say() -> None:
    hearsay = AnnouncementLog()
    hearsay.news(
        {
            "a": HEAD, "b": HEAD, "liar": replace(HEAD, state=b"x" * 32), "busy": replace(HEAD, state=b""),
            "behind": replace(HEAD, anchor=b"b" * 32, state=b"y" * 32), "behind too": replace(HEAD, anchor=b"b" * 32),
        }
    )  # fmt: skip
    assert hearsay.state_of(HEAD.anchor, hearsay.heads) == b"s" * 32
    assert hearsay.state_of(HEAD.anchor, ["liar", "nobody"]) == b"x" * 32
    assert hearsay.state_of(b"c" * 32, hearsay.heads) == b""


def test_what_a_peer_said_of_an_earlier_anchor_is_known_for_a_while() -> None:
    """A snapshot is found when those who wrote it have gone on."""
    hearsay = AnnouncementLog()
    for number in range(ANCHORS_MOST + 1):
        hearsay.news({"zoe": replace(HEAD, anchor=bytes([number]) * 32, state=bytes([100 + number]) * 32)})
        hearsay.news({"zoe": replace(HEAD, anchor=bytes([number]) * 32, state=b"")})
    said = [hearsay.state_of(bytes([number]) * 32, ["zoe"])[:1] for number in range(ANCHORS_MOST + 1)]
    assert said == [b"", *(bytes([100 + number]) for number in range(1, ANCHORS_MOST + 1))]
    hearsay.news({"yan": HEAD})
    assert hearsay.state_of(bytes([ANCHORS_MOST]) * 32, ["zoe"]) == b"", "it is gone"


def test_identities_without_number_fill_nothing_and_push_nobody_out() -> None:
    hearsay = AnnouncementLog()
    hearsay.news({"zoe": HEAD})
    hearsay.news({"zoe": HEAD} | {f"p{n}": HEAD for n in range(PEERS_MOST + 50)})
    assert len(hearsay.heads) == PEERS_MOST
    assert "zoe" in hearsay.heads


def test_who_says_the_same_is_told_of_again_now_and_then() -> None:
    """A paused peer, or one of a run that stands still, is there as long as its record is."""
    now = [0.0]
    hearsay = AnnouncementLog(lambda: now[0])
    told = []
    for now[0] in range(0, 65, 5):
        told.append((now[0], len(hearsay.news({"zoe": HEAD}))))
    assert [at for at, count in told if count] == [0, 30, 60]
