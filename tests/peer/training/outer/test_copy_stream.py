"""Between a card and main memory piece by piece: every bit, pinned, and nothing is read before it is there."""

from __future__ import annotations

import pytest
import torch

from peer.training.outer import copy_stream
from peer.training.outer.copy_stream import copied, copy_over, upload
from tests.fake_cuda import CARD, CPU, fake_cuda


@pytest.mark.parametrize("elements", [0, 1, 8, 21])
def test_a_large_tensor_goes_there_and_back_in_pieces(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_stream, "PIECE_ELEMENTS", 8)
    values = torch.arange(float(elements)).view(1, -1)
    with fake_cuda() as cuda:
        there = upload(values, CARD)
        assert there.device == CARD
        back, again = copied(there, CPU), torch.empty_like(values)
        assert torch.equal(back, values)
        copy_over(there, again)
        assert torch.equal(again, values)
        assert {wait.kind for wait in cuda.waits} == {"event"}
    assert not cuda.races
    assert not cuda.mixed


def test_a_copy_is_other_memory_also_on_the_same_side() -> None:
    with fake_cuda():
        for device in (CPU, CARD):
            values = torch.ones(3, device=device)
            assert copied(values, device).data_ptr() != values.data_ptr()
