"""A run that starts from a small model that plain transformers wrote, and whose steps are seen in its loss."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from peer.schema.spec import RunSpec
from peer.schema.spec_fields import AdapterTable, ModelTable, StartTable
from peer.training.model.pretrained import adopt, find
from tests.peer.tools.export.run_on_disk import small_spec

CONTEXT = 16
PART_ELEMENTS = 8192
"""Of a model that takes some hundred files a round in the parts of `small_spec`."""


def started_spec(base: Path, corpus: Path, adapter: AdapterTable | None) -> RunSpec:
    """What lies in `base` is in the cache then."""
    told = adopt(find(str(base)), {"context": CONTEXT})
    spec = small_spec(corpus, "llama")
    inner = dataclasses.replace(spec.inner, warmup_steps=0)
    model, start = ModelTable(**told["model"]), StartTable(**told["start"])
    codec = dataclasses.replace(spec.codec, part_elements=PART_ELEMENTS)
    return dataclasses.replace(spec, model=model, start=start, adapter=adapter, inner=inner, codec=codec)
