"""This home's place in its cluster, for one life of its trainer: which layers it holds, and its line to the others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from peer.ipc import Assignment, HomeLost, HomesOffered, StagesAssigned
from peer.pipeline.flow_router import FlowEnd, FlowRouter
from peer.pipeline.home_group import HomeGone, LeadHomes, WorkerHome
from peer.store.contributions import written_leaves


class ClusterHome:
    """Made for an assignment; closed with the life that it belongs to."""

    def __init__(
        self, assignment: Assignment, me: str, end: FlowEnd, contributions: Path, ask_submit: Callable[[], None]
    ) -> None:
        """`ask_submit` has this home's life offer what it has where it stands."""
        holder = assignment.of(me)
        assert holder is not None, "an assignment without this home is for others"
        self.assignment, self.me, self.holder = assignment, me, holder
        self.is_lead = assignment.lead == me
        self.homes: LeadHomes | WorkerHome
        if self.is_lead:
            self.homes = LeadHomes(assignment, lambda to, frame: self.router.send(to, frame))
        else:
            self.homes = WorkerHome(
                assignment, me, lambda to, frame: self.router.send(to, frame),
                written=partial(written_leaves, contributions), ask_submit=ask_submit,
            )  # fmt: skip
        self.router = FlowRouter(end, self.homes.take)

    def hear(self, said: HomesOffered | StagesAssigned | HomeLost) -> None:
        """What the link says of the cluster. Raises HomeGone where this life cannot go on with it."""
        match said:
            case HomeLost(peer=peer, why=why) if isinstance(self.homes, LeadHomes):
                self.homes.lost(peer, why)
                if peer in {holder.peer for holder in self.assignment.workers}:
                    raise HomeGone(peer, why)
            case StagesAssigned(assignment=assignment) if assignment.epoch > self.assignment.epoch:
                self._reassigned(assignment)

    def close(self) -> None:
        self.router.close()
