"""A run that asks for an admission, and a peer that the organiser keeps out."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgpack
import pytest

from bootstrap.organiser import end_admission, keep_out, let_back, list_quarantine
from dht.errors import NotAdmitted
from dht.identity import Identity, fingerprint_words
from dht.invite import issue, parse
from peer.schema.events import AlertRaised, EventLine, PeerStopped
from peer.testing.child_process import HANG_S
from peer.testing.process_swarm import LOOPBACK, RealSwarm
from tests.swarm.conftest import LIGHT, RESTING

pytestmark = pytest.mark.swarm

QUICK = (*LIGHT, "round.max_train_s=20", "round.gather_s=4", "round.exchange_s=4", "round.ack_s=2")
INVITED = "admission.policy='invited'"
HURRY = {"peer.network.link.gatekeeper.HEAR_S": 2.0}


@pytest.fixture(scope="module")
def invited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSwarm]:
    """Three peers whose admissions last 24 seconds. Every test leaves them in the group."""
    folder, words = tmp_path_factory.mktemp("run"), ("--members-for", "0.4m")
    sets = (*QUICK, INVITED)
    with closing(RealSwarm(folder, 3, sets=sets, settings=RESTING, organiser=words, hurry=HURRY)) as run:
        run.until_round(2)
        yield run


def newest(run: RealSwarm, peer: int) -> int:
    return run.committed(peer)[-1].round


def organise(run: RealSwarm, what: Callable[..., str], *asked: str) -> str:
    """What `homefires invite` and `homefires quarantine` do, beside the running node."""
    return what(run.directory / "bootstrap", *asked)


def quarantine_of(line: EventLine, peer: str) -> bool:
    return isinstance(line.event, AlertRaised) and line.event.code == "QUARANTINE" and peer in line.event.text


def test_an_invited_run_takes_whom_its_organiser_admits_and_a_peer_in_quarantine_is_no_member(
    invited: RealSwarm, tmp_path: Path
) -> None:
    """An invite without a token admits nobody. Quarantine is shown to all with its reason, obeyed from the next
    round on, and over when it is lifted."""
    run, invite = invited, parse(invited.invite, 0.0)
    assert invite.token is not None
    assert (run.directory_of(0) / "admission").exists()
    assert_not_admitted(run, tmp_path)

    said = organise(run, keep_out, run.id_of(2), "sends noise")
    assert run.id_of(2) in said
    for other in (0, 1):
        heard = run.wait_for(other, lambda line: quarantine_of(line, run.id_of(2)))
        assert "sends noise" in heard.event.text
    assert "sends noise" in run.wait_for(2, lambda line: quarantine_of(line, "this peer")).event.text
    last = newest(run, 0)
    run.until_round(last + 4, by=(0, 1))
    assert run.group(last + 3) == run.group(last + 4) == {0, 1}

    organise(run, keep_out, run.id_of(1), "a mistake")
    organise(run, let_back, run.id_of(1))
    organise(run, let_back, run.id_of(2))
    run.until(lambda: 2 in run.committed(0)[-1].group, "the peer is not back in the group")
    assert organise(run, list_quarantine).startswith(
        f"nobody is in quarantine in micro of {fingerprint_words(invite.organiser)}"
    )
    run.assert_agreement()


def test_an_admission_is_renewed_while_its_peer_runs_and_ends_where_the_organiser_does_not_renew_it(
    invited: RealSwarm,
) -> None:
    """24 seconds each. Nobody notices a renewal; who gets none hears why, takes part until its admission ends, and
    then stops with the reason. The others go on."""
    run, guest = invited, invited.join()
    run.until(lambda: guest in run.committed(0)[-1].group, "the newcomer is in no group")
    everybody = (0, 1, 2, guest)
    first = [admission_ends(run, peer) for peer in everybody]
    run.until(
        lambda: all(admission_ends(run, peer) > before for peer, before in zip(everybody, first, strict=True)),
        "an admission is not renewed",
    )
    assert run.group(newest(run, 0)) == {*everybody}

    organise(run, end_admission, run.id_of(guest), "the project is over for guests")
    told = run.wait_for(guest, lambda line: isinstance(line.event, AlertRaised) and line.event.code == "ADMISSION")
    assert isinstance(told.event, AlertRaised)
    assert "no longer: the project is over for guests" in told.event.text
    assert run.ends(guest) == NotAdmitted.exit_code
    stopped = run.lines(guest)[-1].event
    assert isinstance(stopped, PeerStopped)
    assert "no longer: the project is over for guests" in stopped.why
    assert admission_ends(run, guest) < time.time() + 1
    last = newest(run, 0)
    run.until_round(last + 2, by=(0, 1, 2))
    assert run.group(last + 2) == {0, 1, 2}
    run.assert_agreement()


def admission_ends(run: RealSwarm, peer: int) -> float:
    """Unix time, from what lies in its folder."""
    expires, _ = msgpack.unpackb((run.directory_of(peer) / "admission").read_bytes())
    return float(expires)


def assert_not_admitted(run: RealSwarm, folder: Path) -> None:
    """Somebody knows the run and its addresses, but has no token of the organiser."""
    real = parse(run.invite, 0.0)
    organiser = Identity.load_or_create(run.directory / "bootstrap" / "identity.key")
    tokenless = issue(organiser, run=real.run, spec_hash=real.spec_hash, addrs=real.addrs)
    argv = [sys.executable, "-m", "peer", "join", tokenless, "--dir", str(folder / "stranger"), "--listen", LOOPBACK]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=HANG_S)
    assert ended.returncode == NotAdmitted.exit_code, ended.stderr
    assert "holds no token" in ended.stderr
