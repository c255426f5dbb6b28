"""What is taken away of a run that starts from a model: its adapter, both as one, the model itself; and to where."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
import yaml
from huggingface_hub.errors import HfHubHTTPError
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from dht.errors import BadInput, Unreachable
from peer.node.store import start_blob
from peer.schema.spec_fields import AdapterTable
from peer.tools.export import hub_upload
from peer.tools.export.folder import export
from peer.tools.export.progress import ExportProgress
from peer.training.train.backend import held_out_loss
from tests.open_models import publish
from tests.peer.tools.export.run_on_disk import RunOnDisk, make_run, small_spec, write_corpus
from tests.peer.tools.export.started_run import started_spec
from tests.talks import on_talks_and_letters

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a corpus and a base."""
    folder = tmp_path_factory.mktemp("forms")
    write_corpus(folder / "corpus")
    publish(folder / "base", tie_word_embeddings=True, initializer_range=0.1)
    return folder


@pytest.fixture
def adapted(folder: Path, tmp_path: Path) -> RunOnDisk:
    table = AdapterTable(rank=4, alpha=8)
    (tmp_path / "run").mkdir()
    return make_run(tmp_path / "run", started_spec(folder / "base", folder / "corpus", table), rounds=2)


def loss_of(model: Any, run: RunOnDisk) -> float:
    """On the tokens that the peer measures on."""
    assert run.trainer._review is not None
    return held_out_loss(model, run.trainer._review.held_out.tokens[0], CPU)


def measured(run: RunOnDisk) -> float:
    found = run.trainer.evaluate()
    assert found is not None
    return found.loss


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # by peft
def test_the_adapter_loads_in_plain_peft_and_merged_in_plain_transformers(
    adapted: RunOnDisk, folder: Path, tmp_path: Path
) -> None:
    """Both have the run's held-out loss, to 1e-4, which is not the base's; and the embedding stays tied."""
    said = export(adapted.directory, tmp_path / "adapter", what="adapter")
    assert said.startswith(f"the adapter of round 2 of micro ({adapted.trainer.parameters:,} parameters) is in ")
    load: Any = AutoModelForCausalLM.from_pretrained
    peft: Any = PeftModel.from_pretrained(load(folder / "base"), tmp_path / "adapter")
    assert loss_of(peft, adapted) == pytest.approx(measured(adapted), abs=1e-4)
    assert abs(loss_of(load(folder / "base"), adapted) - measured(adapted)) > 1e-3
    export(adapted.directory, tmp_path / "merged")
    merged = load(tmp_path / "merged")
    assert loss_of(merged, adapted) == pytest.approx(measured(adapted), abs=1e-4)
    assert merged.get_output_embeddings().weight is merged.get_input_embeddings().weight
    assert "lm_head.weight" not in load_file(tmp_path / "merged" / "model.safetensors")
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path / "merged")
    assert (tokenizer("ab")["input_ids"], tokenizer.model_max_length) == ([97, 98], 16)


def test_a_base_in_bfloat16_is_merged_in_float32(folder: Path, tmp_path: Path) -> None:
    """Or the adapter's small steps would be lost between two numbers of eight bits."""
    (tmp_path / "run").mkdir()
    spec = started_spec(folder / "base", folder / "corpus", AdapterTable(rank=4, base="bfloat16", trains="b"))
    run = make_run(tmp_path / "run", spec, rounds=1)
    export(run.directory, tmp_path / "out")
    load: Any = AutoModelForCausalLM.from_pretrained
    merged, base = load(tmp_path / "out"), load(folder / "base")
    assert merged.dtype == torch.float32
    after = merged.model.layers[0].mlp.up_proj.weight
    before = base.model.layers[0].mlp.up_proj.weight.to(torch.bfloat16).float()
    assert 0 < (after - before).abs().max() < 0.1
    assert not torch.equal(after, after.to(torch.bfloat16).float())


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # by peft
def test_an_adapter_is_merged_into_the_base_as_it_is_published(folder: Path, tmp_path: Path) -> None:
    """Where peers had it in 4 bits: what was rounded for their devices is in nobody's model."""
    (tmp_path / "run").mkdir()
    spec = started_spec(folder / "base", folder / "corpus", AdapterTable(rank=4, base="nf4", scale="root"))
    run = make_run(tmp_path / "run", spec, rounds=1)
    export(run.directory, tmp_path / "out")
    export(run.directory, tmp_path / "adapter", what="adapter")
    load: Any = AutoModelForCausalLM.from_pretrained
    merged, base = load(tmp_path / "out"), load(folder / "base")
    assert torch.equal(merged.model.norm.weight, base.model.norm.weight)
    after, before = (each.model.layers[0].mlp.up_proj.weight for each in (merged, base))
    spread = torch.linalg.svdvals(after - before)  # a rounded base would differ in all directions
    assert spread[4] < 1e-4 * spread[0]
    peft: Any = PeftModel.from_pretrained(base, tmp_path / "adapter")
    assert loss_of(peft, run) == pytest.approx(loss_of(merged, run), abs=1e-4)


@pytest.mark.outside
def test_the_base_is_as_it_was(adapted: RunOnDisk, folder: Path, tmp_path: Path) -> None:
    """To the bit."""
    said = export(adapted.directory, None, what="base")
    out = adapted.directory / "export-round-2-base"
    assert said.endswith(f" is in {out}")
    assert said.startswith("the model from which the run starts, of micro (")
    ours, theirs = (load_file(each / "model.safetensors") for each in (out, folder / "base"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert "as it was before any training there" in (out / "README.md").read_text()


def test_a_whole_run_from_a_model_is_written_with_its_tokenizer(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    run = make_run(tmp_path / "run", started_spec(folder / "base", folder / "corpus", None), rounds=1)
    export(run.directory, tmp_path / "out")
    load: Any = AutoModelForCausalLM.from_pretrained
    assert loss_of(load(tmp_path / "out"), run) == pytest.approx(measured(run), abs=1e-5)
    assert (tmp_path / "out" / "tokenizer.json").exists()
    card = (tmp_path / "out" / "README.md").read_text()
    assert "parameters, continued from `base`, trained with homefires by 2 peers" in card
    with pytest.raises(BadInput, match="micro trains the whole model, without an adapter; leave --what merged away"):
        export(run.directory, tmp_path / "other", what="merged")


def test_the_card_says_what_the_adapter_belongs_to(adapted: RunOnDisk, tmp_path: Path) -> None:
    export(adapted.directory, tmp_path / "out", what="adapter")
    _, front, body = (tmp_path / "out" / "README.md").read_text().split("---\n", 2)
    assert (yaml.safe_load(front)["library_name"], "base_model" in yaml.safe_load(front)) == ("peft", False)
    assert adapted.spec.start is not None
    for fact in (
        f"An adapter (LoRA of rank 4) with {adapted.trainer.parameters:,} parameters for `base`, trained with",
        f"| digest of the base (of its parameters and tokenizer) | `{adapted.spec.start.digest}` |",
        "| adapter | LoRA of rank 4, α 8, beside all; A and B; base in float32, dropout 0 |",
        'model = PeftModel.from_pretrained(model, "THIS_FOLDER")',
    ):
        assert fact in body
    own = (tmp_path / "out" / "MEASURED.md").read_text()
    assert f"Held-out loss of this round: **{measured(adapted):.4f} nats per token**" in own
    assert "This peer measured before: " in own


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # by peft
def test_an_adapter_of_a_part_is_for_that_part_alone(folder: Path, tmp_path: Path) -> None:
    """Beside a model that sees, too, peft would change nothing, and say so in a log."""
    publish(tmp_path / "base", "gemma3_text", num_key_value_heads=2, head_dim=16, initializer_range=0.1)
    spec = started_spec(tmp_path / "base", folder / "corpus", AdapterTable(rank=2))
    assert spec.start is not None
    start = dataclasses.replace(spec.start, model="some/base", revision="0" * 40)
    (tmp_path / "run").mkdir()
    run = make_run(tmp_path / "run", dataclasses.replace(spec, start=start), rounds=1)
    export(run.directory, tmp_path / "out", what="adapter")
    assert not json.loads((tmp_path / "out" / "adapter_config.json").read_text())["base_model_name_or_path"]
    card = (tmp_path / "out" / "README.md").read_text()
    assert "pretrained=FOLDER_OF_THE_BASE,peft=THIS_FOLDER" in card
    assert 'AutoModelForCausalLM.from_pretrained("FOLDER_OF_THE_BASE")' in card
    assert "`homefires export --what base` writes the base that it belongs to." in card
    export(run.directory, tmp_path / "of the base", what="base")
    load: Any = AutoModelForCausalLM.from_pretrained
    peft: Any = PeftModel.from_pretrained(load(tmp_path / "of the base"), tmp_path / "out")
    assert loss_of(peft, run) == pytest.approx(measured(run), abs=1e-4)


def test_a_base_at_the_hub_and_a_mix_are_named(folder: Path, tmp_path: Path) -> None:
    """By the front matter as well, which the Hub reads; and the loss of each source."""
    spec = started_spec(folder / "base", folder / "corpus", AdapterTable(rank=2))
    assert spec.start is not None
    start = dataclasses.replace(spec.start, model="some/base", revision="0" * 40)
    model = dataclasses.replace(
        spec.model, tokenizer="bytes", context=32
    )  # that of the base has no template for conversations
    (tmp_path / "run").mkdir()
    mixed = on_talks_and_letters(dataclasses.replace(spec, model=model, start=start), tmp_path / "in")
    run = make_run(tmp_path / "run", mixed, rounds=1)
    export(run.directory, tmp_path / "out", what="adapter")
    _, front, body = (tmp_path / "out" / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(front)["base_model"] == "some/base"
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("some/base", "0" * 40)
    measured = run.trainer.evaluate()
    assert measured is not None
    for fact in (
        "for [some/base](https://huggingface.co/some/base), trained with homefires",
        f"| revision of the base | `{'0' * 40}` |",
        "| data | talks (33.3 %): files of each peer's machine, `talks`, conversations, of which answers alone are "
        "predicted; letters (66.7 %): files of each peer's machine, `letters` |",
        'model = AutoModelForCausalLM.from_pretrained("some/base")',
    ):
        assert fact in body
    said = f"By source: talks {measured.by_source['talks']:.4f}, letters {measured.by_source['letters']:.4f}."
    assert said in (tmp_path / "out" / "MEASURED.md").read_text()


def test_what_a_run_does_not_have_is_refused(
    adapted: RunOnDisk, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a base that is not on this machine."""
    (tmp_path / "random").mkdir()
    random = make_run(tmp_path / "random", small_spec(folder / "corpus", "llama"), rounds=1)
    for what, words in (("adapter", "leave --what adapter away"), ("base", "and so has no base")):
        with pytest.raises(BadInput, match=words):
            export(random.directory, tmp_path / "out", what=what)  # type: ignore[arg-type]
    monkeypatch.setenv(start_blob.CACHE, str(tmp_path / "elsewhere"))
    with pytest.raises(BadInput, match=r"the model 'base', from which micro starts, is not in .*elsewhere"):
        export(adapted.directory, tmp_path / "out")
    assert not (tmp_path / "out").exists()


class FakeApi:
    """huggingface.co, as far as a push asks it."""

    asked: list[tuple[str, str]]
    fault: Exception | None = None

    def create_repo(self, name: str, exist_ok: bool) -> None:
        assert exist_ok
        if self.fault is not None:
            raise self.fault
        self.asked.append(("create", name))

    def upload_folder(self, repo_id: str, folder_path: Path, commit_message: str) -> None:
        self.asked += [(commit_message, repo_id), *((path.name, "") for path in sorted(folder_path.iterdir()))]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    fake = FakeApi()
    fake.asked = []
    monkeypatch.setattr(hub_upload, "HfApi", lambda: fake)
    monkeypatch.setattr(hub_upload, "get_token", lambda: "a login")
    return fake


def test_a_push_uploads_what_was_written(adapted: RunOnDisk, tmp_path: Path, api: FakeApi) -> None:
    told: list[str] = []
    said = export(
        adapted.directory, tmp_path / "out", what="adapter", push_to="me/mine", progress=ExportProgress(told.append)
    )
    assert [line.split()[0] for line in told] == ["reading", "writing", "uploading"]
    assert re.fullmatch(r"uploading [0-9.]+ [kM]B to me/mine", told[-1])
    assert said.endswith(f" is in {tmp_path / 'out'} and at https://huggingface.co/me/mine")
    assert api.asked[:2] == [("create", "me/mine"), ("the adapter of round 2 of micro", "me/mine")]
    assert {"adapter_model.safetensors", "adapter_config.json", "README.md"} <= {name for name, _ in api.asked}


def test_a_push_without_a_login_is_refused_before_any_work(
    adapted: RunOnDisk, tmp_path: Path, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadInput, match=r"--push is 'mine'; name OWNER/NAME at huggingface.co"):
        export(adapted.directory, tmp_path / "out", push_to="mine")
    monkeypatch.setattr(hub_upload, "get_token", lambda: None)
    with pytest.raises(BadInput, match=r"--push me/mine needs a login at huggingface.co; log in with `hf auth login`"):
        export(adapted.directory, tmp_path / "out", push_to="me/mine")
    assert not (tmp_path / "out").exists()


def test_a_push_that_fails_leaves_the_folder(adapted: RunOnDisk, tmp_path: Path, api: FakeApi) -> None:
    """One line, whatever the reason was."""
    response = httpx2.Response(403, request=httpx2.Request("POST", "https://huggingface.co/api/repos/create"))
    for number, (fault, kind, words) in enumerate(
        (
            (
                HfHubHTTPError("403 Forbidden\nmore", response=response),
                BadInput,
                r"refuses me/mine \(403 Forbidden\); it",
            ),
            (httpx2.ConnectError("no route"), Unreachable, "huggingface.co cannot be reached; .* can be pushed later"),
        )
    ):
        api.fault = fault
        with pytest.raises(kind, match=words) as caught:
            export(adapted.directory, tmp_path / f"out-{number}", what="adapter", push_to="me/mine")
        assert "\n" not in str(caught.value)
        assert (tmp_path / f"out-{number}" / "README.md").exists()
