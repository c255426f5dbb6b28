"""Real peers on loopback: a bootstrap node and any number of `python -m peer join`, with the fault kit.

    with closing(RealSwarm(tmp_path, peers=3)) as run:
        run.until_round(3)

One thread: lines of children and strikes of faults arrive in one inbox, which is read during waits.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import psutil

from dht.identity import Identity
from peer.consensus.protocol.block import Block
from peer.consensus.protocol.electorate import order
from peer.network.link.cluster_invite import issue_in
from peer.node.store.run_directory import block_path, head_after
from peer.schema.events import AlertRaised, EventLine, InviteIssued, PeerStateChanged, RoundCommitted, parse_line
from peer.schema.spec import dump
from peer.testing.child_process import (
    BUSY,
    ENVIRONMENT,
    HANG_S,
    ORPHAN_S,
    Child,
    Printed,
    assert_no_orphans,
    processes_of,
)
from peer.testing.fault_channel import BOOKS, Orders, Strike, end_struck, make_fifos, open_struck, parse_strike, throw
from peer.testing.faults import Crash, Fault, Odd, Stall
from peer.testing.faulty_streams import DELAY
from peer.testing.short_waits import PACED, write_hurry
from peer.testing.swarm_contract import ENDS_AT_ITS_USER, Committed, Swarm, changed_spec

__tracebackhide__ = ENDS_AT_ITS_USER
LINK_MODULE = "peer.testing.faulty_link"
NODE_MODULE = "peer.testing.short_waits"
OF_NODES = ("bootstrap.", "peer.consensus.organiser.")
"""Where the constants are that an organiser's node has, too."""
LOOPBACK = "/ip4/127.0.0.1/tcp/0"
STOP_S = 20.0 * BUSY
"""A process that was asked to stop must have ended after this long."""
LOOK_S = 0.25
"""A process that ended without a word is noticed after this long."""
WAKE_AGAIN_S = 0.05
EXPLAIN_S = 1.0 * BUSY
LOG_TAIL = 600
"""Characters of a log that an error shows."""
ENDLESS = ("run.rounds=0", "inner.schedule_rounds=50")

T = TypeVar("T")


@dataclass(eq=False)
class _Peer:
    """One peer over all its lives."""

    index: int
    directory: Path
    id: str
    child: Child | None = None
    lines: list[EventLine] = field(default_factory=list)
    since: int = 0
    """How many lines it had printed when it was last started."""
    commits: dict[int, Committed] = field(default_factory=dict)
    changes_over: bool = False
    """It said that it leaves its branch: the next round that it commits may be one that it has committed."""
    may_end: bool = False
    """It was killed, or asked to leave."""

    @property
    def is_live(self) -> bool:
        """Also when it has made the last round of a run and ended well."""
        return self.child is not None and not self.may_end


class RealSwarm(Swarm):
    """A run of real processes below `directory`: a bootstrap node and `peers` founders, started at once.

    `sets` are TOML assignments to keys of the spec, such as `round.steps=60`, `settings` to those of every
    peer, such as `min_step_s=0.5`, `own` to those of one, by its index. The devices of a `paced` swarm are busy for as
    long as each peer's `min_step_s` says (`peer.testing.short_waits`). With `books` each keeps account of its work
    (`peer.testing.ledger_check`). `works_for`: workers of clusters, and their leads. Every frame is `delay_s` longer on
    its way. Constants in `hurry` have other values in the peers (`peer.testing.short_waits`). An `endless` run has no
    last round. `organiser` are more words on the bootstrap node's command line. A peer that ends though nobody asked it
    to is an AssertionError in whatever waits.
    """

    def __init__(
        self,
        directory: Path,
        peers: int,
        spec: str = "micro",
        sets: Sequence[str] = (),
        settings: Sequence[str] = (),
        *,
        own: Mapping[int, Sequence[str]] | None = None,
        works_for: Mapping[int, int] | None = None,
        paced: bool = False,
        books: bool = False,
        delay_s: float = 0.0,
        hurry: Mapping[str, float] | None = None,
        endless: bool = True,
        organiser: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.directory = directory.resolve()
        founders = f"run.founders={peers - sum(worker < peers for worker in works_for or {})}"
        self.spec = changed_spec(spec, (*(ENDLESS if endless else ()), founders, *sets))
        self.began_at = time.time()  # Unix
        self._inbox: queue.SimpleQueue[Printed | Strike] = queue.SimpleQueue()
        self._peers: list[_Peer] = []
        self._numbers: dict[Fault, int] = {}
        self._later: list[tuple[float, Callable[[], None]]] = []
        threads = max(1, (len(os.sched_getaffinity(0)) - 1) // peers)
        # Who makes the swarm has written its spec: its files are theirs.
        files = (f"data_path={self.spec.data.path}",) if self.spec.data.reads_files else ()
        self._settings = (f"threads={threads}", "compile=no", *files, *settings)
        self._own, self._paced, self._books, self._delay_s = own or {}, paced, books, delay_s
        self._hurry, self._works_for = hurry or {}, works_for or {}
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._temporary = tempfile.TemporaryDirectory(prefix="hf-")
        self._hear_strikes()
        self.invite = ""
        self._organiser_words = organiser
        self._bootstrap = self._start_bootstrap()
        try:
            self._await(lambda: self.invite, HANG_S, "the bootstrap node issued no invite")
            for _ in range(peers):
                self.join()
        except BaseException:
            self.close()
            raise

    # ---- who is there ----

    @property
    def size(self) -> int:
        """How many peers have joined so far, the dead included."""
        return len(self._peers)

    def directory_of(self, peer: int) -> Path:
        return self._peers[peer].directory

    def id_of(self, peer: int) -> str:
        return self._peers[peer].id

    def log(self, peer: int) -> str:
        """What the peer has written on stderr, in all its lives."""
        return path.read_text() if (path := self._peers[peer].directory / "peer.log").exists() else ""

    def lines(self, peer: int) -> list[EventLine]:
        """The event lines of the peer so far, in all its lives."""
        self._drain()
        return list(self._peers[peer].lines)

    def committed(self, peer: int) -> Sequence[Committed]:
        """What the peer has reported as committed, in order of rounds, each once."""
        self._require_peer(peer)
        self._drain()
        commits = self._peers[peer].commits
        return [commits[round] for round in sorted(commits)]

    def electorate(self, round: int) -> set[int]:
        """Who decides what follows anchor `round`, as the chain says of somebody who has committed it."""
        if round == 0:
            return set(range(self.spec.run.founders))
        paths = (block_path(self.directory_of(peer), round) for peer in range(self.size))
        block = Block.from_bytes(next(path for path in paths if path.is_file()).read_bytes())
        return {self._index(peer_id) for peer_id in block.update.elect}

    def coordinator(self, round: int) -> int:
        """Who leads ballot 0 of the round that starts from anchor `round`; see `electorate`."""
        if round == 0:
            return self._index(order(dict.fromkeys((peer.id for peer in self._peers[: self.spec.run.founders]), 0))[0])
        paths = (block_path(self.directory_of(peer), round) for peer in range(self.size))
        block = Block.from_bytes(next(path for path in paths if path.is_file()).read_bytes())
        return self._index(head_after(block.update).leader(0))

    # ---- waiting ----

    def until_round(self, round: int, *, within_s: float = HANG_S, by: Collection[int] = ()) -> None:
        """As `Swarm` says; or, until each peer in `by` has committed it, whatever the others do."""

        def all_there() -> bool:
            live = [peer for peer in self._peers if (peer.index in by if by else peer.is_live)]
            assert live, f"no peer is live; {self._where()}"
            return all(max(peer.commits, default=0) >= round for peer in live)

        who = f"of peers {sorted(by)}" if by else "live peers"
        self._await(all_there, within_s, f"not all {who} have committed round {round}")

    def _run_until(self, reached: Callable[[], bool], within_s: float, failure: str) -> None:
        self._await(reached, within_s, failure)

    def until_first(self, round: int, *, within_s: float = HANG_S) -> None:
        """Wait until somebody has committed anchor `round`: nobody is far in the round that starts from there."""
        self._await(
            lambda: any(round in peer.commits for peer in self._peers), within_s, f"nobody has committed round {round}"
        )

    def wait_for(self, peer: int, wanted: Callable[[EventLine], bool], *, within_s: float = HANG_S) -> EventLine:
        """The first line that is `wanted`, of those that the peer printed since it was last started.

        Of a peer that is not live, those that it prints once it is back. Raises AssertionError if there
        is none within `within_s` seconds.
        """
        self._drain()
        victim = self._peers[peer]
        position = victim.since if victim.is_live else len(victim.lines)

        def find() -> EventLine | None:
            nonlocal position
            while position < len(victim.lines):
                position += 1
                if wanted(victim.lines[position - 1]):
                    return victim.lines[position - 1]
            return None

        return self._await(find, within_s, f"peer {peer} has not reported what was awaited")

    def until(self, reached: Callable[[], object], what: str, *, within_s: float = HANG_S) -> None:
        """Wait until `reached` gives something true. Raises AssertionError that says `what` has not happened."""
        self._await(reached, within_s, what)

    def until_struck(self, fault: Fault, *, within_s: float = HANG_S) -> None:
        self._await(lambda: fault in self._struck, within_s, f"{fault} has not struck")

    # ---- coming and going ----

    def join(self) -> int:
        """Start one more peer, a newcomer; returns its index at once."""
        index = len(self._peers)
        directory = self.directory / f"peer-{index}"
        make_fifos(directory)
        for mark in ((PACED,) if self._paced else ()) + ((BOOKS,) if self._books else ()):
            (directory / mark).touch()
        if self._delay_s:
            (directory / DELAY).write_text(str(self._delay_s))
        write_hurry(directory, self._hurry)
        identity = Identity.load_or_create(directory / "identity.key")
        self._peers.append(_Peer(index=index, directory=directory, id=identity.peer_id))
        self._write_orders()
        self._start(self._peers[-1])
        return index

    def kill(self, peer: int) -> None:
        """`kill -9` of the peer's process; what it started ends by itself, or AssertionError is raised."""
        victim = self._peers[peer]
        victim.may_end = True
        self._child(victim).signal(signal.SIGKILL)
        self._await_end(victim, ORPHAN_S)
        assert_no_orphans(victim.directory)

    def halt(self, peer: int) -> None:
        """SIGSTOP the peer with all it started: nothing in, nothing out, until `go_on`."""
        self._child(self._peers[peer]).signal_group(signal.SIGSTOP)

    def go_on(self, peer: int) -> None:
        self._child(self._peers[peer]).signal_group(signal.SIGCONT)

    def kill_link(self, peer: int) -> None:
        """`kill -9` of the peer's link process alone."""
        (link,) = [each for each in processes_of(self._peers[peer].directory) if LINK_MODULE in each.cmdline()]
        link.kill()

    def kill_node(self) -> None:
        """`kill -9` of the organiser's node, with all that it started."""
        self._bootstrap.signal_group(signal.SIGKILL)
        self._bootstrap.end(ORPHAN_S)

    def stop(self, peer: int) -> int:
        """Ask the peer to leave politely (SIGTERM), and wait for its end; its exit code."""
        self._peers[peer].may_end = True
        self._child(self._peers[peer]).signal(signal.SIGTERM)
        return self.ends(peer, STOP_S)

    def ends(self, peer: int, within_s: float = HANG_S) -> int:
        """Wait for a peer that is to end by itself; its exit code."""
        leaver = self._peers[peer]
        leaver.may_end = True
        code = self._await_end(leaver, within_s)
        assert_no_orphans(leaver.directory)
        return code

    def restart(self, peer: int) -> None:
        """Start a peer again that has ended or was killed, in its directory."""
        victim = self._peers[peer]
        assert victim.may_end, f"peer {peer} was neither killed nor asked to leave"
        self._await_end(victim, ORPHAN_S)
        assert_no_orphans(victim.directory)
        self._start(victim)

    def close(self) -> None:
        """Ask everybody to stop, kill who does not. Raises AssertionError if a process outlives who started it."""
        children = [self._bootstrap, *(peer.child for peer in self._peers if peer.child is not None)]
        for child in children:
            child.signal_group(signal.SIGCONT)
            child.signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        for child in children:
            child.end(max(0.0, deadline - time.monotonic()))
        end_struck(self.directory)
        self._temporary.cleanup()
        try:
            assert_no_orphans(self.directory)
        finally:
            for process in processes_of(self.directory):
                process.kill()

    # ---- faults ----

    def inject(self, *faults: Fault) -> None:
        super().inject(*faults)
        for fault in faults:
            self._numbers.setdefault(fault, len(self._numbers))
        self._write_orders()

    def _write_orders(self) -> None:
        ids = tuple(peer.id for peer in self._peers)
        for peer in self._peers:
            mine = {self._numbers[fault]: fault for fault in self._waiting if peer.index in fault.victims}
            Orders(peer=peer.index, ids=ids, faults=mine).write(peer.directory)

    def _hear_strikes(self) -> None:
        struck = open_struck(self.directory)

        def read() -> None:
            with struck:
                while line := struck.readline().strip():
                    self._inbox.put(parse_strike(line))

        threading.Thread(target=read, daemon=True).start()

    def _on_strike(self, strike: Strike) -> None:
        fault = next(fault for fault, number in self._numbers.items() if number == strike.number)
        if fault not in self._waiting:
            return  # another of its victims was first
        self._waiting.remove(fault)
        self._struck.append(fault)
        self._write_orders()
        peer = self._peers[strike.peer]
        match fault:
            case Crash():
                peer.may_end = True
                if fault.back_after_s is not None:
                    self._after(fault.back_after_s, lambda: self.restart(peer.index))
            case Stall():
                self._after(fault.seconds, lambda: self._wake(peer, strike.pid))
            case Odd():
                pass  # the peer has struck itself
            case _:
                for victim in fault.victims:
                    if victim != strike.peer or not strike.by_link:
                        throw(self._peers[victim].directory, fault)

    def _wake(self, peer: _Peer, pid: int) -> None:
        """Let a stalled peer go on; later, if the process that struck has not come to stop itself yet."""
        if not self._child(peer).is_running:
            return
        if psutil.Process(pid).status() != psutil.STATUS_STOPPED:
            self._after(WAKE_AGAIN_S, lambda: self._wake(peer, pid))
            return
        self._child(peer).signal_group(signal.SIGCONT)

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, action))

    # ---- children ----

    def _start_bootstrap(self) -> Child:
        folder = self.directory / "bootstrap"
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / "spec.toml").write_text(dump(self.spec))
        write_hurry(folder, {name: value for name, value in self._hurry.items() if name.startswith(OF_NODES)})
        where = [str(folder / "spec.toml"), "--dir", str(folder), "--listen", LOOPBACK]
        argv = [sys.executable, "-m", NODE_MODULE, *where, *self._organiser_words]
        return self._child_of(argv, folder / "bootstrap.log")

    def _start(self, peer: _Peer) -> None:
        own = (f"name=peer-{peer.index}", *self._settings, *self._own.get(peer.index, ()))
        argv = [sys.executable, "-m", "peer.testing.faulty_peer", self.invite, "--dir", str(peer.directory)]
        argv += ["--listen", LOOPBACK, *(word for setting in own for word in ("--set", f"settings.{setting}"))]
        if (lead := self._works_for.get(peer.index)) is not None:
            argv += ["--cluster", issue_in(self.directory_of(lead)).text()]
        self._drain()
        peer.may_end, peer.since = False, len(peer.lines)
        peer.child = self._child_of(argv, peer.directory / "peer.log")

    def _child_of(self, argv: Sequence[str], log: Path) -> Child:
        # A short folder: it holds the sockets where a path below `directory` would be too long for them.
        environment = ENVIRONMENT | {"TMPDIR": self._temporary.name}
        return Child(argv, log, environment, self._inbox.put)

    def _child(self, peer: _Peer) -> Child:
        assert peer.child is not None
        return peer.child

    def _await_end(self, peer: _Peer, within_s: float) -> int:
        child = self._child(peer)
        self._await(lambda: not child.is_running, within_s, f"peer {peer.index} has not ended")
        child.end(ORPHAN_S)
        self._drain()
        assert child.process.returncode is not None
        return child.process.returncode

    # ---- the inbox ----

    def _await(self, find: Callable[[], T | None], within_s: float, failure: str) -> T:
        """Take in what happens until `find` gives something. Raises AssertionError with where everybody is."""
        deadline = time.monotonic() + within_s
        while not (found := find()):
            now = time.monotonic()
            assert now < deadline, f"{failure} within {within_s:.0f} s; {self._where()}"
            self._pump(min(deadline - now, LOOK_S))
        return found

    def _pump(self, timeout_s: float) -> None:
        """Do what is due, and take in what happens next, if anything does in time."""
        now = time.monotonic()
        due = [action for at, action in self._later if at <= now]
        self._later = [(at, action) for at, action in self._later if at > now]
        for action in due:
            action()
        wait_s = min([timeout_s, *(at - now for at, _ in self._later)])
        with suppress(queue.Empty):
            self._take(self._inbox.get(timeout=wait_s))

    def _drain(self) -> None:
        """Take in what has arrived."""
        while not self._inbox.empty():
            self._take(self._inbox.get())

    def _take(self, happened: Printed | Strike) -> None:
        if isinstance(happened, Strike):
            self._on_strike(happened)
        elif happened.text is None:
            self._on_end(happened.child)
        else:
            line = parse_line(happened.text)
            assert line is not None, happened.text
            self._on_line(happened.child, line)

    def _on_line(self, child: Child, line: EventLine) -> None:
        if isinstance(line.event, InviteIssued):
            self.invite = line.event.invite
        peer = next((peer for peer in self._peers if peer.child is child), None)
        if peer is None:
            return
        peer.lines.append(line)
        if isinstance(line.event, AlertRaised) and line.event.code == "RESYNC":
            peer.changes_over = True
        if isinstance(line.event, RoundCommitted):
            event = line.event
            members = frozenset(map(self._index, event.group))
            at_s = line.t - self.began_at
            commit = Committed(round=event.round, digest=event.digest, state=event.state, group=members, at_s=at_s)
            if peer.changes_over:
                peer.commits = {round: kept for round, kept in peer.commits.items() if round < event.round}
                peer.changes_over = False
            before = peer.commits.setdefault(event.round, commit)
            same = (before.digest, before.state) == (commit.digest, commit.state)
            assert same, f"peer {peer.index} committed round {event.round} twice: {before}, {commit}"

    def _on_end(self, child: Child) -> None:
        peer = next((peer for peer in self._peers if peer.child is child), None)
        if peer is not None:
            # That a crash was ordered may be read a moment after the end.
            self._after(EXPLAIN_S, lambda: self._assert_end_was_meant(peer, child))

    def _assert_end_was_meant(self, peer: _Peer, child: Child) -> None:
        code = child.process.poll()
        meant = peer.child is not child or peer.may_end or code in (None, 0)
        assert meant, f"peer {peer.index} ended with exit code {code}: {self.log(peer.index)[-LOG_TAIL:]}"

    def _index(self, peer_id: str) -> int:
        return next(peer.index for peer in self._peers if peer.id == peer_id)

    def _where(self) -> str:
        """A line for each peer: its round, what it said last, and its log; of one that has ended, the log's end."""
        text = ""
        for peer in self._peers:
            whys = [line.event.why for line in peer.lines if isinstance(line.event, PeerStateChanged)]
            text += f"\n  peer {peer.index} at round {max(peer.commits, default=0)}, {whys[-1:]}, "
            text += f"is live in {peer.directory}" if peer.is_live else f"has ended: {self.log(peer.index)[-LOG_TAIL:]}"
        return text
