"""The lines of a long log that decide a peer's present state: five in six need not be read.

Folding all lines gives the same peers, counts and rounds, except for the curves, lanes and the log that a dashboard
draws. A line of a type in `LATEST` holds until the next one of its type. So of those, except in the newest bytes, the
first and the last of each type are enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from peer.schema.events import EventLine, read_line, read_raw_lines
from tui.swarm.snapshot import USUAL_ROUNDS

NEWEST_BYTES, NEWEST_ROUNDS = 1 << 18, 2 * USUAL_ROUNDS
"""The newest part of a file, of which every line is read: at least this size and this number of rounds."""
LATEST = frozenset(
    {
        b"PeerStateChanged", b"RoundStarted", b"PhaseEntered", b"InnerProgressed", b"ReportReceived",
        b"NetworkMeasured", b"DeviceMeasured", b"RoundTripsReported", b"RoundForecast", b"CheckpointWritten",
    }
)  # fmt: skip
Kind = tuple[bytes | bool, ...]
_TYPE, _PEER = b'"type":"', b'"peer":"'
_ABOUT = {
    b"ReportReceived": re.compile(rb'"about":"([^"]*)".*"ready":(\w+).*"evaluated_round":(\d+)'),
    b"RoundTripsReported": re.compile(rb'"about":"([^"]*)"'),
}
"""The peer that a line is about; for a report also what the next report does not repeat: the loss of an earlier
anchor."""
_LEADERLESS = b'"coordinator":""'
"""A phase of this kind does not change the coordinator."""
_COMMITTED, _GIVEN, _UNCOUNTED, _ABSENT = b'"type":"RoundCommitted"', b'"given":', b'"given":{}', b'"ABSENT"'


def decisive_lines(paths: Sequence[Path]) -> Iterator[EventLine | None]:
    """The decisive lines of these files, the oldest file first, in the form of `read_lines`. Raises OSError."""
    raws = list(chain.from_iterable(map(read_raw_lines, paths)))
    dropped = _superseded(raws)
    return (read_line(raw) for number, raw in enumerate(raws) if number not in dropped)


def _superseded(raws: Sequence[bytes]) -> set[int]:
    """The numbers of the lines that need not be read; none for a log in which progress lines count."""
    dropped, newest = set[int](), _newest(raws)
    known, last = set[Kind](), dict[Kind, int]()
    for number, raw in enumerate(raws):
        kind = _kind(raw)
        if kind is None:
            if _COMMITTED in raw and (_UNCOUNTED in raw or _GIVEN not in raw):
                return set()  # it leaves it to its readers what each peer gave, as older clients do
            if _ABSENT in raw:  # whether it is gone depends on what was heard until here
                last.clear()
        elif number >= newest:
            continue
        elif kind in known:
            if kind in last:
                dropped.add(last[kind])
            last[kind] = number
        else:
            known.add(kind)
    return dropped


def _newest(raws: Sequence[bytes]) -> int:
    """The number of the first line from which on every line is read."""
    size, rounds, first = 0, 0, len(raws)
    while first and (size < NEWEST_BYTES or rounds < NEWEST_ROUNDS):
        first -= 1
        size += len(raws[first])
        rounds += _COMMITTED in raws[first]
    return first


def _kind(raw: bytes) -> Kind | None:
    """A key for lines of which only the last one matters; None for a line that counts by itself."""
    # Quotes within a text are escaped: these are the line's own.
    at = raw.find(_TYPE)
    end = raw.find(b'"', at + len(_TYPE))
    kind = raw[at + len(_TYPE) : end]
    if at < 0 or kind not in LATEST or not raw.endswith(b"}\n"):
        return None
    teller = raw[raw.find(_PEER) : at]
    if kind == b"PhaseEntered":
        return kind, teller, _LEADERLESS in raw
    if kind not in _ABOUT:
        return kind, teller
    about = _ABOUT[kind].search(raw, end)
    return None if about is None else (kind, teller, *about.groups())
