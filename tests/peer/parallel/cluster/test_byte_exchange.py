"""Homes of a cluster give each other bytes by digest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from peer.consensus.protocol.encoding import digest_of
from peer.node.store.objects import object_path
from peer.parallel.cluster.byte_exchange import ByteExchange
from peer.parallel.pipeline.home_group import HomeGone
from peer.parallel.pipeline.home_messages import AskBytes, BytesHere, decode_home, encode_home

HOMES = ("lead", "a", "b")
Change = Callable[[BytesHere], BytesHere | None]


class Homes:
    """Three homes; what `change` makes of an answer arrives, at once."""

    def __init__(self, folder: Path) -> None:
        self.change: Change = lambda answer: answer
        self.asked: list[str] = []
        self.exchanges = {
            name: ByteExchange(folder / name, self._sender(name), silence_s=0.3, again_s=0.1) for name in HOMES
        }
        self.folder = folder

    def _sender(self, sender: str) -> Callable[[str, bytes], None]:
        def send(to: str, frame: bytes) -> None:
            message: object = decode_home(frame)
            if isinstance(message, BytesHere):
                message = self.change(message)
            else:
                self.asked.append(to)
            if isinstance(message, AskBytes | BytesHere):
                self.exchanges[to].take(sender, message)

        return send

    def has(self, name: str, payload: bytes) -> bytes:
        path = object_path(self.folder / name, digest_of(payload))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(payload)
        return digest_of(payload)

    def fetched(self, *digests: bytes) -> tuple[bool, dict[bytes, bytes]]:
        """By the lead from the others."""
        kept: dict[bytes, bytes] = {}
        return self.exchanges["lead"].fetch(HOMES[1:], digests, kept.__setitem__, lambda: False), kept


@pytest.fixture
def homes(tmp_path: Path) -> Homes:
    return Homes(tmp_path)


def test_bytes_come_from_whoever_has_them(homes: Homes) -> None:
    """More than one message may ask for; each home is asked for what those before it do not have."""
    payloads = [bytes([number]) * 100 for number in range(40)]
    digests = [homes.has("b" if number % 3 else "a", payload) for number, payload in enumerate(payloads)]
    assert homes.fetched(*digests, digests[0]) == (True, dict(zip(digests, payloads, strict=True)))


def test_what_nobody_has_is_missing(homes: Homes) -> None:
    here = homes.has("a", b"here")
    found, kept = homes.fetched(here, digest_of(b"nowhere"))
    assert not found
    assert kept == {here: b"here"}


def test_where_nothing_is_missing_nobody_is_asked(homes: Homes) -> None:
    assert homes.fetched() == (True, {})
    assert homes.asked == []


@pytest.mark.parametrize("change", [lambda answer: None, lambda answer: BytesHere(answer.digest, b"other bytes")])
def test_a_home_that_gives_nothing_or_other_bytes_is_gone(homes: Homes, change: Change) -> None:
    homes.change = change
    with pytest.raises(HomeGone, match="did not say within 0 s which layers it has"):
        homes.fetched(homes.has("a", b"here"))
    assert set(homes.asked) == {"a"}
    assert len(homes.asked) > 1


def test_a_damaged_object_is_as_if_it_were_not_there(homes: Homes) -> None:
    digest = homes.has("a", b"here")
    object_path(homes.folder / "a", digest).write_bytes(b"damaged")
    assert homes.fetched(digest) == (False, {})


def test_a_lead_knows_who_has_a_snapshot(homes: Homes) -> None:
    lead, digest = homes.exchanges["lead"], homes.has("a", b"manifest")
    for home in HOMES[1:]:
        lead.ask(home, (digest,))
    assert [lead.has(home, digest) for home in HOMES[1:]] == [True, False]


def test_answers_that_nobody_asked_for_are_dropped(homes: Homes) -> None:
    homes.exchanges["lead"].take("a", BytesHere(digest_of(b"here"), b"here"))
    assert not homes.exchanges["lead"].has("a", digest_of(b"here"))
    assert decode_home(encode_home(AskBytes((digest_of(b"here"),)))) == AskBytes((digest_of(b"here"),))
