"""Training without rounds: each peer averages with one other after every step (arXiv:2410.11998), to compare with.

One-peer exponential graph: in iteration k peer i hears peer i − 2^(k mod τ), with τ = ⌈log₂ n⌉, and takes the mean of
the two. If n is a power of two, τ iterations in which nobody learns anything give everybody the mean of all exactly.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def period(peers: int) -> int:
    """Iterations until everybody has heard, through others, of everybody: τ."""
    return max(1, math.ceil(math.log2(peers)))


def partners(peers: int, iteration: int) -> NDArray[np.int64]:
    """Shape (peers,): whom each one hears in an iteration; itself if it is alone."""
    heard: NDArray[np.int64] = (np.arange(peers) - 2 ** (iteration % period(peers))) % peers
    return heard


def mix(x_NP: Floats, iteration: int) -> Floats:
    """What N peers with P parameters each have after they have averaged once."""
    return 0.5 * (x_NP + x_NP[partners(len(x_NP), iteration)])


def consensus_distance(x_NP: Floats) -> float:
    """√(mean over peers of |x_i − x̄|²): how far peers are apart."""
    return float(np.sqrt(((x_NP - x_NP.mean(axis=0)) ** 2).sum(axis=1).mean()))


def gossip_ends_s(compute_KN: Floats, gossip_s: Floats | float) -> Floats:
    """Shape (K,): when the last of N peers has ended each of K iterations, from when each computes a gradient.

    A peer's gossip goes on while it computes, so that an iteration takes max(compute, gossip), and it waits for its
    partner alone: tᵢ ← max(tᵢ + computeᵢ, max(tᵢ, t_partner) + gossip). `gossip_s` is one for all, or of shape (τ, N):
    what peer i needs to take in its partner's parameters in each iteration of a period.
    """
    iterations, peers = compute_KN.shape
    t_N, ends = np.zeros(peers), np.empty(iterations)
    gossip_TN = np.broadcast_to(gossip_s, (period(peers), peers))
    for iteration in range(iterations):
        heard_N = np.maximum(t_N, t_N[partners(peers, iteration)]) + gossip_TN[iteration % len(gossip_TN)]
        t_N = np.maximum(t_N + compute_KN[iteration], heard_N)
        ends[iteration] = t_N.max()
    return ends


def all_reduce_ends_s(compute_KN: Floats, exchange_s: float) -> Floats:
    """The same where all average with all after each gradient: everybody waits for the slowest, then for the line."""
    ends: Floats = np.cumsum(compute_KN.max(axis=1) + exchange_s)
    return ends


def rounds_ends_s(compute_KN: Floats, steps: int, exchange_s: float) -> Floats:
    """The same in rounds of so many steps, after each of which all average with all: the slowest of sums is less slow
    than the sum of the slowest."""
    rounds = compute_KN.shape[0] // steps
    per_round_RN = compute_KN[: rounds * steps].reshape(rounds, steps, -1).sum(axis=1)
    return all_reduce_ends_s(per_round_RN, exchange_s)
