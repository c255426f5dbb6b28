from __future__ import annotations

import socket

import pytest


@pytest.fixture
def closed_port() -> int:
    """Of this machine, where nobody listens any more."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port: int = closed.getsockname()[1]
        return port
