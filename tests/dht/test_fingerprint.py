"""Words for a key."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dht.identity import WORDS, Identity, _pgp_words, fingerprint_words, peer_id_of

ORGANISER = Identity.from_seed(b"o" * 32).peer_id


def test_the_words_of_a_key_never_change() -> None:
    """Somebody may have written them down."""
    assert fingerprint_words(ORGANISER) == "cranky liberty drunken inventive button sensation drifter hazardous"


@given(st.binary(min_size=32, max_size=32), st.integers(0, 255))
def test_a_key_with_one_other_bit_has_other_words(key: bytes, bit: int) -> None:
    other = bytes(byte ^ (1 << bit % 8 if at == bit // 8 else 0) for at, byte in enumerate(key))
    assert len(fingerprint_words(peer_id_of(key)).split()) == WORDS
    assert fingerprint_words(peer_id_of(key)) != fingerprint_words(peer_id_of(other))


def test_both_lists_have_a_word_for_each_byte_and_share_none() -> None:
    """So that a word which is left out or swapped is noticed."""
    even, odd = (set(map(str.lower, found)) for found in _pgp_words())
    assert (len(even), len(odd)) == (256, 256)
    assert even.isdisjoint(odd)
    assert [_pgp_words()[0][0xE5], _pgp_words()[1][0x82], _pgp_words()[0][0x94], _pgp_words()[1][0xF2]] == [
        "topmost", "Istanbul", "Pluto", "vagabond",
    ], "as the list's own example spells E58294F2"  # fmt: skip
