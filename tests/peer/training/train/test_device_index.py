"""A CUDA device without its number is refused wherever one is handed on, and nothing in the product makes one."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import peer
from peer.consensus.codec.codec import Codec
from peer.node.host.device import choose_device, choose_devices
from peer.schema.spec import load
from peer.training.checkpoint.capture import Capture
from peer.training.model.build import build
from peer.training.outer import copy_stream
from peer.training.outer.bitwise_check import device_for
from peer.training.outer.kernels import TorchKernels
from peer.training.train.layerwise import _Copies
from peer.training.train.offload import Offload
from peer.training.train.optimizers import make_optimizers
from tests.fake_cuda import CARD, fake_cuda

ANY = torch.device("cuda")
CODEC = Codec("int4")
CHOOSES = ("node/host/device.py", "_usable_device")
"""Where a name becomes a device."""


def offload(device: torch.device) -> None:
    spec = load("micro")
    model = build(spec)
    Offload(model, make_optimizers(model, spec, torch.device("cpu")), device)


SEAMS: dict[str, Callable[[torch.device], object]] = {
    "a backend": offload,
    "kernels": lambda device: TorchKernels(CODEC, device),
    "the check of their bits": lambda device: device_for(device, CODEC),
    "updates beside steps": _Copies,
    "a checkpoint": lambda device: Capture(state={}, layers=(), rest={}, device=device),
    "streams of a thread": copy_stream._stream,
}


@pytest.mark.parametrize("seam", SEAMS)
def test_one_without_its_number_reaches_nothing_but_a_refusal(seam: str) -> None:
    with fake_cuda():
        SEAMS[seam](CARD)
        with pytest.raises(AssertionError, match="cuda has no index"):
            SEAMS[seam](ANY)


def test_whoever_chooses_hands_on_one_with_its_number() -> None:
    with fake_cuda():
        assert choose_device("cuda") == choose_device("auto") == CARD
        assert choose_devices(("cuda",)) == choose_devices() == (CARD,)


def test_nowhere_else_a_name_becomes_a_device() -> None:
    """But those of the processor, and of tensors without memory; and a kind that is asked of a chosen name."""
    root = Path(peer.__file__).parent
    made = set[tuple[str, str]]()
    for path in root.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                made |= {
                    (path.relative_to(root).as_posix(), function.name) for each in ast.walk(function) if _makes(each)
                }
    assert made == {CHOOSES, ("parallel/autotune/rank_trials.py", "fit_ranks")}


def _makes(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or ast.unparse(node.func) != "torch.device":
        return False
    return not (isinstance(node.args[0], ast.Constant) and node.args[0].value in ("cpu", "meta"))
