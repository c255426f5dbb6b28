"""A child of `busy`: for every line on stdin it submits and applies once, and prints how long each took, in seconds.

Run by its path with another source tree on PYTHONPATH, so it takes nothing but what older trees have, too.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import torch

from peer.schema.spec import RunSpec, from_mapping
from peer.training.train.trainer import LocalTrainer
from tests.decided import DecidedRound

ME = "p0"
WRITE_S = 300.0


def spec_of(hidden: int, overlap: str) -> RunSpec:
    """A llama of 12 blocks; at a width of 960 it has 134 M parameters. Its steps are as short as they can be."""
    config = {
        "hidden_size": hidden, "intermediate_size": hidden * 8 // 3, "num_hidden_layers": 12,
        "num_attention_heads": 8, "num_key_value_heads": 8,
    }  # fmt: skip
    return from_mapping(
        {
            "run": {"name": "busy"},
            "model": {"architecture": "llama", "context": 16, "config": config},
            "inner": {"sequences": 1},
            "round": {"overlap": overlap},
            "codec": {"wire": "int4"},
        },
        "busy",
    )


def timed_round(trainer: LocalTrainer, anchor: bytes) -> tuple[dict[str, float], bytes]:
    """Seconds of a submission and of an update by this peer alone, and the next anchor.

    A peer that streams has made a step of the next round when the update comes, which is applied beside its steps.
    """
    streams = trainer.spec.round.overlap == "streaming"
    trainer.step(0.0, lambda: False)
    began_at = time.perf_counter()
    writing = trainer.submit(anchor)
    held_s = time.perf_counter() - began_at
    writing.result(WRITE_S)
    submit_s = time.perf_counter() - began_at
    if streams:
        trainer.step(0.0, lambda: False)
    decided = DecidedRound([trainer], anchor)
    began_at = time.perf_counter()
    trainer.apply(decided.update, decided.objects.__getitem__, beside=streams)
    if trainer.layers is not None:
        trainer.layers.result(WRITE_S)
    apply_s = time.perf_counter() - began_at
    return {"held_s": held_s, "submit_s": submit_s, "apply_s": apply_s}, decided.next_anchor


def main() -> None:
    torch.manual_seed(0)
    anchor = bytes(32)
    with tempfile.TemporaryDirectory(prefix="hf-") as folder:
        spec = spec_of(int(sys.argv[1]), sys.argv[2])
        trainer = LocalTrainer(spec, ME, Path(folder) / "contributions", torch.device("cpu"))
        print(json.dumps({"parameters": trainer.parameters}), flush=True)
        for _ in sys.stdin:
            seconds, anchor = timed_round(trainer, anchor)
            print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main()
