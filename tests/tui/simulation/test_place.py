"""`homefires place`: who would hold which stage, for people and for programs."""

from __future__ import annotations

import json
import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from dht.streams.base import LEAST_MBPS
from peer.planning.plan.cluster_cost import fewest_stages
from peer.planning.plan.model_shape import shape_of, stage_bytes
from peer.planning.plan.peer_set import HOME_DELAY_S, MOST_STEP_S
from peer.schema.events import (
    Event,
    EventLine,
    NetworkMeasured,
    PeerStarted,
    PeerStopped,
    ReportReceived,
    RoundCommitted,
    RoundTripsReported,
    format_line,
)
from peer.schema.spec import load
from tui.cli import main
from tui.simulation import place as placing
from tui.simulation.place import PlaceOptions, Searching, find

Said = pytest.CaptureFixture[str]
REGIONS = """
delay_ms = 120
[[peer]]
name = "berlin"
count = 2
step_s = 1.0
upload_mbps = 50
download_mbps = 50
memory_gb = 8
region = "berlin"
[[peer]]
name = "tokyo"
count = 2
step_s = 1.0
upload_mbps = 50
download_mbps = 50
memory_gb = 8
region = "tokyo"
"""


def placed(capsys: Said, *words: str) -> dict[str, Any]:
    assert main(["place", *words, "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_every_peer_holds_one_stage_or_is_spare(capsys: Said) -> None:
    told = placed(capsys, "tiny", "--peers", "7", "--stages", "2")
    held = [peer for pipeline in told["pipelines"] for peer in pipeline]
    assert [len(pipeline) for pipeline in told["pipelines"]] == [2, 2, 2]
    assert sorted([*held, *told["spares"]]) == sorted(told["peers"])
    assert len(told["spares"]) == 1
    assert told["ranks"] == {peer: rank for rank, peer in enumerate(held)}


def test_stages_that_talk_in_every_step_are_placed_near_each_other(tmp_path: Path, capsys: Said) -> None:
    """Activations pass in each step, and a stage is averaged once in H: pipelines stay within a region."""
    (tmp_path / "peers.toml").write_text(REGIONS)
    told = placed(capsys, "tiny", "--peers", str(tmp_path / "peers.toml"), "--stages", "2")
    assert sorted(sorted(pipeline) for pipeline in told["pipelines"]) == [
        ["berlin-1", "berlin-2"],
        ["tokyo-1", "tokyo-2"],
    ]
    assert told["passing_s"] < 0.12
    assert told["work"]["sync_steps"] == load("tiny").round.steps
    assert told["bounds"][1]["peers"][0][:3] == told["bounds"][1]["peers"][1][:3]


def test_a_page_of_eighty_columns_says_what_bounds_a_step(tmp_path: Path, capsys: Said) -> None:
    (tmp_path / "peers.toml").write_text(REGIONS)
    assert main(["place", "tiny", "--peers", str(tmp_path / "peers.toml"), "--stages", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "tiny: 870 k parameters in 2 stages, 4 peers"
    assert any(re.fullmatch(r"pipeline 1: berlin-. > berlin-.", line) for line in lines)
    assert any(line.startswith("2 pipelines of 2 stages: ") for line in lines)
    assert any(line.startswith("stage 0 to 1: ") for line in lines)
    assert [sorted(re.findall(r"[a-z]+-[12]", line)) for line in lines[-2:]] == [
        ["berlin-1", "berlin-2"], ["tokyo-1", "tokyo-2"],
    ]  # fmt: skip
    assert all(" leads a cluster; in it work " in line for line in lines[-2:])
    how = " ".join(lines)
    assert "run.founders = 2, and of each pipeline the first joins with --set stages=2 and" in re.sub(" +", " ", how)


def test_what_cannot_be_cut_is_said(capsys: Said) -> None:
    """In one line, before any advice; runs from a pretrained model and adapters are placed as others are."""
    assert main(["place", "gpt2-small", "--peers", "4", "--stages", "2"]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert "models of the architecture gpt2 cannot be cut into stages" in told.err
    for run in ("continue-1b", "adapter-8b"):
        assert main(["place", run, "--peers", "4", "--stages", "2"]) == 0
        assert "2 pipelines of 2 stages" in capsys.readouterr().out
    assert main(["place", "gpt2-small", "--peers", "4", "--stages", "1"]) == 0
    assert "cluster" not in capsys.readouterr().out


def test_a_step_has_an_interval_that_knows_which_lines_are_assumed(tmp_path: Path, capsys: Said) -> None:
    (tmp_path / "peers.toml").write_text(REGIONS)
    said = placed(capsys, "tiny", "--peers", str(tmp_path / "peers.toml"), "--stages", "2")
    assert 1.5 < said["high_s"] / said["step_s"] < 2.5
    assert said["low_s"] * said["high_s"] == pytest.approx(said["step_s"] ** 2)
    assumed = placed(capsys, "tiny", "--peers", "4", "--stages", "2", "--step-s", "1")
    assert assumed["low_s"] < assumed["step_s"]
    assert assumed["high_s"] / assumed["step_s"] > 1.2 * said["high_s"] / said["step_s"]
    assert main(["place", "tiny", "--peers", str(tmp_path / "peers.toml"), "--stages", "2"]) == 0
    assert "nine in ten steps between" in capsys.readouterr().out


def test_without_a_number_a_model_is_cut_as_little_as_memory_allows(capsys: Said) -> None:
    """The large one fits on no device of 8 GB; the small one is not cut at all."""
    spec = load("llama-1b")
    needed = fewest_stages(shape_of(spec), spec, [8e9] * 12)
    told = placed(capsys, "llama-1b", "--peers", "12", "--memory", "8")
    assert told["work"]["stages"] == needed == 4
    assert placed(capsys, "tiny", "--peers", "3", "--memory", "8")["work"]["stages"] == 1


def folder_of(directory: Path, *events: Event) -> Path:
    """Of peer `a`, which has told these."""
    lines = [EventLine(seq=n, t=100.0 + n, run="tiny", peer="a", event=event) for n, event in enumerate(events)]
    (directory / "events.jsonl").write_text("".join(f"{format_line(line)}\n" for line in lines))
    return directory


def heard(about: str, speed: float, **values: Any) -> ReportReceived:
    return ReportReceived(
        about=about, round=1, ready=False, tokens=1, steps=1, name=about * 2, tokens_per_s=speed, **values
    )


def test_the_peers_of_a_run_are_those_that_a_peer_of_it_knows(tmp_path: Path, capsys: Said) -> None:
    """With the speeds that they say and the round trips that it measured, without those that left."""
    near = [{"peer": peer, "address": "", "relayed": False, "bytes_sent": 0, "bytes_received": 0, "rtt_s": rtt_s}
            for peer, rtt_s in (("b", 0.004), ("c", 0.3), ("d", None))]  # fmt: skip
    folder = folder_of(
        tmp_path, PeerStarted(name="mine", version="0"), heard("b", 512.0), heard("c", 512.0), heard("d", 512.0),
        heard("e", 512.0, leaving=True),
        NetworkMeasured(addresses=[], reach="", bytes_sent=0, bytes_received=0, peers=near),
    )  # fmt: skip
    told = placed(capsys, "tiny", "--peers", str(folder), "--stages", "2")
    assert told["peers"] == ["mine", "bb", "cc", "dd"]
    place = {peer: (row, column) for row, peers in enumerate(told["pipelines"]) for column, peer in enumerate(peers)}
    assert all(mine != far for mine, far in zip(place["mine"], place["cc"], strict=True)), "their slow line is not used"
    assert any(text.startswith("mine: 20 TFLOP/s") for text in told["assumed"]), "it has told no speed"
    (tmp_path / "empty").mkdir()
    assert main(["place", "tiny", "--peers", str(tmp_path / "empty")]) == 2
    assert "holds no events" in capsys.readouterr().err
    folder_of(tmp_path, PeerStarted(name="mine", version="0"), heard("b", 512.0), PeerStopped(why="left"))
    assert placed(capsys, "tiny", "--peers", str(folder))["peers"] == ["mine", "bb"]
    (tmp_path / "events.jsonl").write_text("rubbish\n")
    assert main(["place", "tiny", "--peers", str(folder)]) == 2
    assert "knows 0 peers" in capsys.readouterr().err


def test_the_lines_of_a_run_are_those_that_its_members_pledged(tmp_path: Path) -> None:
    """Whatever they pledged, and say of their speed; 0 is a line that is not known, or too fast to tell."""
    commit = RoundCommitted(
        round=1, digest="d", state="s", group=["a", "b", "c"], weights={}, penalties=[], tokens=1, bytes_sent=0,
        bytes_received=0, round_s=1.0, exposed_s=0.0, uplinks={"a": 20_000_000, "b": 2**62, "c": 1},
    )  # fmt: skip
    folder = folder_of(
        tmp_path, PeerStarted(name="mine", version="0"), heard("b", 512.0), heard("c", 1e-9), commit
    )  # fmt: skip
    found = find(PlaceOptions(spec="tiny", peers=str(folder)))
    assert [machine.upload_mbps for machine in found.swarm.machines] == [20.0, 0.0, LEAST_MBPS]
    assert found.swarm.machines[2].step_s == MOST_STEP_S


def test_peers_are_spread_over_a_network_of_known_places(capsys: Said) -> None:
    """With its lines, and a cap that one says on top."""
    told = placed(capsys, "tiny", "--preset", "aws", "--peers", "8", "--stages", "2")
    assert sorted([*chain(*told["pipelines"]), *told["spares"]]) == sorted(told["peers"])
    assert len({name.rpartition("-")[0] for name in told["peers"]}) > 1, "in more than one place"
    assert not any("line" in text for text in told["assumed"])
    capped = placed(capsys, "tiny", "--preset", "aws", "--peers", "8", "--stages", "2", "--upload", "1")
    assert capped["step_s"] > told["step_s"]


def test_a_line_that_is_slow_one_way_is_slow(tmp_path: Path, capsys: Said) -> None:
    """Activations go one way and gradients the other: both take their time. Of a network of known places the two
    directions are alike."""
    (tmp_path / "peers.toml").write_text(
        "delay_ms = 0\n[[peer]]\nname = 'ada'\nupload_mbps = 1000\ndownload_mbps = 1000\n"
        "[[peer]]\nname = 'bob'\nupload_mbps = 1\ndownload_mbps = 1000\n"
    )
    told = placed(capsys, "tiny", "--peers", str(tmp_path / "peers.toml"), "--stages", "2")
    bits = 8 * told["work"]["cut_bytes"]
    assert told["passing_s"] == pytest.approx(bits / 1e6 + bits / 1e9)


def test_computing_is_told_with_what_a_pipeline_takes_to_fill(capsys: Said) -> None:
    """Half a step of the model in each of two stages, one after the other if there is one micro-batch."""
    for accumulation, computing_s in ((1, 1.0), (4, 0.625)):
        words = ("--peers", "2", "--stages", "2", "--step-s", "1", "--set", f"inner.accumulation={accumulation}")
        told = placed(capsys, "tiny", *words)
        assert told["computing_s"] == pytest.approx(computing_s)
        assert told["step_s"] == pytest.approx(told["averaging_s"] + told["passing_s"] + computing_s)


def test_a_search_that_takes_long_says_so(capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every few seconds, where it does not disturb who reads the answer."""
    said: list[str] = []
    now_s = iter([0.0, 4.9, 5.0, 5.0, 9.0, 10.1, 10.1])
    searching = Searching(said.append, clock=lambda: next(now_s))
    for layouts in (100, 2_000, 50, 1_200):
        searching.tell(layouts)
    text = "still looking for who should hold what: {} layouts so far"
    assert said == [text.format("2,000"), text.format("3,200")]
    monkeypatch.setattr(placing, "EVERY_S", 0.0)
    assert main(["place", "tiny", "--peers", "16", "--stages", "3", "--json"]) == 0
    told = capsys.readouterr()
    assert "still looking" in told.err
    assert len(json.loads(told.out)["pipelines"]) == 5


def test_a_peer_that_would_hold_up_all_is_left_out(tmp_path: Path, capsys: Said) -> None:
    """With H = 1, and the page says why."""
    rows = "".join(f"[[peer]]\nname = 'peer{at}'\nstep_s = {step_s}\n" for at, step_s in enumerate([1, 1, 1, 90]))
    (tmp_path / "peers.toml").write_text(rows)
    words = ["place", "tiny", "--peers", str(tmp_path / "peers.toml"), "--stages", "1", "--set", "round.steps=1"]
    assert main(words) == 0
    page = capsys.readouterr().out
    assert "3 pipelines together: " in page
    assert "spare: peer3" in page


def test_the_distances_of_others_are_those_that_both_ends_tell(tmp_path: Path) -> None:
    """The mean of the two; of whom nobody tells, as of any home."""
    near = [{"peer": "b", "address": "", "relayed": False, "bytes_sent": 0, "bytes_received": 0, "rtt_s": 0.1}]
    folder = folder_of(
        tmp_path, PeerStarted(name="mine", version="0"), heard("b", 512.0), heard("c", 512.0),
        NetworkMeasured(addresses=[], reach="", bytes_sent=0, bytes_received=0, peers=near),
        RoundTripsReported(about="b", rtt_s={"a": 0.3, "c": 0.02}), RoundTripsReported(about="relay", rtt_s={"c": 9.0}),
    )  # fmt: skip
    found = find(PlaceOptions(spec="tiny", peers=str(folder)))
    delay_s = found.swarm.network.delay_s
    assert [delay_s[0, 1], delay_s[1, 2], delay_s[0, 2]] == pytest.approx([0.1, 0.01, HOME_DELAY_S])
    assert len(found.swarm) == 3


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--stages", "99"], "--stages is 99; a model of"),
        (["--stages", "-1"], "--stages is -1"),
        (
            ["--peers", "3", "--stages", "2", "--pipelines", "2"],
            "2 pipelines of 2 stages; 3 devices suffice for 1 to 1",
        ),
        (["--peers", "65"], "a group ends at 64"),
        (["--peers", "2", "--memory", "0.000001"], "fit on no 2 of these peers"),
        (["--peers", "nowhere.toml"], "nowhere.toml"),
        (["--preset", "atlantis"], "no network is called 'atlantis'; there are"),
        (["--preset", "aws", "--peers", "3x"], "with it --peers is a number, not 3x"),
        (["--preset", "aws", "--peers", "65"], "a group ends at 64"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], says: str, capsys: Said) -> None:
    assert main(["place", "tiny", *words]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert says in told.err


def test_a_stage_is_averaged_as_the_spec_encodes_it() -> None:
    """All of the model in one stage, and less than all in each of two."""
    spec, shape = load("tiny"), shape_of(load("tiny"))
    assert 0.4 < stage_bytes(shape, spec, 1) / shape.parameters < 0.6, "four bits"
    assert 0.5 <= stage_bytes(shape, spec, 2) / stage_bytes(shape, spec, 1) < 1
