"""No way to the Hub for a process that needs none."""

from __future__ import annotations

import os
import sys


def close_hub() -> None:
    """From now on this process, and those it starts, ask huggingface.co for nothing, whatever a library would like."""
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    # What was loaded before has read its environment.
    for module, name in (("huggingface_hub.constants", "HF_HUB_OFFLINE"), ("datasets.config", "HF_HUB_OFFLINE")):
        if module in sys.modules:
            setattr(sys.modules[module], name, True)
