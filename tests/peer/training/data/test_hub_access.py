"""Who needs nothing of the Hub has no way there."""

from __future__ import annotations

import os
from types import SimpleNamespace

import datasets.config
import huggingface_hub
import huggingface_hub.constants
import pytest

from peer.training.data.hub_access import close_hub


def test_a_closed_hub_is_asked_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """By libraries that are loaded, and by processes that are started later."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    close_hub()
    assert (os.environ["HF_HUB_OFFLINE"], os.environ["HF_DATASETS_OFFLINE"]) == ("1", "1")
    assert datasets.config.HF_HUB_OFFLINE
    with pytest.raises(huggingface_hub.errors.OfflineModeIsEnabled):
        huggingface_hub.get_session().get("https://huggingface.co/api/models/a/b")


def test_a_library_that_is_not_loaded_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.training.data.hub_access.sys", SimpleNamespace(modules={}))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    close_hub()
    assert os.environ["HF_HUB_OFFLINE"] == "1"
