"""Checks whether huggingface.co has what a run reads there: names that do not exist, and access that is blocked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dht.errors import BadInput, BadSpec, Unreachable
from peer.schema.extras import fix_for, is_missing
from peer.schema.spec import RunSpec
from peer.schema.spec_fields import START
from peer.tools.doctor.check import Check, failed, passed

ASK_S = 10.0
"""For each of them."""


@dataclass(frozen=True, kw_only=True)
class HubRepository:
    key: str
    """Of the spec that names it."""
    name: str
    kind: str
    """As the Hub calls it: `model` or `dataset`."""


def repositories_of(spec: RunSpec) -> tuple[HubRepository, ...]:
    """What a peer of this run asks for there."""
    found = [
        HubRepository(key="data.path", name=each.path, kind="dataset")
        for each in spec.data.sources
        if each.source == "hub"
    ]
    if spec.model.tokenizer not in ("bytes", START):
        found.append(HubRepository(key="model.tokenizer", name=spec.model.tokenizer, kind="model"))
    if spec.start is not None and spec.start.is_on_hub:
        found.append(HubRepository(key="start.model", name=spec.start.model, kind="model"))
    return tuple(found)


def check_hub(asked: Sequence[HubRepository], endpoint: str | None = None) -> Check:
    """Ask for each, without a login, as a peer does. Nothing is loaded. `endpoint`: of another Hub than that of all."""
    data = [each.name for each in asked if each.kind == "dataset"]
    if data and is_missing("datasets"):
        found = f"the run reads the data set {data[0]}, for which datasets is not installed"
        return failed("hub", found, fix_for("datasets"), BadInput)
    from httpx2 import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import OfflineModeIsEnabled, RepositoryNotFoundError

    for each in asked:
        try:
            HfApi(endpoint, token=False).repo_info(each.name, repo_type=each.kind, timeout=ASK_S)
        except RepositoryNotFoundError:
            found = f"{each.key} is {each.name}, and huggingface.co has no public repository of this name"
            return failed("hub", found, "tell the organiser: nobody can take part in this run", BadSpec)
        except (HTTPError, OSError, OfflineModeIsEnabled) as error:
            found = f"huggingface.co does not answer for {each.name} ({type(error).__name__}), which this run reads"
            return failed("hub", found, "check the connection, or what filters it", Unreachable)
    return passed("hub", f"huggingface.co has {' and '.join(each.name for each in asked)}")
