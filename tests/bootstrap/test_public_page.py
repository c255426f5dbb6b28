"""The page of a run for everybody: true, harmless, small, and of certificates alone."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bootstrap.public_ledger import (
    FILE,
    MOST_LOSSES,
    MOST_PEERS,
    GivenWork,
    PublicLedger,
    read_ledger,
    weights_in,
    write_ledger,
)
from bootstrap.public_page import PublicFacts, PublicPage, page_of
from dht.errors import BadInput
from dht.identity import Identity, fingerprint_words
from dht.invite import INVITE_FILE
from dht.records import PeerRecord
from peer.consensus.protocol.block import Block, Roster
from peer.consensus.protocol.head import ChainHead
from peer.schema.spec import RunSpec, load
from tests.peer.consensus.organiser.test_light_chain import made
from tests.tui.report.test_report import Page

ORGANISER = Identity.from_seed(b"o" * 32).peer_id
SPEC = load("tiny")
MOST_BYTES = 200_000


def record(name: str, evaluated: float | None = None, round: int = 4) -> PeerRecord:
    return PeerRecord(
        run=bytes(32), anchor=b"", round=round, weight=0, state=b"", ready=False, tokens=0, steps=0, leaving=False,
        name=name, version="0.5", evaluated=evaluated, evaluated_round=None if evaluated is None else round,
    )  # fmt: skip


def chain() -> tuple[ChainHead, tuple[Block, ...]]:
    """Its newest head, and its blocks."""
    head, blocks = made()
    for block in blocks:
        head = head.after(block.update)
    return head, tuple(blocks)


def facts(**known: Any) -> PublicFacts:
    usual: dict[str, Any] = {
        "spec": SPEC, "organiser": ORGANISER, "now_s": 0.0, "ledger": PublicLedger(), "head": None, "here": 0,
    }  # fmt: skip
    return PublicFacts(**usual | known)


# ---- who gave what ----


def test_whose_work_counted_follows_from_the_updates_alone() -> None:
    """By as much as they weigh; of a peer that gave nothing in a round nothing is said."""
    _, blocks = chain()
    ledger = PublicLedger().and_updates(block.update for block in blocks)
    assert (ledger.looked, ledger.round) == (len(blocks), blocks[-1].update.round)
    counted = [weights_in(block.update) for block in blocks]
    for peer, work in ledger.given.items():
        assert work.rounds == sum(peer in weights for weights in counted)
        assert work.weight == pytest.approx(sum(weights.get(peer, 0.0) for weights in counted))
    assert sum(map(ledger.share, ledger.given.values())) <= 1.0001
    nobody = replace(blocks[-1].update, contributors=(0,) * len(blocks[-1].update.parts))
    assert weights_in(nobody) == {}


def test_a_round_is_counted_once() -> None:
    _, blocks = chain()
    updates = [block.update for block in blocks]
    ledger = PublicLedger().and_updates(updates)
    assert ledger.and_updates(updates) == ledger


def test_less_than_half_of_the_voters_cannot_move_the_loss_at_will() -> None:
    honest = {f"p{number}": record("a", 2.0 + number / 10, 7) for number in range(3)}
    liars = {"l0": record("l", 0.0001, 1 << 60), "l1": record("l", 0.0001, 1 << 60)}
    strangers = {f"s{number}": record("s", 99.0, 9) for number in range(50)}
    ledger = PublicLedger().and_said(honest | liars | strangers, [*honest, *liars])
    ((_, loss),) = ledger.losses
    assert 2.0 <= loss <= 2.2
    assert ledger.and_said({"p0": record("a")}, ["p0"]).losses == ledger.losses


def test_names_and_losses_have_bounds(tmp_path: Path) -> None:
    """A key costs nothing, and a run may have no end."""
    given = {f"p{number:05}": GivenWork(rounds=1, last=1, weight=number / 1e6) for number in range(3 * MOST_PEERS)}
    _, blocks = chain()
    ledger = replace(PublicLedger(), given=given).and_updates([blocks[0].update])
    assert len(ledger.given) == MOST_PEERS
    for round in range(1, 3 * MOST_LOSSES):
        ledger = ledger.and_said({"p": record("a", 3.0, round)}, ["p"])
        assert len(ledger.losses) <= MOST_LOSSES
        assert (ledger.losses[0], ledger.losses[-1]) == ((1, 3.0), (round, 3.0))
    write_ledger(tmp_path, ledger)
    assert read_ledger(tmp_path) == ledger


def test_a_damaged_ledger_is_one_line(tmp_path: Path) -> None:
    assert read_ledger(tmp_path) == PublicLedger()
    for text in ("{", '{"looked": "many"}', '{"other": 1}'):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(BadInput, match="damaged; remove it"):
            read_ledger(tmp_path)


# ---- the page ----


def test_it_says_what_people_ask() -> None:
    head, blocks = chain()
    ledger = PublicLedger(losses=((1, 3.5), (9, 2.25))).and_updates(block.update for block in blocks)
    peer, work = ledger.ranked()[0]
    page = Page(page_of(facts(ledger=ledger, head=head, here=3, invite="hf1:abc")))
    for told in (
        f"homefires: {SPEC.run.name}", SPEC.model.architecture, f"{head.round} of {SPEC.run.rounds:,}",
        "2.250 (round 9", "What is needed most", "homefires join hf1:abc", "homefires doctor hf1:abc",
        fingerprint_words(ORGANISER), peer, f"{100 * ledger.share(work):.1f} %", f"In the {len(blocks)} rounds",
        "Held-out loss: 3.500 in round 1, 2.250 in round 9.",
    ):  # fmt: skip
        assert told in page.text, told


def test_it_asks_for_nothing_runs_nothing_and_fits_a_phone_and_the_dark() -> None:
    """Whatever a peer calls itself."""
    named = {"p": GivenWork(name='<script src="https://x.example/">', rounds=1, last=1, weight=0.5)}
    text = page_of(facts(ledger=PublicLedger(looked=1, given=named, losses=((1, 3.0), (2, 2.0))), invite='hf1:"<b>'))
    page = Page(text)
    assert not {"script", "img", "link", "iframe", "object"} & set(page.tags)
    assert page.links == []
    assert not {"onload", "srcset", "action"} & {name for _, attributes in page.attributes for name in attributes}
    told = [attributes["content"] for _, attributes in page.attributes if "content" in attributes]
    assert told == ["default-src 'none'; style-src 'unsafe-inline'", "width=device-width, initial-scale=1"]
    assert "color-scheme:light dark" in text
    assert "url(" not in text
    assert '<script src="https://x.example/">' in page.text


def test_it_stays_small_however_many_took_part() -> None:
    """With names, ids and an invite as long as they can be."""
    given = {f"{number:052}": GivenWork(name="ä" * 64, rounds=1, last=1, weight=0.1) for number in range(MOST_PEERS)}
    losses = tuple((round, 3.0) for round in range(MOST_LOSSES))
    head, _ = chain()
    text = page_of(facts(ledger=PublicLedger(given=given, losses=losses), head=head, invite="hf1:" + "x" * 8192))
    assert len(text.encode()) < MOST_BYTES


def test_what_is_needed_most_follows_from_who_votes() -> None:
    head, _ = chain()
    voters = ("a", "b", "c", "d", "e", "f")
    many = replace(head, electorate=voters, roster=Roster(1, voters))
    founders = replace(SPEC, run=replace(SPEC.run, founders=3))
    assert "2 more peers: the run begins with 3" in page_of(facts(spec=founders, here=1))
    assert "1 more peer: the run begins with 3" in page_of(facts(spec=founders, here=2))
    assert "of 3 voters none may be wrong" in page_of(facts(head=replace(head, electorate=voters[:3])))
    assert "Peers that the organiser knows" in page_of(facts(head=replace(many, roster=Roster(1, voters[:2]))))
    assert "the 6 voters can spare 1" in page_of(facts(head=many))


def of_policy(policy: str) -> RunSpec:
    return replace(SPEC, admission=replace(SPEC.admission, policy=cast(Any, policy)))


def test_an_invite_that_lets_people_in_is_not_shown_to_everybody(tmp_path: Path) -> None:
    (tmp_path / INVITE_FILE).write_text("hf1:secret\n")
    for policy, shown in (("open", True), ("invited", False)):
        page = PublicPage(tmp_path / policy, tmp_path, of_policy(policy), ORGANISER)
        page.write({}, None)
        text = (tmp_path / policy / "index.html").read_text()
        assert ("hf1:secret" in text) == shown
        assert ("ask for an invite" in text) != shown


def test_it_is_written_once_a_minute_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    now = SimpleNamespace(s=1000.0)
    head, blocks = chain()

    def begun() -> PublicPage:
        return PublicPage(tmp_path / "page", tmp_path, SPEC, ORGANISER, lambda: now.s)

    page = begun()
    assert page.is_due
    page.note(blocks)
    page.write({head.electorate[0]: record("alice", 2.5)}, head)
    assert not page.is_due
    now.s += 60
    assert page.is_due
    again = begun()
    again.write({}, head)
    text = (tmp_path / "page" / "index.html").read_text()
    assert "alice" in text
    assert "2.500 (round " in text


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=r"--page .* cannot be made: .*; name another folder"):
        PublicPage(tmp_path / "file" / "page", tmp_path, SPEC, ORGANISER)


def test_everybody_can_read_it_where_nobody_can_read_keys(tmp_path: Path) -> None:
    """Under the umask of a service."""
    before = os.umask(0o077)
    try:
        PublicPage(tmp_path / "page", tmp_path, SPEC, ORGANISER).write({}, None)
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "page", tmp_path / "page" / "index.html")]
    assert modes == [0o755, 0o644]
