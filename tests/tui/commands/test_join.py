from __future__ import annotations

import dataclasses
import io
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tui.commands.join
from dht.errors import BadChain, BadInput, BadInvite, DiskFull, HomefiresError, PortInUse, RunMismatch
from dht.identity import Identity
from dht.invite import issue
from peer.control.store import read_table
from peer.spec import AdmissionTable, RunSpec, dump, load, parse
from tui.cli import main
from tui.commands.join import JoinOptions, run_audit, run_bootstrap, run_export, run_join
from tui.output.output import NoOutput, PlainOutput
from tui.processes.children import python_module
from tui.processes.supervisor import NodeOptions, RetentionOptions

Fake = Callable[[str], None]


@pytest.fixture
def invite() -> str:
    identity = Identity.generate()
    address = f"/ip4/127.0.0.1/tcp/4001/p2p/{identity.peer_id}"
    return issue(identity, run="mine", spec_hash=b"\xab" * 32, addrs=(address,))


@pytest.fixture
def micro() -> RunSpec:
    return load("micro")


@pytest.mark.outside
def test_a_peer_is_followed_to_its_end(fake_children: Fake, invite: str, tmp_path: Path) -> None:
    fake_children("well")
    stream = io.StringIO()
    assert run_join(JoinOptions(invite=invite, directory=tmp_path / "peer", name="alice"), PlainOutput(stream)) == 0
    assert "data in " + str(tmp_path / "peer") in stream.getvalue()
    assert "alice: started" in stream.getvalue()
    assert "round 3" in stream.getvalue()


@pytest.mark.outside
def test_the_default_folder_is_that_of_the_run(fake_children: Fake, invite: str, tmp_path: Path) -> None:
    fake_children("well")
    run_join(JoinOptions(invite=invite, name="alice"), NoOutput())
    assert (tmp_path / "data" / "homefires" / "runs" / "mine-abababab").is_dir()


@pytest.mark.outside
def test_what_the_person_chose_reaches_the_peer(invite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def command(module: str, *arguments: str) -> list[str]:
        seen.extend([module, *arguments])
        return [sys.executable, "-c", "pass"]

    monkeypatch.setattr(tui.commands.join, "python_module", command)
    join = JoinOptions(
        invite=invite,
        directory=tmp_path,
        name="al",
        device="cpu",
        upload="8",
        download="50.5",
        listen=("/ip4/0.0.0.0/tcp/1", "/ip6/::/tcp/1"),
        peers=("/ip4/192.0.2.1/tcp/1/p2p/x",),
    )
    run_join(join, NoOutput())
    chosen = ["--set", "settings.name=al", "--set", "settings.device=cpu"]
    chosen += ["--set", "settings.upload_mbps=8", "--set", "settings.download_mbps=50.5"]
    kept = tmp_path / "invite"
    assert seen[:5] == ["peer", "join", str(kept), "--dir", str(tmp_path)]
    assert seen[5:] == ["--listen", "/ip4/0.0.0.0/tcp/1", "--listen", "/ip6/::/tcp/1", "--peer", *join.peers, *chosen]
    assert kept.read_text() == invite
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_a_peer_in_the_background_outlives_us_or_is_kept_running(invite: str, tmp_path: Path) -> None:
    """Whoever keeps it running is what outlives us then; the peer ends with that one."""
    log = tmp_path / "peer.log"
    alone, kept = (JoinOptions(invite=invite, directory=tmp_path, keep_running=keep) for keep in (False, True))
    assert alone.lasting_argv(tmp_path, log) == [*alone.argv(tmp_path), "--stay"]
    keeper = [sys.executable, "-m", "tui.processes.supervisor", str(log), "--"]
    assert kept.lasting_argv(tmp_path, log) == [*keeper, *kept.argv(tmp_path)]


@pytest.mark.outside
def test_a_peer_that_is_kept_running_has_its_settings_in_its_folder(
    invite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On its command line they would undo after a crash what its owner has set since."""
    seen = program(monkeypatch, "pass")
    words = ["--name", "al", "--device", "cpu", "--upload", "8", "--download", "50.5", "--set", "upload_mbps=9"]
    assert main(["join", invite, "--dir", str(tmp_path), "--keep-running", "--yes", "--ui", "none", *words]) == 0
    assert seen == ["peer", "join", str(tmp_path / "invite"), "--dir", str(tmp_path)]
    chosen = {"name": "al", "device": "cpu", "upload_mbps": 9, "download_mbps": 50.5}
    assert read_table(tmp_path) == chosen


def test_a_bad_invite_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadInvite):
        run_join(JoinOptions(invite="hf1:rubbish", directory=tmp_path / "peer"), NoOutput())
    assert not (tmp_path / "peer").exists()


@pytest.mark.outside
def test_the_childs_mistake_is_ours(fake_children: Fake, micro: RunSpec, tmp_path: Path) -> None:
    fake_children("mute")
    with pytest.raises(PortInUse, match="4001 is taken"):
        run_bootstrap(micro, NoOutput(), NodeOptions(), directory=tmp_path / "node")


@pytest.mark.outside
def test_a_childs_crash_names_its_log(invite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tui.commands.join, "python_module", lambda *_: python_module("no_such_module"))
    with pytest.raises(HomefiresError, match=r"exit code 1; its log is .*peer\.log"):
        run_join(JoinOptions(invite=invite, directory=tmp_path), NoOutput())
    assert "no_such_module" in (tmp_path / "peer.log").read_text()


@pytest.mark.outside
def test_the_node_is_given_the_very_spec(fake_children: Fake, micro: RunSpec, tmp_path: Path) -> None:
    fake_children("mute")
    with pytest.raises(PortInUse):
        run_bootstrap(micro, NoOutput(), NodeOptions(), directory=tmp_path / "node")
    assert parse((tmp_path / "node" / "spec.toml").read_text()) == micro


def test_an_admission_run_keeps_checkpoints_by_the_key_in_its_folder(
    micro: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[RetentionOptions] = []
    monkeypatch.setattr(tui.commands.join, "describe_model", lambda path: "")
    monkeypatch.setattr(tui.commands.join, "serve_and_keep", lambda argv, log, keep, output: seen.append(keep))
    kept, invited = RetentionOptions(directory=tmp_path / "kept", last=3, every=0), AdmissionTable(policy="invited")
    for number, spec in enumerate((micro, dataclasses.replace(micro, admission=invited))):
        run_bootstrap(spec, NoOutput(), NodeOptions(), directory=tmp_path / str(number), keep=kept)
    assert seen == [kept, dataclasses.replace(kept, organiser=tmp_path / "1")]


def test_a_folder_of_another_run_is_refused(micro: RunSpec, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text('[run]\nname = "other"\n[model]\narchitecture = "llama"\ncontext = 8\n')
    with pytest.raises(RunMismatch, match="holds another run"):
        run_bootstrap(micro, NoOutput(), NodeOptions(), directory=tmp_path)


@pytest.mark.outside
def test_a_model_that_cannot_be_built_is_refused_before_anybody_is_invited(micro: RunSpec, tmp_path: Path) -> None:
    """The organiser hears it, with the closest valid name, and no node is started."""
    model = dataclasses.replace(micro.model, architecture="lama")
    with pytest.raises(BadInput, match="did you mean 'llama'"):
        run_bootstrap(dataclasses.replace(micro, model=model), NoOutput(), NodeOptions(), directory=tmp_path)
    assert not (tmp_path / "bootstrap.log").exists()


@pytest.mark.outside
def test_an_export_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child's, without what libraries wrote beside it; paths reach it as they were given."""
    seen: list[str] = []

    def command(module: str, *arguments: str) -> list[str]:
        seen.extend([module, *arguments])
        return [sys.executable, "-c", "import sys; print('round 3 is in out'); print('a warning', file=sys.stderr)"]

    monkeypatch.setattr(tui.commands.join, "python_module", command)
    assert run_export(tmp_path, None, debug=False) == "round 3 is in out"
    assert run_export(tmp_path, tmp_path / "out", debug=False) == "round 3 is in out"
    assert seen == [
        *("peer", "export", str(tmp_path)),
        *("peer", "export", str(tmp_path), "--to", str(tmp_path / "out")),
    ]


@pytest.mark.outside
@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (2, BadInput, "^the last line$"),
        (5, RunMismatch, "^the last line$"),
        (8, DiskFull, "^the last line$"),
        (1, HomefiresError, "^the export failed: the last line; run it again with --debug$"),
        (-9, HomefiresError, "^the export failed: the last line; run it again with --debug$"),
    ],
)
def test_a_failed_export_is_one_line(
    code: int, kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the child said at last, in the branch of the error tree that its exit code stands for."""
    end = f"os.kill(os.getpid(), {-code})" if code < 0 else f"sys.exit({code})"
    program = f"import os, sys; print('noise\\nhomefires: the last line', file=sys.stderr, flush=True); {end}"
    monkeypatch.setattr(tui.commands.join, "python_module", lambda *_: [sys.executable, "-c", program])
    with pytest.raises(kind, match=words) as caught:
        run_export(tmp_path, None, debug=False)
    assert type(caught.value) is kind


def test_a_bootstrap_node_on_a_full_disk_keeps_the_spec_it_has(micro: RunSpec, tmp_path: Path) -> None:
    """One error that names the disk, and the file is as it was: an empty one would keep the node from starting."""
    path = tmp_path / "spec.toml"
    path.write_text(dump(micro))
    (tmp_path / "spec.toml.new").symlink_to("/dev/full")
    with pytest.raises(DiskFull, match="is full"):
        run_bootstrap(micro, NoOutput(), NodeOptions(), directory=tmp_path)
    assert load(str(path)).digest() == micro.digest()


def program(monkeypatch: pytest.MonkeyPatch, text: str) -> list[str]:
    """Every child is this Python program; returns the command lines."""
    seen: list[str] = []

    def command(module: str, *arguments: str) -> list[str]:
        seen.extend([module, *arguments])
        return [sys.executable, "-c", text]

    monkeypatch.setattr(tui.commands.join, "python_module", command)
    return seen


@pytest.mark.outside
def test_an_audit_says_how_far_it_is_and_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The verdict alone is on stdout; of what libraries write nothing is seen."""
    seen = program(
        monkeypatch,
        "import sys; print('audited round 3 of 9\\nnoise', file=sys.stderr); print('rounds 0..9 verified')",
    )
    run_audit(tmp_path, as_json=False, debug=False)
    assert capfd.readouterr() == ("rounds 0..9 verified\n", "audited round 3 of 9\n")
    run_audit(tmp_path, as_json=True, debug=True)
    assert capfd.readouterr() == ("rounds 0..9 verified\n", "audited round 3 of 9\nnoise\n")
    assert seen == ["peer", "audit", str(tmp_path), "peer", "audit", str(tmp_path), "--json"]


@pytest.mark.outside
def test_a_bad_link_is_an_error_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With exit code 9; what --json prints is there all the same."""
    failing = "import sys; print('{}'); print('homefires: round 2: x is gone', file=sys.stderr); sys.exit(9)"
    program(monkeypatch, failing)
    with pytest.raises(BadChain, match=r"^round 2: x is gone$") as caught:
        run_audit(tmp_path, as_json=True, debug=False)
    assert caught.value.exit_code == 9
    assert capfd.readouterr() == ("{}\n", "")


@pytest.mark.outside
def test_an_audit_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its child is killed, and that is an error."""
    monkeypatch.setattr(tui.commands.join, "AUDIT_S", 0.2)
    program(monkeypatch, "import signal; signal.pause()")
    with pytest.raises(HomefiresError, match="the audit failed: exit code -9; run it again with --debug"):
        run_audit(tmp_path, as_json=False, debug=False)


@pytest.mark.outside
def test_the_folder_where_an_organiser_stands_lends_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder `peer` there must not be taken for ours when the model is described."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "peer").mkdir()
    (tmp_path / "peer" / "__init__.py").touch()
    (tmp_path / "peer" / "__main__.py").write_text("print('theirs')")
    (tmp_path / "spec.toml").write_text(dump(load("micro")))
    assert "parameters" in tui.commands.join.describe_model(tmp_path / "spec.toml")


@pytest.mark.outside
def test_a_child_that_does_not_end_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tui.commands.join, "EXPORT_S", 0.2)
    program(monkeypatch, "import signal; signal.pause()")
    with pytest.raises(HomefiresError, match="the export did not end within 0 s; run it again with --debug"):
        run_export(tmp_path, None, debug=False)
