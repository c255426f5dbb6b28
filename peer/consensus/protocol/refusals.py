"""The rules by which a signed message of a round is refused, as codes; `homefires explain CODE` explains each."""

from __future__ import annotations

from dataclasses import dataclass

HEADER, STEPS, TOKENS, RANGES, STALENESS, BANDWIDTH = "HEADER", "STEPS", "TOKENS", "RANGES", "STALENESS", "BANDWIDTH"
DELEGATES = "DELEGATES"
"""Of what a peer says that it gives."""
NORMS = "NORMS"
"""Of what a member declares of its contribution."""
MEMBERS, PLACE, TABLES, TIME = "MEMBERS", "PLACE", "TABLES", "TIME"
"""Of what a coordinator starts or proposes."""
MEANS, STATE, MESSAGE = "MEANS", "STATE", "MESSAGE"
"""Of means; of the bits at an anchor; and what cannot be handled at all."""
VOTES, BLOCK = "VOTES", "BLOCK"
"""Of what is said to be decided."""

RULES = frozenset(
    {
        HEADER,
        STEPS,
        TOKENS,
        RANGES,
        STALENESS,
        BANDWIDTH,
        DELEGATES,
        NORMS,
        MEMBERS,
        PLACE,
        TABLES,
        TIME,
        VOTES,
        BLOCK,
        MEANS,
        STATE,
        MESSAGE,
    }
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A message of a peer broke a rule; `why` says so in words."""

    peer: str
    rule: str
    why: str
