"""A model at huggingface.co, as an organiser's machine and a peer's load it: by the commands that they start."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from peer.node.store import start_blob
from peer.schema.spec import dump, from_mapping, load
from peer.testing.child_process import BUSY
from tests import warm
from tests.hub_server import HubServer, serving
from tests.open_models import publish, run_from

pytestmark = [pytest.mark.outside, pytest.mark.slow]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adopted") / "model"
    publish(folder, seed=5)
    return folder


@pytest.fixture(scope="module")
def served(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    """Where processes that start look for models and data, in a folder of their own."""
    files = {path.name: path.read_bytes() for path in model.iterdir()}
    with serving(HubServer({"models/owner/name": files | {"evil.py": b"raise SystemExit", "w.bin": b"pickle"}})) as hub:
        environment = {
            "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path_factory.mktemp("hf")), "HF_HUB_OFFLINE": "0",
            "HF_DATASETS_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1",
        }  # fmt: skip
        with warm.loaded_in(environment):
            yield hub


@pytest.fixture
def hub(served: HubServer) -> HubServer:
    served.away = False
    served.reads.clear()
    return served


def peer(cache: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of `python -m peer` on a machine that has nothing but what lies in `cache`."""
    shutil.rmtree(os.environ["HF_HOME"], ignore_errors=True)
    return subprocess.run(
        [sys.executable, "-m", "peer", *words], env=os.environ | {start_blob.CACHE: str(cache)}, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip


def test_a_peer_has_what_the_organiser_had(
    hub: HubServer, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit stands in the spec; neither code nor pickles are loaded."""
    asked = {"model": "owner/name", "revision": "", "own": {"context": 64}, "template": ""}
    told = peer(tmp_path / "organiser", "adopt", json.dumps(asked))
    assert told.returncode == 0, told.stderr
    adopted = json.loads(told.stdout.splitlines()[-1])
    filled_in = adopted.pop("filled_in")
    assert not filled_in or "transformers" in filled_in
    assert adopted["start"]["revision"] == hub.revision("models/owner/name")
    assert adopted["start"]["digest"] == run_from(model).start.digest
    assert not {path for path, _, _ in hub.reads if path.endswith((".py", ".bin"))}
    spec = from_mapping({name: table for name, table in load("micro").tables().items() if name != "model"} | adopted)
    (tmp_path / "spec.toml").write_text(dump(spec))
    described = peer(tmp_path / "mine", "describe", str(tmp_path / "spec.toml"))
    assert described.returncode == 0, described.stderr
    monkeypatch.setenv(start_blob.CACHE, str(tmp_path / "mine"))
    start_blob.require_intact(adopted["start"]["digest"])


def test_a_name_that_is_not_there_is_one_line(hub: HubServer, tmp_path: Path) -> None:
    told = peer(tmp_path, "adopt", json.dumps({"model": "no/body", "revision": "", "own": {}}))
    assert told.returncode == 2
    assert told.stderr.splitlines()[-1].startswith("homefires: start.model is 'no/body', which cannot be loaded")
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize("away", [False, True])
def test_a_tokenizer_that_is_not_there_is_one_line_at_once(hub: HubServer, tmp_path: Path, away: bool) -> None:
    """The organiser is told when the run is described; a server that hangs up is no reason to refuse."""
    spec = load("micro").tables()
    spec["model"] = spec["model"] | {"tokenizer": "owner/nmae", "config": spec["model"]["config"] | {"vocab_size": 300}}
    (tmp_path / "spec.toml").write_text(dump(from_mapping(spec)))
    hub.away = away
    begun = time.monotonic()
    told = peer(tmp_path, "describe", str(tmp_path / "spec.toml"))
    assert time.monotonic() - begun < 10 * BUSY  # of which libraries take the most
    assert told.returncode == (0 if away else 2), told.stderr
    line = "homefires: model.tokenizer is 'owner/nmae', which cannot be loaded (huggingface.co has no public repository"
    assert away or told.stderr.splitlines()[-1].startswith(line)
    assert "Traceback" not in told.stderr
