"""A real open model learns to call tools, and does so in plain transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from peer.schema.events import Evaluated, parse_line
from peer.schema.spec import RunSpec, from_mapping, load
from peer.tools.export.folder import export
from peer.training.model.pretrained import adopt, find
from peer.training.train.trainer import LocalTrainer
from tests.open_models import smollm2
from tests.peer.tools.export.run_on_disk import CPU, make_run
from tests.peer.tools.export.tool_talks import CITIES, call, question, result, tools, write_tool_talks

STEPS = 4
"""Of a peer and round, a conversation each: 48 in all, so that two busy cores are done within a quarter of an hour."""
CONTEXT = 288
"""Tokens; one of these conversations has some 275."""


def spec_on(talks: Path) -> RunSpec:
    """A shipped adapter of SmolLM2-135M-Instruct, on conversations; the model's own template has no tools."""
    adopted = adopt(find(str(smollm2())), {"context": CONTEXT})
    tables = load("smollm2-135m-code").tables() | adopted
    data = {
        "source": "files", "path": str(talks), "format": "chat", "template": "chatml", "held_out_every": 10,
        "held_out_by": "content", "eval_sequences": 4,
    }  # fmt: skip
    inner = {"learning_rate": 2e-3, "warmup_steps": 2, "sequences": 1, "accumulation": 1}
    outer = {"learning_rate": 1.0, "momentum": 0.0}
    return from_mapping(tables | {"data": data, "inner": inner, "outer": outer, "aggregation": {"weigh": "predicted"}})


@pytest.mark.smollm2
@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_open_model_learns_to_call_tools_and_stops_by_itself(tmp_path: Path) -> None:
    """Three peers, four rounds, 200 conversations. Asked for a city that stands in none of them, the export calls the
    right tool with it, ends its turn, and says what the tool has found, by nothing of ours."""
    write_tool_talks(tmp_path / "talks", 200, seed=1)
    spec = spec_on(tmp_path / "talks")
    losses = [LocalTrainer(spec, "start", tmp_path / "start", CPU, data_path=spec.data.path).evaluate().loss]
    run = make_run(tmp_path, spec, rounds=4, peers=3, steps=STEPS)
    lines = filter(None, map(parse_line, (run.directory / "events.jsonl").read_text().splitlines()))
    losses += [line.event.loss for line in lines if isinstance(line.event, Evaluated)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 2, losses
    export(run.directory, tmp_path / "out", what="merged")
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    words: Any = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert "Oslo" not in CITIES
    talk: list[dict[str, Any]] = []
    for asked, answer in (
        (
            [question("weather", "Oslo")],
            '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
        ),
        ([call("weather", "Oslo"), result("weather", "Oslo", 17)[0]], "It is 17 degrees in Oslo."),
    ):
        talk += asked
        prompt = words.apply_chat_template(talk, tools=tools(), add_generation_prompt=True, return_dict=False)
        ids = model.generate(torch.tensor([prompt]), max_new_tokens=64, do_sample=False)[0, len(prompt) :].tolist()
        assert words.decode(ids) == f"{answer}<|im_end|>"
