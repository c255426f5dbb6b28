"""Templates: what they may take, which day it is, which are shipped, and at which token an answer ends."""

from __future__ import annotations

import dataclasses
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dht.errors import BadInput, BadSpec
from peer.schema import spec as specs
from peer.schema.spec_fields import TEMPLATES
from peer.training.data.chat import template_process
from peer.training.data.chat.talk_text import Talk
from peer.training.data.chat.template_process import ChatTemplate, TemplateSource
from peer.training.data.chat.token_flags import NUMBER
from peer.training.data.chat.training_templates import template_of
from peer.training.data.inspection import inspect
from peer.training.data.open_source import open_source
from peer.training.data.tokenizer import HubTokenizer
from tests.peer.training.data.test_chat import CHATML, UNMARKED, make_spec, messages, word_tokenizer

pytestmark = pytest.mark.outside

TALK = Talk(messages())
THOUGHT = [
    {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes", "reasoning_content": "hm"},
    {"role": "user", "content": "so"}, {"role": "assistant", "content": "no"},
]  # fmt: skip


def template(text: str, date: str = "2025-01-01") -> ChatTemplate:
    return ChatTemplate(TemplateSource(plain=text, with_tools=text, special={}, date=date))


def letter_tokenizer(folder: Path, chat_template: str | None = None, **files: str) -> HubTokenizer:
    """A token for every letter, and two that are no text, as models that were tuned have them."""
    letters = {chr(code): number for number, code in enumerate([10, *range(32, 127)])}
    fast: Any = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(letters, unk_token="?")), eos_token="<|endoftext|>", unk_token="?"
    )
    fast.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast.backend_tokenizer.decoder = decoders.Fuse()
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    fast.chat_template = chat_template
    fast.save_pretrained(folder)
    return HubTokenizer("a/b", folder, **files)


@pytest.mark.parametrize("named", ["", "chatml"])
def test_an_export_asks_as_in_training(named: str, tmp_path: Path) -> None:
    """By the template that a run names, not by the tokenizer's own, which may leave out tools and calls."""
    made = letter_tokenizer(tmp_path, "{{ messages }}", template=named).for_transformers(64)
    assert made.chat_template == (template_of("chatml", tmp_path) if named else "{{ messages }}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}", "takes longer than"),
        ("{{ 'a' * 5000000000 }}", "takes more memory"), ("{{ 'a' * 90000000 }}", "takes more memory"),
        ("{% set a = 'a' * 2 ** 20 %}{% for b in range(90000) %}{{ a }}{% endfor %}", "takes (more memory|longer)"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "takes more memory"),
        ("{% for", "is none: unexpected 'end of template'"),
    ],
)  # fmt: skip
def test_a_template_has_bounds(text: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of time and memory, in a process of its own; and again and again one clear line."""
    if "longer" in why:  # on a slow machine much memory, too, takes a second
        monkeypatch.setattr(template_process, "MOST_S", 1.0)
    made = template(text)
    for _ in range(2 if "macro" in text else 1):
        with pytest.raises(BadSpec, match=f"^the chat template {why}") as caught:
            made.whole(TALK)
        assert "\n" not in str(caught.value)


def test_what_a_template_raises_is_about_the_messages(tmp_path: Path) -> None:
    made = template("{{ 'a' * 5e9 if messages[0].content == 'bad' else 'good' }}")
    with pytest.raises(BadInput, match="does not take these messages: can't multiply"):
        made.whole(Talk(messages([("user", "bad")])))
    assert made.whole(TALK) == "good"


def test_a_template_reaches_no_file_and_no_object() -> None:
    tries = ("{{ ''.__class__.__mro__ }}", "{% include '/etc/passwd' %}", "{{ cycler.__init__.__globals__.os }}")
    cases = [f"{{% elif messages[0].content == '{number}' %}}{text}" for number, text in enumerate(tries)]
    made = template("{% if false %}" + "".join(cases) + "{% else %}none{% endif %}")
    for number in range(len(tries)):
        with suppress(BadInput):
            assert made.whole(Talk(messages([("user", str(number))]))) == ""


@pytest.mark.cold
def test_the_folder_where_somebody_stands_lends_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("peer", "transformers", "json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    assert template("{{ messages[0].content }}").whole(TALK) == "hi"


def test_the_inspection_says_once_that_a_template_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_process, "MOST_S", 1.0)
    monkeypatch.setattr(
        "peer.training.data.inspection._tokenizer_here",
        lambda spec: word_tokenizer(tmp_path / "words", "{{ 9 ** (9 ** 9) }}"),
    )
    (tmp_path / "talks").mkdir()
    (tmp_path / "talks" / "a.jsonl").write_text(f"{json.dumps({'messages': messages()})}\n" * 50)
    (found,) = inspect(make_spec(), str(tmp_path / "talks"))
    assert len(found.faults) == 1
    assert "the chat template takes longer than 1 s" in found.faults[0]


def test_its_process_ends_when_all_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer trains for weeks after that. It begins again where somebody asks."""
    made = word_tokenizer(tmp_path / "words", CHATML)
    for module in ("inspection._tokenizer_here", "open_source.tokenizer_of"):
        monkeypatch.setattr(f"peer.training.data.{module}", lambda spec: made)
    monkeypatch.setenv("HOMEFIRES_CACHE", str(tmp_path / "cache"))
    (tmp_path / "talks").mkdir()
    rows = [{"messages": messages([("user", "hi " * n), ("assistant", "yes")])} for n in range(1, 12)] * 20
    (tmp_path / "talks" / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    inspect(make_spec(16), str(tmp_path / "talks"))
    assert made._talks._template._child is None
    open_source(make_spec(16), str(tmp_path / "talks"))
    assert made._talks._template._child is None
    assert len(made.encode_talk(TALK).tokens) == 16
    assert made._talks._template._child is not None


def test_a_template_knows_one_day(tmp_path: Path) -> None:
    """That of the spec, so that all peers have the same text; and its day changes what is packed."""
    text = "{{ strftime_now('%d %B %Y') }}"
    assert template(text).whole(TALK) == "01 January 2025"
    assert template(text, "2026-11-28").whole(TALK) == "28 November 2026"
    one, other = (letter_tokenizer(tmp_path / date, CHATML, date=date) for date in ("2025-01-01", "2026-11-28"))
    assert one.identity != other.identity
    with pytest.raises(BadSpec, match=r"data\.date is '2026-02-30'; write a day as YYYY-MM-DD"):
        make_spec(date="2026-02-30")


def test_what_is_drawn_is_drawn_alike() -> None:
    text = "{% for a in range(20) %}{{ range(1000) | list | random }} {% endfor %}"
    made = template(text)
    assert made.whole(TALK) == made.whole(TALK) == template(text).whole(TALK)


# ---- templates that are shipped ----

FORGETS = (
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' }}{% if m.role == 'assistant' and loop.last %}"
    "{{ '<think>\n' ~ (m.reasoning_content or '') ~ '\n</think>\n\n' }}{% endif %}{{ m.content ~ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""What was thought in earlier turns, as Qwen3's does."""


def test_a_template_that_rewrites_history_is_told_what_to_do(tmp_path: Path) -> None:
    own = letter_tokenizer(tmp_path / "own", FORGETS)
    with pytest.raises(BadSpec, match=r"rewrites earlier messages.*data\.template"):
        own.encode_talk(Talk(THOUGHT))
    encoded = letter_tokenizer(tmp_path / "named", FORGETS, template="qwen3").encode_talk(Talk(THOUGHT))
    told = own.decode(encoded.tokens[encoded.tokens <= NUMBER].tolist())
    assert told == "<think>\nhm\n</think>\n\nyes<think>\n\n</think>\n\nno"
    assert encoded.left_out == ()


def test_the_training_template_writes_the_newest_turn_as_the_models_own_does() -> None:
    """Text for text, of a conversation with one answer."""
    once = Talk(THOUGHT[:2])
    ours, own = template(template_of("qwen3", Path())), template(FORGETS)
    assert ours.whole(once) == own.whole(once)
    assert ours.prompt(THOUGHT[:1]) == own.prompt(THOUGHT[:1])


R1 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '<｜User｜>' ~ m.content }}{% else %}"
    "{{ '<｜Assistant｜>' ~ m.content.split('</think>')[-1] ~ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\n' }}{% endif %}"
)
"""As what was distilled from DeepSeek-R1: its prompt begins a thought that no earlier turn has."""


def test_a_template_whose_prompt_begins_a_thought_has_one_for_training() -> None:
    special = {"bos_token": "<B>", "eos_token": "<E>"}
    own, ours = (
        ChatTemplate(TemplateSource(plain=text, with_tools=text, special=special, date="2025-01-01"))
        for text in (R1, template_of("deepseek", Path()))
    )
    with pytest.raises(BadSpec, match=r"rewrites earlier messages.*or deepseek for"):
        own.pieces(Talk(THOUGHT))
    text, spans = ours.marked(Talk(THOUGHT))
    assert [text[start:end] for start, end in spans] == ["hm\n</think>\n\nyes<E>", "\n</think>\n\nno<E>"]
    assert own.prompt(THOUGHT[:1]) == ours.prompt(THOUGHT[:1]) == text[: spans[0][0]]
    assert text.startswith("<B><｜User｜>hi<｜Assistant｜><think>\nhm")


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "deepseek"])
def test_a_shipped_template_marks_whole_turns_with_their_end(name: str) -> None:
    """And what stands before an answer is what a model reads that shall give it."""
    made = template(template_of(name, Path()))
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    turns = [
        {"role": "system", "content": "S"}, {"role": "user", "content": "u"},
        {"role": "assistant", "tool_calls": [call, call]}, {"role": "tool", "content": "1"},
        {"role": "tool", "content": "2"}, {"role": "assistant", "content": "done"},
    ]  # fmt: skip
    talk = Talk(turns, [{"function": {"name": "f"}}])
    text, spans = made.marked(talk)
    assert len(spans) == 2
    assert all(text[start:end].endswith("<|im_end|>") for start, end in spans)
    assert all(text[:start].endswith("<|im_start|>assistant\n") for start, _ in spans)
    assert text.count('{"name": "f", "arguments": {"a": 1}}') == 2
    without = made.marked(Talk(turns[:2] + turns[5:]))
    assert made.prompt(turns[:2]) == without[0][: without[1][0][0]]
    assert text.count("<|im_start|>user") == 2


def test_a_template_may_lie_beside_the_model(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text(CHATML.replace("<end>", "<|im_end|>"))
    made = letter_tokenizer(tmp_path, FORGETS, template="mine.jinja")
    assert made.name_of(made.closing) == "<|im_end|>"
    with pytest.raises(BadSpec, match=r"data\.template is 'other\.jinja', which is no text beside the tokenizer"):
        HubTokenizer("a/b", tmp_path, "other.jinja")
    with pytest.raises(BadSpec, match=r"data\.template is '\.\./x\.jinja'; use chatml, .*qwen3, or NAME\.jinja"):
        make_spec(template="../x.jinja")
    with pytest.raises(BadSpec, match="a file that comes with the model"):
        make_spec(template="mine.jinja")


def test_adapter_8b_learns_conversations() -> None:
    assert specs.load("adapter-8b").data.template == "qwen3"


def test_a_run_without_these_keys_is_the_run_that_it_was() -> None:
    spec = specs.load("micro")
    assert not {"template", "date"} & spec.tables()["data"].keys()
    assert dataclasses.replace(spec, data=dataclasses.replace(spec.data, date="2026-01-01")).digest() != spec.digest()


# ---- where an answer ends ----


@pytest.mark.parametrize("marks", [True, False])
def test_the_token_that_closes_an_answer_is_found_and_learned(tmp_path: Path, marks: bool) -> None:
    """Another one than the end of a text; also where a template leaves it out of its marks."""
    inside = "{% generation %}{{ m.content }}{% endgeneration %}" if marks else "{{ m.content }}"
    text = (
        "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' }}{% if m.role == 'assistant' %}" + inside
        + "{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )  # fmt: skip
    made = letter_tokenizer(tmp_path, text)
    assert made.closing is not None
    assert made.name_of(made.closing) == "<|im_end|>"
    assert made.closing != made.end_of_text
    tokens = made.encode_talk(TALK).tokens
    assert (tokens == made.closing).sum() == 2
    assert made.decode(tokens[tokens <= NUMBER].tolist()).replace("\n", "") == "yesno"


OPEN = (
    "{% for m in messages %}{{ '<|im_start|>' if m.role == 'user' else '<|im_end|>' if m.role == 'tool' else 'A' }}"
    "{{ '\n' ~ (m.content or '') }}{% if m.role == 'assistant' %}{{ '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'A\n' }}{% endif %}"
)
"""An answer ends where somebody else begins, as in GLM-4."""


def test_where_the_next_turn_ends_an_answer_its_beginning_is_learned(tmp_path: Path) -> None:
    """Also behind the last answer, and where a tool comes next."""
    made = letter_tokenizer(tmp_path, OPEN)
    assert made.closing is not None
    assert made.name_of(made.closing) == "<|im_start|>"
    talk = Talk([*messages([("user", "hi"), ("assistant", "call"), ("tool", "4")]), *messages([("assistant", "yes")])])
    for said, ends in ((TALK, ["<|im_start|>"] * 2), (talk, ["<|im_end|>", "<|im_start|>"])):
        tokens = made.encode_talk(said).tokens
        learned = tokens[tokens <= NUMBER]
        names = [made.name_of(token) for token in learned.tolist()]
        assert [name for name in names if name.startswith("<|")] == ends
        assert tokens[-1] == made.closing
    quiet = Talk([*messages()[:3], messages()[3] | {"weight": 0}])
    tokens = made.encode_talk(quiet).tokens
    assert (tokens == made.closing).sum() == 1
    assert tokens[-1] > NUMBER


def test_a_template_may_close_the_whole_text(tmp_path: Path) -> None:
    """By end-of-text, where no answer is asked for, as Phi-3's does: that rewrites nothing."""
    turns = "{% for m in messages %}{{ '<|im_start|>' ~ m.role[0] ~ m.content ~ '<|im_end|>' }}{% endfor %}"
    made = letter_tokenizer(
        tmp_path, turns + "{% if add_generation_prompt %}{{ '<|im_start|>a' }}{% else %}{{ eos_token }}{% endif %}"
    )
    tokens = made.encode_talk(TALK).tokens
    assert made.name_of(made.closing or 0) == "<|im_end|>"
    assert (tokens == made.closing).sum() == 2
    assert made.decode(tokens[tokens <= NUMBER].tolist()) == "yesno"


def test_a_template_without_an_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "{% for m in messages %}{{ m.role ~ ':' ~ m.content ~ '|' }}{% endfor %}"
    made = letter_tokenizer(tmp_path / "letters", text + "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}")
    assert made.closing is None
    monkeypatch.setattr("peer.training.data.inspection._tokenizer_here", lambda spec: made)
    (tmp_path / "talks").mkdir()
    (tmp_path / "talks" / "a.jsonl").write_text(f"{json.dumps({'messages': messages()})}\n" * 50)
    (found,) = inspect(make_spec(64), str(tmp_path / "talks"))
    assert any("ends an answer with no token of its own" in text for _, text in found.table())


def test_both_templates_of_a_tokenizer_are_known(tmp_path: Path) -> None:
    """Some have another one for conversations with tools."""
    made = letter_tokenizer(tmp_path, {"default": UNMARKED, "tool_use": "T" + UNMARKED})  # type: ignore[arg-type]
    assert not made.decode(made.encode_talk(TALK).tokens & NUMBER).startswith("T")
    assert made.decode(made.encode_talk(Talk(messages(), [{"name": "f"}])).tokens & NUMBER).startswith("T")
