"""After a real run the figures on the screens are those of the chain's certificates."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peer.testing.child_process import HANG_S
from tests.swarm.conftest import LIGHT, Homefires, set_words

pytestmark = pytest.mark.swarm
ROUNDS = 4


def ask(*words: str) -> Any:
    command = [sys.executable, "-m", "tui", *words, "--json"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True)
    return json.loads(told.stdout)


def test_status_and_credit_say_the_same(homefires: Callable[..., Homefires], tmp_path: Path) -> None:
    """Of every peer, in the folder of each; and both peers' chains say the same."""
    directory = tmp_path / "d"
    words = ["--peers", "2", "--rounds", str(ROUNDS), "--dir", str(directory), "--ui", "none"]
    assert homefires("demo", "--spec", "micro", *words, *set_words(LIGHT)).finish() == 0
    credits = [ask("credit", str(directory / name)) for name in ("peer-1", "peer-2")]
    assert credits[0]["peers"] == credits[1]["peers"]
    assert (credits[0]["first_round"], credits[0]["checked_from"], credits[0]["last_round"]) == (1, 1, ROUNDS)
    status = ask("status", "--dir", str(directory / "peer-1"))
    shown = {row["peer"]: row for row in status["peers"]}
    assert {row["name"] for row in credits[0]["peers"]} == {"peer-1", "peer-2"}
    for row in credits[0]["peers"]:
        mine = shown[row["peer"]]
        assert (mine["tokens"], mine["accepted"], mine["rejected"], mine["missed"]) == (
            row["tokens"], row["accepted"], row["rejected"], row["missed"],
        )  # fmt: skip
        assert mine["late"] == row["late"] + row["idle"]
        assert row["tokens"] > 0
