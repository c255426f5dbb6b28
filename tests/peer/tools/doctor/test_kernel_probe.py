"""What the child that looks at a device says and ends with."""

from __future__ import annotations

import json

import pytest
import torch

from dht.errors import BadInput, MemoryFull
from peer.tools.doctor import kernel_probe


@pytest.fixture(autouse=True)
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_probe, "die_with_parent", lambda: None)


def test_a_processor_computes(capsys: pytest.CaptureFixture[str]) -> None:
    assert kernel_probe.main(["cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["device"] == "cpu"


def test_each_device_is_tried(capsys: pytest.CaptureFixture[str]) -> None:
    assert kernel_probe.main(["cpu", "cpu"]) == 0
    assert [row["device"] for row in json.loads(capsys.readouterr().out)["chosen"]] == ["cpu", "cpu"]
    assert kernel_probe.main(["cpu", "abacus"]) == BadInput.exit_code
    assert "'abacus'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", MemoryFull.exit_code),
        ("CUDA error: unspecified launch failure", 1),
    ],
)
def test_a_full_device_is_told_from_a_broken_one(
    text: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where its context has room and the libraries have none."""

    def fail(weights: torch.Tensor) -> float:
        raise RuntimeError(text)

    monkeypatch.setattr(kernel_probe, "_multiply", fail)
    assert kernel_probe.main(["cpu"]) == code
    told = capsys.readouterr().err
    assert told.startswith("homefires: ")
    assert len(told.splitlines()) == 1


def test_a_device_that_is_not_there_is_a_wrong_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert kernel_probe.main(["abacus"]) == BadInput.exit_code
    assert "'abacus'" in capsys.readouterr().err
