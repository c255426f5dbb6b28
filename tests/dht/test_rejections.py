"""What is refused is said once a minute, and not remembered without end."""

from __future__ import annotations

import logging

import pytest

from dht.access import SAY_AGAIN_S, SAY_MOST, RejectCode, RejectionLog


def test_the_same_is_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    heard: list[tuple[RejectCode, str, str]] = []
    refuse = RejectionLog(lambda: now_s[0])
    refuse.hear = lambda code, who, why: heard.append((code, who, why))
    with caplog.at_level(logging.WARNING):
        for now_s[0] in (0.0, 1.0, SAY_AGAIN_S):
            refuse(RejectCode.STRANGER, "12D3KooX", "it shows no admission")
        refuse(RejectCode.CLOCK, "12D3KooX", "10 s ahead")
    assert [record.getMessage() for record in caplog.records] == [
        "refused STRANGER of 12D3KooX: it shows no admission",
        "refused STRANGER of 12D3KooX: it shows no admission",
        "refused CLOCK of 12D3KooX: 10 s ahead",
    ]
    assert len(heard) == 3


def test_strangers_under_many_names_fill_neither_log_nor_memory() -> None:
    """And do not drown what has another code."""
    now_s = [0.0]
    heard: list[tuple[RejectCode, str]] = []
    refuse = RejectionLog(lambda: now_s[0])
    refuse.hear = lambda code, who, why: heard.append((code, who))
    for number in range(10 * SAY_MOST):
        refuse(RejectCode.STRANGER, str(number), "")
    refuse(RejectCode.QUARANTINE, "0", "")
    assert len(heard) == len(refuse._said) == SAY_MOST + 1
    now_s[0] = SAY_AGAIN_S
    refuse(RejectCode.STRANGER, "another", "")
    assert heard[-1] == (RejectCode.STRANGER, "another")
    assert len(refuse._said) == 1
