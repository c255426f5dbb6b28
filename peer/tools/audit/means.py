"""Compares each archived mean with the rows that it carries and with the norms that contributors declared.

The contributions themselves are gone: voters checked that each row is true of its contribution, and nobody can check
that later.
"""

from __future__ import annotations

from collections.abc import Callable

from peer.consensus.codec import rows
from peer.consensus.codec.codec import Codec
from peer.consensus.protocol import norms
from peer.consensus.protocol.block import VOID, WEIGHT_ONE, Update
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.membership import trusted
from peer.consensus.protocol.rules import Rules

FALSE_SUM = "the rows behind this mean do not come to it; who made it the chain does not say"
FALSE_NORM = "a row behind this mean is larger than its giver declared; who made it the chain does not say"


class MeanChecker:
    """Of one run. `load` gives the bytes of a mean by its digest; it raises KeyError for one that is not here."""

    def __init__(self, rules: Rules, codec: Codec, load: Callable[[bytes], bytes]) -> None:
        self._rules, self._codec, self._load = rules, codec, load
        self._updates: dict[int, Update] = {}
        """By round, as many as it takes to average the whole model once."""

    def passed(self, update: Update) -> None:
        """What follows may pull to the means of this update."""
        self._updates[update.round] = update
        self._updates.pop(update.round - self._rules.fragments, None)

    def fault_of(self, head: ChainHead, update: Update, part: int) -> str | None:
        """What is wrong with a mean of the update after `head`; empty if nothing is, None if it pulls to a mean that
        is not here: then its sum cannot be known."""
        formula, elements = self._formula(head, update, part), self._rules.fragment(head.round).parts[part].size
        try:
            name = self._last(update, part) if formula.pull else VOID
            before = None if name == VOID else self._codec.without_rows(self._load(name), elements)
        except KeyError:
            return None
        last = None if before is None else self._codec.of_means.decode(before)
        mean, shown = rows.taken_apart(self._load(update.parts[part]), len(formula.declared))
        values = self._codec.of_means.decode(mean)
        sketch, sums = rows.Sketch.drawn(update.parent, part, mean, values.size), rows.rows_in(shown)
        if not rows.sum_is_right(self._codec, sketch, mean, values, sums, formula, last):
            return FALSE_SUM
        return "" if rows.norms_are_declared(sums, formula) else FALSE_NORM

    def _last(self, update: Update, part: int) -> bytes:
        """Digest of the mean of this part before. Raises KeyError where the update that had it is not here."""
        before = update.round - self._rules.fragments
        return self._updates[before].parts[part] if before > 0 else VOID

    def _formula(self, head: ChainHead, update: Update, part: int) -> rows.MeanFormula:
        number, bits = self._rules.fragment(head.round).rows[part], update.contributors[part]
        weights, believed = norms.row_for(update.weights, number), trusted(head)
        behind = [index for index in range(len(update.members)) if bits >> index & 1]
        missing = sum(
            weight
            for index, weight in enumerate(weights)
            if not bits >> index & 1 and update.members[index].peer in believed
        )
        return rows.MeanFormula(
            weights=[weights[index] for index in behind], missing=missing,
            declared=[norms.declared_of_part(update.members[index], part) for index in behind],
            scale=update.scales[number] if update.scales else WEIGHT_ONE,
            pull=update.pulls[number] if update.pulls else 0,
        )  # fmt: skip
