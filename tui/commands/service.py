"""`homefires service`: lets systemd run a peer, or the organiser's node."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from dht.errors import BadInput, Unreachable
from dht.invite import parse_for, read_text
from peer.schema.spec import RunSpec
from tui.command_line import Argument, Command, Option, Section, words_of
from tui.commands.attach import require_free
from tui.commands.join import JoinCommand
from tui.commands.options import PeerOptions, Yes
from tui.commands.organiser import NONE_KEPT, Admission, NodeOptions, check_node, claim_directory, node_spec, place_node
from tui.commands.settings import keep_for_start, values_for_start
from tui.folders import quoted
from tui.processes.children import python_module
from tui.processes.device_probe import require_devices
from tui.processes.supervisor import LOG_FILE, RetentionOptions
from tui.processes.systemd import Service, UserUnits, unit_name, unit_text

BOOTSTRAP = Section("with --bootstrap")
OF_BOTH = ("--listen", "--dir")


@dataclass(frozen=True, kw_only=True)
class ServiceInstallCommand(Command):
    what: Annotated[str, Argument("an invite or a file that holds it, or with --bootstrap a run spec", "INVITE|SPEC")]
    bootstrap: Annotated[bool, Option("run an organiser's node instead of a peer")] = False
    peer: PeerOptions = field(default_factory=PeerOptions)
    sets: Annotated[
        tuple[str, ...],
        Option("change a setting of the peer, or with --bootstrap a value of the spec", "KEY=VALUE", "--set"),
    ] = ()
    yes: Yes = False
    dry: Annotated[bool, Option("print the unit instead of installing it", flag="--print")] = False
    admission: Admission = False
    node: Annotated[NodeOptions, BOOTSTRAP] = field(default_factory=NodeOptions)
    keep: Annotated[RetentionOptions, BOOTSTRAP] = NONE_KEPT

    def run(self) -> int:
        self._refuse_stray()
        if self.bootstrap:
            return self._install_node()
        join = JoinCommand(invite=read_text(self.what), yes=self.yes, **vars(self.peer))
        join.require_valid()
        words = [*join.settings(), *self.sets]
        values_for_start(words)
        if self.dry:
            return _print(_peer(join))
        UserUnits().require()  # before anything is asked or kept
        settings = join.agree(words)
        require_devices(settings.get("devices", ()))  # a service that its peer refuses fails where nobody looks
        service = _peer(join.without_settings())
        _require_free(service)  # what is kept is for the peer of this service
        join.settle(service.directory)
        keep_for_start(service.directory, settings)
        return _install(service)

    def _refuse_stray(self) -> None:
        """Raises BadInput for options of the other kind of service, which would have no effect."""
        of_node = [*words_of(self.node), *words_of(self.keep), *(["--admission"] if self.admission else [])]
        words = words_of(self.peer) if self.bootstrap else of_node
        for word in words:
            if word.startswith("--") and word not in OF_BOTH:
                needs = "a peer's: leave it out with --bootstrap" if self.bootstrap else "a node's: add --bootstrap"
                raise BadInput(f"{word.partition('=')[0]} is {needs}")
        if self.sets and self.dry and not self.bootstrap:
            raise BadInput("--set is kept in the peer's folder, not in the unit: leave it out with --print")

    def _install_node(self) -> int:
        spec = node_spec(self.what, self.sets, admission=self.admission)
        directory = place_node(self.peer.directory, spec).resolve()
        service = self._node(spec, directory)
        if self.dry:
            return _print(service)
        UserUnits().require()
        organiser = check_node(claim_directory(directory, spec), self.node)
        _install(service)
        print(f"people are shown these words for you; tell them by another way than the invite: {organiser}")
        print(f"print invites with: homefires invite {' '.join([quoted(directory), *words_of(self.node.invite)])}")
        return 0

    def _node(self, spec: RunSpec, directory: Path) -> Service:
        """The service of a node. Its output is not read, so invites for one peer each are printed later, on request."""
        page = None if self.node.page is None else self.node.page.resolve()
        node = replace(self.node, invite=replace(self.node.invite, invites=0), page=page)
        keep = self.keep
        if keep.directory is not None:
            keep = replace(keep, directory=keep.directory.resolve())
        argv = python_module("tui", "bootstrap", str(directory / "spec.toml"), "--dir", str(directory), "--ui", "none")
        what = f"the bootstrap node of {spec.run.name}"
        argv += words_of(node) + words_of(keep)
        return Service(argv=argv, directory=directory, log=directory / LOG_FILE, what=what)


def _peer(join: JoinCommand) -> Service:
    directory = join.place().resolve()
    what = f"a peer of {parse_for(directory, join.invite, time.time()).run}"
    argv = [*join.argv(directory), "--stay"]
    return Service(argv=argv, directory=directory, log=directory / "peer.log", what=what)


def _require_free(service: Service) -> None:
    """Raises DirectoryBusy if a peer runs there that does not belong to this service."""
    if service.name not in UserUnits().names():
        require_free(service.directory)


def _print(service: Service) -> int:
    """For the systemd of this machine; without one, a unit that each of them takes."""
    version = 0
    with suppress(Unreachable):
        version = UserUnits().version()
    print(unit_text(service, version), end="")
    return 0


def _install(service: Service) -> int:
    _require_free(service)  # a second peer there would end at once, and nobody would see it
    service.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    print("\n".join(UserUnits().install(service)))
    return 0


@dataclass(frozen=True, kw_only=True)
class UnitCommand(Command):
    directory: Annotated[
        Path | None, Option("only the service of this folder (default: all services)", "DIR", "--dir")
    ] = None

    def chosen(self, units: UserUnits) -> list[str]:
        return [name for name in units.names() if self.directory is None or name == unit_name(self.directory)]


class ServiceStatusCommand(UnitCommand):
    def run(self) -> int:
        units = UserUnits()
        where = f" for {self.directory}" if self.directory is not None else ""
        none = f"no service is installed{where}; see: homefires service install --help"
        print("\n".join(map(units.status, self.chosen(units))) or none)
        return 0


class ServiceRemoveCommand(UnitCommand):
    def run(self) -> int:
        units = UserUnits()
        names = self.chosen(units)
        if len(names) != 1:
            found = f"these are installed: {', '.join(names)}; name one with --dir"
            raise BadInput(found if names else "no service is installed")
        print(units.remove(names[0]))
        return 0
