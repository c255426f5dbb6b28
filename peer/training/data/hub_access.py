"""Access to huggingface.co: the files of a repository, and no access for a process that needs none."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from dht.errors import BadSpec, Unreachable


def close_hub() -> None:
    """From now on this process, and its children, send no request to huggingface.co, whatever a library would like."""
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    # What was loaded before has read its environment.
    for module, name in (("huggingface_hub.constants", "HF_HUB_OFFLINE"), ("datasets.config", "HF_HUB_OFFLINE")):
        if module in sys.modules:
            setattr(sys.modules[module], name, True)


def fetch_files(
    key: str, name: str, patterns: Sequence[str], *, revision: str | None = None, token: bool | None = None
) -> Path:
    """The folder with those files of the repository OWNER/NAME that match `patterns`; only files of its top folder.
    `key` is the spec's key that names it. Raises BadSpec if there is no such repository, and Unreachable."""
    from httpx2 import HTTPError
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(
            snapshot_download(
                name, revision=revision, token=token, allow_patterns=list(patterns), ignore_patterns="*/*"
            )
        )
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        why = "huggingface.co has no public repository of this name"
        if isinstance(error, RevisionNotFoundError):
            why = f"its repository has no revision {revision}"
        raise cannot_load(key, name, why) from error
    except (LocalEntryNotFoundError, HTTPError) as error:  # of a server that is busy, or breaks off, too
        raise Unreachable(
            f"{key} {name!r} cannot be reached and is not on this machine; check the connection"
        ) from error
    except (OSError, HFValidationError) as error:
        raise cannot_load(key, name, reason_of(error)) from error


def cannot_load(key: str, name: str, reason: str) -> BadSpec:
    return BadSpec(f"{key} is {name!r}, which cannot be loaded ({reason}); get it again, or name another")


def reason_of(error: Exception) -> str:
    """Its first line."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
