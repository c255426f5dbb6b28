"""`homefires service`: a peer, or the organiser's node, that systemd starts when its user logs in or the machine boots.

A unit is a text file below the user's own configuration: nothing here needs root, and removing the file undoes all of
it. It starts again after a crash, later each time, but not where a person must act first.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dht import errors
from dht.atomic_files import write_atomic
from tui.processes.children import CHILD_ENVIRONMENT, INTERRUPTED

PREFIX = "homefires-"
FINAL = tuple(
    kind.exit_code for kind in (
        errors.BadInput, errors.PortInUse, errors.RunMismatch, errors.DirectoryBusy, errors.BadChain,
        errors.NotAdmitted, errors.Unfit, errors.KeyInUse, errors.Declined,
        errors.RunOver,
    )
)  # fmt: skip
"""Exit codes after which another start would fail, too, until a person has acted."""
FIRST_DELAY_S = 10
LONGEST_DELAY_S = 600
STEPS = 6
"""The number of restarts from the first delay to the longest one."""
STEPS_SINCE = 254
"""The first version of systemd with RestartSteps."""
EVEN_DELAY_S = 120
"""The delay between restarts if delays cannot grow."""
STOP_S = 30
ASK_S = 30.0

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True, kw_only=True)
class Service:
    """A service: its command line, its folder, and its name for people."""

    argv: Sequence[str]
    directory: Path
    log: Path
    what: str
    """For example `peer of tiny`."""

    @property
    def name(self) -> str:
        """The name of the unit: equal for the same folder, different for others."""
        return unit_name(self.directory)


def unit_name(directory: Path) -> str:
    """The name of the unit for this folder: the folder's name and a hash of its path."""
    path = str(directory.resolve())
    readable = re.sub(r"[^A-Za-z0-9_.-]", "_", directory.resolve().name)[:64]
    return f"{PREFIX}{readable}-{hashlib.blake2b(path.encode(), digest_size=3).hexdigest()}.service"


def unit_text(service: Service, systemd_version: int) -> str:
    """The unit file. Raises BadInput for a path that a unit cannot contain."""
    environment = " ".join(quoted(f"{name}={value}") for name, value in sorted(CHILD_ENVIRONMENT.items()))
    lines = [
        "# Written by homefires service install; homefires service remove takes it away.",
        "[Unit]",
        f"Description=homefires: {_plain(service.what)}",
        "# Waiting longer and longer is limit enough.",
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={' '.join(map(quoted, service.argv))}",
        f"WorkingDirectory={_path(service.directory)}",
        f"Environment={environment}",
        "Restart=on-failure",
        *_delays(systemd_version),
        "# Not after: a value that is wrong (2), a port in use (4), another run (5), a folder in use (6), a file that "
        "is not as it was agreed (9), no admission (11), a copy of the folder at work (15).",
        f"RestartPreventExitStatus={' '.join(map(str, FINAL))}",
        f"SuccessExitStatus={INTERRUPTED}",
        "# The first signal goes to the peer alone, which leaves politely; then whatever is left ends.",
        "KillMode=mixed",
        f"TimeoutStopSec={STOP_S}",
        "StandardOutput=null",
        f"StandardError=append:{_path(service.log)}",
        "UMask=0077",
        "NoNewPrivileges=yes",
        "",
        "[Install]",
        "WantedBy=default.target",
        "",
    ]
    return "\n".join(lines)


def _delays(systemd_version: int) -> list[str]:
    if systemd_version < STEPS_SINCE:
        return [f"RestartSec={EVEN_DELAY_S}"]
    return [f"RestartSec={FIRST_DELAY_S}", f"RestartSteps={STEPS}", f"RestartMaxDelaySec={LONGEST_DELAY_S}"]


def quoted(word: str) -> str:
    """A word of a command line in systemd's syntax. Raises BadInput if a unit cannot contain it."""
    if not word.isprintable():
        raise errors.BadInput(f"{word!r} has a character that no unit file can hold; use another folder or name")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def _path(path: Path) -> str:
    """A path as the value of a setting, which systemd does not split into words."""
    quoted(str(path))
    return str(path).replace("\\", "\\\\").replace("%", "%%")


def _plain(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable()).replace("\\", "\\\\").replace("%", "%%")


# ---- the user's systemd ----


def run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a system command. Raises Unreachable if it does not exist or does not end."""
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=ASK_S, check=False)
    except FileNotFoundError as error:
        raise errors.Unreachable(NO_SYSTEMD) from error
    except subprocess.TimeoutExpired as error:
        raise errors.Unreachable(f"{words[0]} did not answer within {ASK_S:.0f} s") from error


NO_SYSTEMD = (
    "this machine has no systemd for its users; homefires join INVITE --keep-running starts a peer that is started "
    "again after a crash, until you log out"
)


class UserUnits:
    def __init__(self, folder: Path | None = None, run: Run = run) -> None:
        configured = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        self.folder = folder or Path(configured) / "systemd" / "user"
        self._run = run

    def version(self) -> int:
        """The version of systemd. Raises Unreachable if there is none."""
        told = self._run(["systemctl", "--version"]).stdout.split()
        if len(told) < 2 or not told[1].isdecimal():
            raise errors.Unreachable(NO_SYSTEMD)
        return int(told[1])

    def require(self) -> int:
        """The version of a systemd that starts services for this user. Raises Unreachable if there is none."""
        version = self.version()
        self._ask("show-environment")
        return version

    def install(self, service: Service) -> list[str]:
        """Write the unit and start it. Returns lines that a person should know. Raises Unreachable without systemd.

        The file has mode 0600, since an invite may admit anybody who has it.
        """
        text = unit_text(service, self.require())
        path = self.folder / service.name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode(), private=True)
        self._ask("daemon-reload")
        self._ask("enable", service.name)
        self._ask("restart", service.name)
        said = [f"{service.what} runs as {service.name}; look with: homefires service status"]
        return said if self._lingers() else [*said, HOW_TO_LINGER]

    def remove(self, name: str) -> str:
        """Stop a service and remove its unit; its folder stays. Raises BadInput if there is no such service."""
        path = self.folder / name
        if not path.exists():
            raise errors.BadInput(f"no service is installed as {name}; see: homefires service status")
        self._ask("disable", "--now", name)
        path.unlink()
        self._ask("daemon-reload")
        return f"{name} is stopped and removed; the folder of the peer stays as it is"

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob(f"{PREFIX}*.service"))

    def status(self, name: str) -> str:
        fields = "ActiveState,SubState,NRestarts,ExecMainStatus,Result,UnitFileState"
        told = self._ask("show", name, f"--property={fields}")
        known = dict(line.partition("=")[::2] for line in told.splitlines())
        return f"{name}: {describe(known)}"

    def _lingers(self) -> bool:
        told = self._run(["loginctl", "show-user", str(os.getuid()), "--property=Linger"])
        return told.returncode == 0 and told.stdout.strip() == "Linger=yes"

    def _ask(self, *words: str) -> str:
        """The output of systemctl. Raises Unreachable if the user has no service manager, HomefiresError for other
        failures."""
        told = self._run(["systemctl", "--user", *words])
        if told.returncode == 0:
            return told.stdout
        why = (told.stderr.strip().splitlines() or [f"exit code {told.returncode}"])[-1]
        if "connect to" in why or "not been booted" in why:
            raise errors.Unreachable(f"{NO_SYSTEMD} ({why})")
        raise errors.HomefiresError(f"systemctl --user {' '.join(words)}: {why}")


HOW_TO_LINGER = "it stops when you log out; to have it run from boot on: loginctl enable-linger"


def describe(known: dict[str, str]) -> str:
    """`runs; started again 3 times`, from the output of systemctl show."""
    restarts = int(known.get("NRestarts") or 0)
    again = f"; started again {restarts} time{'s' * (restarts != 1)}" if restarts else ""
    login = "" if known.get("UnitFileState") == "enabled" else "; does not start by itself"
    match known.get("ActiveState"), known.get("SubState"):
        case "active", _:
            return f"runs{again}{login}"
        case "activating", "auto-restart":
            code = known.get("ExecMainStatus", "?")
            return f"has ended with exit code {code} and is about to start again{again}{login}"
        case "activating", _:
            return f"is about to start{again}{login}"
        case "failed", _:
            code = known.get("ExecMainStatus", "")
            final = " and is not started again: see its log" if code.isdecimal() and int(code) in FINAL else ""
            return f"has failed with exit code {code or '?'}{final}{again}{login}"
        case _:
            return f"does not run{again}{login}"
