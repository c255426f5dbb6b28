"""A bundle holds what a bug report needs, and nothing that was planted as a secret."""

from __future__ import annotations

import errno
import json
import os
import stat
import zipfile
from pathlib import Path

import pytest

import tui.redact
from dht.errors import BadInput
from dht.identity import Identity
from dht.invite import issue
from peer.schema.events import AlertRaised, EventLine, NetworkMeasured, PeerStarted, format_line
from peer.schema.spec import dump, load
from tui import bundle
from tui.bundle import tail, write_bundle
from tui.cli import main
from tui.folders import ERROR_LOG, data_root

ADDRESSES = ("198.51.100.23", "2001:db8:77::5", "00:1b:44:11:3a:b7")
HOST, LOGIN = "warhorse", "mallory"


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[str]]:
    """The folder of a peer with secrets in every text, and the secrets."""
    monkeypatch.setattr(tui.redact.socket, "gethostname", lambda: f"{HOST}.lan")
    monkeypatch.setattr(tui.redact.socket, "getfqdn", lambda: f"{HOST}.lan")
    monkeypatch.setattr(tui.redact.getpass, "getuser", lambda: LOGIN)
    directory = tmp_path / "peer"
    identity = Identity.load_or_create(directory / "identity.key")
    seed = (directory / "identity.key").read_bytes()[4:36]
    invite = issue(
        identity, run="mine", spec_hash=b"\xab" * 32, addrs=(f"/ip4/{ADDRESSES[0]}/tcp/1/p2p/{identity.peer_id}",)
    )
    secrets = [*ADDRESSES, HOST, LOGIN, seed.hex(), invite, "hf_aVerySecretTokenOfTheHub"]
    text = " | ".join(secrets)
    events = [
        PeerStarted(name="alice", version="0.1", settings={"token": "s3cret-value", "listen": [text]}),
        AlertRaised(level="warning", code="X", text=text),
        NetworkMeasured(
            addresses=[f"/ip4/{ADDRESSES[0]}/tcp/9"], reach="direct", bytes_sent=1, bytes_received=2,
            peers=[{"peer": identity.peer_id, "address": f"/ip6/{ADDRESSES[1]}/tcp/4"}],
        ),
    ]  # fmt: skip
    lines = [EventLine(seq=n, t=n, run="r", peer=identity.peer_id, event=event) for n, event in enumerate(events)]
    (directory / "events.jsonl").write_text("".join(f"{format_line(line)}\n" for line in lines))
    (directory / "spec.toml").write_text(dump(load("micro")) + f"# {text}\n")
    (directory / "settings.toml").write_text(f'name = "alice"\n# {text}\n')
    for name in ("peer.log", "peer.log.1", "doctor.json"):
        (directory / name).write_text(f"a line\n{text}\n")
    error_log = data_root() / ERROR_LOG
    error_log.parent.mkdir(parents=True)
    error_log.write_text(f"Traceback\n{text}\n")
    return directory, [*secrets, "s3cret-value"]


def texts_of(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name).decode() for name in file.namelist()}


def test_no_planted_secret_is_in_it(planted: tuple[Path, list[str]], tmp_path: Path) -> None:
    directory, secrets = planted
    write_bundle(directory, tmp_path / "b.zip")
    for name, text in texts_of(tmp_path / "b.zip").items():
        for secret in secrets:
            assert secret.lower() not in text.lower(), f"{secret} in {name}"
    assert stat.S_IMODE((tmp_path / "b.zip").stat().st_mode) == 0o600


def test_it_holds_what_a_report_needs(planted: tuple[Path, list[str]], tmp_path: Path) -> None:
    directory, _ = planted
    write_bundle(directory, tmp_path / "b.zip")
    texts = texts_of(tmp_path / "b.zip")
    assert texts.keys() == {
        "README.txt", "versions.json", "files.json", "spec.toml", "settings.toml", "doctor.json", "events.jsonl",
        "peer.log", "peer.log.1", "error.log",
    }  # fmt: skip
    versions = json.loads(texts["versions.json"])
    assert {"homefires", "torch", "hivemind", "textual"} <= versions["packages"].keys()
    rows = [json.loads(line) for line in texts["events.jsonl"].splitlines()]
    assert [row["type"] for row in rows] == ["PeerStarted", "AlertRaised", "NetworkMeasured"]
    assert rows[2]["peers"][0]["peer"].startswith("12D3Koo"), "whom it is about stays"
    assert "identity.key" in texts["files.json"], "that there is one may be told"


def test_the_end_of_long_files_is_taken_in_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "long"
    path.write_text("".join(f"{number}\n" for number in range(1000)))
    assert tail(path, 9) == "998\n999\n"
    assert tail(path, 1 << 20) == path.read_text()
    monkeypatch.setattr(bundle, "EVENT_BYTES", 40)
    for name in ("events.jsonl.1", "events.jsonl"):
        (tmp_path / name).write_text('{"seq":1}\n{"seq":2}\n')
    assert list(bundle.newest_events(tmp_path)) == ['{"seq":1}', '{"seq":2}'] * 2
    monkeypatch.setattr(bundle, "EVENT_BYTES", 25)
    assert len(list(bundle.newest_events(tmp_path))) == 2


def test_a_person_asks_for_one(
    planted: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An existing file is not replaced, and a folder that is no peer's is named."""
    directory, target = planted[0], tmp_path / "b.zip"
    assert main(["bundle", str(directory), "--to", str(target)]) == 0
    assert capsys.readouterr().out.startswith(f"{target} (")
    assert main(["bundle", str(directory), "--to", str(target)]) == 2
    assert "exists; name another file with --to" in capsys.readouterr().err
    with pytest.raises(BadInput, match="holds no peer"):
        write_bundle(tmp_path, None)


def test_half_a_bundle_is_none(
    planted: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fills up leaves no file that looks like one; nor does a place that cannot be written to."""

    def fail() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(bundle, "versions", fail)
    with pytest.raises(OSError, match="No space"):
        write_bundle(planted[0], tmp_path / "b.zip")
    assert not (tmp_path / "b.zip").exists()
    with pytest.raises(BadInput, match="name another file with --to"):
        write_bundle(planted[0], tmp_path / "nowhere" / "b.zip")
