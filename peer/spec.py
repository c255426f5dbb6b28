"""What is agreed (RunSpec: frozen, hashed, published) and what is mine (PeerSettings: never published).

A spec is TOML. Unknown keys are refused with the closest valid one. Two peers work together only
if their specs hash alike, so everything that changes the result of a round stands here, and
nothing else does.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import importlib.resources
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgpack
from pydantic import ConfigDict, TypeAdapter, ValidationError

from dht.errors import BadSpec
from peer.limits import schedule as schedules

SHIPPED = ("micro", "tiny", "gpt2-small", "llama-1b")
UNLIMITED = 1_000_000
"""Inner steps: more than any round has."""
LEAST_MBPS, MOST_MBPS = 0.5, 1e6
"""A line below the first holds every round up; one beyond the last is a mistake in the unit."""
MAX_FRAGMENTS = 32
MAX_NAME = 32
"""Characters of a peer's name: what a head record takes."""
MAX_PROGRAM, MAX_PROGRAMS = 64, 64
"""Characters in the name of a program, and names."""
MOST_IDLE_MIN = 7 * 24 * 60
LEAST_AND_MOST = {
    "max_temperature_c": (30, 120), "max_power_w": (10, 5000), "monthly_gb": (0.1, 1e6), "disk_gb": (0.1, 1e6),
    "memory_gb": (0.5, 1e6),
}  # fmt: skip
"""Of settings where 0 means none: what lies beyond is a mistake in the unit, and no peer could train with it."""
AT_START = ("name", "device", "threads", "listen", "metrics_port")
"""Settings that take effect when the peer starts; all others at once."""


def _require(value: float, name: str, *, low: float, high: float = float("inf")) -> None:
    if not low <= value <= high:
        bound = f"at least {low:g}" if high == float("inf") else f"between {low:g} and {high:g}"
        raise BadSpec(f"{name} is {value:g}; it must be {bound}")


class _Table:
    """Refuses unknown keys when pydantic validates a subclass."""

    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True)
class RunTable(_Table):
    name: str
    """What people call this run: letters, digits, dot, dash, underscore."""
    seed: int = 0
    """Seeds the initial parameters and the order of the data."""
    founders: int = 1
    """Peers that must be present before round 0; together they are the first electorate."""
    rounds: int = 0
    """Rounds until the run is finished; 0 means until somebody stops it. Learning-rate
    schedules that need an end use `inner.schedule_rounds`."""

    def __post_init__(self) -> None:
        if not self.name or not all(char.isalnum() or char in "._-" for char in self.name) or len(self.name) > 64:
            raise BadSpec(f"run.name is {self.name!r}; use 1 to 64 letters, digits, dots, dashes and underscores")
        _require(self.founders, "run.founders", low=1, high=16)
        _require(self.rounds, "run.rounds", low=0)


@dataclass(frozen=True, kw_only=True)
class ModelTable(_Table):
    architecture: str
    """A causal language model built into transformers, by its model type: llama, gpt2, qwen3, …"""
    context: int
    """Tokens per sequence."""
    tokenizer: str = "bytes"
    """`bytes` (256 values and one end-of-text) or the name of a Hugging Face tokenizer."""
    config: dict[str, int | float | str | bool] = field(default_factory=dict)
    """Passed to the architecture's transformers configuration class."""

    def __post_init__(self) -> None:
        _require(self.context, "model.context", low=2)


@dataclass(frozen=True, kw_only=True)
class DataTable(_Table):
    source: Literal["stdlib", "files", "hub"] = "stdlib"
    """`stdlib`: the source text of the Python standard library that runs the peer.
    `files`: text or parquet files of this machine under `path`. `hub`: a streamed Hugging Face data set."""
    path: str = ""
    """A folder or file for `files`; the data set's name for `hub`."""
    subset: str = ""
    """Configuration name of a `hub` data set."""
    split: str = "train"
    """Split of a `hub` data set."""
    text_field: str = "text"
    """Column that holds the text, in parquet files and `hub` data sets."""
    held_out_every: int = 50
    """One file (or document) in this many, chosen by hash, is held out for evaluation."""
    eval_sequences: int = 256
    """Held-out sequences per evaluation."""
    eval_every: int = 1
    """Rounds between evaluations; the last round is always evaluated."""

    def __post_init__(self) -> None:
        if self.source != "stdlib" and not self.path:
            raise BadSpec(f"data.path is empty; data.source = {self.source!r} needs one")
        _require(self.held_out_every, "data.held_out_every", low=2)
        _require(self.eval_sequences, "data.eval_sequences", low=1)
        _require(self.eval_every, "data.eval_every", low=1)


@dataclass(frozen=True, kw_only=True)
class InnerTable(_Table):
    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon`: Muon for the hidden matrices; AdamW for embeddings, the output head, norms and biases."""
    learning_rate: float = 4e-4
    """Peak (4e-4 in arXiv:2311.08105). Muon's steps are scaled to AdamW's, so it serves both (arXiv:2502.16982)."""
    muon_momentum: float = 0.95
    """Nesterov momentum of Muon (0.95 in arXiv:2502.16982)."""
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.1
    """Applied to matrices only, by either optimizer."""
    clip: float = 1.0
    """Largest gradient norm; 0 means no clipping."""
    sequences: int = 8
    """Sequences per micro-batch."""
    accumulation: int = 1
    """Micro-batches per inner step."""
    warmup_steps: int = 0
    """Inner steps of linear warm-up, counted over the run's schedule so that a late joiner is at the right rate."""
    schedule_rounds: int = 0
    """Rounds over which the cosine falls; 0 means `run.rounds`, and a constant rate if that is 0 too."""
    final_fraction: float = 0.1
    """The cosine ends at this fraction of the peak."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto`: bfloat16 autocast where the device has it (CUDA), float32 elsewhere."""

    def __post_init__(self) -> None:
        _require(self.learning_rate, "inner.learning_rate", low=0)
        _require(self.muon_momentum, "inner.muon_momentum", low=0, high=0.9999)
        _require(self.beta1, "inner.beta1", low=0, high=0.9999)
        _require(self.beta2, "inner.beta2", low=0, high=0.99999)
        _require(self.weight_decay, "inner.weight_decay", low=0)
        _require(self.clip, "inner.clip", low=0)
        _require(self.warmup_steps, "inner.warmup_steps", low=0)
        _require(self.schedule_rounds, "inner.schedule_rounds", low=0)
        _require(self.sequences, "inner.sequences", low=1)
        _require(self.accumulation, "inner.accumulation", low=1)
        _require(self.final_fraction, "inner.final_fraction", low=0, high=1)


@dataclass(frozen=True, kw_only=True)
class OuterTable(_Table):
    learning_rate: float = 0.7
    momentum: float = 0.9
    """Nesterov momentum (0.7 / 0.9 in arXiv:2311.08105, tuned for more than a hundred rounds)."""
    momentum_warmup_rounds: int = 0
    """Rounds over which momentum grows linearly from 0."""

    def __post_init__(self) -> None:
        _require(self.learning_rate, "outer.learning_rate", low=0)
        _require(self.momentum, "outer.momentum", low=0, high=0.999)
        _require(self.momentum_warmup_rounds, "outer.momentum_warmup_rounds", low=0)


@dataclass(frozen=True, kw_only=True)
class RoundTable(_Table):
    steps: int = 500
    """Inner steps per round once the ramp is over (H)."""
    fragments: int = 1
    """Into how many sets of layers the model is divided. Round r averages set r mod `fragments` alone, so that a round
    sends so much less; the others train on, and each of them is averaged every `fragments` rounds."""
    sync_rounds: int = 0
    """First rounds with H = 1 (EDiT's synchronous warm-up, arXiv:2412.07210)."""
    ramp_rounds: int = 0
    """Rounds after those over which H grows linearly from 1 to `steps`."""
    pace: Literal["steps", "speed", "time"] = "steps"
    """When a peer's part of a round is done. `steps`: after H inner steps. `speed`: after its share of H, which nearly
    the fastest makes (DyLU, arXiv:2401.09135). `time`: when `max_train_s` are over (A-EDiT, arXiv:2412.07210), and H is
    what the learning rate takes for a round. Twice H at most: more counts nothing."""
    max_train_s: float = 3600.0
    """And not after this time, counted from when its anchor was agreed, even if it has not made all steps."""
    min_steps: int = 0
    """A coordinator waits for others until those who are ready have made so many inner steps together, but no longer
    than `gather_s`."""
    overlap: Literal["none", "layerwise", "streaming"] = "none"
    """What a peer does while its round is agreed. `none`: it waits. `layerwise`: it waits, but makes the next inner
    step while the update is applied layer by layer (arXiv:2412.07210). `streaming`: it makes the inner steps of the
    next round, and keeps them when the new anchor comes (arXiv:2501.18512)."""
    delay: int = UNLIMITED
    """With `streaming`, inner steps at most before the new anchor comes; then the peer waits. 0 is as `none`."""
    merge: Literal["rebase", "interpolate"] = "interpolate"
    """What a peer that streams goes on from. `interpolate`: a point between the new anchor and its own parameters,
    which counts a part of its work less and repeats another. `rebase`: that anchor less all that no update has counted,
    to the bit; at equal tokens it learns less (`tests/benchmarks/README.md`, parity). A sparse codec always rebases."""
    alpha: float = 0.5
    """With `interpolate`, the share of its own parameters: 0 drops the steps of the delay, 1 never merges."""
    gather_s: float = 60.0
    """The first coordinator waits this long after its own freeze for the rest of the electorate, at most."""
    ack_s: float = 8.0
    """Wait for promises, for norms after the parts, and for what is asked for again."""
    exchange_s: float = 120.0
    """Wait for parts, and again for means."""
    patience: float = 4.0
    """How many deviations later than usual a peer may be before the round goes on without it. The waits above are
    the longest there are: after three rounds each is learned from when the others came in the last ones."""
    stagger_s: float = 5.0
    """Further wait per skipped coordinator."""
    keep_rounds: int = 8
    """Rounds that a fork can undo: for so long a peer keeps its own encoded contributions and its votes."""
    gamma: float = 0.75
    """Age discount of a contribution that a round missed."""
    max_staleness: int = 16
    """Rounds after which what a peer learned is no longer taken."""
    takeover_s: float = 600.0
    """Peers that waited this long for a lost majority go on without it, which may fork; 0 means never."""
    min_round_s: int = 10
    """No round is shorter, so that a few who take over cannot make a heavy chain in no time: more than the length of a
    round divided by the peers. 0: only among people you trust."""
    audit: float = 0.02
    """Fraction of the parts that are reduced a second time by another peer."""
    snapshot_rounds: int = 16
    """Every so many rounds a peer writes a snapshot of the anchor for newcomers."""

    def __post_init__(self) -> None:
        _require(self.steps, "round.steps", low=1)
        _require(self.sync_rounds, "round.sync_rounds", low=0)
        _require(self.ramp_rounds, "round.ramp_rounds", low=0)
        _require(self.delay, "round.delay", low=0)
        _require(self.alpha, "round.alpha", low=0, high=1)
        _require(self.min_steps, "round.min_steps", low=0)
        _require(self.keep_rounds, "round.keep_rounds", low=1)
        _require(self.fragments, "round.fragments", low=1, high=MAX_FRAGMENTS)
        if 1 < self.fragments >= self.keep_rounds:
            raise BadSpec(
                f"round.fragments is {self.fragments} and round.keep_rounds {self.keep_rounds}: a peer keeps the last "
                f"round of every fragment and one more; set keep_rounds to at least {self.fragments + 1}"
            )
        _require(self.gamma, "round.gamma", low=0, high=1)
        _require(self.max_staleness, "round.max_staleness", low=1)
        _require(self.takeover_s, "round.takeover_s", low=0)
        _require(self.min_round_s, "round.min_round_s", low=0)
        _require(self.audit, "round.audit", low=0, high=1)
        _require(self.snapshot_rounds, "round.snapshot_rounds", low=self.keep_rounds)
        for name in ("max_train_s", "gather_s", "ack_s", "exchange_s", "stagger_s"):
            _require(getattr(self, name), f"round.{name}", low=0.05)
        _require(self.patience, "round.patience", low=1)

    @property
    def silence_s(self) -> float:
        """Silence after which the next coordinator takes the round over, at most."""
        return max(self.exchange_s, self.ack_s) + 2 * self.ack_s


@dataclass(frozen=True, kw_only=True)
class CodecTable(_Table):
    wire: Literal["float32", "float16", "int8", "int4", "sparse"] = "int4"
    """Encoding of contributions and of the mean: 4, 2, 1.03 or 0.53 bytes per parameter. `sparse`: the largest 64 of
    4,096, 0.03 bytes per parameter, and the largest 256 of the mean, 0.16, of whole 4,096 of a layer."""
    part_elements: int = 1_048_576
    """Largest part: what one message carries and one reducer averages."""

    def __post_init__(self) -> None:
        _require(self.part_elements, "codec.part_elements", low=64, high=4_194_304)


@dataclass(frozen=True, kw_only=True)
class JudgeTable(_Table):
    reducer: Literal["mean", "edit", "centered-clip", "agreement"] = "edit"
    """How contributions combine. `mean`: by tokens. `edit`: large norms count less (arXiv:2412.07210). `centered-clip`:
    what is far from the last mean is drawn towards it (arXiv:2012.10333). `agreement`: `edit`, and what points away
    from the last mean counts less (arXiv:2007.13137)."""
    warmup_rounds: int = 10
    """Accepted norms of one peer and layer before they are used to refuse or to clip one."""
    alpha: float = 0.1
    """Weight of the newest norm in a peer's usual norm."""
    threshold: float = 3.0
    """Deviations above its usual norm at which a contribution is refused."""
    deviation_floor: float = 0.5
    """Least deviation, as a share of the usual norm: peers that are very even are not refused for a trifle."""
    temperature: float = 4.0
    """Of the softmax over norms, in medians of the group; larger means closer to weights by tokens."""
    floor: float = 0.1
    """Below this share of the group's median norm a contribution is refused: softmax would reward it. 0: never."""
    clip: float = 3.0
    """Largest norm that counts in full, in medians: of one contribution, and of the combination."""
    rejections: int = 3
    """After so many refusals in a row a peer's usual norm is learned anew."""
    cooldown_rounds: int = 8
    """Rounds for which a peer that was caught lying reduces nothing and counts nothing."""

    def __post_init__(self) -> None:
        _require(self.warmup_rounds, "judge.warmup_rounds", low=1, high=1000)
        _require(self.alpha, "judge.alpha", low=0.001, high=1)
        _require(self.threshold, "judge.threshold", low=0.1, high=1000)
        _require(self.deviation_floor, "judge.deviation_floor", low=0, high=10)
        _require(self.temperature, "judge.temperature", low=0.01, high=1000)
        _require(self.floor, "judge.floor", low=0, high=0.99)
        _require(self.clip, "judge.clip", low=1, high=1000)
        _require(self.rejections, "judge.rejections", low=1, high=255)
        _require(self.cooldown_rounds, "judge.cooldown_rounds", low=1, high=1000)


@dataclass(frozen=True, kw_only=True)
class AdmissionTable(_Table):
    policy: Literal["open", "invited"] = "open"
    """`open`: everyone may join. `invited`: those alone whom the organiser has admitted, for an invite with a token."""


@dataclass(frozen=True, kw_only=True)
class RunSpec(_Table):
    """One training effort. All its peers share the same bytes of it."""

    run: RunTable
    model: ModelTable
    data: DataTable = field(default_factory=DataTable)
    inner: InnerTable = field(default_factory=InnerTable)
    outer: OuterTable = field(default_factory=OuterTable)
    round: RoundTable = field(default_factory=RoundTable)
    codec: CodecTable = field(default_factory=CodecTable)
    judge: JudgeTable = field(default_factory=JudgeTable)
    admission: AdmissionTable = field(default_factory=AdmissionTable)

    def digest(self) -> bytes:
        """BLAKE2b-256 of the canonical msgpack of all values: the run's identity."""
        packed: bytes = msgpack.packb(_sorted(dataclasses.asdict(self)))
        return hashlib.blake2b(packed, digest_size=32).digest()

    @property
    def tokens_cap(self) -> int:
        """Tokens of one peer and round that count at most: twice what is read from one round of a fragment to its next.

        Those are H steps for each fragment.
        """
        inner = self.inner
        return 2 * self.round.fragments * self.round.steps * inner.accumulation * inner.sequences * self.model.context

    def steps_in(self, round: int) -> int:
        """Inner steps (H) from anchor `round` to the next."""
        table = self.round
        ramped = round - table.sync_rounds + 1
        if ramped <= 0:
            return 1
        if ramped >= table.ramp_rounds:
            return table.steps
        return max(1, table.steps * ramped // table.ramp_rounds)


@dataclass(frozen=True, kw_only=True)
class PeerSettings(_Table):
    """What one volunteer chooses. Stays on the machine, but for the name."""

    name: str = ""
    """Told to the other peers; empty means the last letters of the peer id."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""
    threads: int = 0
    """CPU threads of the trainer; 0 leaves torch's choice."""
    min_step_s: float = 0.0
    """An inner step takes at least this long, so that whoever sits at the machine hardly notices; 0 means no pause."""
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    """Addresses to listen on; port 0 takes a free one."""
    chain_mb: int = 4096
    """Room on disk for updates that others may need; what no fork and no newcomer can need any more goes first."""
    upload_mbps: float = 0.0
    """Megabits per second that this peer sends at most, to all others together; 0 means no cap. A little less than the
    line carries leaves room for whoever else uses it."""
    download_mbps: float = 0.0
    """Likewise what it takes in."""
    newcomers_mbps: float = 100.0
    """Of what it sends, newcomers get at most so much for a snapshot, between rounds; 0 gives none."""
    schedule: str = ""
    """When it may train, by the clock of this machine, such as `mon-fri 22:00-07:00, sat-sun 00:00-24:00`; empty means
    always."""
    idle_min: float = 0.0
    """It trains only after nobody has used the machine for so many minutes; 0 means that it does not matter."""
    on_battery: bool = False
    """Whether it trains on battery, too."""
    pause_for: tuple[str, ...] = ()
    """Names of programs, such as a game's: it pauses while one of them runs."""
    max_temperature_c: float = 0.0
    """Of the GPU, in degrees Celsius: it rests between micro-batches as much as that takes; 0 means no limit."""
    max_power_w: float = 0.0
    """Likewise what the GPU draws on average, in watts."""
    monthly_gb: float = 0.0
    """Traffic in both directions in a calendar month, in 10^9 bytes; 0 means no quota."""
    disk_gb: float = 0.0
    """What all of the run folder may take, in 10^9 bytes; 0 means no quota. The chain gets half of it at most."""
    memory_gb: float = 0.0
    """What all processes of the peer may have resident, in 10^9 bytes; 0 means no limit."""
    nice: int = 10
    """Niceness of the trainer, 0 to 19: the higher, the more it stands back for other programs."""
    metrics_port: int = 0
    """Metrics for Prometheus are served at this port of loopback; 0 means none."""

    def __post_init__(self) -> None:
        if len(self.name) > MAX_NAME or not self.name.isprintable():
            raise BadSpec(f"name is {self.name!r}; use at most {MAX_NAME} printable characters")
        _require(self.threads, "threads", low=0)
        _require(self.min_step_s, "min_step_s", low=0, high=3600)
        _require(self.chain_mb, "chain_mb", low=0)
        for name in ("upload_mbps", "download_mbps"):
            cap = getattr(self, name)
            if cap != 0 and not LEAST_MBPS <= cap <= MOST_MBPS:
                range = f"between {LEAST_MBPS:g} and {MOST_MBPS:g} (megabits per second)"
                raise BadSpec(f"{name} is {cap:g}; it must be 0 (no cap) or {range}")
        _require(self.newcomers_mbps, "newcomers_mbps", low=0, high=MOST_MBPS)
        _require(self.metrics_port, "metrics_port", low=0, high=65_535)
        for name in ("device", "listen"):
            if not "".join(getattr(self, name)).isprintable():
                raise BadSpec(f"{name} has characters that cannot be printed")
        schedules.parse(self.schedule)
        if not all(name.isprintable() and 0 < len(name) <= MAX_PROGRAM for name in self.pause_for):
            named = ", ".join(self.pause_for)
            raise BadSpec(f"pause_for is {named!r}; a program has 1 to {MAX_PROGRAM} printable characters")
        _require(len(self.pause_for), "the number of programs in pause_for", low=0, high=MAX_PROGRAMS)
        _require(self.nice, "nice", low=0, high=19)
        _require(self.idle_min, "idle_min", low=0, high=MOST_IDLE_MIN)
        for name, (low, high) in LEAST_AND_MOST.items():
            value = getattr(self, name)
            if value != 0 and not low <= value <= high:
                raise BadSpec(f"{name} is {value:g}; it must be 0 (no limit) or between {low:g} and {high:g}")

    @property
    def chain_bytes(self) -> int:
        """Room for updates: `chain_mb`, and of `disk_gb` no more than a half."""
        asked = self.chain_mb << 20
        return min(asked, int(self.disk_gb * 1e9) // 2) if self.disk_gb else asked


def parse(text: str, source: str = "spec") -> RunSpec:
    """The spec in a TOML text. Raises BadSpec with one line that names `source`, key and value."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadSpec(f"{source} is not TOML: {error}") from error
    return from_mapping(table, source)


def from_mapping(table: dict[str, Any], source: str = "spec") -> RunSpec:
    """The spec in nested dictionaries, with the same checks as `parse`."""
    try:
        return TypeAdapter(RunSpec).validate_python(table)
    except ValidationError as error:
        raise BadSpec(f"{source}: {_explain(error)}") from error
    except BadSpec as error:
        raise BadSpec(f"{source}: {error}") from error


def load(name_or_path: str) -> RunSpec:
    """A shipped spec by name, or a TOML file by path."""
    return parse(read_text(name_or_path), name_or_path)


def read_text(name_or_path: str) -> str:
    """The TOML text behind a shipped name or a path."""
    if name_or_path in SHIPPED:
        return importlib.resources.files("peer.runs").joinpath(f"{name_or_path}.toml").read_text()
    try:
        return Path(name_or_path).read_text()
    except UnicodeDecodeError as error:
        raise BadSpec(f"{name_or_path} is not TOML: it is not UTF-8 text") from error
    except OSError as error:
        raise BadSpec(
            f"{name_or_path} cannot be read ({error.strerror}); shipped specs: {', '.join(SHIPPED)}"
        ) from error


def settings_from(assignments: Sequence[str], kept: Mapping[str, Any] | None = None, **values: Any) -> PeerSettings:
    """A volunteer's settings from `settings.key=value` words, over those in `values`, over those that were `kept`.

    An empty value in `values` means that nothing was said. Raises BadSpec.
    """
    table = dict(kept or {}) | {key: value for key, value in values.items() if value}
    for assignment in assignments:
        key, separator, value = assignment.partition("=")
        if not separator or not key.startswith("settings."):
            raise BadSpec(f"{assignment!r} is not of the form settings.KEY=VALUE")
        table[key.removeprefix("settings.")] = value
    return settings_of(table)


def settings_of(table: Mapping[str, Any], source: str = "settings") -> PeerSettings:
    """A volunteer's settings by name, each a value or a text that gives one; a text for several has commas.

    Raises BadSpec with one line that names `source`, key and value.
    """
    several = {each.name for each in dataclasses.fields(PeerSettings) if isinstance(each.default, tuple)}
    whole = {key: _split(value) if key in several else value for key, value in table.items()}
    try:
        return TypeAdapter(PeerSettings).validate_python(whole)
    except ValidationError as error:
        raise BadSpec(f"{source}: {_explain(error, PeerSettings)}") from error


def _split(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return tuple(word.strip() for word in value.split(",") if word.strip())


def dump_settings(settings: PeerSettings) -> str:
    """TOML of what differs from the defaults; `settings_of` takes what it parses to."""
    chosen = {
        each.name: value
        for each in dataclasses.fields(settings)
        if (value := getattr(settings, each.name)) != each.default
    }
    return "".join(f"{name} = {_toml(value)}\n" for name, value in chosen.items())


def dump(spec: RunSpec) -> str:
    """TOML that parses to an equal spec."""
    lines: list[str] = []
    for table, values in dataclasses.asdict(spec).items():
        nested = {key: value for key, value in values.items() if isinstance(value, dict)}
        lines += [f"[{table}]", *(f"{key} = {_toml(value)}" for key, value in values.items() if key not in nested)]
        for key, items in nested.items():
            lines += [f"[{table}.{key}]", *(f"{name} = {_toml(item)}" for name, item in items.items())]
    return "\n".join(lines) + "\n"


def _toml(value: str | bool | int | float | tuple[str, ...]) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # the escapes of JSON are escapes of TOML
    return repr(value)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return [[key, _sorted(value[key])] for key in sorted(value)]
    return value


def _explain(error: ValidationError, root: type = RunSpec) -> str:
    first = error.errors()[0]
    where = ".".join(str(step) for step in first["loc"] if not str(step).endswith("]"))
    if first["type"] == "unexpected_keyword_argument":
        close = difflib.get_close_matches(str(first["loc"][-1]), _keys_beside(first["loc"], root), n=1, cutoff=0.4)
        hint = f"; did you mean {close[0]!r}?" if close else f"; valid: {', '.join(_keys_beside(first['loc'], root))}"
        return f"unknown key {where!r}{hint}"
    if first["type"] == "missing":
        return f"{where} is missing"
    if isinstance(cause := first.get("ctx", {}).get("error"), BadSpec):
        return str(cause)
    return f"{where} is {first['input']!r}: {first['msg']}"


def _keys_beside(loc: tuple[int | str, ...], root: type) -> list[str]:
    tables = {table.name: table.default_factory for table in dataclasses.fields(root)}
    kinds = {"run": RunTable, "model": ModelTable}
    if len(loc) == 1:
        return list(tables)
    kind: Any = kinds.get(str(loc[0])) or tables[str(loc[0])]
    return [key.name for key in dataclasses.fields(kind)]
