"""Hidden values on the line: what is lost, and what is refused."""

from __future__ import annotations

import pytest
import torch

from peer.parallel.pipeline.activation_codec import BadActivations, decode_activations, encode_activations
from peer.schema.settings import ACTIVATIONS

CPU = torch.device("cpu")


def sent(values: torch.Tensor, wire: str) -> torch.Tensor:
    return decode_activations(encode_activations(values, wire), tuple(values.shape), wire, CPU)


@pytest.mark.parametrize(("wire", "most"), [("float32", 0.0), ("bfloat16", 0.003), ("int8", 0.01)])
def test_error_of_a_wire(wire: str, most: float) -> None:
    """Of random values of any scale, by their root mean square; also of a size that fills no block."""
    generator = torch.Generator().manual_seed(1)
    for scale in (1e-9, 1.0, 1e9):
        values = scale * torch.randn((3, 7, 100), generator=generator)
        error = (sent(values, wire) - values).norm() / values.norm()
        assert error <= most


def test_int8_errs_by_half_a_step_of_its_block_at_most() -> None:
    values = torch.randn((64, 64), generator=torch.Generator().manual_seed(2))
    values[7] *= 1e4  # an outlier spoils its own block only
    steps = values.abs().amax(dim=1, keepdim=True) / 127
    assert bool(((sent(values, "int8") - values).abs() <= steps * 0.5001).all())


def test_zeros_stay_zeros() -> None:
    assert torch.equal(sent(torch.zeros(2, 65), "int8"), torch.zeros(2, 65))


@pytest.mark.parametrize("wire", ACTIVATIONS)
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_refused(wire: str, odd: float) -> None:
    values = torch.randn(4, 64)
    values[2, 3] = odd
    with pytest.raises(BadActivations, match="not finite"):
        sent(values, wire)


def test_a_scale_that_makes_infinity_is_refused() -> None:
    payload = bytearray(encode_activations(torch.ones(1, 64), "int8"))
    payload[:4] = torch.tensor([3e38]).view(torch.uint8).numpy().tobytes()
    with pytest.raises(BadActivations, match="not finite"):
        decode_activations(bytes(payload), (1, 64), "int8", CPU)


@pytest.mark.parametrize("wire", ACTIVATIONS)
def test_another_length_is_refused(wire: str) -> None:
    payload = encode_activations(torch.ones(2, 64), wire)
    for wrong in (payload[:-1], payload + b"\0", b""):
        with pytest.raises(BadActivations, match="bytes where"):
            decode_activations(wrong, (2, 64), wire, CPU)
