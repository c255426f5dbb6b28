"""Conversations: read, told apart by the tokenizer's template, and packed into windows."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dht.errors import BadInput, BadSpec
from peer.schema import spec as specs
from peer.schema.spec import RunSpec
from peer.training.data.chat.talk_text import Talk
from peer.training.data.chat.token_flags import BEGINS, HIDDEN, NUMBER
from peer.training.data.document_tokens import ChatEncoder
from peer.training.data.open_source import open_source
from peer.training.data.tokenizer import ByteTokenizer, HubTokenizer
from tests.peer.training.data.read_whole import read_conversations
from tests.talks import write_talks

CONTEXT = 32
END = ByteTokenizer.end_of_text
TALK = [("user", "hi"), ("assistant", "yes"), ("user", "so"), ("assistant", "no")]
CHATML = (
    "{% for m in messages %}{{ '<s> ' + m['role'] + ' ' }}{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] + ' <end> ' }}{% endgeneration %}{% else %}{{ m['content'] + ' <end> ' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s> assistant ' }}{% endif %}"
)
UNMARKED = CHATML.replace("{% generation %}", "").replace("{% endgeneration %}", "")
FORGETS = UNMARKED.replace("m['content'] + ' <end> '", "(m['content'] if loop.last else 'hi') + ' <end> '")
REFUSES = "{{ raise_exception('roles must alternate') }}"


def messages(talk: Sequence[tuple[str, str]] = TALK) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in talk]


def make_spec(context: int = CONTEXT, **data: object) -> RunSpec:
    table = {"source": "files", "path": "talks", "format": "chat", "held_out_every": 4, "eval_sequences": 4, **data}
    return specs.from_mapping(
        {"run": {"name": "t"}, "model": {"architecture": "llama", "context": context}, "data": table}
    )


def word_tokenizer(folder: Path, template: str | None) -> HubTokenizer:
    vocabulary = ["<end>", "<s>", "user", "assistant", "hi", "yes", "so", "no", "?"]
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(vocabulary)}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", unk_token="?")
    fast.chat_template = template
    fast.save_pretrained(folder)
    return HubTokenizer("a/b", folder)


def test_bytes_predict_answers_and_their_end() -> None:
    tokens = ByteTokenizer().encode_talk(Talk(messages())).tokens
    predicted = tokens[tokens <= NUMBER].tolist()
    assert predicted == [*b"yes", END, *b"no", END]
    assert (tokens & NUMBER).tolist() == [
        *b"user\nhi", END, *b"assistant\nyes", END, *b"user\nso", END, *b"assistant\nno", END,
    ]  # fmt: skip
    assert np.flatnonzero(tokens & BEGINS).tolist() == [0]


@pytest.mark.parametrize("template", [CHATML, UNMARKED])
@pytest.mark.outside
def test_a_template_with_marks_and_one_without_tell_the_same_answers(tmp_path: Path, template: str) -> None:
    tokens = word_tokenizer(tmp_path, template).encode_talk(Talk(messages())).tokens
    assert (tokens & NUMBER).tolist() == [1, 2, 4, 0, 1, 3, 5, 0, 1, 2, 6, 0, 1, 3, 7, 0]
    assert tokens[tokens <= NUMBER].tolist() == [5, 0, 7, 0]
    assert tokens[0] == 1 | HIDDEN | BEGINS


@pytest.mark.parametrize(
    ("template", "kind", "why"),
    [(FORGETS, BadSpec, "rewrites earlier messages"), (None, BadSpec, "no chat template"),
     (REFUSES, BadInput, "talk:1: .* roles must alternate")],
)  # fmt: skip
@pytest.mark.outside
def test_a_template_that_tells_no_answers_is_one_clear_line(
    tmp_path: Path, template: str | None, kind: type[Exception], why: str
) -> None:
    encoder = ChatEncoder(word_tokenizer(tmp_path, template), CONTEXT)
    with pytest.raises(kind, match=why) as caught:
        encoder.encode(json.dumps(messages()), "talk:1")
    assert "\n" not in str(caught.value)


def test_both_ways_of_writing_a_conversation_are_read(tmp_path: Path) -> None:
    """Of files and parquet; empty lines are none."""
    ours = {"messages": messages(), "id": 3}
    theirs = {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yes"}]}
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(ours)}\n\n{json.dumps(theirs)}\n")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([ours]), tmp_path / "b.parquet")
    found = [(each.name, json.loads(each.text)) for each in read_conversations(str(tmp_path), "text")]
    assert found == [("a.jsonl:1", messages()), ("a.jsonl:3", messages(TALK[:2])), ("b.parquet#0", messages())]


def test_a_run_may_name_the_key_of_its_messages(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"talk": messages(), "messages": []}))
    assert [json.loads(each.text) for each in read_conversations(str(tmp_path), "talk")] == [messages()]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "a.jsonl:2 is no JSON"), ("[" * 100_000, "a.jsonl:2 is no JSON"),
        ("7", "a.jsonl:2 has no list of messages named messages or conversations"),
        ('{"messages": {}}', "a.jsonl:2 has no list"), ('{"messages": []}', "a.jsonl:2 has no list"),
        ('{"messages": ["hi"]}', "a.jsonl:2 has a message that is 'hi'"),
        ('{"messages": [{"role": "user", "content": 7}]}', "a.jsonl:2 has a message"),
        (json.dumps({"messages": messages(TALK[:1])}), "a.jsonl:2 has no answer"),
        (json.dumps({"messages": messages(TALK[1:])}), "a.jsonl:2 begins with an answer"),
    ],
)  # fmt: skip
def test_a_bad_line_is_named(tmp_path: Path, line: str, why: str) -> None:
    (tmp_path / "a.jsonl").write_text(f"{json.dumps({'messages': messages()})}\n{line}\n")
    with pytest.raises(BadInput, match=why) as caught:
        list(read_conversations(str(tmp_path), "text"))
    assert "\n" not in str(caught.value)


def test_no_conversation_is_cut_that_has_room_and_each_answer_is_predicted_once(tmp_path: Path) -> None:
    """Over one pass of all shards, the held-out ones beside them; but for answers that have no room at all."""
    lengths = write_talks(tmp_path)
    spec = make_spec(context=48, eval_sequences=1000)
    source = open_source(spec, str(tmp_path))
    windows = [source.window(shard, at) for shard, count in source.windows.items() for at in range(count)]
    windows += [row.astype(np.int32) for row in source.held_out()]
    predicted = [window[1:][window[1:] <= NUMBER].tolist() for window in windows]
    whole = Counter(int(found) for each in predicted for found in re.findall(rb"\((\d+)\)", bytes_of(each)))
    assert [whole[at] for at, n in enumerate(lengths) if n <= 48 - 25] == [1] * sum(n <= 48 - 25 for n in lengths)
    answers = [
        [*f"({number})".encode(), END] for number, length in enumerate(lengths)
        if len(f"user\n\0assistant\n({number})\0") + length <= 48
    ]  # fmt: skip
    assert len(answers) < len(lengths)
    assert Counter(chain.from_iterable(predicted)) == Counter(chain.from_iterable(answers))


def bytes_of(tokens: list[int]) -> bytes:
    return bytes(0 if token == END else token for token in tokens)


def test_little_of_a_window_is_filler() -> None:
    """With lengths from 1 to all of it, where one after the other would leave a quarter empty."""
    encoder = ChatEncoder(ByteTokenizer(), 64)
    lengths = np.random.default_rng(1).integers(1, 65, 2000)
    pieces = list(encoder.joined(np.zeros(length, np.int32) for length in lengths))
    tokens = np.concatenate(pieces)
    assert {len(piece) for piece in pieces} == {64}
    assert (tokens == 0).sum() == lengths.sum()
    assert lengths.sum() > 0.85 * len(tokens)


def test_the_standard_library_holds_no_conversations() -> None:
    with pytest.raises(BadSpec, match=r"data\.format is 'chat'"):
        make_spec(source="stdlib")
