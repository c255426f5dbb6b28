"""The run spec: what is refused, what is hashed, what survives its own text."""

from __future__ import annotations

import re
import tomllib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from dht.errors import BadSpec
from peer.schema.settings import settings_from
from peer.schema.spec import RunSpec, dump, from_mapping, load, parse
from peer.schema.toml_tables import to_toml

LEAST: dict[str, Any] = {"run": {"name": "r"}, "model": {"architecture": "llama", "context": 8}}


def spec(**tables: dict[str, Any]) -> RunSpec:
    """The smallest spec with these values laid over it."""
    return from_mapping({name: LEAST.get(name, {}) | tables.get(name, {}) for name in {**LEAST, **tables}})


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("run", "name", "no spaces"),
        ("run", "founders", 0),
        ("run", "rounds", -1),
        ("model", "context", 1),
        ("data", "held_out_every", 1),
        ("data", "eval_every", 0),
        ("inner", "learning_rate", float("nan")),
        ("inner", "schedule_rounds", -1),
        ("inner", "sequences", 0),
        ("inner", "weight_decay", -0.1),
        ("outer", "momentum", 1.0),
        ("round", "steps", 0),
        ("round", "sync_rounds", -1),
        ("round", "keep_rounds", 0),
        ("round", "gather_s", 0.0),
        ("round", "patience", 0.5),
        ("codec", "wire", "int3"),
        ("codec", "part_elements", 1),
        ("aggregation", "warmup_rounds", 0),
        ("aggregation", "alpha", 0.0),
        ("aggregation", "threshold", float("nan")),
        ("aggregation", "deviation_floor", -0.1),
        ("aggregation", "temperature", 0.0),
        ("aggregation", "floor", 1.0),
        ("aggregation", "clip", 0.5),
        ("aggregation", "rejections", 0),
        ("aggregation", "cooldown_rounds", 0),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(table: str, key: str, value: object) -> None:
    """One line with the key and the value."""
    with pytest.raises(BadSpec, match=rf"{table}\.{key} is") as caught:
        spec(**{table: {key: value}})
    assert "\n" not in str(caught.value)


def test_an_unknown_key_is_refused_with_the_closest() -> None:
    with pytest.raises(BadSpec, match=r"unknown key 'round\.stpes'; did you mean 'steps'"):
        spec(round={"stpes": 3})
    with pytest.raises(BadSpec, match=r"unknown key 'rounds'; did you mean 'round'"):
        spec(rounds={})
    with pytest.raises(BadSpec, match=r"unknown key 'nmae'; did you mean 'name'"):
        settings_from(["settings.nmae=al"])


def test_the_former_name_of_a_table_is_told() -> None:
    with pytest.raises(BadSpec, match=r"\[judge\] is called \[aggregation\] now, and its key 'reducer' is 'rule'"):
        spec(judge={"reducer": "mean"})


def test_a_missing_key_is_named() -> None:
    with pytest.raises(BadSpec, match=r"model\.context is missing"):
        from_mapping({"run": {"name": "r"}, "model": {"architecture": "llama"}})


@pytest.mark.parametrize("text", ["two\nlines\tand a tab", "a\x7fb", "\x1b[2J"])
def test_any_text_survives_toml(text: str) -> None:
    """Also what no table takes."""
    assert tomllib.loads(to_toml({"key": text})) == {"key": text}


@pytest.mark.parametrize("path", ["plain", 'a "quoted" one', "back\\slash", "äöü …"])
def test_a_printable_text_survives_the_text_of_the_spec(path: str) -> None:
    """A peer that fetches the spec computes the same run."""
    one = spec(
        data={"source": "files", "path": path}, model={"config": {"rope_theta": 1e4, "tie_word_embeddings": True}}
    )
    assert parse(dump(one)) == one


def test_every_value_is_part_of_the_runs_identity() -> None:
    """Two peers that differ anywhere are in different runs; a default that is written out changes nothing."""
    tables = [{"round": {"gamma": 0.5}}, {"run": {"seed": 1}}, {"model": {"config": {"hidden_size": 64}}}, {}]
    assert len({spec(**table).digest() for table in tables}) == len(tables)
    assert spec(round={"steps": 500}).digest() == spec().digest()


def test_steps_ramp_up_after_the_synchronous_rounds() -> None:
    """H = 1 at first (EDiT), then linear to the whole; never 0."""
    ramped = spec(round={"steps": 8, "sync_rounds": 2, "ramp_rounds": 4})
    assert [ramped.steps_in(round) for round in range(8)] == [1, 1, 2, 4, 6, 8, 8, 8]
    assert spec(round={"steps": 2, "ramp_rounds": 4}).steps_in(0) == 1


def test_a_file_that_is_no_text_is_no_spec(tmp_path: Path) -> None:
    """Random bytes, or another encoding: one line, not a traceback."""
    path = tmp_path / "bin.toml"
    path.write_bytes("[run]".encode("utf-16"))
    with pytest.raises(BadSpec, match="not UTF-8 text"):
        load(str(path))


@pytest.mark.parametrize("key", ["upload_mbps", "download_mbps"])
def test_a_cap_is_none_or_one_that_a_round_can_live_with(key: str) -> None:
    """Bits per second instead of megabits, less than a line carries, or nothing at all: refused with what to write."""
    assert getattr(settings_from([]), key) == 0
    assert [getattr(settings_from([f"settings.{key}={value}"]), key) for value in ("0", "0.5", "20")] == [0, 0.5, 20]
    for value in ("-1", "0.1", "20000000", "inf", "nan"):
        with pytest.raises(BadSpec, match=f"{key} is .*it must be 0 \\(no cap\\) or between 0.5 and"):
            settings_from([f"settings.{key}={value}"])


def test_newcomers_may_get_nothing() -> None:
    assert settings_from(["settings.newcomers_mbps=0"]).newcomers_mbps == 0
    with pytest.raises(BadSpec, match="newcomers_mbps"):
        settings_from(["settings.newcomers_mbps=-1"])


def test_prompts_are_a_part_of_the_run_where_there_are_any() -> None:
    """A run without them hashes as it did before there were such; with them it survives its own text."""
    prompted = spec(evaluate={"prompts": ["Once upon", "def f(x):\n    "], "tokens": 32, "every": 2})
    assert "evaluate" not in spec().tables()
    assert prompted.digest() != spec().digest()
    assert parse(dump(prompted)) == prompted
    assert parse(dump(prompted)).digest() == prompted.digest()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"prompts": []}, "evaluate.prompts has 0 texts; use 1 to 8"),
        ({"prompts": ["x"] * 9}, "evaluate.prompts has 9 texts"),
        ({"prompts": ["x" * 501]}, "use at most 500 printable characters and line breaks"),
        ({"prompts": ["\x1b[2J"]}, "use at most 500 printable characters and line breaks"),
        ({"prompts": ["x"], "tokens": 257}, "evaluate.tokens is 257"),
        ({"prompts": ["x"], "every": 0}, "evaluate.every is 0"),
        ({"prompts": "x"}, "evaluate.prompts is 'x'"),
        ({"prompts": [1]}, "evaluate.prompts.0 is 1"),
    ],
)
def test_prompts_are_bounded(values: dict[str, Any], words: str) -> None:
    """They are a stranger's, and every peer shows them."""
    with pytest.raises(BadSpec, match=words) as caught:
        spec(evaluate=values)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_private_text_is_a_part_of_the_digest_only_where_it_is_said() -> None:
    """Runs that began before there was such a key keep their names."""
    shared = from_mapping(LEAST | {"data": {"source": "files", "path": "diaries"}})
    private = from_mapping(LEAST | {"data": {"source": "files", "path": "diaries", "private": True}})
    assert "private" not in shared.tables()["data"]
    assert shared.digest() != private.digest()
    with pytest.raises(BadSpec, match="only those are anybody's own"):
        from_mapping(LEAST | {"data": {"private": True}})


def test_what_is_trained_on_which_texts_is_said_in_a_few_words() -> None:
    assert load("micro").in_words == "micro: llama on Python's standard library"
    mix = [{"name": "a", "source": "hub", "path": "owner/set"}, {"name": "b"}]
    assert spec(data={"mix": mix}).in_words == "r: llama on owner/set, Python's standard library"


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("steps", "abc", "round.steps is 'abc'; it must be a whole number"),
        ("steps", 1.5, "round.steps is 1.5; it must be a whole number"),
        ("steps", "9", None),
        ("gather_s", "soon", "round.gather_s is 'soon'; it must be a number"),
        ("pace", "fast", "round.pace is 'fast'; it must be 'steps', 'speed' or 'time'"),
        ("pace", [], "round.pace is []; it must be 'steps', 'speed' or 'time'"),
    ],
)
def test_a_wrong_kind_of_value_is_said_as_people_say_it(setting: str, value: object, said: str | None) -> None:
    """The library's own words are for programmers."""
    table = load("micro").tables()
    table["round"] = table["round"] | {setting: value}
    with nullcontext() if said is None else pytest.raises(BadSpec, match=f": {re.escape(said or '')}$"):
        from_mapping(table, "mine")
