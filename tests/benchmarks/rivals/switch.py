"""`python -m tests.benchmarks.rivals.switch LINES.json`: home lines between network namespaces.

Each line ends in a namespace of its own, in which programs run unchanged, and reaches this process by a TUN device.
Here every IP packet passes the sender's uplink, flies, and passes the receiver's downlink. A link is the same token
bucket, with the same burst, with which our own peers keep their caps (`dht/streams/shaper.py`,
`dht/streams/shaper.py`); what comes faster waits in the device's queue, and what finds no room there is lost, as in a
home router.

A line of JSON says where the namespaces are; then one comes every `REPORT_S` with the bytes so far. The namespaces are
gone once this process has ended, and those in them.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dht.process import die_with_parent
from dht.streams.shaper import BURST_S, TokenBucket

DEVICE = "hf0"
NETWORK = "10.77.0."
MTU = 1500
QUEUE_PACKETS = 1000
"""What waits for an uplink at most: a home router's half second."""
REPORT_S = 0.25
AT_ONCE = 64
"""Packets of one line that are looked at before it is another's turn."""
TOOL_S = 10.0

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
DESTINATION = slice(16, 20)
"""Where an IPv4 header says whom it is for."""


@dataclass(kw_only=True)
class End:
    """One line, from the side of this process."""

    device: int
    """File descriptor: one packet per read and write."""
    namespace: int
    address: str
    up: TokenBucket | None
    """None: as fast as it comes."""
    down: TokenBucket | None
    held: bytes = b""
    """Was read, and the uplink does not take it yet."""
    lifts_at: float = 0.0
    """When it does."""
    waiting: deque[bytes] = field(default_factory=deque)
    """Has flown, and waits for the downlink."""
    lands_at: float = 0.0
    """When the first of it may pass."""
    sent_bytes: int = 0
    received_bytes: int = 0


def address_of(number: int) -> str:
    """Of the programs in the namespace of this line."""
    return f"{NETWORK}{number + 1}"


def make_end(number: int, up_bps: float, down_bps: float) -> End:
    """A new namespace with nothing in it but the line. Raises OSError, also if this process may not."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNET)")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    address = address_of(number)
    for words in (
        f"address add {address}/24 dev {DEVICE}",
        f"link set {DEVICE} up mtu {MTU} txqueuelen {QUEUE_PACKETS}",
        "link set lo up",
    ):
        subprocess.run(["ip", *words.split()], check=True, capture_output=True, timeout=TOOL_S)
    now = time.monotonic()
    up, down = (_bucket(bps, now) for bps in (up_bps, down_bps))
    return End(
        device=device, namespace=os.open("/proc/self/ns/net", os.O_RDONLY), address=address, up=up, down=down
    )  # fmt: skip


def _bucket(bps: float, now: float) -> TokenBucket | None:
    return TokenBucket(bps / 8, max(2 * MTU, round(bps / 8 * BURST_S)), now) if bps else None


class Switch:
    """Carries packets between the ends."""

    def __init__(self, ends: Sequence[End], delay_s: float) -> None:
        self._ends, self._delay_s = ends, delay_s
        self._flying: deque[tuple[float, End, bytes]] = deque()
        self._by_address = {bytes(map(int, end.address.split("."))): end for end in ends}
        self._by_device = {end.device: end for end in ends}

    def carry(self, until: float) -> None:
        """Carry what comes, until this monotonic time."""
        readable = list(self._ends)
        while True:
            now = time.monotonic()
            for end in readable:
                self._lift(end, now)
            while self._flying and self._flying[0][0] <= now:
                _, end, packet = self._flying.popleft()
                end.waiting.append(packet)
            for end in self._ends:
                self._land(end, now)
            if now >= until:
                return
            readable = self._wait(until)

    def _wait(self, until: float) -> list[End]:
        """Sleep until something can be done; the ends that have packets to lift."""
        moments = [until, *(end.lifts_at for end in self._ends if end.held)]
        moments += [end.lands_at for end in self._ends if end.waiting]
        if self._flying:
            moments.append(self._flying[0][0])
        devices = [end.device for end in self._ends if not end.held]
        found, _, _ = select.select(devices, [], [], max(0.0, min(moments) - time.monotonic()))
        return [self._by_device[device] for device in found] + [end for end in self._ends if end.held]

    def _lift(self, end: End, now: float) -> None:
        """Take from the programs of this end what its uplink takes now."""
        for _ in range(AT_ONCE):
            packet = end.held or _read(end.device)
            if not packet:
                return
            to = self._by_address.get(packet[DESTINATION])
            if to is None:
                continue  # for nobody here, such as what IPv6 tells the neighbours
            end.held = b""
            if end.up is not None:
                wait_s = end.up.wait_s(len(packet), now)
                if wait_s > 0:
                    end.held, end.lifts_at = packet, now + wait_s
                    return
                end.up.take(len(packet), now)
            end.sent_bytes += len(packet)
            self._flying.append((now + self._delay_s, to, packet))

    def _land(self, end: End, now: float) -> None:
        """Give the programs of this end what its downlink takes now."""
        while end.waiting:
            size = len(end.waiting[0])
            if end.down is not None:
                wait_s = end.down.wait_s(size, now)
                if wait_s > 0:
                    end.lands_at = now + wait_s
                    return
                end.down.take(size, now)
            os.write(end.device, end.waiting.popleft())
            end.received_bytes += size


def _read(device: int) -> bytes:
    try:
        return os.read(device, MTU)
    except BlockingIOError:
        return b""


def main() -> int:
    """Make the lines of the file, and carry until SIGTERM."""
    die_with_parent()
    table = json.loads(Path(sys.argv[1]).read_text())
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    try:
        ends = [make_end(number, up, down) for number, (up, down) in enumerate(table["lines"])]
    except (OSError, subprocess.SubprocessError) as error:
        tell(refused=str(error))
        return 1
    tell(places=[[f"/proc/{os.getpid()}/fd/{end.namespace}", end.address] for end in ends])
    switch = Switch(ends, table["delay_s"])
    while not stopped:
        switch.carry(time.monotonic() + REPORT_S)
        tell(sent=[end.sent_bytes for end in ends], received=[end.received_bytes for end in ends])
    return 0


def tell(**what: object) -> None:
    """One line of JSON with the Unix time."""
    print(json.dumps({"t": time.time()} | what), flush=True)


if __name__ == "__main__":
    sys.exit(main())
