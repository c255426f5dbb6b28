"""Bytes of a file as characters, in pieces: unpacked, and decoded by an encoding that is detected from the bytes.

Whatever a file claims, at most one piece of it is in memory.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import lzma
import re
import unicodedata
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, TextIO

from dht.errors import BadInput
from peer.schema.extras import require_extra
from peer.training.data.reading.code_pages import guess
from peer.training.data.reading.data_files import DataFile

PIECE = 1 << 20
"""Bytes, or characters, that are read at a time."""
RATIO = 200
"""Text unpacks to some ten times its size; what unpacks to more than this was made to fill a disk."""
RATIO_FREE_BYTES = 16 << 20
"""So much may come of any file."""
XZ_BYTES = 100 << 20
"""Of memory for unpacking: what `xz -9` takes, and no more."""
BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip
"""In this order: the one of UTF-16 begins that of UTF-32."""
JAPANESE_MAIL = re.compile(rb"\x1b\$[@B]")
"""Begins Japanese letters among ASCII in ISO-2022-JP, whose bytes are all valid UTF-8."""
SAMPLE = 1 << 16
"""Bytes by which an encoding is guessed, before and after what is no UTF-8."""
SIGNS = " \n\u3000\u3001\u3002,.;"
"""One of these stands in any line or sentence."""
MARKS_OF_NONE = frozenset({"Cc", "Cn", "Co"})
"""Unicode's categories of what is in no text: controls, and what means nothing."""
NO_TEXT = "has NUL bytes, as no text has; remove it, save it as UTF-8, or rename it to what it is"


@dataclass(frozen=True)
class ScannedText:
    """What is known of a text after it was read through."""

    encoding: str
    """As Python calls it."""
    characters: int
    content: str
    """Of all of it, see `content_of`; empty if nobody has asked."""


class ContentHash:
    """A hash that grows with a text. It is the same for two texts with the same characters, wherever they lie."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b()

    def update(self, text: str) -> None:
        self._hash.update(text.encode("utf-8", "replace"))

    def digest(self) -> str:
        return self._hash.hexdigest()


def content_of(text: str) -> str:
    """The hash by which a document is held out."""
    found = ContentHash()
    found.update(text)
    return found.digest()


def without_surrogates(text: str) -> str:
    """The same with U+FFFD for each unpaired surrogate, which JSON can contain."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


# ---- unpacking ----


class _Unpacked(io.RawIOBase):
    """The content of a packed file. Raises BadInput for a damaged file, or one that unpacks to too much."""

    def __init__(self, file: DataFile, packed: Any) -> None:
        self._name, self._packed = file.name, packed
        self._left = RATIO_FREE_BYTES + RATIO * file.size_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            piece = self._packed.read(len(buffer))
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
            why = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise BadInput(f"{self._name} cannot be unpacked ({why[:100]}); remove it, or get it again") from error
        self._left -= len(piece)
        if self._left < 0:
            raise BadInput(f"{self._name} unpacks to more than {RATIO} times its size; if it is text, unpack it first")
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self._packed.close()
        super().close()


class _Xz:
    """`lzma.open` with a limit: the file itself says how much memory it wants."""

    def __init__(self, file: DataFile) -> None:
        self._file, self._begun = file.path.open("rb"), False
        self._begin()

    def _begin(self) -> None:
        self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_BYTES)

    def read(self, most: int) -> bytes:
        while True:
            packed = b""
            if self._stream.eof:
                packed = self._stream.unused_data.lstrip(b"\0") or self._file.read(SAMPLE).lstrip(b"\0")
                if not packed:
                    return b""
                self._begin()
            elif self._stream.needs_input:
                packed = self._file.read(SAMPLE)
                if not packed:
                    raise EOFError("it is cut off")
            if piece := self._stream.decompress(packed, most):
                return piece

    def close(self) -> None:
        self._file.close()


class _OnDisk(io.FileIO):
    """A file as it is. Raises BadInput where the disk fails, or the network behind it."""

    def __init__(self, file: DataFile) -> None:
        super().__init__(file.path)
        self._called = file.name

    def readinto(self, buffer: Any) -> int | None:
        try:
            return super().readinto(buffer)
        except OSError as error:
            raise BadInput(f"{self._called} cannot be read ({error.strerror}); get it again, or remove it") from error


def _unpacker(file: DataFile) -> Any:
    if file.packing == ".gz":
        return gzip.open(file.path)
    if file.packing == ".xz":
        return _Xz(file)
    require_extra("pyarrow", f"{file.name} (.zst)")
    import pyarrow

    return pyarrow.CompressedInputStream(pyarrow.OSFile(str(file.path)), "zstd")


@contextmanager
def opened(file: DataFile) -> Iterator[BinaryIO]:
    """Its bytes, unpacked."""
    raw: Any
    try:
        raw = io.BufferedReader(_Unpacked(file, _unpacker(file)) if file.packing else _OnDisk(file), PIECE)
    except OSError as error:
        raise BadInput(f"{file.name} cannot be read ({error.strerror or error}); let this program read it") from error
    with raw:
        yield raw


# ---- decoding ----


@contextmanager
def text_of(file: DataFile, encoding: str, errors: str = "replace") -> Iterator[TextIO]:
    """Its characters; every end of a line is a line feed."""
    with opened(file) as raw, io.TextIOWrapper(raw, encoding, errors) as text:
        yield text


def pieces_of(text: TextIO) -> Iterator[str]:
    while piece := text.read(PIECE):
        yield piece


def scan(file: DataFile, *, hashed: bool = True) -> ScannedText:
    """Read it through. Raises BadInput for bytes that are no text. `hashed`: its content is wanted."""
    encoding = marked = _by_first_bytes(file)
    try:
        return _scanned(file, marked or "utf-8", "strict", hashed)
    except UnicodeDecodeError:
        encoding = marked or guess(_not_utf8(file))
    return _scanned(file, encoding, "replace", hashed)


def _scanned(file: DataFile, encoding: str, errors: str, hashed: bool) -> ScannedText:
    content, characters = ContentHash(), 0
    with text_of(file, encoding, errors) as text:
        for piece in pieces_of(text):
            if "\0" in piece:
                raise BadInput(f"{file.name} {NO_TEXT}")
            if hashed:
                content.update(piece)
            characters += len(piece)
    return ScannedText(encoding, characters, content.digest() if hashed else "")


def _by_first_bytes(file: DataFile) -> str:
    """The encoding by the first bytes; empty if they do not tell. Raises BadInput for bytes that no text has."""
    with opened(file) as raw:
        head = raw.read(SAMPLE)
    for mark, encoding in BOMS:
        if head.startswith(mark):
            return encoding
    if 0 not in head:
        return "iso2022_jp" if head.isascii() and JAPANESE_MAIL.search(head) else ""
    whole, bare = head[: len(head) // 2 * 2], head.translate(None, b"\0\t\r\n")
    # Plain letters take two bytes each, of which one is 0: fewer are of something else.
    is_ascii = bare.isascii() and bare.decode().isprintable()
    if not is_ascii or 3 * head.count(0) > len(head):
        for encoding in ("utf-16-le", "utf-16-be"):
            if _is_prose(whole.decode(encoding, "replace")):
                return encoding
    raise BadInput(f"{file.name} {NO_TEXT}")


def _is_prose(text: str) -> bool:
    """Whether it is written in any language: with its bytes exchanged, spaces and ends of lines are other signs."""
    signs = sum(map(text.count, SIGNS))
    return 50 * signs > len(text) and all(
        letter.isspace() or unicodedata.category(letter) not in MARKS_OF_NONE for letter in text
    )


def _not_utf8(file: DataFile) -> bytes:
    """A sample around the first bytes that are no UTF-8. A text that is cut within a letter has them at its end."""
    decoder, before = codecs.getincrementaldecoder("utf-8")("strict"), b""
    with opened(file) as raw:
        while True:
            piece = raw.read(SAMPLE)
            try:
                decoder.decode(piece, final=not piece)
            except UnicodeDecodeError:
                return before + piece + raw.read(SAMPLE)
            assert piece, "it is no UTF-8"
            before = (before + piece)[-SAMPLE:]
