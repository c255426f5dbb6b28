"""Chat templates, each rendered in a process of its own (`template_child.py`) with limits of time and memory."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from dht.errors import BadInput, BadSpec
from peer.training.data.chat.talk_text import Talk

MOST_S = 20.0
"""Of a processor's time for one conversation, which takes a millisecond."""
PATIENCE = 10
"""Times as long on the clock: a machine may be busy with much else."""
MOST_LINE = 1 << 28
"""Bytes of what the child says."""
CHILD = "peer.training.data.chat.template_child"


@dataclass(frozen=True, kw_only=True)
class TemplateSource:
    """A template, and everything that it is told beside a conversation."""

    plain: str
    with_tools: str
    """For conversations that have tools; some tokenizers have another one for those."""
    special: Mapping[str, Any]
    """Special tokens by their names in templates."""
    date: str
    """What `strftime_now` takes for today, as YYYY-MM-DD."""


class ChatTemplate:
    """Renders conversations. Its process begins with the first one, and ends with this object, or at `rest`."""

    def __init__(self, source: TemplateSource) -> None:
        self.source = source
        self._child: _Child | None = None
        self._lock = threading.Lock()

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The text behind which the assistant answers. Raises BadInput, BadSpec."""
        return str(self._asked("prompt", Talk(messages))["text"])

    def whole(self, talk: Talk) -> str:
        """The text of a whole conversation. Raises BadInput for messages that the template refuses, BadSpec for a
        template that takes too long, or too much memory."""
        return str(self._asked("whole", talk)["text"])

    def marked(self, talk: Talk) -> tuple[str, list[tuple[int, int]]]:
        """And the spans of learned answers in it, for a template that marks answers."""
        said = self._asked("marked", talk)
        return said["text"], [(start, end) for start, end in said["spans"]]

    def pieces(self, talk: Talk) -> list[tuple[str, bool]]:
        """The pieces of a conversation's text, each with whether it is learned: what follows the prompt for it.
        Raises BadSpec also for a template that rewrites the beginning of a conversation once it goes on."""
        return [(text, is_learned) for text, is_learned in self._asked("pieces", talk)["pieces"]]

    def rest(self) -> None:
        """End the process, which takes 0.1 GB, until there is another conversation."""
        with self._lock:
            if self._child is not None:
                self._child.end()
                self._child = None

    def _asked(self, kind: str, talk: Talk) -> Any:
        messages = [{key: value for key, value in each.items() if key != "weight"} for each in talk.messages]
        request = {"kind": kind, "messages": messages, "tools": list(talk.tools), "learned": talk.learned}
        with self._lock:
            if self._child is None:
                self._child = _Child(self, asdict(self.source) | {"most_s": MOST_S})
            return self._child.ask(request)


class _Child:
    """A process that has a template, until the object that owns it is gone."""

    def __init__(self, owner: object, template: Mapping[str, Any]) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(PATIENCE * MOST_S)
        # Each thread of OpenBLAS would take address space, of which there is little.
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", CHILD], stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.DEVNULL,
                env=environment, start_new_session=True,
            )  # fmt: skip
        self._socket, self._said = ours, ours.makefile("rb")
        self._broken = ""
        self.end = weakref.finalize(owner, _end, process, ours, self._said)
        try:
            self.ask(template)
        except BadSpec as error:  # it is none, and stays none
            self._broken = str(error)

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The child's answer. Raises BadInput and BadSpec; once the process is gone, BadSpec again and again."""
        if self._broken:
            raise BadSpec(self._broken)
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            line = self._said.readline(MOST_LINE)
        except OSError:  # it does not listen any more, or says nothing
            line = b""
        if not line.endswith(b"\n"):
            self.end()
            self._broken = f"the chat template takes longer than {MOST_S:.0f} s for a conversation; choose another one"
            raise BadSpec(self._broken)
        return _understood(json.loads(line))


def _understood(said: dict[str, Any]) -> dict[str, Any]:
    if "wrong" in said:
        raise BadSpec(f"the chat template {said['wrong']}")
    if "refused" in said:
        raise BadInput(f"the chat template does not take these messages: {said['refused']}")
    return said


def _end(process: subprocess.Popen[bytes], connection: socket.socket, said: BinaryIO) -> None:
    said.close()
    connection.close()
    process.kill()
    process.wait()
