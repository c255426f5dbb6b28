"""Options of `plan`, `place` and `simulate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tui.command_line import Argument, Option
from tui.spec_choice import Sets, Spec, choose_spec

if TYPE_CHECKING:
    from peer.planning.plan.peer_set import Machine
    from peer.schema.spec import RunSpec

ANY = (0, float("inf"))
Preset = Annotated[str, Option("spread the peers over a network of known places, such as aws", "NAME")]
Seed = Annotated[int, Option("seed of all random draws (default 0)", "S", within=(0, 2**63 - 1))]
Speed = Annotated[
    float,
    Option(
        "bandwidth of each peer's line in this direction, in megabits per second (default: no limit)",
        "MBPS",
        within=ANY,
    ),
]


@dataclass(frozen=True, kw_only=True)
class PeersOptions:
    """A spec, and the peers for which it is planned."""

    spec: Spec
    sets: Sets = ()
    peers: Annotated[
        str, Option("how many peers, a TOML file of [[peer]] tables, or a peer's folder", "N|FILE|DIR")
    ] = ""
    step_s: Annotated[float, Option("seconds that an inner step of this spec takes on every peer", "S")] = 0.0
    flops: Annotated[float, Option("FLOP/s that training reaches on every peer, such as 2e13", "F")] = 0.0
    memory: Annotated[float, Option("memory of every peer's training device", "GB")] = 0.0
    upload: Annotated[float, Option("upload of every peer, in megabits per second", "MBPS")] = 0.0
    download: Annotated[float, Option("download of every peer, in megabits per second", "MBPS")] = 0.0
    parameters: Annotated[int, Option("plan for a model of N parameters instead of the spec's", "N")] = 0

    def choose(self) -> RunSpec:
        """The spec. Raises BadSpec, BadInput."""
        return choose_spec(self.spec, sets=self.sets, drafts=True)

    @property
    def machine(self) -> Machine:
        """The machine of every peer, if only their number is given. Raises BadInput."""
        from peer.planning.plan.peer_set import Machine

        return Machine(
            name="every peer", step_s=self.step_s, flops=self.flops, memory_gb=self.memory, upload_mbps=self.upload,
            download_mbps=self.download,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PlanOptions(PeersOptions):
    quality: Annotated[float, Option("weight of the quality of tokens in the score; 0: none", "W", within=(0, 10))] = (
        1.0
    )
    gb_price: Annotated[
        float,
        Option("price of 1 GB a day in the score, in per cent of the tokens/s (default 0.1)", "P", within=(0, 100)),
    ] = 0.1
    measured: Annotated[Path | None, Option("measured rounds: a peer's folder, or an earlier fit", "DIR|FILE")] = None


@dataclass(frozen=True, kw_only=True)
class PlaceOptions(PeersOptions):
    preset: Preset = ""
    """If no number of peers is given, the preset's number is used, at most as many as a group holds."""
    stages: Annotated[int, Option("cut the model into K stages (default: as few as memory allows)", "K")] = 0
    pipelines: Annotated[int, Option("use M copies of the model (default: as many as are fastest together)", "M")] = 0
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class SwarmOptions:
    """The run to simulate, and its peers."""

    spec: Annotated[str, Argument("a TOML file or a name", "SPEC")] = "tiny"
    sets: Sets = ()
    peers: Annotated[str, Option("how many peers, or a TOML file of [[peer]] tables", "N|FILE")] = "4"
    rounds: Annotated[
        int | None, Option("rounds to simulate (default: the spec's, or 20)", "R", within=(1, 100_000))
    ] = None
    preset: Preset = ""
    step_s: Annotated[
        float, Option("seconds that an inner step takes (default: on a typical home GPU)", "S", within=(0, 1e6))
    ] = 0.0
    spread: Annotated[float, Option("spread of the speed of a peer, as a share of it", "X", within=(0, 2))] = 0.05
    """With 2, a peer is typically seven times as fast in one round as in another."""
    upload: Speed = 0.0
    download: Speed = 0.0
    churn: Annotated[
        str, Option("rates per hour, such as crash=0.1,leave=0.05,join=0.1,back=600; or a file", "RATES|FILE")
    ] = ""
    attackers: Annotated[
        str, Option("how many peers attack, and how, such as times_100=1,nan=1,zeros=1,replay=1", "KINDS")
    ] = ""
    skew: Annotated[float, Option("largest error of a peer's clock, in seconds (default 0)", "S", within=ANY)] = 0.0
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class SimulateOptions(SwarmOptions):
    events: Annotated[Path | None, Option("write the events of all peers to this file", "FILE")] = None
