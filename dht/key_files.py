"""`python -m dht.key_files`: exports a peer's key to a file with a passphrase, and imports it again.

    show --dir DIR            the peer id and its words
    export FILE --dir DIR     write DIR/identity.key to a new FILE (0600)
    import FILE --dir DIR     make DIR/identity.key from it; never replaces another key

FILE is one line: `hfkey1:`, then base64url of salt (16 bytes), nonce (12), and the bytes of identity.key under
AES-256-GCM. scrypt (RFC 7914; n 65,536, r 8, p 1: 64 MiB) derives the AES key from the passphrase; the library's
PKCS #8 would use only 2,048 rounds of PBKDF2. The passphrase is asked for on the terminal, never on a command line.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import getpass
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from dht.atomic_files import write_exclusive
from dht.errors import BadInput, HomefiresError
from dht.identity import Identity, fingerprint_words

KEY_FILE = "identity.key"
PREFIX = b"hfkey1:"
LEAST_PASSPHRASE = 8
MAX_FILE_BYTES = 4096
_SALT_BYTES, _NONCE_BYTES = 16, 12

Ask = Callable[[str], str]
"""Asks a person for a secret, with this question, and shows nothing of it."""


def export_key(directory: Path, target: Path, ask: Ask) -> Identity:
    """Write the folder's key to a new file, encrypted with a passphrase. Raises BadInput."""
    identity = _mine(directory)
    if target.exists():
        raise BadInput(f"{target} exists already; name a new file")
    passphrase = ask("Passphrase for the copy: ")
    if len(passphrase) < LEAST_PASSPHRASE:
        raise BadInput(f"the passphrase has {len(passphrase)} characters; take at least {LEAST_PASSPHRASE}")
    if ask("The same again: ") != passphrase:
        raise BadInput("the two passphrases differ; nothing was written")
    try:
        write_exclusive(target, seal(identity, passphrase) + b"\n")
    except OSError as error:
        raise BadInput(f"{target} cannot be written ({error.strerror or 'it exists'}); name another file") from error
    return identity


def import_key(source: Path, directory: Path, ask: Ask) -> Identity:
    """Read the key of such a file into a folder that has none. Raises BadInput."""
    target = directory / KEY_FILE
    if target.exists():
        raise BadInput(f"{directory} has a key already; name a new folder with --dir, or move {target} away")
    try:
        with source.open("rb") as file:
            packed = file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise BadInput(f"{source} cannot be read ({error.strerror})") from error
    identity = unseal(packed, ask("Passphrase of the copy: "), str(source))
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    identity.save(target)
    return identity


def seal(identity: Identity, passphrase: str) -> bytes:
    """The key as text, encrypted with this passphrase; never the same twice."""
    salt, nonce = os.urandom(_SALT_BYTES), os.urandom(_NONCE_BYTES)
    sealed = AESGCM(_key(passphrase, salt)).encrypt(nonce, identity.to_bytes(), PREFIX)
    return PREFIX + base64.urlsafe_b64encode(salt + nonce + sealed)


def unseal(packed: bytes, passphrase: str, source: str) -> Identity:
    """The key that was given to `seal`. Raises BadInput that names `source`."""
    text = packed.strip()
    if not text.startswith(PREFIX):
        raise BadInput(f"{source} is no copy of a key; homefires identity export makes one")
    try:
        raw = base64.b64decode(text[len(PREFIX) :], altchars=b"-_", validate=True)
        salt, nonce = raw[:_SALT_BYTES], raw[_SALT_BYTES : _SALT_BYTES + _NONCE_BYTES]
        opened = AESGCM(_key(passphrase, salt)).decrypt(nonce, raw[_SALT_BYTES + _NONCE_BYTES :], PREFIX)
    except (binascii.Error, ValueError, InvalidTag) as error:
        raise BadInput(f"{source} does not open: the passphrase is wrong, or the file is damaged") from error
    identity = Identity.from_bytes(opened)
    if identity is None:
        raise BadInput(f"{source} holds another kind of key; peers have Ed25519 keys")
    return identity


def _key(passphrase: str, salt: bytes) -> bytes:
    return Scrypt(salt=salt, length=32, n=2**16, r=8, p=1).derive(passphrase.encode())


def _mine(directory: Path) -> Identity:
    if not (directory / KEY_FILE).exists():
        raise BadInput(f"{directory} has no key; name the folder of a peer or an organiser with --dir")
    return Identity.load_or_create(directory / KEY_FILE)


def main(arguments: Sequence[str] | None = None, ask: Ask = getpass.getpass) -> int:
    """Run the command and print its result; returns the exit code of `dht.errors`."""
    options = _parser().parse_args(arguments)
    try:
        print(_done(options, ask))
    except HomefiresError as error:
        print(f"homefires: {error}", file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, EOFError):
        print("homefires: no passphrase was given; nothing was written", file=sys.stderr)
        return BadInput.exit_code
    return 0


def _done(options: argparse.Namespace, ask: Ask) -> str:
    if options.command == "show":
        return _describe(_mine(options.dir))
    if options.command == "export":
        identity = export_key(options.dir, options.file, ask)
        return f"{_describe(identity)}\nits key is in {options.file}; keep it and the passphrase apart"
    identity = import_key(options.file, options.dir, ask)
    return f"{_describe(identity)}\nits key is in {options.dir}; one machine at a time may use it"


def _describe(identity: Identity) -> str:
    return f"{identity.peer_id}\n{fingerprint_words(identity.peer_id)}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dht.key_files", description="A copy of a key, and back.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("show", "export", "import"):
        command = commands.add_parser(name)
        command.add_argument("--dir", type=Path, required=True, help="the folder of identity.key")
        if name != "show":
            command.add_argument("file", type=Path, metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
