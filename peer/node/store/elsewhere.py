"""What a peer keeps outside its folder, in the machine's cache: noted in its folder, so that its owner finds it.

`python -m peer.node.store.elsewhere DIR [OTHER …]` removes what the peer of DIR has there and no peer of OTHER uses. It
prints one JSON object with the removed paths and bytes. Not while the peer runs.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from dht.atomic_files import write_atomic
from dht.errors import HomefiresError
from dht.process import die_with_parent, lock_directory
from peer.node.store import start_blob

NOTE = "elsewhere"
"""In the folder of a peer: a path per line, below the cache."""
PACKS = "packs"
"""In the cache: tokens that a peer makes anew where they are missing."""


def note(directory: Path, place: Path) -> None:
    """The peer of `directory` uses what lies at `place`, in the cache. Raises DiskFull."""
    name, known = os.path.relpath(place, start_blob.cache()), noted(directory)
    if name not in known and not name.startswith(os.pardir):
        write_atomic(directory / NOTE, "".join(f"{each}\n" for each in [*known, name]).encode(), private=True)


def noted(directory: Path) -> list[str]:
    """Paths in the cache."""
    path = directory / NOTE
    return path.read_text().splitlines() if path.exists() else []


def forget(directory: Path, others: Iterable[Path]) -> dict[str, int]:
    """Remove what this peer has in the cache, unless one of `others` uses it too, and packs that no peer has noted,
    as earlier versions left them. Returns bytes by path."""
    cache, used = start_blob.cache(), {name for other in others for name in _used(other)}
    mine = {name for name in noted(directory) if not Path(name).is_absolute() and os.pardir not in Path(name).parts}
    mine |= {os.path.relpath(path, cache) for path in (cache / PACKS).glob("[0-9a-f]*") if "." not in path.name}
    gone = dict[str, int]()
    for place in (cache / name for name in sorted(mine - used)):
        if place.is_dir():
            gone[str(place)] = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
            shutil.rmtree(place)
        elif place.exists():
            gone[str(place)] = place.stat().st_size
            place.unlink()
    for index in (cache / PACKS / "of").glob("*"):  # which names a pack
        if not (cache / PACKS / index.read_text().split()[-1]).exists():
            index.unlink()
    (directory / NOTE).unlink(missing_ok=True)
    return gone


def _used(directory: Path) -> Iterable[str]:
    """The paths that a peer uses, also one that has not started since such notes exist: its spec names its
    pretrained model."""
    yield from noted(directory)
    spec = directory / "spec.toml"
    if spec.exists():
        text = spec.read_text(errors="replace")
        yield from (
            os.path.relpath(path, start_blob.cache())
            for path in (start_blob.cache() / "start").glob("*")
            if path.name in text
        )


def main(words: Sequence[str]) -> int:
    die_with_parent()
    directory, *others = map(Path, words)
    try:
        with lock_directory(directory):
            print(json.dumps(forget(directory, others)))
    except HomefiresError as error:
        print(f"homefires: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
