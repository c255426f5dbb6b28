"""p2pd without its wrapping: hivemind ships it packed by UPX, and packed it would unpack itself at every start.

That is 0.17 s of the 0.18 s of processor time that its start takes, and 25 MB of memory that no two of them share. So
it is unpacked once per checkout, by itself: it runs until everything is in place, and what is there then is written
down, which is the program as it was before. `@pytest.mark.cold` has a test start it packed.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import dht.daemon
from tests import warm

PACKED = "p2pd"
"""As hivemind calls it."""
BASE = 0x400000
"""Where Go has a program begin, and UPX puts it back to."""
HEAD_BYTES, SEGMENT_BYTES = 4096, 56
PT_LOAD = 1
PTRACE_TRACEME, PTRACE_GETREGS, PTRACE_SYSCALL = 0, 12, 24
ARCH_PRCTL = 158
"""What Go asks of the kernel first: what UPX has to do is done then."""
ORIG_RAX, REGISTERS = 15, 27

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def install(folder: Path) -> None:
    """From now on the nodes of this process, and of those that it starts warm, start the program of this folder."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return
    (package,) = find_spec("hivemind").submodule_search_locations  # type: ignore[union-attr,misc]
    packed = Path(package, "hivemind_cli", PACKED)
    about = packed.stat()
    unpacked = folder / f"{about.st_size}-{about.st_mtime_ns}" / PACKED
    if not unpacked.exists():
        subprocess.run([sys.executable, "-m", "tests.unpacked", str(packed), str(unpacked)], check=False)
    if not unpacked.exists():  # why is on stderr: some systems let nobody look into a process
        return
    os.environ[warm.P2PD] = str(unpacked)
    prepare = dht.daemon._prepare_hivemind

    def prepare_unpacked() -> None:
        prepare()
        _choose(str(unpacked))

    dht.daemon._prepare_hivemind = prepare_unpacked


def _choose(unpacked: str) -> None:
    from hivemind.p2p import p2p_daemon

    if p2p_daemon.P2PD_FILENAME in (PACKED, unpacked):  # else the test has one of its own
        p2p_daemon.P2PD_FILENAME = PACKED if warm.Popen.cold else unpacked


def unpack(packed: Path, unpacked: Path) -> None:
    """Write down what this program is once it has unpacked itself."""
    unpacked.parent.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if child == 0:
        _trace(PTRACE_TRACEME, 0)
        os.execv(packed, [str(packed)])
    try:
        _run_until_unpacked(child)
        content = _content(child)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with tempfile.NamedTemporaryFile(dir=unpacked.parent, delete=False) as file:
        file.write(content)
    os.chmod(file.name, 0o755)
    os.rename(file.name, unpacked)


def _run_until_unpacked(child: int) -> None:
    registers = (ctypes.c_ulonglong * REGISTERS)()
    _, status = os.waitpid(child, 0)
    while registers[ORIG_RAX] != ARCH_PRCTL:
        assert os.WIFSTOPPED(status), f"{PACKED} has ended: {status}"
        _trace(PTRACE_SYSCALL, child)
        _, status = os.waitpid(child, 0)
        _trace(PTRACE_GETREGS, child, ctypes.addressof(registers))


def _content(child: int) -> bytes:
    """The file of which this process is made: its segments, each where the head of the first says that it was."""
    with open(f"/proc/{child}/mem", "rb", buffering=0) as memory:

        def read(at: int, size: int) -> bytes:
            memory.seek(at)
            found = memory.read(size)
            assert len(found) == size
            return found

        head = read(BASE, HEAD_BYTES)
        assert head.startswith(b"\x7fELF"), f"{PACKED} is not packed as it was"
        (first,), (count,) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<H", head, 56)
        content = bytearray()
        for number in range(count):
            kind, _, offset, at, _, size, _, _ = struct.unpack_from("<IIQQQQQQ", head, first + number * SEGMENT_BYTES)
            if kind == PT_LOAD:
                content[len(content) :] = bytes(max(0, offset + size - len(content)))
                content[offset : offset + size] = read(at, size)
    struct.pack_into("<Q", content, 40, 0)  # what a debugger would read is not in memory
    struct.pack_into("<HH", content, 60, 0, 0)
    return bytes(content)


def _trace(request: int, child: int, data: int | None = None) -> None:
    if _libc.ptrace(request, child, None, data) == -1:
        raise OSError(ctypes.get_errno(), f"ptrace {request}")


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
