"""A server that speaks the Hub's protocol as far as `huggingface_hub` and `datasets` use it, with faults on demand.

Set HF_ENDPOINT to its `address` before those libraries are imported, so best in a child process.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

KINDS = ("models", "datasets")


@dataclass
class HubServer:
    """Repositories by "datasets/OWNER/NAME" or "models/OWNER/NAME", each a mapping of paths to contents.

    Faults befall the bodies of files alone, whose reads are numbered from 1.
    """

    repositories: dict[str, Mapping[str, bytes]] = field(default_factory=dict)
    fails_every: int = 0
    """Every so many reads end with status 503."""
    breaks_every: int = 0
    """Every so many reads end in the middle."""
    damages_every: int = 0
    """Of every so many reads the bytes are not the file's."""
    stalls_every: int = 0
    """Every so many reads wait until the server ends, or `go_on` is set."""
    away: bool = False
    """Every connection is closed without an answer."""
    address: str = ""
    go_on: threading.Event = field(default_factory=threading.Event)
    reads: list[tuple[str, int, int]] = field(default_factory=list)
    """Path, first byte and bytes of each body of a file that was asked for."""
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def revision(self, repository: str) -> str:
        """The one commit of a repository."""
        files = self.repositories[repository]
        return hashlib.sha1(b"".join(name.encode() + files[name] for name in sorted(files))).hexdigest()

    def hits(self, every: int, number: int) -> bool:
        return every > 0 and number % every == 0


@contextmanager
def serving(hub: HubServer) -> Iterator[HubServer]:
    """While it lasts `hub` answers at its `address`, at a port that is free."""

    class Handler(_Handler):
        served = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        hub.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


class _Handler(BaseHTTPRequestHandler):
    served: HubServer
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_POST(self) -> None:
        self._answer(with_body=True)

    def log_message(self, format: str, *args: object) -> None: ...

    def _answer(self, *, with_body: bool) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.served.away:
            self.close_connection = True
            return
        address = urlsplit(self.path)
        parts = [unquote(part) for part in address.path.strip("/").split("/")]
        if parts[0] == "api":
            kind, owner, name, *rest = [*parts[1:], "", "", ""][:3] + parts[4:]
            repository = f"{kind}/{owner}/{name}"
            if kind in KINDS and repository in self.served.repositories:
                self._say(200, self._about(repository, rest, parse_qs(body.decode()), body))
                return
        else:
            kind = "models" if parts[0] != "datasets" else parts.pop(0)
            if len(parts) > 4 and parts[2] == "resolve":
                repository, path = f"{kind}/{parts[0]}/{parts[1]}", "/".join(parts[4:])
                if path in self.served.repositories.get(repository, {}):
                    self._send_file(repository, path, with_body=with_body)
                    return
                if repository in self.served.repositories:
                    self._say(404, {"error": "Entry not found"}, error="EntryNotFound")
                    return
        self._say(404, {"error": "Repository not found"}, error="RepoNotFound")

    def _about(self, repository: str, rest: list[str], form: Mapping[str, list[str]], body: bytes) -> Any:
        files = self.served.repositories[repository]
        if rest and rest[0] == "tree":
            folder = "/".join(rest[2:])
            inside = [path for path in sorted(files) if not folder or path.startswith(f"{folder}/")]
            return [_entry(path, files[path]) for path in inside]
        if rest and rest[0] == "paths-info":
            asked = json.loads(body)["paths"] if body.startswith(b"{") else form.get("paths", [])
            return [_entry(path, files[path]) for path in asked if path in files]
        revision = self.served.revision(repository)
        names = [{"rfilename": path} for path in sorted(files)]
        identity = repository.partition("/")[2]
        return {
            "id": identity, "sha": revision, "siblings": names, "private": False, "gated": False, "disabled": False,
            "tags": [], "downloads": 0, "likes": 0, "lastModified": "2026-01-01T00:00:00.000Z",
        }  # fmt: skip

    def _send_file(self, repository: str, path: str, *, with_body: bool) -> None:
        hub, content = self.served, self.served.repositories[repository][path]
        first, last = _range(self.headers.get("Range"), len(content))
        payload, number = content[first : last + 1], 0
        if with_body:
            hub.reads.append((path, first, len(payload)))
            number = next(hub.numbers)
        if with_body and hub.hits(hub.fails_every, number):
            self._say(503, {"error": "busy"})
            return
        if with_body and hub.hits(hub.stalls_every, number):
            hub.go_on.wait(60)
        self.send_response(206 if self.headers.get("Range") else 200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", hub.revision(repository))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(len(payload)))
        if self.headers.get("Range"):
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        self.end_headers()
        if not with_body:
            return
        if hub.hits(hub.damages_every, number):
            payload = bytes(byte ^ 0xFF for byte in payload)
        if hub.hits(hub.breaks_every, number):
            payload, self.close_connection = payload[: len(payload) // 2], True
        with suppress(OSError):  # who has waited for too long is gone
            self.wfile.write(payload)

    def _say(self, status: int, answer: Any, error: str = "") -> None:
        packed = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(packed)))
        if error:
            self.send_header("X-Error-Code", error)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(packed)


def _entry(path: str, content: bytes) -> dict[str, Any]:
    oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    return {"type": "file", "oid": oid, "size": len(content), "path": path}


def _range(header: str | None, size: int) -> tuple[int, int]:
    """First and last byte."""
    if not header:
        return 0, size - 1
    first, _, last = header.removeprefix("bytes=").partition("-")
    if not first:
        return max(0, size - int(last)), size - 1
    return int(first), min(int(last) if last else size - 1, size - 1)
