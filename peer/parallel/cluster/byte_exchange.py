"""Bytes by digest that the homes of a cluster give each other from their disks: chunks and manifests of snapshots, and
means of parts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dht.errors import BadInput
from peer.consensus.protocol.encoding import digest_of
from peer.node.store import snapshots
from peer.node.store.chunked_file import read_chunk
from peer.node.store.objects import load_object, object_path
from peer.parallel.pipeline.home_group import ASK_AGAIN_S, HomeGone, SendFrame
from peer.parallel.pipeline.home_messages import MOST_ASKED, AskBytes, BytesHere, encode_home

SILENCE_S = 30.0
"""A home that has sent none of the bytes that it was asked for by then is lost."""
WAIT_S = 0.5


class ByteExchange:
    """One home's part in it. Its answers come from the thread that reads."""

    def __init__(
        self, directory: Path, send: SendFrame, *, silence_s: float = SILENCE_S, again_s: float = ASK_AGAIN_S
    ) -> None:  # fmt: skip
        self._directory, self._send = directory, send
        self._silence_s, self._again_s = silence_s, again_s
        self._came = threading.Condition()
        self._here: dict[tuple[str, bytes], bytes] = {}
        """By home and digest: what was asked for and has come; empty bytes: that home has it not."""
        self._asked: set[tuple[str, bytes]] = set()

    def take(self, sender: str, message: AskBytes | BytesHere) -> None:
        """A message of another home of this cluster."""
        if isinstance(message, AskBytes):
            for digest in message.digests:
                self._send(sender, encode_home(BytesHere(digest, self._on_disk(digest) or b"")))
            return
        if message.payload and digest_of(message.payload) != message.digest:
            return  # as if it had not come
        with self._came:
            if (sender, message.digest) in self._asked:
                self._here[sender, message.digest] = message.payload
                self._came.notify_all()

    def ask(self, home: str, digests: Sequence[bytes]) -> None:
        """Ask for bytes; `has` says whether they have come."""
        with self._came:
            self._asked |= {(home, digest) for digest in digests}
        self._send(home, encode_home(AskBytes(tuple(digests))))

    def has(self, home: str, digest: bytes) -> bool:
        """Whether this home has shown that it has these bytes."""
        with self._came:
            return bool(self._here.get((home, digest)))

    def fetch(
        self, homes: Sequence[str], digests: Sequence[bytes], keep: Callable[[bytes, bytes], None],
        stop: Callable[[], bool],
    ) -> bool:  # fmt: skip
        """Call `keep` with each digest and its bytes, from the first of the homes that has them. Returns False if no
        home has some of them, or `stop` says so. Raises HomeGone for a home that does not answer."""
        missing = list(dict.fromkeys(digests))
        for home in homes:
            left: list[bytes] = []
            for first in range(0, len(missing), MOST_ASKED):
                wanted = missing[first : first + MOST_ASKED]
                if not self._await(home, wanted, stop):
                    return False
                with self._came:
                    came = [(digest, self._here.pop((home, digest))) for digest in wanted]
                    self._asked -= {(home, digest) for digest in wanted}
                for digest, payload in came:
                    if payload:
                        keep(digest, payload)
                    else:
                        left.append(digest)
            missing = left
            if not missing:
                return True
        return not missing

    def _await(self, home: str, wanted: Sequence[bytes], stop: Callable[[], bool]) -> bool:
        """Returns whether this home has answered for all of these before `stop` said so. Raises HomeGone."""
        missing, heard_at, again_at = list(wanted), time.monotonic(), 0.0
        while missing:
            if stop():
                return False
            now = time.monotonic()
            if now - heard_at >= self._silence_s:
                raise HomeGone(home, f"did not say within {self._silence_s:.0f} s which layers it has")
            if now >= again_at:
                again_at = now + self._again_s
                self.ask(home, missing)
            with self._came:
                if not any((home, digest) in self._here for digest in missing):
                    self._came.wait(min(WAIT_S, self._again_s))
                left = [digest for digest in missing if (home, digest) not in self._here]
            if len(left) < len(missing):
                missing, heard_at = left, time.monotonic()
        return True

    def _on_disk(self, digest: bytes) -> bytes | None:
        """The bytes, checked; None if they are not here."""
        if object_path(self._directory, digest).exists():
            try:
                return load_object(self._directory, digest)
            except BadInput:
                return None
        for name in reversed(snapshots.names(self._directory)):
            path = snapshots.path_of(self._directory, *name)
            try:
                manifest = snapshots.read_manifest(path)
            except BadInput:
                continue
            if digest in manifest.chunks:
                return read_chunk(path / snapshots.VECTORS, manifest, manifest.chunks.index(digest))
            if digest_of(manifest.to_bytes()) == digest:
                return manifest.to_bytes()
        return None
