"""Bytes by digest in a run directory: means of parts and accepted updates. They are kept while something names them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Set
from concurrent.futures import Executor
from pathlib import Path

from dht.atomic_files import raising_damaged, write_atomic
from peer.consensus.protocol.encoding import digest_of


class ObjectStore:
    """The folder `chain/objects` of one peer. Large writes go through `executor`."""

    def __init__(self, folder: Path, executor: Executor, call_soon: Callable[[Callable[[], None]], object]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._executor, self._call_soon = folder, executor, call_soon
        self._writing: dict[bytes, list[Callable[[], None]]] = {}
        self._names: Counter[bytes] = Counter()
        self._sizes: dict[bytes, int] = {}
        self.named_bytes = 0
        """Size of all that is named."""
        self._unused = {bytes.fromhex(path.name) for path in folder.iterdir() if not path.suffix}
        self._stale: set[bytes] = set()
        """Unnamed since the last round; they are removed by the next sweep."""

    def save(self, digest: bytes, payload: bytes) -> None:
        path = self._folder / digest.hex()
        if not path.exists():
            self._note_new(digest, len(payload))
            write_atomic(path, payload)

    def store(self, digest: bytes, payload: bytes, done: Callable[[], None]) -> None:
        """Write these bytes to disk some time; then call `done()`."""
        if digest in self._writing:
            self._writing[digest].append(done)  # two parts may well hold the same bytes, such as zeros
            return
        path = self._folder / digest.hex()
        if path.exists():
            self._call_soon(done)
            return
        self._note_new(digest, len(payload))
        self._writing[digest] = [done]
        writing = self._executor.submit(write_atomic, path, payload)

        def written() -> None:
            waiting = self._writing.pop(digest)
            writing.result()
            for call in waiting:
                call()

        writing.add_done_callback(lambda _: self._call_soon(written))

    def _note_new(self, digest: bytes, size_bytes: int) -> None:
        """Bytes that something names before they are here, for example after damage on the disk, stay as well."""
        if digest not in self._names:
            self._unused.add(digest)
            return
        self.named_bytes += size_bytes - self._sizes[digest]
        self._sizes[digest] = size_bytes

    def load(self, digest: bytes) -> bytes | None:
        """The bytes, unchecked; None if they are not here."""
        path = self._folder / digest.hex()
        return path.read_bytes() if path.exists() else None

    def held(self, also: Iterable[bytes]) -> dict[bytes, int]:
        """The objects that are unnamed, or among `also`, with their sizes."""
        paths = {digest: self._folder / digest.hex() for digest in self._unused.union(also)}
        return {digest: path.stat().st_size for digest, path in paths.items() if path.exists()}

    # ---- who names what ----

    def name(self, digests: Iterable[bytes]) -> None:
        """These stay until they are unnamed as often."""
        for digest in digests:
            self._names[digest] += 1
            if self._names[digest] == 1:
                path = self._folder / digest.hex()
                self._sizes[digest] = path.stat().st_size if path.exists() else 0
                self.named_bytes += self._sizes[digest]
                self._unused.discard(digest)
                self._stale.discard(digest)

    def unname(self, digests: Iterable[bytes]) -> None:
        """Objects that nothing names any more are removed by the sweep after the next."""
        for digest in digests:
            self._names[digest] -= 1
            if not self._names[digest]:
                del self._names[digest]
                self.named_bytes -= self._sizes.pop(digest)
                self._unused.add(digest)

    def freed_bytes(self, digests: Iterable[bytes]) -> int:
        """The bytes that unnaming these once would free, at least."""
        return sum(self._sizes[digest] for digest in set(digests) if self._names[digest] == 1)

    def sweep(self, awaited: Set[bytes]) -> None:
        """Remove what was already unnamed at the last sweep, except the awaited objects. A write may still be under
        way and its `done` report it as held: hence one round later."""
        for digest in self._stale - awaited:
            (self._folder / digest.hex()).unlink(missing_ok=True)
        self._stale, self._unused = self._unused | self._stale & awaited, set()


def load_object(directory: Path, digest: bytes) -> bytes:
    """The bytes of this digest in a run directory. Raises BadInput if they are damaged or gone."""
    path = object_path(directory, digest)
    with raising_damaged(path):
        payload = path.read_bytes()
        if digest_of(payload) != digest:
            raise ValueError("its bytes are not those that were agreed")
    return payload


def object_path(directory: Path, digest: bytes) -> Path:
    return directory / "chain" / "objects" / digest.hex()
