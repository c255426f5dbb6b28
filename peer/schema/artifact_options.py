"""What `homefires` and the child process that it starts must both know of exports, chats and audits."""

from __future__ import annotations

from typing import Literal, get_args

What = Literal["adapter", "merged", "base"]
"""Of a run from a model: the adapter alone, that and the model it belongs to as one, the model from which it starts."""
Digits = Literal["f32", "f16", "q8_0"]
"""Of each number of a matrix in a GGUF file: 4 bytes, 2, or 34 bytes for 32 numbers. Vectors have 4."""
Tracker = Literal["tensorboard"]
"""A program that reads the log as files of its own."""
WHAT, DIGITS, TRACKERS = get_args(What), get_args(Digits), get_args(Tracker)
TEMPERATURE = 0.7
"""With which a chat draws its words, unless somebody says another one."""
ANSWER_TOKENS = 256
"""The most tokens of an answer in a chat, unless somebody says another number."""
AUDITED = "audited round"
"""How a line on stderr begins that says how far an audit is."""
EXPORTING = "export: "
"""The same of an export."""
