"""A folder of another version is refused in one line, before anything in it is changed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dht import invite
from dht.errors import BadInput
from dht.identity import Identity
from dht.process import lock_directory
from dht.protocol_version import PROTOCOL_VERSION, RELEASES, require_this_version
from dht.records import GENESIS, Genesis, pack, sign_record

ME = Identity.from_seed(b"m" * 32)
RUN = b"r" * 32


@pytest.mark.parametrize("name", ["x", "chain/undone", "wish.json", "fit.json", "admitted", "ended", "orders", "ports"])
def test_a_folder_of_the_version_before_is_left_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    address = f"/ip4/203.0.113.5/tcp/31337/p2p/{ME.peer_id}"
    joined = invite.parse(invite.issue(ME, run="tiny", spec_hash=RUN, addrs=(address,)), time.time())
    with pytest.raises(BadInput, match=r"is of protocol version 1, .* install homefires 0\.1"):
        invite.save_in(joined, tmp_path)
    with pytest.raises(BadInput, match="nothing in this one was changed"), lock_directory(tmp_path):
        pass
    assert sorted(tmp_path.rglob("*")) == before


def test_a_genesis_says_of_which_version_it_is(tmp_path: Path) -> None:
    require_this_version(tmp_path / "nothing is there yet")
    body = Genesis(run=RUN, founders=(ME.peer_id,), state=b"s" * 32).pack()
    packed = pack(sign_record(ME, RUN, GENESIS, body, 0.0))
    (tmp_path / "genesis").write_bytes(packed)
    require_this_version(tmp_path)
    (tmp_path / "genesis").write_bytes(packed[:1] + bytes((PROTOCOL_VERSION + 1,)) + packed[2:])
    with pytest.raises(BadInput, match=rf"is of protocol version {PROTOCOL_VERSION + 1}, .* install a newer homefires"):
        require_this_version(tmp_path)
    for version in range(2, PROTOCOL_VERSION):
        (tmp_path / "genesis").write_bytes(packed[:1] + bytes((version,)) + packed[2:])
        text = rf"is of protocol version {version}, .* install homefires {RELEASES[version]}, or name a new folder"
        with pytest.raises(BadInput, match=text):
            require_this_version(tmp_path)
    (tmp_path / "genesis").write_bytes(b"rubbish")
    require_this_version(tmp_path)  # whoever reads it says that it is damaged
