"""A spec is a stranger's text: whatever stands in it is within bounds, or refused in one line."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from transformers import AutoConfig
from transformers.utils.import_utils import KERNELS_MIN_VERSION

from dht.errors import BadInput, BadSpec
from peer.schema.architectures import ARCHITECTURES
from peer.schema.keys.allowed_values import Flag, OneOf, Real, Several, Whole
from peer.schema.model_layers import MOST_DEVICE_BYTES
from peer.schema.spec import SHIPPED, RunSpec, dump, from_mapping, load, parse
from peer.schema.spec_fields import AdapterTable, EvaluateTable, MixTable, StartTable
from peer.tools.watch.preview import MOST_S, facts_of
from peer.tools.watch.run_facts import MOST_BYTES, facts
from peer.training.model.build import ROPE_VALUES, build_config, build_meta
from peer.training.model.footprint import size_of

ORGANISER = "12D3KooWJWoaqZhDaoEFshF7Rh1bpY9ohihFhzcW6d69Lr2NASuq"
EXTREMES: dict[str, Any] = {
    "zero": 0, "one": 1, "minus one": -1, "2^31": 2**31, "2^63": 2**63, "10^400": 10**400, "hexadecimal": 1 << 100_000,
    "zero point": 0.0, "half": 0.5, "1e308": 1e308, "-1e308": -1e308, "least": 5e-324, "nan": float("nan"),
    "inf": float("inf"), "-inf": float("-inf"), "nothing": "", "path": "/etc/passwd", "up": "../../x",
    "repo": "attacker/evil",    "address": "http://evil.example/x", "long": "x" * 50_000, "lines": "a\n\x1b[2Jb",
    "module": "os.system",
    "true": True, "false": False, "list": [1, "a", []], "numbers": [0, 1, 2], "many": [1.5] * 5000,
    "table": {"auto_map": {"AutoModel": "evil.Evil"}}, "empty": {},
}  # fmt: skip
COMMONEST = ("llama", "gpt2", "qwen2", "qwen3")
NEVER = (
    "attn_implementation", "_attn_implementation", "auto_map", "_name_or_path", "name_or_path", "quantization_config",
    "dtype", "torch_dtype", "architectures", "model_type", "custom_pipelines", "kernel_config", "use_kernels",
    "trust_remote_code", "rope_parameters", "rope_scaling", "layer_types", "id2label", "pad_token_id", "use_cache",
    "transformers_version", "_commit_hash", "code_revision", "__class__", "experts_implementation",
)  # fmt: skip
"""Keys that name code, repositories, files, or have no bounds."""


SCALED: dict[str, dict[str, Any]] = {
    "llama3": {"rope_type": "llama3", "rope_low_freq_factor": 1.0, "rope_high_freq_factor": 1000.0},
    "yarn": {"rope_type": "yarn"},
    "linear": {"rope_type": "linear"},
    "proportional": {"rope_type": "proportional"},
    "longrope": {
        "rope_type": "longrope", "rope_short_factor": (1.0,) * 8, "rope_long_factor": (2.0,) * 8,
        "rope_original_positions": 4096,
    },
}  # fmt: skip


def tables() -> Iterator[tuple[str, str]]:
    """Every field of the spec."""
    for table, hint in get_type_hints(RunSpec).items():
        kind = next(each for each in (*get_args(hint), hint) if dataclasses.is_dataclass(each))
        yield from ((table, each.name) for each in dataclasses.fields(kind))


@cache
def micro() -> dict[str, Any]:
    """With every table."""
    start, evaluate = StartTable(model="a model", digest="0" * 64), EvaluateTable(prompts=("Once",))
    whole = dataclasses.replace(load("micro"), start=start, adapter=AdapterTable(), evaluate=evaluate)
    return dataclasses.asdict(whole)


def with_value(table: str, key: str, value: object) -> dict[str, Any]:
    return micro() | {table: micro()[table] | {key: value}}


def with_model(architecture: str, **config: object) -> dict[str, Any]:
    """Without a start and an adapter, which not every architecture takes."""
    plain = {table: values for table, values in micro().items() if table not in ("start", "adapter")}
    return plain | {"model": {"architecture": architecture, "context": 64, "config": config}}


def refused(mapping: dict[str, Any]) -> RunSpec | None:
    """The spec, or None if it is refused as it should be."""
    try:
        spec = from_mapping(mapping)
        spec.digest()  # who hears of a run asks at once whether this is its spec
        return spec
    except BadSpec as error:
        line = str(error)
        assert line.isprintable(), line
        assert 10 < len(line) < 1000, line[:2000]
        return None


def looked_at(spec: RunSpec) -> None:
    """All that is done with a spec before anybody agrees takes no time."""
    began = time.process_time()
    assert parse(dump(spec)).digest() == spec.digest()
    with suppress(BadInput):
        json.dumps(facts("r", ORGANISER, spec, None), allow_nan=False)
    assert time.process_time() - began < 2


@pytest.mark.parametrize("value", EXTREMES.values(), ids=EXTREMES)
def test_every_field_is_bounded(value: object) -> None:
    accepted = [(table, key) for table, key in tables() if looked_at_if_any(with_value(table, key, value))]
    strings = {*(("data", key) for key in ("path", "subset", "text_field")), ("start", "model"), ("start", "revision")}
    if isinstance(value, str) and value in ("/etc/passwd", "attacker/evil", "http://evil.example/x", "os.system"):
        # Of text that is only shown, or names a column; micro is not on the Hub.
        repo = {("model", "tokenizer")} if value == "attacker/evil" else set()
        split = {("data", "split"), ("run", "name")} if value == "os.system" else set()
        assert set(accepted) - repo <= strings | split
    if isinstance(value, list | dict) and value:
        assert accepted == []


def looked_at_if_any(mapping: dict[str, Any]) -> bool:
    spec = refused(mapping)
    if spec is not None:
        looked_at(spec)
    return spec is not None


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_key_of_a_model_is_bounded(architecture: str) -> None:
    """The rest of the model is small, so that a key cannot hide behind the size of all."""
    small = smallest(architecture)
    assert refused(with_model(architecture, **small)) is not None
    for key in ARCHITECTURES[architecture].keys:
        for value in EXTREMES.values():
            looked_at_if_any(with_model(architecture, **small | {key: value}))


@pytest.mark.parametrize("architecture", COMMONEST)
def test_no_other_key_of_transformers_is_taken(architecture: str) -> None:
    """All that its configuration knows, and what names code."""
    made = AutoConfig.for_model(architecture)
    known = {*made.to_dict(), *vars(made), *vars(type(made)), *NEVER} - ARCHITECTURES[architecture].keys.keys()
    assert len(known) > 20
    for key in known:
        for value in (True, 1, "attacker/evil"):
            with pytest.raises(BadSpec, match=f"unknown key 'model.config.{key}' for {architecture}"):
                from_mapping(with_model(architecture, **{key: value}))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nothing_listed_names_code(architecture: str) -> None:
    keys = ARCHITECTURES[architecture].keys
    assert keys.keys().isdisjoint(NEVER)
    assert all(isinstance(each, Whole | Real | Flag | OneOf | Several) for each in keys.values())
    assert "attacker/evil" not in {word for each in keys.values() if isinstance(each, OneOf) for word in each.words}


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_listed_key_is_one_of_transformers(architecture: str) -> None:
    """Each changes its configuration, so that none is taken and left unheard; and every word is an activation. The
    scalars of blocks are none of it."""
    small = smallest(architecture)
    needed_by_others = {"use_sliding_window", "attention_k_eq_v"}
    small |= dict.fromkeys(needed_by_others & ARCHITECTURES[architecture].keys.keys(), True)
    types = ARCHITECTURES[architecture].keys.get("rope_type", OneOf(()))
    assert isinstance(types, OneOf)
    for key, allowed in ARCHITECTURES[architecture].keys.items():
        ways = (name for name in SCALED if name in types.words and key in ("rope_type", *ROPE_VALUES[name]))
        beside = small | next((SCALED[name] for name in ways), {})
        plain = build_config(from_mapping(with_model(architecture, **beside))).to_dict()
        for value in others(key, allowed, beside.get(key, plain.get(key))):
            needed = SCALED.get(value, {}) if key == "rope_type" else {}
            spec = refused(with_model(architecture, **beside | needed | {key: value}))
            assert spec is not None, (key, value)
            assert build_config(spec).to_dict() != plain or key == "layer_scalars", key
            if isinstance(allowed, OneOf):
                build_meta(spec)


def others(key: str, allowed: object, present: Any) -> list[Any]:
    """Values that are not the present one."""
    match allowed:
        case Flag():
            return [not present]
        case OneOf(words):
            return [word for word in words if word != present]
        case Whole(low, high) if not isinstance(present, int):
            return [max(low, min(high, 64))]
        case Whole(low, high):
            # Heads that share a key are fewer than all; whatever else there is may be twice as many.
            return [present // 2 if key.endswith("key_value_heads") else min(high, max(low, present * 2))]
        case Real(low, high):
            return [(low + high) / 2]
        case Several():
            return [(3.0,) * 8 if "factor" in key else (3.0, 3.0) if "scalars" in key else (1,)]
    raise AssertionError(allowed)


def smallest(architecture: str) -> dict[str, Any]:
    """A small model of it."""
    keys = ARCHITECTURES[architecture].keys
    small = {
        "hidden_size": 32, "n_embd": 32, "intermediate_size": 32, "n_inner": 32, "ffn_dim": 32, "num_hidden_layers": 2,
        "n_layer": 2, "num_attention_heads": 2, "n_head": 2, "num_key_value_heads": 2, "head_dim": 16,
        "num_local_experts": 4, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "full_attention_interval": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8, "global_head_dim": 16,
        "num_global_key_value_heads": 2,
    }  # fmt: skip
    return {key: value for key, value in small.items() if key in keys}


@pytest.mark.parametrize(
    ("config", "context", "words"),
    [
        ({"hidden_size": 1_000_000_000}, 64, "hidden_size is 1e\\+09"),
        ({"num_attention_heads": 300_000_000}, 64, "num_attention_heads is 3e\\+08"),
        ({"num_hidden_layers": 1_000_000}, 64, "num_hidden_layers is 1e\\+06"),
        ({"hidden_size": 65536, "num_attention_heads": 512, "num_hidden_layers": 512}, 64, "no home has more than 512"),
        ({"vocab_size": 1 << 20}, 1 << 20, "no home has more than 512 GB"),
    ],
)
def test_what_no_home_can_hold_is_refused_in_no_time(config: dict[str, int], context: int, words: str) -> None:
    """What took 9 GiB and 86 seconds to look at."""
    mapping = with_model("llama", **config)
    mapping["model"] |= {"context": context}
    began = time.process_time()
    with pytest.raises(BadSpec, match=words):
        from_mapping(mapping | {"inner": {"sequences": 1}, "data": {"eval_sequences": 1}})
    assert time.process_time() - began < 1


GEMMA_31B = {
    "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 60, "num_attention_heads": 32,
    "num_key_value_heads": 16, "attention_k_eq_v": True, "num_global_key_value_heads": 4, "vocab_size": 262144,
}  # fmt: skip


@pytest.mark.parametrize(("base", "gigabytes"), [("nf4", 47), ("int8", 62), ("bfloat16", 89), ("float32", 151)])
def test_of_an_adapter_is_counted_what_it_trains_and_how_its_base_is_held(base: str, gigabytes: float) -> None:
    """All of it was counted as trained, in float32: an adapter was refused with the model."""
    whole = with_model("gemma4_text", **GEMMA_31B) | {"inner": {"sequences": 1}, "codec": {"part_elements": 1 << 20}}
    whole["model"] |= {"context": 512}
    with pytest.raises(BadSpec, match=r"model has 30,6[\d,]+ parameters and .* 517 GB; no home has more than 512 GB"):
        from_mapping(whole)
    beside = whole | {"start": {"model": "a model"}, "adapter": {"base": base, "rank": 16}}
    assert size_of(from_mapping(beside)).device_bytes / 1e9 == pytest.approx(gigabytes, abs=1)
    with pytest.raises(BadSpec, match=f"parameters in {base}, an adapter of .*no home has more than 512 GB"):
        from_mapping(beside | {"model": whole["model"] | {"context": 1 << 18}})


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_specs_are_far_within(name: str) -> None:
    spec = load(name)
    assert facts("r", ORGANISER, spec, None)["device_bytes"] < MOST_DEVICE_BYTES / 10


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "[" * 16_000, "x = " + "9" * 5000, ".".join("a" * 8_000) + " = 1", "\0", "[run]\nname = 1979-05-27\n",
        "a" * 16_000, "a = 1\n" * 3_000, '[run]\n"' + "k" * 16_000 + '" = 1\n', "[model]\nconfig = [1]\n", "judge = 1",
    ],
    ids=["deep", "digits", "dots", "zero", "date", "letters", "long", "key", "list", "former"],
)  # fmt: skip
def test_any_text_is_refused_in_one_line(text: str) -> None:
    began = time.process_time()
    with pytest.raises(BadSpec) as caught:
        parse(text)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
    assert time.process_time() - began < 2


# ---- the processes that look at it ----

LARGEST = with_model(
    "mixtral", hidden_size=1024, intermediate_size=256, num_hidden_layers=512, num_attention_heads=1024,
    num_key_value_heads=1024, head_dim=2, num_local_experts=4, vocab_size=1 << 17,
) | {"round": {"fragments": 32, "keep_rounds": 10_000, "snapshot_rounds": 10_000_000, "steps": 1_000_000},
     "run": {"name": "large", "founders": 16, "rounds": 10_000_000},
     "codec": {"wire": "sparse", "part_elements": 1 << 18}, "inner": {"sequences": 1, "accumulation": 1}}  # fmt: skip
"""At many bounds at once: every layer, fragment, founder and part that there may be."""

PLANT = """
import json, resource, sys, time
sys.path.insert(0, sys.argv[1])
began = time.monotonic()
from peer.schema.spec_fields import MixTable
from peer.tools.watch.preview import facts_of
told = facts_of("r", sys.argv[2], sys.stdin.read(), None)
children = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({"facts": told, "bytes": children.ru_maxrss * 1024, "seconds": time.monotonic() - began}))
"""


@pytest.mark.outside
def test_the_largest_spec_is_looked_at_in_little_memory_and_time() -> None:
    """Also in how much address space, since its process has no more."""
    text = dump(from_mapping(LARGEST))
    command = [sys.executable, "-c", PLANT, "", ORGANISER]
    told = subprocess.run(command, input=text, capture_output=True, text=True, check=True, timeout=MOST_S)
    found = json.loads(told.stdout)
    assert found["facts"]["parameters"] > 1e9
    assert found["bytes"] < MOST_BYTES / 4
    assert found["seconds"] < MOST_S


@pytest.mark.outside
def test_a_spec_that_is_refused_is_so_in_one_line() -> None:
    with pytest.raises(BadSpec, match=r"unknown key 'model\.config\.attn_implementation' for llama") as caught:
        facts_of("r", ORGANISER, dump(load("micro")).replace("hidden_size", "attn_implementation"), None)
    assert str(caught.value).isprintable()


GUARD = """
import os, socket, sys
sys.path.insert(0, sys.argv[1])
before = {}
def hook(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo"):
        raise SystemExit(f"{event} {arguments}")
    if event == "open" and before and isinstance(arguments[0], str) and arguments[0].startswith(sys.argv[2]):
        raise SystemExit(f"{event} {arguments}")
sys.addaudithook(hook)
from peer.training.model.build import build, next_token_logits
from peer.schema.spec import from_mapping
import ast, torch
before["loaded"] = True
for mapping in ast.literal_eval(sys.stdin.read()):
    try:
        next_token_logits(build(from_mapping(mapping)), torch.arange(5)[None])
    except ValueError as error:
        print(error)
assert "kernels" not in sys.modules or sys.modules["kernels"] is None
"""


@pytest.mark.outside
def test_a_planted_package_of_kernels_is_not_imported(tmp_path: Path) -> None:
    """transformers would, fetch code with the first one, and advise to install the others. Nor is anything of the
    owner's read, or anybody asked."""
    for package in ("kernels", "causal_conv1d", "fla"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    about = tmp_path / f"kernels-{KERNELS_MIN_VERSION}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Name: kernels\nVersion: {KERNELS_MIN_VERSION}\n")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "config.json").write_text('{"model_type": "llama"}')
    evil = [{"attn_implementation": "attacker/evil"}, {"_name_or_path": str(mine)}, {"auto_map": "evil.Evil"}]
    mappings = [with_model("llama", **smallest("llama") | each) for each in (*evil, {})]
    mappings += [with_model(each, **smallest(each)) for each in ("lfm2", "qwen3_5_text")]
    command = [sys.executable, "-c", GUARD, str(tmp_path), str(mine)]
    environment = os.environ | {"USE_HUB_KERNELS": "1"}
    told = subprocess.run(
        command, input=repr(mappings), capture_output=True, text=True, check=False, timeout=120, env=environment
    )
    assert (told.returncode, len(told.stdout.splitlines())) == (0, len(evil)), told.stdout + told.stderr
    assert not (tmp_path / "ran").exists()
    assert "nstall" not in told.stderr


@pytest.mark.parametrize("value", EXTREMES.values(), ids=EXTREMES)
def test_every_field_of_a_mix_is_bounded(value: object) -> None:
    beside = {"name": "b"}
    for each in dataclasses.fields(MixTable):
        looked_at_if_any(with_value("data", "mix", [{"name": "a"} | {each.name: value}, beside]))


@pytest.mark.parametrize("number", [1, 17, 1000])
def test_a_mix_of_too_many_sources_or_of_one_is_refused(number: int) -> None:
    assert refused(with_value("data", "mix", [{"name": f"s{each}"} for each in range(number)])) is None
