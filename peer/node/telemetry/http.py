"""Read-only HTTP pages on loopback for people at this machine, served by a thread of its own.

A page is made when it is asked for. A browser that came here under another host name (DNS rebinding) is refused.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from dht.errors import BadInput, PortInUse

HOST = "127.0.0.1"
LOCAL_NAMES = frozenset({HOST, "localhost"})
ANSWER_S = 10.0
"""Who asks and then does not read is dropped after this long."""


@dataclass(frozen=True, kw_only=True)
class Page:
    content_type: str
    body: bytes


Pages = Mapping[str, Callable[[], Page]]
"""By path, as in `/metrics`."""


@contextmanager
def serving(port: int, pages: Pages) -> Iterator[int]:
    """Serve these pages until the block ends; gives the port. Raises PortInUse, BadInput."""
    server = _bind(port, pages)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, name="pages", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(ANSWER_S)


def _bind(port: int, pages: Pages) -> _Server:
    if not 0 <= port <= 65_535:
        raise BadInput(f"port {port} does not exist; use one from 1024 to 65535")
    try:
        return _Server(port, pages)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(f"port {port} of {HOST} is taken by another program; choose another one") from error
        if error.errno == errno.EACCES:
            raise BadInput(f"port {port} is not for users; use one from 1024 to 65535") from error
        raise


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Who hangs in the middle of a request must not hold up the end of this process.
    block_on_close = False

    def __init__(self, port: int, pages: Pages) -> None:
        super().__init__((HOST, port), _Handler)
        self.pages = pages


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = ANSWER_S

    def do_GET(self) -> None:
        name = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if name not in LOCAL_NAMES:
            self.send_error(HTTPStatus.FORBIDDEN, "Ask for 127.0.0.1")
            return
        make = self.server.pages.get(self.path.partition("?")[0])
        if make is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        page = make()
        self.send_response(HTTPStatus.OK)
        for header, value in (
            ("Content-Type", page.content_type), ("Content-Length", str(len(page.body))), ("Cache-Control", "no-store"),
            ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'"),
            ("X-Content-Type-Options", "nosniff"),
        ):  # fmt: skip
            self.send_header(header, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)

    do_HEAD = do_GET

    def version_string(self) -> str:
        return "homefires"

    def log_message(self, format: str, *args: Any) -> None:
        """A scrape every few seconds is not worth a line."""
