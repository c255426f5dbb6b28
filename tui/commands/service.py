"""`homefires service`: systemd runs a peer, or the organiser's node."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from pathlib import Path

from dht.errors import BadInput
from dht.invite import parse_for, read_text
from peer.spec import RunSpec
from tui.commands.attach import require_free
from tui.commands.consent import consents
from tui.commands.join import JoinOptions
from tui.commands.options import LISTEN, PEER, Parser, add_addresses, add_command, add_device_names, keep
from tui.commands.organiser import STRAY, add_node, check_node, claim_directory, node_options, node_spec, place_node
from tui.commands.settings import keep_for_start, values_for_start
from tui.folders import quoted
from tui.processes.children import python_module
from tui.processes.supervisor import LOG_FILE
from tui.processes.systemd import STEPS_SINCE, Service, UserUnits, unit_name, unit_text


def add_service(parser: Parser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    _add_install(add_command(actions, "install", "write a unit for a peer, or for an organiser's node, and start it"))
    for name, run, summary in (
        ("status", _status, "say what the installed services do"),
        ("remove", _remove, "stop a service and take its unit away"),
    ):
        action = add_command(actions, name, summary)
        action.set_defaults(run=run)
        action.add_argument("--dir", type=Path, metavar="DIR", help="of the service in this folder (default: of each)")


def _add_install(parser: Parser) -> None:
    parser.set_defaults(run=_install)
    text = "an invite or a file that holds it, or with --bootstrap a run spec"
    parser.add_argument("what", metavar="INVITE|SPEC", help=text)
    parser.add_argument("--bootstrap", action="store_true", help="the node that newcomers of a run dial first")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where it lives (default: by run, below your data)")
    parser.add_argument("--name", default="", help="what the others call your peer (default: the end of its id)")
    add_device_names(parser)
    add_addresses(parser, "--listen", LISTEN)
    add_addresses(parser, "--peer", PEER)
    text = "keep this setting of the peer in its folder, or with --bootstrap change this value of the spec; repeatable"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="sets", help=text)
    add_node(parser, "with --bootstrap: ")
    text = "agree to what the run is and takes, without being asked"
    parser.add_argument("--yes", action="store_true", help=text)
    parser.add_argument("--print", action="store_true", dest="dry", help="print the unit and do nothing")


def _install(options: argparse.Namespace) -> int:
    _refuse_stray(options)
    if options.bootstrap:
        return _install_node(options)
    join = JoinOptions(
        invite=read_text(options.what), directory=options.dir, name=options.name, devices=options.devices,
        listen=tuple(options.listen), peers=tuple(options.peer),
    )  # fmt: skip
    settings = values_for_start([*join.settings(), *options.sets])
    if not options.dry and not consents(join, yes=options.yes, stdin=sys.stdin, screen=sys.stderr):
        return 0
    service = _peer(join if options.dry else join.without_settings())
    if not options.dry:
        _require_free(service)  # what is kept is for the peer of this service
        join.settle(service.directory)
        keep_for_start(service.directory, settings)
    return _carry_out(service, dry=options.dry)


def _refuse_stray(options: argparse.Namespace) -> None:
    """An option that this kind of service lacks was meant to do something. Raises BadInput."""
    for word in ("name", "devices", "peer") if options.bootstrap else STRAY:
        if getattr(options, word):
            needs = "a peer's: leave it out with --bootstrap" if options.bootstrap else "a node's: add --bootstrap"
            raise BadInput(f"--{word.replace('_', '-')} is {needs}")
    if options.sets and options.dry and not options.bootstrap:
        raise BadInput("--set is kept in the peer's folder, not in the unit: leave it out with --print")


def _peer(join: JoinOptions) -> Service:
    directory = join.place().resolve()
    what = f"a peer of {parse_for(directory, join.invite, time.time()).run}"
    argv = [*join.argv(directory), "--stay"]
    return Service(argv=argv, directory=directory, log=directory / "peer.log", what=what)


def _install_node(options: argparse.Namespace) -> int:
    spec = node_spec(options.what, options)
    asked = node_options(options)
    directory = place_node(options.dir, spec).resolve()
    service = _node(options, spec, directory)
    if options.dry:
        return _carry_out(service, dry=True)
    organiser = check_node(claim_directory(directory, spec), asked)
    _carry_out(service, dry=False)
    print(f"people are shown these words for you; tell them by another way than the invite: {organiser}")
    print(f"print invites with: homefires invite {' '.join([quoted(directory), *asked.invite_words()])}")
    return 0


def _node(options: argparse.Namespace, spec: RunSpec, directory: Path) -> Service:
    """The service. Nobody reads what it prints: invites for one peer each are printed later, when somebody asks."""
    words = dataclasses.replace(node_options(options), invites=0).words()
    if (kept := keep(options)) is not None:
        words += dataclasses.replace(kept, directory=kept.directory.resolve()).words()
    argv = python_module("tui", "bootstrap", str(directory / "spec.toml"), "--dir", str(directory), "--ui", "none")
    what = f"the bootstrap node of {spec.run.name}"
    return Service(argv=[*argv, *words], directory=directory, log=directory / LOG_FILE, what=what)


def _require_free(service: Service) -> None:
    """Raises DirectoryBusy if a peer runs there that is not this service's."""
    if service.name not in UserUnits().names():
        require_free(service.directory)


def _carry_out(service: Service, *, dry: bool) -> int:
    units = UserUnits()
    if dry:
        print(unit_text(service, STEPS_SINCE), end="")
        return 0
    _require_free(service)  # a second peer there would end at once, and nobody would see it
    service.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    print("\n".join(units.install(service)))
    return 0


def _status(options: argparse.Namespace) -> int:
    units = UserUnits()
    chosen = _chosen(options, units.names())
    where = f" for {options.dir}" if options.dir is not None else ""
    none = f"no service is installed{where}; see: homefires service install --help"
    print("\n".join(map(units.status, chosen)) or none)
    return 0


def _remove(options: argparse.Namespace) -> int:
    units = UserUnits()
    names = _chosen(options, units.names())
    if len(names) != 1:
        found = f"these are installed: {', '.join(names)}; name one with --dir" if names else "no service is installed"
        raise BadInput(found)
    print(units.remove(names[0]))
    return 0


def _chosen(options: argparse.Namespace, names: list[str]) -> list[str]:
    return [name for name in names if options.dir is None or name == unit_name(options.dir)]
