"""What a consent screen says about a run, computed from its spec: `python -m peer.tools.watch.run_facts`, for
`preview.py`.

Nobody has agreed to anything yet, and the spec is a stranger's text. So a process looks at it that has little memory
and time and can write no file. It reads one JSON object from stdin and prints one.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dht.errors import HomefiresError
from dht.identity import fingerprint_words
from peer.node.store.start_blob import cache
from peer.planning.plan.coefficients import shipped
from peer.planning.plan.home_cost import ways_without_room
from peer.planning.plan.model_shape import shape_of
from peer.planning.plan.peer_set import HOME_FLOPS, Machine, uniform_peers
from peer.planning.plan.round_cost import predict
from peer.planning.plan.run_needs import RunNeeds, needs_of
from peer.schema.byte_text import format_bytes
from peer.schema.model_layers import FLOAT32_BYTES
from peer.schema.settings import PeerSettings
from peer.schema.spec import RunSpec, parse
from peer.schema.spec_fields import START, DataTable, MixTable

MOST_BYTES = 1 << 30
"""Of address space."""
MOST_CPU_S = 20
LICENCES = {
    "stdlib": "the Python Software Foundation licence",
    "files": "whatever holds for these files on your machine",
    "hub": "see the page of the data set",
}
"""The spec names no licence; by `data.source`, where it stands."""


def main() -> int:
    """Limit this process, read what to look at, print the facts. One line on stderr for a spec that is refused."""
    limit()
    told = json.load(sys.stdin)
    try:
        found = facts(
            told["run"], told["organiser"], parse(told["spec"]), told["power_w"], told["gpus"], told["main_bytes"]
        )
    except HomefiresError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(found, allow_nan=False))
    return 0


def limit() -> None:
    """For the rest of this process's life."""
    for what, most in ((resource.RLIMIT_AS, MOST_BYTES), (resource.RLIMIT_CPU, MOST_CPU_S), (resource.RLIMIT_FSIZE, 0)):
        _, hard = resource.getrlimit(what)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


def facts(
    run: str, organiser: str, spec: RunSpec, power_w: float | None, gpus: Sequence[int] = (), main_bytes: int = 0
) -> dict[str, Any]:
    """All that a consent screen says, numbers as numbers. `power_w`: what the GPU may draw, None without one; `gpus`:
    the memory of each; `main_bytes`: what can be had of main memory."""
    needs = needs_of(spec, PeerSettings().chain_bytes)
    return {
        "v": 1, "run": run, "organiser": organiser, "fingerprint": fingerprint_words(organiser),
        "architecture": spec.model.architecture, "parameters": needs.parameters, "context": spec.model.context,
        "rounds": spec.run.rounds, "start": start_in_words(spec), "data": data_in_words(spec),
        "reads_files": spec.data.reads_files,
        "hub_data": [each.path for each in spec.data.sources if each.source == "hub"],
        "licence": _licences(spec.data), "elsewhere": elsewhere_in_words(spec), "cache": str(cache()),
        "device_bytes": needs.device, "main_bytes": needs.main, "disk_bytes": needs.disk,
        "least_disk_bytes": needs.least_disk, "power_w": power_w, **_traffic(spec, needs),
        **_room(spec, needs, gpus, main_bytes),
    }  # fmt: skip


def _room(spec: RunSpec, needs: RunNeeds, gpus: Sequence[int], main_bytes: int) -> dict[str, Any]:
    """What GPUs have, if the run has no room on them, and what their owner may do then."""
    if not gpus or sum(gpus) >= needs.least_device:
        return {"lacking_bytes": None, "ways": []}
    ways = ways_without_room(shape_of(spec), spec, min(gpus), main_bytes - needs.main)
    return {"lacking_bytes": sum(gpus), "ways": [asdict(way) for way in ways]}


def _licences(table: DataTable) -> str:
    return "; ".join(dict.fromkeys(LICENCES[each.source] for each in table.sources))


def data_in_words(spec: RunSpec) -> str:
    """What is read, and what is asked of huggingface.co for that."""
    sources = "; ".join(map(_source_in_words, spec.data.sources))
    rules = ("text" if each.source == "hub" else spec.data.held_out_by for each in spec.data.sources)
    by = " or ".join(sorted({rule.replace("content", "text") for rule in rules}))
    sources += f"; one document in {spec.data.held_out_every:,}, by the hash of its {by}, is held out"
    if spec.model.tokenizer == "bytes":
        return sources
    if spec.model.tokenizer == START:
        return f"{sources}, cut by the tokenizer of the model from which it starts"
    return f"{sources}, cut by the tokenizer {spec.model.tokenizer} of huggingface.co"


def elsewhere_in_words(spec: RunSpec) -> str:
    """What a peer keeps in the cache, outside its folder; empty for nothing."""
    kept = [] if spec.data.private else ["the tokens of what it reads"]
    kept += ["the model it starts from"] if spec.start is not None else []
    return " and ".join(kept)


def start_in_words(spec: RunSpec) -> str:
    """What a run trains on from, and how much of it; empty without a model to start from."""
    if spec.start is None:
        return ""
    where = "of huggingface.co, or from other peers" if spec.start.is_on_hub else "from other peers"
    size = format_bytes(FLOAT32_BYTES * spec.model_layers.parameters)
    what = "all of it" if spec.adapter is None else f"an adapter of rank {spec.adapter.rank} beside it"
    return f"{spec.start.model}, {size} {where}; {what} is trained"


def _source_in_words(table: DataTable | MixTable) -> str:
    if table.source == "stdlib":
        return "the source text of the Python standard library that is on your machine"
    if table.source == "files":
        kind = "files of conversations" if table.format == "chat" else "text files"
        where = f", in FOLDER/{table.name}" if isinstance(table, MixTable) else ""
        return f"{kind} of yours, called {table.path}{where}; you say which with --set data_path=FOLDER"
    subset = f" ({table.subset})" if table.subset else ""
    kind = "conversations" if table.format == "chat" else "data set"
    return f"the {kind} {table.path}{subset} of huggingface.co, streamed while it trains"


def _traffic(spec: RunSpec, needs: RunNeeds) -> dict[str, float | None]:
    """Bytes that each peer sends, and as many it takes in, and how long a round takes on such machines."""
    cost = predict(shape_of(spec), spec, uniform_peers(needs.peers, Machine(name="a home GPU")), shipped())
    return {
        "peers": needs.peers, "round_bytes": needs.round_bytes, "day_bytes": needs.round_bytes * 86400 / cost.round_s,
        "round_s": cost.round_s, "assumed_flops": HOME_FLOPS,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
