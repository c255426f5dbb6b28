"""Which files of a folder are read, in which format, and which are left out for which reason.

Only a file's name decides its format: a suffix in any case, optionally followed by one of `PACKINGS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from dht.errors import BadInput

Kind = Literal["text", "lines", "json", "csv", "parquet", "arrow"]
TEXT_SUFFIXES = frozenset(
    {".txt", ".text", ".md", ".rst", ".tex", ".html", ".htm", ".xml", ".log"}
    | {".py", ".c", ".h", ".cc", ".cpp", ".hpp", ".rs", ".go", ".java", ".js", ".ts", ".sh", ".toml", ".yaml", ".yml"}
)
KINDS: dict[str, Kind] = {
    **dict.fromkeys(TEXT_SUFFIXES, "text"), ".jsonl": "lines", ".ndjson": "lines", ".json": "json", ".csv": "csv",
    ".tsv": "csv", ".parquet": "parquet", ".arrow": "arrow",
}  # fmt: skip
PACKINGS = frozenset({".gz", ".zst", ".xz"})
READ = ".txt .md .jsonl .json .csv .tsv .parquet .arrow, and source code, each plain, .gz, .zst or .xz"
CONVERT = {
    ".epub": "pandoc {0} --to=plain --output={1}.txt", ".docx": "pandoc {0} --to=plain --output={1}.txt",
    ".odt": "pandoc {0} --to=plain --output={1}.txt", ".rtf": "pandoc {0} --to=plain --output={1}.txt",
    ".doc": "soffice --headless --convert-to txt {0}", ".pdf": "pdftotext {0} {1}.txt",
    ".zip": "unzip {0}", ".tar": "tar --extract --file {0}", ".tgz": "tar --extract --file {0}",
}  # fmt: skip
"""Commands that make text of what is left out."""
ALLOW = "let this program read it, or move it"


@dataclass(frozen=True)
class DataFile:
    """One that is read."""

    path: Path
    name: str
    """Below the named folder, with slashes."""
    kind: Kind
    packing: str
    """One of PACKINGS, or empty."""
    size_bytes: int
    """The size on disk."""


@dataclass(frozen=True)
class LeftOut:
    """One that is not."""

    name: str
    """Printable."""
    size_bytes: int
    why: str
    """The reason, and what to do."""


@dataclass(frozen=True)
class FoundFiles:
    """All of a folder, in order of their names."""

    base: Path
    files: tuple[DataFile, ...]
    left_out: tuple[LeftOut, ...]
    """Without hidden files: nobody expects those to be read."""

    @property
    def names(self) -> list[str]:
        return [file.name for file in self.files]

    def of_rows(self) -> FoundFiles:
        """Without text files, such as a README: conversations are rows."""
        texts = tuple(file for file in self.files if file.kind == "text")
        left_out = (LeftOut(file.name, file.size_bytes, "it holds no conversations, which are rows") for file in texts)
        rows = tuple(file for file in self.files if file.kind != "text")
        return FoundFiles(self.base, rows, (*self.left_out, *left_out))


def _raise(error: BadInput) -> None:
    raise error


def find_files(path: str, refuse: Callable[[BadInput], None] = _raise) -> FoundFiles:
    """The files at or below `path`. Linked folders are followed, and none is read twice. Raises BadInput if there is
    nothing. `refuse` is told of folders that cannot be read, and of names that are no valid text; those are not among
    the files."""
    require_there([path])
    root = Path(os.path.expanduser(path))
    if not (root.is_file() or root.is_dir()):
        raise BadInput(f"the text is looked for at {path!r}, which is neither a file nor a folder; name one of them")
    base, found = (root.parent, [Path(root.name)]) if root.is_file() else (root, _below(root, refuse))
    files, left_out, misnamed = list[DataFile](), list[LeftOut](), list[str]()
    for called in sorted(map(_called, found), key=lambda called: called.split("/")):
        try:
            seen = _seen(base, called)
        except OSError as error:  # in a folder whose names alone are known, or behind a link into one
            refuse(BadInput(f"{ascii(called)[1:-1]} cannot be read ({error.strerror}); {ALLOW}"))
            continue
        if isinstance(seen, LeftOut):
            left_out.append(seen)
        elif any("\ud800" <= letter <= "\udfff" for letter in called):
            misnamed.append(ascii(called[:200]))
        else:
            files.append(seen)
    if misnamed:
        more = f" and {len(misnamed) - 5} more" if len(misnamed) > 5 else ""
        names = f"{', '.join(misnamed[:5])}{more}"
        refuse(BadInput(f"give {names} in {path!r} a name that is UTF-8 text"))
    return FoundFiles(base, tuple(files), tuple(left_out))


def require_there(paths: Iterable[str]) -> None:
    """Raises BadInput that names those that do not exist."""
    # os.path.exists: without an error for a name that no file can have
    absent = [repr(path) for path in paths if not os.path.exists(os.path.expanduser(path))]
    if absent:
        raise BadInput(
            f"the text is looked for at {' and '.join(absent)}, which is not on this machine; name a text or "
            "parquet file or a folder"
        )


def require_some(found: FoundFiles, path: str, refuse: Callable[[BadInput], None] = _raise) -> None:
    """Refuses a folder of which nothing is read."""
    if not found.files:
        told = "".join(f"; {each.name}: {each.why}" for each in found.left_out[:3])
        refuse(
            BadInput(f"the text is looked for at {path!r}, which holds no text or parquet file{told}; read are {READ}")
        )


def _called(name: Path) -> str:
    """By its bytes alone: peers with other locales put a document of the same name into the same shard."""
    return os.fsencode(name).decode("utf-8", "surrogateescape")


def _below(root: Path, refuse: Callable[[BadInput], None]) -> Iterator[Path]:
    """Names of everything that is no folder, relative to it; real folders before linked ones, so that a link to one
    that is read anyway adds nothing."""

    def unread(error: OSError) -> None:
        """A folder that cannot be opened is not left out in silence."""
        refuse(BadInput(f"the folder {error.filename} cannot be read ({error.strerror}); {ALLOW}"))

    visited, waiting = set[tuple[int, int]](), [root]
    while waiting:
        links = list[Path]()
        for top in waiting:
            for folder, folders, names in os.walk(top, onerror=unread):
                about = os.stat(folder)
                if (about.st_dev, about.st_ino) in visited:
                    folders.clear()
                    continue
                visited.add((about.st_dev, about.st_ino))
                here = Path(folder)
                folders[:] = sorted((name for name in folders if not name.startswith(".")), key=os.fsencode)
                links += [here / name for name in folders if (here / name).is_symlink()]
                yield from ((here / name).relative_to(root) for name in names if not name.startswith("."))
        waiting = links


def _seen(base: Path, called: str) -> DataFile | LeftOut:
    path = base / os.fsdecode(called.encode("utf-8", "surrogateescape"))
    shown = called if called.isprintable() else ascii(called)
    if not path.is_file():
        why = "a link that leads nowhere" if path.is_symlink() else "no regular file"
        return LeftOut(shown, 0, f"{why}; remove it")
    size_bytes = path.stat().st_size
    kind, packing = kind_of(called)
    if kind is None:
        return LeftOut(shown, size_bytes, _why_not(called))
    return DataFile(path, called, kind, packing, size_bytes)


def kind_of(name: str) -> tuple[Kind | None, str]:
    """The format of a file with this name, and its packing; None for a file that is not read."""
    lower = PurePosixPath(name.lower())
    packing = lower.suffix if lower.suffix in PACKINGS else ""
    plain = lower.with_suffix("") if packing else lower
    return KINDS.get(plain.suffix), packing


def _why_not(name: str) -> str:
    path = PurePosixPath(name)
    suffix = path.suffix.lower()
    if suffix in PACKINGS and path.with_suffix("").suffix.lower() == ".tar":
        suffix = ".tar"
    if suffix in CONVERT:
        how = CONVERT[suffix].format(_quoted(path.name), _quoted(path.stem))
        return f"{suffix} is not read; convert it: {how}"
    what = (suffix if suffix.isprintable() else ascii(suffix)) or "a name without a suffix"
    return f"{what} is not read; rename it to .txt if it is text"


def _quoted(name: str) -> str:
    import shlex

    return shlex.quote(name if name.isprintable() else "FILE")
