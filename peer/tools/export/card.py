"""The model card: how the exported model was trained, from its spec and its chain, equal to the byte from all peers;
and a page of what the exporting peer has measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version

from huggingface_hub import ModelCardData

from peer.consensus.credit.tally import Credit, Tally
from peer.schema.architectures import MAY_SEE
from peer.schema.artifact_options import What
from peer.schema.events import Evaluated
from peer.schema.spec import RunSpec
from peer.schema.spec_fields import DataTable, MixTable
from peer.training.checkpoint.replay import Chain

MEASURED = "MEASURED.md"
"""The file beside README.md that has what one peer measured."""


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """What is known of an exported anchor."""

    spec: RunSpec
    chain: Chain
    tally: Tally
    """What each peer has put in, as `homefires credit` counts it."""
    state: bytes
    """Digest of θ, m and data cursors."""
    state_checked: bool
    """The peer reported the same one when it committed the round."""
    parameters: int
    """Of what is written."""
    what: What | None
    """None where the run trains all of its model."""
    evaluations: Mapping[int, Evaluated]
    """The held-out losses in the run directory, by round and oldest first: of this round and earlier ones."""


def model_card(facts: CardFacts) -> str:
    """README.md: YAML front matter as the Hugging Face Hub reads it, then Markdown."""
    spec, round, shares = facts.spec, facts.chain.head.round, _of_counted(facts.tally)
    if facts.what == "base":
        return _base_card(facts)
    title = [
        *("---", _front_matter(facts), "---", ""),
        *(f"# {spec.run.name}, round {round}", ""),
        f"{_noun(facts)}, trained with homefires by "
        f"{_known_of(facts)}{len(shares)} peer{'s' if len(shares) > 1 else ''}: each trains alone for a while, then "
        "all agree on one averaged step. `spec.toml` is the whole agreement.",
    ]
    sections = {
        "Use": _usage(facts),
        "The run": _rows(_run_rows(facts, shares)),
        "Training": _rows(_training_rows(spec)),
        "Evaluation": _comparison(facts),
        "Peers": _peers(facts, shares),
    }
    for name, lines in sections.items():
        title += ["", f"## {name}", "", *lines]
    return "\n".join([*title, ""])


def measured_page(facts: CardFacts) -> str:
    """What differs from peer to peer, and is no part of the card for that."""
    reported = "The peer reported the same state when the round was committed." if facts.state_checked else ""
    lines = [
        f"# {facts.spec.run.name}, round {facts.chain.head.round}: measured by the peer that exported it",
        "",
        *_evaluation(facts),
        "",
        *([reported, ""] if reported else []),
        f"Exported with homefires {version('homefires')}.",
        "",
    ]
    return "\n".join(lines)


def _base_card(facts: CardFacts) -> str:
    """Nothing of the run is in it."""
    spec, rows = facts.spec, [("parameters", f"{facts.parameters:,}"), *_start_rows(facts.spec)]
    words = f"The model from which the run {spec.run.name} starts, in float32, as it was before any training there."
    title = ("---", _front_matter(facts), "---", "", f"# The start of {spec.run.name}", "", words, "")
    return "\n".join([*title, *_rows(iter(rows)), "", "## Use", "", *_usage(facts), ""])


def _noun(facts: CardFacts) -> str:
    table, of = facts.spec.adapter, _base(facts.spec)
    if facts.what == "adapter":
        assert table is not None
        return f"An adapter (LoRA of rank {table.rank}) with {facts.parameters:,} parameters for {of}"
    words = f"A {facts.spec.model.architecture} language model with {facts.parameters:,} parameters"
    if table is not None:
        return f"{words}: {of}, and an adapter (LoRA of rank {table.rank}) merged into it"
    return f"{words}, continued from {of}" if of else words


def _base(spec: RunSpec) -> str:
    """The model from which the run starts, as people find it; empty where there is none."""
    if spec.start is None:
        return ""
    name = spec.start.model
    return f"[{name}](https://huggingface.co/{name})" if spec.start.is_on_hub else _code(name)


def _start_rows(spec: RunSpec) -> Iterator[tuple[str, str]]:
    if spec.start is None:
        return
    yield "base", _base(spec)
    if spec.start.revision:
        yield "revision of the base", _code(spec.start.revision)
    yield "digest of the base (of its parameters and tokenizer)", _code(spec.start.digest)


def _known_of(facts: CardFacts) -> str:
    """What was counted on a peer's disk need not reach back to the beginning of the run."""
    return "at least " if facts.tally.first > 1 else ""


def _since(facts: CardFacts) -> str:
    known_from = facts.tally.first
    if known_from > 1:
        return f"by all peers from round {known_from} on, before which this disk knows nothing"
    return "over all rounds and peers"


def _of_counted(tally: Tally) -> dict[str, Credit]:
    """Of each peer of whose contributions one was counted; by peer id."""
    return {peer: credit for peer, credit in sorted(tally.credits.items()) if _rounds(credit)}


def _rounds(credit: Credit) -> int:
    return credit.accepted + credit.late


def _front_matter(facts: CardFacts) -> str:
    spec = facts.spec
    read = [] if facts.what == "base" else [each.path for each in spec.data.sources if each.source == "hub"]
    data = ModelCardData(
        base_model=spec.start.model if spec.start is not None and spec.start.is_on_hub else None,
        library_name="peft" if facts.what == "adapter" else "transformers",
        pipeline_tag="text-generation",
        tags=["homefires", "diloco", *(["lora"] if spec.adapter else []), spec.model.architecture],
        datasets=read or None,
    )
    return data.to_yaml()


def _comparison(facts: CardFacts) -> Iterator[str]:
    yield f"See [{MEASURED}]({MEASURED}): each peer measures other rounds. To compare it with other models:"
    yield ""
    yield "```"
    both = f"pretrained={_whole(facts)}" + (",peft=THIS_FOLDER" if facts.what == "adapter" else "")
    yield f"lm_eval --model hf --model_args {both} --tasks hellaswag,arc_easy,piqa"
    yield "```"


def _whole(facts: CardFacts) -> str:
    """Where all of the model is: of an adapter, its base."""
    start = facts.spec.start
    if facts.what != "adapter" or start is None:
        return "THIS_FOLDER"
    is_there = start.is_on_hub and facts.spec.model.architecture not in MAY_SEE
    return start.model if is_there else "FOLDER_OF_THE_BASE"


def _usage(facts: CardFacts) -> Iterator[str]:
    whole = _whole(facts)
    yield "```python"
    if facts.what == "adapter":
        yield "from peft import PeftModel"
    yield "from transformers import AutoModelForCausalLM, AutoTokenizer"
    yield ""
    yield 'tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")'
    yield f'model = AutoModelForCausalLM.from_pretrained("{whole}")'
    if facts.what == "adapter":
        yield 'model = PeftModel.from_pretrained(model, "THIS_FOLDER")'
    yield 'inputs = tokenizer("Once", return_tensors="pt", add_special_tokens=False)'
    yield "print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0]))"
    yield "```"
    if whole == "FOLDER_OF_THE_BASE":
        yield ""
        yield "`homefires export --what base` writes the base that it belongs to."


def _run_rows(facts: CardFacts, shares: dict[str, Credit]) -> Iterator[tuple[str, str]]:
    spec, head = facts.spec, facts.chain.head
    yield "run", spec.run.name
    yield "spec hash", f"`{spec.digest().hex()}`"
    yield "rounds", f"{head.round} of {spec.run.rounds}" if spec.run.rounds else f"{head.round}"
    yield "digest of the model in the chain", f"`{head.anchor.hex()}`"
    yield "state digest (of parameters, momentum and cursors)", f"`{facts.state.hex()}`"
    kind = "tokens" if spec.aggregation.weigh == "read" else "tokens that were predicted"
    yield kind, f"{sum(share.tokens for share in shares.values()):,}, {_since(facts)}"
    yield "peers that contributed", f"{_known_of(facts)}{len(shares)}"
    yield from _start_rows(spec)
    yield "architecture", spec.model.architecture
    yield "parameters", f"{facts.parameters:,}"
    yield "context", f"{spec.model.context:,} tokens"
    yield "tokenizer", _code(spec.model.tokenizer)


def _training_rows(spec: RunSpec) -> Iterator[tuple[str, str]]:
    if (table := spec.adapter) is not None:
        matrices = "A and B" if table.trains == "both" else "B alone"
        held = f"base in {table.base}, dropout {table.dropout:g}"
        scale = " over √rank" if table.scale == "root" else ""
        yield (
            "adapter",
            f"LoRA of rank {table.rank}, α {table.alpha}{scale}, beside {table.targets}; {matrices}; {held}",
        )
    yield "data", _data(spec)
    yield "inner optimizer", _inner(spec)
    yield "learning rate", _schedule(spec)
    inner = spec.inner
    tokens = inner.sequences * inner.accumulation * spec.model.context
    yield "inner step", f"{inner.sequences} × {inner.accumulation} sequences, {tokens:,} tokens per peer"
    automatic = "bfloat16 where the device has it, else float32"
    yield "precision of inner steps", automatic if inner.precision == "auto" else inner.precision
    yield "inner steps per round (H)", _steps(spec)
    outer = spec.outer
    growing = f", growing over {outer.momentum_warmup_rounds} rounds" if outer.momentum_warmup_rounds else ""
    yield (
        "outer optimizer",
        f"Nesterov SGD, learning rate {outer.learning_rate:g}, momentum {outer.momentum:g}{growing}",
    )
    yield "contributions", f"{spec.codec.wire}, weighted by tokens"


def _data(spec: RunSpec) -> str:
    total = sum(part.weight for part in spec.data.mix)
    if not spec.data.mix:
        return _source(spec.data)
    return "; ".join(f"{part.name} ({100 * part.weight / total:.3g} %): {_source(part)}" for part in spec.data.mix)


def _source(table: DataTable | MixTable) -> str:
    answers = ", conversations, of which answers alone are predicted" if table.format == "chat" else ""
    if table.source == "stdlib":
        return "source text of the Python standard library, as installed on each peer's machine"
    if table.source == "files":
        return f"files of each peer's machine, {_code(table.path)}{answers}"
    subset = f", subset {_code(table.subset)}" if table.subset else ""
    return f"{_code(table.path)}{subset}, split {_code(table.split)}{answers}"


def _inner(spec: RunSpec) -> str:
    inner = spec.inner
    clip = f", gradients clipped to norm {inner.clip:g}" if inner.clip else ""
    adamw = f"AdamW, β ({inner.beta1:g}, {inner.beta2:g})"
    names = f"Muon, momentum {inner.muon_momentum:g}, for the hidden matrices; {adamw}, for the rest"
    return f"{names if inner.optimizer == 'muon' else adamw}; weight decay {inner.weight_decay:g} on matrices{clip}"


def _schedule(spec: RunSpec) -> str:
    inner = spec.inner
    rounds = inner.schedule_rounds or spec.run.rounds
    warm_up = f", after {inner.warmup_steps:,} steps of linear warm-up" if inner.warmup_steps else ""
    if not rounds:
        return f"{inner.learning_rate:g}, constant{warm_up}"
    end = f"{inner.final_fraction * inner.learning_rate:g}"
    return f"{inner.learning_rate:g}{warm_up}, falling to {end} along a cosine over {rounds} rounds"


def _steps(spec: RunSpec) -> str:
    table = spec.round
    ramp = [f"1 in the first {table.sync_rounds}"] if table.sync_rounds else []
    ramp += [f"growing over {table.ramp_rounds} rounds"] if table.ramp_rounds else []
    return f"{table.steps:,}" + (f" ({', then '.join(ramp)})" if ramp else "")


def _evaluation(facts: CardFacts) -> Iterator[str]:
    round = facts.chain.head.round
    if not facts.evaluations:
        yield "This peer measured no held-out loss."
        return
    measured = facts.evaluations[max(facts.evaluations)]
    which = "this round" if measured.round == round else f"round {measured.round} (this is round {round})"
    every = facts.spec.data.held_out_every
    yield (
        f"Held-out loss of {which}: **{_nats(measured)} nats per token**, over {measured.tokens:,} tokens of the one "
        f"in {every} documents that nobody trained on."
    )
    if measured.by_source:
        yield f"By source: {', '.join(f'{name} {loss:.4f}' for name, loss in measured.by_source.items())}."
    earlier = [each for each in facts.evaluations.values() if each is not measured]
    if earlier:
        losses = (f"{_nats(each)} (round {each.round})" for each in earlier[:: max(1, len(earlier) // EARLIER)])
        yield f"This peer measured before: {', '.join(losses)}."


EARLIER = 8
"""About so many earlier losses are told, of however many rounds."""


def _nats(measured: Evaluated) -> str:
    return "not a number" if measured.loss is None else f"{measured.loss:.4f}"


def _peers(facts: CardFacts, shares: dict[str, Credit]) -> Iterator[str]:
    yield f"By peer id, {_since(facts)}."
    yield "Of each, the rounds and the tokens that were counted, as `homefires credit` tells them."
    yield ""
    yield "| peer | rounds | tokens |"
    yield "|---|---:|---:|"
    for peer, share in shares.items():
        yield f"| {peer} | {_rounds(share):,} | {share.tokens:,} |"


def _rows(values: Iterator[tuple[str, str]]) -> Iterator[str]:
    yield "| | |"
    yield "|---|---|"
    for name, value in values:
        yield f"| {name} | {value.replace('|', chr(92) + '|')} |"


def _code(value: str) -> str:
    return f"`{value}`"
