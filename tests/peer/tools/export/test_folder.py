"""A model that is taken away: what plain transformers make of it, what its card says, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from dht.errors import BadInput, DiskFull, RunMismatch
from peer.schema import spec as specs
from peer.testing.child_process import HANG_S
from peer.tools.audit.statement import credit
from peer.tools.export.folder import export
from peer.training.data import tokenizer as tokenizer_module
from peer.training.data.data_shards import is_held_out
from peer.training.data.source import spread
from peer.training.model.build import build
from peer.training.model.flat_parameters import FlatParameters
from tests.peer.tools.export.run_on_disk import CONFIGS, ROUNDS, STEPS, RunOnDisk, make_run, small_spec, write_corpus
from tests.peer.training.data.read_whole import read_files
from tests.vectors import whole


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts") / "corpus"
    write_corpus(folder)
    return folder


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> RunOnDisk:
    """A llama after three rounds; tests that change the directory take a copy."""
    return make_run(tmp_path_factory.mktemp("run"), small_spec(corpus, "llama"))


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*address: object) -> None:
        raise AssertionError(f"a connection to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def copied(run: RunOnDisk, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run.directory, tmp_path / "peer"))


def loss_by_plain_transformers(folder: Path, run: RunOnDisk) -> float:
    """Nats per token of the model in `folder` on the held-out documents of the run, each closed by end-of-text."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    table, context = run.spec.data, run.spec.model.context
    ids: list[int] = []
    for document in read_files(table.path, table.text_field):
        if is_held_out(document.name, table.held_out_every):
            ids += [*tokenizer(document.text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    tokens_BT = torch.from_numpy(spread(np.asarray(ids, np.int32), table.eval_sequences, context))
    with torch.no_grad():
        logits_BTV = model(input_ids=tokens_BT[:, :-1]).logits
        return float(functional.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten()))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_the_exported_models_held_out_loss_is_the_anchors(
    architecture: str, corpus: Path, tmp_path: Path, no_network: None
) -> None:
    """Computed by plain transformers, offline, from the exported folder and the text itself: equal to 1e-5."""
    run = make_run(tmp_path, small_spec(corpus, architecture))
    export(run.directory, tmp_path / "out")
    anchors = run.trainer.evaluate().loss
    assert loss_by_plain_transformers(tmp_path / "out", run) == pytest.approx(anchors, abs=1e-5)
    assert not whole(run.trainer.anchor.theta).equal(FlatParameters(build(run.spec)).new())


@pytest.mark.slow
def test_an_untied_head_travels_too(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As does a tokenizer that is not bytes."""
    words = Tokenizer(models.WordLevel({"<end>": 0, "?": 1} | {"aeiou"[n]: n + 2 for n in range(5)}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    make: Any = PreTrainedTokenizerFast
    make(tokenizer_object=words, eos_token="<end>", unk_token="?").save_pretrained(tmp_path / "words")
    monkeypatch.setattr(tokenizer_module, "download", lambda name: tmp_path / "words")
    config = CONFIGS["llama"] | {"vocab_size": 7, "tie_word_embeddings": False}
    spec = small_spec(corpus, "llama", tokenizer="some/words", config=config)
    run = make_run(tmp_path, spec, rounds=1)
    export(run.directory, tmp_path / "out")
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("axu")["input_ids"] == [2, 1, 6]
    assert tokenizer.model_max_length == 16
    assert loss_by_plain_transformers(tmp_path / "out", run) == pytest.approx(run.trainer.evaluate().loss, abs=1e-5)


def test_generation_ends_where_texts_end(run: RunOnDisk, tmp_path: Path) -> None:
    """The token that closed the documents; the cache is on."""
    export(run.directory, tmp_path / "out")
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert (model.generation_config.eos_token_id, model.config.eos_token_id, model.config.use_cache) == (256, 256, True)
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.eos_token_id == 256

    def always_end(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, float("-inf")).index_fill(1, torch.tensor([256]), 0.0)

    inputs = tokenizer(["ab"], return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=3, logits_processor=[always_end])
    assert ids.tolist() == [[97, 98, 256]]
    assert tokenizer.decode(ids[0], skip_special_tokens=True) == "ab"


def test_the_card_says_what_was_recorded(run: RunOnDisk, tmp_path: Path) -> None:
    """Figures of the chain and of the spec; front matter that parses."""
    said = export(run.directory, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    _, front, body = card.split("---\n", 2)
    matter = yaml.safe_load(front)
    assert (matter["library_name"], matter["pipeline_tag"]) == ("transformers", "text-generation")
    tokens_each = ROUNDS * STEPS * 2 * 16
    measured = run.trainer.evaluate()
    loss, tokens = measured.loss, measured.tokens
    head = (run.directory / "HEAD").read_text().split()[1]
    for fact in (
        "# micro, round 3",
        f"with {run.trainer.parameters:,} parameters, trained with homefires by 2 peers:",
        f"| spec hash | `{run.spec.digest().hex()}` |",
        "| rounds | 3 of 8 |",
        f"| digest of the model in the chain | `{head}` |",
        f"`{run.trainer.anchor.state_digest().hex()}` |",
        f"| tokens | {2 * tokens_each:,}, over all rounds and peers |",
        f"| data | files of each peer's machine, `{run.spec.data.path}` |",
        "| inner optimizer | AdamW, β (0.9, 0.95); weight decay 0.1 on matrices, gradients clipped to norm 1 |",
        "| learning rate | 0.01, after 20 steps of linear warm-up, falling to 0.001 along a cosine over 8 rounds |",
        "| inner steps per round (H) | 40 (1 in the first 1, then growing over 2 rounds) |",
        "| outer optimizer | Nesterov SGD, learning rate 0.7, momentum 0.5, growing over 4 rounds |",
        "| contributions | int8, weighted by tokens |",
        "lm_eval --model hf --model_args pretrained=THIS_FOLDER --tasks ",
        *(f"| {peer} | {ROUNDS} | {given.tokens} |" for peer, given in credit(run.directory).tally.credits.items()),
    ):
        assert fact in body
    own = (tmp_path / "out" / "MEASURED.md").read_text()
    assert f"Held-out loss of this round: **{loss:.4f} nats per token**, over {tokens:,} tokens of the one in 4" in own
    assert "The peer reported the same state when the round was committed." in own
    assert specs.load(str(tmp_path / "out" / "spec.toml")).digest() == run.spec.digest()
    assert said == f"round 3 of micro ({run.trainer.parameters:,} parameters) is in {tmp_path / 'out'}"


def test_a_card_without_events_claims_no_loss(copied: Path, tmp_path: Path) -> None:
    """Nor that anybody reported the state. A loss of an earlier round is called that."""
    lines = (copied / "events.jsonl").read_text().splitlines(keepends=True)
    (copied / "events.jsonl").write_text("".join(lines[:2]))
    export(copied, tmp_path / "old")
    assert "Held-out loss of round 1 (this is round 3): **" in (tmp_path / "old" / "MEASURED.md").read_text()
    (copied / "events.jsonl").unlink()
    export(copied, tmp_path / "none")
    card = (tmp_path / "none" / "MEASURED.md").read_text()
    assert "This peer measured no held-out loss." in card
    assert "reported" not in card
    for name in ("README.md", "model.safetensors", "config.json", "spec.toml"):
        assert (tmp_path / "none" / name).read_bytes() == (tmp_path / "old" / name).read_bytes(), "alike from all peers"


def test_a_loss_on_a_branch_that_was_left_is_not_the_models(copied: Path, run: RunOnDisk, tmp_path: Path) -> None:
    """The peer changed sides after it had measured, and measured the same round again."""
    lines = (copied / "events.jsonl").read_text().splitlines(keepends=True)
    last = json.loads(lines[-2])
    assert (last["type"], last["round"]) == ("RoundCommitted", ROUNDS)
    other = json.dumps(last | {"digest": "0" * 64}) + "\n"
    lost = json.dumps(json.loads(lines[-1]) | {"loss": 1.25}) + "\n"
    (copied / "events.jsonl").write_text("".join([*lines[:-2], other, lost, *lines[-2:]]))
    export(copied, tmp_path / "healed")
    loss = run.trainer.evaluate().loss
    assert f"Held-out loss of this round: **{loss:.4f} " in (tmp_path / "healed" / "MEASURED.md").read_text()
    (copied / "events.jsonl").write_text("".join([*lines[:-2], other, lost]))
    export(copied, tmp_path / "unmeasured")
    assert "Held-out loss of round 2 (this is round 3)" in (tmp_path / "unmeasured" / "MEASURED.md").read_text()


def test_exporting_only_adds_one_folder(copied: Path) -> None:
    """The peer may be at work: every other file stays as it is, and no scratch is left."""
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    assert export(copied, None).endswith(f"is in {copied / 'export-round-3'}")
    after = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    assert {path: after[path] for path in before} == before
    assert {path.relative_to(copied).parts[0] for path in after.keys() - before.keys()} == {"export-round-3"}
    assert [path.name for path in copied.glob(".*")] == []


def test_an_existing_folder_is_refused(run: RunOnDisk, tmp_path: Path) -> None:
    """Whatever is in it; an empty one is used."""
    (tmp_path / "empty").mkdir()
    export(run.directory, tmp_path / "empty")
    with pytest.raises(BadInput, match=r"empty exists already; name a new folder with --to"):
        export(run.directory, tmp_path / "empty")


def test_what_is_no_run_is_one_clear_line(run: RunOnDisk, tmp_path: Path) -> None:
    """No folder, an empty one, a demo's, and a run without a round."""
    with pytest.raises(BadInput, match="missing is no folder; name the folder of a peer"):
        export(tmp_path / "missing", None)
    with pytest.raises(BadInput, match="holds no run that has begun"):
        export(tmp_path, None)
    with pytest.raises(BadInput, match="holds no run that has begun; look at one of peer-1 in it"):
        export(run.directory.parent, None)
    bootstrap = tmp_path / "bootstrap"
    bootstrap.mkdir()
    shutil.copy(run.directory / "genesis", bootstrap)
    with pytest.raises(BadInput, match="bootstrap is the folder of a bootstrap node"):
        export(bootstrap, None)
    shutil.copytree(run.directory, tmp_path / "young")
    (tmp_path / "young" / "HEAD").unlink()
    for block in (tmp_path / "young" / "chain").glob("*.block"):
        block.unlink()
    with pytest.raises(BadInput, match=r"no round of micro was committed in .*young yet"):
        export(tmp_path / "young", None)


def test_damage_is_found(copied: Path) -> None:
    """A flipped byte of a mean, a missing one, a cut block, another spec: one line, and no folder."""
    objects = sorted((copied / "chain" / "objects").iterdir())
    payload = objects[0].read_bytes()
    objects[0].write_bytes(bytes([payload[0] ^ 1]) + payload[1:])
    expect_refused(copied, BadInput, f"{objects[0].name} is damaged")
    objects[0].unlink()
    expect_refused(copied, BadInput, f"{objects[0].name} is gone")
    objects[0].write_bytes(payload)
    block = copied / "chain" / "000002.block"
    packed = block.read_bytes()
    block.write_bytes(packed[: len(packed) // 2])
    expect_refused(copied, BadInput, "000002.block is damaged")
    block.write_bytes((copied / "chain" / "000003.block").read_bytes())
    expect_refused(copied, BadInput, "000002.block is damaged .it does not follow the block before")
    block.unlink()
    expect_refused(copied, BadInput, "000002.block is gone")
    block.write_bytes(packed)
    pointer = (copied / "HEAD").read_text()
    (copied / "HEAD").write_text(f"3 {'0' * 64}\n")
    expect_refused(copied, BadInput, "HEAD is damaged .it names another model than the last block")
    (copied / "HEAD").write_text(pointer)
    spec = (copied / "spec.toml").read_text()
    (copied / "spec.toml").write_text(spec.replace("seed = 1", "seed = 2"))
    expect_refused(copied, RunMismatch, "is not the spec of the run")
    (copied / "spec.toml").write_text(spec)
    export(copied, None)


def test_a_state_that_the_peer_did_not_have_is_refused(copied: Path, run: RunOnDisk) -> None:
    """What it reported when it committed the round is compared with what the replay gives."""
    events = copied / "events.jsonl"
    state = run.trainer.anchor.state_digest().hex()
    events.write_text(events.read_text().replace(state, "0" * 64))
    expect_refused(
        copied, RunMismatch, f"gives the state {state[:12]}; the peer that trained there reported 000000000000"
    )


def test_a_full_disk_leaves_nothing(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a half-written folder nor a scratch."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 10**6))  # type: ignore[attr-defined]
    expect_refused(
        copied, DiskFull, r"has room for 1\.0 MB; the model takes 43\.3 kB, and what lies beside it up to 67\.1 MB"
    )


@pytest.mark.outside
def test_the_command_works_offline_and_fails_in_one_line(run: RunOnDisk, tmp_path: Path) -> None:
    """`homefires export`, as a person runs it."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "XDG_DATA_HOME": str(tmp_path / "data")}

    def homefires(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tui", "export", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_S, check=False)

    told = homefires(str(run.directory), "--to", str(tmp_path / "out"))
    assert told.returncode == 0
    assert [line.split()[:2] for line in told.stderr.splitlines()] == [["export:", "reading"], ["export:", "writing"]]
    assert told.stdout.endswith(f"is in {tmp_path / 'out'}\n")
    assert len({path.stat().st_mode for path in (tmp_path / "out").iterdir()}) == 1
    told = homefires(str(tmp_path / "nowhere"))
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr == f"homefires: {tmp_path / 'nowhere'} is no folder; name the folder of a peer\n"


def expect_refused(directory: Path, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        export(directory, None)
    assert "\n" not in str(caught.value)
    assert [path.name for path in directory.iterdir() if "export" in path.name] == []
