"""No address, key, token or name gets through, however it stands in a text; what finds a bug does."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
import re
import time

import base58
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dht.identity import Identity
from dht.invite import issue
from tui.redact import HARMLESS_NAMES, HOST, USER, Private, Redactor

PLAIN = Redactor(Private())
AROUND = st.sampled_from(
    [("", ""), (" ", " "), ("[", "]"), ("[", "]:4001"), ("('", "', 4001)"), ("/ip6/", "/tcp/4001"), ("addr=", ","),
     ("x ", "; y"), ("peer:", "."), ("http://", "/x"), ('"', '"'), ("from ", ":"), ("(", ")"), ("<", ">"),
     ("to:", "\n")]
)  # fmt: skip
AROUND_IPV4 = st.sampled_from(
    [("", ""), ("/ip4/", "/tcp/31337/p2p/x"), ("http://", ":80/"), ("('", "', 1)"), ("from ", "."), ("=", ","),
     ("::ffff:", "")]
)  # fmt: skip
SEEDS = st.integers(0, 1 << 64).map(lambda number: hashlib.sha256(str(number).encode()).digest())
MANY = settings(derandomize=True, max_examples=400, deadline=None)


def tells_of(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return not (address.is_loopback or address.is_unspecified)


@pytest.mark.slow
@MANY
@given(st.ip_addresses(v=4).filter(tells_of), AROUND_IPV4)
def test_no_ipv4_address_gets_through(address: ipaddress.IPv4Address, around: tuple[str, str]) -> None:
    text = f"{around[0]}{address}{around[1]}"
    assert str(address) not in PLAIN.text(text)
    assert str(address) not in PLAIN.line(json.dumps({"address": text, text: [text]}))


@pytest.mark.slow
@MANY
@given(st.ip_addresses(v=6).filter(tells_of), AROUND, st.sampled_from(["str", "exploded", "upper"]))
@example(ipaddress.IPv6Address("2001:db8::1"), ("peer:", "."), "str")
@example(ipaddress.IPv6Address("::ffff:10.1.2.3"), ("", ""), "str")
def test_no_ipv6_address_gets_through(address: ipaddress.IPv6Address, around: tuple[str, str], spelling: str) -> None:
    written = {"str": str(address), "exploded": address.exploded, "upper": str(address).upper()}[spelling]
    text = PLAIN.text(f"{around[0]}{written}{around[1]}")
    assert written not in text
    assert "<address>" in text


@pytest.mark.slow
@MANY
@given(SEEDS, st.sampled_from(["hex", "HEX", "base64", "urlsafe", "base58"]), st.sampled_from(["", " ", "=", '"', ":"]))
def test_no_spelling_of_my_key_gets_through(seed: bytes, how: str, before: str) -> None:
    spelled = {
        "hex": seed.hex(), "HEX": seed.hex().upper(), "base64": base64.b64encode(seed).decode(),
        "urlsafe": base64.urlsafe_b64encode(seed).decode(), "base58": base58.b58encode(seed).decode(),
    }[how]  # fmt: skip
    told = Redactor(Private(keys=(seed,))).text(f"key{before}{spelled} end")
    assert spelled.rstrip("=") not in told
    assert told.endswith(" end")


@MANY
@given(SEEDS, st.sampled_from(["base64", "urlsafe", "long hex"]))
def test_no_key_of_somebody_else_gets_through(seed: bytes, how: str) -> None:
    """One that this machine does not hold, such as an API token; 64 digits in hex may be a digest."""
    spelled = {
        "base64": base64.b64encode(seed).decode(), "urlsafe": base64.urlsafe_b64encode(seed).decode(),
        "long hex": (seed + seed).hex(),
    }[how]  # fmt: skip
    assert spelled.rstrip("=") not in PLAIN.text(f"curl said {spelled}")


FIXED = frozenset(["home", "srv", "data", "old", "user", "mail", "why"])
"""Words that stand in the texts below."""
NAMES = st.text(st.characters(categories=("L", "N")), min_size=3, max_size=12).filter(
    lambda name: name.lower() not in HARMLESS_NAMES | FIXED
)


@pytest.mark.slow
@MANY
@given(NAMES, st.booleans())
def test_no_name_of_user_or_host_gets_through(name: str, escaped: bool) -> None:
    """As a word of its own, in paths, mail addresses and beside underscores, with escapes of JSON or without."""
    redactor = Redactor(Private(names=((name, USER),), home=f"/srv/{name}"))
    text = f"/home/{name}/x {name}@{name} by {name}, in /srv/{name}/data and C:{name}_old"
    told = redactor.line(json.dumps({"why": text}, ensure_ascii=escaped))
    assert name not in re.findall(r"[^\W_]+", told)
    assert told.count(USER) >= 4


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Authorization: Bearer abcdefgh12345678", "Authorization: <secret>"),
        ("HF_TOKEN=hf_abcdefghijklmnop", "HF_TOKEN=<secret>"),
        ('{"password": "x y"', '{"password": "<secret> y"'),
        ("https://me:pw@example.org/x", "https://<secret>@example.org/x"),
        ("mail bob@example.org now", "mail <mail> now"),
        ("/dns4/box.example.org/tcp/1", "/dns4/<host>/tcp/1"),
        ("00:1b:44:11:3a:b7 is up", "<address> is up"),
        ("fe80::1%eth0 is up", "<address>%eth0 is up"),
        ("-----BEGIN PRIVATE KEY-----\nMC4\n-----END PRIVATE KEY-----.", "<secret>."),
        ("/home/alice/x", "/home/<user>/x"),
    ],
)
def test_examples(text: str, told: str) -> None:
    assert PLAIN.text(text) == told


def test_an_invite_is_not_told() -> None:
    identity = Identity.from_seed(b"i" * 32)
    address = f"/ip4/203.0.113.7/tcp/4001/p2p/{identity.peer_id}"
    invite = issue(identity, run="mine", spec_hash=b"\xab" * 32, addrs=(address,))
    assert PLAIN.text(f"joining with {invite}.") == "joining with <invite>."
    assert PLAIN.line(json.dumps({"invite": invite})) == '{"invite":"<secret>"}'


def test_what_finds_a_bug_stays() -> None:
    """Peer ids, digests, times, versions, loopback, code, paths below the home folder, long names of functions."""
    peer = Identity.from_seed(b"p" * 32).peer_id
    lines = [
        f'{{"v":1,"seq":7,"t":1795478400.125,"peer":"{peer}","type":"RoundCommitted","digest":"{"0a" * 32}"}}',
        "2026-11-22 00:12:34,567 link peer.network.link.link round 7: 12:34:56 left, hivemind 1.1.12",
        "listening on /ip4/0.0.0.0/tcp/0, /ip4/127.0.0.1/tcp/4001 and /ip6/::1/tcp/1 as " + peer,
        f"/ip4/127.0.0.1/tcp/4001/p2p/{peer} in std::vector<float>, c10::Error",
        'File "/usr/lib/python3/dist-packages/a_module/of_somebody/with_a_long/path/to_it/and_more"',
        "in a_function_with_a_name_that_is_longer_than_forty_letters",
        "tokens: 100, tokens_per_s=3.5, void=0",
    ]
    for line in lines:
        assert PLAIN.line(line) == line


def test_the_home_folder_is_shortened_and_names_are_found_as_words() -> None:
    redactor = Redactor(Private(names=(("box", HOST), ("bob", USER)), home="/srv/people/bob"))
    assert redactor.text("/srv/people/bob/x on box.") == "~/x on <host>."
    assert redactor.text("boxes and BOX, bob_1, bobby") == "boxes and <host>, <user>_1, bobby"


@pytest.mark.slow
@pytest.mark.parametrize("line", ["a" * (1 << 18), "a:" * (1 << 15), "1." * (1 << 16), "[" * 5000, "/a" * (1 << 16)])
def test_an_odd_line_takes_no_longer_than_its_length(line: str) -> None:
    """No pattern goes over it again and again."""
    began_s = time.process_time()
    PLAIN.line(line)
    assert time.process_time() - began_s < 5.0
