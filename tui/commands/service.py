"""The commands that have systemd run a peer, or the organiser's node."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dht.errors import BadInput
from tui.commands.options import LISTEN, Commands, add_addresses, add_command, add_keep, add_settings, keep

if TYPE_CHECKING:
    from tui.service import Service
    from tui.single import Join


def add_to(commands: Commands) -> None:
    """Add them."""
    parser = add_command(commands, "service", _missing, "have systemd run a peer from login or boot on")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    _add_install(actions)
    for name, run, summary in (
        ("status", _status, "say what the installed services do"),
        ("remove", _remove, "stop a service and take its unit away"),
    ):
        action = add_command(actions, name, run, summary)
        action.add_argument("--dir", type=Path, metavar="DIR", help="of the service in this folder (default: of each)")


def _missing(options: argparse.Namespace) -> int:
    raise AssertionError("argparse asks for an action")


def _add_install(actions: Commands) -> None:
    summary = "write a unit for a peer, or for an organiser's node, and start it"
    parser = add_command(actions, "install", _install, summary)
    parser.add_argument("what", metavar="INVITE|SPEC", help="an invite, or with --bootstrap a run spec")
    parser.add_argument("--bootstrap", action="store_true", help="the node that newcomers of a run dial first")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where it lives (default: by run, below your data)")
    parser.add_argument("--name", default="", help="what the others call your peer (default: the end of its id)")
    parser.add_argument("--device", default="", metavar="D", help="auto, cpu, cuda, cuda:1 or mps (default auto)")
    add_addresses(parser, "--listen", LISTEN)
    add_addresses(parser, "--announce", "with --bootstrap: tell others to dial this multiaddr; repeatable")
    parser.add_argument("--health-port", type=int, default=0, metavar="PORT", help=f"with --bootstrap: {HEALTH_PORT}")
    add_keep(parser)
    add_settings(parser)
    text = "agree to what the run is and takes, without being asked"
    parser.add_argument("--yes", action="store_true", help=text)
    parser.add_argument("--print", action="store_true", dest="dry", help="print the unit and do nothing")


HEALTH_PORT = "serve a health page and metrics on this port of loopback (default: none)"


def _install(options: argparse.Namespace) -> int:
    from tui.consent import consents
    from tui.limits import keep_for_start, values_for_start
    from tui.single import Join

    _refuse_stray(options)
    if options.bootstrap:
        return _carry_out(_bootstrap(options), dry=options.dry)
    join = Join(
        invite=options.what, directory=options.dir, name=options.name, device=options.device,
        listen=tuple(options.listen),
    )  # fmt: skip
    settings = values_for_start([*join.settings(), *options.sets])
    if not options.dry and not consents(join, yes=options.yes, stdin=sys.stdin, screen=sys.stderr):
        return 0
    service = _peer(join if options.dry else join.without_settings())
    if not options.dry:
        keep_for_start(service.directory, settings)
    return _carry_out(service, dry=options.dry)


def _refuse_stray(options: argparse.Namespace) -> None:
    """An option that this kind of service lacks was meant to do something. Raises BadInput."""
    for word in ("name", "device", "sets") if options.bootstrap else ("announce", "health_port", "keep"):
        if getattr(options, word):
            needs = "a peer's: leave it out with --bootstrap" if options.bootstrap else "a node's: add --bootstrap"
            raise BadInput(f"--{'set' if word == 'sets' else word.replace('_', '-')} is {needs}")
    if options.sets and options.dry:
        raise BadInput("--set is kept in the peer's folder, not in the unit: leave it out with --print")


def _peer(join: Join) -> Service:
    import time

    from dht.invite import parse_for
    from tui.service import Service

    directory = join.place().resolve()
    what = f"a peer of {parse_for(directory, join.invite, time.time()).run}"
    argv = [*join.argv(directory), "--stay"]
    return Service(argv=argv, directory=directory, log=directory / "peer.log", what=what)


def _bootstrap(options: argparse.Namespace) -> Service:
    from tui.choose import choose_spec
    from tui.launch import python_module
    from tui.places import default_directory
    from tui.service import Service
    from tui.single import claim_directory

    spec = choose_spec(options.what, sets=[])
    directory = (options.dir or default_directory("bootstrap", spec.run.name, spec.digest())).resolve()
    if not options.dry:
        claim_directory(directory, spec)
    words = [word for address in options.listen for word in ("--listen", address)]
    words += [word for address in options.announce for word in ("--announce", address)]
    words += ["--health-port", str(options.health_port)] if options.health_port else []
    if (kept := keep(options)) is not None:
        words += ["--keep", str(kept.directory.resolve())]
        words += ["--keep-last", str(kept.last), "--keep-every", str(kept.every)]
    argv = python_module("tui", "bootstrap", str(directory / "spec.toml"), "--dir", str(directory), "--ui", "none")
    what = f"the bootstrap node of {spec.run.name}"
    return Service(argv=[*argv, *words], directory=directory, log=directory / "bootstrap.log", what=what)


def _carry_out(service: Service, *, dry: bool) -> int:
    from tui.attach import require_free
    from tui.service import STEPS_SINCE, UserUnits, unit_text

    units = UserUnits()
    if dry:
        print(unit_text(service, STEPS_SINCE), end="")
        return 0
    if service.name not in units.names():
        require_free(service.directory)  # a second peer there would end at once, and nobody would see it
    service.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    print("\n".join(units.install(service)))
    return 0


def _status(options: argparse.Namespace) -> int:
    from tui.service import UserUnits

    units = UserUnits()
    chosen = _chosen(options, units.names())
    where = f" for {options.dir}" if options.dir is not None else ""
    none = f"no service is installed{where}; see: homefires service install --help"
    print("\n".join(map(units.status, chosen)) or none)
    return 0


def _remove(options: argparse.Namespace) -> int:
    from tui.service import UserUnits

    units = UserUnits()
    names = _chosen(options, units.names())
    if len(names) != 1:
        found = f"these are installed: {', '.join(names)}; name one with --dir" if names else "no service is installed"
        raise BadInput(found)
    print(units.remove(names[0]))
    return 0


def _chosen(options: argparse.Namespace, names: list[str]) -> list[str]:
    from tui.service import unit_name

    return [name for name in names if options.dir is None or name == unit_name(options.dir)]
