"""Nothing a peer produced is lost or counted twice."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from peer.train import residual as residuals
from peer.train.residual import Residual

SIZE = 6
HALF = slice(0, 3), slice(3, 6)
integers = st.lists(st.integers(-1000, 1000), min_size=SIZE, max_size=SIZE)
operation = st.one_of(
    st.tuples(st.just("produce"), integers),
    st.tuples(st.sampled_from(["counted", "returned", "give_up"]), st.sampled_from(HALF), integers),
)


@given(st.lists(operation, max_size=12))
def test_balance_equals_exact_bookkeeping(operations: list[tuple[object, ...]]) -> None:
    """Produced − counted + returned, less what was given up: exact in float32 for small integers."""
    residual, exact = Residual.empty(SIZE), [Fraction(0)] * SIZE
    for name, *arguments in operations:
        if name == "produce":
            start = torch.tensor(arguments[0], dtype=torch.float32)
            residual.add_progress(slice(None), start, torch.zeros(SIZE))
            exact = [have + value for have, value in zip(exact, arguments[0], strict=True)]
            continue
        part, values = arguments
        decoded = torch.tensor(values, dtype=torch.float32)[part]
        sign = {"counted": -1, "returned": 1}.get(str(name))
        if sign is None:
            residual.give_up(part)
        else:
            getattr(residual, str(name))(part, decoded)
        for index in range(SIZE)[part]:
            exact[index] = Fraction(0) if sign is None else exact[index] + sign * values[index]
    assert residual.flat.tolist() == exact


def test_what_the_encoding_lost_is_offered_again() -> None:
    """Error feedback: over many rounds the counted sum follows the produced sum."""
    residual, counted = Residual.empty(3), torch.zeros(3)
    step = torch.tensor([0.3, -1.7, 1e-4])
    for _ in range(1000):
        residual.add_progress(slice(None), step.clone(), torch.zeros(3))
        decoded = residual.flat.round()
        residual.counted(slice(0, 3), decoded)
        counted += decoded
    assert torch.allclose(counted + residual.flat, step * 1000, rtol=1e-4)
    assert bool((residual.flat.abs() <= 0.5).all())


def test_a_small_move_of_a_large_parameter_is_kept() -> None:
    """The difference is taken before it is added, so 2^-20 of a parameter of size 1 survives."""
    residual = Residual(torch.full((1,), 2.0**-30))
    residual.add_progress(slice(None), torch.ones(1), torch.ones(1) - 2.0**-20)
    assert residual.flat.item() == 2.0**-20 + 2.0**-30


def test_a_part_that_is_given_up_reports_its_norm() -> None:
    """The other part is untouched."""
    residual = Residual(torch.tensor([3.0, 4.0, 7.0]))
    assert residual.give_up(slice(0, 2)) == pytest.approx(5.0)
    assert residual.flat.tolist() == [0.0, 0.0, 7.0]


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any chunk size gives the same bits."""
    start, now = torch.linspace(0, 1, 101), torch.linspace(1, 3, 101)
    whole, chunked = Residual.empty(101), Residual.empty(101)
    whole.add_progress(slice(None), start.clone(), now)
    monkeypatch.setattr(residuals, "CHUNK", 7)
    chunked.add_progress(slice(None), start, now)
    assert torch.equal(whole.flat, chunked.flat)
    assert torch.equal(start, now), "what comes next is measured from here"
