"""`homefires plan`: a table for people, an object for programs, a spec for bootstrap."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from peer.schema.events import DeviceMeasured, DeviceReported, EventLine, PeerStarted, ReportReceived, format_line
from peer.schema.spec import dump, load
from tui.cli import main

ASKED = ["plan", "tiny", "--peers", "3", "--upload", "20", "--download", "100", "--step-s", "0.05", "--memory", "8"]


def test_a_table_of_eighty_columns_and_why_the_next_one_lost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ASKED) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("tiny: 870 k parameters, 3 peers, 512 tokens per inner step")
    (head,) = [number for number, line in enumerate(lines) if "overlap" in line and "tokens/s" in line]
    assert re.match(r"1 +\d+ (none|layerwise|streaming) ", lines[head + 1])
    assert any(line.startswith("= ") and " none " in line for line in lines)
    assert any(line.startswith("2 lost: ") for line in lines)
    assert any("nine in ten between" in line for line in lines)
    assert [line for line in lines if line.startswith("assumed")] == [
        "assumed for every peer: 30 ms one way where nothing is known; say delay_ms in a",
    ]


def test_every_plan_says_what_a_month_sends(capsys: pytest.CaptureFixture[str]) -> None:
    """In every row, of the best in words, and as an object."""
    assert main(ASKED) == 0
    page = capsys.readouterr().out
    assert "GB/month" in page
    assert re.search(r"a\s+day,\s+[\d.]+\s+[kMGT]B\s+a\s+month", page)
    assert main([*ASKED, "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["ranked"][0]
    assert best["day_bytes"] == pytest.approx(best["traffic"]["up_bytes"] * 86_400 / best["round_s"])


def test_bytes_have_a_price_that_can_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "gpt2-small", "--peers", "4", "--upload", "20", "--download", "100", "--step-s", "2.5", "--json"]
    day_bytes = []
    for words in ([], ["--gb-price", "0.1"], ["--gb-price", "0"]):
        assert main([*asked, *words]) == 0
        day_bytes.append(json.loads(capsys.readouterr().out)["ranked"][0]["day_bytes"])
    assert day_bytes[0] == day_bytes[1] < day_bytes[2] / 5


@pytest.mark.parametrize(("overlap", "mark"), [("streaming", "1="), ("none", "= ")])
def test_the_spec_as_it_stands_does_not_lose_to_itself(
    overlap: str, mark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where it is the best it has one row, and nothing is said to have beaten it."""
    asked = ["plan", "gpt2-small", "--peers", "4", "--upload", "20", "--download", "100", "--step-s", "2.5"]
    assert main([*asked, "--set", f"round.overlap={overlap}"]) == 0
    page = capsys.readouterr().out
    rows = [line for line in page.splitlines() if re.match(rf"[\d= ][= ] +500 {overlap} +1 int4", line)]
    assert [line[:2] for line in rows] == [mark]
    assert ("1 is best (the spec as it stands): H 500" in page) == (overlap == "streaming")
    assert ("the spec as it stands makes less of the time" in page) == (overlap == "none")


def test_what_nobody_measured_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "micro"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "2 peers" in text  # those that found the run
    assert "assumed for every peer: 20 TFLOP/s" in text
    assert "a line of 1 Gbit/s" in text


def test_the_plan_as_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    scores = [row["score"] for row in told["ranked"]]
    assert scores == sorted(scores, reverse=True)
    best = told["ranked"][0]
    assert best["low_s"] < best["round_s"] < best["high_s"]
    assert told["spec"]["round"]["steps"] == best["strategy"]["steps"]
    assert told["now"]["strategy"]["steps"] == 45
    assert len(told["peers"]) == 3


def test_what_it_writes_is_a_spec_that_bootstrap_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "planned.toml"
    assert main([*ASKED, "--set", "run.rounds=7", "--json", "--write", str(path)]) == 0
    out, aside = capsys.readouterr()
    planned, told = load(str(path)), json.loads(out)
    assert planned.run.rounds == 7
    assert planned.round.overlap == told["ranked"][0]["strategy"]["overlap"]
    assert planned.model == load("tiny").model
    assert str(path) in aside
    assert path.read_text().startswith("# Planned by homefires for 3 peers: ")


def test_the_devices_of_a_peer_and_what_each_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two devices are nearly twice as fast as one, and the page says how they share the model."""
    path, alone = tmp_path / "peers.toml", '[[peer]]\nname = "anna"\nstep_s = 1.0\n'
    path.write_text(alone + "devices = 2\ninside_gbps = 100\n")
    assert main(["plan", "tiny", "--peers", str(path)]) == 0
    page = capsys.readouterr().out
    assert re.search(r"anna: \d+ steps of 0\.5\d s.* MB on each\s+of\s+2\s+devices\s+\(replicated\) to train", page)
    assert "assumed for anna: devices that move blocks while they compute" in page
    assert main(["plan", "tiny", "--peers", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sharding"] == {"anna": "replicated"}


def test_peers_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "peers.toml"
    path.write_text('[[peer]]\nname = "anna"\nstep_s = 1.0\n[[peer]]\nname = "ben"\nstep_s = 3.0\ncount = 2\n')
    assert main(["plan", "tiny", "--peers", str(path)]) == 0
    text = capsys.readouterr().out
    assert "3 peers" in text
    assert "anna: " in text
    assert "ben-1: " in text
    assert "ben-2: " not in text  # it is like ben-1


@pytest.mark.slow
def test_the_peers_of_a_run_are_planned_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `homefires place` has them: what a peer of the run knows of them."""
    events = [
        PeerStarted(name="mine", version="0"),
        ReportReceived(
            about="b", round=1, ready=False, tokens=1, steps=1, name="ben", tokens_per_s=512.0, device_gb=24.0
        ),
        DeviceMeasured(vram_bytes=8 * 10**9), DeviceReported(about="c", device_gb=12.0),
    ]  # fmt: skip
    lines = [EventLine(seq=n, t=100.0 + n, run="tiny", peer="a", event=event) for n, event in enumerate(events)]
    (tmp_path / "events.jsonl").write_text("".join(f"{format_line(line)}\n" for line in lines))
    assert main(["plan", "tiny", "--peers", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    said = [(peer["name"], peer["step_s"], peer["memory_gb"]) for peer in told["peers"]]
    assert [memory_gb for _, _, memory_gb in said] == [24.0, 12.0, 8.0]
    assert (said[0][:2], said[2][:2]) == (("ben", 1.0), ("mine", 0.0))
    (tmp_path / "spec.toml").write_text(dump(load("micro")))
    assert main(["plan", "tiny", "--peers", str(tmp_path), "--download", "100", "--json"]) == 0
    other = json.loads(capsys.readouterr().out)["peers"][0]
    assert other["step_s"] > 1.01, "its tokens are of a smaller model"
    assert other["download_mbps"] == 100, "which nobody says of himself"
    (tmp_path / "empty").mkdir()
    assert main(["plan", "tiny", "--peers", str(tmp_path / "empty")]) == 2
    assert "holds no events" in capsys.readouterr().err


def test_it_says_what_was_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "--set", "round.pace=time"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "rounds stay by time (round.pace)" in text
    assert "steps were measured with 1 × 8 sequences: no other cut of the batch is known to be faster" in text
    assert main([*ASKED[:-2], "--memory", "0.0175"]) == 0
    assert "that another cut of the batch takes as long is assumed" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "nowhere.toml"], ["nowhere.toml cannot be read"]),
        (["plan", "tiny", "--peers", "0"], ["--peers is 0"]),
        (["plan", "tiny", "--peers", "-3"], ["--peers"]),
        (["plan", "tiny", "--peers", "nowhere.toml"], ["nowhere.toml", "a number or a TOML file"]),
        (["plan", "tiny", "--peers", "2", "--upload", "0.1"], ["upload_mbps is 0.1"]),
        (["plan", "tiny", "--step-s", "-1"], ["step_s is -1"]),
        (["plan", "tiny", "--step-s", "soon"], ["--step-s", "'soon'"]),
        (["plan", "tiny", "--quality", "99"], ["--quality is 99"]),
        (["plan", "tiny", "--set", "model.architecture=mamba"], ["'mamba', none that can be trained here", "llama"]),
        (["plan", "tiny", "--measured", "nowhere"], ["--measured nowhere does not exist", "events.jsonl"]),
        (["plan", "tiny", "--write", "/nowhere/x.toml"], ["/nowhere/x.toml", "--write"]),
        (["plan", "tiny", "--peers", "65"], ["--peers is 65", "a group ends at 64"]),
        (["plan", "tiny", "--peers", "²"], ["²", "a number or a TOML file"]),
        (["plan", "tiny", "--parameters", "-5"], ["--parameters is -5"]),
        (["plan", "tiny", "--parameters", "1" + 24 * "0"], ["--parameters is 1000"]),
        (["plan", "tiny", "--parameters", "1" + 13 * "0"], ["65,536 at most", "codec.part_elements"]),
        (["plan", "tiny", "--flops", "1e-300"], ["flops is 1e-300"]),
        (["plan", "tiny", "--step-s", "1e300"], ["step_s is 1e+300"]),
        (["plan", "tiny", "--memory", "1e-9"], ["has 1e-09 GB", "needs 0.0169 GB"]),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1
    assert error[0].startswith("homefires: ")
    assert all(word in error[0] for word in words)


def test_more_peers_in_a_file_than_a_group_holds_are_refused_before_any_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "peers.toml"
    path.write_text('[[peer]]\nname = "a"\ncount = 2000000000\n')
    assert main(["plan", "tiny", "--peers", str(path)]) == 2
    assert "peers.toml has 2000000000 peers, but a group ends at 64" in capsys.readouterr().err


def test_no_more_peers_found_the_planned_run_than_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "two.toml"
    assert main(["plan", "tiny", "--peers", "2", "--write", str(path)]) == 0
    assert "run.founders is 2 instead of 3" in capsys.readouterr().out
    assert load(str(path)).run.founders == 2


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("mine")
    assert main([*ASKED, "--write", str(path)]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "mine.toml exists; name another file with --write" in error
    assert path.read_text() == "mine"


SLOW_LINE = ["plan", "tiny", "--peers", "3", "--upload", "0.5", "--step-s", "0.0001"]


def test_streaming_behind_a_slow_line_says_what_counts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real peers wait rather than train beyond what counts."""
    path = tmp_path / "slow.toml"
    assert main([*SLOW_LINE, "--write", str(path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "of each round count nothing" in text
    assert "half a per cent of quality is assumed for streaming whatever the delay" in text
    planned = load(str(path)).round
    assert (planned.overlap, planned.delay) == ("streaming", 2 * planned.steps)


@pytest.mark.parametrize("name", ["events.jsonl", "events.jsonl.1"])
def test_the_events_of_a_peer_are_as_good_as_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / name).write_text("")
    assert main(["plan", "tiny", "--measured", str(tmp_path / name)]) == 2
    assert f"{tmp_path} holds no events" in capsys.readouterr().err


@pytest.mark.parametrize("step_s", ["0.000001", "0.001", "3000", "1000000"])
def test_a_table_of_any_speed_has_eighty_columns(step_s: str, capsys: pytest.CaptureFixture[str]) -> None:
    long = ["--set", "round.steps=1000", "--set", "round.max_train_s=3e7"]
    assert main(["plan", "tiny", "--step-s", step_s, "--upload", "0.5", *long]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "steps of 0.00 s" not in text


# ---- a model that some peers do not hold ----

LARGE = ["plan", "llama-1b", "--peers", "8", "--memory", "14"]


def test_who_does_not_hold_the_model_sees_what_pays(capsys: pytest.CaptureFixture[str]) -> None:
    """On home lines layers from main memory, on fibre a cluster."""
    assert main([*LARGE, "--upload", "20"]) == 0
    slow, why = capsys.readouterr()
    assert main([*LARGE, "--upload", "500"]) == 0
    fast = capsys.readouterr().out
    assert max(map(len, (slow + fast).splitlines())) <= 80
    assert slow.startswith("llama-1b: 1.1 B parameters, 8 peers; not all of them hold it")
    assert "= the whole model on the device: no peer" in slow
    assert "\n* layers from main memory, with 17.6 GB of it" in slow
    assert "\n  4 clusters of 2 homes (stages=2): 8 peers, " in slow
    assert "\n* 4 clusters of 2 homes (stages=2): 8 peers, " in fast
    assert "p^2 of it (90% for 95%, 64% for 80%)" in " ".join(slow.split())
    assert "\npeer-0 has 14 GB for training and the model needs " in slow
    assert why == ""


def test_what_pays_as_an_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two peers hold it, and are in no cluster; of the others those are together that are near each other."""
    path = tmp_path / "peers.toml"
    path.write_text(
        '[delays_ms]\n"berlin tokyo" = 120\n'
        + "".join(
            f'[[peer]]\nname = "{name}"\nmemory_gb = {room}\nflops = 2e13\nupload_mbps = 500\n'
            f'download_mbps = 500\nregion = "{region}"\n'
            for name, room, region in (
                ("a", 80, "berlin"), ("b", 14, "berlin"), ("c", 14, "tokyo"), ("d", 14, "berlin"), ("e", 14, "tokyo"),
                ("f", 80, "tokyo"),
            )
        )
    )  # fmt: skip
    assert main(["plan", "llama-1b", "--peers", str(path), "--json"]) == 0
    options = json.loads(capsys.readouterr().out)["options"]
    assert options["whole"]["peers"] == 2
    best, *rest = options["others"]
    assert [way["homes"] for way in (best, *rest)] == [2, 1]
    assert best["tokens_per_s"] > rest[0]["tokens_per_s"] > 0
    assert sorted(map(sorted, best["pipelines"])) == [["b", "d"], ["c", "e"]]


def test_an_architecture_that_no_cluster_trains_is_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """Which is said once, before what its peers may do."""
    assert main(["plan", "gpt2-small", "--peers", "3", "--memory", "1"]) != 0
    page = " ".join(capsys.readouterr().out.split())
    assert "stages=" not in page
    assert page.count("cannot be cut into stages") == 1
    assert page.index("cannot be cut") < page.index("= the whole model")


def test_where_nothing_helps_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "llama-1b", "--peers", "2", "--memory", "1"]) == 2
    page, why = capsys.readouterr()
    assert "can do nothing for it, not even together" in page
    assert why.endswith("; leave that peer out, or train a smaller model\n")


def test_a_plan_does_not_refuse_what_it_recommends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commonest home trains with layers from main memory, and nobody is told to leave it out; but there is no spec
    to write that all of these peers hold."""
    home = ["plan", "llama-1b", "--memory", "8", "--upload", "20"]
    assert main(home) == 0
    page, why = capsys.readouterr()
    assert "\n* layers from main memory" in page
    assert "leave" not in page + why
    assert main([*home, "--write", str(tmp_path / "planned.toml")]) == 2
    assert "is for peers that all hold the model" in capsys.readouterr().err
    assert not (tmp_path / "planned.toml").exists()


EIGHT_BILLION = [
    word
    for setting in (
        "hidden_size=4096", "intermediate_size=14336", "num_hidden_layers=32", "num_key_value_heads=8",
        "vocab_size=128256",
    )
    for word in ("--set", f"model.config.{setting}")
]  # fmt: skip


@pytest.mark.parametrize("homes", [6, 8])
def test_place_and_plan_give_the_same_answer(homes: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Of an 8 B model on cards of 24 GB: six homes hold no 32 blocks together, eight do, and as fast for both."""
    words = ["llama-1b", *EIGHT_BILLION, "--peers", str(homes), "--memory", "24", "--upload", "100", "--json"]
    assert main(["plan", *words]) == (2 if homes == 6 else 0), "nothing else fits either"
    clusters = [way for way in json.loads(capsys.readouterr().out)["options"]["others"] if way["homes"] > 1]
    code = main(["place", *words])
    told = capsys.readouterr()
    if homes == 6:
        assert (clusters, code) == ([], 2)
        assert "fit on no 6 of these peers, however the model is cut into whole blocks" in told.err
        return
    assert code == 0
    placed = json.loads(told.out)
    assert [way["homes"] for way in clusters] == [placed["work"]["stages"]] == [8]
    assert placed["tokens_per_s"] == pytest.approx(clusters[0]["tokens_per_s"], rel=1e-6)
