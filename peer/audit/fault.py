"""The first bad link of a chain: where it is and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgpack

from dht.errors import BadChain


class BadLink(BadChain):
    """A file that is not what the peers agreed on; `round` is the first one that cannot be trusted."""

    def __init__(self, round: int, path: Path, why: str) -> None:
        super().__init__(f"round {round}: {path}: {why}")
        self.round, self.path, self.why = round, path, why


@contextmanager
def blaming(round: int, path: Path) -> Iterator[None]:
    """Raises BadLink for bytes that do not parse, or whatever else the ValueError says, and for a file that is gone."""
    try:
        yield
    except FileNotFoundError as error:
        raise BadLink(round, path, "it is gone") from error
    except (ValueError, TypeError, LookupError, msgpack.UnpackException) as error:
        raise BadLink(round, path, str(error) or type(error).__name__) from error


def require(condition: bool, why: str) -> None:
    """Raises ValueError, for `blaming` to turn into a fault."""
    if not condition:
        raise ValueError(why)
