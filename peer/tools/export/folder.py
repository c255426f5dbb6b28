"""`homefires export`: writes the model of a run directory as a folder that plain transformers or peft load offline."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.utils import logging as transformers_logging

from dht.atomic_files import raising_disk_full
from dht.errors import BadInput, BadSpec, DiskFull, RunMismatch
from peer.consensus.credit.tally import Counting, Tally, read_tally
from peer.node.store import start_blob
from peer.node.store.held_layers import read_held
from peer.schema.architectures import MAY_SEE
from peer.schema.artifact_options import Digits, What
from peer.schema.byte_text import format_bytes
from peer.schema.events import Evaluated, RoundCommitted, read_events
from peer.schema.spec import RunSpec, dump, load
from peer.tools.export import gguf_file
from peer.tools.export.card import MEASURED, CardFacts, measured_page, model_card
from peer.tools.export.gguf_vocabulary import vocabulary_of
from peer.tools.export.hub_upload import push, require_login
from peer.tools.export.progress import ExportProgress
from peer.tools.export.stages import join_stages
from peer.training.checkpoint.replay import Chain, read_chain, restore_anchor
from peer.training.data.tokenizer import Tokenizer, tokenizer_of
from peer.training.model.build import build
from peer.training.model.flat_parameters import FlatParameters
from peer.training.model.generation import generation_of
from peer.training.outer.outer_state import OuterState

SPARE_BYTES = 64 << 20
"""Room for everything but the weights; the largest tokenizers take about half of it."""


def export(
    directory: Path, to: Path | None, homes: Sequence[Path] = (), what: What | None = None, push_to: str = "",
    progress: ExportProgress | None = None, gguf: Digits | None = None,
) -> str:  # fmt: skip
    """Write the anchor at the head of the run in `directory` to the folder `to`; a sentence that says what is where.

    `what` is for a run from a model: of its adapter alone, that and the model it belongs to as one (which is what is
    written if nobody says), or the model from which the run starts. Where `directory` is the folder of a home of a
    cluster, `homes` are those of the others, and the anchor is the newest that all have. Peers may be stopped or at
    work. The folder appears whole or not at all; by default it is `directory`/export-round-N. `push_to` is a repository
    at huggingface.co to which it goes as well; with `gguf` a GGUF file lies among the others. Raises BadInput,
    RunMismatch, Unreachable, DiskFull.
    """
    progress = progress or ExportProgress()
    if push_to:
        require_login(push_to)
    spec = spec_in(directory)
    _require_fits(what, spec, gguf)
    chain = read_chain(directory, spec)
    joined: OuterState | None = None
    if homes or read_held(directory) is not None:
        chain, joined = join_stages(chain, homes, spec)
    if chain.head.round == 0:
        raise BadInput(f"no round of {spec.run.name} was committed in {directory} yet; there is nothing to export")
    out = to or directory / (f"export-round-{chain.head.round}" + (f"-{what}" if what else ""))
    what = what or (None if spec.adapter is None else "merged")
    _require_free(out)
    require_start(spec)
    if gguf is not None:
        vocabulary_of(tokenizer_of(spec).for_transformers(spec.model.context), 0)
    model = build(unpacked(spec))
    flat = FlatParameters(model)
    with progress.during(f"reading the chain up to round {chain.head.round}"):
        anchor = joined or restore_anchor(chain, spec, flat, progress.round)
    checked = _check_state(chain, anchor)
    flat.copy_layers(anchor.theta)
    shaped = _shaped(model, spec, what)
    parameters = flat.size if what == "adapter" else sum(value.numel() for value in shaped.parameters())
    _require_room(out.parent, parameters * (4 if gguf is None else 8))
    tally = _tally(chain, spec, [layer.size for layer in flat.layers])
    facts = CardFacts(
        spec=spec, chain=chain, tally=tally, state=anchor.state_digest(), state_checked=checked,
        parameters=parameters, what=what, evaluations=_evaluations(chain),
    )  # fmt: skip
    pages = {"README.md": model_card(facts)} | ({} if what == "base" else {MEASURED: measured_page(facts)})
    with progress.during(f"writing {parameters:,} parameters to {out}"):
        _write(out, spec, shaped, pages, gguf)
    name = f"the {what} of round {chain.head.round}" if what == "adapter" else f"round {chain.head.round}"
    if what == "base":
        name = "the model from which the run starts,"
    said = f"{name} of {spec.run.name} ({parameters:,} parameters) is in {out}"
    if not push_to:
        return said
    size = format_bytes(sum(path.stat().st_size for path in out.iterdir()))
    with progress.during(f"uploading {size} to {push_to}"):
        return f"{said} and at {push(out, push_to, f'{name} of {spec.run.name}')}"


def spec_in(directory: Path) -> RunSpec:
    """That of the run in the folder of a peer. Raises BadInput, and BadSpec for a damaged one."""
    if not directory.is_dir():
        raise BadInput(f"{directory} is no folder; name the folder of a peer")
    if not (directory / "genesis").exists():
        inside = sorted(path.parent.name for path in directory.glob("*/HEAD"))
        hint = f"; look at one of {', '.join(inside)} in it" if inside else ""
        raise BadInput(f"{directory} holds no run that has begun{hint}")
    if not (directory / "chain").is_dir():
        raise BadInput(f"{directory} is the folder of a bootstrap node, without a model; name the folder of a peer")
    return load(str(directory / "spec.toml"))


def unpacked(spec: RunSpec) -> RunSpec:
    """The same run on a base of which nothing is packed: what is taken away belongs to the model as it is published."""
    if spec.adapter is None or spec.adapter.base == "bfloat16":
        return spec
    return replace(spec, adapter=replace(spec.adapter, base="float32"))


def require_start(spec: RunSpec) -> None:
    """Every byte of the model from which a run starts is in the cache of this machine. Raises BadInput."""
    if spec.start is None:
        return
    if not start_blob.is_here(spec.start.digest):
        raise BadInput(
            f"the model {spec.start.model!r}, from which {spec.run.name} starts, is not in "
            f"{start_blob.folder_of(spec.start.digest).parent}; a peer that joins the run brings it"
        )
    start_blob.require_intact(spec.start.digest)


def _require_fits(what: What | None, spec: RunSpec, gguf: Digits | None) -> None:
    if gguf is not None:
        if what == "adapter":
            raise BadInput("--gguf writes a whole model; leave --what adapter away, or name merged or base")
        gguf_file.require_convertible(spec)
    if what in ("adapter", "merged") and spec.adapter is None:
        raise BadInput(f"{spec.run.name} trains the whole model, without an adapter; leave --what {what} away")
    if what == "base" and spec.start is None:
        raise BadInput(f"{spec.run.name} starts from random parameters, and so has no base; leave --what base away")


def _shaped(model: nn.Module, spec: RunSpec, what: What | None) -> nn.Module:
    """What is saved of the model of a run."""
    if what == "base":
        return build(replace(spec, adapter=None))
    if spec.adapter is None or what == "adapter":
        return model
    adapted: Any = model
    # Of a base in bfloat16 the sum needs more digits than it has.
    merged: nn.Module = adapted.to(torch.float32).merge_and_unload()
    return merged


def _require_free(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"{out} exists already; name a new folder with --to")


def _require_room(folder: Path, model_bytes: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < model_bytes + SPARE_BYTES:
        raise DiskFull(
            f"{folder} has room for {format_bytes(free)}; the model takes {format_bytes(model_bytes)}, and "
            f"what lies beside it up to {format_bytes(SPARE_BYTES)}"
        )


def _check_state(chain: Chain, anchor: OuterState) -> bool:
    """Whether the peer reported this state when it committed the round. Raises RunMismatch if it was another one."""
    digest, state = chain.head.anchor.hex(), anchor.state_digest().hex()
    for line in read_events(chain.directory):
        if isinstance(line.event, RoundCommitted) and line.event.digest == digest:
            if line.event.state != state:
                raise RunMismatch(
                    f"replaying {chain.directory} gives the state {state[:12]}; the peer that trained there reported "
                    f"{line.event.state[:12]} for round {chain.head.round}, so one of the two computed wrongly"
                )
            return True
    return False


def _tally(chain: Chain, spec: RunSpec, layers: Sequence[int]) -> Tally:
    """What was counted before the blocks of the chain, with each of them."""
    counting = Counting.of_model(layers, spec.codec.part_elements, spec.round.fragments, spec.tokens_cap)
    head = chain.base
    tally = read_tally(chain.directory, head)
    for update in chain.updates:
        head = head.after(update)
        tally = tally.plus(counting.of(update), head)
    return tally


def _evaluations(chain: Chain) -> dict[int, Evaluated]:
    """The last one that this peer made of each anchor on the chain, by round; those of a branch that was left do not
    count."""
    on_chain = {update.round - 1: update.parent.hex() for update in chain.updates}
    on_chain[chain.head.round] = chain.head.anchor.hex()
    stood_at: dict[int, str] = {}
    found: dict[int, Evaluated] = {}
    for line in read_events(chain.directory):
        match line.event:
            case RoundCommitted(round=round, digest=digest):
                stood_at[round] = digest
            case Evaluated(round=round) as event if round <= chain.head.round:
                if stood_at.get(round) in (None, on_chain.get(round, stood_at.get(round))):
                    found[round] = event
    return dict(sorted(found.items()))


def _write(out: Path, spec: RunSpec, model: nn.Module, pages: Mapping[str, str], gguf: Digits | None) -> None:
    quiet: Any = transformers_logging.disable_progress_bar  # not annotated by transformers
    quiet()
    tokenizer = tokenizer_of(spec)
    # Beside `out`, so that one rename puts the whole folder in its place.
    with raising_disk_full(out.parent), tempfile.TemporaryDirectory(dir=out.parent, prefix=".export-") as scratch:
        folder = Path(scratch) / "model"
        _save_model(folder, model, tokenizer, spec)
        published = tokenizer.for_transformers(spec.model.context)
        published.save_pretrained(folder)
        if gguf is not None:
            path = folder / gguf_file.FILE.format(digits=gguf)
            gguf_file.write(path, model, spec.run.name, published, gguf)
        (folder / "spec.toml").write_text(dump(spec))
        for name, text in pages.items():
            (folder / name).write_text(text, encoding="utf-8")
        _let_others_read(folder)
        os.replace(folder, out)


def _let_others_read(folder: Path) -> None:
    """As far as the person's umask allows: safetensors keeps its files to their owner."""
    mode = (folder / "README.md").stat().st_mode
    for path in folder.iterdir():
        path.chmod(mode)


def _save_model(folder: Path, model: Any, tokenizer: Tokenizer, spec: RunSpec) -> None:
    """Weights as safetensors, configuration, and how a text ends: at the token that closed documents in training."""
    if hasattr(model, "peft_config"):
        _save_adapter(folder, model, spec)
        generation_of(spec, tokenizer).save_pretrained(folder)
        return
    if model.config.get_text_config().vocab_size < tokenizer.vocabulary:
        raise BadSpec("model.config.vocab_size is smaller than the tokenizer's vocabulary")
    model.config.bos_token_id = model.config.eos_token_id = tokenizer.end_of_text
    model.config.use_cache = True
    model.generation_config = generation_of(spec, tokenizer)
    model.save_pretrained(folder)


def _save_adapter(folder: Path, model: Any, spec: RunSpec) -> None:
    assert spec.start is not None
    config = model.peft_config["default"]
    # peft would put it beside a whole model that sees, too, where none of its names fits: it says so in a log.
    if spec.model.architecture not in MAY_SEE:
        config.base_model_name_or_path, config.revision = spec.start.model, spec.start.revision or None
    # Embeddings are never trained; where peft is to find that out by itself, it asks the network for the base's.
    model.save_pretrained(folder, save_embedding_layers=False)
