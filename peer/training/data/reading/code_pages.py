"""Guesses the encoding of a text that is no UTF-8, from a sample of bounded size.

Peers that train on the same files must read the same letters. So only `ENCODINGS` are considered, and what
charset-normalizer cannot tell apart is decided by their order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

REPLACED = "\ufffd"
WESTERN = "cp1252"
"""What a text is where nothing tells several encodings apart; it has the letters of Latin-1."""
ENCODINGS = {
    **dict.fromkeys((WESTERN, "cp1251", "cp1250", "iso8859_2", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257"), 0.0),
    **dict.fromkeys(("koi8_r", "koi8_u", "cp874", "cp932", "euc_jp", "gb18030", "big5", "cp949"), 0.0),
    **dict.fromkeys(("cp850", "cp852", "cp866"), 0.02), "mac_roman": 0.05,
}  # fmt: skip
"""Those that people have, the likely ones first, and what counts against those of very old files."""
HIGH_BYTES = re.compile(rb"[\x80-\xff]+")
NARROW = {"cp949": "euc_kr"}
"""What has all letters of nearly any text in the wider encoding: Japanese read as Korean consists of the others."""
FEW = 32
"""Single bytes beyond ASCII, between letters of ASCII, are too little to guess by."""
IN_A_WORD = re.compile(r"[^\x00-\x7f\w’‘—–·](?<=[^\W\d_].)(?=[^\W\d_])")
"""A sign between two letters, as hardly any text has but one that is read in a wrong encoding."""

BEHIND_A_LETTER = re.compile(r"(?<=[^\W\d_])[^\x00-\x7f\W]")


def guess(sample: bytes) -> str:
    """The encoding of bytes that are no UTF-8; damaged UTF-8 stays UTF-8."""
    text = sample.decode("utf-8", "replace")
    broken = text.count(REPLACED)
    # By chance hardly any bytes are a letter of UTF-8.
    if _beyond_ascii(text) - broken >= broken:
        return "utf-8"
    runs = HIGH_BYTES.findall(sample)
    if len(runs) < FEW and max(map(len, runs)) == 1:
        return WESTERN
    return min(_candidates(sample), default=(0.0, 0.0, 0, "utf-8"))[-1]


def _candidates(sample: bytes) -> Iterator[tuple[float, float, int, str]]:
    """What speaks against each encoding, less first: disorder, a lack of words, rarity; and its name."""
    from charset_normalizer import from_bytes

    for found in from_bytes(sample, cp_isolation=list(ENCODINGS)):
        for order, (name, rarity) in enumerate(ENCODINGS.items()):
            if name == found.encoding or name in found.could_be_from_charset:
                text = sample.decode(name, "replace")
                odd = len(IN_A_WORD.findall(text)) + _raised_in_words(text) + _rare(text, name)
                signs = odd / max(1, _beyond_ascii(text))
                # Two digits: the rest is no difference that anybody would notice.
                yield round(found.chaos + signs + rarity, 2), -round(found.coherence, 2), order, name


def _raised_in_words(text: str) -> int:
    """Capital letters right behind a small one, which only a wrong encoding has."""
    places = (found.start() for found in BEHIND_A_LETTER.finditer(text))
    return sum(text[at].isupper() and text[at - 1].islower() for at in places)


def _rare(text: str, encoding: str) -> int:
    """Letters that only the wider of two encodings has."""
    narrow = NARROW.get(encoding)
    if narrow is None:
        return 0
    # Python writes what is not in euc_kr as eight bytes of parts.
    return sum(times for letter, times in Counter(text).items() if len(letter.encode(narrow, "ignore")) not in (1, 2))


def _beyond_ascii(text: str) -> int:
    return len(text) - len(text.encode("ascii", "ignore"))
