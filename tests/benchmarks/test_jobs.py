"""Rows of jobs: made once, and again for other code or another spec."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from peer.schema.spec import RunSpec
from tests.benchmarks import jobs
from tests.benchmarks.variants import run_variant


def test_a_row_of_other_code_or_another_spec_is_made_again(base: RunSpec, tmp_path: Path) -> None:
    job = jobs.Job(variant="int4", seed=1, spec=base, code="aa", train=run_variant)
    assert jobs.stored(job, tmp_path) is None
    jobs.path_of(job, tmp_path).write_text(json.dumps({**job.key, "loss": 1.0}))
    assert jobs.stored(job, tmp_path) == {**job.key, "loss": 1.0}
    assert jobs.stored(dataclasses.replace(job, code="bb"), tmp_path) is None
    other = dataclasses.replace(base, run=dataclasses.replace(base.run, seed=2))
    assert jobs.stored(dataclasses.replace(job, spec=other), tmp_path) is None


def test_the_code_digest_sees_every_file_it_names() -> None:
    """A pattern that matches nothing would let rows of other code pass."""
    assert [pattern for pattern in jobs.CODE if not list(jobs.ROOT.glob(pattern))] == []
