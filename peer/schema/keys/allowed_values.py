"""What the value of a key may be, in the spec of a stranger."""

from __future__ import annotations

from dataclasses import dataclass

from dht.errors import BadSpec
from peer.schema.toml_tables import require, shortened

Value = int | float | str | bool | tuple[int | float | bool, ...]


@dataclass(frozen=True)
class Whole:
    """A whole number between two."""

    low: int
    high: int

    def check(self, name: str, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadSpec(f"{name} is {shortened(value)}; it must be a whole number")
        require(value, name, low=self.low, high=self.high)


@dataclass(frozen=True)
class Real:
    """A number between two."""

    low: float
    high: float

    def check(self, name: str, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadSpec(f"{name} is {shortened(value)}; it must be a number")
        require(value, name, low=self.low, high=self.high)


@dataclass(frozen=True)
class Flag:
    """True or false."""

    def check(self, name: str, value: object) -> None:
        if not isinstance(value, bool):
            raise BadSpec(f"{name} is {shortened(value)}; it must be true or false")


@dataclass(frozen=True)
class OneOf:
    """One of these words."""

    words: tuple[str, ...]

    def check(self, name: str, value: object) -> None:
        if value not in self.words:
            raise BadSpec(f"{name} is {shortened(value)}; it must be one of {', '.join(self.words)}")


@dataclass(frozen=True)
class Several:
    """A list of numbers, each within the same bounds."""

    each: Whole | Real
    most: int

    def check(self, name: str, value: object) -> None:
        if not isinstance(value, list | tuple):
            raise BadSpec(f"{name} is {shortened(value)}; it must be a list of numbers")
        if len(value) > self.most:
            raise BadSpec(f"{name} has {len(value):,} numbers; there must be at most {self.most}")
        for number, one in enumerate(value):
            self.each.check(f"{name}[{number}]", one)


Allowed = Whole | Real | Flag | OneOf | Several
