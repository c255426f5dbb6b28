"""Where a model stops and how it is drawn from: as its start did, and at the token that closed answers in training."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from dht.errors import BadSpec
from peer.schema.spec_fields import AdapterTable
from peer.tools.chat.conversation import Conversation, Manner
from peer.tools.chat.loaded_model import load_model
from peer.tools.export.folder import export
from peer.training.data.tokenizer import HubTokenizer
from peer.training.model.continuation import continued
from peer.training.model.generation import values_in
from peer.training.model.pretrained import adopt, find
from tests.open_models import publish
from tests.peer.tools.export.run_on_disk import make_run, write_corpus
from tests.peer.tools.export.started_run import started_spec
from tests.peer.training.data.test_chat_templates import letter_tokenizer

pytestmark = pytest.mark.outside

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role[0] ~ m.content ~ '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>a' }}{% endif %}"
)


@pytest.fixture
def base(tmp_path: Path) -> tuple[Path, HubTokenizer]:
    """A model that was tuned: it ends a turn with another token than a text, and has two stop tokens of its own."""
    tokenizer = letter_tokenizer(tmp_path / "base", TEMPLATE)
    (tmp_path / "saved").mkdir()
    publish(tmp_path / "saved", vocab_size=tokenizer.vocabulary, tie_word_embeddings=True, initializer_range=0.3)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "saved" / name).rename(tmp_path / "base" / name)
    said = {"eos_token_id": [5, 6], "do_sample": True, "temperature": 0.6, "top_k": 20, "custom_generate": "a/b"}
    (tmp_path / "base" / "generation_config.json").write_text(json.dumps(said))
    write_corpus(tmp_path / "corpus")
    return tmp_path / "base", tokenizer


@pytest.mark.parametrize("adapter", [pytest.param(None, marks=pytest.mark.nightly), AdapterTable(rank=2)])
def test_the_starts_stop_tokens_and_sampling_are_kept(
    adapter: AdapterTable | None, base: tuple[Path, HubTokenizer], tmp_path: Path
) -> None:
    """And the token that closes an answer stands among them; `chat` stops at each, in a peer's folder and an export."""
    folder, tokenizer = base
    (tmp_path / "run").mkdir()
    run = make_run(tmp_path / "run", started_spec(folder, tmp_path / "corpus", adapter), rounds=1)
    stops = {5, 6, tokenizer.closing, tokenizer.end_of_text}
    assert len(stops) == 4
    for what in (None,) if adapter is None else ("merged", "adapter"):
        export(run.directory, out := tmp_path / f"out {what}", what=what)  # type: ignore[arg-type]
        config: Any = GenerationConfig.from_pretrained(out)
        assert set(config.eos_token_id) == stops
        assert (config.do_sample, config.temperature, config.top_k) == (True, 0.6, 20)
        assert "custom_generate" not in (out / "generation_config.json").read_text()
        assert load_model(out).stops == stops
    assert load_model(run.directory).stops == stops


def test_chat_ends_at_the_token_that_closes_a_turn(base: tuple[Path, HubTokenizer], tmp_path: Path) -> None:
    """Also of a folder whose own stop tokens leave it out."""
    loaded = load_model(base[0])
    assert base[1].closing in loaded.stops
    plain = continued(loaded.model, [40, 41], tokens=8, context=16, end=loaded.end)
    stopped = continued(loaded.model, [40, 41], tokens=8, context=16, end=loaded.end, stops=[plain[3]])
    assert stopped == plain[: plain.index(plain[3])], "the likeliest token, whatever the model's own manner is"
    out = io.StringIO()
    talk = Conversation(loaded=loaded, manner=Manner(temperature=0.0, tokens=4), out=out)
    talk.answer("hi")
    assert loaded.talks is not None
    assert base[1].decode(loaded.talks.prompt(talk.turns[:1])) == "uhia"


def test_plain_transformers_stops_by_itself(base: tuple[Path, HubTokenizer], tmp_path: Path) -> None:
    folder, tokenizer = base
    (tmp_path / "run").mkdir()
    run = make_run(tmp_path / "run", started_spec(folder, tmp_path / "corpus", None), rounds=1)
    export(run.directory, tmp_path / "out")
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out")

    def always_close(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, float("-inf")).index_fill(1, torch.tensor([tokenizer.closing]), 0.0)

    ids = model.generate(torch.tensor([[40, 41]]), max_new_tokens=5, logits_processor=[always_close])
    assert ids.tolist() == [[40, 41, tokenizer.closing]]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("{", "is no JSON"), ("[]", "holds "), ('{"eos_token_id": ["a"]}', "eos_token_id in .* a whole number"),
        ('{"do_sample": true, "temperature": "x"}', "temperature in .* a number"),
        ('{"pad_token_id": -1}', "pad_token_id in"),
    ],
)  # fmt: skip
def test_values_that_nobody_can_use_are_refused_when_the_run_is_founded(
    said: str, why: str, base: tuple[Path, HubTokenizer]
) -> None:
    (base[0] / "generation_config.json").write_text(said)
    with pytest.raises(BadSpec, match=why):
        adopt(find(str(base[0])), {"context": 16})


def test_what_only_drawing_uses_is_left_out_where_nothing_is_drawn() -> None:
    """transformers would refuse to save it."""
    found = values_in(b'{"temperature": 0.6, "repetition_penalty": 1.1, "eos_token_id": 3}')
    assert found == {"repetition_penalty": 1.1, "eos_token_id": [3]}


def test_a_template_beside_the_model_comes_with_it(base: tuple[Path, HubTokenizer]) -> None:
    from peer.node.store import start_blob

    (base[0] / "mine.jinja").write_text(TEMPLATE)
    told = adopt(find(str(base[0])), {"context": 16}, "mine.jinja")
    assert start_blob.read_files(told["start"]["digest"])["mine.jinja"] == TEMPLATE.encode()
    with pytest.raises(BadSpec, match=r"data\.template is 'other\.jinja', which is no text"):
        adopt(find(str(base[0])), {"context": 16}, "other.jinja")


@pytest.mark.slow
def test_what_was_trained_on_conversations_answers_and_stops(base: tuple[Path, HubTokenizer], tmp_path: Path) -> None:
    """Two peers, two rounds, on one conversation: plain transformers says the answer, the token that closes it, and no
    more; so does `chat`. Before it said something else."""
    folder, tokenizer = base
    (tmp_path / "talks").mkdir()
    talk = {"messages": [{"role": "user", "content": "who"}, {"role": "assistant", "content": "me"}]}
    (tmp_path / "talks" / "a.jsonl").write_text(f"{json.dumps(talk)}\n" * 200)
    (tmp_path / "run").mkdir()
    spec = started_spec(folder, tmp_path / "talks", None)
    data = dataclasses.replace(spec.data, format="chat", held_out_by="name")
    run = make_run(tmp_path / "run", dataclasses.replace(spec, data=data), rounds=2, steps=60)
    export(run.directory, tmp_path / "out")
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    words: Any = AutoTokenizer.from_pretrained(tmp_path / "out")
    prompt = words.apply_chat_template(talk["messages"][:1], add_generation_prompt=True, return_dict=False)
    ids = model.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)[0, len(prompt) :].tolist()
    assert ids == [*tokenizer.encode("me").tolist(), tokenizer.closing]
    for place, said in ((tmp_path / "out", "me"), (run.directory, "me")):
        chat = Conversation(loaded=load_model(place), manner=Manner(temperature=0.0, tokens=8), out=io.StringIO())
        assert chat.answer("who") == said
    before = Conversation(loaded=load_model(folder), manner=Manner(temperature=0.0, tokens=8), out=io.StringIO())
    assert before.answer("who") != "me"
