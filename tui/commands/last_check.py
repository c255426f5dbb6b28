"""Whether a demo kept the promise: every round committed by every peer, with the same bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tui.swarm.rounds import MAX_COMMITS
from tui.swarm.snapshot import PeerView, SwarmState


def find_fault(swarm: SwarmState, expected: Sequence[str], rounds: int, ends: Mapping[str, str]) -> str | None:
    """One sentence on the first thing that is wrong, or None.

    `expected` are the names of the peers that were started, `rounds` how many rounds each had to commit,
    `ends` says in words how a peer ended that did not end well.
    """
    by_name = {view.name: view for view in swarm.reporting}
    for name in expected:
        if name not in by_name:
            return f"{name} never reported anything" + _because(ends.get(name, ""))
    views = [by_name[name] for name in expected]
    return _differing_round(views) or _missing_round(views, rounds, ends)


def _differing_round(views: list[PeerView]) -> str | None:
    first = views[0]
    agreed = {commit.round: commit for commit in first.commits}
    for view in views:
        for commit in view.commits:
            expected = agreed.setdefault(commit.round, commit)
            for what in ("digest", "state"):
                mine, theirs = getattr(commit, what), getattr(expected, what)
                if mine != theirs:
                    return f"round {commit.round}: {view.label} has {what} {mine[:12]}, others have {theirs[:12]}"
    return None


def _missing_round(views: list[PeerView], rounds: int, ends: Mapping[str, str]) -> str | None:
    for view in views:
        committed = {commit.round for commit in view.commits}
        # Of a longer demo the oldest commits are no longer known.
        looked_at = range(max(1, rounds + 1 - MAX_COMMITS), rounds + 1)
        missing = next((round for round in looked_at if round not in committed), None)
        if missing is not None:
            last = max(committed, default=0)
            why = _because(ends.get(view.name, view.why))
            return f"{view.label} did not commit round {missing} of {rounds}, its last is {last}{why}"
    return None


def _because(why: str) -> str:
    return f": {why}" if why else ""
