"""`homefires bootstrap`: the node of a run, as its organiser starts it."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import tui.commands.organiser
from dht.errors import BadInput, DirectoryBusy, DiskFull, PortInUse, RunMismatch
from dht.process import lock_directory
from peer.schema.spec import RunSpec, dump, load, parse
from peer.schema.spec_fields import AdmissionTable
from tui.commands import organiser
from tui.commands.organiser import NodeOptions, run_bootstrap
from tui.processes.children import Output
from tui.processes.supervisor import RetentionOptions

Fake = Callable[[str], None]


@pytest.fixture
def micro() -> RunSpec:
    return load("micro")


@pytest.mark.outside
def test_the_childs_mistake_is_ours(fake_children: Fake, micro: RunSpec, tmp_path: Path) -> None:
    fake_children("mute")
    with pytest.raises(PortInUse, match="4001 is taken"):
        run_bootstrap(micro, Output(), NodeOptions(), directory=tmp_path / "node")


@pytest.mark.outside
def test_the_node_is_given_the_very_spec(fake_children: Fake, micro: RunSpec, tmp_path: Path) -> None:
    fake_children("mute")
    with pytest.raises(PortInUse):
        run_bootstrap(micro, Output(), NodeOptions(), directory=tmp_path / "node")
    assert parse((tmp_path / "node" / "spec.toml").read_text()) == micro


class Heard(Output):
    """What a person was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


@pytest.mark.outside
def test_the_words_and_the_invite_are_where_no_terminal_breaks_them(
    fake_children: Fake, micro: RunSpec, tmp_path: Path
) -> None:
    fake_children("mute")
    heard, directory = Heard(), tmp_path / "node"
    with pytest.raises(PortInUse):
        run_bootstrap(micro, heard, NodeOptions(), directory=directory)
    assert heard.lines[-2:] == ["  one two three four", "  five six seven eight"]
    assert f"the invite is in {directory / 'invite'}, too" in heard.lines


@pytest.mark.outside
def test_an_organiser_is_told_once_what_a_plan_would_choose(
    fake_children: Fake, micro: RunSpec, tmp_path: Path
) -> None:
    """Before the run begins: later it keeps its rounds."""
    fake_children("mute")
    for times in (1, 0):
        heard = Heard()
        with pytest.raises(PortInUse):
            run_bootstrap(micro, heard, NodeOptions(), directory=tmp_path / "node")
        chosen = [line for line in heard.lines if line.startswith("a plan would choose H 160 instead of 40")]
        assert len(chosen) == times
        plan = f"homefires plan {tmp_path / 'node' / 'spec.toml'} --peers 2 --upload 20 says why"
        assert all("as much in the same time" in line and plan in line for line in chosen)


@pytest.mark.outside
def test_an_address_that_is_none_is_said_before_it_is_said_to_serve(micro: RunSpec, tmp_path: Path) -> None:
    heard = Heard()
    with pytest.raises(BadInput, match=r"'127\.0\.0\.1:4002': not an address; write one such as /ip4/"):
        run_bootstrap(micro, heard, NodeOptions(listen=("127.0.0.1:4002",)), directory=tmp_path / "node")
    assert heard.lines == []


@pytest.mark.outside
def test_what_a_peer_needs_breaks_between_words(
    fake_children: Fake, micro: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for programs it is one line."""
    fake_children("mute")
    said = "micro: a model of some parameters. A peer needs about so much. " * 3
    monkeypatch.setattr(organiser, "describe_model", lambda path: said.strip())
    monkeypatch.setattr(organiser, "check_node", lambda path, options: "one two three four five six seven eight")
    for width, lines in ((organiser.UNBROKEN, 1), (40, 5)):
        heard = Heard()
        monkeypatch.setattr(organiser, "columns", lambda otherwise, width=width: width)
        with pytest.raises(PortInUse):
            run_bootstrap(micro, heard, NodeOptions(), directory=tmp_path / "node")
        told = [line for line in heard.lines if line in said]
        assert len(told) == lines
        assert " ".join(told) == said.strip()


@pytest.mark.outside
def test_what_the_node_would_end_with_is_said_before_it_is_said_to_serve(micro: RunSpec, tmp_path: Path) -> None:
    heard, directory = Heard(), tmp_path / "node"
    with lock_directory(directory), pytest.raises(DirectoryBusy, match="is in use by process"):
        run_bootstrap(micro, heard, NodeOptions(), directory=directory)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        there = f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}"
        with pytest.raises(PortInUse, match="another program listens there; choose another port with --listen"):
            run_bootstrap(micro, heard, NodeOptions(listen=(there,)), directory=directory)
    with pytest.raises(BadInput, match="port 99999 does not exist; use one from 1024 to 65535"):
        run_bootstrap(micro, heard, NodeOptions(health_port=99_999), directory=directory)
    with pytest.raises(BadInput, match=r"--page .* cannot be made"):
        run_bootstrap(micro, heard, NodeOptions(page=directory / "spec.toml"), directory=directory)
    assert heard.lines == []


@pytest.mark.outside
def test_an_admission_run_keeps_checkpoints_by_the_key_in_its_folder(
    micro: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[RetentionOptions] = []
    monkeypatch.setattr(tui.commands.organiser, "describe_model", lambda path: "")
    monkeypatch.setattr(tui.commands.organiser, "serve_and_keep", lambda argv, log, keep, output: seen.append(keep))
    kept, invited = RetentionOptions(directory=tmp_path / "kept", last=3, every=0), AdmissionTable(policy="invited")
    for number, spec in enumerate((micro, dataclasses.replace(micro, admission=invited))):
        run_bootstrap(spec, Output(), NodeOptions(), directory=tmp_path / str(number), keep=kept)
    assert seen == [kept, dataclasses.replace(kept, organiser=tmp_path / "1")]


def test_a_folder_of_another_run_is_refused(micro: RunSpec, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text('[run]\nname = "other"\n[model]\narchitecture = "llama"\ncontext = 8\n')
    with pytest.raises(RunMismatch, match="holds another run"):
        run_bootstrap(micro, Output(), NodeOptions(), directory=tmp_path)


@pytest.mark.outside
def test_a_model_that_cannot_be_built_is_refused_before_anybody_is_invited(
    micro: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The organiser hears it, and no node is started."""

    def describe(path: Path) -> str:
        raise BadInput("model.config makes no llama model")

    monkeypatch.setattr(organiser, "describe_model", describe)
    with pytest.raises(BadInput, match="makes no llama model"):
        run_bootstrap(micro, Output(), NodeOptions(), directory=tmp_path)
    assert not (tmp_path / "bootstrap.log").exists()


def test_a_bootstrap_node_on_a_full_disk_keeps_the_spec_it_has(micro: RunSpec, tmp_path: Path) -> None:
    """One error that names the disk, and the file is as it was: an empty one would keep the node from starting."""
    path = tmp_path / "spec.toml"
    path.write_text(dump(micro))
    (tmp_path / "spec.toml.new").symlink_to("/dev/full")
    with pytest.raises(DiskFull, match="is full"):
        run_bootstrap(micro, Output(), NodeOptions(), directory=tmp_path)
    assert load(str(path)).digest() == micro.digest()


@pytest.mark.outside
def test_the_folder_where_an_organiser_stands_lends_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder `peer` there must not be taken for ours when the model is described."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "peer").mkdir()
    (tmp_path / "peer" / "__init__.py").touch()
    (tmp_path / "peer" / "__main__.py").write_text("print('theirs')")
    (tmp_path / "spec.toml").write_text(dump(load("micro")))
    assert "parameters" in tui.commands.organiser.describe_model(tmp_path / "spec.toml")
