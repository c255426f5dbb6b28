"""The tables of a spec: the meaning of each key, and its bounds. `spec.py` has the conditions between them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from dht.errors import BadSpec
from peer.schema.architectures import check_config
from peer.schema.keys.allowed_values import Value
from peer.schema.toml_tables import Bounds, Characters, StrictTable, require, shortened

UNLIMITED = 1_000_000
"""Inner steps: more than any round has."""
MAX_FRAGMENTS = 32
MOST_PROMPTS = 8
PROMPT_CHARACTERS = 500
MOST_FOUNDERS = 16
MOST_ROUNDS = 10_000_000
YEAR_S = 365 * 86_400
"""No wait is longer: clocks and timers take no more than some centuries."""
HUB_NAME = re.compile(r"(?!buckets/)[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
"""Of a tokenizer or a data set at huggingface.co: its owner and its name. No path of this machine, no address."""
START = "start"
"""Names the tokenizer that came with the model from which a run starts."""
DIGEST = re.compile(r"[0-9a-f]{64}")
SOURCE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,31}")
SPLIT_NAME = re.compile(r"\w+(\.\w+)*", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class RunTable(StrictTable):
    name: str
    """What people call this run: letters, digits, dot, dash, underscore."""
    seed: Annotated[int, Bounds(-(2**63), 2**63 - 1)] = 0
    """Seeds the initial parameters and the order of the data."""
    founders: Annotated[int, Bounds(1, MOST_FOUNDERS)] = 1
    """Peers that must be present before round 0; together they are the first electorate."""
    rounds: Annotated[int, Bounds(0, MOST_ROUNDS)] = 0
    """Rounds until the run is finished; 0 means until somebody stops it. Learning-rate
    schedules that need an end use `inner.schedule_rounds`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name or not all(char.isalnum() or char in "._-" for char in self.name) or len(self.name) > 64:
            raise BadSpec(
                f"run.name is {shortened(self.name)}; use 1 to 64 letters, digits, dots, dashes and underscores"
            )


@dataclass(frozen=True, kw_only=True)
class ModelTable(StrictTable):
    architecture: str
    """A causal language model built into transformers, by its model type: one that `peer/schema/architectures.py`
    lists."""
    context: Annotated[int, Bounds(2, 1 << 20)]
    """Tokens per sequence."""
    tokenizer: str = "bytes"
    """`bytes` (256 values and one end-of-text), OWNER/NAME of a tokenizer at huggingface.co, or `start`: the one that
    came with the model from which the run starts."""
    config: dict[str, Value] = field(default_factory=dict)
    """Passed to the architecture's transformers configuration class: keys that `peer/schema/architectures.py` lists.
    With another tokenizer than `bytes` it has `vocab_size`, so that nobody must load the tokenizer to know the
    model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_config(self.architecture, self.config)
        if self.tokenizer not in ("bytes", START) and not HUB_NAME.fullmatch(self.tokenizer):
            raise BadSpec(
                f"model.tokenizer is {shortened(self.tokenizer)}; use 'bytes', OWNER/NAME of a tokenizer at "
                "huggingface.co, or 'start' for that of the model from which the run starts"
            )
        if self.tokenizer != "bytes" and "vocab_size" not in self.config:
            raise BadSpec(f"model.config.vocab_size is missing; a run with the tokenizer {self.tokenizer!r} says it")


@dataclass(frozen=True, kw_only=True)
class MixTable(StrictTable):
    """One of the sources that a run reads."""

    name: str = ""
    """What its held-out loss is called: letters, digits, dash, underscore. A volunteer's files of it lie in the folder
    of this name in `settings.data_path`."""
    weight: Annotated[float, Bounds(0.001, 1000)] = 1.0
    """Its share of the windows that are read, and of the held-out loss, is this divided by the sum of all weights."""
    source: Literal["stdlib", "files", "hub"] = "stdlib"
    """This and the next ones are as in [data]."""
    path: Annotated[str, Characters(256)] = ""
    subset: Annotated[str, Characters(128)] = ""
    split: Annotated[str, Characters(128)] = "train"
    text_field: Annotated[str, Characters(128)] = "text"
    format: Literal["text", "chat"] = "text"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not SOURCE_NAME.fullmatch(self.name):
            raise BadSpec(f"data.mix.name is {shortened(self.name)}; use 1 to 32 letters, digits, dashes, underscores")
        _check_source(self, "data.mix")


MOST_SOURCES = 16
TEMPLATES = ("chatml", "deepseek", "qwen3")
"""Chat templates that are shipped for training."""
TEMPLATE_FILE = re.compile(r"[A-Za-z0-9_-]{1,60}\.jinja")
USUAL_DATE = "2025-01-01"
"""Today, as templates see it, in runs that name no other day."""


@dataclass(frozen=True, kw_only=True)
class DataTable(StrictTable):
    source: Literal["stdlib", "files", "hub"] = "stdlib"
    """`stdlib`: the source text of the Python standard library that runs the peer.
    `files`: text, parquet or .jsonl files of each volunteer's machine. `hub`: a streamed Hugging Face data set."""
    path: Annotated[str, Characters(256)] = ""
    """For `files` what they are, in words or as the organiser's own path: which folder is read, each volunteer says in
    `settings.data_path`. For `hub` OWNER/NAME of the data set."""
    subset: Annotated[str, Characters(128)] = ""
    """Configuration name of a `hub` data set."""
    split: Annotated[str, Characters(128)] = "train"
    """Split of a `hub` data set."""
    text_field: Annotated[str, Characters(128)] = "text"
    """Column that holds the text, in parquet and .jsonl files and `hub` data sets. Of conversations the key of their
    messages; where nothing else is said, `messages` or `conversations`."""
    held_out_every: Annotated[int, Bounds(2, 1_000_000)] = 50
    """One document in this many, chosen by hash, is held out for evaluation."""
    held_out_by: Literal["name", "content"] = "name"
    """Which hash: that of its text, so that copies are on one side, and so are the pieces of a long one where there are
    documents enough; or of its name, in runs that were founded before. Rows of `hub` are held out by their text."""
    eval_sequences: Annotated[int, Bounds(1, 1 << 20)] = 256
    """Held-out sequences per evaluation."""
    eval_every: Annotated[int, Bounds(1, MOST_ROUNDS)] = 1
    """Rounds between evaluations; the last round is always evaluated."""
    format: Literal["text", "chat"] = "text"
    """`chat`: conversations, of which the assistant's answers alone are predicted. A line of a file is one, as JSON:
    `{"messages": [{"role": …, "content": …}, …]}` or `{"conversations": [{"from": …, "value": …}, …]}`; with `tools`,
    `tool_calls`, `reasoning_content` and what else a chat template takes. One with `"weight": 0` is only read."""
    template: str = ""
    """How conversations are written, in place of the tokenizer's own chat template: one that is shipped (`chatml`,
    `qwen3` for Qwen3 and its like, `deepseek` for what was distilled from DeepSeek-R1), or NAME.jinja beside the
    tokenizer of the model from which the run starts."""
    date: str = USUAL_DATE
    """YYYY-MM-DD: today, for a template that writes it. All peers read the same text, on whatever day."""
    mix: tuple[MixTable, ...] = ()
    """Several sources. With them `source`, `path`, `subset`, `split`, `text_field` and `format` say nothing."""
    private: bool = False
    """Of `files`: each volunteer's are other texts. Then each reads all of its own, and how far it has come is its own
    matter: the run's cursors count for nobody."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.private and any(each.source != "files" for each in self.sources):
            raise BadSpec("data.private is true, but not all of its sources are 'files'; only those are anybody's own")
        names = [each.name for each in self.mix]
        if self.mix and not (2 <= len(names) <= MOST_SOURCES and len(set(names)) == len(names)):
            raise BadSpec(
                f"[[data.mix]] has {len(names)} sources; use 2 to {MOST_SOURCES}, each with a name of its own"
            )
        if not self.mix:
            _check_source(self, "data")
        if self.template and self.template not in TEMPLATES and not TEMPLATE_FILE.fullmatch(self.template):
            raise BadSpec(
                f"data.template is {shortened(self.template)}; use {', '.join(TEMPLATES)}, or NAME.jinja of a file "
                "beside the model from which the run starts"
            )
        if not _is_day(self.date):
            raise BadSpec(f"data.date is {shortened(self.date)}; write a day as YYYY-MM-DD")

    @property
    def sources(self) -> tuple[DataTable | MixTable, ...]:
        """What is read: the sources of the mix, or the one that is named here."""
        return self.mix or (self,)

    @property
    def reads_files(self) -> bool:
        """Whether a volunteer has to name any."""
        return any(each.source == "files" for each in self.sources)

    def alone(self, part: MixTable) -> DataTable:
        """A table of this source and no other."""
        return replace(
            self, source=part.source, path=part.path, subset=part.subset, split=part.split, text_field=part.text_field,
            format=part.format, mix=(),
        )  # fmt: skip


def _is_day(text: str) -> bool:
    """By hand: what a plan loads has no clock, nor the module that brings one."""
    found = re.fullmatch(r"((?:19|20)[0-9]{2})-([0-9]{2})-([0-9]{2})", text)
    if found is None:
        return False
    year, month, day = map(int, found.groups())
    short = {2: 29 if year % 4 == 0 and year != 1900 else 28, 4: 30, 6: 30, 9: 30, 11: 30}
    return 1 <= month <= 12 and 1 <= day <= short.get(month, 31)


def _check_source(table: DataTable | MixTable, name: str) -> None:
    if table.source != "stdlib" and not table.path:
        raise BadSpec(f"{name}.path is empty; {name}.source = {table.source!r} needs one")
    if table.source == "hub" and not HUB_NAME.fullmatch(table.path):
        raise BadSpec(f"{name}.path is {shortened(table.path)}; use OWNER/NAME of a data set at huggingface.co")
    if not SPLIT_NAME.fullmatch(table.split):
        raise BadSpec(f"{name}.split is {shortened(table.split)}; use letters, digits, dots and underscores")
    if table.format == "chat" and table.source == "stdlib":
        raise BadSpec(f"{name}.format is 'chat', and {name}.source 'stdlib' holds no conversations; use files or hub")


@dataclass(frozen=True, kw_only=True)
class EvaluateTable(StrictTable):
    """What people see of a model beside its held-out loss: how it continues a few texts."""

    prompts: tuple[str, ...]
    """The beginnings of texts; peers with all of the model on one device take turns to continue them."""
    tokens: Annotated[int, Bounds(1, 256)] = 48
    """Of each continuation, at most."""
    every: Annotated[int, Bounds(1, MOST_ROUNDS)] = 1
    """Rounds from one time to the next; the last round always has one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= len(self.prompts) <= MOST_PROMPTS:
            raise BadSpec(f"evaluate.prompts has {len(self.prompts)} texts; use 1 to {MOST_PROMPTS}")
        for prompt in self.prompts:
            if len(prompt) > PROMPT_CHARACTERS or not prompt.replace("\n", "").isprintable():
                text = f"use at most {PROMPT_CHARACTERS} printable characters and line breaks"
                raise BadSpec(f"evaluate.prompts has {shortened(prompt)}; {text}")


@dataclass(frozen=True, kw_only=True)
class InnerTable(StrictTable):
    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon`: Muon for the hidden matrices; AdamW for embeddings, the output head, norms and biases."""
    learning_rate: Annotated[float, Bounds(0, 1000)] = 4e-4
    """Peak (4e-4 in arXiv:2311.08105). Muon's steps are scaled to AdamW's, so it serves both (arXiv:2502.16982)."""
    muon_momentum: Annotated[float, Bounds(0, 0.9999)] = 0.95
    """Nesterov momentum of Muon (0.95 in arXiv:2502.16982)."""
    beta1: Annotated[float, Bounds(0, 0.9999)] = 0.9
    beta2: Annotated[float, Bounds(0, 0.99999)] = 0.95
    weight_decay: Annotated[float, Bounds(0, 1000)] = 0.1
    """Applied to matrices only, by either optimizer."""
    clip: Annotated[float, Bounds(0, 1e9)] = 1.0
    """Largest gradient norm; 0 means no clipping."""
    sequences: Annotated[int, Bounds(1, 1 << 16)] = 8
    """Sequences per micro-batch."""
    accumulation: Annotated[int, Bounds(1, 1 << 16)] = 1
    """Micro-batches per inner step."""
    warmup_steps: Annotated[int, Bounds(0, 10**12)] = 0
    """Inner steps of linear warm-up, counted over the run's schedule so that a late joiner is at the right rate."""
    schedule_rounds: Annotated[int, Bounds(0, MOST_ROUNDS)] = 0
    """Rounds over which the cosine falls; 0 means `run.rounds`, and a constant rate if that is 0 too."""
    final_fraction: Annotated[float, Bounds(0, 1)] = 0.1
    """The cosine ends at this fraction of the peak."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto`: bfloat16 autocast where the device has it (CUDA), float32 elsewhere."""


@dataclass(frozen=True, kw_only=True)
class OuterTable(StrictTable):
    learning_rate: Annotated[float, Bounds(0, 1000)] = 0.7
    momentum: Annotated[float, Bounds(0, 0.999)] = 0.9
    """Nesterov momentum (0.7 / 0.9 in arXiv:2311.08105, tuned for more than a hundred rounds)."""
    momentum_warmup_rounds: Annotated[int, Bounds(0, MOST_ROUNDS)] = 0
    """Rounds over which momentum grows linearly from 0."""


@dataclass(frozen=True, kw_only=True)
class RoundTable(StrictTable):
    steps: Annotated[int, Bounds(1, UNLIMITED)] = 500
    """Inner steps per round once the ramp is over (H)."""
    fragments: Annotated[int, Bounds(1, MAX_FRAGMENTS)] = 1
    """Into how many sets of layers the model is divided. Round r averages set r mod `fragments` alone, so that a round
    sends so much less; the others train on, and each of them is averaged every `fragments` rounds."""
    sync_rounds: Annotated[int, Bounds(0, MOST_ROUNDS)] = 0
    """First rounds with H = 1 (EDiT's synchronous warm-up, arXiv:2412.07210)."""
    ramp_rounds: Annotated[int, Bounds(0, MOST_ROUNDS)] = 0
    """Rounds after those over which H grows linearly from 1 to `steps`."""
    pace: Literal["steps", "speed", "time"] = "steps"
    """When a peer's part of a round is done. `steps`: after H inner steps. `speed`: after its share of H, which nearly
    the fastest makes (DyLU, arXiv:2401.09135). `time`: when `max_train_s` are over (A-EDiT, arXiv:2412.07210), and H is
    what the learning rate takes for a round. Twice H at most: more counts nothing."""
    max_train_s: Annotated[float, Bounds(0.05, YEAR_S)] = 3600.0
    """And not after this time, counted from when its anchor was agreed, even if it has not made all steps."""
    min_steps: Annotated[int, Bounds(0, 10**12)] = 0
    """A coordinator waits for others until those who are ready have made so many inner steps together, but no longer
    than `gather_s`."""
    overlap: Literal["none", "layerwise", "streaming"] = "none"
    """What a peer does while its round is agreed. `none`: it waits. `layerwise`: it waits, but makes the next inner
    step while the update is applied layer by layer (arXiv:2412.07210). `streaming`: it makes the inner steps of the
    next round, and keeps them when the new anchor comes (arXiv:2501.18512)."""
    delay: Annotated[int, Bounds(0, UNLIMITED)] = UNLIMITED
    """With `streaming`, inner steps at most before the new anchor comes; then the peer waits. 0 is as `none`."""
    merge: Literal["rebase", "interpolate"] = "interpolate"
    """What a peer that streams goes on from. `interpolate`: a point between the new anchor and its own parameters,
    which counts a part of its work less and repeats another. `rebase`: that anchor less all that no update has counted,
    to the bit; at equal tokens it learns less (`tests/benchmarks/results/parity.md`). A sparse codec always rebases."""
    alpha: Annotated[float, Bounds(0, 1)] = 0.5
    """With `interpolate`, the share of its own parameters: 0 drops the steps of the delay, 1 never merges."""
    gather_s: Annotated[float, Bounds(0.05, YEAR_S)] = 60.0
    """The first coordinator waits this long after its own submission for the rest of the electorate, at most."""
    ack_s: Annotated[float, Bounds(0.05, YEAR_S)] = 8.0
    """Wait for promises, for norms after the parts, and for what is asked for again."""
    exchange_s: Annotated[float, Bounds(0.05, YEAR_S)] = 120.0
    """Wait for parts, and again for means."""
    patience: Annotated[float, Bounds(1, 1000)] = 4.0
    """How many deviations later than usual a peer may be before the round goes on without it. The waits above are
    the longest there are: after three rounds each is learned from when the others came in the last ones."""
    stagger_s: Annotated[float, Bounds(0.05, YEAR_S)] = 5.0
    """Further wait per skipped coordinator."""
    keep_rounds: Annotated[int, Bounds(1, 10_000)] = 8
    """For so many rounds a peer keeps its own encoded contributions and its votes, and catches up by blocks."""
    gamma: Annotated[float, Bounds(0, 1)] = 1.0
    """What is left of a contribution after each round that missed it. 1: a peer goes on from its own parameters and
    owes all that it has learned, as in DiLoCo (arXiv:2311.08105); from three rounds on that weighs less by its age."""
    max_staleness: Annotated[int, Bounds(1, MOST_ROUNDS)] = 16
    """Rounds after which what a peer learned is no longer taken."""
    restart_s: Annotated[float, Bounds(0, YEAR_S)] = 600.0
    """Voters that waited so long for a quorum ask the organiser's node whether those left may go on; 0: never."""
    min_round_s: Annotated[int, Bounds(0, YEAR_S)] = 10
    """No round is shorter, so that nobody dates many rounds in no time. 0: only among people you trust."""
    snapshot_rounds: Annotated[int, Bounds(1, MOST_ROUNDS)] = 16
    """Every so many rounds a peer writes a snapshot of the anchor for newcomers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if 1 < self.fragments >= self.keep_rounds:
            raise BadSpec(
                f"round.fragments is {self.fragments} and round.keep_rounds {self.keep_rounds}: a peer keeps the last "
                f"round of every fragment and one more; set keep_rounds to at least {self.fragments + 1}"
            )
        require(self.snapshot_rounds, "round.snapshot_rounds", low=self.keep_rounds)

    @property
    def silence_s(self) -> float:
        """Silence after which the next coordinator takes the round over, at most."""
        return max(self.exchange_s, self.ack_s) + 2 * self.ack_s


@dataclass(frozen=True, kw_only=True)
class CodecTable(StrictTable):
    wire: Literal["float32", "float16", "int8", "int4", "sparse"] = "int4"
    """Encoding of contributions and of the mean: 4, 2, 1.03 or 0.53 bytes per parameter. `sparse`: the largest 64 of
    4,096, 0.03 bytes per parameter, and the largest 256 of the mean, 0.16, of whole 4,096 of a layer."""
    part_elements: Annotated[int, Bounds(64, 4_194_304)] = 1_048_576
    """Largest part: what one message carries and one reducer averages."""


@dataclass(frozen=True, kw_only=True)
class AggregationTable(StrictTable):
    rule: Literal["mean", "edit", "centered-clip", "agreement"] = "edit"
    """How contributions combine. `mean`: by tokens. `edit`: large norms count less (arXiv:2412.07210). `centered-clip`:
    what is far from the last mean is drawn towards it (arXiv:2012.10333). `agreement`: `edit`, and what points away
    from the last mean counts less (arXiv:2007.13137)."""
    weigh: Literal["read", "predicted"] = "read"
    """Which tokens of a peer count as its own: all that it `read`, or those that it `predicted`, which are the answers
    where conversations are learned. Nobody can check these, so of them at most twice as many count as is usual."""
    warmup_rounds: Annotated[int, Bounds(1, 1000)] = 10
    """Accepted norms of one peer and layer before they are used to refuse or to clip one."""
    alpha: Annotated[float, Bounds(0.001, 1)] = 0.6
    """Weight of the newest norm in a peer's usual norm."""
    threshold: Annotated[float, Bounds(0.1, 1000)] = 3.0
    """Deviations above its usual norms at which a contribution is refused, by the lower median over the layers; for one
    layer by itself five times as many."""
    deviation_floor: Annotated[float, Bounds(0, 10)] = 0.15
    """Least deviation, as a share of the usual norm: peers that are very even are not refused for a trifle."""
    temperature: Annotated[float, Bounds(0.01, 1000)] = 1.4
    """Of the softmax over norms, in usual norms; larger means closer to weights by tokens."""
    floor: Annotated[float, Bounds(0, 0.99)] = 0.1
    """Below this share of the group's median norm a contribution is refused: softmax would reward it. 0: never."""
    clip: Annotated[float, Bounds(1, 1000)] = 3.0
    """Largest norm that counts in full, in medians: of one contribution, and of the combination."""
    rejections: Annotated[int, Bounds(1, 255)] = 3
    """After so many refusals in a row a peer's usual norm is learned anew."""
    cooldown_rounds: Annotated[int, Bounds(1, 1000)] = 8
    """Rounds for which a peer that is convicted of a lie reduces nothing and counts nothing."""


@dataclass(frozen=True, kw_only=True)
class AdmissionTable(StrictTable):
    policy: Literal["open", "invited"] = "open"
    """`open`: everyone may join. `invited`: those alone whom the organiser has admitted, for an invite with a token."""


@dataclass(frozen=True, kw_only=True)
class StartTable(StrictTable):
    """The model from which a run starts. Without this table its first parameters are random."""

    model: Annotated[str, Characters(256)]
    """OWNER/NAME at huggingface.co; of a file or folder of the organiser's its name. Whoever does not get it there
    loads the same bytes from other peers."""
    digest: str = ""
    """BLAKE3 in hex, of what names its parameters as float32 and its tokenizer (`peer.node.store.start_blob`).
    Empty in an organiser's draft: `homefires bootstrap` finds it out, and no run has such a spec."""
    revision: Annotated[str, Characters(64)] = ""
    """Commit of a model at huggingface.co."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.digest and not DIGEST.fullmatch(self.digest):
            raise BadSpec(f"start.digest is {shortened(self.digest)}; it has 64 digits, as `bootstrap` writes them")

    @property
    def is_on_hub(self) -> bool:
        return bool(self.revision) and HUB_NAME.fullmatch(self.model) is not None


@dataclass(frozen=True, kw_only=True)
class AdapterTable(StrictTable):
    """Two thin matrices beside some of the model's, which are trained in place of all of it (LoRA, arXiv:2106.09685).

    Rounds, checkpoints and snapshots are those of the adapter alone; the model that it belongs to stays as it is.
    """

    rank: Annotated[int, Bounds(1, 512)] = 16
    alpha: Annotated[int, Bounds(1, 10_000)] = 32
    """Their product counts `alpha` / `rank` times, or as `scale` says."""
    scale: Literal["rank", "root"] = "rank"
    """`root`: it counts `alpha` / √`rank` times, so that high ranks learn as fast as low ones (arXiv:2312.03732)."""
    targets: Literal["attention", "all"] = "all"
    """`attention`: queries, keys, values and output. `all`: those, and the matrices of the feed-forward layers."""
    dropout: Annotated[float, Bounds(0, 0.9)] = 0.0
    trains: Literal["both", "b"] = "both"
    """`both`: A and B, each averaged by itself, which is not the average of their products. `b`: B alone, while A stays
    as it was drawn: then the average is exact (arXiv:2403.12313)."""
    base: Literal["float32", "bfloat16", "int8", "nf4"] = "float32"
    """In what the model itself lies on the device. It changes gradients, so all peers have the same. With `int8` and
    `nf4` the matrices of its blocks have 8 or 4 bits, and a scale for 64 (arXiv:2305.14314); the rest is bfloat16."""
