"""Takes out of a text what a volunteer would not post: keys, tokens, invites, addresses, names of host and user.

What is left is enough to find a bug: peer ids (which are public in the run), digests, rounds, times, sizes. Loopback
and `any` addresses stay, since they are the same everywhere. Whatever looks like a secret is treated as one.
"""

from __future__ import annotations

import base64
import getpass
import ipaddress
import json
import platform
import re
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ADDRESS, HOST, USER, SECRET, INVITE, MAIL = "<address>", "<host>", "<user>", "<secret>", "<invite>", "<mail>"
HARMLESS_NAMES = frozenset({"", "root", "localhost", "user", "homefires"})
"""Host or user names that reveal nothing and occur in many lines."""
_INVITE = re.compile(r"hf1:[A-Za-z0-9_\-=]*")
_PEM = re.compile(r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)", re.DOTALL)
_SECRET_NAMES = "token|passw(?:or)?d|passphrase|secret|api[_-]?key|private[_-]?key|authorization|cookie"
_NAMED_SECRET = re.compile(rf"""(?i)((?:{_SECRET_NAMES})["']?\s*[:=]\s*(?:bearer\s+|basic\s+)?["']?)([^\s"',;}}<]+)""")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/\-]{8,}=*")
_USERINFO = re.compile(r"(?<=://)[^\s/@]+@")
_KNOWN_TOKEN = re.compile(r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|xox[abp]-|AKIA|glpat-)[A-Za-z0-9_\-]{8,}")
_DNS = re.compile(r"(/(?:dns|dns4|dns6|dnsaddr|sni)/)[^/\s\"',]+")
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_HOME = re.compile(r"(/(?:home|Users)/)[^/\s\"':;,<>]+")
_MAC = re.compile(r"(?i)(?<![0-9a-f:.-])(?:[0-9a-f]{2}[:-]){5}[0-9a-f]{2}(?![0-9a-f:-])")
_IPV4 = re.compile(r"(?<![0-9.])[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?![0-9]|\.[0-9])")
_COLONS = re.compile(r"(?<![0-9A-Za-z.])(?:[0-9A-Za-z.]*+:){2}[0-9A-Za-z:.]*")
"""A run of characters that may contain an IPv6 address."""
_IPV6_LETTERS = 45
"""The length of the longest address."""
MANY_LETTERS = 40
_LONG = re.compile(rf"[A-Za-z0-9+/_\-]{{{MANY_LETTERS},}}={{0,2}}")
_PEER_ID = re.compile(r"12D3Koo[1-9A-HJ-NP-Za-km-z]{45}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_MIXED = re.compile(r"(?=.*[a-z])(?=.*[A-Z])")
_SECRET_FIELD = re.compile(rf"(?i).*(?:{_SECRET_NAMES}|invite)")


@dataclass(frozen=True, kw_only=True)
class Private:
    """What must not be revealed about this machine."""

    names: tuple[tuple[str, str], ...] = ()
    """(name, replacement) of the host and the user."""
    home: str = ""
    keys: tuple[bytes, ...] = ()
    """Private keys, as raw bytes."""

    @classmethod
    def of_this_machine(cls, keys: Iterable[bytes]) -> Private:
        """This machine's host names, the names of its user and home folder, and these keys."""
        hosts = {socket.gethostname(), platform.node(), socket.gethostname().partition(".")[0]}
        with suppress(OSError):
            hosts.add(socket.getfqdn())
        users = {Path.home().name}
        with suppress(OSError, KeyError):
            users.add(getpass.getuser())
        named = [(name, HOST) for name in hosts] + [(name, USER) for name in users]
        return cls(names=tuple(named), home=str(Path.home()), keys=tuple(keys))


class Redactor:
    def __init__(self, private: Private) -> None:
        spellings = sorted({text for key in private.keys for text in _spellings(key)}, key=len, reverse=True)
        homes = [private.home] if len(private.home) > 1 else []
        names = [
            (re.compile(rf"(?<![^\W_]){re.escape(spelled)}(?![^\W_])", re.IGNORECASE), stands)
            for name, stands in sorted(private.names, key=lambda item: -len(item[0]))
            for spelled in {name, ascii(name)[1:-1]}
            if name.lower() not in HARMLESS_NAMES
        ]
        # In this order: a later pattern would cut an earlier secret in two.
        self._rules: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
            *((re.compile(re.escape(key), re.IGNORECASE), SECRET) for key in spellings),
            (_PEM, SECRET), (_INVITE, INVITE), (_USERINFO, f"{SECRET}@"), (_BEARER, SECRET),
            (_NAMED_SECRET, rf"\1{SECRET}"), (_KNOWN_TOKEN, SECRET), (_DNS, rf"\1{HOST}"), (_MAIL, MAIL),
            *((re.compile(re.escape(home)), "~") for home in homes), (_HOME, rf"\1{USER}"),
            (_LONG, _long), (_MAC, ADDRESS), (_COLONS, _without_ipv6), (_IPV4, _ipv4), *names,
        ]  # fmt: skip

    def text(self, text: str) -> str:
        for pattern, stands in self._rules:
            text = pattern.sub(stands, text)
        return text

    def value(self, value: Any) -> Any:
        """The same as `text` for a JSON value: every text in it, including the names of fields."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {self.text(str(key)): self._field(str(key), item) for key, item in value.items()}
        return value

    def line(self, line: str) -> str:
        """The same for a line of JSON, whose texts may contain escapes; any other line is treated as text."""
        try:
            return json.dumps(self.value(json.loads(line)), ensure_ascii=False, separators=(",", ":"))
        except (ValueError, RecursionError):
            return self.text(line)

    def _field(self, key: str, value: Any) -> Any:
        """A field's value; the name of the field may show that it is a secret."""
        if isinstance(value, str) and value and _SECRET_FIELD.fullmatch(key):
            return SECRET
        return self.value(value)


def _spellings(key: bytes) -> Iterable[str]:
    """The ways to write a key: in hex, in both kinds of base64, in base58."""
    import base58

    yield key.hex()
    yield base64.b64encode(key).decode().rstrip("=")
    yield base64.urlsafe_b64encode(key).decode().rstrip("=")
    yield base58.b58encode(key).decode()


def _long(found: re.Match[str]) -> str:
    """A long run of base64 characters. Peer ids, digests, paths, and names made of words are kept."""
    text = found.group()
    if "/" not in text:
        return _word(text)
    if any(_PEER_ID.fullmatch(word) for word in text.split("/")):
        return "/".join(map(_word, text.split("/")))
    return SECRET if "+" in text or _MIXED.match(text) else text


def _word(word: str) -> str:
    if len(word) < MANY_LETTERS or _PEER_ID.fullmatch(word) or _DIGEST.fullmatch(word):
        return word
    return SECRET if any(letter.isdigit() for letter in word) or _MIXED.match(word) else word


def _ipv4(found: re.Match[str]) -> str:
    """Replaces an address, unless it is a loopback or unspecified address."""
    numbers = [int(word) for word in found.group().split(".")]
    if max(numbers) > 255 or numbers[0] == 127 or not any(numbers):
        return found.group()
    return ADDRESS


def _without_ipv6(found: re.Match[str]) -> str:
    """The run with every address in it replaced; each begins and ends at a word boundary."""
    run, kept, at = found.group(), "", 0
    while at < len(run):
        ends = range(min(len(run), at + _IPV6_LETTERS), at + 1, -1) if _can_begin(run, at) else ()
        end = next((end for end in ends if (end == len(run) or not run[end].isalnum()) and _is_ipv6(run[at:end])), None)
        kept += run[at] if end is None else ADDRESS
        at = at + 1 if end is None else end
    return kept


def _can_begin(run: str, at: int) -> bool:
    """Whether an address can begin here: `peer:2001:db8::1` contains one, `std::abc` none."""
    return at == 0 or not run[at - 1].isalnum()


def _is_ipv6(text: str) -> bool:
    """Whether this is an address that reveals something about a machine."""
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified)
