"""Opens the data source that a spec names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from dht.errors import BadInput
from peer.node.store.elsewhere import PACKS, note
from peer.schema.spec import RunSpec
from peer.schema.spec_fields import MixTable
from peer.training.data.conversations import conversations_of
from peer.training.data.data_shards import Document
from peer.training.data.document_tokens import encoder_of
from peer.training.data.documents import documents_of, is_whole, library_files, standard_library
from peer.training.data.hub import HubSource
from peer.training.data.mixed_source import MixedSource, PartOfMix
from peer.training.data.packs import Pack, PackSource, fingerprint, packed
from peer.training.data.reading.data_files import FoundFiles, find_files, require_some, require_there
from peer.training.data.reading.file_rows import Findings
from peer.training.data.source import MemorySource, Source
from peer.training.data.tokenizer import Tokenizer, tokenizer_of


def open_source(spec: RunSpec, data_path: str = "", home: Path | None = None) -> Source:
    """The source that `spec.data` names, ready to read; a source of files reads those that the owner named in
    `data_path`. `home` is the folder of the peer: tokens of private data lie there, and it notes where others lie.
    Raises BadInput if a run on files is given none, BadSpec and Unreachable."""
    require_files(spec, data_path)
    if spec.data.mix:
        total = sum(part.weight for part in spec.data.mix)
        alone = [(part, replace(spec, data=spec.data.alone(part))) for part in spec.data.mix]
        return MixedSource(
            [
                PartOfMix(part.name, part.weight / total, open_source(one, _folder_of(part, data_path), home))
                for part, one in alone
            ]
        )
    tokenizer = tokenizer_of(spec)
    if spec.data.source == "hub":
        source = HubSource(tokenizer, spec)
        _note(home, source.kept)
        return source
    if spec.data.source == "stdlib":
        return _packed(library_files, standard_library, spec, tokenizer, home)
    return _packed(
        lambda: _named(files_of(spec, data_path, Findings())),
        lambda: documents_in(files_of(spec, data_path, Findings()), spec, Findings()),
        spec, tokenizer, home,
    )  # fmt: skip


def files_of(spec: RunSpec, data_path: str, told: Findings) -> FoundFiles:
    """Those of these files that a run on files, and not on a mix, reads. `told` hears if there are none."""
    found = find_files(data_path, told.fault)
    found = found.of_rows() if spec.data.format == "chat" else found
    require_some(found, data_path, told.fault)
    return found


def documents_in(found: FoundFiles, spec: RunSpec, told: Findings) -> Iterable[Document]:
    """Of these files, in their order."""
    if spec.data.format == "chat":
        return conversations_of(found, spec.data.text_field, told)
    whole = spec.data.held_out_by == "content" and is_whole(found, spec.data.held_out_every)
    return documents_of(found, spec.data.text_field, told, whole=whole)


def _named(found: FoundFiles) -> tuple[Path, list[str]]:
    return found.base, found.names


def _packed(
    files: Callable[[], tuple[Path, list[str]]], documents: Callable[[], Iterable[Document]], spec: RunSpec,
    tokenizer: Tokenizer, home: Path | None,
) -> Source:  # fmt: skip
    encoder = encoder_of(spec, tokenizer)

    def find() -> Pack:
        base, names = files()
        own = home / PACKS if home is not None and spec.data.private else None
        pack = packed(str(base.resolve()), fingerprint(base, names), documents, encoder, spec, own)
        if own is None:
            _note(home, pack.folder)
        return pack

    try:
        return PackSource(spec, find)
    except PermissionError:  # a machine without a cache keeps them in memory
        return MemorySource(documents(), tokenizer, spec)


def _note(home: Path | None, place: Path) -> None:
    if home is not None:
        note(home, place)


def _folder_of(part: MixTable, data_path: str) -> str:
    return str(Path(data_path) / part.name) if part.source == "files" else ""


def folders(spec: RunSpec, data_path: str) -> dict[str, str]:
    """The folders of the run's files on this machine, by their names in the spec: in a mix each source has a folder
    of its own in `data_path`, by its name."""
    if not spec.data.mix:
        return {spec.data.path: data_path} if spec.data.source == "files" else {}
    return {part.path: _folder_of(part, data_path) for part in spec.data.mix if part.source == "files"}


def require_files(spec: RunSpec, data_path: str) -> None:
    """Raises BadInput for a run on files if the owner has named none, or some that are not here (any more): a spec
    says nothing about this machine."""
    called = " and ".join(repr(each.path) for each in spec.data.sources if each.source == "files")
    if called and not data_path:
        names = " and ".join(part.name for part in spec.data.mix if part.source == "files")
        raise BadInput(
            f"this run trains on files of yours, which its spec calls {called}; say which with --set data_path=FOLDER"
            + (f", which holds the folders {names}" if names else "")
        )
    try:
        require_there(folders(spec, data_path).values())
    except BadInput as error:
        raise BadInput(f"{str(error).partition('; ')[0]}; say where it is with --set data_path=FOLDER") from error
