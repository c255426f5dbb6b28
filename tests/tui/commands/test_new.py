"""`homefires new`: five answers become a spec that can be started, and mistakes one line."""

from __future__ import annotations

import gzip
import io
import json
import sys
from datetime import date
from pathlib import Path

import pytest

from dht.errors import BadInput
from peer.schema.spec import load
from peer.schema.spec_fields import USUAL_DATE
from tests.hub_server import HubServer, serving
from tests.open_models import publish
from tui.cli import main
from tui.commands.new import WHOLE

ANSWERS = {"--model": "tiny", "--data": "stdlib", "--friends": "2", "--who": "everybody", "--time": "12h"}

OWLS = "".join(f"{number} owls that read\n" for number in range(10_000))
"""Enough that some of it is held out."""


def words(**changed: str) -> list[str]:
    answers = ANSWERS | {f"--{name}": value for name, value in changed.items()}
    return ["new", *(word for pair in answers.items() for word in pair)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_five_answers_make_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", Terminal("\n".join(["tiny", "3", "invited", "200 rounds", "", ""])))
    assert main(["new"]) == 0
    spec = load("tiny-stdlib.toml")
    assert (spec.run.rounds, spec.admission.policy, spec.data.source) == (200, "invited", "stdlib")
    assert spec.run.founders == 3
    assert spec.data.held_out_every == 20, "of some hundred files"
    assert spec.model == load("tiny").model
    told = capsys.readouterr()
    assert told.err.count("?") == 5
    assert "870 k parameters, random to begin with" in told.out
    assert "200 rounds" in told.out
    assert "homefires bootstrap tiny-stdlib.toml" in told.out


def test_a_wrong_answer_is_said_at_once_and_the_right_ones_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    typed = ["tinny", "tiny", "0", "4", "me", "everybody", "soon", "200", "nowhere", "stdlib", ""]
    monkeypatch.setattr(sys, "stdin", Terminal("\n".join(typed)))
    assert main(["new"]) == 0
    assert load("tiny-stdlib.toml").run.founders == 4
    said = capsys.readouterr().err
    assert said.count("?") == 10
    assert "--" not in said, "who answers has typed no option"
    for number, wrong in enumerate(("tinny", "0", "me", "soon", "nowhere")):
        assert f"the answer is {wrong!r}" in said
        assert said.index(f"is {wrong!r}") < said.index(" [", said.index(f"is {wrong!r}")), number


@pytest.mark.outside
def test_a_file_that_is_no_text_is_refused_before_an_answer_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes").write_text("not read, for want of a suffix\n" * 100)
    Path("notes.txt").write_text(OWLS)
    Path("none.txt").touch()
    monkeypatch.setattr(sys, "stdin", Terminal("tiny\n4\neverybody\n200\nnotes\nnone.txt\nnotes.txt\n"))
    assert main(["new", "run.toml"]) == 0
    spec = load("run.toml")
    assert (spec.data.path, spec.run.founders, spec.run.rounds) == ("notes.txt", 4, 200)
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("Which data?") == 3
    assert "notes: a name without a suffix is not read" in said
    assert said.count("passes none: there is too little text for one window") == 2
    assert "all of it is 1 token, and a window has 65" in said


@pytest.mark.parametrize(
    ("setting", "typed", "told"),
    [
        ("round.steps", "", "--set round.steps: write table.key=value"),
        ("round.steps=0", "tiny\n3\ninvited\n200\nstdlib\n",
         "--model=tiny --data=stdlib --friends=3 --who=invited --time=200"),
    ],
)  # fmt: skip
def test_a_wrong_setting_costs_no_answer(
    setting: str, typed: str, told: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    assert main(["new", "--set", setting, str(tmp_path / "run.toml")]) == BadInput.exit_code
    last = capsys.readouterr().err.splitlines()[-1]
    assert all(word in last for word in told.split())


def test_a_question_and_the_forecast_break_between_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys, "stdin", Terminal("tiny\n\n\n200\n\n"))
    assert main(["new"]) == 0
    told = capsys.readouterr()
    assert max(map(len, told.err.splitlines())) < 120, "two questions share a line of what was typed"
    assert max(map(len, told.out.splitlines()[:-1])) <= 60, "the last line is a command, to be copied whole"


@pytest.mark.outside
def test_a_data_set_of_the_hub_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name with a slip is asked for again. Who is offline hears that nobody has looked, and goes on."""
    with serving(HubServer({"datasets/owls/poems": {"a.txt": b"a"}})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        monkeypatch.setattr(sys, "stdin", Terminal("owls/peoms\nowls/poems\n"))
        asked = [word for word in words() if word not in ("--data", "stdlib")]
        assert main([*asked, str(tmp_path / "run.toml")]) == 0
        assert load(str(tmp_path / "run.toml")).data.path == "owls/poems"
        said = " ".join(capsys.readouterr().err.split())
        assert "data.path is owls/peoms, and huggingface.co has no public repository of this name" in said
        assert "cannot be reached" not in said
        hub.away = True
        assert main([*words(data="owls/peoms"), str(tmp_path / "other.toml")]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "huggingface.co cannot be reached from here, so nobody knows yet whether it has owls/peoms" in said


@pytest.mark.outside
def test_data_that_nobody_can_train_on_make_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All that is wrong is on the screen, and nothing is written."""
    (tmp_path / "talks").mkdir()
    (tmp_path / "talks" / "a.jsonl").write_text('{"text": "a"}\n{\n7\n')
    path = tmp_path / "run.toml"
    assert main([*words(data=str(tmp_path / "talks")), str(path)]) == 2
    said = capsys.readouterr().err
    assert "a.jsonl:2 is no JSON" in said
    assert "a.jsonl:3 has no text named 'text'" in said
    assert "talks cannot be trained on: a.jsonl:2 is no JSON" in said.splitlines()[-1]
    assert not path.exists()


def test_a_time_is_so_many_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for hours in (12, 24):
        assert main([*words(time=f"{hours}h"), str(tmp_path / f"{hours}.toml")]) == 0
        assert f"about {hours}h0" in capsys.readouterr().out
    half, whole = (load(str(tmp_path / f"{hours}.toml")).run.rounds for hours in (12, 24))
    assert whole == pytest.approx(2 * half, abs=2)


@pytest.mark.outside
def test_it_starts_from_a_model_of_mine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whose text lies in a folder that each volunteer has, too."""
    publish(tmp_path / "owl")
    (tmp_path / "poems").mkdir()
    (tmp_path / "poems" / "owls.txt").write_text(OWLS)
    path = tmp_path / "run.toml"
    assert main([*words(model=str(tmp_path / "owl"), data=str(tmp_path / "poems")), str(path)]) == 0
    spec = load(str(path))
    assert spec.start is not None
    assert (spec.start.model, spec.run.name, spec.data.path) == ("owl", "owl-poems", "poems")
    assert spec.adapter is None, "a home GPU trains all of it"
    told = capsys.readouterr()
    assert f"--set data_path={tmp_path / 'poems'}" in told.out
    assert "documents     1" in told.err
    assert "times; after some four a model learns little" in " ".join(told.err.split())


@pytest.mark.outside
def test_a_start_model_has_the_rounds_that_a_plan_recommends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless a setting decides about them, or the run would be over before it has warmed up; the rounds of a shipped
    run are its own."""
    publish(tmp_path / "owl")
    usual, path = load(WHOLE), tmp_path / "planned.toml"
    assert main([*words(model=str(tmp_path / "owl")), str(path)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    planned = load(str(path))
    assert planned.round.steps > usual.round.steps
    assert f"planned: H {planned.round.steps} instead of {usual.round.steps}" in told
    assert f"with --set round.steps={usual.round.steps}, or another setting of rounds, nothing is planned" in told
    for others in (["--model", "tiny"], ["--set", f"round.steps={usual.round.steps}"], ["--time", "20"]):
        path = tmp_path / f"{others[0]}.toml"
        assert main([*words(model=str(tmp_path / "owl")), *others, str(path)]) == 0
        as_it_stood = load("tiny") if others[0] == "--model" else usual
        made = load(str(path)).round
        assert (made.steps, made.overlap) == (as_it_stood.round.steps, as_it_stood.round.overlap)
        assert "planned" not in capsys.readouterr().out


@pytest.mark.outside
@pytest.mark.parametrize(
    "most", [pytest.param(512e9, id="some home has room for all"), pytest.param(2.5e6, id="none has")]
)
def test_an_adapter_has_the_template_of_no_other_model(
    most: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What else is not asked for is taken from `adapter-8b`, whose template is that of its own model."""
    monkeypatch.setattr("tui.commands.new.CARD_BYTES", 0.0)
    monkeypatch.setattr("peer.schema.model_layers.MOST_DEVICE_BYTES", most)
    publish(tmp_path / "owl")
    path = tmp_path / "run.toml"
    assert main([*words(model=str(tmp_path / "owl")), str(path)]) == 0
    spec = load(str(path))
    assert spec.adapter is not None
    assert spec.data.template == ""


TALK = [{"role": "user", "content": "why two " * 2}, {"role": "assistant", "content": "so"}]


@pytest.mark.outside
@pytest.mark.parametrize(("line", "format"), [({"messages": TALK}, "chat"), ({"text": "a word " * 20}, "text")])
def test_conversations_are_seen_by_their_first_line(line: dict[str, object], format: str, tmp_path: Path) -> None:
    (tmp_path / "talks").mkdir()
    rows = "".join(json.dumps(line).replace("wo", f"wo{number}") + "\n" for number in range(200))
    (tmp_path / "talks" / "A.JSONL.gz").write_bytes(gzip.compress(rows.encode()))
    path = tmp_path / "run.toml"
    assert main([*words(data=str(tmp_path / "talks")), str(path)]) == 0
    made = load(str(path)).data
    assert made.format == format
    # What its template takes for today is the day on which the run was made.
    assert made.date == (date.today().isoformat() if format == "chat" else USUAL_DATE)
    assert load(str(path)).aggregation.weigh == ("predicted" if format == "chat" else "read")


@pytest.mark.parametrize(
    ("answer", "value", "said"),
    [
        ("model", "no name", "which is not here"),
        ("data", "nowhere", "--data is 'nowhere'"),
        ("friends", "17", "--friends is '17'; say a number from 1 to 16"),
        ("who", "me", "--who is 'me'"),
        ("time", "soon", "--time is 'soon'"),
        ("time", "0", "--time is 0; a run has a round at least"),
        ("time", "0h", "--time is '0h'"),
        ("time", "²", "--time is '²'"),
        ("time", "9" * 5000, "--time is '999"),
    ],
)
@pytest.mark.outside
def test_a_mistake_is_one_line(
    answer: str, value: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words(**{answer: value}), str(tmp_path / "run.toml")]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("admission.policy", "invited"), ("run.name", "mine"), ("run.rounds", 7), ("run.rounds", 0),
        ("data.held_out_every", 33), ("data.subset", "part"), ("round.exchange_s", 1.0), ("round.gather_s", 1.0),
        ("round.steps", 11), ("model.context", 32), ("inner.sequences", 3),
    ],
)  # fmt: skip
def test_what_is_set_holds_whatever_the_answers_say(setting: str, value: object, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    words_set = f"{setting}={value}"
    assert main([*words(), "--set", words_set, str(path)]) == 0
    table, key = setting.split(".")
    assert load(str(path)).tables()[table][key] == value


@pytest.mark.parametrize(
    "words_of_demo",
    [
        ["--peers", "3", "--set", "run.founders=2"],
        ["--rounds", "3", "--set", "run.rounds=2"],
        ["--seed", "3", "--set", "run.seed=2"],
    ],
)
def test_a_demo_refuses_what_another_option_would_overwrite(
    words_of_demo: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--devices", "cpu", *words_of_demo]) == 2
    assert "another option has run." in capsys.readouterr().err


def test_nothing_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.toml"
    path.write_text("mine")
    assert main([*words(), str(path)]) == 2
    assert "exists" in capsys.readouterr().err
    assert path.read_text() == "mine"


def test_where_nothing_can_be_written_is_said_before_anything_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal the first question would end it, too, with another line."""
    assert main(["new", str(tmp_path / "typo" / "run.toml")]) == 2
    assert "typo is no folder; make it, or name a file in another one" in capsys.readouterr().err


def test_without_a_terminal_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main(words()[:-2]) == 2
    assert "add --time" in capsys.readouterr().err
