"""Today's bytes: what a version of homefires writes to disk, signs, hashes and sends.

These bytes are on people's disks and wires. A change here is a change of PROTOCOL_VERSION or of the format, and wants
its own commit: `python -m tests.test_golden` writes `tests/golden/` anew, and its diff says what has changed.
A refactoring changes nothing here but the imports.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import chdir, closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from bootstrap.members import AdmissionBook
from dht.admission import QuarantineList, issue_admission, save_quarantine, sign_quarantine
from dht.clock import TIME, pack_time
from dht.identity import Identity, fingerprint_words
from dht.invite import issue, parse
from dht.key_files import unseal
from dht.reach.bandwidth_probe import PROBE, PROBE_BACK
from dht.reach.dial_back import GREETING, KNOCK
from dht.reach.peer_store import PeerStore
from dht.records import GENESIS, HEAD, Genesis, PeerRecord, dht_key, sign_record, unpack, unpack_body, verify_record
from dht.records import pack as pack_record
from peer.consensus.aggregation.evidence import AggregationRules
from peer.consensus.aggregation.peer_history import NOTHING, NormStats, PeerHistory
from peer.consensus.codec.codec import FORMATS, Codec
from peer.consensus.credit.tally import Counting, Tally
from peer.consensus.protocol.block import (
    VOID,
    Block,
    ContributionHeader,
    Restart,
    Roster,
    Stuck,
    Update,
    Vote,
    discount,
    part_outcomes,
)
from peer.consensus.protocol.electorate import instance_of
from peer.consensus.protocol.electorate import order as ballots
from peer.consensus.protocol.encoding import digest, digest_of, pack
from peer.consensus.protocol.head import genesis_anchor, next_anchor
from peer.consensus.protocol.layout import Part, assign, cut, divide, shares_of
from peer.consensus.protocol.merkle import path as merkle_path
from peer.consensus.protocol.merkle import root as merkle_root
from peer.consensus.protocol.messages import (
    _TYPES,
    BallotId,
    Blocks,
    EquivocationProof,
    GetBlocks,
    GetMeans,
    GetObjects,
    Heartbeat,
    MeanData,
    Message,
    Nack,
    ObjectData,
    Objection,
    PartData,
    Prepare,
    Promise,
    Propose,
    Reassign,
    Restarted,
    RosterSaid,
    RowDispute,
    Start,
    StuckSaid,
    VoteCast,
    decode,
    encode,
)
from peer.consensus.protocol.norms import PartNorms, declare
from peer.consensus.rounds.interface import BufferPart, ReducePart
from peer.consensus.rounds.state import Acceptor
from peer.network.link.gatekeeper import ADMISSION, ADMIT, ORDERS
from peer.network.link.link import RunKeys
from peer.network.link.network_stats import DISTANCES, RoundTrips
from peer.network.link.reduction import ReductionWorker
from peer.network.sync.blob_server import CHUNK, MANIFEST, ask_chunk
from peer.network.sync.chain_status import CHAIN_STATUS, ChainStatus, SnapshotOffer, ask_chain_status
from peer.network.sync.run_discovery import LAYERS
from peer.node.control import saved_settings as store
from peer.node.control.saved_settings import write as write_settings
from peer.node.control.saved_settings import write_wish
from peer.node.control.server import Commands, ControlServer
from peer.node.limits.desired_state import Desired, DesiredState, Intent
from peer.node.store.chain import ChainStore
from peer.node.store.contributions import Contribution, WorkStats, write_contribution
from peer.node.store.run_directory import ChainBase, genesis_head
from peer.node.store.snapshots import SnapshotManifest
from peer.node.store.snapshots import write as write_snapshot
from peer.node.telemetry.reporter import Reporter
from peer.schema.events import (
    AlertRaised,
    BoardSeen,
    CheckpointWritten,
    ClusterFormed,
    DeviceMeasured,
    DeviceReported,
    Evaluated,
    Event,
    EventLine,
    InnerProgressed,
    InviteIssued,
    MessageRefused,
    NetworkMeasured,
    PeerIntroduced,
    PeerStarted,
    PeerStateChanged,
    PeerStopped,
    PenaltyImposed,
    PhaseEntered,
    ReportReceived,
    RoundAborted,
    RoundCommitted,
    RoundForecast,
    RoundStalled,
    RoundStarted,
    RoundTripsReported,
    SampleWritten,
    SettingsChanged,
    StagesMeasured,
    TransferProgressed,
    format_line,
    parse_line,
)
from peer.schema.live_settings import LiveSettings
from peer.schema.settings import PeerSettings
from peer.schema.spec import SHIPPED, RunSpec, dump, load
from peer.tools.watch.watch_session import GUEST
from peer.training.checkpoint.capture import Capture, LayerCapture
from peer.training.checkpoint.checkpoint import Checkpoints
from peer.training.data.data_shards import Document
from peer.training.data.sampler import ShardSampler
from peer.training.data.source import MemorySource
from peer.training.data.tokenizer import load_tokenizer
from peer.training.model.build import build
from peer.training.model.flat_parameters import FlatParameters
from peer.training.outer.apply import LayerUpdate
from peer.training.outer.kernels import TorchKernels
from peer.training.outer.layer_tensors import LayerTensors
from peer.training.outer.outer_state import OuterState
from peer.training.outer.outer_step import advance
from peer.training.train.autotune_result import Tuned, TuneKey
from peer.training.train.round_vectors import RoundVectors
from peer.training.train.trainer import LocalTrainer
from tests.peer.consensus.rounds.build import PARTS as MODEL_PARTS
from tests.peer.consensus.rounds.build import header as model_pledge
from tests.peer.consensus.rounds.build import update as model_update
from tests.peer.network.sync.donors import AtOnce
from tests.stepping import step
from tests.vectors import whole

FOLDER = Path(__file__).parent / "golden"
VALUES, EVENTS, TRANSCRIPT = FOLDER / "golden.json", FOLDER / "events.jsonl", FOLDER / "control.jsonl"

NOW = 1_764_000_000.0
"""Unix time."""
RUN = bytes(range(32))
ORGANISER = Identity.from_seed(b"o" * 32)
PEERS = tuple(sorted((Identity.from_seed(bytes([seed]) * 32) for seed in (1, 2, 3)), key=lambda peer: peer.peer_id))
KEYS = tuple(RunKeys(peer, RUN) for peer in PEERS)
NAMES = tuple(peer.peer_id for peer in PEERS)
ADDRESS = f"/ip4/203.0.113.5/tcp/31337/p2p/{ORGANISER.peer_id}"
GENESIS_BODY = Genesis(run=RUN, founders=NAMES, state=digest("state"))
START = genesis_head(GENESIS_BODY)
PLACE = BallotId(START.anchor, START.instance, 2)
PARTS = cut((10, 7, 3), 6)
PAYLOADS = tuple(bytes([number]) * 8 for number in range(len(PARTS)))
SEALED = (
    b"hfkey1:AAECAwQFBgcICQoLDA0ODwABAgMEBQYHCAkKC_AWHTmASvDsvHzQdKQzrMFJWZ3uTlCBeq5NJAVh50nzihM"
    b"qUmHK3Sbsqn6bjeMs2hG61eNBwvKNEN1P52XtovOT2c8WaH6AEyAGDNryK03f7Rg6EA=="
)
"""The organiser's key under a passphrase."""


def told(raw: bytes) -> str:
    """Some bytes for a diff: in hex, or by their number and digest where they are many."""
    return raw.hex() if len(raw) <= 128 else f"{len(raw)} bytes {hashlib.blake2b(raw, digest_size=16).hexdigest()}"


def told_files(folder: Path, pattern: str = "*") -> dict[str, str]:
    """Every file below, by its name."""
    files = sorted(path for path in folder.rglob(pattern) if path.is_file())
    return {path.relative_to(folder).as_posix(): told(path.read_bytes()) for path in files}


def told_tensors(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Name, shape, dtype and bytes."""
    return {name: f"{kind_of(tensor)} {told(octets_of(tensor))}" for name, tensor in sorted(tensors.items())}


def kind_of(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def octets_of(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def drawn(seed: int, size: int) -> Any:
    """float32 values of many magnitudes, the same with every numpy and on every processor."""
    raw = np.random.PCG64(seed).random_raw(size)
    unit = (raw >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)
    return np.ldexp(unit, -(raw & np.uint64(7)).astype(np.int32)).astype(np.float32)


# ---- runs, models and data ----


def specs(folder: Path) -> Any:
    """The hash by which peers of a run know each other, and the TOML that they send each other."""
    return {name: [load(name).digest().hex(), told(dump(load(name)).encode())] for name in SHIPPED}


def first_anchors(folder: Path) -> Any:
    """From PCG64's raw draws."""
    flats = {name: FlatParameters(build(load(name))) for name in ("micro", "tiny")}
    return {name: [flat.size, OuterState.initial(flat.by_layer()).state_digest().hex()] for name, flat in flats.items()}


def layouts(folder: Path) -> Any:
    """How a model is cut and shared out, who leads, who reduces what, who proves what."""
    parts = cut((40, 7, 90, 25, 25), 16)
    leaves = [digest(number) for number in range(5)]
    return {
        "cut": str([(part.layer, part.start, part.size) for part in parts]),
        "divide": [str((item.numbers, item.layers, item.rows)) for item in divide(parts, 3)],
        "assign": [
            str([NAMES.index(name) for name in assign(parts, NAMES, shares_of((0, 5_000, 90_000)), turn)])
            for turn in range(3)
        ],
        "order": str([NAMES.index(name) for name in ballots(dict(zip(NAMES, (2, 0, 0), strict=True)))]),
        "genesis": genesis_anchor(RUN, NAMES, digest("state")).hex(),
        "next": next_anchor(START.anchor, digest("update")).hex(),
        "instance": instance_of(START.anchor, NAMES[:2]).hex(),
        "root": merkle_root(leaves).hex(),
        "path": [sibling.hex() for sibling in merkle_path(leaves, 4)],
        "discount": str([discount(age, 16) for age in range(18)]),
    }


def batches(folder: Path) -> Any:
    """Which shards a peer reads, in which order, over two passes; and what is held out."""
    spec = small_spec("corpus")
    documents = [Document(f"{number}.txt", f"{number} {'lorem ipsum ' * 40}") for number in range(60)]
    source = MemorySource(documents, load_tokenizer("bytes"), spec)
    mine = ShardSampler(source, spec, NAMES[0], NAMES, {3: 2, 17: 40})
    found = {"first": told(octets_of(mine.next(8)))}
    mine.mark()
    return found | {
        "more": told(octets_of(mine.next(900))), "ranges": str(mine.ranges()),
        "state": told(json.dumps(mine.state()).encode()),
        "held out": told(source.held_out().astype("<i8").tobytes()), "windows": sum(source.windows.values()),
    }  # fmt: skip


def small_spec(path: str, **codec: Any) -> RunSpec:
    """The micro spec, shrunk further."""
    micro = load("micro")
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return dataclasses.replace(
        micro,
        model=dataclasses.replace(micro.model, context=16, config=micro.model.config | small),
        data=dataclasses.replace(micro.data, source="files", path=path, held_out_every=4, eval_sequences=4),
        inner=dataclasses.replace(micro.inner, sequences=2),
        codec=dataclasses.replace(micro.codec, **({"wire": "float16", "part_elements": 512} | codec)),
    )


# ---- numbers that travel, and what they do to an anchor ----


def codecs(folder: Path) -> Any:
    """The bytes of each encoding, and what they are read as, also where numbers are none, huge, tiny or all alike."""
    values = drawn(7, 3 * 4096 + 70)
    values[:8] = (0, -0.0, np.nan, np.inf, -np.inf, 1e38, 1e-40, 65_520)
    values[4096:8192] = 0
    values[8192:12288] /= 4
    values[8192:8300] = 0.501953125  # in the middle between two levels
    found = {}
    for wire in FORMATS:
        codec = Codec(wire)
        with np.errstate(all="ignore"):
            payload = codec.encode(values)
            found[wire] = [told(payload), told(codec.decode(payload).astype("<f4").tobytes()), codec.of_means.wire]
    return found


@dataclasses.dataclass
class Site:
    """One peer's vectors."""

    keys: RunKeys
    folder: Path
    vectors: RoundVectors

    @property
    def me(self) -> str:
        return self.keys.identity.peer_id

    def learn(self, seed: int) -> None:
        """As inner steps would."""
        flat = self.vectors.flat
        flat.copy_from(flat.new() - torch.from_numpy(drawn(seed, flat.size)) / 64)

    def freeze(self, anchor: bytes, parts: tuple[Part, ...], codec: Codec, effort: WorkStats) -> Contribution:
        kernels, layer = TorchKernels(codec), self.vectors.layer
        for number in range(len(self.vectors.flat.layers)):
            kernels.progress(layer(number))
        write_contribution(self.folder, anchor, (kernels.encode(layer(part.layer), part) for part in parts), effort)
        return Contribution(self.folder, anchor, parts, codec)


class Means:
    """The encoded means of all rounds."""

    def __init__(self) -> None:
        self.payloads: dict[bytes, bytes] = {}

    def store(self, name: bytes, payload: bytes, done: Callable[[], None]) -> None:
        self.payloads[name] = payload
        done()

    def load(self, name: bytes) -> bytes | None:
        return self.payloads.get(name)


FIRST_ROUND = 3
"""Of a momentum that grows over four rounds."""


def site_of(keys: RunKeys, folder: Path) -> Site:
    """All of them stand at one anchor."""
    flat = FlatParameters(nn.Sequential(nn.Linear(70, 60), nn.Linear(130, 70), nn.Linear(10, 9)))
    theta, momentum = (torch.from_numpy(drawn(seed, flat.size)) for seed in (1, 2))
    flat.copy_from(theta)
    layers = [layer.size for layer in flat.layers]
    where = folder / keys.identity.peer_id
    where.mkdir()
    return Site(
        keys,
        where,
        RoundVectors(
            flat, OuterState(theta.split(layers), (momentum / 64).split(layers), FIRST_ROUND, {5: 7}), torch.empty
        ),
    )


def three_rounds(folder: Path, wire: str, fragments: int, own: float | None = None) -> Any:
    """Three peers: encode, weighted mean, decode, outer step, settlement; the update is decided by hand.

    In the second round a peer's bytes of a part do not come, in the third a part is void or refused. With `own` they
    train on meanwhile and merge.
    """
    spec = small_spec("corpus", wire=wire, part_elements=4096)
    spec = dataclasses.replace(spec, round=dataclasses.replace(spec.round, fragments=fragments))
    sites, means, codec = [site_of(keys, folder) for keys in KEYS], Means(), Codec(wire)
    parts = cut([layer.size for layer in sites[0].vectors.flat.layers], spec.codec.part_elements)
    name, found = START.anchor, []
    lasts: dict[Part, bytes] = {}
    for turn in range(3):
        round = FIRST_ROUND + turn
        pieces = divide(parts, fragments)[round % fragments].parts
        offers = offered(sites, turn, name, pieces, codec, goes_on=own is not None)
        contributors = [0b111] * len(pieces)
        contributors[0] = (0b111, 0b011, 0b111)[turn]
        contributors[-1] = (0b111, 0b111, 0 if fragments == 1 else 0b111)[turn]
        names = [
            VOID if turn == 2 and part == len(pieces) - 1
            else mean_of(part, contributors[part], offers, codec, means, lasts.get(piece, VOID))
            for part, piece in enumerate(pieces)
        ]  # fmt: skip
        lasts |= {piece: named for piece, named in zip(pieces, names, strict=True) if named != VOID}
        members = tuple(
            offer.header(site.me, 1000 * index).signed(site.keys)
            for index, (site, offer) in enumerate(zip(sites, offers, strict=True))
        )
        update = Update(
            parent=name, round=round + 1, time=int(NOW) + turn, members=members, elect=NAMES, parts=tuple(names),
            contributors=tuple(contributors), weights=((30_000, 20_000, 15_536),), penalties=(), weight=3 * round,
            ballot=0, coordinator=NAMES[0],
        )  # fmt: skip
        bare = {
            named: codec.without_rows(means.payloads[named], piece.size)
            for named, piece in zip(names, pieces, strict=True) if named != VOID
        }  # fmt: skip
        at_once = copy.deepcopy(sites[0].vectors.anchor)
        advance(at_once, update, spec, parts, means.payloads.__getitem__)
        for site, mine in zip(sites, offers, strict=True):
            LayerUpdate(
                spec=spec, update=update, means=bare, mine=mine,
                outcomes=part_outcomes(update, site.me, True), parts=pieces,
                layers=range(len(site.vectors.flat.layers)), layer=site.vectors.layer,
                kernels=TorchKernels(codec), own=own,
            ).apply()  # fmt: skip
            site.vectors.anchor.arrive([item for member in update.members for item in member.ranges], spec.windows_most)
            assert site.vectors.anchor.state_digest() == at_once.state_digest()
        found.append([update.digest.hex(), at_once.state_digest().hex()])
        name = next_anchor(name, update.digest)
    return {
        "rounds": found, "residuals": [told(octets_of(whole(site.vectors.residual))) for site in sites],
        "local": [told(octets_of(site.vectors.flat.new())) for site in sites], "x": told_files(sites[0].folder),
    }  # fmt: skip


def offered(
    sites: Sequence[Site], turn: int, anchor: bytes, pieces: tuple[Part, ...], codec: Codec, *, goes_on: bool
) -> list[Contribution]:
    """What each of them has learned; if it `goes_on`, it has learned more since."""
    offers = []
    for index, site in enumerate(sites):
        site.learn(100 * turn + index)
        effort = WorkStats(1000 + index, 10 * index, ((index, turn, turn + 2),), turn)
        offers.append(site.freeze(anchor, pieces, codec, effort))
        if goes_on:
            site.learn(100 * turn + index + 50)
    return offers


def mean_of(
    part: int, contributors: int, offers: Sequence[Contribution], codec: Codec, means: Means, last: bytes
) -> bytes:
    """As a reducer makes it, from the encoded bytes; drawn towards the last mean, if there is one."""
    reducer, done = ReductionWorker(codec, means, AtOnce(), lambda call: call()), []
    here = [index for index in range(len(offers)) if contributors >> index & 1]
    for index in here:
        reducer.keep(BufferPart(PLACE, NAMES[index], part, offers[index].payload(part), offers[index].path(part)))
    weights = (30_000, 20_000, 15_536)
    missing = sum(weights) - sum(weights[index] for index in here)
    reducer.reduce(
        ReducePart(
            PLACE, part, contributors, tuple(NAMES[index] for index in here), tuple(weights[index] for index in here),
            missing=missing, scale=60_000 if last else 65_536, pull=3_000 if last else 0, direction=last,
            rows=tuple(NAMES[index] for index in here), declared=(8.0,) * len(here),
        ),
        done.append,
    )  # fmt: skip
    (named,) = done
    return named


# ---- what is signed ----


def identities(folder: Path) -> Any:
    """Peer ids, their words, key files, and a signature."""
    ORGANISER.save(folder / "identity.key")
    return {
        "ids": NAMES, "words": fingerprint_words(ORGANISER.peer_id), "files": told_files(folder),
        "signature": ORGANISER.sign(RUN, "kind", b"payload").hex(),
    }  # fmt: skip


def sealed_keys(folder: Path) -> Any:
    """A copy that somebody made opens."""
    return unseal(SEALED, "correct horse", "a copy").peer_id


def head_record(**more: Any) -> PeerRecord:
    return PeerRecord(
        run=RUN, anchor=START.anchor, round=7, weight=21, state=digest("state"), ready=True, tokens=4096,
        steps=40, leaving=False, name="älice", version="0.1.0", **more,
    )  # fmt: skip


def board_records(folder: Path) -> Any:
    """What lies on the board, and under which keys."""
    full = head_record(
        addrs=(ADDRESS,), loss=2.5, tokens_per_s=1234.5, evaluated=2.25, evaluated_round=6, device_gb=24.0,
        admission=issue_admission(ORGANISER, RUN, NAMES[0], NOW).to_bytes(), orders=3, relays=(b"k" * 32,),
    )  # fmt: skip
    bodies = {"plain": (HEAD, head_record()), "full": (HEAD, full), "genesis": (GENESIS, GENESIS_BODY)}
    found = {}
    for name, (kind, body) in bodies.items():
        record = sign_record(ORGANISER, RUN, kind, body.pack(), NOW)
        assert verify_record(unpack(pack_record(record)), RUN)
        assert unpack_body(unpack(pack_record(record))) == body
        found[name] = [body.pack().hex(), told(pack_record(record)), record.signature.hex()]
    return found | {topic: dht_key(topic, RUN) for topic in (HEAD, GENESIS)}


def invites(folder: Path) -> Any:
    """In the form that people copy."""
    common = {"run": "micro", "spec_hash": RUN, "addrs": (ADDRESS,)}
    texts = [
        issue(ORGANISER, **common),
        issue(ORGANISER, **common, token=b"t" * 16, once=True, expires=NOW),
        issue(ORGANISER, **common, token=b"u" * 32),
    ]
    assert [parse(text, 0.0).text for text in texts] == texts
    return texts


def organisers_word(folder: Path) -> Any:
    """Admissions, and who is in quarantine."""
    save_quarantine(
        folder / "quarantine", sign_quarantine(ORGANISER, RUN, 4, {NAMES[1]: "it läuft heiß", NAMES[0]: "spam"})
    )
    return {
        "for ever": issue_admission(ORGANISER, RUN, NAMES[0]).to_bytes().hex(),
        "until": issue_admission(ORGANISER, RUN, NAMES[0], NOW).to_bytes().hex(),
        "orders": (folder / "quarantine").read_bytes().hex(),
        "nobody": sign_quarantine(ORGANISER, RUN, 5, {}).to_bytes().hex(),
    }


def doors(folder: Path) -> Any:
    """What the organiser's node answers to whoever shows an invite, and what it writes down."""
    text = issue(ORGANISER, run="micro", spec_hash=RUN, addrs=(ADDRESS,), token=b"t" * 16, once=True)
    book, nobody = AdmissionBook(folder, ORGANISER, RUN), QuarantineList()
    shown = ((NAMES[0], text), (NAMES[1], text), (NAMES[0], text), (NAMES[2], ""))
    return [book.answer(peer, shows, nobody, NOW).to_bytes().hex() for peer, shows in shown] + [told_files(folder)]


# ---- what is decided ----


def norms_of(parts: tuple[Part, ...], square: float, dot: float, direction: float) -> bytes:
    """What somebody declares whose parts all come to this."""
    figures = dict.fromkeys(range(len(parts)), PartNorms(square, dot, direction))
    return declare(divide(parts, 1)[0], figures)


def header(index: int, **changes: Any) -> ContributionHeader:
    leaves = [digest(NAMES[index], part) for part in range(len(PARTS))]
    plain = ContributionHeader(
        NAMES[index], START.anchor, merkle_root(leaves), 1000 + index, 40, 10**7, False, ((index, 0, 5),), 1,
        norms=norms_of(PARTS, 1.0 + index, 0.25 * index, 4.0),
    )  # fmt: skip
    return dataclasses.replace(plain, **changes).signed(KEYS[index])


MEMBERS = (
    header(0), header(1, root=b"", ranges=(), leaving=True, norms=b"", away=(NAMES[2],)),
    header(2, reports=((NAMES[1], "es log"),)),
)  # fmt: skip
MEAN = MeanData(
    PLACE, 1, 2, NAMES[0], 0b101, digest_of(PAYLOADS[2]), b"", PAYLOADS[2], digest("basis")
).signed(KEYS[0])  # fmt: skip
UPDATE = Update(
    parent=START.anchor,
    round=1,
    time=int(NOW),
    members=MEMBERS,
    elect=(NAMES[0], NAMES[2]),
    parts=tuple(VOID if number == 3 else digest_of(payload) for number, payload in enumerate(PAYLOADS)),
    contributors=(0b101, 0b001, 0b100, 0b101, 0b101)[: len(PARTS)],
    weights=((65_536, 0, 0), (1, 0, 65_535), (0, 0, 0)),
    penalties=((NAMES[1], "MISDECLARED", 0, 9, -1, "zwei sahen es"), (NAMES[2], "LATE", 65_000, 2, 1, "")),
    weight=3,
    ballot=2,
    coordinator=NAMES[0],
    waited=(1000, 2000, 3000, 4000),
    took=((1, 2, 3, 4), (5, (1 << 32) - 1, (1 << 32) - 2, 0), (9, 9, 9, 9)),
    scales=(65_536, 1, 0),
    pulls=(0, 0, 4096),
    records=(PeerHistory(NAMES[0], 1, (NormStats(1.5, 0.25, 4, 1), NOTHING, NOTHING), b"8 bytes."),),
)
PROPOSED = KEYS[0].sign("propose", pack((PLACE.packed(), UPDATE.digest)))


def vote(index: int, **changes: Any) -> Vote:
    plain = Vote(NAMES[index], START.instance, 2, UPDATE.digest, PROPOSED)
    return dataclasses.replace(plain, **changes).signed(KEYS[index])


BLOCK = Block(UPDATE, (vote(0), vote(2)))
PREPARED = (vote(0, phase=1), vote(2, phase=1))
STUCK = Stuck(NAMES[0], START.anchor, START.electorate, 1, (2, UPDATE.digest), PREPARED).signed(KEYS[0])
RESTART = Restart(START.anchor, 1, (STUCK,), forced=True).signed(RunKeys(ORGANISER, RUN))
ROSTER = Roster(3, NAMES[:2], NAMES[2:], b"s" * 64)


def decisions(folder: Path) -> Any:
    """Pledges, means, an update and its certificate."""
    assert all(member.genuine(KEYS[0]) for member in MEMBERS)
    assert MEAN.genuine(KEYS[1])
    assert all(item.genuine(KEYS[1]) for item in BLOCK.votes)
    assert Update.from_bytes(UPDATE.to_bytes()) == UPDATE
    assert Block.from_bytes(BLOCK.to_bytes()) == BLOCK
    return {
        "headers": [[told(member.payload()), member.signature.hex()] for member in MEMBERS],
        "mean": [told(MEAN.signed_payload()), MEAN.signature.hex()], "proposal": PROPOSED.hex(),
        "update": [UPDATE.to_bytes().hex(), UPDATE.digest.hex()],
        "votes": [[told(item.payload()), item.signature.hex()] for item in BLOCK.votes],
        "block": told(BLOCK.to_bytes()), "anchor": START.after(UPDATE).anchor.hex(),
        "stuck": [told(STUCK.payload()), STUCK.signature.hex()],
        "restarted block": told(Block(UPDATE, PREPARED, (RESTART,)).to_bytes()),
    }  # fmt: skip


def judged(folder: Path) -> Any:
    """What each reducer of the spec makes of the same norms: weights, scales, pulls, records, penalties."""
    said = ((1.0, 0.5), (0.996, 0.5), (1.03, 3.0))
    members = tuple(
        model_pledge(f"p{number}", tokens=100 * (number + 1), norms=norms_of(MODEL_PARTS, square, dot, 1.0))
        for number, (square, dot) in enumerate(said)
    )
    found = {}
    for reducer in ("mean", "edit", "centered-clip", "agreement"):
        made = model_update(members=members, aggregation=AggregationRules(rule=reducer, warmup_rounds=1))
        found[reducer] = [str((made.weights, made.scales, made.pulls)), str(made.penalties), made.digest.hex()]
    return found


ONE_MORE = dataclasses.replace(UPDATE, time=0)
MESSAGES: tuple[Message, ...] = (
    Prepare(PLACE),
    Promise(PLACE, MEMBERS[0]),
    Promise(PLACE, MEMBERS[1], (1, UPDATE.digest), PREPARED),
    Nack(PLACE, 7),
    Start(PLACE, MEMBERS),
    PartData(PLACE, 0, 2, (digest("l"), digest("r")), b"payload"),
    PartData(PLACE, 1, 1, (), b"payload"),
    MEAN,
    GetMeans(PLACE, (0, 2)),
    Reassign(PLACE, ((0, NAMES[1]),)),
    Propose(PLACE, UPDATE, PROPOSED),
    Propose(PLACE, UPDATE, PROPOSED, PREPARED),
    VoteCast(PLACE, vote(0)),
    GetObjects((digest("a"), digest("b"))),
    ObjectData(b"", b"payload"),
    GetBlocks((START.anchor, digest("b"))),
    Blocks((BLOCK,)),
    Blocks(()),
    Heartbeat(START.anchor, 3, 9, digest("s"), True, 100, 10, False, "älice", 4, 0b101, 70),
    EquivocationProof(PLACE, (UPDATE.digest, PROPOSED), (ONE_MORE.digest, b"s" * 64)),
    RowDispute(PLACE, 1, MEAN.digest, 0b101, (digest("l"), digest("r")), b"payload", NAMES[2]),
    Objection(PLACE, 1, MEAN.digest, 0b101),
    StuckSaid(STUCK),
    Restarted(RESTART),
    RosterSaid(ROSTER),
)


def frames(folder: Path) -> Any:
    """One of each kind that peers send each other in a round, at least."""
    kinds = {kind.__name__ for kind in _TYPES.values()}
    assert {type(message).__name__ for message in MESSAGES} == kinds
    assert all(decode(encode(message)) == message for message in MESSAGES)
    return [[message.code, message.cap_bytes, told(encode(message))] for message in MESSAGES]


# ---- files of a run directory ----


def chains(folder: Path) -> Any:
    """Blocks, the pointer, the base, the tally, objects and the voter's memory, after enough rounds for all of it."""
    disk = ChainStore(
        folder, START, PARTS, Codec("float32"), AtOnce(), lambda call: call(), keep_rounds=3, quota_bytes=0
    )
    for turn in range(6):
        write_one_snapshot(folder, disk)
        follows = dataclasses.replace(
            UPDATE,
            parent=disk.head.anchor,
            round=disk.head.round + 1,
            time=turn,
            parts=(VOID, digest_of(PAYLOADS[turn % 3]), *UPDATE.parts[2:]),
            weight=disk.head.weight + 2,
        )
        for payload in PAYLOADS:
            disk.save_object(digest_of(payload), payload)
        disk.commit(Block(follows, BLOCK.votes), disk.head.after(follows), frozenset())
    disk.save_object(UPDATE.digest, UPDATE.to_bytes())
    disk.save_acceptor(Acceptor(disk.head.anchor, disk.head.instance, 4, accepted=(3, UPDATE.digest), stuck=STUCK))
    disk.save_acceptor(Acceptor(disk.head.anchor, digest("restarted"), 1, restarts=(RESTART,)))
    return told_files(folder)


def write_one_snapshot(folder: Path, disk: ChainStore) -> None:
    if disk.head.round in (2, 4, 5):
        theta, momentum = drawn(disk.head.round, 5), drawn(disk.head.round + 10, 5)
        layers = ([torch.from_numpy(vector[:3]), torch.from_numpy(vector[3:])] for vector in (theta, momentum))
        anchor = OuterState(*layers, disk.head.round, {3: 7, 1: 20})
        base = ChainBase.after(disk.updates_up_to(disk.head.anchor))
        state = anchor.state_digest()
        write_snapshot(folder, anchor.sizes, anchor.chunks, run=RUN, base=base, cursors={3: 7, 1: 20}, state=state)


def bases(folder: Path) -> Any:
    """A base, a tally, and the manifest of a snapshot of several chunks."""
    base = ChainBase.after((UPDATE,))
    counting = Counting(parts=(PARTS,), tokens_cap=2000)
    chunks = tuple(digest(number) for number in range(6))
    manifest = SnapshotManifest(run=RUN, base=base, cursors=((1, 20), (3, 7)), layers=(300_000, 100), chunks=chunks)
    assert SnapshotManifest.from_bytes(manifest.to_bytes()) == manifest
    return {
        "base": told(base.to_bytes()), "manifest": [told(manifest.to_bytes()), manifest.name, manifest.state.hex()],
        "tally": told(Tally.after(START).plus(counting.of(UPDATE), base.head).to_bytes()),
    }  # fmt: skip


def questions(folder: Path) -> Any:
    """What peers ask each other besides the round, mostly newcomers, under which names, and answers."""
    distances = RoundTrips()
    for peer, seconds in zip(NAMES, (0.01, 0.25, 0.5), strict=True):
        distances.measured(peer, seconds)
    offer = SnapshotOffer(round=16, anchor=START.anchor, manifest=digest("manifest"), vector_bytes=2_400_000)
    return {
        "ask standing": told(ask_chain_status((START.anchor, digest("b")))),
        "ask chunk": told(ask_chunk(digest("m"), 300)),
        "standing": told(ChainStatus(round=20, shared=-1, offers=(offer,)).to_bytes()),
        "distances": told(distances.told(lambda peer: True)),
        "time": told(pack_time(NOW)),
        "greeting": told(GREETING),
        "names": [
            CHAIN_STATUS,
            MANIFEST,
            CHUNK,
            DISTANCES,
            LAYERS,
            ADMIT,
            ADMISSION,
            ORDERS,
            GUEST,
            KNOCK,
            PROBE,
            PROBE_BACK,
            TIME,
        ],
    }


def own_files(folder: Path) -> Any:
    """What a peer keeps for its next start besides the chain."""
    PeerStore(folder / "peers.json").note(ORGANISER.peer_id, (ADDRESS,))
    write_wish(folder, Desired(Intent.FINISH, NOW))
    write_settings(
        folder, PeerSettings(name="älice", min_step_s=0.5, listen=("/ip4/127.0.0.1/tcp/0",), upload_mbps=2.5)
    )
    basis = TuneKey(run=RUN.hex(), device="cuda", name="a card", torch="2.0", homefires="0.1.0")
    (folder / "tuned.json").write_text(Tuned(basis=basis, sequences=4, step_s=0.5, tokens_per_s=1e3).to_json())
    return {name: (folder / name).read_text() for name in told_files(folder)}


def checkpoints_by_hand(folder: Path) -> Any:
    """The files of one, and the sums beside them: a layer of which all is stored, one right after an update."""
    values, fresh = torch.from_numpy(drawn(3, 50)), torch.zeros(50)
    layers = [
        LayerCapture.of(
            LayerTensors(
                first=0, local=((slice(0, 20), local[:20]), (slice(20, 50), local[20:])), start=start,
                residual=values / 2, theta=values, momentum=fresh,
            ),
            {"adamw.0.step": values[0], "adamw.0.exp_avg": values[:20].view(4, 5), "adamw.1.none": torch.empty(0)},
            sparse=False,
        )
        for start, local in ((fresh, values), (values - values / 2, values - values / 2))
    ]  # fmt: skip
    state = {"version": 4, "run": "run", "peer": NAMES[0], "round": 7, "anchor": START.anchor.hex(), "share": 0.1}
    rest = {"generator.cpu": torch.arange(9).to(torch.uint8), "unread": torch.arange(6).view(2, 3)}
    shelf = Checkpoints(folder / "checkpoints")
    shelf.write(Capture(state=state, layers=layers, rest=rest, device=torch.device("cpu")))
    return told_files(folder)


def checkpoints(folder: Path) -> Any:
    """Of a trainer: every byte before its first step, and names, shapes and kinds after it."""
    corpus = folder / "corpus"
    corpus.mkdir()
    for number in range(40):
        letters = np.random.PCG64(number).random_raw(3000) % np.uint64(26) + np.uint64(97)
        (corpus / f"{number}.txt").write_bytes(letters.astype(np.uint8).tobytes())
    found = []
    with chdir(folder):  # the spec names where the data lie, and its hash is in the checkpoint
        trainer = LocalTrainer(
            small_spec("corpus"), NAMES[0], folder / "contributions", torch.device("cpu"), data_path="corpus"
        )
        trainer.begin_round(NAMES[:2])
        shelf = Checkpoints(folder / "checkpoints")
        for _ in range(2):
            path = shelf.write(trainer.checkpoint(START.anchor, (16, START.anchor)))
            files = {file.stem: load_file(file) for file in sorted(path.glob("*.safetensors"))}
            found.append((files, (path / "state.json").read_text()))
            step(trainer)
    (before, _), (after, _) = found
    seeded = {
        file: told_tensors({name: tensor for name, tensor in tensors.items() if not name.startswith("generator.")})
        for file, tensors in before.items()
    }
    kinds = {
        file: {name: kind_of(tensor) for name, tensor in sorted(tensors.items())} for file, tensors in after.items()
    }
    return {"before": seeded, "after": kinds, "states": [state for _, state in found]}


# ---- what people's programs read ----

CONNECTION = {
    "peer": NAMES[1], "address": ADDRESS, "relayed": True, "bytes_sent": 1, "bytes_received": 2, "rtt_s": None,
}  # fmt: skip
PENALTY = {
    "about": NAMES[1], "code": "LATE", "layer": "", "evidence": "7 of 15", "factor": 0.4667, "until_round": 4,
}  # fmt: skip
REPORTED: tuple[Event, ...] = (
    PeerStarted(
        name="älice", version="0.1.0", device="cpu", parameters=102_976, directory="/a", rounds=8,
        settings={"listen": ["/ip4/127.0.0.1/tcp/0"], "min_step_s": 0.5}, trains="micro: llama on stdlib",
    ),
    InviteIssued(invite="hf1:abc"),
    PeerStateChanged(state="PAUSED", why="until the evening", until=NOW),
    InnerProgressed(round=3, step=1, steps=9, loss=2.5, tokens=1, tokens_per_s=1.5, learning_rate=1e-3),
    RoundStarted(round=3, steps=40),
    PhaseEntered(round=3, phase="prepare", deadline=NOW + 0.25, ballot=1, coordinator=NAMES[0]),
    ReportReceived(
        about=NAMES[1], round=3, ready=True, tokens=100, steps=10, name="bob", leaving=False, loss=2.5, evaluated=2.25,
        evaluated_round=2, tokens_per_s=12.5, device_gb=24.0,
    ),
    PenaltyImposed(about=NAMES[1], code="ANOMALY", layer="model.layers.0", evidence="…", factor=0.0, until_round=9),
    RoundCommitted(
        round=3, digest="d3", state="s3", group=list(NAMES), weights={NAMES[0]: 40_000, NAMES[1]: 25_536},
        penalties=[PENALTY], tokens=4096, bytes_sent=1, bytes_received=2, round_s=8.5, exposed_s=1.0, void=1,
        norms={NAMES[0]: 3.5}, given={NAMES[0]: 4096}, outcomes={NAMES[0]: "accepted"}, uplinks={NAMES[1]: 20_000_000},
    ),
    RoundForecast(
        round=4, expected_s=8.0, low_s=6.5, high_s=11.0, took_s=8.5, foretold_s=8.25, late_s=-1.5, advice="none",
        run_left_s=80.0,
    ),
    RoundAborted(round=3, ballot=2, why="no quorum"),
    Evaluated(round=3, loss=2.25, tokens=1024, by_source={"talks": 1.75, "books": 2.75}),
    TransferProgressed(what="snapshot", source=NAMES[0], bytes_done=1 << 20, bytes_total=1 << 40),
    NetworkMeasured(
        addresses=[ADDRESS], reach="direct", bytes_sent=1, bytes_received=2, peers=[CONNECTION], disk_bytes=3,
        disk_quota_bytes=4, upload_bps=5,
    ),
    RoundTripsReported(about=NAMES[1], rtt_s={NAMES[0]: 0.0125}),
    DeviceReported(about=NAMES[1], device_gb=24.0),
    DeviceMeasured(
        cpu_percent=12.5, memory_bytes=1, gpu_percent=99.0, vram_used_bytes=2, vram_bytes=3, temperature_c=60.0,
        power_w=100.0, power_limit_w=200.0, fan_percent=30.0, throttled="heat",
    ),
    CheckpointWritten(round=3, path="/a/checkpoints/00000001", bytes=100),
    SettingsChanged(settings=dataclasses.asdict(PeerSettings())),
    ClusterFormed(
        epoch=7, lead=NAMES[0], stages=[{"peer": NAMES[0], "first": 0, "last": 2, "layers": "embed_tokens, block 0"}]
    ),
    StagesMeasured(step_s=0.5, stages=[{"peer": NAMES[0], "compute_s": 0.25, "wire_bytes": 4096}]),
    AlertRaised(level="warning", code="STALE", text="work was too old"),
    PeerStopped(why="killed", exit_code=-9),
    DeviceMeasured(),
    InnerProgressed(round=3, step=2, steps=9, loss=float("nan"), tokens=1, tokens_per_s=1.5, learning_rate=1e-300),
    MessageRefused(round=3, about=NAMES[1], rule="TIME", why="it is dated too far ahead"),
    RoundStalled(round=3, ballots=3, rule="TIME", about=NAMES[1], why="round 4 stands still after 3 ballots"),
    SampleWritten(round=3, prompt="Once", text=" upon a time ↵ there was"),
    BoardSeen(present=3, round=42),
    PeerIntroduced(name="älice", trains="micro: llama on stdlib"),
)  # fmt: skip


def lines() -> list[EventLine]:
    return [
        EventLine(seq=number, t=NOW + number / 7, run="micro", peer=NAMES[0], event=event)
        for number, event in enumerate(REPORTED)
    ]


def asked(folder: Path) -> Iterable[bytes]:
    """Requests to a peer's control socket and its answers, in turn, as bytes."""
    directory = folder / "p"
    (directory / "run").mkdir(mode=0o700, parents=True)
    numbers = iter(range(100))
    session = Reporter(
        lambda event: commands.note(next(numbers), event), chosen=LiveSettings(keep=partial(store.write, directory)),
        wishes=DesiredState(clock=lambda: NOW),
    )  # fmt: skip
    commands = Commands(session, "micro", NAMES[0], "alice", lambda: setattr(session, "stopping", True))
    for event in (REPORTED[0], REPORTED[4], REPORTED[3]):
        commands.note(next(numbers), event)
    session.say("TRAINING", "round 3")
    (directory / "events.jsonl").write_text("".join(f"{format_line(line)}\n" for line in lines()[:2]))
    requests: list[Any] = [
        {"cmd": "status"}, {"cmd": "pause"}, {"cmd": "resume"}, {"cmd": "finish"}, {"cmd": "snooze", "minutes": 30},
        {"cmd": "snooze", "minutes": -1}, {"cmd": "resume"}, {"cmd": "set", "values": {"min_step_s": 0.5}},
        {"cmd": "set", "values": {"name": "bob", "threads": 2}}, {"cmd": "set", "values": {"nmae": "bob"}},
        {"cmd": "set"}, {"cmd": "dance"}, {"cmd": "events", "from": -1}, {"cmd": "status", "v": 2},
        {"cmd": "status", "id": [7]}, "status", {"cmd": "leave"}, {"cmd": "leave", "id": "again"},
        {"cmd": "events", "from": 1},
    ]  # fmt: skip
    with chdir(directory), ControlServer(Path(), commands), closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.settimeout(60.0)
        connection.connect("run/control")
        answers = connection.makefile("rb")
        for number, request in enumerate(requests):
            if isinstance(request, dict):
                request = {"v": 1, "id": number} | request
            line = json.dumps(request).encode() + b"\n"
            connection.sendall(line)
            yield line
            yield answers.readline().replace(b'"pid":%d,' % os.getpid(), b'"pid":0,')
        yield answers.readline()  # the event that was asked for


# ---- the tests ----

QUICK: dict[str, Callable[[Path], Any]] = {
    each.__name__: each
    for each in (
        specs, layouts, batches, codecs, identities, board_records, invites, organisers_word, decisions, judged, frames,
        chains, bases, questions, doors, own_files, checkpoints_by_hand,
    )
} | {
    f"three_rounds {wire} {fragments}": lambda folder, wire=wire, fragments=fragments: three_rounds(
        folder, wire, fragments
    )
    for wire in ("float32", "float16", "int8", "int4", "sparse")
    for fragments in (1, 3)
} | {"three_rounds int4 1 streaming": lambda folder: three_rounds(folder, "int4", 1, own=0.5)}  # fmt: skip
SLOW: dict[str, Callable[[Path], Any]] = {each.__name__: each for each in (first_anchors, checkpoints, sealed_keys)}


def plain(value: Any) -> Any:
    """As JSON reads it."""
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_bytes_are_those_of_before(name: str, tmp_path: Path) -> None:
    assert plain((QUICK | SLOW)[name](tmp_path)) == json.loads(VALUES.read_text())[name]


def test_nothing_is_kept_that_nobody_compares() -> None:
    assert json.loads(VALUES.read_text()).keys() == {*QUICK, *SLOW}


def test_events_are_written_as_before() -> None:
    assert [format_line(line) for line in lines()] == EVENTS.read_text().splitlines()


def test_events_of_before_are_read() -> None:
    """One of each kind; what is read is written to the same line."""
    texts = EVENTS.read_text().splitlines()
    read = [parse_line(text) for text in texts]
    assert [line and format_line(line) for line in read] == texts
    ours = Event.__module__.partition(".")[0]
    kinds = {name for name, kind in Event.registry.items() if kind.__module__.partition(".")[0] == ours}
    assert {type(line.event).__name__ for line in read if line is not None} == kinds


@pytest.mark.outside
def test_a_peer_is_controlled_as_before(tmp_path: Path) -> None:
    assert list(asked(tmp_path)) == TRANSCRIPT.read_bytes().splitlines(keepends=True)


def write() -> None:
    """Take what is now for what is right."""
    found = {}
    for name, make in (QUICK | SLOW).items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = plain(make(Path(folder)))
    FOLDER.mkdir(exist_ok=True)
    VALUES.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    EVENTS.write_text("".join(f"{format_line(line)}\n" for line in lines()))
    with tempfile.TemporaryDirectory() as folder:
        TRANSCRIPT.write_bytes(b"".join(asked(Path(folder))))
    print(f"{len(found)} values are in {VALUES}", file=sys.stderr)


if __name__ == "__main__":
    write()
