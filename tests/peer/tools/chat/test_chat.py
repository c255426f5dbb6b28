"""Talking to a model: what is loaded from which folder, what an answer is, and how the command ends."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dht.errors import BadInput
from peer.node.store import start_blob
from peer.schema.spec_fields import AdapterTable
from peer.testing.child_process import HANG_S
from peer.tools.chat.conversation import Conversation, Manner, _typed
from peer.tools.chat.loaded_model import LoadedModel, load_model
from peer.tools.export.folder import export
from peer.training.checkpoint.checkpoint import Checkpoints
from peer.training.model.continuation import continued
from peer.training.model.flat_parameters import FlatParameters
from tests.open_models import publish
from tests.peer.tools.export.run_on_disk import RunOnDisk, make_run, small_spec, write_corpus
from tests.peer.tools.export.started_run import started_spec

GREEDY = Manner(temperature=0.0, tokens=6)
TEMPLATE = (
    "{% for turn in messages %}{{ turn.role[0] }}:{{ turn.content }}|{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    write_corpus(folder / "corpus")
    publish(folder / "base", tie_word_embeddings=True, initializer_range=0.3)
    (folder / "run").mkdir()
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> RunOnDisk:
    spec = started_spec(folder / "base", folder / "corpus", AdapterTable(rank=4, alpha=64))
    return make_run(folder / "run", spec, rounds=2)


def answered(loaded: LoadedModel, text: str, manner: Manner = GREEDY) -> str:
    out = io.StringIO()
    said = Conversation(loaded=loaded, manner=manner, out=out).answer(text)
    assert out.getvalue().endswith("\n")
    return said


def greedy(loaded: LoadedModel) -> list[int]:
    """Tokens after "hello"; as a text bytes that are no letters would be alike."""
    return continued(loaded.model, list(b"hello"), tokens=8, context=loaded.context, end=loaded.end)


def files_in(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_peers_folder_a_checkpoint_and_exports_say_the_same(run: RunOnDisk, tmp_path: Path) -> None:
    """To the token, and other than the base does; a peer's folder is only read."""
    head = bytes.fromhex((run.directory / "HEAD").read_text().split()[1])
    capture = run.trainer.checkpoint(head)
    taken = Checkpoints(run.directory / "checkpoints").write(capture)
    for what in ("adapter", "merged", "base"):
        export(run.directory, tmp_path / what, what=what)  # type: ignore[arg-type]
    before = files_in(run.directory)
    said = greedy(load_model(run.directory))
    assert files_in(run.directory) == before
    for each in (taken, tmp_path / "adapter", tmp_path / "merged"):
        assert greedy(load_model(each)) == said
    assert greedy(load_model(tmp_path / "base")) != said
    assert load_model(run.directory).name == "micro, round 2"


def test_a_run_without_a_start_is_talked_to(folder: Path, tmp_path: Path) -> None:
    spec = small_spec(folder / "corpus", "gpt2")
    (tmp_path / "run").mkdir()
    run = make_run(tmp_path / "run", spec, rounds=1)
    loaded = load_model(run.directory)
    assert (loaded.context, loaded.end) == (16, 256)
    theta = torch.cat(list(run.trainer.anchor.theta))
    assert torch.equal(FlatParameters(loaded.model).new(), theta)
    # Longer than the model reads: the end of it counts.
    assert answered(loaded, "x" * 40 + "abcdefghij") == answered(loaded, "y" * 40 + "abcdefghij")


def test_a_greedy_answer_is_the_likeliest_token_each_time(run: RunOnDisk) -> None:
    """With a cache or without, and it ends before the end of a text."""
    model: Any = load_model(run.directory).model
    ids = [104, 105]
    found = continued(model, ids, tokens=8, context=16, end=256)
    for token in found:
        with torch.no_grad():
            best = int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax())
        assert token == best
        ids.append(token)
    assert len(found) == 8
    assert continued(model, [104, 105], tokens=8, context=16, end=found[3]) == found[:3]
    assert continued(model, [], tokens=1, context=16, end=256) == continued(model, [256], tokens=1, context=16, end=256)


def test_it_ends_when_it_is_asked_to(run: RunOnDisk) -> None:
    model = load_model(run.directory).model
    left = iter([False, False, True])
    assert len(continued(model, [104], tokens=8, context=16, end=256, stop=lambda: next(left))) == 3


def test_a_higher_temperature_draws(run: RunOnDisk) -> None:
    loaded = load_model(run.directory)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        said = {answered(loaded, "hello", Manner(temperature=5.0, tokens=6)) for _ in range(4)}
    assert len(said) == 4


@pytest.mark.outside
def test_turns_are_remembered_until_they_have_no_room(folder: Path, tmp_path: Path) -> None:
    """By the tokenizer's own template; without one each text stands alone."""
    publish(tmp_path / "model", initializer_range=0.3)
    (tmp_path / "model" / "chat_template.jinja").write_text(TEMPLATE)
    talk = Conversation(loaded=load_model(tmp_path / "model"), manner=GREEDY, out=io.StringIO())
    first = talk.answer("one")
    assert [turn["content"] for turn in talk.turns] == ["one", first]
    assert talk.loaded.talks is not None
    assert talk.loaded.talks.prompt(talk.turns) == list(f"u:one|a:{first}|a:".encode())
    talk.answer("two")
    assert [turn["role"] for turn in talk.turns] == ["user", "assistant"] * 2
    talk.answer("x" * 30)
    assert talk.turns[0]["content"] == "x" * 30
    plain = Conversation(loaded=load_model(folder / "base"), manner=GREEDY, out=io.StringIO())
    assert plain.answer("one") == plain.answer("one")


def test_nothing_that_a_terminal_obeys_is_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, out = load_model(folder / "base"), io.StringIO()
    found = iter(b"a\x1b[2Jb\nc")

    def speak(model: Any, ids: list[int], *, streamer: Any, **manner: Any) -> list[int]:
        streamer.put(torch.tensor([ids]))
        said = list(found)
        for token in said:
            streamer.put(torch.tensor([token]))
        streamer.end()
        return said

    monkeypatch.setattr("peer.tools.chat.conversation.continued", speak)
    Conversation(loaded=loaded, manner=GREEDY, out=out).answer("x")
    assert out.getvalue() == "a\N{REPLACEMENT CHARACTER}[2Jb\nc\n"


def test_what_is_no_model_is_one_line(run: RunOnDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder, an empty one, an export without weights, a damaged adapter, a checkpoint that lost a byte."""
    export(run.directory, tmp_path / "adapter", what="adapter")
    (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(b"")
    (tmp_path / "whole").mkdir()
    shutil.copy(run.directory / "spec.toml", tmp_path / "whole" / "config.json")
    taken = Checkpoints(run.directory / "checkpoints").write(run.trainer.checkpoint(bytes(32)))
    (taken / "rest.safetensors").write_bytes(b"")
    for place, words in (
        (tmp_path / "nowhere", "nowhere is no folder"),
        (tmp_path, "holds no run that has begun"),
        (tmp_path / "whole", "whole holds no model that transformers can load"),
        (tmp_path / "adapter", "adapter holds no adapter of micro"),
        (taken, "is damaged .*rest.safetensors"),
    ):
        with pytest.raises(BadInput, match=words) as caught:
            load_model(place)
        assert "\n" not in str(caught.value)
    monkeypatch.setenv(start_blob.CACHE, str(tmp_path / "elsewhere"))
    with pytest.raises(BadInput, match="from which micro starts, is not in "):
        load_model(run.directory)


@pytest.mark.outside
def test_the_command_answers_and_ends(run: RunOnDisk, tmp_path: Path) -> None:
    """`homefires chat`, as a person runs it: one answer, lines that are typed, and a folder that is none."""

    def homefires(*arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tui", "chat", *arguments]
        return subprocess.run(
            command, input=typed, capture_output=True, encoding="utf-8", timeout=HANG_S, check=False
        )  # fmt: skip

    greedy = (str(run.directory), "--temperature", "0", "--tokens", "6")
    once = homefires(*greedy, "--prompt", "hello")
    assert (once.returncode, once.stderr) == (0, "")
    typed = homefires(*greedy, typed="hello\n\nhello\n")
    assert (typed.returncode, typed.stdout, typed.stderr) == (0, 2 * once.stdout, "")
    none = homefires(str(tmp_path / "nowhere"))
    assert (none.returncode, none.stdout) == (2, "")
    assert none.stderr == f"homefires: {tmp_path / 'nowhere'} is no folder; name the folder of a peer\n"
    assert homefires(*greedy, "--temperature", "-1").stderr == "homefires: --temperature is -1; use 0 to 10\n"


def test_words_for_the_program_do_not_go_to_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    lines = iter(["/help", "hello", " ", "/quit", "never read"])
    assert list(_typed(lambda mark: next(lines))) == ["hello"]
    assert "To end: Ctrl-D, or /quit" in capsys.readouterr().err
