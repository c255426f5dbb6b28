"""`homefires doctor` as a person runs it, with everything real."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dht.errors import Unfit
from dht.identity import Identity
from dht.invite import issue
from peer.testing.child_process import HANG_S, assert_no_orphans
from tests.swarm.conftest import Homefires

pytestmark = pytest.mark.swarm


def test_an_expired_invite_is_found_and_all_else_is_examined(
    homefires: Callable[..., Homefires], tmp_path: Path
) -> None:
    """The exit code says that something failed, what needs the run is unknown, and nothing is left behind."""
    organiser = Identity.generate()
    address = f"/ip4/127.0.0.1/tcp/4001/p2p/{organiser.peer_id}"
    invite = issue(organiser, run="old", spec_hash=b"h" * 32, addrs=(address,), expires=time.time() - 3600)
    words = ("doctor", invite, "--json", "--devices", "cpu", "--listen", "/ip4/127.0.0.1/tcp/0", "--dir", str(tmp_path))
    command = homefires(*words)
    told = [json.loads(text) for text in iter(command.text, None)]
    assert command.process.wait(HANG_S) == Unfit.exit_code, command.err
    found = {row["check"]: row["status"] for row in told[:-1]}
    assert {name for name, status in found.items() if status == "FAIL"} == {"invite"}
    assert {"identity", "file descriptors", "sleep", "daemon", "reach", "device", "libraries", "heat"} <= set(found)
    assert all(found[name] == "PASS" for name in ("daemon", "device", "libraries", "identity"))
    assert found["needs"] == "UNKNOWN"
    assert told[-1]["verdict"]["sentence"].startswith("unknown: the invite is refused; ask the organiser for a new one")
    assert told[-1]["verdict"]["tokens_per_day"] is None
    assert_no_orphans(tmp_path)
