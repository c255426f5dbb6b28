"""`homefires export --gguf`: what plain transformers reads out of the file is the exported model and its tokenizer."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from dht.errors import BadInput, BadSpec
from peer.schema.spec import RunSpec
from peer.tools.export.folder import export
from peer.tools.export.gguf_file import Digits
from peer.tools.export.gguf_vocabulary import PRE_TOKENIZERS, vocabulary_of
from peer.training.model.pretrained import adopt, filled_in, find
from tests.open_models import publish
from tests.peer.tools.export.run_on_disk import RunOnDisk, make_run, small_spec, write_corpus
from tests.peer.tools.export.started_run import started_spec

TEMPLATE = "{% for m in messages %}<|turn|>{{ m.content }}{% endfor %}"
SPLITS: dict[str, Any] = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
}


def split_as(name: str) -> Any:
    """The steps of a published tokenizer that llama.cpp has this name for."""
    if name in SPLITS:
        return SPLITS[name]
    pattern = Regex(PRE_TOKENIZERS[name][0]["pattern"]["Regex"])
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, "isolated"), by_bytes])


def tokenizer_of_texts(corpus: Path, split: Any, **of_model: Any) -> Any:
    """Byte-level BPE, trained on the corpus, with tokens that begin and end turns."""
    backend = Backend(models.BPE(**of_model))
    backend.pre_tokenizer, backend.decoder = split, decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train([*map(str, sorted(corpus.glob("*.txt"))[:4])], trainer)
    backend.add_tokens([AddedToken("<|turn|>", special=False)])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, bos_token="<|end|>", eos_token="<|end|>", chat_template=TEMPLATE
    )


PIECES = ("▁", *"abcdefghijklmnopqrstuvwxyz", "ab", "▁a", "▁ab", "cd", "bcd", "abcd", "▁▁", "▁abcd")
"""Of a vocabulary in SentencePiece's order, the best score first."""
PUTS_SPACE_FIRST = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])


def sentencepiece(normalizer: Any = PUTS_SPACE_FIRST, pre: Any = None, merges: int = 99) -> Any:
    """As transformers converts one of SentencePiece: every pair of each piece merges, piece after piece; or the first
    `merges` of them."""
    own = ["<unk>", "<s>", "</s>"]
    tokens = [*own, *(f"<0x{value:02X}>" for value in range(256)), *PIECES]
    pairs = [(text[:at], text[at:]) for text in PIECES for at in range(1, len(text))]
    known = [pair for pair in pairs if {*pair} <= {*PIECES}]
    backend = Backend(
        models.BPE(
            {text: number for number, text in enumerate(tokens)}, known[:merges], unk_token="<unk>", fuse_unk=True,
            byte_fallback=True,
        )
    )  # fmt: skip
    backend.normalizer, backend.pre_tokenizer = normalizer, pre
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in own])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE
    )


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts") / "corpus"
    write_corpus(folder)
    return folder


def spec_of(
    root: Path, corpus: Path, architecture: str, *, split: Any = SPLITS["gpt-2"], merging: dict[str, Any] | None = None,
    tokenizer: Any = None, **config: Any,
) -> RunSpec:  # fmt: skip
    """A run that starts from a model of this architecture, with this tokenizer or one of the corpus."""
    tokenizer = tokenizer or tokenizer_of_texts(corpus, split, **(merging or {}))
    publish(
        root / "base", architecture, num_key_value_heads=1, initializer_range=0.1, pad_token_id=0, vocab_size=304,
        **config,
    )  # fmt: skip
    tokenizer.save_pretrained(root / "base")
    return started_spec(root / "base", corpus, None)


def run_of(root: Path, *asked: Any, **more: Any) -> RunOnDisk:
    (root / "run").mkdir()
    return make_run(root / "run", spec_of(root, *asked, **more), rounds=1)


def exported(run: RunOnDisk, root: Path, digits: Digits) -> Path:
    export(run.directory, root / "out", gguf=digits)
    return root / "out" / f"model-{digits}.gguf"


def tensors_in(path: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("llama", {"tie_word_embeddings": True}),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 128}),  # which transformers assumes
    ],
)  # fmt: skip
def test_what_is_read_back_has_the_logits_and_tokens_of_the_folder(
    architecture: str, config: dict[str, Any], corpus: Path, tmp_path: Path
) -> None:
    path = exported(run_of(tmp_path, corpus, architecture, **config), tmp_path, "f32")
    load: Any = AutoModelForCausalLM.from_pretrained
    ours, theirs = load(path.parent), load(path.parent, gguf_file=path.name, dtype=torch.float32)
    tokens_BT = torch.arange(17)[None]
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens_BT).logits, ours(tokens_BT).logits, rtol=0, atol=1e-5)
    read: Any = AutoTokenizer.from_pretrained
    folder, file = read(path.parent), read(path.parent, gguf_file=path.name)
    assert file.encode("some words of the corpus") == folder.encode("some words of the corpus")
    fields = gguf.GGUFReader(path).fields
    assert fields["tokenizer.chat_template"].contents() == folder.chat_template == TEMPLATE
    assert fields["tokenizer.ggml.eos_token_id"].contents() == folder.eos_token_id
    start = find(str(path))
    assert adopt(start, {"tokenizer": "bytes"})["model"]["config"]["vocab_size"] == 304
    assert filled_in(start) == "", filled_in(start)


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_the_way_text_is_split_has_a_name(name: str, corpus: Path, tmp_path: Path) -> None:
    """And tokens have types: 3 are never text, 4 were added, 5 are those that a model has and its tokenizer has not."""
    merging = {"ignore_merges": name == "llama-bpe"}
    run = run_of(tmp_path, corpus, "llama", split=split_as(name), merging=merging)
    fields = gguf.GGUFReader(exported(run, tmp_path, "f16")).fields
    assert fields["tokenizer.ggml.pre"].contents() == name
    tokens, types = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "token_type"))
    kinds = dict(zip(tokens, types, strict=True))
    assert (kinds["<|end|>"], kinds["<|turn|>"], kinds["a"], kinds["[PAD303]"]) == (3, 4, 1, 5)


@pytest.mark.parametrize("normalizer", [PUTS_SPACE_FIRST, normalizers.Replace(" ", "▁")])
def test_a_tokenizer_of_sentencepiece_has_scores(normalizer: Any, corpus: Path, tmp_path: Path) -> None:
    """llama.cpp 0.3.36 of PyPI gave equal tokens for 200 strings with Mistral's vocabularies of 32,000 and 32,768."""
    run = run_of(tmp_path, corpus, "llama", tokenizer=sentencepiece(normalizer))
    path = exported(run, tmp_path, "f16")
    fields = {key.removeprefix("tokenizer.ggml."): field for key, field in gguf.GGUFReader(path).fields.items()}
    said = {key: fields[key].contents() for key in ("model", "tokens", "scores", "token_type", "add_space_prefix")}
    assert (said["model"], said["add_space_prefix"]) == ("llama", normalizer is PUTS_SPACE_FIRST)
    assert "merges" not in fields
    kinds = dict(zip(said["tokens"], said["token_type"], strict=True))
    names = ("<unk>", "<s>", "<0x0A>", "ab", "[PAD303]")
    assert [kinds[name] for name in names] == [2, 3, 6, 1, 5]
    scores = dict(zip(said["tokens"], said["scores"], strict=True))
    merged = [text for text in PIECES if len(text) > 1]
    assert sorted(merged, key=lambda text: -scores[text]) == merged
    assert (fields["add_bos_token"].contents(), fields["unknown_token_id"].contents()) == (True, 0)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"merges": 5}, "it has merges that no scores of tokens give, such as "),
        (
            {"normalizer": None, "pre": pre_tokenizers.Metaspace(prepend_scheme="first", split=False)},
            "does not know where the tokenizer of this run puts spaces",
        ),
        ({"normalizer": normalizers.NFKC()}, "does not know where the tokenizer of this run puts spaces"),
    ],
)  # fmt: skip
def test_where_scores_or_spaces_would_do_otherwise_it_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        vocabulary_of(sentencepiece(**given), 304)


def test_matrices_have_the_digits_that_were_asked_for_and_vectors_four_bytes(corpus: Path, tmp_path: Path) -> None:
    run = run_of(tmp_path, corpus, "llama", hidden_size=64, intermediate_size=80)
    wide = tensors_in(exported(run, tmp_path / "a", "f32"))
    for digits, within in (("f16", 1e-3), ("q8_0", 1e-2)):
        found = tensors_in(exported(run, tmp_path / digits, digits))  # type: ignore[arg-type]
        assert found["output_norm.weight"].tensor_type == gguf.GGMLQuantizationType.F32
        odd = found["blk.0.ffn_down.weight"]
        assert odd.tensor_type == gguf.GGMLQuantizationType.F16, "32 does not divide its rows"
        assert found["blk.0.ffn_up.weight"].tensor_type.name.lower() == digits
        for name, tensor in found.items():
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert np.abs(values - wide[name].data).max() <= within * np.abs(wide[name].data).max()


def test_rotary_frequencies_are_divided_as_in_training(corpus: Path, tmp_path: Path) -> None:
    """As Llama 3.1 stretches them: the fast ones not, the slow ones by the factor."""
    rope = {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }  # fmt: skip
    run = run_of(tmp_path, corpus, "llama", rope_parameters=rope, max_position_embeddings=256)
    factors = tensors_in(exported(run, tmp_path, "f32"))["rope_freqs.weight"].data
    assert factors[0] == pytest.approx(1.0)
    assert factors[-1] == pytest.approx(8.0)
    assert (np.diff(factors) >= -1e-5).all()
    with pytest.raises(BadSpec, match=r"rope_freqs\.weight, which scales rotary positions; begin with the folder"):
        adopt(find(str(tmp_path / "out" / "model-f32.gguf")), {})  # transformers would leave them out


@pytest.mark.parametrize(
    ("architecture", "config", "told"),
    [
        ("gemma", {"head_dim": 32}, "--gguf knows llama, mistral, qwen2, qwen3, and not gemma;"),
        ("mistral", {"sliding_window": 8}, "does not know a mistral with a sliding window"),
        ("llama", {"hidden_act": "gelu"}, "does not know a llama with another activation than silu"),
        ("qwen3", {"attention_bias": True, "head_dim": 32}, "does not know a qwen3 with biases of attention"),
    ],
)  # fmt: skip
def test_what_would_answer_nonsense_is_refused(
    architecture: str, config: dict[str, Any], told: str, corpus: Path, tmp_path: Path
) -> None:
    run = run_of(tmp_path, corpus, architecture, **config)
    with pytest.raises(BadInput, match=told):
        export(run.directory, tmp_path / "out", gguf="f16")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("split", "merging", "told"),
    [
        (pre_tokenizers.ByteLevel(use_regex=False), {}, "does not know how the tokenizer of this run splits text"),
        (split_as("llama-bpe"), {}, "does not know how the tokenizer of this run splits text"),
        (SPLITS["gpt-2"], {"byte_fallback": True}, "of this kind: it has bytes that are no tokens"),
    ],
)  # fmt: skip
def test_so_is_a_tokenizer_that_splits_text_in_another_way(
    split: Any, merging: dict[str, Any], told: str, corpus: Path, tmp_path: Path
) -> None:
    run = run_of(tmp_path, corpus, "llama", split=split, merging=merging)
    with pytest.raises(BadInput, match=told):
        export(run.directory, tmp_path / "out", gguf="f16")


def test_a_tokenizer_of_plain_bytes_has_no_merges(corpus: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path, small_spec(corpus, "llama"), rounds=1)
    with pytest.raises(BadInput, match="the tokens of this run are plain bytes; export without it"):
        export(run.directory, tmp_path / "out", gguf="f16")


def test_an_adapter_alone_is_no_model(corpus: Path, tmp_path: Path) -> None:
    spec = small_spec(corpus, "llama")
    run = make_run(tmp_path, dataclasses.replace(spec), rounds=1)
    with pytest.raises(BadInput, match="leave --what adapter away"):
        export(run.directory, tmp_path / "out", what="adapter", gguf="f16")
