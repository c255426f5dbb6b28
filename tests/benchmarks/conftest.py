"""The smallest spec worth training, for the tests of the benchmarks."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peer.schema.spec import RunSpec, load
from tests.benchmarks import jobs

SPEC = """
[run]
name = "least"
rounds = 2
[model]
architecture = "llama"
context = 16
[model.config]
hidden_size = 16
intermediate_size = 32
num_hidden_layers = 1
num_attention_heads = 2
[data]
source = "files"
path = "CORPUS"
held_out_every = 4
eval_sequences = 4
[inner]
learning_rate = 1e-2
sequences = 2
[round]
steps = 3
gather_s = 10
ack_s = 3
exchange_s = 8
stagger_s = 2
min_round_s = 0
[codec]
part_elements = 2048
"""


@pytest.fixture(scope="session")
def spec_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one layer on some files of letters, for two rounds."""
    folder = tmp_path_factory.mktemp("least")
    corpus = folder / "corpus"
    corpus.mkdir()
    letters = np.random.default_rng(0).integers(97, 123, size=(40, 1000), dtype=np.uint8)
    for number, row in enumerate(letters):
        (corpus / f"{number}.txt").write_bytes(row.tobytes())
    path = folder / "least.toml"
    path.write_text(SPEC.replace("CORPUS", str(corpus)))
    return path


@pytest.fixture
def base(spec_path: Path) -> RunSpec:
    return load(str(spec_path))


class Here(Executor):
    """In place of a pool of processes: this one does each job at once, with what another would get of it by pickle."""

    def submit(self, work: Callable[..., Any], /, *given: Any, **more: Any) -> Future[Any]:
        """Done already. Raises what the work raises."""
        work, given, more = pickle.loads(pickle.dumps((work, given, more)))
        done = Future[Any]()
        done.set_result(pickle.loads(pickle.dumps(work(*given, **more))))
        return done


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are not given to processes of their own, which take seconds to load; `test_quality` has the real pool."""
    monkeypatch.setattr(jobs, "pool_of", lambda processes: Here())
