"""What is asked before a first join, whom nobody can ask, and what is remembered."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shutil
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dht.errors import BadInput, BadInvite, Declined, DiskFull, Unreachable
from dht.identity import Identity, fingerprint_words
from dht.invite import Invite, issue, parse
from dht.process import lock_directory
from peer.schema.spec import RunSpec, dump, load
from peer.schema.spec_fields import AdapterTable, MixTable, StartTable
from peer.tools.watch.run_facts import facts
from tui.commands.consent import consents, describe, in_two_lines, is_agreed
from tui.commands.join import JoinCommand
from tui.folders import AGREED

ORGANISER = Identity.from_seed(b"o" * 32)


class Terminal(io.StringIO):
    """Somebody sits there."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that holds every run, whatever this machine has."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**12, 0, 10**12))  # type: ignore[attr-defined]


@pytest.fixture
def spec() -> RunSpec:
    return load("tiny")


@pytest.fixture
def join(spec: RunSpec, tmp_path: Path) -> JoinCommand:
    return JoinCommand(invite=invite_of(ORGANISER, spec), directory=tmp_path / "peer")


def invite_of(organiser: Identity, spec: RunSpec) -> str:
    address = f"/ip4/127.0.0.1/tcp/4001/p2p/{organiser.peer_id}"
    return issue(organiser, run=spec.run.name, spec_hash=spec.digest(), addrs=(address, address))


def read(text: str) -> Invite:
    return parse(text, time.time())


def facts_of(invite: Invite, spec: RunSpec, power_w: float | None = None) -> Mapping[str, Any]:
    return facts(invite.run, invite.organiser, spec, power_w)


class Node:
    """Tells what the run is, and counts how often it was asked."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec, self.asked, self.peers = spec, 0, list[str]()

    def __call__(self, invite: str, peers: Sequence[str]) -> Mapping[str, Any]:
        self.peers += peers
        self.asked += 1
        return facts_of(read(invite), self._spec)


def test_yes_is_remembered_and_nobody_is_asked_twice(join: JoinCommand, spec: RunSpec) -> None:
    node, screen = Node(spec), Terminal()
    assert consents(join, yes=False, stdin=Terminal("Yes\n"), screen=screen, introduce=node) is not None
    assert screen.getvalue().startswith(
        "asking 2 addresses of the invite what the run is; whoever answers sees your IP"
    )
    assert screen.getvalue().endswith("Join this run? [y/N] ")
    assert consents(join, yes=False, stdin=io.StringIO(), screen=io.StringIO(), introduce=node) is not None
    assert node.asked == 1
    assert json.loads((join.place() / AGREED).read_text())["how"] == "asked"
    assert stat.S_IMODE(join.place().stat().st_mode) == 0o700


def test_on_a_narrow_terminal_lines_end_between_words(
    join: JoinCommand, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    screen = Terminal()
    consents(join, yes=False, stdin=Terminal("Yes\n"), screen=screen, introduce=Node(spec))
    asking, *rows = screen.getvalue().splitlines()
    assert asking == "asking 2 addresses of the invite what the run is;"
    assert [row for row in rows if len(row) > 50 and str(join.place()) not in row] == []


def test_peers_that_the_volunteer_names_are_asked_too(join: JoinCommand, spec: RunSpec) -> None:
    """He may have no other way in: every node of the invite may be gone."""
    node, screen = Node(spec), Terminal()
    named = dataclasses.replace(join, peers=("/ip4/203.0.113.5/tcp/1/p2p/x",))
    assert consents(named, yes=False, stdin=Terminal("y\n"), screen=screen, introduce=node) is not None
    assert node.peers == list(named.peers)
    assert screen.getvalue().startswith("asking 2 addresses of the invite and the peers you named what the run is")


@pytest.mark.parametrize("answer", ["n\n", "\n", "", "yesterday\n"])
def test_anything_else_is_no_and_leaves_nothing(join: JoinCommand, spec: RunSpec, answer: str) -> None:
    """Also the end of input."""
    screen = Terminal()
    with pytest.raises(Declined, match="nothing is kept"):
        consents(join, yes=False, stdin=Terminal(answer), screen=screen, introduce=Node(spec))
    assert not join.place().exists()


@pytest.mark.parametrize(("stdin", "screen"), [(io.StringIO, Terminal), (Terminal, io.StringIO)])
def test_without_a_terminal_it_is_refused_in_one_line(
    join: JoinCommand, spec: RunSpec, stdin: Any, screen: Any
) -> None:
    """A machine must not train because a script fell over a prompt."""
    node = Node(spec)
    with pytest.raises(BadInput, match="add --yes"):
        consents(join, yes=False, stdin=stdin("y\n"), screen=screen(), introduce=node)
    assert node.asked == 0
    assert not join.place().exists()


class Small(Node):
    """Tells a machine whose GPU is too small for the run what it may do."""

    def __init__(self, spec: RunSpec, gpu_bytes: int, main_bytes: int) -> None:
        super().__init__(spec)
        self._machine = ((gpu_bytes,), main_bytes)

    def __call__(self, invite: str, peers: Sequence[str]) -> Mapping[str, Any]:
        told = read(invite)
        return facts(told.run, told.organiser, self._spec, None, *self._machine)


@pytest.mark.parametrize(
    ("answer", "settings"),
    [
        ("1\n", ("offload=yes",)),
        ("2\n", ("stages=2",)),
        ("3\n", None),
        ("\n", None),
        ("y\n2\n", ("stages=2",)),
        ("yes\n1\n", ("offload=yes",)),
        ("y\n", None),
        ("y\nn\n", None),
    ],
)
def test_who_lacks_memory_chooses_another_way_or_none(
    tmp_path: Path, answer: str, settings: tuple[str, ...] | None
) -> None:
    """Mere yes is asked which way, as the machine would find no room; nothing more is no."""
    spec, screen = load("llama-1b"), Terminal()
    join = JoinCommand(invite=invite_of(ORGANISER, spec), directory=tmp_path / "peer")
    node = Small(spec, 14 * 10**9, 128 * 10**9)
    with pytest.raises(Declined) if settings is None else nullcontext():
        assert consents(join, yes=False, stdin=Terminal(answer), screen=screen, introduce=node) == settings
    text = screen.getvalue()
    assert "GPU memory here comes to 14.0 GB" in text
    assert re.search(r"1  layers from main memory: about [\d,]+ tokens/s \(--set offload=yes\)\n", text)
    assert re.search(
        r"2  a cluster of 2 such homes, on lines of 20 Mbit/s: about [\d,]+ tokens/s\s+\(--set stages=2\)", text
    )
    assert "Join this run, and which way? [1/2/N] " in text
    assert ("does not hold the model; say which way. [1/2/N] " in text) == answer.startswith("y")
    assert max(map(len, text.replace("] ", "]\n").splitlines())) <= 100


def test_whoever_said_how_it_trains_is_asked_for_yes_alone(tmp_path: Path) -> None:
    spec, screen = load("llama-1b"), Terminal()
    join = JoinCommand(invite=invite_of(ORGANISER, spec), directory=tmp_path / "peer")
    node = Small(spec, 14 * 10**9, 128 * 10**9)
    said = consents(join, yes=False, stdin=Terminal("y\n"), screen=screen, introduce=node, is_decided=True)
    assert said == ()
    assert "tokens/s" not in screen.getvalue()


def test_where_nothing_helps_that_is_said(tmp_path: Path) -> None:
    spec, screen = load("gpt2-small"), Terminal()
    join = JoinCommand(invite=invite_of(ORGANISER, spec), directory=tmp_path / "peer")
    with pytest.raises(Declined):
        consents(join, yes=False, stdin=Terminal("\n"), screen=screen, introduce=Small(spec, 10**8, 10**9))
    assert "There is no other way for it to train." in screen.getvalue()


def test_a_service_says_yes_beforehand(join: JoinCommand, spec: RunSpec) -> None:
    """Nothing is fetched for it and nothing printed."""
    node, screen = Node(spec), io.StringIO()
    assert consents(join, yes=True, stdin=io.StringIO(), screen=screen, introduce=node) is not None
    assert (node.asked, screen.getvalue()) == (0, "")
    assert is_agreed(join.place(), read(join.invite))


def test_another_run_or_another_organiser_is_asked_for_anew(join: JoinCommand, spec: RunSpec) -> None:
    assert consents(join, yes=True, stdin=io.StringIO(), screen=io.StringIO()) is not None
    longer = dataclasses.replace(spec, run=dataclasses.replace(spec.run, rounds=1000))
    assert not is_agreed(join.place(), read(invite_of(ORGANISER, longer)))
    assert not is_agreed(join.place(), read(invite_of(Identity.generate(), spec)))
    (join.place() / AGREED).write_text("[]")
    assert not is_agreed(join.place(), read(join.invite))


def test_who_has_taken_part_comes_back_with_an_invite_that_is_over(spec: RunSpec, tmp_path: Path) -> None:
    """As the peer itself has it; a newcomer does not get in with one."""
    address = f"/ip4/127.0.0.1/tcp/4001/p2p/{ORGANISER.peer_id}"
    over = issue(ORGANISER, run="tiny", spec_hash=spec.digest(), addrs=(address,), expires=time.time() - 60)
    join = JoinCommand(invite=over, directory=tmp_path / "peer")
    with pytest.raises(BadInvite, match="expired"):
        consents(join, yes=True, stdin=io.StringIO(), screen=io.StringIO())
    (tmp_path / "peer").mkdir()
    (tmp_path / "peer" / "genesis").touch()
    assert consents(join, yes=True, stdin=io.StringIO(), screen=io.StringIO()) is not None
    assert consents(join, yes=False, stdin=io.StringIO(), screen=io.StringIO()) is not None, "and is not asked again"


def test_what_fails_before_is_told_before(join: JoinCommand, spec: RunSpec) -> None:
    """A bad invite, nodes that do not answer; a folder that is in use is for `join` to tell."""

    def silent(invite: str, peers: Sequence[str]) -> Mapping[str, Any]:
        raise Unreachable("nobody answers")

    with pytest.raises(BadInvite):
        consents(JoinCommand(invite="hf1:rubbish"), yes=True, stdin=Terminal(), screen=Terminal())
    with pytest.raises(Unreachable):
        consents(join, yes=False, stdin=Terminal("y\n"), screen=Terminal(), introduce=silent)
    with lock_directory(join.place()):
        assert consents(join, yes=False, stdin=io.StringIO(), screen=io.StringIO(), introduce=silent) is not None


def test_the_screen_says_who_what_and_what_it_takes(join: JoinCommand, spec: RunSpec, tmp_path: Path) -> None:
    told = facts_of(read(join.invite), spec, 285.0)
    lines = describe(told, tmp_path)
    assert len(lines) <= 30
    assert all(len(line) <= 79 for line in lines if str(tmp_path) not in line)
    assert {*in_two_lines(fingerprint_words(ORGANISER.peer_id))} <= {line.strip() for line in lines}
    text = " ".join(" ".join(lines).split())
    for part in (
        "870 thousand parameters",
        "36 rounds",
        "Python standard library",
        "licence",
        "no code",
        str(tmp_path),
        "homefires leave",
        "up to 285 W",
        "each way for the whole run",
        "your IP address",
    ):
        assert part in text, part
    unsized = dataclasses.replace(spec, data=dataclasses.replace(spec.data, source="hub", path="org/set"))
    assert "org/set of huggingface.co" in " ".join(describe(facts_of(read(join.invite), unsized), tmp_path))
    sized = spec.model.config | {"vocab_size": 300}
    named = dataclasses.replace(spec, model=dataclasses.replace(spec.model, tokenizer="an/other", config=sized))
    assert "tokenizer an/other of huggingface.co" in " ".join(describe(facts_of(read(join.invite), named), tmp_path))
    of_mine = dataclasses.replace(spec, data=dataclasses.replace(spec.data, source="files", path="poems"))
    text = " ".join(" ".join(describe(facts_of(read(join.invite), of_mine), tmp_path)).split())
    assert "text files of yours, called poems; you say which with --set data_path=FOLDER" in text
    start = StartTable(model="a/model", digest="0" * 64, revision="0" * 40)
    config = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
    large = {"vocab_size": 128_256, "tie_word_embeddings": True, "num_key_value_heads": 8} | config
    opened = dataclasses.replace(
        spec, model=dataclasses.replace(spec.model, tokenizer="start", config=large), start=start,
        adapter=AdapterTable(),
    )  # fmt: skip
    text = " ".join(" ".join(describe(facts_of(read(join.invite), opened), tmp_path)).split())
    assert "starts from a/model, 4.9 GB of huggingface.co, or from other peers; an adapter of rank 16" in text
    assert "11.3 million parameters" in text
    talks = MixTable(name="talks", source="files", path="letters", format="chat")
    mixed = dataclasses.replace(spec, data=dataclasses.replace(spec.data, mix=(MixTable(name="code"), talks)))
    text = " ".join(" ".join(describe(facts_of(read(join.invite), mixed), tmp_path)).split())
    assert "library that is on your machine; files of conversations of yours, called letters, in FOLDER/talks" in text
    endless = dataclasses.replace(spec, run=dataclasses.replace(spec.run, rounds=0))
    text = " ".join(" ".join(describe(facts_of(read(join.invite), endless), tmp_path)).split())
    assert "a day each way if a round takes" in text
    assert "until its organiser ends it" in text


@pytest.mark.parametrize(
    ("data", "start", "said", "unsaid"),
    [
        ({}, False, ("; the tokens of what it reads in CACHE", "homefires leave --forget; then delete"), "huggingface"),
        (
            {"source": "files", "path": "x", "private": True}, False,
            ("your files' tokens too, which nobody but you can read", "homefires leave; then delete"), "CACHE",
        ),
        (
            {"source": "files", "path": "x", "private": True}, True,
            ("nobody but you can read; the model it starts from in CACHE", "homefires leave --forget; then"), "hugging",
        ),
        ({"source": "hub", "path": "a/b"}, False, ("nothing is left, but for what huggingface.co gave",), "!"),
    ],
)  # fmt: skip
def test_the_screen_says_what_is_where(
    data: dict[str, Any], start: bool, said: tuple[str, ...], unsaid: str, spec: RunSpec, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, join: JoinCommand,
) -> None:  # fmt: skip
    monkeypatch.setenv("HOMEFIRES_CACHE", "CACHE")
    asked = dataclasses.replace(spec, data=dataclasses.replace(spec.data, **data))
    if start:
        asked = dataclasses.replace(asked, start=StartTable(model="mine", digest="0" * 64))
    text = " ".join(" ".join(describe(facts_of(read(join.invite), asked), tmp_path)).split())
    assert all(part in text for part in said), text
    assert unsaid not in text
    assert "is held out" in text


@pytest.mark.outside
@pytest.mark.parametrize(
    ("text", "sound"),
    [("".join(f"word {number} of it\n" for number in range(10_000)), True), ("h\ufffdt " * 200, False)],
    ids=["sound", "broken"],
)
def test_files_are_looked_at_before_anybody_agrees(
    text: str, sound: bool, join: JoinCommand, spec: RunSpec, tmp_path: Path
) -> None:
    """Their table is on the screen above the question; what nobody can train on is refused instead of it."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text(text)
    (folder / "b.epub").write_text("a book")
    data = dataclasses.replace(spec.data, source="files", path="texts")
    of_mine, screen = dataclasses.replace(spec, data=data), Terminal()
    node = Node(of_mine)
    mine = dataclasses.replace(join, invite=invite_of(ORGANISER, of_mine))
    agree = partial(consents, mine, yes=False, screen=screen, data_path=str(folder))
    with nullcontext() if sound else pytest.raises(BadInput, match="200 of 800 characters are none that anybody"):
        agree(stdin=Terminal("y\n"), introduce=lambda *asked: {**node(*asked), "spec": dump(of_mine)})
    said = screen.getvalue()
    assert "  left out      1 file, 0.0 kB\n" in said
    assert "pandoc b.epub --to=plain" in " ".join(said.split())
    assert ("Join this run?" in said) == mine.place().exists() == sound


@pytest.mark.outside
def test_who_names_no_folder_is_asked_for_one_before_the_yes(join: JoinCommand, spec: RunSpec, tmp_path: Path) -> None:
    """One that cannot be trained on is said so at once, and asked for again; none is no."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("".join(f"word {number} of it\n" for number in range(10_000)))
    of_mine = dataclasses.replace(spec, data=dataclasses.replace(spec.data, source="files", path="texts"))
    node = Node(of_mine)
    mine = dataclasses.replace(join, invite=invite_of(ORGANISER, of_mine))
    agree = partial(
        consents, mine, yes=False, introduce=lambda *asked: {**node(*asked), "spec": dump(of_mine)}
    )  # fmt: skip
    with pytest.raises(Declined):
        agree(stdin=Terminal("\n"), screen=Terminal())
    screen = Terminal()
    settings = agree(stdin=Terminal(f"{tmp_path / 'typo'}\n{folder}\ny\n"), screen=screen)
    assert settings == (f"data_path={folder}",)
    said = screen.getvalue()
    assert said.index("typo") < said.index("documents") < said.index("Join this run?")


def test_nobody_is_asked_to_agree_to_a_run_whose_data_cannot_be_read_here(
    spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    streamed = dataclasses.replace(spec, data=dataclasses.replace(spec.data, source="hub", path="some/text"))
    join = JoinCommand(invite=invite_of(ORGANISER, streamed), directory=tmp_path / "peer")
    screen = Terminal()
    with pytest.raises(BadInput, match=r"some/text needs datasets, .* install homefires\[hub\]"):
        consents(join, yes=False, stdin=Terminal("y\n"), screen=screen, introduce=Node(streamed))
    assert "Join this run?" not in screen.getvalue()
    assert not join.place().exists()


def test_nobody_is_asked_to_agree_to_what_the_disk_cannot_hold(
    join: JoinCommand, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 6 * 10**6))  # type: ignore[attr-defined]
    screen = Terminal()
    with pytest.raises(DiskFull, match=r"takes 62\.6 MB of disk at least, and .* has 6\.0 MB free; free 56\.6 MB"):
        consents(join, yes=False, stdin=Terminal("y\n"), screen=screen, introduce=Node(spec))
    assert "Join this run?" not in screen.getvalue()
    assert not join.place().exists()
