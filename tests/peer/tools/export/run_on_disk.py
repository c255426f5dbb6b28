"""A run directory as a peer leaves it, made by real trainers in one process and without a network."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dht.identity import Identity
from dht.records import GENESIS, Genesis, sign_record
from dht.records import pack as pack_record
from peer.consensus.codec.codec import Codec
from peer.consensus.codec.run_rules import rules_of
from peer.consensus.protocol import norms, penalties, validation
from peer.consensus.protocol.block import Block, Restart, Update, Vote
from peer.consensus.protocol.encoding import pack
from peer.consensus.protocol.head import ChainHead
from peer.consensus.protocol.layout import Part
from peer.network.link.link import RunKeys
from peer.node.store.chain import ChainStore
from peer.node.store.run_directory import genesis_head
from peer.schema import spec as specs
from peer.schema.events import Evaluated, Event, EventLine, RoundCommitted, format_line
from peer.schema.spec import RunSpec
from peer.testing.memory_peer import ModelKeys
from peer.training.train.trainer import LocalTrainer
from tests.decided import DecidedRound
from tests.stepping import step, submit

ROUNDS = 3
STEPS = 2
CPU = torch.device("cpu")
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
    "gpt2": {"n_embd": 16, "n_layer": 1, "n_head": 2},
}


@dataclass(frozen=True, kw_only=True)
class RunOnDisk:
    """The first of its peers, after some rounds; its trainer still holds the anchor."""

    directory: Path
    spec: RunSpec
    trainer: LocalTrainer
    identities: tuple[Identity, ...]

    @property
    def peers(self) -> tuple[str, ...]:
        return tuple(identity.peer_id for identity in self.identities)


def write_corpus(folder: Path) -> None:
    """Forty texts of letters, line breaks and letters of two bytes."""
    folder.mkdir()
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz  \n\néü"))
    for number, row in enumerate(np.random.default_rng(0).integers(0, len(letters), size=(40, 2000))):
        (folder / f"{number}.txt").write_text("".join(letters[row]))


def small_spec(corpus: Path, architecture: str, **model: Any) -> RunSpec:
    micro = specs.load("micro")
    table = {"architecture": architecture, "context": 16, "config": CONFIGS[architecture]} | model
    return dataclasses.replace(
        micro,
        model=dataclasses.replace(micro.model, **table),
        data=dataclasses.replace(micro.data, source="files", path=str(corpus), held_out_every=4, eval_sequences=40),
        inner=dataclasses.replace(micro.inner, sequences=2),
        codec=dataclasses.replace(micro.codec, wire="int8", part_elements=512),
    )


def make_run(root: Path, spec: RunSpec, rounds: int = ROUNDS, peers: int = 2, steps: int = STEPS) -> RunOnDisk:
    """Peers train and agree `rounds` times; everything that the first has on disk is there, duly signed."""
    seeds = (bytes([number] * 32) for number in range(1, peers + 1))
    identities = tuple(sorted(map(Identity.from_seed, seeds), key=lambda identity: identity.peer_id))
    names = tuple(identity.peer_id for identity in identities)
    trainers = [_trainer(spec, name, root / f"peer-{number}") for number, name in enumerate(names, 1)]
    directory = root / "peer-1"
    genesis = Genesis(run=spec.digest(), founders=names, state=trainers[0].anchor.state_digest())
    (directory / "genesis").write_bytes(signed_genesis(genesis))
    (directory / "spec.toml").write_text(specs.dump(spec))
    events: list[Event] = []
    with ThreadPoolExecutor(max_workers=1) as executor:
        disk = ChainStore(
            directory, genesis_head(genesis), trainers[0].parts, Codec(spec.codec.wire), executor, lambda call: call(),
            fragments=spec.round.fragments,
        )  # fmt: skip
        for _ in range(rounds):
            events += _one_round(disk, trainers, identities, steps)
    lines = [format_line(EventLine(seq=n, t=n, run="r", peer=names[0], event=event)) for n, event in enumerate(events)]
    (directory / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return RunOnDisk(directory=directory, spec=spec, trainer=trainers[0], identities=identities)


def signed_genesis(genesis: Genesis) -> bytes:
    """As the organiser puts it on the board."""
    return pack_record(sign_record(Identity.from_seed(b"o" * 32), genesis.run, GENESIS, genesis.pack(), 1e9))


def certify(
    update: Update, head: ChainHead, identities: Sequence[Identity], run: bytes, restart: Restart | None = None,
    *, sign_pledges: bool = True,
) -> Block:  # fmt: skip
    """The update after `head`, pledged to by its members and voted for by the electorate, or by those who restarted."""
    keys = {identity.peer_id: RunKeys(identity, run) for identity in identities}
    if sign_pledges:
        members = tuple(member.signed(keys[member.peer]) for member in update.members)
        update = dataclasses.replace(update, members=members)
    head = head if restart is None else head.restarted(restart)
    leader = keys[head.leader(update.ballot)]
    proposed = leader.sign("propose", pack(((head.anchor, head.instance, update.ballot), update.digest)))
    votes = (Vote(peer, head.instance, update.ballot, update.digest, proposed) for peer in head.electorate)
    return Block(
        update, tuple(vote.signed(keys[vote.voter]) for vote in votes), () if restart is None else (restart,)
    )  # fmt: skip


def judged(update: Update, head: ChainHead, spec: RunSpec, layout: Sequence[Part]) -> Update:
    """The same with all that follows from its members and `head`."""
    rules = rules_of(spec, layout, ModelKeys(""))
    judgement = norms.judgement_of(rules, head, update.members)
    weights, scales, pulls = norms.table_of(judgement)
    update = dataclasses.replace(
        update, weights=weights, scales=scales, pulls=pulls, records=judgement.records,
        coordinator=head.leader(update.ballot), roster=head.roster,
    )  # fmt: skip
    update = dataclasses.replace(update, tenures=validation.tenures_due(rules, head, update))
    return dataclasses.replace(update, penalties=penalties.due(rules, head, update, judgement.findings))


def _trainer(spec: RunSpec, peer: str, directory: Path) -> LocalTrainer:
    directory.mkdir()
    return LocalTrainer(spec, peer, directory / "contributions", CPU, data_path=spec.data.path)


def _one_round(
    disk: ChainStore, trainers: list[LocalTrainer], identities: Sequence[Identity], steps: int
) -> list[Event]:
    for trainer in trainers:
        trainer.begin_round([trainer.me for trainer in trainers])
        for _ in range(steps):
            step(trainer)
        submit(trainer, disk.head.anchor)
    first, spec = trainers[0], trainers[0].spec
    decided = DecidedRound(trainers, disk.head.anchor, state=first.state_digest(disk.head.anchor))
    for digest, payload in decided.objects.items():
        disk.save_object(digest, payload)
    weight = disk.head.weight + len(decided.update.members)
    update = dataclasses.replace(decided.update, weight=weight)
    update = judged(update, disk.head, spec, trainers[0].parts)
    block = certify(update, disk.head, identities, spec.digest())
    head = disk.head.after(block.update)
    disk.commit(block, head, frozenset())
    for trainer in trainers:
        trainer.apply(block.update, decided.objects.__getitem__)
    measured = trainers[0].evaluate()
    loss, tokens = measured.loss, measured.tokens
    committed = RoundCommitted(
        round=head.round, digest=head.anchor.hex(), state=trainers[0].anchor.state_digest().hex(), group=[],
        weights={}, penalties=[], tokens=0, bytes_sent=0, bytes_received=0, round_s=0.0, exposed_s=0.0,
    )  # fmt: skip
    return [committed, Evaluated(round=head.round, loss=loss, tokens=tokens, by_source=measured.by_source)]
