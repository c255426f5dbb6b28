"""What a folder holds for a run, before anybody agrees to anything: read once, with a list of everything that is wrong.

`new`, `plan`, `doctor`, the consent screen and a peer that starts show the same figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from dht.errors import BadInput, BadSpec
from peer.consensus.protocol.encoding import digest_of, pack
from peer.node.store import start_blob
from peer.schema.events import printable
from peer.schema.spec import RunSpec
from peer.schema.spec_fields import START
from peer.training.data.data_shards import Document
from peer.training.data.document_tokens import LEFT_OUT, DocumentEncoder, encoder_of
from peer.training.data.documents import is_whole
from peer.training.data.open_source import documents_in, files_of, folders
from peer.training.data.packs import fingerprint
from peer.training.data.reading.code_pages import REPLACED
from peer.training.data.reading.data_files import PACKINGS, LeftOut, find_files, require_there
from peer.training.data.reading.file_rows import KEYS, Findings, rows_of
from peer.training.data.reading.plain_text import content_of
from peer.training.data.tokenizer import ByteTokenizer, Tokenizer, tokenizer_of

MOST_REPLACED = 0.001
"""Of all characters. More of them, and the text is in another encoding, or broken."""
MOST_LEFT_OUT = 0.5
"""Of all bytes."""
MANY_PASSES = 10
"""More than about four teach a model hardly anything (arXiv:2305.16264)."""
SAMPLE = 1 << 22
"""Characters whose tokens are counted; of what follows they are estimated."""
TOKEN_CHARACTERS = 4.0
"""Of a token, where its tokenizer is not on this machine yet; about right for English."""
NO_CLOSING = (
    "the chat template ends an answer with no token of its own, so that the model learns no end; name another one with "
    "data.template"
)
MARKUP = frozenset(suffix + packing for suffix in (".html", ".htm", ".xml") for packing in ("", *PACKINGS))
TAGS_LEARNED = "whose tags and scripts are learned, too; for the text alone: pandoc FILE --to=plain --output=FILE.txt"
NAMED = 3
"""Documents that are named for what is replaced in them."""
SHOWN = 20
"""Faults, or files, that are named; the others are counted."""


@dataclass(frozen=True, kw_only=True)
class DataInspection:
    """The data of one source of a run on one machine."""

    called: str
    """Its name in the spec."""
    folder: str
    context: int
    held_out_every: int
    held_out_by: str
    files: tuple[tuple[str, int], ...]
    """The files that are read: name and bytes."""
    left_out: tuple[LeftOut, ...]
    converted: tuple[tuple[str, str], ...]
    """Files in another encoding than UTF-8, and in which."""
    characters: int
    replaced: int
    """Characters that are U+FFFD, since there was no valid one, or NUL."""
    replaced_in: tuple[str, ...]
    """Some of the documents, or pieces of one, that have more of them than all may have."""
    documents: int
    duplicates: int
    """Documents that already appear earlier."""
    long: int
    """Documents of more than `context` tokens."""
    talks: Mapping[str, int]
    """How many tokens of conversations are learned and how many are not: see `ChatEncoder.counts`."""
    closing: str | None
    """The token that ends an answer; empty if the template uses none, None if nobody has looked."""
    tokens: int
    held_out: int
    """Of them, those that nobody trains on."""
    is_counted: bool
    """Whether all tokens were counted, and not estimated."""
    holds_out_pieces: bool
    """Whether pieces of long documents are held out, since there are few documents."""
    passes: float | None
    """How often the whole run reads all of it; None for a run without end."""
    faults: tuple[str, ...]
    more_faults: int
    """Beyond those in `faults`."""

    @property
    def bytes_read(self) -> int:
        return sum(size for _, size in self.files)

    @property
    def bytes_left_out(self) -> int:
        return sum(each.size_bytes for each in self.left_out)

    @property
    def refusals(self) -> tuple[str, ...]:
        """All reasons why nobody can train on it, each with what to do; empty if training is possible."""
        found = list(self.faults)
        if self.replaced > MOST_REPLACED * self.characters:
            found.append(
                f"{self.replaced:,} of {self.characters:,} characters are none that anybody wrote, and at most "
                f"{MOST_REPLACED:.1%} may be (see {', '.join(self.replaced_in)}); save the files as UTF-8, or get them "
                "again"
            )
        if self.bytes_left_out > MOST_LEFT_OUT * (self.bytes_left_out + self.bytes_read):
            found.append(
                f"{_megabytes(self.bytes_left_out)} are left out and {_megabytes(self.bytes_read)} read; convert what "
                "is left out, or move it elsewhere"
            )
        if not self.faults and self.talks and not self.talks.get("learned"):
            found.append(
                f"no answer is learned, and {self.talks.get('beyond', 0):,} have no room in a context of "
                f"{self.context:,} tokens; raise model.context, or mend the conversations"
            )
        elif not self.faults and self.tokens <= self.context:
            found.append(
                f"all of it is {_count(self.tokens, 'token')}, and a window has {self.context + 1:,}; add text, or "
                "lower model.context"
            )
        elif not found and not self.faults and self.held_out <= self.context:
            found.append(
                f"{_count(self.held_out, 'token')} of it are held out, and a window has {self.context + 1:,}; add "
                f"documents, or lower data.held_out_every, which is {self.held_out_every}"
            )
        return tuple(found)

    def refused(self, most: int = SHOWN) -> tuple[str, ...]:
        """The first of `refusals`, and how many more there are."""
        found = self.refusals
        more = max(0, len(found) - most) + self.more_faults
        return (*found[:most], f"and {more:,} more") if more > 0 else found

    def require_sound(self) -> None:
        """Raises BadInput with the reasons."""
        if refused := self.refused():
            raise BadInput(f"{self.folder} cannot be trained on: {'; '.join(refused)}")

    def table(self) -> list[tuple[str, str]]:
        """A table in words: a subject and a line of text each."""
        about = "" if self.is_counted else "about "
        copies = f", of which {self.duplicates:,} are copies of others" if self.duplicates else ""
        longer = f"; {self.long:,} longer than the context of {self.context:,} tokens" if self.long else ""
        rows = [("read", f"{_count(len(self.files), 'file')}, {_megabytes(self.bytes_read)}{self._kinds()}")]
        rows += self._left_out_rows()
        rows += [("converted", f"{name}, from {encoding}") for name, encoding in self.converted[:SHOWN]]
        if len(self.converted) > SHOWN:
            rows.append(("converted", f"and {len(self.converted) - SHOWN:,} more"))
        if tagged := [name for name, _ in self.files if _suffix(name) in MARKUP]:
            rows.append(("as it is", f"{_count(len(tagged), 'file')} of HTML or XML, {TAGS_LEARNED}"))
        rows += [
            ("characters", f"{self.characters:,}, of which {self.replaced:,} are replaced"),
            ("documents", f"{self.documents:,}{copies}{longer}"),
            *self._answers(),
            ("tokens", f"{about}{self.tokens:,}"),
            ("passes", self._passes_in_words()),
            ("held out", self._held_out_in_words()),
        ]
        return rows + [("fault", each) for each in self.refused()]

    def _answers(self) -> Iterator[tuple[str, str]]:
        """How many tokens of conversations are learned, and how many are not, and why."""
        if not self.talks:
            return
        said = Counter(self.talks)
        where = "" if self.is_counted else "of the first conversations "
        end = f"; each ends with {self.closing}, which is learned" if self.closing else ""
        yield "answers", f"{where}{said['learned']:,} are learned{end}"
        why = {
            "empty": "are empty, and teach nothing", "mute": "are nothing but what the chat template does not write",
            "unweighted": "have the weight 0",
            "beyond": f"have no room in a context of {self.context:,} tokens behind all that is said before them: "
            f"{_count(said['long'], 'conversation')} end before them",
        }  # fmt: skip
        yield from (("not learned", f"{where}{said[key]:,} answers {what}") for key, what in why.items() if said[key])
        if said["silent"]:
            yield "not learned", f"{where}{said['silent']:,} conversations have no answer that is, and are left out"
        dropped = [f"{key.removeprefix(LEFT_OUT)} {number:,} times" for key, number in said.items() if LEFT_OUT in key]
        if dropped:
            yield "not learned", f"{where}the chat template writes no {', no '.join(sorted(dropped))}"
        if self.closing == "":
            yield "not learned", NO_CLOSING

    def _kinds(self) -> str:
        kinds = Counter(_suffix(name) for name, _ in self.files)
        return f" ({', '.join(f'{number:,} {kind}' for kind, number in kinds.most_common(6))})" if kinds else ""

    def _left_out_rows(self) -> list[tuple[str, str]]:
        if not self.left_out:
            return [("left out", "nothing")]
        rows = [("left out", f"{_count(len(self.left_out), 'file')}, {_megabytes(self.bytes_left_out)}")]
        largest = sorted(self.left_out, key=lambda each: -each.size_bytes)
        rows += [("left out", f"{each.name}, {_megabytes(each.size_bytes)}: {each.why}") for each in largest[:SHOWN]]
        if len(largest) > SHOWN:
            rows.append(("left out", f"and {len(largest) - SHOWN:,} more"))
        return rows

    def _passes_in_words(self) -> str:
        if not self.talks and self.tokens <= self.context:
            return "none: there is too little text for one window"
        if self.passes is None:
            return "the run has no last round; it reads all of it again and again"
        times = f"{self.passes:,.0f}" if self.passes >= MANY_PASSES else f"{self.passes:.2g}"
        said = f"the run reads all of it about {times} times"
        if self.passes > MANY_PASSES:
            said += "; after some four a model learns little from it: add text, or have fewer rounds"
        return said

    def _held_out_in_words(self) -> str:
        what = f"one document in {self.held_out_every:,}, by the hash of its {self.held_out_by}"
        if self.held_out_by == "name":
            return f"{what}, so that copies may be on both sides; data.held_out_by = 'content' has them on one"
        pieces = ", by pieces of about a page, as there are few documents" if self.holds_out_pieces else ""
        return f"{what.replace('content', 'text')}{pieces}; nobody trains on that"


def inspect(spec: RunSpec, data_path: str) -> tuple[DataInspection, ...]:
    """The data that a run finds in these files, for each of its sources that reads files. Nothing is downloaded.
    Raises BadInput if a folder does not exist, or nothing in it is read."""
    if not spec.data.mix:
        alone = [(spec, 1.0)] if spec.data.source == "files" else []
    else:
        total = sum(part.weight for part in spec.data.mix)
        files = [part for part in spec.data.mix if part.source == "files"]
        alone = [(replace(spec, data=spec.data.alone(part)), part.weight / total) for part in files]
    places, tokenizer = folders(spec, data_path), _tokenizer_here(spec)
    require_there(places.values())
    return tuple(_inspect(one, places[one.data.path], share, tokenizer) for one, share in alone)


def format_in(folder: str) -> str:
    """The `data.format` of these files: `chat` if the first row is a conversation. Raises BadInput."""
    told = Findings(raises=False)
    rows = (row for file in find_files(folder, told.fault).of_rows().files for _, row in rows_of(file, None, told))
    row = next(rows, None)
    return "chat" if isinstance(row, dict) and not row.keys().isdisjoint(KEYS) else "text"


def fingerprint_of(spec: RunSpec, data_path: str) -> bytes:
    """Changes with the run, and with any name, size, or time of change of its files here. Raises BadInput."""
    found = [find_files(folder) for folder in folders(spec, data_path).values()]
    return digest_of(pack((spec.digest(), data_path, tuple(fingerprint(each.base, each.names) for each in found))))


def _tokenizer_here(spec: RunSpec) -> Tokenizer | None:
    """None for a tokenizer that must be downloaded first."""
    if spec.model.tokenizer == "bytes":
        return ByteTokenizer()
    is_here = spec.model.tokenizer == START and spec.start is not None and start_blob.is_here(spec.start.digest)
    return tokenizer_of(spec) if is_here else None


def _inspect(spec: RunSpec, folder: str, share: float, tokenizer: Tokenizer | None) -> DataInspection:
    told = Findings(raises=False)
    found = files_of(spec, folder, told)
    encoder = None if tokenizer is None else encoder_of(spec, tokenizer)
    counted = _Counts(spec, encoder)
    for document in documents_in(found, spec, told):
        try:
            counted.add(document)
        except BadSpec as error:  # a template that is refused: once says it
            told.fault(error)
            break
        except BadInput as error:  # a conversation that the template refuses
            told.fault(error)
    closing = _closing(spec, tokenizer)
    if encoder is not None:
        encoder.rest()
    table = spec.data
    return DataInspection(
        called=table.path, folder=folder, context=spec.model.context, held_out_every=table.held_out_every,
        held_out_by=table.held_out_by,
        files=tuple((file.name, file.size_bytes) for file in found.files), left_out=found.left_out,
        converted=tuple(sorted(told.encodings.items())),
        characters=counted.characters, replaced=counted.replaced,
        replaced_in=tuple(counted.replaced_in), documents=counted.documents,
        duplicates=counted.duplicates, long=counted.long + counted.talks.get("long", 0), talks=counted.talks,
        closing=closing, tokens=round(counted.tokens), held_out=round(counted.held_out), is_counted=counted.is_exact,
        holds_out_pieces=table.format == "text" and not is_whole(found, table.held_out_every),
        passes=_passes(spec, share, counted.tokens), faults=tuple(told.faults), more_faults=told.more_faults,
    )  # fmt: skip


def _closing(spec: RunSpec, tokenizer: Tokenizer | None) -> str | None:
    if spec.data.format != "chat" or tokenizer is None:
        return None
    return "" if tokenizer.closing is None else tokenizer.name_of(tokenizer.closing)


def _passes(spec: RunSpec, share: float, tokens: float) -> float | None:
    """How often its founders together read all of it, or one peer its own data."""
    if not spec.run.rounds:
        return None
    readers = 1 if spec.data.private else spec.run.founders
    return share * readers * spec.run.rounds * spec.round.steps * spec.step_tokens / max(1.0, tokens)


class _Counts:
    """Of documents whose pieces come one after the other."""

    def __init__(self, spec: RunSpec, encoder: DocumentEncoder | None) -> None:
        self._context, self._table, self._encoder = spec.model.context, spec.data, encoder
        self.characters = self.replaced = self.documents = self.duplicates = self.long = 0
        self.replaced_in = list[str]()
        self.tokens = self.held_out = 0.0
        self.is_exact = encoder is not None
        self._of_document = 0.0
        self._seen = set[int]()

    @property
    def talks(self) -> Mapping[str, int]:
        return {} if self._encoder is None else dict(self._encoder.counts)

    def add(self, document: Document) -> None:
        """Raises the encoder's errors for a conversation that its template refuses."""
        if document.piece == 0:
            self.documents, self._of_document = self.documents + 1, 0.0
            seen, content = len(self._seen), document.whole or content_of(document.text)
            self._seen.add(int(content[:16], 16))  # a few bytes of each, of however many
            self.duplicates += len(self._seen) == seen
        before, tokens = self._of_document, self._tokens(document)
        self._of_document += tokens
        self.tokens += tokens
        self.held_out += tokens if document.is_held_out(self._table) else 0
        self.long += before <= self._context < self._of_document
        self.characters += len(document.text)
        replaced = document.text.count(REPLACED) + document.text.count("\0")  # which rows can hold
        self.replaced += replaced
        if replaced > MOST_REPLACED * len(document.text) and len(self.replaced_in) < NAMED:
            self.replaced_in.append(printable(document.name))

    def _tokens(self, document: Document) -> float:
        if self._encoder is not None and self.characters < SAMPLE:
            return float(len(self._encoder.encode(document.text, document.name)))
        self.is_exact = False
        per_character = self.tokens / self.characters if self._encoder is not None else 1 / TOKEN_CHARACTERS
        return len(document.text) * per_character


def _suffix(name: str) -> str:
    """With what it is packed by."""
    suffixes = PurePosixPath(name.lower()).suffixes
    return "".join(suffixes[-2:] if PACKINGS.intersection(suffixes[-1:]) else suffixes[-1:])


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB" if size_bytes >= 1e5 else f"{size_bytes / 1e3:,.1f} kB"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
