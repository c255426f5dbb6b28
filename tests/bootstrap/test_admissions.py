"""The organiser's book, the terms of invites, and the orders on disk."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from bootstrap.config import SINGLE_MOST, InviteTerms, issue_all, parse_duration_s
from bootstrap.members import BOOK_FILE, ENDED_FILE, AdmissionBook, end, read_book, renew
from bootstrap.organiser import (
    ORDERS_FILE,
    OrdersFile,
    keep_out,
    let_back,
    lift,
    list_quarantine,
    more_invites,
    quarantine,
)
from bootstrap.peer_monitor import is_relayed
from dht.access import AccessList
from dht.admission import FOR_EVER, LASTS_S, QuarantineList, issue_admission, read_admission, sign_quarantine
from dht.errors import BadInput
from dht.identity import Identity
from dht.invite import INVITE_FILE, issue, parse
from peer.node.telemetry.event_log import EventPrinter
from peer.schema.events import AlertRaised, Event

ORGANISER, ALICE, BOB = (Identity.from_seed(letter * 32) for letter in (b"o", b"a", b"b"))
RUN, NOW_S = b"r" * 32, 1_800_000_000.0
ADDRS = (f"/ip4/203.0.113.5/tcp/31337/p2p/{ORGANISER.peer_id}",)
NOBODY = QuarantineList()


def invite(**terms: Any) -> str:
    fields: dict[str, Any] = {"run": "tiny", "spec_hash": RUN, "addrs": ADDRS, "token": b"t" * 16}
    return issue(ORGANISER, **(fields | terms))


@pytest.fixture
def book(tmp_path: Path) -> AdmissionBook:
    return AdmissionBook(tmp_path, ORGANISER, RUN)


# ---- the book ----


def test_an_invite_for_all_admits_everybody_until_it_is_over(book: AdmissionBook) -> None:
    text = invite(expires=NOW_S + 60)
    for peer in (ALICE, BOB):
        answer = book.answer(peer.peer_id, text, NOBODY, NOW_S)
        assert answer.admission is not None
        read_admission(answer.admission.to_bytes(), RUN, ORGANISER.peer_id, peer.peer_id)
    assert book.members(NOW_S) == {ALICE.peer_id, BOB.peer_id}
    late = book.answer(Identity.generate().peer_id, text, NOBODY, NOW_S + 60)
    assert (late.admission, "expired" in late.why) == (None, True)


def test_an_invite_for_one_admits_one_and_the_same_again(book: AdmissionBook, tmp_path: Path) -> None:
    """Also after a restart: an answer that was lost on its way is no loss, and no second key slips in."""
    text = invite(once=True)
    assert book.answer(ALICE.peer_id, text, NOBODY, NOW_S).admission is not None
    again = AdmissionBook(tmp_path, ORGANISER, RUN)
    assert again.answer(ALICE.peer_id, text, NOBODY, NOW_S).admission is not None
    refused = again.answer(BOB.peer_id, text, NOBODY, NOW_S)
    assert (refused.admission, "another has used it" in refused.why) == (None, True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (invite(token=None), "admits nobody"),
        (invite(spec_hash=b"x" * 32), "another run"),
        (issue(BOB, run="tiny", spec_hash=RUN, addrs=ADDRS, token=b"t"), "another run or organiser"),
        ("hf1:nonsense", "damaged"),
        ("", "not an invite"),
    ],
)
def test_what_the_organiser_has_not_signed_for_this_run_admits_nobody(
    book: AdmissionBook, text: str, says: str
) -> None:
    answer = book.answer(ALICE.peer_id, text, NOBODY, NOW_S)
    assert answer.admission is None
    assert says in answer.why
    assert book.members(NOW_S) == frozenset()


def test_who_is_in_quarantine_is_not_admitted_again(book: AdmissionBook) -> None:
    orders = sign_quarantine(ORGANISER, RUN, 1, {ALICE.peer_id: "sends noise"})
    assert book.answer(ALICE.peer_id, invite(), orders, NOW_S).why.endswith("sends noise")


def test_a_line_that_was_cut_off_is_forgotten_and_spoils_no_other(book: AdmissionBook, tmp_path: Path) -> None:
    path = tmp_path / "admissions.jsonl"
    book.answer(ALICE.peer_id, invite(), NOBODY, NOW_S)
    path.write_bytes(path.read_bytes() + b'{"peer": "12D3Koo')
    again = AdmissionBook(tmp_path, ORGANISER, RUN)
    again.answer(BOB.peer_id, invite(), NOBODY, NOW_S)
    assert AdmissionBook(tmp_path, ORGANISER, RUN).members(NOW_S) == {ALICE.peer_id, BOB.peer_id}


def test_the_book_has_an_end(book: AdmissionBook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bootstrap.members.ADMITTED_MOST", 1)
    book.answer(ALICE.peer_id, invite(), NOBODY, NOW_S)
    assert "no more" in book.answer(BOB.peer_id, invite(), NOBODY, NOW_S).why
    assert book.answer(BOB.peer_id, invite(), NOBODY, NOW_S + LASTS_S).admission, "the other's admission has ended"


def test_an_admission_ends_and_the_next_one_is_given_in_time(tmp_path: Path) -> None:
    """To whoever was admitted, with whatever invite; one that asks every second gets the same, and fills no book."""
    book = AdmissionBook(tmp_path, ORGANISER, RUN, 30.0)

    def until(now_s: float, text: str = "") -> float:
        admission = book.answer(ALICE.peer_id, text, NOBODY, now_s).admission
        assert admission is not None
        assert read_admission(admission.to_bytes(), RUN, ORGANISER.peer_id, ALICE.peer_id) == admission
        return admission.expires - NOW_S

    assert until(NOW_S, invite(once=True)) == 30
    assert [until(NOW_S + passed) for passed in range(11)] == [30] * 11
    assert len(read_book(tmp_path)) == 1
    assert until(NOW_S + 10.5) == 40.5
    assert book.members(NOW_S + 40) == {ALICE.peer_id}
    assert book.members(NOW_S + 41) == frozenset()
    book = AdmissionBook(tmp_path, ORGANISER, RUN, 30.0)
    assert until(NOW_S + 39) == 69
    assert until(NOW_S + 1000) == 1030, "it was switched off for long"
    assert not book.answer(BOB.peer_id, invite(once=True), NOBODY, NOW_S).admission, "the invite stays used"


def test_admissions_of_an_earlier_version_have_no_end(tmp_path: Path) -> None:
    row = {"peer": ALICE.peer_id, "token": "00", "once": False, "at": 1}
    (tmp_path / BOOK_FILE).write_text(f"\n{json.dumps(row)}\n")
    admission = AdmissionBook(tmp_path, ORGANISER, RUN).answer(ALICE.peer_id, "", NOBODY, NOW_S).admission
    assert admission is not None
    assert admission.expires == FOR_EVER


def test_whose_admission_shall_end_gets_no_other_while_the_node_runs(book: AdmissionBook, tmp_path: Path) -> None:
    """What it has goes on until it ends; the organiser can change his mind."""
    assert book.answer(ALICE.peer_id, invite(), NOBODY, NOW_S).admission
    end(tmp_path, ALICE.peer_id, "the project is over for guests")
    refused = book.answer(ALICE.peer_id, invite(), NOBODY, NOW_S + 1)
    assert refused.admission is None
    assert refused.why.endswith("no longer: the project is over for guests")
    assert book.members(NOW_S + 1) == {ALICE.peer_id}
    renew(tmp_path, ALICE.peer_id)
    assert book.answer(ALICE.peer_id, invite(), NOBODY, NOW_S + 2).admission
    with pytest.raises(BadInput, match="not to end"):
        renew(tmp_path, ALICE.peer_id)
    for peer, reason in (("nobody", "x"), (ALICE.peer_id, ""), (ALICE.peer_id, "\x1b[2J")):
        with pytest.raises(BadInput):
            end(tmp_path, peer, reason)
    (tmp_path / ENDED_FILE).write_text("[]")
    with pytest.raises(BadInput, match="damaged"):
        book.answer(ALICE.peer_id, invite(), NOBODY, NOW_S + 3)


# ---- invites ----


def test_terms_make_one_invite_for_all_or_many_for_one_each() -> None:
    def texts(terms: InviteTerms) -> list[Any]:
        made = issue_all(ORGANISER, run="tiny", spec_hash=RUN, addrs=ADDRS, terms=terms, now_s=NOW_S, checkpoint=None)
        return [parse(text, NOW_S) for text in made]

    (plain,) = texts(InviteTerms())
    assert (plain.token, plain.expires) == (None, None)
    (for_all,) = texts(InviteTerms(admits=True, lasts_s=60))
    assert (for_all.token is not None, for_all.once, for_all.expires) == (True, False, NOW_S + 60)
    single = texts(InviteTerms(admits=True, single=3))
    assert all(item.once for item in single)
    assert len({item.token for item in single}) == 3


@pytest.mark.parametrize("terms", [{"single": 1}, {"single": -1, "admits": True}, {"single": SINGLE_MOST + 1}])
def test_terms_that_make_no_sense_are_refused(terms: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        InviteTerms(**terms)


def test_times_are_short_words() -> None:
    told = [parse_duration_s("--expires", text) for text in ("30m", "12h", "7d", "1.5w")]
    assert told == [1800, 43200, 604800, 907200]
    for text in ("", "7", "d", "-1d", "0d", "1y", "99999w", "nan", "1e3d"):
        with pytest.raises(BadInput, match="--expires is"):
            parse_duration_s("--expires", text)


# ---- orders on disk ----


def test_orders_are_numbered_reported_and_lifted(tmp_path: Path) -> None:
    told: list[str] = []

    def report(event: Event) -> None:
        assert isinstance(event, AlertRaised)
        told.append(f"{event.code}: {event.text}")

    file = OrdersFile(tmp_path, RUN, ORGANISER.peer_id, report)
    assert file.look() == QuarantineList()
    first = quarantine(tmp_path, ORGANISER, RUN, ALICE.peer_id, "sends noise").number
    assert quarantine(tmp_path, ORGANISER, RUN, BOB.peer_id, "two names").number > first
    assert set(file.look().quarantined) == {ALICE.peer_id, BOB.peer_id}
    assert lift(tmp_path, ORGANISER, RUN, ALICE.peer_id).number > first + 1
    assert file.look().quarantined == {BOB.peer_id: "two names"}
    assert sorted(told) == [
        *sorted(
            [
                f"QUARANTINE: {ALICE.peer_id} is in quarantine: sends noise",
                f"QUARANTINE: {BOB.peer_id} is in quarantine: two names",
            ]
        ),
        f"QUARANTINE: the quarantine of {ALICE.peer_id} is lifted",
    ]
    with pytest.raises(BadInput, match="not in quarantine"):
        lift(tmp_path, ORGANISER, RUN, ALICE.peer_id)
    with pytest.raises(BadInput, match="own key"):
        quarantine(tmp_path, ORGANISER, RUN, ORGANISER.peer_id, "x")


@pytest.mark.parametrize(("spoilt", "why"), [(b"?", "is damaged"), (b"", "is damaged"), (None, "is gone")])
def test_orders_that_are_spoilt_while_the_node_runs_go_on(tmp_path: Path, spoilt: bytes | None, why: str) -> None:
    """Nobody is let in by an accident of a disk; it is told once, and the next start says what to do."""
    told: list[str] = []
    quarantine(tmp_path, ORGANISER, RUN, ALICE.peer_id, "sends noise")
    file = OrdersFile(tmp_path, RUN, ORGANISER.peer_id, lambda event: told.append(event.text))  # type: ignore[arg-type]
    assert set(file.look().quarantined) == {ALICE.peer_id}
    (tmp_path / ORDERS_FILE).unlink()
    if spoilt is not None:
        (tmp_path / ORDERS_FILE).write_bytes(spoilt)
    for _ in range(2):
        assert set(file.look().quarantined) == {ALICE.peer_id}
    assert [why in text for text in told] == [False, True]
    if spoilt is not None:
        with pytest.raises(BadInput, match="move it away"):
            OrdersFile(tmp_path, RUN, ORGANISER.peer_id, EventPrinter(out=StringIO()))


def test_orders_count_also_after_the_folder_was_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is left, or an old copy of the folder: peers know the orders that are gone, and obey newer ones alone."""
    known = AccessList(RUN, ORGANISER.peer_id, asks_admission=False)
    for now_s, copy in ((NOW_S, "old"), (NOW_S + 0.2, "old"), (NOW_S + 60, "empty")):
        monkeypatch.setattr("time.time", lambda now_s=now_s: now_s)
        (tmp_path / copy).mkdir(exist_ok=True)
        assert known.obey(quarantine(tmp_path / copy, ORGANISER, RUN, ALICE.peer_id, "sends noise"))


# ---- the command ----


def test_an_organiser_makes_invites_like_the_last_one_and_writes_orders(tmp_path: Path) -> None:
    organiser = Identity.load_or_create(tmp_path / "identity.key")
    last = issue(organiser, run="tiny", spec_hash=RUN, addrs=ADDRS, token=b"t", expires=1.0)
    (tmp_path / INVITE_FILE).write_text(last)
    texts = more_invites(tmp_path, count=2, expires="7d").split()
    assert [parse(text, NOW_S / 2).addrs for text in texts] == [ADDRS, ADDRS]
    assert "sends noise" in keep_out(tmp_path, ALICE.peer_id, "sends noise")
    assert (tmp_path / ORDERS_FILE).exists()
    assert f"{ALICE.peer_id}  sends noise" in list_quarantine(tmp_path)
    assert "is lifted" in let_back(tmp_path, ALICE.peer_id)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda folder: more_invites(folder, expires="soon"),
        lambda folder: keep_out(folder, "nobody", "x"),
        lambda folder: let_back(folder, ALICE.peer_id),
    ],
)
def test_a_mistake_is_one_line(mistake: Callable[[Path], str], tmp_path: Path) -> None:
    organiser = Identity.load_or_create(tmp_path / "identity.key")
    (tmp_path / INVITE_FILE).write_text(issue(organiser, run="tiny", spec_hash=RUN, addrs=ADDRS))
    for directory in (tmp_path, tmp_path / "empty"):
        with pytest.raises(BadInput) as caught:
            mistake(directory)
        assert "\n" not in str(caught.value)


def test_a_line_of_the_book_names_peer_token_and_times(book: AdmissionBook, tmp_path: Path) -> None:
    book.answer(ALICE.peer_id, invite(), NOBODY, NOW_S)
    assert stat.S_IMODE((tmp_path / "admissions.jsonl").stat().st_mode) == 0o600, "whoever knows the token is admitted"
    row = json.loads((tmp_path / "admissions.jsonl").read_text())
    assert row == {
        "peer": ALICE.peer_id, "token": (b"t" * 16).hex(), "once": False, "at": NOW_S, "until": NOW_S + LASTS_S
    }  # fmt: skip


def test_the_node_is_the_relay_of_those_alone_who_may_take_part(book: AdmissionBook, tmp_path: Path) -> None:
    """Members, and who shows an admission that the book lacks, as a watcher of the organiser does."""
    orders = OrdersFile(tmp_path, RUN, ORGANISER.peer_id, EventPrinter(out=StringIO()))
    guests = AccessList(RUN, ORGANISER.peer_id, asks_admission=True, clock=lambda: NOW_S)
    assert not is_relayed(ALICE.peer_id, book, orders, guests, NOW_S)
    assert is_relayed(ALICE.peer_id, None, orders, guests, NOW_S)
    book.answer(ALICE.peer_id, invite(), NOBODY, NOW_S)
    guests.learn(BOB.peer_id, issue_admission(ORGANISER, RUN, BOB.peer_id, NOW_S + 60).to_bytes())
    for peer in (ALICE.peer_id, BOB.peer_id):
        assert is_relayed(peer, book, orders, guests, NOW_S)
        quarantine(tmp_path, ORGANISER, RUN, peer, "sends noise")
        assert not is_relayed(peer, book, orders, guests, NOW_S)
        assert not is_relayed(peer, None, orders, guests, NOW_S)
