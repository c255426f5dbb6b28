"""A copy of a key: written, opened, and every way in which it is refused."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dht.errors import BadInput
from dht.identity import Identity, fingerprint_words
from dht.key_files import PREFIX, export_key, import_key, main, seal

SECRET = "correct horse"


def asked(*answers: str) -> Callable[[str], str]:
    left = list(answers)
    return lambda question: left.pop(0)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.slow
def test_there_and_back(tmp_path: Path) -> None:
    """Under the laxest umask: the folder is 0700 before the file is there, and that is 0600 from the first byte."""
    with umask(0):
        mine = Identity.load_or_create(tmp_path / "a" / "identity.key")
        export_key(tmp_path / "a", tmp_path / "copy", asked(SECRET, SECRET))
        import_key(tmp_path / "copy", tmp_path / "b", asked(SECRET))
    assert (tmp_path / "b" / "identity.key").read_bytes() == (tmp_path / "a" / "identity.key").read_bytes()
    assert mine.peer_id == Identity.load_or_create(tmp_path / "b" / "identity.key").peer_id
    assert [mode(tmp_path / name) for name in ("a", "b")] == [0o700, 0o700]
    assert [mode(tmp_path / name) for name in ("a/identity.key", "b/identity.key", "copy")] == [0o600] * 3
    assert mine.to_bytes()[4:36] not in (tmp_path / "copy").read_bytes()


@pytest.mark.slow
def test_a_wrong_passphrase_and_a_changed_byte_open_nothing(tmp_path: Path) -> None:
    sealed = seal(Identity.from_seed(b"a" * 32), SECRET)
    damaged = sealed[:40] + bytes([sealed[40] ^ 1]) + sealed[41:]
    for packed, answer, says in (
        (sealed, "wrong horse", "passphrase is wrong"),
        (damaged, SECRET, "does not open"),
        (PREFIX + b"!!", SECRET, "does not open"),
        (PREFIX, SECRET, "does not open"),
        (b"-----BEGIN PRIVATE KEY-----", SECRET, "no copy of a key"),
    ):
        (tmp_path / "copy").write_bytes(packed)
        with pytest.raises(BadInput, match=says):
            import_key(tmp_path / "copy", tmp_path / "b", asked(answer))
    assert not (tmp_path / "b").exists()


def test_no_key_and_no_file_is_ever_replaced(tmp_path: Path) -> None:
    Identity.load_or_create(tmp_path / "identity.key")
    (tmp_path / "copy").write_text("mine")
    with pytest.raises(BadInput, match="exists already"):
        export_key(tmp_path, tmp_path / "copy", asked())
    with pytest.raises(BadInput, match="has a key already"):
        import_key(tmp_path / "copy", tmp_path, asked())
    with pytest.raises(BadInput, match="has no key"):
        export_key(tmp_path / "empty", tmp_path / "new", asked())
    assert not (tmp_path / "empty").exists()


@pytest.mark.slow
def test_a_peer_that_starts_while_the_passphrase_is_typed_keeps_its_key(tmp_path: Path) -> None:
    other = Identity.generate()
    (tmp_path / "copy").write_bytes(seal(other, SECRET))

    def ask(question: str) -> str:
        Identity.load_or_create(tmp_path / "identity.key")
        return SECRET

    with pytest.raises(BadInput, match="not replaced"):
        import_key(tmp_path / "copy", tmp_path, ask)
    assert Identity.load_or_create(tmp_path / "identity.key").peer_id != other.peer_id


@pytest.mark.parametrize(("answers", "says"), [(("short",), "at least 8"), ((SECRET, "other horse"), "differ")])
def test_a_passphrase_is_long_and_typed_twice(tmp_path: Path, answers: tuple[str, ...], says: str) -> None:
    Identity.load_or_create(tmp_path / "identity.key")
    with pytest.raises(BadInput, match=says):
        export_key(tmp_path, tmp_path / "copy", asked(*answers))
    assert not (tmp_path / "copy").exists()


def test_the_command_shows_who_it_is_and_mistakes_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = Identity.load_or_create(tmp_path / "identity.key").peer_id
    assert main(["show", "--dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{mine}\n{fingerprint_words(mine)}\n"
    assert main(["export", str(tmp_path / "copy"), "--dir", str(tmp_path)], asked(SECRET, SECRET)) == 0
    capsys.readouterr()
    assert main(["import", str(tmp_path / "copy"), "--dir", str(tmp_path)], asked(SECRET)) == BadInput.exit_code
    assert capsys.readouterr().err.count("\n") == 1
