"""A run starts from a model that others have trained: with its parameters, its tokenizer, and its loss."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from dht.errors import BadInput, BadSpec, Unreachable
from peer.node.store import start_blob
from peer.parallel.pipeline.stage_model import build_stage, require_cuttable
from peer.schema.spec import RunSpec, dump, from_mapping, load, parse
from peer.schema.spec_fields import HUB_NAME
from peer.tools.export.folder import unpacked
from peer.training.data.tokenizer import ByteTokenizer, tokenizer_of
from peer.training.model import pretrained
from peer.training.model.build import build, build_config, next_token_logits
from peer.training.model.flat_parameters import FlatParameters
from peer.training.model.pretrained import adopt, filled_in, find
from tests.open_models import publish, run_from, smollm2
from tests.peer.training.model.test_build import SMALL

KEYS: dict[str, dict[str, int]] = {"qwen2": {"num_key_value_heads": 2}}


def text_BT(context: int) -> Tensor:
    """The bytes of this file in windows."""
    tokens_T = ByteTokenizer().encode(Path(__file__).read_text())
    return torch.from_numpy(tokens_T[: len(tokens_T) // (context + 1) * (context + 1)]).long().view(-1, context + 1)


@torch.no_grad()
def cross_entropy(model: nn.Module, tokens_BT: Tensor) -> float:
    """By nothing of ours."""
    logits_BTV = model.eval()(input_ids=tokens_BT[:, :-1]).logits
    return nn.functional.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten()).item()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gpt_neox"])
def test_a_run_has_the_bits_and_the_loss_of_its_start(architecture: str, tied: bool, tmp_path: Path) -> None:
    theirs = publish(tmp_path, architecture, tie_word_embeddings=tied, **KEYS.get(architecture, {}))
    spec = run_from(tmp_path)
    ours = build(spec)
    named = dict(ours.named_parameters())
    assert named.keys() == dict(theirs.named_parameters()).keys()
    assert all(torch.equal(named[name], value) for name, value in theirs.named_parameters())
    assert cross_entropy(ours, text_BT(64)) == pytest.approx(cross_entropy(theirs, text_BT(64)), abs=1e-6)
    assert parse(dump(spec)) == spec


def test_its_digest_is_that_of_the_values_whatever_file_holds_them(tmp_path: Path) -> None:
    """And of bfloat16 the float32 that they are."""
    model = publish(tmp_path / "a")
    once, again = run_from(tmp_path / "a"), run_from(tmp_path / "a" / "model.safetensors")
    assert once == again
    model.save_pretrained(tmp_path / "cut", max_shard_size="50KB")
    ByteTokenizer().for_transformers(64).save_pretrained(tmp_path / "cut")
    assert len(list((tmp_path / "cut").glob("*.safetensors"))) > 1
    assert run_from(tmp_path / "cut").start.digest == once.start.digest
    short = model.to(torch.bfloat16)
    short.save_pretrained(tmp_path / "b")
    ByteTokenizer().for_transformers(64).save_pretrained(tmp_path / "b")
    brief = run_from(tmp_path / "b")
    assert brief.start.digest != once.start.digest
    assert torch.equal(FlatParameters(build(brief)).new(), FlatParameters(short).new().float())


def test_what_no_home_could_train_is_loaded_for_an_adapter_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And exported without it."""
    theirs = publish(tmp_path)
    monkeypatch.setattr("peer.schema.model_layers.MOST_DEVICE_BYTES", 2.5e6)
    told = {"run": {"name": "x"}} | adopt(find(str(tmp_path)), {"context": 64})
    with pytest.raises(BadSpec, match=r"127,424 parameters and .* no home has more"):
        from_mapping(told)
    spec = from_mapping(told | {"adapter": {"base": "nf4"}})
    base = build(dataclasses.replace(unpacked(spec), adapter=None))
    assert torch.equal(FlatParameters(base).new(), FlatParameters(theirs).new())


def test_its_tokenizer_comes_with_it(tmp_path: Path) -> None:
    publish(tmp_path)
    spec = run_from(tmp_path)
    assert spec.model.tokenizer == "start"
    assert tokenizer_of(spec).encode("für 1").tolist() == ByteTokenizer().encode("für 1").tolist()


@pytest.mark.parametrize(
    ("end", "words"),
    [(None, "has no end-of-text token"), ("<|nowhere|>", "vocab_size is 257; the tokenizer 'start'")],
)
def test_a_tokenizer_that_does_not_fit_is_refused_by_who_founds_a_run(
    end: str | None, words: str, tmp_path: Path
) -> None:
    publish(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token": end}))
    with pytest.raises(BadSpec, match=words):
        run_from(tmp_path)


@pytest.mark.parametrize(
    ("architecture", "config", "words"),
    [
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "scales its rotary"),
        (
            "starcoder2",
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}, "num_key_value_heads": 2},
            "scales its rotary",
        ),
        ("smollm3", {"no_rope_layers": [0, 1], "num_key_value_heads": 2, "pad_token_id": 0}, "computes otherwise"),
        ("mamba", {}, "is of 'mamba', none of"),
    ],
)
def test_what_no_spec_can_say_is_refused(
    architecture: str, config: dict[str, object], words: str, tmp_path: Path
) -> None:
    publish(tmp_path, architecture, **config)
    with pytest.raises(BadSpec, match=words):
        run_from(tmp_path)


def test_what_is_no_model_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"pickle")
    for name in (str(tmp_path), str(tmp_path / "weights.bin"), str(tmp_path / "none"), "no name"):
        with pytest.raises(BadSpec, match=r"start\.model is") as refused:
            adopt(find(name), {})
        assert str(refused.value).isprintable()


def cut_off(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def named_elsewhere(folder: Path, part: str) -> None:
    """Its weights lie beside its folder, where its index names them."""
    names = list(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").rename(folder.parent / "elsewhere.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(names, part)}))


def with_tensor(folder: Path, name: str, value: Tensor) -> None:
    path = folder / "model.safetensors"
    tensors = {each: tensor.clone() for each, tensor in load_file(path).items()}
    path.unlink()
    save_file(tensors | {name: value}, path, {"format": "pt"})


QUERIES = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut_off, "incomplete metadata, file not fully covered"),
        (lambda folder: named_elsewhere(folder, "../elsewhere.safetensors"), "which is not in its folder"),
        (lambda folder: named_elsewhere(folder, "part-2.safetensors"), "names 'part-2.safetensors', which is not in"),
        (lambda folder: named_elsewhere(folder, "/etc/passwd"), "names '/etc/passwd', which is not in its folder"),
        (lambda folder: with_tensor(folder, f"{QUERIES}.bias", torch.ones(64)), f"no place for 1 .* {QUERIES}.bias"),
        (lambda folder: with_tensor(folder, f"{QUERIES}.weight_scale_inv", torch.ones(1, 1)), "no place for 1 "),
        (lambda folder: with_tensor(folder, "model.layers.9.mlp.up_proj.weight", torch.ones(4, 4)), "no place for 1 "),
        (
            lambda folder: with_tensor(folder, "model.norm.weight", torch.full((64,), torch.nan)),
            "model.norm.weight hol",
        ),
    ],
    ids=["cut off", "outside", "absent", "absolute", "bias", "scale", "block", "nan"],
)
def test_half_a_model_or_another_one_is_refused(damage: Callable[[Path], None], words: str, tmp_path: Path) -> None:
    """A download that ended early; tensors without which the model computes something else than it was trained for."""
    publish(tmp_path / "a")
    damage(tmp_path / "a")
    with pytest.raises(BadSpec, match=rf"cannot be loaded \(.*{words}"):
        run_from(tmp_path / "a")


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq"),
        ("gpt_neox", "gpt_neox.layers.0.attention.bias"),
        ("gpt_neox", "gpt_neox.layers.0.attention.masked_bias"),
    ],
)
def test_what_older_files_have_beside_parameters_makes_no_other_model(
    architecture: str, name: str, tmp_path: Path
) -> None:
    publish(tmp_path, architecture)
    once = run_from(tmp_path)
    with_tensor(tmp_path, name, torch.ones(16))
    assert run_from(tmp_path).start == once.start


def test_pickles_beside_it_are_not_loaded(tmp_path: Path) -> None:
    model = publish(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(BadSpec, match="cannot be loaded"):
        run_from(tmp_path)


def test_a_byte_that_changed_is_named_with_its_file(tmp_path: Path) -> None:
    publish(tmp_path, seed=9)
    digest = run_from(tmp_path).start.digest
    path = start_blob.folder_of(digest) / start_blob.VECTORS
    whole = path.read_bytes()
    path.write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
    with pytest.raises(BadInput, match="is damaged; remove") as refused:
        start_blob.require_intact(digest)
    assert str(path) in str(refused.value)
    path.write_bytes(whole)
    start_blob.require_intact(digest)


def test_another_model_under_the_name_is_another_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What huggingface.co has is compared with what the run began from; nothing of it is kept."""
    publish(tmp_path / "now", seed=2)
    publish(tmp_path / "then", seed=3)
    now, then = run_from(tmp_path / "now"), run_from(tmp_path / "then")
    found = pretrained.FoundModel(tmp_path / "now", "", "owner/name", "0" * 40)
    monkeypatch.setattr(pretrained, "_fetched", lambda model, revision: found)
    monkeypatch.setenv(start_blob.CACHE, str(tmp_path / "elsewhere"))
    with pytest.raises(Unreachable, match="another model"):
        pretrained.fetch(then)
    assert not start_blob.is_here(then.start.digest)
    assert not start_blob.is_here(now.start.digest)
    pretrained.fetch(now)
    start_blob.require_intact(now.start.digest)


def test_a_start_of_a_run_that_kept_no_stop_tokens_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As runs did that were founded before: their digest has none of them."""
    publish(tmp_path / "a")
    said = (tmp_path / "a" / "generation_config.json").read_bytes()
    (tmp_path / "a" / "generation_config.json").unlink()
    older = run_from(tmp_path / "a")
    (tmp_path / "a" / "generation_config.json").write_bytes(said)
    assert older != run_from(tmp_path / "a")
    found = pretrained.FoundModel(tmp_path / "a", "", "owner/name", "0" * 40)
    monkeypatch.setattr(pretrained, "_fetched", lambda model, revision: found)
    monkeypatch.setenv(start_blob.CACHE, str(tmp_path / "elsewhere"))
    pretrained.fetch(older)
    assert older.start is not None
    start_blob.require_intact(older.start.digest)


def test_a_folder_here_is_not_what_a_stranger_may_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path / "owner" / "name", seed=4)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert HUB_NAME.fullmatch("owner/name")
    assert find("owner/name").name == "name", "its organiser may"
    spec = run_from(tmp_path / "owner" / "name")
    monkeypatch.setenv(start_blob.CACHE, str(tmp_path / "elsewhere"))
    stranger = parse(dump(spec).replace('model = "name"', 'model = "owner/name"'))
    with pytest.raises((BadSpec, Unreachable), match="owner/name"):
        pretrained.fetch(stranger)


@pytest.mark.smollm2
@pytest.mark.slow
def test_smollm2_out_of_a_quantised_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loss on 20 kB of Python is what transformers computes by itself, and its tokenizer ends a turn."""
    path = smollm2()
    spec = from_mapping(load("micro").tables() | adopt(find(str(path)), {"context": 512}))
    tokenizer = tokenizer_of(spec)
    text = Path(importlib.util.__file__ or "").with_name("_bootstrap.py").read_text()[:20_000]
    tokens_T = tokenizer.encode(text)
    tokens_BT = torch.from_numpy(tokens_T[: len(tokens_T) // 513 * 513]).long().view(-1, 513)
    theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    assert cross_entropy(build(spec), tokens_BT) == pytest.approx(cross_entropy(theirs, tokens_BT), abs=1e-4)
    assert tokenizer.end_of_text == 2


def far_away(folder: Path, architecture: str, **config: Any) -> RunSpec:
    publish(folder, architecture, num_key_value_heads=2, max_position_embeddings=256, **config)
    tables = adopt(find(str(folder)), {"context": 128})
    return from_mapping({"run": {"name": "x"}} | tables)


def test_a_start_without_a_window_gets_none(tmp_path: Path) -> None:
    """Where transformers has one if nobody says anything; EXAONE 4 then turns positions in every block."""
    spec = far_away(tmp_path / "a", "mistral", sliding_window=None)
    assert spec.model.config["sliding_window"] == 0
    assert build_config(parse(dump(spec))).sliding_window is None
    kinds = ["full_attention"] * 2
    spec = far_away(tmp_path / "b", "exaone4", sliding_window=None, layer_types=kinds, num_hidden_layers=2)
    assert build_config(spec).layer_types == kinds
    spec = far_away(tmp_path / "c", "exaone4", sliding_window=64, sliding_window_pattern=3, num_hidden_layers=4)
    assert spec.model.config["sliding_window_pattern"] == 3
    assert build_config(spec).layer_types == ["sliding_attention"] * 2 + ["full_attention", "sliding_attention"]


def test_ministral_keeps_how_it_reads_long_texts(tmp_path: Path) -> None:
    """Its queries grow with their positions; without that it computes otherwise."""
    rope = {
        "rope_type": "yarn", "rope_theta": 1e5, "factor": 4.0, "original_max_position_embeddings": 16,
        "beta_fast": 30.0, "beta_slow": 2.0, "mscale": 1.0, "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.7,
    }  # fmt: skip
    spec = far_away(tmp_path, "ministral3", rope_parameters=rope, head_dim=16)
    assert rope.items() <= build_config(parse(dump(spec))).rope_parameters.items()


def test_what_only_long_texts_show_is_refused_too(tmp_path: Path) -> None:
    """The tried text is shorter than the window, and turns the slow positions by nothing."""
    with pytest.raises(BadSpec, match=r"of 128 tokens its blocks see \[128, 128\], and not \[64, 64\]"):
        far_away(tmp_path / "a", "olmo3", sliding_window=64, layer_types=["full_attention"] * 2, num_hidden_layers=2)
    with pytest.raises(BadSpec, match=r"its rotary positions turn otherwise|its logits differ"):
        far_away(
            tmp_path / "b",
            "olmo3",
            rope_parameters={
                f"{kind}_attention": {"rope_type": "default", "rope_theta": theta}
                for kind, theta in (("full", 5e5), ("sliding", 1e6))
            },
            num_hidden_layers=4,
        )


WITH_EYES: dict[str, dict[str, Any]] = {
    "gemma3": {
        "model_type": "gemma3", "mm_tokens_per_image": 4, "image_token_index": 200, "boi_token_index": 201,
        "eoi_token_index": 202,
    },
    "mistral3": {"model_type": "mistral3", "image_token_index": 200, "tie_word_embeddings": False},
    "qwen3_5": {"model_type": "qwen3_5", "tie_word_embeddings": False},
    **{kind: {"model_type": kind, "tie_word_embeddings": True} for kind in ("gemma4", "gemma4_unified")},
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "reads"),
    [
        ("gemma3", "gemma3_text"),
        ("mistral3", "ministral3"),
        ("qwen3_5", "qwen3_5_text"),
        ("gemma4", "gemma4_text"),
        ("gemma4_unified", "gemma4_unified_text"),
    ],
)
@pytest.mark.parametrize("prefix", ["language_model.", ""])
def test_of_a_model_with_eyes_what_reads_text_is_taken(kind: str, reads: str, prefix: str, tmp_path: Path) -> None:
    """Gemma 3, Ministral 3 and Qwen3.5 are published so, by either of two names for each tensor."""
    theirs = publish(tmp_path, reads, num_key_value_heads=2, head_dim=16, initializer_range=0.2, pad_token_id=0)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(WITH_EYES[kind] | {"text_config": json.loads(path.read_text())}))
    tensors = {
        prefix + name if prefix or not name.startswith("model.") else f"model.language_model.{name[6:]}": value
        for name, value in load_file(tmp_path / "model.safetensors").items()
    }
    save_file(tensors | {"vision_tower.patch": torch.zeros(2)}, tmp_path / "model.safetensors", {"format": "pt"})
    spec = run_from(tmp_path)
    assert spec.model.architecture == reads
    tokens_BT = text_BT(64)[:2]
    torch.testing.assert_close(
        next_token_logits(build(spec).eval(), tokens_BT), next_token_logits(theirs, tokens_BT), rtol=0, atol=1e-4
    )


def test_gemma_4_is_taken_as_google_publishes_it(tmp_path: Path) -> None:
    """The heads of blocks that see all are said once, and what multiplies the output of a block lies among the
    tensors, as in no other model."""
    values: dict[str, Any] = SMALL["gemma4_text"]
    theirs = publish(tmp_path, "gemma4_text", initializer_range=0.2, **values)
    path = tmp_path / "config.json"
    said = {key: each for key, each in json.loads(path.read_text()).items() if key != "per_layer_config"}
    said |= {key: values[key] for key in ("global_head_dim", "num_global_key_value_heads")}
    said |= {"use_bidirectional_attention": "vision"}
    path.write_text(json.dumps(WITH_EYES["gemma4"] | {"text_config": said}))
    spec = run_from(tmp_path)
    assert spec.model.config["layer_scalars"] == pytest.approx(values["layer_scalars"], rel=1e-7)
    assert parse(dump(spec)) == spec
    tokens_BT = text_BT(64)[:2]
    torch.testing.assert_close(
        next_token_logits(build(spec).eval(), tokens_BT), next_token_logits(theirs, tokens_BT), rtol=0, atol=1e-4
    )


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("hidden_size_per_layer_input", 256, "hidden_size_per_layer_input = 256"),
        ("hidden_size_per_layer_input", ..., r"hidden_size_per_layer_input = 256 \(its files leave that open, .*\)"),
        ("num_kv_shared_layers", 1, "num_kv_shared_layers = 1"),
        ("enable_moe_block", True, "enable_moe_block = True"),
    ],
)
def test_what_no_gemma_4_can_be_trained_with_yet_is_named(key: str, value: object, words: str, tmp_path: Path) -> None:
    """Of E2B, E4B and 26B-A4B; also where a config.json leaves it to transformers."""
    publish(tmp_path, "gemma4_text", num_key_value_heads=2, head_dim=16)
    path = tmp_path / "config.json"
    said = json.loads(path.read_text()) | {key: value}
    path.write_text(json.dumps({key: each for key, each in said.items() if each is not ...}))
    with pytest.raises(BadSpec, match=f"start.model has {words}, which no spec can say yet"):
        run_from(tmp_path)


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_whole_of_a_model_with_eyes_says_whether_its_matrix_is_tied(is_tied: bool, tmp_path: Path) -> None:
    """Its part may say something else, of no account; what the files do not agree with is refused."""
    publish(tmp_path, "ministral3", num_key_value_heads=2, head_dim=16, pad_token_id=0, tie_word_embeddings=is_tied)
    path, said = tmp_path / "config.json", json.loads((tmp_path / "config.json").read_text())
    other = said | {"tie_word_embeddings": not is_tied}
    path.write_text(json.dumps(WITH_EYES["mistral3"] | {"tie_word_embeddings": is_tied, "text_config": other}))
    assert run_from(tmp_path).model.config.get("tie_word_embeddings", False) is is_tied
    path.write_text(json.dumps(WITH_EYES["mistral3"] | {"tie_word_embeddings": not is_tied, "text_config": said}))
    with pytest.raises(BadSpec, match=r"such as lm_head\.weight"):
        run_from(tmp_path)


def test_a_start_that_lacks_a_tensor_is_refused(tmp_path: Path) -> None:
    """transformers would draw it at random."""
    publish(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(BadSpec, match=r"its files lack 1 of its tensors, such as model\.norm\.weight"):
        run_from(tmp_path)


HOSTILE = {
    "attn_implementation": "somebody/kernel", "_attn_implementation": "somebody/kernel", "use_kernels": True,
    "auto_map": {"AutoModelForCausalLM": "evil.Evil", "AutoConfig": "evil.Evil"}, "dtype": "float64",
    "torch_dtype": "float64", "quantization_config": {"quant_method": "evil"}, "experts_implementation": "evil",
    "name_or_path": "somebody/other", "_name_or_path": "somebody/other", "transformers_version": "99",
}  # fmt: skip


def test_nothing_but_numbers_of_its_architecture_is_taken_of_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code, kernels and repositories that it names never reach transformers: the start is as without them."""
    publish(tmp_path, initializer_range=0.1)
    without = run_from(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | HOSTILE))
    seen: list[Any] = []
    load = AutoModelForCausalLM.from_pretrained

    def noting(*given: Any, config: Any, **options: Any) -> Any:
        seen.append(config)
        return load(*given, config=config, **options)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", noting)
    assert run_from(tmp_path) == without
    (config,) = seen
    assert config._attn_implementation_internal is None or config._attn_implementation == "sdpa"
    assert not any(word in f"{vars(config)} {config.to_dict()}" for word in ("somebody", "evil", "float64"))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("{", "its config.json is none"), ("[]", "its config.json is none"), ('{"model_type": "evil"}', "is of 'evil'"),
        ('{"model_type": "llama", "hidden_size": "x"}', "cannot be loaded"),
    ],
)  # fmt: skip
def test_a_config_that_is_none_is_one_line(said: str, why: str, tmp_path: Path) -> None:
    publish(tmp_path)
    (tmp_path / "config.json").write_text(said)
    with pytest.raises(BadSpec, match=why) as caught:
        adopt(find(str(tmp_path)), {})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("architecture", "left_out", "filled"),
    [
        ("llama", "", ""), ("llama", "attention_bias", ""), ("llama", "rope_parameters", "rope_theta = 10000.0;"),
        ("mistral", "", ""), ("mistral", "sliding_window", "sliding_window = 4096;"),
        ("gemma3_text", "", ""), ("gemma3_text", "query_pre_attn_scalar", "query_pre_attn_scalar = 256;"),
        ("gpt_neox", "use_parallel_residual", "use_parallel_residual = True;"),
        ("gpt_neox", "rope_parameters", "rotary_pct = 0.25;"),
        ("gpt2", "", ""), ("gpt2", "resid_pdrop", "resid_pdrop = 0.1;"),
        ("apertus", "rope_parameters", "rope_type = 'llama3', rope_factor = 8.0"),
    ],
)  # fmt: skip
def test_what_transformers_fills_in_is_heard(architecture: str, left_out: str, filled: str, tmp_path: Path) -> None:
    """Where the files say nothing, and transformers takes more than nothing: plain transformers does so, too."""
    publish(tmp_path, architecture, **({} if architecture.startswith("gpt") else {"num_key_value_heads": 2}))
    said = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({key: said[key] for key in said if key != left_out}))
    found = find(str(tmp_path))
    adopt(found, {})
    line = filled_in(found)
    assert line.startswith(f"{found.name} leaves open, and transformers fills in: " if filled else "")
    assert filled in line
    assert bool(filled) == bool(line)


def test_an_adapter_leads_to_no_other_model(tmp_path: Path) -> None:
    """transformers would load what it names, wherever that is."""
    publish(tmp_path / "mine")
    publish(tmp_path / "given")
    (tmp_path / "given" / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": str(tmp_path / "mine"), "peft_type": "LORA"})
    )
    with pytest.raises(BadSpec, match=r"start\.model is given, an adapter; merge it into its base"):
        adopt(find(str(tmp_path / "given")), {})


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("held", [range(1), range(1, 3), range(3, 4)])
def test_a_home_of_a_cluster_takes_its_layers_of_it(held: range, tied: bool, tmp_path: Path) -> None:
    theirs = publish(tmp_path, tie_word_embeddings=tied)
    spec = run_from(tmp_path)
    require_cuttable(spec)
    _, flat = build_stage(spec, held)
    layers = FlatParameters(theirs).by_layer()
    assert len(layers) == (4 if tied else 5)
    assert all(torch.equal(mine, layers[number]) for mine, number in zip(flat.by_layer(), held, strict=True))
