"""Checks whether huggingface.co has what a run reads there: names that do not exist, and access that is blocked.

`python -m peer.tools.doctor.hub_names SPEC` asks for those in the text of a spec, before a run is made of it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from dht.errors import BadInput, BadSpec, HomefiresError, Unreachable
from peer.schema.extras import fix_for, is_missing
from peer.schema.spec import RunSpec, parse
from peer.schema.spec_fields import START
from peer.tools.doctor.check import Check, failed, one_line, passed

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
    try:
        require_public(asked, endpoint)
    except BadSpec as error:
        return failed("hub", one_line(error), "tell the organiser: nobody can take part in this run", BadSpec)
    except Unreachable as error:
        return failed("hub", one_line(error), "check the connection, or what filters it", Unreachable)
    return passed("hub", f"huggingface.co has {' and '.join(each.name for each in asked)}")


def require_public(asked: Sequence[HubRepository], endpoint: str | None = None) -> None:
    """Raises BadSpec for the first one that is not there for everybody, and Unreachable if that cannot be known."""
    from httpx2 import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import OfflineModeIsEnabled, RepositoryNotFoundError

    for each in asked:
        try:
            HfApi(endpoint, token=False).repo_info(each.name, repo_type=each.kind, timeout=ASK_S)
        except RepositoryNotFoundError as error:
            none = f"{each.key} is {each.name}, and huggingface.co has no public repository of this name"
            raise BadSpec(none) from error
        except (HTTPError, OSError, OfflineModeIsEnabled) as error:
            silent = f"huggingface.co does not answer for {each.name} ({type(error).__name__}), which this run reads"
            raise Unreachable(silent) from error


def main() -> int:
    try:
        require_public(repositories_of(parse(sys.argv[1])))
    except HomefiresError as error:
        print(f"homefires: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
