"""Conversations as people have them: calls, tools, thoughts, weights, parts; and what is too long or says nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dht.errors import BadInput, BadSpec
from peer.training.data.chat.talk_text import Talk
from peer.training.data.chat.token_flags import NUMBER
from peer.training.data.conversations import as_line
from peer.training.data.document_tokens import ChatEncoder
from peer.training.data.inspection import inspect
from peer.training.data.open_source import open_source
from peer.training.data.tokenizer import ByteTokenizer
from tests.peer.training.data.test_chat import CHATML, UNMARKED, make_spec, word_tokenizer

END = ByteTokenizer.end_of_text
CALL = {"type": "function", "id": "c1", "function": {"name": "look", "arguments": {"at": "sky"}}}
TOOL = {"type": "function", "function": {"name": "look", "description": "looks", "parameters": {}}}
CALLING: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "blue"}, {"role": "assistant", "content": "yes"},
    ],
    "tools": [TOOL],
}  # fmt: skip
WITH_CALLS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role ~ ': ' ~ (m.content or '') }}"
    "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{{ ' <end> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def talk_of(row: Any) -> Talk:
    return Talk.from_json(as_line(row, "text", "a row"))


def learned(text: str, context: int = 1000) -> tuple[list[int], dict[str, int]]:
    """What of a conversation is predicted, in bytes, and the counts."""
    encoder = ChatEncoder(ByteTokenizer(), context)
    tokens = encoder.encode(text, "a")
    return tokens[tokens <= NUMBER].tolist(), dict(encoder.counts)


def said(*turns: tuple[str, Any], **of_last: Any) -> dict[str, Any]:
    messages = [{"role": role, "content": content} for role, content in turns]
    messages[-1] |= of_last
    return {"messages": messages}


@pytest.mark.outside
def test_calls_and_tools_go_to_the_template(tmp_path: Path) -> None:
    """`content: null` is a key that is not there, as transformers has it; rows without tools are kept as ever."""
    talk = talk_of(CALLING)
    assert "content" not in talk.messages[1]
    assert talk.tools == [TOOL]
    encoded = word_tokenizer(tmp_path, WITH_CALLS).encode_talk(talk)
    assert encoded.left_out == ()
    assert (encoded.tokens <= NUMBER).sum() > 4  # the call, its end, the answer, its end
    assert as_line(said(("user", "a"), ("assistant", "b")), "text", "") == json.dumps(
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    )


def test_messages_may_be_a_text_as_in_a_csv() -> None:
    row = said(("user", "a"), ("assistant", "b"))
    assert talk_of({"messages": json.dumps(row["messages"])}) == talk_of(row)
    for text in ("", "[", "{}", "[" * 100_000):
        with pytest.raises(BadInput, match="has no list of messages named messages or conversations"):
            talk_of({"messages": text})


def test_tools_may_be_a_text_as_in_columns_of_tables() -> None:
    assert talk_of(CALLING | {"tools": json.dumps([TOOL])}).tools == [TOOL]
    assert talk_of(CALLING | {"tools": None}).tools == ()
    with pytest.raises(BadInput, match="a row has tools that are 'x'; they are a list of JSON schemas"):
        talk_of(CALLING | {"tools": "x"})


def test_bytes_learn_calls() -> None:
    found, _ = learned(as_line(CALLING, "text", "a"))
    assert found == [*json.dumps([CALL]).encode(), END, *b"yes", END]


def test_texts_of_parts_are_one_text() -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    assert talk_of(said(("user", parts), ("assistant", parts))).messages[0]["content"] == "hi"
    with pytest.raises(BadInput, match=r"a row has a part that is .*image.*; texts alone are learned"):
        talk_of(said(("user", [{"type": "image", "url": "x"}]), ("assistant", "a")))


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (said(("user", "a"), ("assistant", "b"), weight=0.5), r"has a weight of 0\.5; it is 0 .*, or 1"),
        (said(("user", "a"), ("assistant", None), tool_calls="f"), "tool_calls that are 'f'"),
        (said(("user", "a"), ("assistant", None), tool_calls=[{"name": 1}]), "tool_calls that are"),
        (said(("user", {}), ("assistant", "b")), "a message that is"),
        (said(("assistant", "a"), ("user", "b"), ("assistant", "c")), "begins with an answer; put what was asked"),
        (said(("user", "a"), ("guide", "b")), "no answer: its roles are 'guide, user'; call the one that answers"),
        (said(("user", "a"), ("assistant", "b")) | {"images": ["a.png"]}, "has images; texts alone are learned"),
    ],
)
def test_what_is_no_message_is_one_line(row: Any, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        talk_of(row)


@pytest.mark.outside
@pytest.mark.parametrize("role", ["Assistant", "GPT", "chatgpt", "model", "Bot", "AI"])
def test_who_answers_has_several_names(role: str) -> None:
    talk = talk_of(said(("Human", "a"), (role, "b")))
    assert [message["role"] for message in talk.messages] == ["user", "assistant"]


def test_an_answer_of_no_weight_is_read_and_not_learned(tmp_path: Path) -> None:
    """By bytes, by a template with marks, and by one without."""
    talk = [("user", "hi"), ("assistant", "yes"), ("user", "so"), ("assistant", "no")]
    row = said(*talk)
    row["messages"][1]["weight"] = 0
    found, counts = learned(as_line(row, "text", "a"))
    assert found == [*b"no", END]
    assert (counts["learned"], counts["unweighted"]) == (1, 1)
    for number, template in enumerate((CHATML, UNMARKED)):
        tokens = word_tokenizer(tmp_path / f"{number}", template).encode_talk(talk_of(row)).tokens
        assert tokens[tokens <= NUMBER].tolist() == [7, 0]
        assert len(tokens) == 16


def test_an_empty_answer_teaches_nothing() -> None:
    """Not even its end; a conversation of nothing else is left out."""
    row = said(("user", "a"), ("assistant", " \n"), ("user", "b"), ("assistant", "c"))
    found, counts = learned(as_line(row, "text", ""))
    assert found == [*b"c", END]
    assert counts["empty"] == 1
    encoder = ChatEncoder(ByteTokenizer(), 64)
    assert len(encoder.encode(as_line(said(("user", "a"), ("assistant", "")), "text", ""), "a")) == 0
    assert encoder.counts["silent"] == 1
    assert np.concatenate([np.empty(0), *encoder.joined([np.empty(0, np.int32)])]).size == 0


def test_no_answer_is_without_its_question() -> None:
    """What is longer than the context ends behind the last answer that has room; told by how many are left out."""
    turns = [("user", "q" * 10), ("assistant", "first"), ("user", "q" * 10), ("assistant", "second")]
    line = as_line(said(*turns), "text", "")
    whole = ByteTokenizer().encode_talk(Talk.from_json(line)).tokens
    for context in range(1, len(whole) + 1):
        found, counts = learned(line, context)
        first, both = [*b"first", END], [*b"first", END, *b"second", END]
        upto = len("user\n\0assistant\nfirst\0") + 10
        assert found == (both if context == len(whole) else first if context >= upto else [])
        assert counts.get("beyond", 0) == 2 - found.count(END)


@pytest.mark.outside
def test_what_a_template_drops_is_told(tmp_path: Path) -> None:
    """Tools, calls and thoughts by one that knows only `content`; and no id, and no white space."""
    row = CALLING | {"messages": [{**each, "content": each["content"] or " "} for each in CALLING["messages"]]}
    row["messages"][3] |= {"reasoning_content": "hm"}
    encoded = word_tokenizer(tmp_path, CHATML).encode_talk(talk_of(row))
    assert sorted(encoded.left_out) == ["reasoning_content", "tool_calls", "tools"]


@pytest.mark.outside
def test_an_answer_that_a_template_does_not_write_is_not_learned(tmp_path: Path) -> None:
    """Its end alone would teach to answer nothing; an answer that is written, too, is learned without the rest."""
    both = said(("user", "hi"), ("assistant", "no"), tool_calls=[CALL])
    answered = [{"role": "tool", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    row = {"messages": [*both["messages"], answered[0], CALLING["messages"][1], *answered]}
    for number, template in enumerate((CHATML, UNMARKED)):
        made = word_tokenizer(tmp_path / f"{number}", template.replace("m['content']", "(m['content'] or '')"))
        encoder = ChatEncoder(made, 1000)
        tokens = encoder.encode(as_line(row, "text", ""), "a")
        assert tokens[tokens <= NUMBER].tolist() == [7, 0, 5, 0]
        assert (encoder.counts["learned"], encoder.counts["mute"]) == (2, 1)


def test_the_inspection_tells_all_of_it(tmp_path: Path) -> None:
    """Counts of what is learned, and of what is not and why; `doctor` has the same rows."""
    long = said(("user", "a"), ("assistant", "b"), ("user", "q" * 200), ("assistant", "c"))
    thought = {"role": "assistant", "content": "y", "reasoning_content": "hm"}
    rows = [
        said(("user", "a"), ("assistant", "b"), weight=0), said(("user", "a"), ("assistant", "")), long,
        CALLING, {"messages": [*CALLING["messages"][:3], thought]},
        *(said(("user", f"{n}"), ("assistant", "b")) for n in range(10)),
    ]  # fmt: skip
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (found,) = inspect(make_spec(250), str(tmp_path))
    told = [row for row in found.table() if row[0] in ("answers", "not learned")]
    assert told == [
        ("answers", "16 are learned; each ends with <|endoftext|>, which is learned"),
        ("not learned", "1 answers are empty, and teach nothing"),
        ("not learned", "1 answers have the weight 0"),
        ("not learned", "2 conversations have no answer that is, and are left out"),
        ("not learned", "the chat template writes no reasoning_content 1 times"),
    ]
    (found,) = inspect(make_spec(120), str(tmp_path))
    beyond = [text for name, text in found.table() if name == "not learned" and "no room" in text]
    assert len(beyond) == 1
    assert "answers have no room in a context of 120 tokens behind all that is said before them" in beyond[0]
    assert found.long > 0


def test_a_run_without_any_answer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "talks.jsonl").write_text(f"{json.dumps(said(('user', 'q' * 1000), ('assistant', 'a')))}\n" * 40)
    with pytest.raises(BadSpec, match="the data hold no training text"):
        open_source(make_spec(eval_sequences=1), str(tmp_path))
    (found,) = inspect(make_spec(), str(tmp_path))
    assert found.refusals == (
        "no answer is learned, and 40 have no room in a context of 32 tokens; raise model.context, or mend the "
        "conversations",
    )
