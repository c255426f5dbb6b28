"""From a spec to its data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

from dht.errors import BadInput, BadSpec
from peer.data.documents import library_files, named_files, read_files, standard_library
from peer.data.hub import HubSource
from peer.data.packs import Pack, PackSource, fingerprint, packed
from peer.data.source import Document, MemorySource, Source
from peer.data.tokenizer import Tokenizer, tokenizer_of
from peer.spec import RunSpec


def open_source(spec: RunSpec, data_path: str = "") -> Source:
    """The source that `spec.data` names, ready to read; of files, those that their owner named in `data_path`.

    Raises BadInput where a run on files is given none, BadSpec and Unreachable.
    """
    require_files(spec, data_path)
    tokenizer = tokenizer_of(spec)
    embedded = spec.model.config.get("vocab_size")
    if isinstance(embedded, int) and embedded < tokenizer.vocabulary:
        raise BadSpec(
            f"model.config.vocab_size is {embedded}; the tokenizer {spec.model.tokenizer!r} has {tokenizer.vocabulary} "
            "tokens, so it must be at least that"
        )
    if spec.data.source == "hub":
        return HubSource(tokenizer, spec)
    if spec.data.source == "files":
        return _packed(
            lambda: named_files(data_path), lambda: read_files(data_path, spec.data.text_field), spec, tokenizer
        )
    return _packed(library_files, standard_library, spec, tokenizer)


def _packed(
    files: Callable[[], tuple[Path, list[str]]], documents: Callable[[], Iterable[Document]], spec: RunSpec,
    tokenizer: Tokenizer,
) -> Source:  # fmt: skip
    def find() -> Pack:
        base, names = files()
        return packed(str(base.resolve()), fingerprint(base, names), documents, tokenizer, spec)

    try:
        return PackSource(spec, find)
    except PermissionError:  # a machine without a cache keeps them in memory
        return MemorySource(documents(), tokenizer, spec)


def require_files(spec: RunSpec, data_path: str) -> None:
    """Raises BadInput for a run on files, if their owner has named none: a spec says nothing about this machine."""
    if spec.data.source == "files" and not data_path:
        raise BadInput(
            f"this run trains on files of yours, which its spec calls {spec.data.path!r}; "
            "say which with --set data_path=FOLDER"
        )


def held_out(source: Source) -> Tensor:
    """Evaluation tokens (B, context + 1), int64, on the CPU; the same for every peer with the same data."""
    return torch.from_numpy(source.held_out())
