from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import tui.commands.demo as demos
from dht.errors import BadInput, BadSpec, DiskFull, PortInUse, RoundsFailed
from peer.schema.events import (
    EventLine,
    InviteIssued,
    PeerStarted,
    RoundCommitted,
    RoundStarted,
    format_line,
    read_lines,
)
from peer.schema.spec import parse, read_text
from tui.cli import main
from tui.commands.demo import DemoCommand, find_fault, open_directory, run_demo
from tui.output.output import JsonOutput, PlainOutput
from tui.processes.children import Output
from tui.processes.device_probe import FoundDevice
from tui.swarm.reducer import apply, apply_all
from tui.swarm.round_ledger import MAX_COMMITS
from tui.swarm.snapshot import SwarmState

SPEC = """
[run]
name = "fake"
rounds = 3
[model]
architecture = "llama"
context = 64
"""

Fake = Callable[[str], None]


@pytest.fixture
def spec_path(tmp_path: Path) -> str:
    path = tmp_path / "spec.toml"
    path.write_text(SPEC)
    return str(path)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place for temporary folders."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def play(demo: DemoCommand, devices: tuple[tuple[str, ...], ...] = ()) -> tuple[int, str]:
    """Exit code and plain output of a demo."""
    stream = io.StringIO()
    spec = demo.choose()
    code = run_demo(demo, PlainOutput(stream, rounds=spec.run.rounds, terse=True), spec, devices)
    return code, stream.getvalue()


@pytest.mark.outside
def test_a_demo_that_keeps_its_promise(fake_children: Fake, spec_path: str, temporary: Path) -> None:
    fake_children("well")
    code, text = play(DemoCommand(peers=2, spec=spec_path))
    assert code == 0
    assert text.count("round 2/3 · 2 peers") == 1
    assert "3 of 3 rounds committed by all 2 peers with equal bits (digest 000300030003, state aaaaaaaaaaaa)" in text
    assert "3,000 tokens, 3.0 kB sent" in text
    assert list(temporary.iterdir()) == []


@pytest.mark.outside
def test_who_waits_for_the_node_hears_what_for(
    fake_children: Fake, spec_path: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demos, "QUIET_S", 0.0)
    fake_children("well")
    _, text = play(DemoCommand(peers=1, spec=spec_path))
    assert text.splitlines()[1].startswith("the bootstrap node and the peers load their libraries")


@pytest.mark.outside
@pytest.mark.parametrize(
    ("devices", "where"),
    [
        ((), ""), (((), ()), ""), ((("cuda",), ("cuda",)), " on cuda"),
        ((("cpu", "cpu"), ("cpu", "cpu")), " on 2 processor ranks each"),
        ((("cuda:0", "cuda:1"), ("cuda:2", "cuda:3")), " on 2 GPUs each"),
    ],
)  # fmt: skip
def test_every_peer_is_told_the_devices_that_were_found(
    devices: tuple[tuple[str, ...], ...],
    where: str,
    fake_children: Fake,
    spec_path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or nothing: then each chooses as any peer does."""
    fake_children("well")
    started: list[tuple[str, ...]] = []
    fake = demos.python_module

    def start(module: str, *words: str) -> list[str]:
        started.append((module, *words))
        return fake(module, *words)

    monkeypatch.setattr(demos, "python_module", start)
    code, text = play(DemoCommand(peers=2, spec=spec_path), devices)
    assert code == 0
    assert text.splitlines()[0].startswith(f"2 peers train fake{where} for 3 rounds in ")
    peers = [words for words in started if words[0] == "peer"]
    assert len(peers) == 2
    told = [[word for word in words if word.startswith("settings.devices=")] for words in peers]
    assert told == [[f"settings.devices={','.join(own)}"] if own else [] for own in devices or ((), ())]


def test_a_demo_on_files_is_told_which(tmp_path: Path) -> None:
    """The spec may be somebody else's: what it calls its files is no reason to read them."""
    spec = tmp_path / "spec.toml"
    spec.write_text(f"{read_text('micro')}".replace('source = "stdlib"', 'source = "files"\npath = "/home/me"'))
    with pytest.raises(BadInput, match="on files, which it calls '/home/me'; say which with --data PATH"):
        DemoCommand(spec=str(spec)).choose()
    assert DemoCommand(spec=str(spec), data=tmp_path).choose().data.path == "/home/me"
    book = DemoCommand(spec="tiny", data=tmp_path / "book.txt").choose()  # who names a file means that one
    assert (book.data.source, book.data.path) == ("files", "book.txt")


@pytest.mark.parametrize(
    ("found", "words", "name"),
    [
        (FoundDevice(), [], "tiny"),
        (FoundDevice(device="cpu", note="the GPU is not used: it is broken"), [], "tiny"),
        (FoundDevice(device="cuda"), [], "small"),
        (FoundDevice(device="cuda"), ["--spec", "micro"], "micro"),
    ],
)
def test_the_model_is_as_large_as_the_device_allows(
    found: FoundDevice, words: list[str], name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless a person names one."""
    seen: list[tuple[object, str]] = []
    monkeypatch.setattr(demos, "find_device", lambda wanted: found)
    monkeypatch.setattr(
        demos, "run_demo", lambda demo, output, spec, devices: seen.append((devices, spec.run.name)) or 0
    )
    assert main(["demo", "--ui", "plain", *words]) == 0
    assert seen == [(((found.device,) if found.device else (),) * 3, name)]
    assert (found.note in capsys.readouterr().out) or not found.note


def test_several_ranks_are_on_the_processor_or_each_on_a_gpu_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[object] = []
    monkeypatch.setattr(demos, "run_demo", lambda demo, output, spec, devices: seen.append(devices) or 0)
    assert main(["demo", "--ui", "plain", "--devices", "cpu", "--ranks", "2"]) == 0
    assert seen == [(("cpu", "cpu"),) * 3]
    monkeypatch.setattr(demos, "find_device", lambda wanted: FoundDevice(device="mps"))
    assert main(["demo", "--ui", "plain", "--ranks", "2"]) == BadInput.exit_code
    said = "homefires: --ranks 2 of --peers 3 take 6 GPUs, and 1 can be had: add --devices cpu\n"
    assert capsys.readouterr().err == said
    for ranks in ("0", "9"):
        assert main(["demo", "--ranks", ranks]) == BadInput.exit_code
        assert f"--ranks is {ranks}; use 1 to 8" in capsys.readouterr().err


@pytest.mark.outside
def test_a_peer_with_other_bits_fails_the_demo(fake_children: Fake, spec_path: str) -> None:
    fake_children("differs")
    with pytest.raises(RoundsFailed, match=r"^round 2 differs: peer-1 and peer-2; run again"):
        play(DemoCommand(peers=2, spec=spec_path))


@pytest.mark.outside
def test_a_killed_peer_is_named_and_the_others_go_on(fake_children: Fake, spec_path: str, tmp_path: Path) -> None:
    fake_children("dies")
    folder = tmp_path / "kept"
    demo = DemoCommand(peers=3, spec=spec_path, directory=folder)
    stream = io.StringIO()
    with pytest.raises(RoundsFailed) as caught:
        run_demo(demo, PlainOutput(stream, rounds=3, terse=True), demo.choose())
    wanted = f"peer-2 did not commit round 2 of 3, its last is 1: killed by SIGKILL; logs are in {folder}"
    assert str(caught.value) == wanted
    assert "round 3/3" in stream.getvalue()
    assert "peer-2: killed by SIGKILL" in stream.getvalue()
    assert sorted(path.name for path in folder.iterdir()) == [
        "bootstrap",
        "events.jsonl",
        "peer-1",
        "peer-2",
        "peer-3",
        "spec.toml",
    ]
    assert parse((folder / "spec.toml").read_text()).run.founders == 3


@pytest.mark.outside
def test_a_killed_peer_that_somebody_starts_again_is_there_again(
    fake_children: Fake, spec_path: str, tmp_path: Path
) -> None:
    """Its events are in its own folder, since it is no child of the demo."""
    fake_children("dies")
    folder = tmp_path / "kept"

    class Person(PlainOutput):
        def say(self, text: str) -> None:
            super().say(text)
            if text == "peer-2: killed by SIGKILL":
                lives = (PeerStarted(name="peer-2", version="0"), commit(3, f"{3:04x}" * 16, "aa" * 32))
                lines = (EventLine(seq=seq, t=9e9, run="fake", peer="id-peer-2", event=event) for seq, event in
                         enumerate(lives, start=5))  # fmt: skip
                (folder / "peer-2" / "events.jsonl").write_text("".join(f"{format_line(line)}\n" for line in lines))

    demo, stream = DemoCommand(peers=3, spec=spec_path, directory=folder), io.StringIO()
    assert run_demo(demo, Person(stream, rounds=3, terse=True), demo.choose()) == 0
    told = [line for line in read_lines(folder / "events.jsonl") if line is not None and line.peer == "id-peer-2"]
    assert isinstance(told[-1].event, RoundCommitted)
    assert told[-1].event.round == 3


@pytest.mark.outside
def test_a_founder_that_cannot_start_ends_the_demo(fake_children: Fake, spec_path: str, temporary: Path) -> None:
    fake_children("refuses")
    with pytest.raises(RoundsFailed, match="peer-2"):
        play(DemoCommand(peers=2, spec=spec_path))
    assert list(temporary.iterdir()) == []


@pytest.mark.outside
def test_a_bootstrap_node_that_cannot_start_fails_with_its_own_error(
    fake_children: Fake, spec_path: str, temporary: Path
) -> None:
    fake_children("mute")
    with pytest.raises(PortInUse, match=r"tcp/4001 is taken"):
        play(DemoCommand(peers=2, spec=spec_path))
    assert list(temporary.iterdir()) == []


@pytest.mark.outside
@pytest.mark.parametrize("behaviour", ["waits", "stubborn"])
def test_an_interrupt_ends_the_demo_and_leaves_nothing(
    fake_children: Fake, spec_path: str, temporary: Path, behaviour: str
) -> None:
    """One Ctrl-C ends polite children, a second one the others."""

    class Impatient(Output):
        interrupted = False

        def show(self, line: EventLine) -> None:
            if isinstance(line.event, RoundStarted) and not self.interrupted:
                self.interrupted = True
                os.kill(os.getpid(), signal.SIGINT)

        def say(self, text: str) -> None:
            if "once more" in text and behaviour == "stubborn":
                os.kill(os.getpid(), signal.SIGINT)

    fake_children(behaviour)
    demo = DemoCommand(peers=2, spec=spec_path)
    assert run_demo(demo, Impatient(), demo.choose()) == 130
    assert list(temporary.iterdir()) == []


@pytest.mark.outside
def test_json_is_the_peers_events_and_nothing_else(fake_children: Fake, spec_path: str) -> None:
    fake_children("well")
    stdout, stderr = io.StringIO(), io.StringIO()
    demo = DemoCommand(peers=2, spec=spec_path)
    assert run_demo(demo, JsonOutput(stdout, stderr), demo.choose()) == 0
    rows = [json.loads(text) for text in stdout.getvalue().splitlines()]
    assert {row["peer"] for row in rows} == {"id-peer-1", "id-peer-2"}
    assert {row["type"] for row in rows} >= {"PeerStarted", "RoundCommitted", "PeerStopped"}
    assert "equal bits" in stderr.getvalue()


def test_rounds_seed_and_settings_change_the_spec(spec_path: str) -> None:
    demo = DemoCommand(
        peers=5, spec=spec_path, rounds=7, seed=9, sets=("round.steps=50", "model.config.hidden_size=64")
    )
    spec = demo.choose()
    assert (spec.run.founders, spec.run.rounds, spec.run.seed, spec.round.steps) == (5, 7, 9, 50)
    assert spec.model.config == {"hidden_size": 64}


def test_a_misspelt_setting_is_refused_with_the_closest_key(spec_path: str) -> None:
    with pytest.raises(BadSpec, match=r"unknown key 'round\.stps'; did you mean 'steps'\?"):
        DemoCommand(spec=spec_path, sets=("round.stps=50",)).choose()


@pytest.mark.parametrize("text", ["steps=50", "round.steps", "round.steps=", ".=1", "round..steps=1"])
def test_a_setting_without_table_key_or_value_is_refused(spec_path: str, text: str) -> None:
    with pytest.raises(BadInput, match=r"write table\.key=value"):
        DemoCommand(spec=spec_path, sets=(text,)).choose()


def test_a_run_without_end_needs_rounds(tmp_path: Path) -> None:
    path = tmp_path / "endless.toml"
    path.write_text(SPEC.replace("rounds = 3", ""))
    with pytest.raises(BadInput, match="--rounds"):
        DemoCommand(spec=str(path)).choose()


def test_a_folder_with_something_in_it_is_refused(fake_children: Fake, spec_path: str, tmp_path: Path) -> None:
    fake_children("well")
    with pytest.raises(BadInput, match="not an empty folder"):
        play(DemoCommand(peers=2, spec=spec_path, directory=tmp_path))


def test_a_new_folder_without_room_for_anything_is_gone_again(tmp_path: Path) -> None:
    with pytest.raises(DiskFull), open_directory(tmp_path / "demo"):
        raise DiskFull("the disk is full")
    assert not (tmp_path / "demo").exists()


def test_the_bootstrap_nodes_own_events_are_no_peers_events() -> None:
    """InviteIssued folds into the swarm without making its sender a peer."""
    swarm = apply(
        SwarmState(), EventLine(seq=0, t=0.0, run="r", peer="id-bootstrap", event=InviteIssued(invite="hf1:x"))
    )
    assert ([entry.code for entry in swarm.entries], swarm.reporting) == (["INVITE"], [])


# What is checked at the end


def swarm_of(**digests: dict[int, tuple[str, str]]) -> SwarmState:
    """A swarm in which peer NAME committed ROUND with (digest, state)."""
    swarm = SwarmState()
    for name, rounds in digests.items():
        events = [PeerStarted(name=name, version="0"), *(commit(round, *pair) for round, pair in rounds.items())]
        for event in events:
            swarm = apply(swarm, EventLine(seq=0, t=0.0, run="r", peer=f"id-{name}", event=event))
    return swarm


def commit(round: int, digest: str, state: str) -> RoundCommitted:
    return RoundCommitted(
        round=round,
        digest=digest,
        state=state,
        group=[],
        weights={},
        penalties=[],
        tokens=1,
        bytes_sent=0,
        bytes_received=0,
        round_s=1.0,
        exposed_s=1.0,
    )


BOTH = {1: ("d1", "s1"), 2: ("d2", "s2")}


def test_equal_digests_in_every_round_are_no_fault() -> None:
    assert find_fault(swarm_of(a=BOTH, b=BOTH), ["a", "b"], rounds=2, ends={}) is None


def test_another_digest_is_named_with_its_round_and_peer() -> None:
    swarm = swarm_of(a=BOTH, b=BOTH | {2: ("dX", "s2")})
    assert find_fault(swarm, ["a", "b"], rounds=2, ends={}) == "round 2 differs: a and b"


def test_another_state_under_an_equal_digest_is_a_fault() -> None:
    swarm = swarm_of(a=BOTH, b=BOTH | {1: ("d1", "sX")})
    assert find_fault(swarm, ["a", "b"], rounds=2, ends={}) == "round 1 differs: a and b"


def test_a_round_that_one_peer_lacks_is_a_fault_with_the_reason() -> None:
    swarm = swarm_of(a=BOTH, b={1: ("d1", "s1")})
    fault = find_fault(swarm, ["a", "b"], rounds=2, ends={"b": "killed by SIGKILL"})
    assert fault == "b did not commit round 2 of 2, its last is 1: killed by SIGKILL"


def test_a_gap_is_a_fault_even_if_the_last_round_is_there() -> None:
    swarm = swarm_of(a={2: ("d2", "s2")}, b=BOTH)
    assert find_fault(swarm, ["a", "b"], rounds=2, ends={}) == "a did not commit round 1 of 2, its last is 2"


def test_a_peer_that_never_spoke_is_a_fault() -> None:
    assert find_fault(swarm_of(a=BOTH), ["a", "b"], rounds=2, ends={}) == "b never reported anything"


def test_a_difference_is_told_before_a_missing_round() -> None:
    swarm = swarm_of(a=BOTH, b={1: ("dX", "s1")})
    fault = find_fault(swarm, ["a", "b"], rounds=2, ends={})
    assert fault is not None
    assert fault == "round 1 differs: a and b"


@pytest.mark.outside
def test_a_demo_longer_than_what_is_remembered() -> None:
    """Only the newest commits of a peer are kept; the oldest rounds are not called missing."""
    rounds = MAX_COMMITS + 3
    committed = {round: (f"d{round}", f"s{round}") for round in range(1, rounds + 1)}
    lines = [
        EventLine(seq=0, t=0.0, run="r", peer="id-a", event=event)
        for event in (PeerStarted(name="a", version="0"), *(commit(r, *pair) for r, pair in committed.items()))
    ]
    swarm = apply_all(SwarmState(), lines)
    assert find_fault(swarm, ["a"], rounds=rounds, ends={}) is None
    assert find_fault(swarm, ["a"], rounds=rounds + 1, ends={}) == (
        f"a did not commit round {rounds + 1} of {rounds + 1}, its last is {rounds}"
    )
