"""The result of one check of the doctor, as one line for people and one object for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dht.errors import HomefiresError


class Status(StrEnum):
    """How it is. UNKNOWN: it could not be measured here, which is no fault, and no promise either."""

    PASS = "PASS"
    WARN = "WARN"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One finding. Made by `passed`, `warned`, `failed` and `unknown`."""

    name: str
    """Such as `disk`: the same in every version."""
    status: Status
    found: str
    """One line: what was looked at, and the value."""
    fix: str = ""
    """One line: what to do. Never empty with WARN and FAIL."""
    exit_code: int = 0
    """With FAIL, the code of `dht.errors` with which `join` would end, or pause, for the same reason."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What was measured, units in the names."""

    def __post_init__(self) -> None:
        assert self.found.isprintable(), self.found
        assert self.fix.isprintable(), self.fix
        assert self.fix or self.status in (Status.PASS, Status.UNKNOWN), f"{self.name} says no fix"
        assert (self.status is Status.FAIL) == (self.exit_code != 0), self.name

    def to_json(self) -> str:
        values = {
            "v": 1, "check": self.name, "status": str(self.status), "found": self.found, "fix": self.fix,
            "exit_code": self.exit_code, "figures": dict(self.figures),
        }  # fmt: skip
        return json.dumps(values, allow_nan=False)


def passed(name: str, found: str, **figures: float) -> Check:
    return Check(name=name, status=Status.PASS, found=found, figures=figures)


def warned(name: str, found: str, fix: str, **figures: float) -> Check:
    """A peer can run, but its owner should know."""
    return Check(name=name, status=Status.WARN, found=found, fix=fix, figures=figures)


def failed(name: str, found: str, fix: str, kind: type[HomefiresError], **figures: float) -> Check:
    """No peer can run like this; `kind` is the error that `join` would end with."""
    return Check(name=name, status=Status.FAIL, found=found, fix=fix, exit_code=kind.exit_code, figures=figures)


def unknown(name: str, found: str, fix: str = "", **figures: float) -> Check:
    """It was not measured: `found` says why."""
    return Check(name=name, status=Status.UNKNOWN, found=found, fix=fix, figures=figures)


def one_line(text: object) -> str:
    """Whatever somebody else said, as one printable line."""
    return "".join(char if char.isprintable() else " " for char in str(text)).strip()


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
