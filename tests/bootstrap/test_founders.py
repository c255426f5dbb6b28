"""Who founds a run, and that it is decided once."""

from dataclasses import replace
from pathlib import Path

import pytest

from bootstrap.config import BootstrapConfig
from bootstrap.founders import GenesisFile, look
from dht.errors import BadInput, RunMismatch
from dht.identity import Identity
from dht.records import Genesis, PeerRecord, unpack_body, verify_record
from peer.schema.spec import load

RUN = b"r" * 32
ORGANISER = Identity.from_seed(b"o" * 32)
NOW_S = 1_800_000_000.0
HEAD = PeerRecord(
    run=RUN,
    anchor=b"",
    round=-1,
    weight=0,
    state=b"s" * 32,
    ready=False,
    tokens=0,
    steps=0,
    leaving=False,
    name="",
    version="0",
)
OTHER_STATE = replace(HEAD, state=b"x" * 32)
GENESIS = Genesis(run=RUN, founders=(ORGANISER.peer_id,), state=b"s" * 32)


def test_nobody_is_here() -> None:
    assert look({}).founders(1) is None


def test_as_many_as_asked_for_in_order_of_their_ids() -> None:
    seen = look(dict.fromkeys("dbca", HEAD))
    assert seen.founders(5) is None
    assert seen.founders(4) == ("a", "b", "c", "d")
    assert seen.founders(2) == ("a", "b")


def test_who_comes_first_founds_the_run() -> None:
    """Ids cost nothing: one that is made to be the smallest, and comes later, displaces nobody."""
    seen = look(dict.fromkeys("abcd", HEAD))
    assert seen.founders(2, ("c", "d", "a", "b")) == ("c", "d")
    assert seen.founders(3, ("c",)) == ("a", "b", "c")


def test_only_whom_the_organiser_has_named_founds_the_run() -> None:
    """Five others with a state of their own neither found it nor outvote those who are named."""
    names = {**dict.fromkeys("vwxyz", OTHER_STATE), "a": HEAD, "b": HEAD}
    seen = look(names, ("a", "b", "c"))
    assert (seen.agreed, seen.odd, seen.state) == (("a", "b"), (), HEAD.state)
    assert seen.founders(2) == ("a", "b")
    assert seen.founders(3) is None
    begun = {**names, "z": replace(HEAD, round=0, anchor=b"a" * 32)}
    assert look(begun, ("a", "b")).training == ("z",)


def test_founders_that_cannot_be_are_refused(tmp_path: Path) -> None:
    spec = load("micro")
    assert spec.run.founders == 2
    with pytest.raises(BadInput, match="1 founders are named"):
        BootstrapConfig(directory=tmp_path, spec=spec, founders=(ORGANISER.peer_id, ORGANISER.peer_id))
    with pytest.raises(BadInput, match="--founder me is no peer id"):
        BootstrapConfig(directory=tmp_path, spec=spec, founders=("me", ORGANISER.peer_id))


def test_those_with_other_parameters_are_odd_and_do_not_count() -> None:
    seen = look({"a": OTHER_STATE, "b": HEAD, "c": HEAD})
    assert (seen.agreed, seen.odd, seen.state) == (("b", "c"), ("a",), HEAD.state)
    assert seen.founders(3) is None
    assert seen.founders(2) == ("b", "c")


def test_of_two_equally_common_states_the_answer_does_not_depend_on_order() -> None:
    assert look({"a": OTHER_STATE, "b": HEAD}) == look({"b": HEAD, "a": OTHER_STATE})


def test_who_leaves_or_is_not_done_computing_is_no_founder() -> None:
    seen = look({"a": replace(HEAD, leaving=True), "b": replace(HEAD, state=b""), "c": HEAD})
    assert (seen.agreed, seen.odd) == (("c",), ())


def test_who_only_says_that_the_run_has_begun_keeps_nobody_from_founding_it() -> None:
    """That it has begun its organiser's genesis shows, which a peer gives back (`restore`); keys cost nothing."""
    seen = look({"a": HEAD, "b": replace(HEAD, round=0, anchor=b"a" * 32)})
    assert seen.training == ("b",)
    assert seen.founders(1) == ("a",)
    assert seen.founders(2) is None


def test_a_genesis_is_on_disk_and_survives_a_restart(tmp_path: Path) -> None:
    first = GenesisFile(tmp_path / "genesis", ORGANISER, RUN)
    assert first.record(NOW_S) is None
    first.decide(GENESIS, NOW_S)
    again = GenesisFile(tmp_path / "genesis", ORGANISER, RUN)
    assert again.genesis == GENESIS
    record = again.record(NOW_S + 600)
    assert record is not None
    assert record == first.record(NOW_S + 600)
    assert verify_record(record, RUN)
    assert unpack_body(record) == GENESIS


def test_there_is_no_second_genesis(tmp_path: Path) -> None:
    GenesisFile(tmp_path / "genesis", ORGANISER, RUN).decide(GENESIS, NOW_S)
    again = GenesisFile(tmp_path / "genesis", ORGANISER, RUN)
    with pytest.raises(AssertionError):
        again.decide(GENESIS, NOW_S)


def test_a_genesis_of_another_run_or_organiser_is_refused(tmp_path: Path) -> None:
    GenesisFile(tmp_path / "genesis", ORGANISER, RUN).decide(GENESIS, NOW_S)
    with pytest.raises(RunMismatch, match="the spec was changed since, or the key; go on with the spec as it was"):
        GenesisFile(tmp_path / "genesis", ORGANISER, b"x" * 32)
    with pytest.raises(RunMismatch, match="another run or organiser"):
        GenesisFile(tmp_path / "genesis", Identity.generate(), RUN)


def test_a_damaged_genesis_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "genesis").write_bytes(b"half")
    with pytest.raises(BadInput, match="is damaged"):
        GenesisFile(tmp_path / "genesis", ORGANISER, RUN)
