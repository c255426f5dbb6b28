"""Processes of ours that begin in a moment: forked where torch, transformers and hivemind are loaded already.

A peer is two processes that load those for 5 to 10 s of processor time together, before they do anything that a test
looks at. So each worker of pytest keeps one *warm parent*, which has loaded them and does nothing else. `Popen` stands
in for `subprocess.Popen`: whoever starts `python -m MODULE …`, with one of `MODULES`, gets a fork of the warm parent
that runs that module; in another network namespace, where `nsenter` with one stands before it. Everything else is
started as always. All other things are as they would be without: the process is a child of whoever started it (so its
death signal and `waitpid` work), has a pid, a session, files, a folder, an environment and a command line of its own,
and what it starts in turn is warm, too, from a warm parent of its own.

    you ── asks ──> warm parent ── forks ──> middle, which forks and ends ──> the process, which its next living
     ^                                                                        ancestor adopts that asked for
     └────────────────────────────────────────────────────────────────────── orphans: you (PR_SET_CHILD_SUBREAPER)

Differences that remain: one hash seed for all processes of a worker, memory that they share, and modules that are
loaded though they would not be. `@pytest.mark.cold` has a test start its processes as a person does.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ClassVar, NoReturn
from unittest import mock

MODULES = (
    "bootstrap", "peer", "peer.network.link.link", "peer.tools.doctor.kernel_probe", "peer.parallel.autotune",
    "peer.parallel.fsdp.rank",
    "peer.testing.small_memory_rank",
    "peer.testing.faulty_link", "peer.testing.faulty_peer", "peer.testing.short_waits",
    "tests.benchmarks.allreduce_crew",
    "tests.benchmarks.cuda_child", "tests.benchmarks.pipeline_stage", "tests.benchmarks.rivals.ddp",
    "tests.benchmarks.rivals.open_diloco", "tests.benchmarks.rivals.switch", "tests.bootstrap.impatient",
    "tests.gloo_ranks", "tests.peer.parallel.ranks.stranded_lead", "tui",
)  # fmt: skip
STARTING = (
    "peer", "peer.parallel.autotune", "peer.testing.faulty_peer", "tests.benchmarks.allreduce_crew",
    "tests.benchmarks.cuda_child", "tests.peer.parallel.ranks.stranded_lead", "tui",
)  # fmt: skip
"""Those of them that start others."""
LOADED = (
    "bootstrap.server", "hivemind", "hivemind.dht.node", "hivemind.p2p", "peer.tools.audit.auditor",
    "peer.network.link.link", "peer.training.data.open_source", "peer.parallel.fsdp.rank_model",
    "peer.tools.export.folder",
    "peer.parallel.autotune.trial", "peer.session", "peer.testing.ledger_check",
    "peer.testing.faulty_link", "peer.testing.faulty_peer", "peer.training.train.trainer",
    "peer.tools.watch.watch_session",
    "tests.benchmarks.allreduce_members", "tests.benchmarks.cuda_child", "tests.benchmarks.rivals.ddp",
    "tests.benchmarks.rivals.open_diloco",
    "tests.benchmarks.rivals.switch", "transformers.models.llama.modeling_llama", "tui.cli", "tui.commands.demo",
    "tui.commands.join", "uvloop",
)  # fmt: skip
"""What a warm parent imports."""
BARE = ("peer.training.data.chat.template_child",)
"""Modules that limit the address space of their process, which torch would fill: forked from a parent of their own."""
BARE_LOADED = ("huggingface_hub.constants", "numpy", "transformers.utils.chat_template_utils")
"""What that one imports."""
PYTHON = sys.executable
"""Some tests put another program there."""
READ_AT_START = ("COVERAGE", "CUDA", "HF_", "HIVEMIND", "LANG", "LC_", "LD_", "OMP_", "PYTHON", "TORCH", "TRANSFORMERS")
"""Variables that an interpreter or a library reads once: a child that is to have others is started as always."""
SET_LATER = ("PYTHONUNBUFFERED", "PYTHONSAFEPATH", "HF_HUB_OFFLINE", "HIVEMIND_MEMORY_SHARING_STRATEGY")
"""Those of them that a fork can still obey, or for which all children have one value."""
COMMAND_BYTES = 16_384
"""Room for a child's command line."""
REQUEST_BYTES = 150_000
BEGUN_S = 60.0
"""A warm parent has answered after this long: the first time it has to load everything."""
ADOPTED_S = 10.0
HIGH_FD = 400
"""No file of ours has a number above."""
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
OF_PROCESS = ("--preserve-credentials", "-U", "-n", "-t")
"""Words of `nsenter` before a pid: the user and network namespaces that this process has."""
PR_SET_PDEATHSIG, PR_SET_MM, PR_SET_CHILD_SUBREAPER, PR_SET_MM_ARG_END = 1, 35, 36, 9

_libc = ctypes.CDLL(None, use_errno=True)


class WarmParent:
    """The asking end: a warm parent of this process, started on first use unless `asked` leads to one that is there.
    It imports what is `loaded`."""

    def __init__(self, asked: socket.socket | None = None, loaded: Sequence[str] = LOADED) -> None:
        self._asked, self._loaded, self._turn = asked, loaded, threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stays: ThreadPoolExecutor | None = None

    def get_ready(self) -> None:
        """So that what is counted from now on has its socket among it already."""
        with self._turn:
            self._asked = self._asked or self._load()

    def start(self, request: dict[str, Any], fds: Sequence[int]) -> int:
        """A child of this process that does what `request` says; its pid."""
        with self._turn:
            asked = self._asked = self._asked or self._load()
            _prctl(PR_SET_CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(asked, [json.dumps(request).encode()], fds)
                return int(asked.recv(32))
            finally:
                _prctl(PR_SET_CHILD_SUBREAPER, 0)

    def close(self) -> None:
        """End it; what it started goes on."""
        if self._asked is not None:
            self._asked.close()
        if self._process is not None:
            self._process.wait(BEGUN_S)
        self._asked = self._process = None

    def _load(self) -> socket.socket:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        room = "-" * COMMAND_BYTES
        start = partial(
            _cold_popen, [PYTHON, "-m", "tests.warm", str(theirs.fileno()), ",".join(self._loaded), room],
            stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),),
            env=os.environ | {"PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        # It ends with the thread that starts it: this one stays, whichever thread asks first.
        self._stays = self._stays or ThreadPoolExecutor(max_workers=1, thread_name_prefix="warm")
        self._process = self._stays.submit(start).result(BEGUN_S)
        theirs.close()
        mine.settimeout(BEGUN_S)
        return mine


_cold_popen = subprocess.Popen


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen`, warm where that can be."""

    parent: ClassVar[WarmParent] = WarmParent()
    bare_parent: ClassVar[WarmParent | None] = WarmParent(loaded=BARE_LOADED)
    """Of `BARE`; None in what was forked: it starts one of those at most."""
    cold: ClassVar[bool] = False
    """Start everything as always."""

    def _execute_child(  # type: ignore[override]
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: bool, pass_fds: Sequence[int], cwd: Any,
        env: Mapping[str, str] | None, startupinfo: Any, creationflags: Any, shell: bool, p2cread: int, p2cwrite: int,
        c2pread: int, c2pwrite: int, errread: int, errwrite: int, restore_signals: bool, gid: Any, gids: Any, uid: Any,
        umask: int, start_new_session: bool, process_group: int,
    ) -> None:  # fmt: skip
        environment = dict(os.environ if env is None else env)
        special = shell or executable or preexec_fn or not close_fds or (gid, gids, uid) != (None, None, None)
        special = special or umask != -1 or process_group != -1
        files = [read if read != -1 else number for number, read in enumerate((p2cread, c2pwrite, errwrite))]
        network, command = _split(args)
        if self.cold or special or not _is_ours(command) or not _is_usual(environment) or not _are_open(files):
            super()._execute_child(  # type: ignore[misc]
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell, p2cread,
                p2cwrite, c2pread, c2pwrite, errread, errwrite, restore_signals, gid, gids, uid, umask,
                start_new_session, process_group,
            )  # fmt: skip
            return
        request = {
            "argv": list(map(str, command)), "env": environment, "cwd": str(cwd or os.getcwd()),
            "adopter": os.getpid(), "session": start_new_session, "files": [0, 1, 2, *pass_fds], "network": network,
        }  # fmt: skip
        parent = self.bare_parent if command[2] in BARE else self.parent
        assert parent is not None
        try:
            self.pid = parent.start(request, [*files, *pass_fds])
            self._child_created = True
        finally:
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]


@contextmanager
def loaded_in(environment: Mapping[str, str]) -> Iterator[None]:
    """Meanwhile `environment` is laid over this process's, and what starts is forked from a warm parent that has loaded
    everything in it: so libraries have read what they read once."""
    usual, Popen.parent = Popen.parent, WarmParent()
    try:
        with mock.patch.dict(os.environ, environment):
            yield
    finally:
        Popen.parent.close()
        Popen.parent = usual


def close() -> None:
    """No warm parent of this process is left."""
    for parent in (Popen.parent, Popen.bare_parent):
        if parent is not None:
            parent.close()


def install() -> None:
    """From now on whatever this process starts is warm where that can be."""
    subprocess.Popen = Popen  # type: ignore[misc]


def _split(args: Any) -> tuple[str, Any]:
    """The network namespace in which `nsenter` is to run a command, as a file or as the pid of whose it is; empty for
    this process's own. And the command."""
    if not isinstance(args, (list, tuple)) or len(args) < 3 or args[0] != "nsenter":
        return "", args
    if args[1].startswith("--net="):
        return args[1].removeprefix("--net="), args[2:]
    if tuple(args[1:5]) == OF_PROCESS and args[6:7] in (["--"], ("--",)):
        return args[5], args[7:]
    return "", args


def _is_ours(args: Any) -> bool:
    is_list = isinstance(args, (list, tuple)) and len(args) > 2
    modules = MODULES if Popen.bare_parent is None else (*MODULES, *BARE)
    return is_list and args[0] == PYTHON and args[1] == "-m" and args[2] in modules


def _is_usual(environment: Mapping[str, str]) -> bool:
    def read(variables: Mapping[str, str]) -> dict[str, str]:
        names = (name for name in variables if name.startswith(READ_AT_START) and name not in SET_LATER)
        if set(variables.get("PYTHONPATH", "").split(os.pathsep)) <= set(sys.path):
            names = (name for name in names if name != "PYTHONPATH")  # it adds nothing
        return {name: variables[name] for name in names if (name, variables[name]) != ("OMP_NUM_THREADS", "1")}

    return read(environment) == read(os.environ)


def _are_open(files: Sequence[int]) -> bool:
    try:
        return all(os.fstat(file) for file in files)
    except OSError:
        return False


# ---- the warm parent ----


def main() -> None:
    """Load everything, then fork whenever asked."""
    asked = socket.socket(fileno=int(sys.argv[1]))
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for name in sys.argv[2].split(","):
        importlib.import_module(name)
    # A thread would not be in the forks, and what it holds would be held for ever.
    assert len(os.listdir("/proc/self/task")) == 1, f"a warm parent has threads: {threading.enumerate()}"
    gc.collect()
    gc.freeze()
    serve(asked)


def serve(asked: socket.socket) -> NoReturn:
    """Fork for each request until nobody can ask any more."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they may be meant for the whole group
    while True:
        data, files, _, _ = socket.recv_fds(asked, REQUEST_BYTES, 64)
        if not data:
            os._exit(0)
        middle = os.fork()
        if middle == 0:
            if os.fork() != 0:
                os._exit(0)
            become(json.loads(data), files, asked)
        for file in files:
            os.close(file)
        os.waitpid(middle, 0)


def _await_adoption(adopter: int) -> None:
    """Until the process in the middle has ended: the system gives its children away before it tells of that."""
    middle = os.getppid()
    if middle != adopter:
        with suppress(ProcessLookupError), open(os.pidfd_open(middle)) as ended:  # or it is gone already
            select.select([ended], [], [], ADOPTED_S)
    if os.getppid() != adopter:
        os._exit(1)


def become(request: dict[str, Any], files: list[int], asked: socket.socket) -> NoReturn:
    """Be the process that was asked for, to its end."""
    _await_adoption(request["adopter"])
    if request["session"]:
        os.setsid()
    asked.send(str(os.getpid()).encode())
    asked.close()
    if request["network"]:
        _enter(request["network"])
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, HIGH_FD) for file in files]
    for file in files:
        os.close(file)
    _, _, module, *words = request["argv"]
    keep = -1
    if module in STARTING:
        mine = _fork_parent(moved)
        keep, Popen.parent = mine.fileno(), WarmParent(mine)
    Popen.bare_parent = None
    for file in range(3, HIGH_FD):
        if file != keep:
            with suppress(OSError):
                os.close(file)
    for file, number in zip(moved, request["files"], strict=True):
        assert number != keep, "a file that is passed on has the number of our own"
        os.dup2(file, number)
        os.close(file)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
    _name(request["argv"])
    _obey(request["env"], request["cwd"])
    install()
    sys.argv = [module, *words]
    _end(_run(module))


def _run(module: str) -> int:
    """What `python -m` does with it; the exit code."""
    try:
        warnings.filterwarnings("ignore", ".*found in sys.modules after import", RuntimeWarning)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _end(code: int) -> NoReturn:
    """What an interpreter does at its end, but for taking every module to pieces: that costs half a second of ours."""
    with suppress(AttributeError):
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more, or it was closed
            file.flush()
    os._exit(code)


def _fork_parent(moved: Sequence[int]) -> socket.socket:
    """A warm parent for what this process will start, which ends with this process; the asking end."""
    me = os.getpid()
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() != 0:
        theirs.close()
        high = fcntl.fcntl(mine.fileno(), fcntl.F_DUPFD_CLOEXEC, HIGH_FD // 2)
        mine.close()
        asking = socket.socket(fileno=high)
        asking.settimeout(BEGUN_S)
        return asking
    mine.close()
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != me:
        os._exit(0)
    for file in moved:
        os.close(file)
    serve(theirs)


def _name(argv: Sequence[str]) -> None:
    """Show this command line in /proc."""
    fields = open("/proc/self/stat").read().rpartition(")")[2].split()  # noqa: SIM115
    start, end = int(fields[45]), int(fields[46])
    line = b"".join(word.encode() + b"\0" for word in argv)[: end - start]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, line, len(line))
    # Without the privilege to do so the command line ends in empty words.
    _libc.prctl(PR_SET_MM, PR_SET_MM_ARG_END, ctypes.c_ulong(start + len(line)), 0, 0)


def _obey(environment: Mapping[str, str], cwd: str) -> None:
    """Do what an interpreter and the libraries do at their start with what is this process's own."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    time.tzset()
    tempfile.tempdir = None
    if not environment.get("PYTHONSAFEPATH"):
        sys.path.insert(0, cwd)
    unbuffered = bool(environment.get("PYTHONUNBUFFERED"))
    sys.stdin, sys.stdout, sys.stderr = _text(0, "r", False), _text(1, "w", unbuffered), _text(2, "w", unbuffered)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    import huggingface_hub.constants
    import numpy

    # What `datasets` reads when it is loaded, too, and no warm parent loads that.
    hub = huggingface_hub.constants
    hub.HF_HUB_OFFLINE = environment.get("HF_HUB_OFFLINE", "").upper() in hub.ENV_VARS_TRUE_VALUES
    numpy.random.seed()


def _text(file: int, mode: str, unbuffered: bool) -> io.TextIOWrapper:
    raw: Any = open(file, f"{mode}b", buffering=0 if unbuffered else -1, closefd=False)  # noqa: SIM115
    errors = "backslashreplace" if file == 2 else "strict"
    return io.TextIOWrapper(
        raw, encoding="utf-8", errors=errors, line_buffering=file == 2 or os.isatty(file), write_through=unbuffered
    )


def _enter(network: str) -> None:
    """What `nsenter --net=…` does, and with OF_PROCESS that of a process and of its user namespace."""
    if network.isdecimal():
        file, kinds = os.pidfd_open(int(network)), CLONE_NEWUSER | CLONE_NEWNET
    else:
        file, kinds = os.open(network, os.O_RDONLY), CLONE_NEWNET
    try:
        if _libc.setns(file, kinds) != 0:
            raise OSError(ctypes.get_errno(), f"setns {network}")
    finally:
        os.close(file)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


if __name__ == "__main__":
    # What is forked must find this very module, not a second one.
    from tests import warm

    warm.main()
