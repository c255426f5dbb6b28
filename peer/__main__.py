"""`python -m peer COMMAND`: a peer and its tools without a screen. Event lines go to stdout, the log to stderr.

`join INVITE --dir DIR` runs one peer. INVITE is the text of an invite, or a file that holds it. Our own programs use a
file: everybody on a machine can read command lines, and whoever reads an invite's token can join.

    watch INVITE      print what happens in a run without taking part in it
    describe SPEC     print a run's model and the memory it needs
    adopt JSON        load a pretrained model and print the tables of a spec that starts from it
    inspect JSON      print what a folder holds for a run, before anybody agrees to it
    export DIR        write the model of a run directory for plain transformers
    chat DIR          answer the lines of standard input with the model of a folder
    audit DIR         check everything in a run directory; progress goes to stderr
    doctor [INVITE]   examine this machine: one JSON object per check, then one with the verdict
    introduce INVITE  ask the nodes of an invite what the run is: one JSON object
    credit DIR        print what each peer has put into the run, from the certificates of its chain
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

from dht.errors import BadInput, DiskFull, HomefiresError, Unreachable
from dht.identity import Identity
from dht.invite import parse_for, read_text, save_in
from dht.process import bounding, die_with_parent, lock_directory
from dht.reach.peer_store import PeerStore
from peer.network.link.channel import LinkLost
from peer.network.link.cluster_invite import forget_found, parse_cluster, read_cluster_text, save_line
from peer.network.link.handle import LeaveRequested, LinkProcess
from peer.node.control import saved_settings
from peer.node.control.server import Commands, ControlServer
from peer.node.host.gpu import Gpus, gpus_in_use
from peer.node.host.processes import stand_back
from peer.node.host.threads import sleep_while_waiting
from peer.node.lifecycle.inputs_effects import LeaveAsked
from peer.node.limits.desired_state import DesiredState
from peer.node.limits.enforcer import Enforcer, enforcing
from peer.node.limits.monthly_traffic import MonthlyTraffic, keeping
from peer.node.limits.sensors import MachineSensors
from peer.node.store.chain_repair import repair_chain
from peer.node.telemetry.event_log import EventLog, EventPrinter
from peer.node.telemetry.metrics import MetricsExporter, measuring, one_at_a_time
from peer.node.telemetry.reporter import Reporter
from peer.schema.artifact_options import (
    ANSWER_TOKENS,
    AUDITED,
    DIGITS,
    EXPORTING,
    TEMPERATURE,
    TRACKERS,
    WHAT,
)
from peer.schema.events import Event, NetworkMeasured, PeerIntroduced, PeerStopped
from peer.schema.ipc import Leave
from peer.schema.live_settings import LiveSettings
from peer.schema.settings import PeerSettings, settings_from, settings_of
from peer.schema.spec import RunSpec, load, parse
from peer.session import Inbox, join
from peer.tools.audit.run_files import SignatureChecker
from peer.training.data.hub_access import close_hub

SECOND_SIGNAL_CODE = 130
LOOK_EVERY_S = 0.05
USE_HUB = ("join", "export", "adopt", "describe", "doctor")
"""Commands for which a tokenizer or a data set may come from huggingface.co, if the run wants it."""
AUDIT_SAYS_EVERY_S = 1.0


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    sleep_while_waiting()
    if args.command != "join" or not args.stay:
        die_with_parent()
    if args.command not in USE_HUB:
        close_hub()
    level = logging.ERROR if args.command == "chat" else logging.INFO  # a person reads along
    logging.basicConfig(stream=sys.stderr, level=level, format="%(asctime)s peer %(name)s %(message)s")
    try:
        code: int = args.run(args)
        return code
    except HomefiresError as error:
        if args.debug:
            traceback.print_exc()
        if args.command in ("join", "watch"):
            EventPrinter()(PeerStopped(why=str(error), exit_code=error.exit_code))
        print(f"homefires: {error}", file=sys.stderr)
        return error.exit_code


def _await(file: Path, limit_s: float) -> None:
    """Until a node that starts meanwhile has written its invite; what takes long to load is loaded until then."""
    if not limit_s:
        return
    from peer.startup import load_libraries

    load_libraries()
    end_s = time.monotonic() + limit_s
    while not file.exists() and time.monotonic() < end_s:
        time.sleep(LOOK_EVERY_S)


def _join(args: argparse.Namespace) -> int:
    _await(Path(args.invite), args.await_s)
    settings, invite = _settings(args), parse_for(args.dir, read_text(args.invite), time.time())
    with lock_directory(args.dir):
        kept = save_in(invite, args.dir)  # first: another run's folder is left as it is
        if args.cluster or settings.stages:
            forget_found(args.dir)
        if args.cluster:
            save_line(parse_cluster(read_cluster_text(args.cluster)), args.dir)
        PeerStore(args.dir / "peers.json").note_named(args.peer)
        return _take_part(str(kept), invite.spec_hash, settings, args.dir)


def _settings(args: argparse.Namespace) -> PeerSettings:
    return settings_from(args.set, saved_settings.read_table(args.dir) if args.dir else {}, listen=tuple(args.listen))


def _describe(args: argparse.Namespace) -> int:
    from peer.training.data.tokenizer import require_tokenizer
    from peer.training.model.footprint import describe

    spec = load(args.spec)
    if spec.start is not None and spec.start.digest:
        _require_start(spec)
    with suppress(Unreachable):  # its peers wait until they can have it
        require_tokenizer(spec)
    print(describe(spec))
    return 0


def _require_start(spec: RunSpec) -> None:
    """Have on this machine what newcomers will ask its organiser for. Raises BadInput, Unreachable, DiskFull."""
    from peer.node.store import start_blob

    assert spec.start is not None
    if not start_blob.is_here(spec.start.digest):
        if not spec.start.is_on_hub:
            folder = start_blob.folder_of(spec.start.digest)
            raise BadInput(f"the model from which this run starts is not in {folder} any more; begin with its file")
        from peer.training.model.pretrained import fetch

        fetch(spec)
    start_blob.require_intact(spec.start.digest)


def _adopt(args: argparse.Namespace) -> int:
    from peer.training.model.pretrained import adopt, filled_in, find

    asked = json.loads(args.asked)
    found = find(asked["model"], asked["revision"])
    told = adopt(found, asked["own"], asked["template"])
    print(json.dumps(told | {"filled_in": filled_in(found)}))
    return 0


def _inspect(args: argparse.Namespace) -> int:
    from peer.training.data.inspection import format_in, inspect

    asked = json.loads(args.asked)
    if "format_in" in asked:
        print(format_in(asked["format_in"]))
        return 0
    found = inspect(parse(asked["spec"]), asked["data_path"])
    print(json.dumps([{"folder": each.folder, "rows": each.table(), "refused": each.refused(1)} for each in found]))
    return 0


def _export(args: argparse.Namespace) -> int:
    from peer.tools.export.folder import export
    from peer.tools.export.progress import ExportProgress

    progress = ExportProgress(lambda text: print(f"{EXPORTING}{text}", file=sys.stderr, flush=True))
    print(export(args.dir, args.to, args.homes, args.what, args.push, progress, args.gguf))
    return 0


def _chat(args: argparse.Namespace) -> int:
    from peer.tools.chat.conversation import Manner, chat

    return chat(args.dir, Manner(temperature=args.temperature, tokens=args.tokens), args.prompt)


def _watch(args: argparse.Namespace) -> int:
    from peer.tools.watch import watch_session
    from peer.tools.watch.archive import Retention

    text = read_text(args.invite)
    if args.keep is None:
        return watch_session.main(text, organiser=args.organiser)
    retention = Retention(last=args.keep_last, every=args.keep_every)
    with lock_directory(args.keep), bounding(args.keep / "watch.log"):
        return watch_session.main(text, watch_session.Keep(folder=args.keep, retention=retention), args.organiser)


def _audit(args: argparse.Namespace) -> int:
    from peer.tools.audit.auditor import audit
    from peer.tools.audit.run_files import BadLink

    said_at = time.monotonic()

    def say(round: int, last: int) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= AUDIT_SAYS_EVERY_S:
            said_at = time.monotonic()
            print(f"{AUDITED} {round} of {last}", file=sys.stderr, flush=True)

    try:
        report = audit(args.dir, say)
    except BadLink as fault:
        if args.json:
            print(json.dumps({"sound": False, "round": fault.round, "file": str(fault.path), "why": fault.why}))
        raise
    print(json.dumps(report.to_json()) if args.json else report.sentence())
    return 0


def _introduce(args: argparse.Namespace) -> int:
    from peer.tools.watch import preview

    return preview.main(read_text(args.invite), args.peer)


def _doctor(args: argparse.Namespace) -> int:
    from peer.tools.doctor.examine import Request, run

    settings = _settings(args)
    text = read_text(args.invite) if args.invite else ""
    return run(Request(invite=text, directory=args.dir, settings=settings))


def _credit(args: argparse.Namespace) -> int:
    from peer.tools.audit.statement import credit

    statement = credit(args.dir)
    print(json.dumps(statement.to_json()) if args.json else statement.page())
    return 0


def _events(args: argparse.Namespace) -> int:
    from peer.tools.trackers.tensorboard import write_tensorboard

    print(write_tensorboard(args.dir, args.out or args.dir / "tensorboard"))
    return 0


Parsers = Sequence[argparse.ArgumentParser]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m peer", description="One peer of a run, without a screen.")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], int], help: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=help)
        added.set_defaults(run=run)
        added.add_argument("--debug", action="store_true", help="show tracebacks")
        return added

    joining = command("join", _join, "take part in a run until it is finished or stopped")
    joining.add_argument("invite")
    text = "wait so many seconds for the file that shall hold the invite"
    joining.add_argument("--await", type=float, default=0.0, dest="await_s", metavar="S", help=text)
    joining.add_argument("--dir", type=Path, required=True, help="run directory")
    text = "file that holds the line of the cluster in which this peer works"
    joining.add_argument("--cluster", default="", help=text)
    joining.add_argument("--stay", action="store_true", help="go on when whoever started this ends")
    watching = command("watch", _watch, "print what happens in a run without taking part")
    watching.add_argument("invite", help="its text, or with --organiser the file that holds it")
    watching.add_argument("--keep", type=Path, metavar="DIR", help="keep checkpoints in this folder")
    watching.add_argument("--keep-last", type=int, default=3, metavar="N", help="the newest N of them")
    watching.add_argument("--keep-every", type=int, default=0, metavar="M", help="and the first of every M rounds")
    text = "the organiser's folder, whose key lets the watcher into a run that asks for an admission"
    watching.add_argument("--organiser", type=Path, metavar="DIR", help=text)
    describing = command("describe", _describe, "print parameters and memory of a run")
    describing.add_argument("spec", help="a shipped spec or a TOML file")
    adopting = command("adopt", _adopt, "load a model from which a run starts, and print its tables of a spec")
    adopting.add_argument("asked", metavar="JSON", help="model, revision, and the organiser's own of [model]")
    inspecting = command("inspect", _inspect, "print what a folder holds for a run")
    inspecting.add_argument("asked", metavar="JSON", help="spec, as text, and data_path; or format_in, a folder")
    exporting = command("export", _export, "write the model of a run directory for plain transformers")
    _add_forms(exporting)
    chatting = command("chat", _chat, "answer standard input with the model in a folder")
    chatting.add_argument("dir", type=Path, help="of a peer, a checkpoint, or an export")
    chatting.add_argument("--prompt", help="answer this, and end")
    chatting.add_argument("--temperature", type=float, default=TEMPERATURE)
    chatting.add_argument("--tokens", type=int, default=ANSWER_TOKENS)
    auditing = command("audit", _audit, "check every file of a run directory's chain")
    examining = command("doctor", _doctor, "examine this machine, and what a run would be like on it")
    examining.add_argument("invite", nargs="?", default="")
    examining.add_argument("--dir", type=Path, help="run directory in which the peer would live")
    introducing = command("introduce", _introduce, "ask the nodes of an invite what the run is")
    introducing.add_argument("invite")
    crediting = command("credit", _credit, "print what each peer has put into a run")
    tracking = command("events", _events, "write the event log as another program reads it")
    tracking.add_argument("--to", choices=TRACKERS, required=True)
    tracking.add_argument("--out", type=Path, help="new folder (default: DIR/tensorboard)")
    _add_shared(
        settings=(joining, examining), dialling=(joining, introducing),
        folders=(exporting, auditing, crediting, tracking),
        printing=(auditing, crediting),
    )  # fmt: skip
    return parser


def _add_forms(exporting: argparse.ArgumentParser) -> None:
    """What is exported, in which form, and to where."""
    exporting.add_argument("--to", type=Path, help="new folder (default: DIR/export-round-N)")
    text = "of a cluster's home: the folders of its other homes"
    exporting.add_argument("--homes", type=Path, nargs="+", default=[], metavar="DIR", help=text)
    text = "of a run from a model: default merged, where it trains an adapter"
    exporting.add_argument("--what", choices=WHAT, help=text)
    text = "also one file for llama.cpp and Ollama, with 4, 2 or about 1 byte per parameter (needs homefires[gguf])"
    exporting.add_argument("--gguf", choices=DIGITS, help=text)
    exporting.add_argument("--push", default="", metavar="OWNER/NAME", help="and to huggingface.co, with your login")


def _add_shared(
    *, settings: Parsers, dialling: Parsers, folders: Parsers, printing: Parsers
) -> None:  # fmt: skip
    """What several commands take."""
    for each in settings:
        each.add_argument("--listen", action="append", default=[], help="multiaddr to listen on; may be repeated")
        text = "a volunteer's setting"
        each.add_argument("--set", action="append", default=[], metavar="settings.KEY=VALUE", help=text)
    for each in dialling:
        each.add_argument("--peer", action="append", default=[], help="a peer to dial, too; may be repeated")
    for each in folders:
        each.add_argument("dir", type=Path, help="run directory of a peer")
    for each in printing:
        each.add_argument("--json", action="store_true", help="print one JSON object")


def _take_part(invite: str, run: bytes, settings: PeerSettings, directory: Path) -> int:
    # torch makes its compiler's cache where it likes as soon as an optimizer exists.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(directory / "cache"))
    me = Identity.load_or_create(directory / "identity.key").peer_id
    traffic = MonthlyTraffic(directory, time.time)
    wishes = DesiredState(
        wished=saved_settings.read_wish(directory), keep=partial(saved_settings.write_wish, directory)
    )
    with (
        closing(EventLog(run.hex()[:16], me, directory)) as writer,
        closing(MetricsExporter(settings.metrics_port, me)) as publisher,
        bounding(directory / "peer.log"),
    ):

        def emit(event: Event) -> None:
            if isinstance(event, NetworkMeasured):
                traffic.note(event.bytes_sent, event.bytes_received)
            number = writer.emit(event)
            publisher.note(event)
            commands.note(number, event)

        session = Reporter(
            one_at_a_time(emit),
            wishes=wishes,
            chosen=LiveSettings(settings, partial(saved_settings.write, directory)),
            link_began=traffic.link_began,
        )
        # To leave it is sent what a person would send: the main thread takes it from there.
        leave = partial(os.kill, os.getpid(), signal.SIGTERM)
        commands = Commands(session, run.hex()[:16], me, settings.name or me[-8:], leave)
        session.emit(PeerIntroduced(name=settings.name or me[-8:]))
        before = settings_of(saved_settings.read_table(directory))
        _keep(settings, directory, session)
        publisher.start(session.warn)
        for found in repair_chain(directory, SignatureChecker(run)):
            session.warn("DAMAGE", found)
        in_use = partial(gpus_in_use, settings.devices)
        enforcer = Enforcer(session, MachineSensors(directory, gpus=Gpus(in_use)), traffic)
        with measuring(session.emit, Gpus(in_use)), keeping(traffic), enforcing(enforcer):
            why, code = _ending(invite, me, settings, directory, session, commands)
        if code == BadInput.exit_code and not session.has_trained and session.settings == settings:
            _keep(before, directory, session)  # what does not work here is not for the next start
        writer.emit(PeerStopped(why=why, exit_code=code))
    return code


def _keep(settings: PeerSettings, directory: Path, session: Reporter) -> None:
    """For the next start; without room for it they count in this life alone."""
    try:
        saved_settings.write(directory, settings)
    except DiskFull as error:
        session.warn("DISK", f"{error}; settings that are new are forgotten when this peer ends")


def _ending(
    invite: str, me: str, settings: PeerSettings, directory: Path, session: Reporter, commands: Commands
) -> tuple[str, int]:
    """Take part; how it ended in words, and the exit code. The link is gone when it returns."""
    try:
        inbox = Inbox()
        with LinkProcess(invite, directory, settings, inbox.put, inbox.put) as link:
            _leave_on_signals(session, link, inbox)
            with _listening(directory, session, commands):
                session.chosen.listen(link.take)
                session.chosen.listen(stand_back)
                try:
                    join(link, inbox, me, settings, directory, session)
                except LeaveRequested:
                    link.send(Leave(finished=False))
            link.close(lambda: session.stopping)
    except LinkLost:
        return "the link ended unexpectedly", HomefiresError.exit_code
    except HomefiresError as error:
        print(f"homefires: {error}", file=sys.stderr)
        return str(error), error.exit_code
    session.say("GONE", "left the run" if session.stopping else "the run is finished")
    return ("asked to leave" if session.stopping else "the run is finished"), 0


@contextmanager
def _listening(directory: Path, session: Reporter, commands: Commands) -> Iterator[None]:
    """Take commands at the control socket; without one, training goes on all the same."""
    try:
        server = ControlServer(directory, commands)
    except BadInput as error:
        session.warn("CONTROL", str(error))
        yield
        return
    with server:
        yield


def _leave_on_signals(session: Reporter, link: LinkProcess, inbox: Inbox) -> None:
    """The first SIGINT or SIGTERM leaves politely; the second one at once."""

    def leave(number: int, frame: object) -> None:
        if session.stopping:
            link.kill()
            os._exit(SECOND_SIGNAL_CODE)
        session.stopping = True
        inbox.put(LeaveAsked)
        if session.building:
            raise LeaveRequested

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)


if __name__ == "__main__":
    sys.exit(main())
