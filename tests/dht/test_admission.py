"""Admissions and orders: what the organiser signs, and whom a roster lets in."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.access import AccessList, RejectCode
from dht.admission import (
    FOR_EVER,
    MAX_ADMISSION_BYTES,
    MAX_QUARANTINED,
    MAX_REASON,
    QuarantineList,
    issue_admission,
    load_quarantine,
    read_admission,
    read_quarantine,
    save_quarantine,
    sign_quarantine,
)
from dht.errors import BadInput
from dht.identity import Identity
from dht.records import Malformed

ORGANISER, ALICE, MALLORY = (Identity.from_seed(letter * 32) for letter in (b"o", b"a", b"m"))
RUN, NOW_S = b"r" * 32, 1_800_000_000.0
SHOWN = issue_admission(ORGANISER, RUN, ALICE.peer_id).to_bytes()


def roster(*, asks: bool = True, now_s: float = NOW_S) -> AccessList:
    return AccessList(RUN, ORGANISER.peer_id, asks_admission=asks, clock=lambda: now_s)


# ---- admissions ----


def test_an_admission_is_read_back_and_fits_into_a_head() -> None:
    read = read_admission(SHOWN, RUN, ORGANISER.peer_id, ALICE.peer_id)
    assert (read.peer, read.expires) == (ALICE.peer_id, FOR_EVER)
    assert not read.is_over(NOW_S)
    assert len(issue_admission(ORGANISER, RUN, ALICE.peer_id, NOW_S).to_bytes()) <= MAX_ADMISSION_BYTES


@pytest.mark.parametrize(
    ("run", "organiser", "peer"),
    [(b"x" * 32, ORGANISER, ALICE), (RUN, MALLORY, ALICE), (RUN, ORGANISER, MALLORY)],
    ids=["another run", "another organiser", "another peer"],
)
def test_it_is_good_for_one_peer_in_one_run_of_one_organiser(run: bytes, organiser: Identity, peer: Identity) -> None:
    with pytest.raises(Malformed, match="not signed"):
        read_admission(SHOWN, run, organiser.peer_id, peer.peer_id)


def test_nobody_lengthens_it() -> None:
    fields = msgpack.unpackb(issue_admission(ORGANISER, RUN, ALICE.peer_id, NOW_S).to_bytes())
    with pytest.raises(Malformed, match="not signed"):
        read_admission(msgpack.packb([NOW_S + 1, fields[1]]), RUN, ORGANISER.peer_id, ALICE.peer_id)


@given(st.binary(max_size=120))
def test_garbage_is_no_admission_and_no_orders(packed: bytes) -> None:
    with pytest.raises(Malformed):
        read_admission(packed, RUN, ORGANISER.peer_id, ALICE.peer_id)
    with pytest.raises(Malformed):
        read_quarantine(packed, RUN, ORGANISER.peer_id)


# ---- orders ----


def test_orders_name_peers_and_reasons_and_survive_a_folder(tmp_path: Path) -> None:
    orders = sign_quarantine(ORGANISER, RUN, 3, {ALICE.peer_id: "sends noise", MALLORY.peer_id: "asked us to"})
    assert read_quarantine(orders.to_bytes(), RUN, ORGANISER.peer_id) == orders
    path = tmp_path / "quarantine"
    assert load_quarantine(path, RUN, ORGANISER.peer_id) == QuarantineList()
    save_quarantine(path, orders)
    assert load_quarantine(path, RUN, ORGANISER.peer_id) == orders
    with pytest.raises(BadInput, match="damaged"):
        load_quarantine(path, RUN, MALLORY.peer_id)


@pytest.mark.parametrize(
    ("quarantined", "says"),
    [
        ({"nobody": "x"}, "not a peer id"),
        ({ALICE.peer_id: ""}, "printable"),
        ({ALICE.peer_id: "\x1b[2J"}, "printable"),
        ({ALICE.peer_id: "x" * (MAX_REASON + 1)}, "printable"),
        (
            {Identity.from_seed(number.to_bytes(32, "big")).peer_id: "x" for number in range(MAX_QUARANTINED + 1)},
            "room",
        ),
    ],
    ids=["no peer", "no reason", "escapes", "long", "many"],
)
def test_what_no_peer_would_read_is_not_signed(quarantined: dict[str, str], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        sign_quarantine(ORGANISER, RUN, 1, quarantined)


def test_the_longest_orders_are_read() -> None:
    """What the organiser can sign every peer can read."""
    reason = "\U0001f525" * MAX_REASON
    many = {Identity.from_seed(number.to_bytes(32, "big")).peer_id: reason for number in range(MAX_QUARANTINED)}
    assert (
        read_quarantine(sign_quarantine(ORGANISER, RUN, 1, many).to_bytes(), RUN, ORGANISER.peer_id).quarantined == many
    )


@given(st.data())
def test_no_byte_of_orders_can_be_changed(data: st.DataObject) -> None:
    packed = bytearray(sign_quarantine(ORGANISER, RUN, 1, {ALICE.peer_id: "x"}).to_bytes())
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Malformed):
        read_quarantine(bytes(packed), RUN, ORGANISER.peer_id)


# ---- the roster ----


def test_an_open_run_lets_everybody_in() -> None:
    assert roster(asks=False).why_not(MALLORY.peer_id) is None


def test_a_run_that_asks_lets_in_whom_the_organiser_admitted() -> None:
    known = roster()
    assert known.why_not(ORGANISER.peer_id) is None
    assert known.why_not(ALICE.peer_id) == (RejectCode.STRANGER, "it shows no admission of the organiser")
    known.learn(ALICE.peer_id, SHOWN)
    assert known.why_not(ALICE.peer_id) is None
    with pytest.raises(Malformed):
        known.learn(MALLORY.peer_id, SHOWN)
    assert known.why_not(MALLORY.peer_id) is not None


def test_a_bad_admission_does_not_take_a_good_one_away() -> None:
    known = roster()
    known.learn(ALICE.peer_id, SHOWN)
    with pytest.raises(Malformed):
        known.learn(ALICE.peer_id, b"nonsense")
    assert known.why_not(ALICE.peer_id) is None


def test_an_admission_that_is_over_lets_nobody_in() -> None:
    known = roster()
    known.learn(ALICE.peer_id, issue_admission(ORGANISER, RUN, ALICE.peer_id, NOW_S - 1).to_bytes())
    assert known.why_not(ALICE.peer_id) == (RejectCode.STRANGER, "its admission is over")


def test_of_two_admissions_the_longer_one_counts() -> None:
    """A record that was signed before the renewal may be read after it."""
    known = roster()
    for ends_s in (60.0, 120.0, 30.0):
        known.learn(ALICE.peer_id, issue_admission(ORGANISER, RUN, ALICE.peer_id, NOW_S + ends_s).to_bytes())
    later = roster(now_s=NOW_S + 90)
    later._admitted = known._admitted
    assert later.why_not(ALICE.peer_id) is None
    assert later.kept_out() == frozenset()
    known.learn(ALICE.peer_id, SHOWN)
    known.learn(ALICE.peer_id, issue_admission(ORGANISER, RUN, ALICE.peer_id, NOW_S + 60).to_bytes())
    assert known._admitted[ALICE.peer_id].expires == FOR_EVER


def test_whose_admission_is_over_finishes_what_has_begun_and_is_kept_out() -> None:
    """Whoever never had one has nothing to finish."""
    known = roster()
    known.learn(ALICE.peer_id, issue_admission(ORGANISER, RUN, ALICE.peer_id, NOW_S - 1).to_bytes())
    known.obey(sign_quarantine(ORGANISER, RUN, 1, {MALLORY.peer_id: "sends noise"}))
    assert known.kept_out() == {ALICE.peer_id, MALLORY.peer_id}
    stranger = Identity.generate().peer_id
    known.needed = lambda: {ALICE.peer_id, stranger}
    assert known.why_not(ALICE.peer_id) is None
    assert known.why_not(stranger) is not None
    assert known.kept_out() == {ALICE.peer_id, MALLORY.peer_id}


@pytest.mark.parametrize("asks", [False, True])
def test_quarantine_is_obeyed_in_open_runs_too_and_lifted(asks: bool) -> None:
    known = roster(asks=asks)
    known.learn(ALICE.peer_id, SHOWN)
    assert known.obey(sign_quarantine(ORGANISER, RUN, 1, {ALICE.peer_id: "sends noise"}))
    assert known.why_not(ALICE.peer_id) == (RejectCode.QUARANTINE, "the organiser keeps it out: sends noise")
    assert known.obey(sign_quarantine(ORGANISER, RUN, 2, {}))
    assert known.why_not(ALICE.peer_id) is None


def test_old_orders_that_are_shown_again_change_nothing() -> None:
    known = roster(asks=False)
    first = sign_quarantine(ORGANISER, RUN, 1, {ALICE.peer_id: "sends noise"})
    assert known.obey(sign_quarantine(ORGANISER, RUN, 2, {}))
    assert not known.obey(first)
    assert known.why_not(ALICE.peer_id) is None


def test_who_is_needed_for_what_has_begun_finishes_it() -> None:
    known = roster(asks=False)
    known.obey(sign_quarantine(ORGANISER, RUN, 1, {ALICE.peer_id: "sends noise"}))
    known.needed = lambda: {ALICE.peer_id}
    assert known.why_not(ALICE.peer_id) is None
    known.needed = set
    assert known.why_not(ALICE.peer_id) is not None


def test_a_roster_remembers_so_many_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dht.access.REMEMBERED_MOST", 2)
    known = roster()
    peers = [Identity.from_seed(letter * 32) for letter in (b"1", b"2", b"3")]
    for peer in peers:
        known.learn(peer.peer_id, issue_admission(ORGANISER, RUN, peer.peer_id).to_bytes())
    assert [known.why_not(peer.peer_id) is None for peer in peers] == [False, True, True]
