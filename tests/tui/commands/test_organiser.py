"""`homefires invite`, `quarantine` and `identity`, as an organiser types them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bootstrap.members import AdmissionBook, save_names
from bootstrap.restarts import RestartBook
from dht.admission import QuarantineList
from dht.errors import BadInput
from dht.identity import Identity, RunKeys, fingerprint_words
from dht.invite import INVITE_FILE, MAX_ADDRESSES, issue, parse
from dht.process import lock_directory
from peer.consensus.organiser.restart_desk import packed_question
from peer.consensus.protocol.block import Roster, Stuck
from peer.testing.child_process import HANG_S
from tui.cli import main
from tui.commands.organiser import OrganiserCommand
from tui.folders import data_root

pytestmark = pytest.mark.outside

RUN = b"r" * 32
PEER = Identity.from_seed(b"p" * 32).peer_id


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of an organiser whose node has run."""
    organiser = Identity.load_or_create(tmp_path / "identity.key")
    addrs = (f"/ip4/203.0.113.5/tcp/31337/p2p/{organiser.peer_id}",)
    text = issue(organiser, run="tiny", spec_hash=RUN, addrs=addrs, token=b"t")
    (tmp_path / INVITE_FILE).write_text(text)
    return tmp_path


def test_more_invites_for_one_peer_each(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["invite", str(folder), "--invites", "2", "--expires", "7d"]) == 0
    made = [parse(text, time.time()) for text in capsys.readouterr().out.split()]
    assert [item.once for item in made] == [True, True]
    assert made[0].token != made[1].token


def test_an_invite_names_a_peer_that_lives_while_the_node_is_away(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the addresses of the node, since of too many the last are left out; a slip is one line."""
    alive = [f"/ip4/198.51.100.{number}/tcp/4001/p2p/{PEER}" for number in range(MAX_ADDRESSES)]
    assert main(["invite", str(folder), "--also", alive[0], "--also", alive[0]]) == 0
    (text,) = capsys.readouterr().out.split()
    mine = parse((folder / INVITE_FILE).read_text(), time.time()).addrs
    assert parse(text, time.time()).addrs == (alive[0], *mine)
    assert main(["invite", str(folder), *(word for address in alive for word in ("--also", address))]) == 0
    assert parse(capsys.readouterr().out, time.time()).addrs == tuple(alive)
    assert main(["invite", str(folder), "--also", "/ip4/198.51.100.7/tcp/4001"]) == BadInput.exit_code
    assert "the peer id is missing" in capsys.readouterr().err


def test_a_peer_is_kept_out_shown_and_let_in_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--dir", str(folder)]
    for command, says in (
        ([PEER, "--reason", "sends noise"], f"{PEER} is in quarantine: sends noise"),
        ([], f"{PEER}  sends noise"),
        ([PEER, "--lift"], "is lifted"),
        ([], "nobody is in quarantine"),
    ):
        assert main(["quarantine", *command, *where]) == 0
        assert says in capsys.readouterr().out


def test_members_are_listed_and_an_admission_is_not_renewed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where, day = ["--dir", str(folder)], 86400.0
    assert main(["members", *where]) == 0
    assert "nobody was admitted to tiny" in capsys.readouterr().out
    book = AdmissionBook(folder, Identity.load_or_create(folder / "identity.key"), RUN)
    text = (folder / INVITE_FILE).read_text()
    other = Identity.from_seed(b"q" * 32).peer_id
    for peer, at_s in ((PEER, time.time()), (PEER, time.time() + 15 * day), (other, time.time() - 99 * day)):
        assert book.answer(peer, text, QuarantineList(), at_s).admission
    save_names(folder, {PEER: "alice"})
    ends = time.strftime("%Y-%m-%d", time.gmtime(time.time() + 45 * day))
    for command, says in (
        ([], f"{PEER}  alice  until {ends}\n"),
        ([], f"{other}  -  ended on "),
        ([PEER, "--end", "its owner asked us to"], "takes part until it ends"),
        ([], f"{PEER}  alice  until {ends}; not renewed: its owner asked us to\n"),
        ([PEER, "--renew"], "is renewed again"),
        ([], f"{PEER}  alice  until {ends}\n"),
    ):
        assert main(["members", *command, *where]) == 0
        assert says in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["members", PEER], "say what: --end and why"),
        (["members", PEER, "--renew"], "not to end"),
        (["quarantine", PEER], "--reason is missing"),
        (["quarantine", "nobody", "--reason", "x"], "not a peer id"),
    ],
)
def test_mistakes_are_one_line(folder: Path, command: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--dir", str(folder)]) == BadInput.exit_code
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_the_folder_whose_node_was_started_last_is_meant() -> None:
    with pytest.raises(BadInput, match="no run was started"):
        OrganiserCommand().find()
    for name, at_s in (("a", 2), ("b", 3), ("c", 1)):
        place = data_root() / "bootstrap" / name
        place.mkdir(parents=True)
        (place / INVITE_FILE).touch()
        os.utime(place / INVITE_FILE, (at_s, at_s))
    assert OrganiserCommand().find().name == "b"


def test_the_key_of_a_folder_is_shown_with_its_words(folder: Path) -> None:
    """On a real stdout: the child writes there itself."""
    command = [sys.executable, "-m", "tui", "identity", "--dir", str(folder)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG_S).stdout
    mine = Identity.load_or_create(folder / "identity.key").peer_id
    assert told == f"{mine}\n{fingerprint_words(mine)}\n"


def test_restart_run_needs_a_node_that_runs_and_voters_that_wait(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["restart-run", str(folder)]) == BadInput.exit_code
    assert "no node runs in" in capsys.readouterr().err
    with lock_directory(folder):
        assert main(["restart-run", str(folder)]) == 0
    assert "nobody waits" in capsys.readouterr().out


def test_restart_run_says_who_waits_and_what_is_given_up_and_asks(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where nobody can be asked it wants the word on the command line; then a node that reads it lets them go on."""
    voters, organiser = (PEER, "other"), Identity.load_or_create(folder / "identity.key")
    book = RestartBook(folder, organiser, RUN, lambda event: None)
    roster = Roster(0, tuple(sorted(voters)))
    book.know(roster.known, roster)
    stuck = Stuck(PEER, bytes(32), tuple(sorted(voters)), 1).signed(RunKeys(Identity.from_seed(b"p" * 32), RUN))
    assert book.answer(PEER, packed_question(stuck, roster), lambda *refused: None) == b""
    book.look()
    with lock_directory(folder):
        assert main(["restart-run", str(folder)]) == BadInput.exit_code
        said = capsys.readouterr()
        assert f"{PEER} came here, other did not" in said.out
        assert "may be lost to them" in said.out
        assert "add --yes" in said.err
        person = threading.Thread(target=lambda: codes.append(main(["restart-run", str(folder), "--yes"])))
        codes: list[int] = []
        person.start()
        while person.is_alive():
            book.look()
    assert codes == [0]
    assert "they go on" in capsys.readouterr().out
    assert book.answer(PEER, packed_question(stuck, roster), lambda *refused: None) != b""


def test_a_peer_is_promoted_listed_and_demoted_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> str:
        assert main(["members", *words, "--dir", str(folder)]) == 0
        return capsys.readouterr().out

    assert "no stranger any more" in said(PEER, "--promote")
    assert f"{PEER}  promoted by hand on" in said()
    assert "not promoted any more" in said(PEER, "--demote")
    assert "promoted" not in said()
    assert main(["members", PEER, "--dir", str(folder)]) == BadInput.exit_code
    assert "say what" in capsys.readouterr().err
