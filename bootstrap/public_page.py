"""A page about a run for everybody, one file that any web server gives: what is learned, who gave what, how to join.

It tells what certificates and signed records show, and holds no address of a peer but those of an open run's invite.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from bootstrap.html_page import fact_table, peer_cell, table, whole_page
from bootstrap.public_ledger import PublicLedger, read_ledger, write_ledger
from dht.atomic_files import write_atomic
from dht.errors import BadInput, DiskFull
from dht.identity import fingerprint_words
from dht.invite import INVITE_FILE
from dht.records import PeerRecord
from peer.consensus.protocol.block import Block
from peer.consensus.protocol.electorate import named, quorum
from peer.consensus.protocol.head import ChainHead
from peer.schema.spec import RunSpec

EVERY_S = 60.0
LISTED_MOST = 256
WIDTH, HEIGHT = 600, 120
"""Of the picture of losses, in units of its own."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PublicFacts:
    """What is known of a run now. `head` is None before it begins; `invite` is empty where people ask for one."""

    spec: RunSpec
    organiser: str
    now_s: float
    ledger: PublicLedger
    head: ChainHead | None
    here: int
    """Peers on the board."""
    invite: str = ""


class PublicPage:
    """Writes `index.html` into a folder, once a minute. Raises BadInput for a folder that cannot be made, and for a
    damaged ledger."""

    def __init__(
        self, folder: Path, directory: Path, spec: RunSpec, organiser: str, clock: Callable[[], float] = time.time
    ) -> None:
        try:
            if not folder.is_dir():
                folder.mkdir(parents=True)
                folder.chmod(0o755)  # whatever the umask, which is strict in a service
        except OSError as error:
            raise BadInput(f"--page {folder} cannot be made: {error.strerror}; name another folder") from error
        self._folder, self._directory, self._spec, self._organiser = folder, directory, spec, organiser
        self._clock, self._due_s = clock, 0.0
        self._ledger = read_ledger(directory)

    @property
    def is_due(self) -> bool:
        return self._clock() >= self._due_s

    def note(self, blocks: Iterable[Block]) -> None:
        """These blocks are certified."""
        self._ledger = self._ledger.and_updates(block.update for block in blocks)

    def write(self, heads: Mapping[str, PeerRecord], head: ChainHead | None) -> None:
        """`heads` is what the peers say of themselves whose records are believed."""
        self._due_s = self._clock() + EVERY_S
        self._ledger = self._ledger.and_said(heads, () if head is None else head.electorate)
        facts = PublicFacts(
            spec=self._spec, organiser=self._organiser, now_s=self._clock(), ledger=self._ledger, head=head,
            here=len(heads), invite=self._open_invite(),
        )  # fmt: skip
        path = self._folder / "index.html"
        try:
            write_ledger(self._directory, self._ledger)
            write_atomic(path, page_of(facts).encode())
            path.chmod(0o644)
        except DiskFull as error:
            log.warning("the page is not written: %s", error)

    def _open_invite(self) -> str:
        """None of a run that asks for an admission: whoever has such an invite is let in."""
        path = self._directory / INVITE_FILE
        return path.read_text().strip() if self._spec.admission.policy == "open" and path.exists() else ""


def page_of(facts: PublicFacts) -> str:
    ledger, spec = facts.ledger, facts.spec
    given = [
        (peer_cell(work.name, peer), f"{100 * ledger.share(work):.1f} %", f"{work.rounds:,}", f"{work.last:,}")
        for peer, work in ledger.ranked()[:LISTED_MOST]
    ]
    told = f"In the {ledger.looked:,} rounds that this node has looked at, by the votes that certify them."
    return whole_page(
        f"homefires: {spec.run.name}",
        "<p>One language model, trained by people on their own machines.</p>"
        f"{fact_table(_facts(facts))}{_picture(ledger.losses)}"
        f"<h2>What is needed most</h2><p>{escape(_need(facts))}</p>"
        f"<h2>Join</h2>{_joining(facts)}"
        f"<h2>Who gave what</h2><p>{told}</p>"
        f"{table(given, ('peer', 'share', 'rounds', 'last round'))}"
        f"<p>Written at {time.strftime('%Y-%m-%d %H:%M', time.gmtime(facts.now_s))} UTC.</p>",
    )


def _facts(facts: PublicFacts) -> dict[str, str]:
    spec, head, losses = facts.spec, facts.head, facts.ledger.losses
    found = {
        "model": f"{spec.model.architecture}, {spec.model.context:,} tokens of context",
        "learns from": _data(spec),
    }
    if spec.start is not None:
        found["begins from"] = spec.start.model
    round = head.round if head is not None else 0
    found["round"] = f"{round:,} of {spec.run.rounds:,}" if spec.run.rounds else f"{round:,}"
    if losses:
        found["held-out loss"] = f"{losses[-1][1]:.3f} (round {losses[-1][0]:,}; lower is better; the voters' median)"
    found["peers here now"] = f"{facts.here:,}"
    if head is not None:
        found["voters"] = f"{len(head.electorate)}, of whom {quorum(head.electorate)} decide a round"
    return found


def _data(spec: RunSpec) -> str:
    kinds = {"stdlib": "the source of Python's standard library", "files": "files of its volunteers"}
    named = (each.path if each.source == "hub" else kinds[each.source] for each in spec.data.sources)
    return ", ".join(dict.fromkeys(named))


def _need(facts: PublicFacts) -> str:
    head = facts.head
    if head is None:
        missing = max(1, facts.spec.run.founders - facts.here)
        return f"{missing} more peer{'s' * (missing > 1)}: the run begins with {facts.spec.run.founders}."
    voters, known = len(head.electorate), len(named(head.electorate, head.roster.known))
    if voters < 4:
        return f"Peers that stay: of {voters} voters none may be wrong. From four voters on one may."
    if known < quorum(head.electorate):
        return "Peers that the organiser knows: those who vote now without being known must not become the majority."
    return f"Time on graphics cards: the {voters} voters can spare {(voters - 1) // 3}, and each machine adds its part."


def _joining(facts: PublicFacts) -> str:
    words = escape(fingerprint_words(facts.organiser))
    need = "<p>It takes x86-64 Linux with Python 3.11 to 3.13, and homefires.</p>"
    asks = f"<p>The first <code>join</code> shows who organises the run, as eight words: <b>{words}</b>.</p>"
    if not facts.invite:
        return f"{need}<p>This run takes whom its organiser invites: ask for an invite.</p>{asks}"
    command = escape(facts.invite)
    return f"{need}<p><code>homefires doctor {command}</code></p><p><code>homefires join {command}</code></p>{asks}"


def _picture(losses: tuple[tuple[int, float], ...]) -> str:
    """The loss by round as a line; nothing for less than two points."""
    if len(losses) < 2:
        return ""
    rounds, values = [round for round, _ in losses], [loss for _, loss in losses]
    wide, high = max(1, rounds[-1] - rounds[0]), max(values) - min(values) or 1.0
    points = " ".join(
        f"{WIDTH * (round - rounds[0]) / wide:.0f},{HEIGHT * (max(values) - loss) / high:.0f}" for round, loss in losses
    )
    told = f"Held-out loss: {values[0]:.3f} in round {rounds[0]:,}, {values[-1]:.3f} in round {rounds[-1]:,}."
    return (
        f'<figure><svg role="img" aria-label="{told}" viewBox="-2 -2 {WIDTH + 4} {HEIGHT + 4}">'
        f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="2"/></svg>'
        f"<figcaption>{told}</figcaption></figure>"
    )
