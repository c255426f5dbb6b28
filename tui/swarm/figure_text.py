"""Figures as sentences: screens, the plain log, `status` and the report use the same words."""

from __future__ import annotations

import math
from collections.abc import Mapping

from peer.schema.byte_text import format_bytes
from tui.swarm import figures
from tui.swarm.snapshot import PeerView, PenaltyRecord, Round, SwarmState
from tui.text.units import count, format_elapsed, format_percent, format_seconds, format_uptime


def why_words(swarm: SwarmState, peer: PeerView, now: float) -> str:
    """Why a peer is in its state, in its own words, or that it has not been heard."""
    since_t = None if peer.stopped else figures.silent_since(swarm, peer, now)
    if since_t is None or figures.state(swarm, peer, now).name == "FINISHED":
        return peer.why
    return f"not heard of since {format_elapsed(since_t - (swarm.started_t or since_t))}"


def cost_words(swarm: SwarmState, penalty: PenaltyRecord) -> str:
    """The weight of a penalised peer in its round, compared with its share of the tokens; empty if the round is not
    remembered.

    If not every member's tokens are counted, an equal share replaces the share of the tokens.
    """
    told = next((view for view in reversed(swarm.history) if view.round == penalty.imposed_in), None)
    if told is None or not told.weights:
        return ""
    if penalty.about not in told.weights:
        return "not in the group"
    weighed = f"weighed {format_percent(figures.weight(swarm, penalty.about, told))}"
    given = [told.counted.get(peer, 0) for peer in told.group]
    if given and all(given):
        return f"{weighed}, by tokens {format_percent(told.counted[penalty.about] / sum(given))}"
    return f"{weighed}, equal share {format_percent(1 / len(told.group))}" if told.group else weighed


def counts_as_words(peer: PeerView) -> str:
    """13 accepted, 3 late, 1 rejected; empty before the first round."""
    return ", ".join(f"{number} {word}" for word, number in figures.counts(peer).items() if number)


def rounds_words(swarm: SwarmState) -> str:
    """The number of committed rounds: 7 of 40 rounds, or 7 rounds in a run without end."""
    return f"{swarm.round} of {count(swarm.rounds, 'round')}" if swarm.rounds else count(swarm.round, "round")


def left_words(seconds: float | None) -> str:
    """about 12 min left; empty if it is not known."""
    if not seconds:
        return ""
    return f"about {format_seconds(math.ceil(seconds)) if seconds < 120 else format_uptime(seconds)} left"


def round_words(swarm: SwarmState, told: Round, training_loss: float | None) -> str:
    """2 peers · held-out loss 2.050 · training loss 2.200 · 8.4 s · 61.2 kB sent · digest 5f3a0000"""
    sent, seconds = figures.round_traffic(told).sent, figures.round_seconds(told)
    parts = [
        count(len(told.group), "peer"),
        loss_words(swarm, told.round),
        f"training loss {training_loss:.3f}" if training_loss is not None else "",
        f"{seconds:.1f} s" if seconds else "",
        # What others sent is still being told.
        f"{format_bytes(sent)} sent" if told.reporters == len(swarm.reporting) == 1 else "",
        count(told.void, "void part") if told.void else "",
        f"digest {told.digest[:8]}",
    ]
    return " · ".join(part for part in parts if part)


def loss_words(swarm: SwarmState, round: int) -> str:
    """held-out loss 2.345 (talks 1.750 (-0.120), …); empty for an anchor that was not measured."""
    loss = dict(swarm.losses).get(round)
    if loss is None:
        return ""
    sources = swarm.sources_in_words(round)
    return f"held-out loss {loss:.3f}{f' ({sources})' if sources else ''}"


def agreement_words(swarm: SwarmState, labels: Mapping[str, str]) -> str:
    """Whether all reporting peers have equal bits; otherwise the first round in which two differ."""
    found = figures.agreement(swarm)
    if found.differs is not None:
        first, other = (labels.get(peer, peer) for peer in found.between)
        return f"round {found.differs} differs: {first} and {other}"
    if not found.reporting:
        return "nothing was committed"
    digest = f"(digest {found.digest[:12]})"
    if found.reporting < 2:
        return f"one peer reports: nothing to compare {digest}"
    whose = "all peers" if found.reporting == len(swarm.peers) else f"the {found.reporting} peers that report"
    return f"equal on {whose} in every round {digest}"
