"""What the codes of penalties mean, in words for people."""

from __future__ import annotations

MEANINGS = {
    "ABSENT": "it was expected and did not answer",
    "ANOMALY": "its update was not like its own before, or not like the others'",
    "CLIPPED": "more than counts in full, of norm or of tokens: what is beyond was left out",
    "LATE": "it had nothing ready, or not all of it came in time",
    "MISDECLARED": "the others measured otherwise than it said",
    "NONFINITE": "its update held values that are not numbers",
    "STALE": "what it gave was learned some rounds ago",
}
"""By code, in alphabetical order."""
