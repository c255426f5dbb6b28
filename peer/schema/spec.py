"""A run's spec: what its peers agree on. It is frozen, hashed and published. A volunteer's settings are in
`settings.py`.

A spec is a stranger's text: every value has bounds, and a value beyond them is refused before anything is done with it.

A spec is TOML. Unknown keys are refused with the closest valid one. Two peers work together only if their specs have
the same hash, so everything that changes the result of a round stands here, and nothing else does.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.resources
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack

from dht.errors import BadSpec
from peer.schema.model_layers import ModelLayers, adapter_layers, layers_of, too_large
from peer.schema.spec_fields import (
    START,
    TEMPLATE_FILE,
    USUAL_DATE,
    AdapterTable,
    AdmissionTable,
    AggregationTable,
    CodecTable,
    DataTable,
    EvaluateTable,
    InnerTable,
    ModelTable,
    OuterTable,
    RoundTable,
    RunTable,
    StartTable,
)  # fmt: skip
from peer.schema.toml_tables import StrictTable, read, to_toml

SHIPPED = ("micro", "tiny", "small", "gpt2-small", "llama-1b")
DRAFTS = ("smollm2-135m-code", "continue-1b", "adapter-8b")
"""Shipped too: their models are loaded when a run of them is started."""
MOST_BATCH_TOKENS = 1 << 24
"""Of one micro-batch: their numbers alone take 128 MiB."""
MOST_EVALUATED_TOKENS = 1 << 26
"""Held-out tokens lie in memory."""
MOST_PARTS = 1 << 15
"""Of a model: each has an outcome in every block, and a line in lists of every peer."""
MOST_COUNTED_TOKENS = 1 << 53
"""Up to here a float counts them exactly."""
ADDED: Mapping[tuple[str, str], Any] = {
    ("data", "format"): "text", ("data", "mix"): (), ("data", "private"): False, ("data", "held_out_by"): "name",
    ("data", "template"): "", ("data", "date"): USUAL_DATE, ("aggregation", "weigh"): "read",
    ("adapter", "scale"): "rank",
}  # fmt: skip
"""Keys that are younger than some runs, and what they say where they are left out: with that a run's digest is what it
was before there were such keys."""
ATTENDS_BEYOND = frozenset({"gpt_oss", "lfm2", "opt", "qwen3_5_text"})
"""Architectures that transformers does not keep inside a document by its positions (LFM2's convolutions read the tokens
before it, as do those of Qwen3.5, whose states go on, too): they learn no conversations."""
MOST_CHARACTERS = 1 << 14
"""Of a spec's text. There are texts that take as long to read as the square of their length."""


@dataclass(frozen=True, kw_only=True)
class RunSpec(StrictTable):
    """One training effort. All its peers share the same bytes of it."""

    run: RunTable
    model: ModelTable
    data: DataTable = field(default_factory=DataTable)
    inner: InnerTable = field(default_factory=InnerTable)
    outer: OuterTable = field(default_factory=OuterTable)
    round: RoundTable = field(default_factory=RoundTable)
    codec: CodecTable = field(default_factory=CodecTable)
    aggregation: AggregationTable = field(default_factory=AggregationTable)
    admission: AdmissionTable = field(default_factory=AdmissionTable)
    start: StartTable | None = None
    adapter: AdapterTable | None = None
    evaluate: EvaluateTable | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start is None and (self.adapter is not None or self.model.tokenizer == START):
            what = "[adapter]" if self.adapter is not None else "model.tokenizer = 'start'"
            raise BadSpec(f"{what} needs a model to start from; add [start]")
        if TEMPLATE_FILE.fullmatch(self.data.template) and self.model.tokenizer != START:
            raise BadSpec(
                f"data.template is {self.data.template!r}, a file that comes with the model from which a run starts; "
                "have model.tokenizer = 'start', or name a template that is shipped"
            )
        if any(each.format == "chat" for each in self.data.sources) and (why := _no_conversations(self.model)):
            raise BadSpec(why)
        context = self.model.context
        products = (
            ("inner.sequences times model.context", self.inner.sequences * context, MOST_BATCH_TOKENS),
            ("data.eval_sequences times model.context", self.data.eval_sequences * context, MOST_EVALUATED_TOKENS),
            ("the tokens of one peer and round that count", self.tokens_cap, MOST_COUNTED_TOKENS),
        )
        for name, tokens, most in products:
            if tokens > most:
                raise BadSpec(f"{name} come to {tokens:,}; they must be at most {most:,}")
        if self.round.fragments > (number := self.trained_layers.number):
            raise BadSpec(f"round.fragments is {self.round.fragments}; the model has {number} layers to share out")

    @property
    def uses_hub(self) -> bool:
        """Whether a peer of it asks huggingface.co for anything."""
        starts_there = self.start is not None and self.start.is_on_hub
        return (
            any(each.source == "hub" for each in self.data.sources)
            or self.model.tokenizer not in ("bytes", START)
            or starts_there
        )

    @property
    def in_words(self) -> str:
        """What is trained on which texts, in a few words: micro: llama on Python's standard library."""
        model = self.model.architecture if self.start is None else self.start.model
        names = {"stdlib": "Python's standard library", "files": "files of each peer"}
        texts = dict.fromkeys(names.get(each.source, each.path) for each in self.data.sources)
        return f"{self.run.name}: {model} on {', '.join(texts)}"

    @property
    def model_layers(self) -> ModelLayers:
        """Of the model, also where an adapter of it is trained."""
        return layers_of(self.model.architecture, self.model.config, self.model.context)

    @property
    def trained_layers(self) -> ModelLayers:
        """Of what rounds average: the model, or its adapter."""
        if self.adapter is None:
            return self.model_layers
        model, table = self.model, self.adapter
        return adapter_layers(
            model.architecture, model.config, model.context, rank=table.rank, targets=table.targets, trains=table.trains
        )

    def digest(self) -> bytes:
        """BLAKE2b-256 of the canonical msgpack of all values: the run's identity. A table that is not there has no part
        in it. Raises BadSpec for a draft, whose start nobody has loaded yet."""
        if self.start is not None and not self.start.digest:
            raise BadSpec("start.digest is missing; homefires bootstrap and homefires demo find it out")
        packed: bytes = msgpack.packb(_sorted(self.tables()))
        return hashlib.blake2b(packed, digest_size=32).digest()

    def tables(self) -> dict[str, dict[str, Any]]:
        """All values by table, but for tables that are not there and keys of `ADDED` that say nothing."""
        tables = {name: values for name, values in dataclasses.asdict(self).items() if values is not None}
        for (table, key), nothing in ADDED.items():
            if table in tables and tables[table][key] == nothing:
                del tables[table][key]
        return tables

    @property
    def tokens_cap(self) -> int:
        """Tokens of one peer and round that count at most: what is read from one round of a fragment to its next.

        Those are H steps for each fragment, or twice as many where a peer's part of a round goes by its speed.
        """
        steps = self.steps_cap // 2 if self.round.pace == "steps" else self.steps_cap
        return steps * self.step_tokens

    @property
    def steps_cap(self) -> int:
        """Inner steps of one peer from one round of a fragment to its next that a norm is held against at most."""
        return 2 * self.round.fragments * self.round.steps

    @property
    def step_tokens(self) -> int:
        """Tokens of one inner step; one that is cut short has fewer."""
        return self.inner.accumulation * self.inner.sequences * self.model.context

    @property
    def windows_most(self) -> int:
        """Windows by which a round advances the cursor of a shard at most: those that a peer reads until it is too late
        to give anything for them."""
        return self.steps_cap * (self.round.max_staleness + 1) * self.step_tokens // self.model.context

    def steps_in(self, round: int) -> int:
        """Inner steps (H) from anchor `round` to the next."""
        table = self.round
        ramped = round - table.sync_rounds + 1
        if ramped <= 0:
            return 1
        if ramped >= table.ramp_rounds:
            return table.steps
        return max(1, table.steps * ramped // table.ramp_rounds)


def _no_room(spec: RunSpec) -> str:
    """Why no home can train what a spec says; empty if one may. Not asked of a spec that is made of another one: the
    model beside an adapter may be too large to be trained, and is loaded and exported."""
    layers, base = spec.trained_layers, "" if spec.adapter is None else spec.adapter.base
    if why := too_large(spec.model_layers, layers, spec.model.context, base):
        return why
    if (parts := layers.parts(spec.codec.part_elements)) > MOST_PARTS:
        return (
            f"codec.part_elements is {spec.codec.part_elements}, which cuts this model into {parts:,} parts; "
            f"there must be at most {MOST_PARTS:,}"
        )
    return ""


def _no_conversations(model: ModelTable) -> str:
    """Why a model learns none, which share windows; empty if it does."""
    if model.architecture in ATTENDS_BEYOND:
        return (
            f"model.architecture is {model.architecture!r}, which cannot be kept inside a conversation; choose another "
            "one for data.format = 'chat'"
        )
    short = model.config.get("rope_original_positions")
    if model.config.get("rope_type") == "longrope" and isinstance(short, int) and model.context > short:
        # By the longest document of a micro-batch transformers chooses how positions turn in all of it.
        return (
            f"model.context is {model.context}, more than model.config.rope_original_positions, which is {short}; for "
            "data.format = 'chat' it is at most that, so that all conversations turn alike"
        )
    return ""


def parse(text: str, source: str = "spec") -> RunSpec:
    """The spec in a TOML text. Raises BadSpec with one line that names `source`, key and value."""
    return from_mapping(parse_tables(text, source), source)


def parse_tables(text: str, source: str = "spec") -> dict[str, Any]:
    """What a TOML text says, whatever that means. Raises BadSpec."""
    if len(text) > MOST_CHARACTERS:
        raise BadSpec(f"{source} has {len(text):,} characters; a spec has at most {MOST_CHARACTERS:,}")
    if not text.strip():
        raise BadSpec(f"{source} is empty; write a spec with: homefires new")
    try:
        table = tomllib.loads(text)
    except RecursionError as error:
        raise BadSpec(f"{source} is no spec: its values are nested too deeply") from error
    except ValueError as error:  # TOMLDecodeError is one; another is a number of too many digits
        raise BadSpec(f"{source} is not TOML: {' '.join(str(error).split())[:200]}") from error
    return table


def from_mapping(table: dict[str, Any], source: str = "spec") -> RunSpec:
    """The spec in nested dictionaries, with the same checks as `parse`."""
    if "judge" in table:
        raise BadSpec(f"{source}: the table [judge] is called [aggregation] now, and its key 'reducer' is 'rule'")
    spec = read(RunSpec, table, source)
    if why := _no_room(spec):
        raise BadSpec(f"{source}: {why}")
    return spec


def load(name_or_path: str) -> RunSpec:
    """A shipped spec by name, or a TOML file by path."""
    return parse(read_text(name_or_path), name_or_path)


def read_text(name_or_path: str) -> str:
    """The TOML text behind a shipped name or a path."""
    if name_or_path in (*SHIPPED, *DRAFTS):
        return importlib.resources.files("peer.schema.runs").joinpath(f"{name_or_path}.toml").read_text()
    try:
        return Path(name_or_path).read_text()
    except UnicodeDecodeError as error:
        raise BadSpec(f"{name_or_path} is not TOML: it is not UTF-8 text") from error
    except OSError as error:
        raise BadSpec(
            f"{name_or_path} cannot be read ({error.strerror}); shipped specs: {', '.join((*SHIPPED, *DRAFTS))}"
        ) from error


def dump(spec: RunSpec) -> str:
    """TOML that parses to an equal spec."""
    lines: list[str] = []
    for table, values in spec.tables().items():
        nested = {key: value for key, value in values.items() if _is_table(value)}
        lines += [f"[{table}]", to_toml({key: value for key, value in values.items() if key not in nested})]
        for key, items in nested.items():
            if isinstance(items, dict):
                lines += [f"[{table}.{key}]", to_toml(items)]
            else:
                lines += [line for item in items for line in (f"[[{table}.{key}]]", to_toml(item))]
    return "\n".join(lines)


def _is_table(value: Any) -> bool:
    """Or several of them; a list of texts is none."""
    return isinstance(value, dict) or (isinstance(value, tuple) and not any(isinstance(item, str) for item in value))


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return [[key, _sorted(value[key])] for key in sorted(value)]
    if isinstance(value, tuple):
        return [_sorted(item) for item in value]
    return value
