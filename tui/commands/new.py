"""`homefires new`: asks five questions, and writes the spec of a run, with a forecast of what the run will take."""

from __future__ import annotations

import copy
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, TypeVar

from dht.atomic_files import write_atomic
from dht.errors import BadInput, BadSpec, Unreachable
from peer.schema.events import printable
from peer.schema.model_layers import ADAPTED
from peer.schema.settings import PeerSettings
from peer.schema.spec import DRAFTS, SHIPPED, RunSpec, dump, from_mapping, parse_tables, read_text
from peer.schema.spec_fields import HUB_NAME, MOST_FOUNDERS, MOST_ROUNDS
from peer.schema.toml_tables import read
from tui.command_line import Argument, Command, Option
from tui.data_page import format_in, inspected, require_on_hub, require_sound
from tui.spec_choice import Sets, adopt, is_to_adopt, lay_over
from tui.terminal import columns, wrapped
from tui.text.units import count

if TYPE_CHECKING:
    from peer.planning.plan.round_cost import RoundCost

WHOLE, BESIDE = "continue-1b", "adapter-8b"
"""The shipped specs that supply all other values, for a run that trains a whole model, and for one that trains an
adapter."""
CARD_BYTES = 12e9
"""The memory of a home GPU. A model that needs more to be trained as a whole gets an adapter."""
ROUNDS = ("round.", "codec.", "inner.sequences", "inner.accumulation")
"""The settings of a spec that a plan chooses, or that decide what it would choose."""
LEAST_WARM = 5
"""A run has so many times the rounds in which it warms up, or none is planned that is longer."""
WIDTH = 100
"""The columns of a table if no terminal says how many it has."""
FEW_FILES = 20
"""One of this many documents is held out, if documents are a person's files and not rows of a data set."""
WHO = {"everybody": "open", "invited": "invited"}
QUESTIONS = {
    "model": (
        "Which model? OWNER/NAME at huggingface.co, a folder or a .gguf file of yours, or a shipped run such as tiny, "
        "which begins with random numbers",
        "smollm2-135m-code",
    ),
    "friends": ("How many peers begin it? The run waits for so many; more may come at any time", "2"),
    "who": ("Who may join? everybody, or invited: those to whom you give an invite with a token", "everybody"),
    "time": ("How long? A time such as 12h or 7d, or a number of rounds", "7d"),
    "data": (
        "Which data? stdlib (the source of Python), a folder of text that each volunteer has, or OWNER/NAME of a data "
        "set at huggingface.co",
        "stdlib",
    ),
}
"""For each option, the question and its default answer. The data come last: with all else they can be looked at."""
Found = TypeVar("Found")
USUALLY = ("friends",)
"""Questions whose default answer is taken where nobody can be asked."""


def _answer(name: str) -> Option:
    return Option(f"the answer to: {QUESTIONS[name][0]}", name.upper())


@dataclass(frozen=True, kw_only=True)
class NewCommand(Command):
    """The answers as they were typed; empty: not given yet."""

    to: Annotated[Path | None, Argument("where to write it (default: NAME.toml here)", "FILE")] = None
    model: Annotated[str, _answer("model")] = ""
    data: Annotated[str, _answer("data")] = ""
    friends: Annotated[str, _answer("friends")] = ""
    who: Annotated[str, _answer("who")] = ""
    time: Annotated[str, _answer("time")] = ""
    sets: Sets = ()

    def run(self) -> int:
        if self.to is not None:
            _require_new(self.to)
        lay_over({}, self.sets)
        for name in QUESTIONS:
            if answer := getattr(self, name):
                require_answer(name, answer, f"--{name}")
        wishes, table = self._settled("model", lambda wishes: _with_model(wishes.model, wishes.sets))
        for name in ("friends", "who", "time"):
            wishes, _ = wishes._settled(name, lambda wishes: None)
        wishes, (spec, cost, planned) = wishes._settled("data", lambda wishes: made(wishes, table))
        path = self.to or Path(f"{spec.run.name}.toml")
        _require_new(path)
        write_atomic(path, dump(spec).encode())
        of_what, *needs = about(spec, cost)
        print(*(wrapped(line, WIDTH) for line in (of_what, *planned, *needs)), sep="\n")
        if spec.data.source == "files":
            print(f"each volunteer says where the text lies: --set data_path={wishes.data}")
        print(f"written to {path}; start it with: homefires bootstrap {path}")
        return 0

    def _settled(self, name: str, follow: Callable[[NewCommand], Found]) -> tuple[NewCommand, Found]:
        """This command with the answer, and what follows from it. Who is asked is told at once what is wrong with an
        answer, and asked again; the others stand. Raises what `follow` does for an answer that was given."""
        if getattr(self, name):
            return self, follow(self)
        while True:
            answer = _ask(name, sys.stdin, sys.stderr)
            wishes: NewCommand = replace(self, **{name: answer})  # type: ignore[arg-type]
            try:
                return wishes, follow(wishes)
            except (BadInput, Unreachable) as error:
                if isinstance(error, BadSpec) and self.sets:  # no other answer mends a value of --set
                    raise BadSpec(f"{error}; your answers with another --set: {wishes._again()}") from error
                print(wrapped(printable(str(error)), WIDTH), file=sys.stderr)

    def _again(self) -> str:
        """The command that has every answer so far."""
        given = [f"--{name}={answer}" for name in QUESTIONS if (answer := getattr(self, name))]
        return shlex.join(["homefires", "new", *([str(self.to)] if self.to else []), *given])


def _require_new(path: Path) -> None:
    """Nothing is asked and no data are read for a file that cannot be written. Raises BadInput."""
    if path.exists():
        raise BadInput(f"{path} exists; name another file, or remove it")
    if not path.parent.is_dir():
        raise BadInput(f"{path.parent} is no folder; make it, or name a file in another one")
    if not os.access(path.parent, os.W_OK):
        raise BadInput(f"nothing can be written to {path.parent.resolve()}; name a file in another folder")


def look_at(spec: RunSpec, folder: str) -> None:
    """Show what the organiser's own text contains for the run. Raises BadInput if nobody can train on it."""
    found = inspected(dump(spec), folder)
    for each in found:
        print(*each.lines(columns(WIDTH)), sep="\n", file=sys.stderr)
    require_sound(found)


def look_up(spec: RunSpec) -> None:
    """See that huggingface.co has the data. Where that cannot be known, the organiser is told, and may be right.
    Raises BadInput for a name that does not exist."""
    print(f"looking for {spec.data.path} at huggingface.co", file=sys.stderr, flush=True)
    try:
        require_on_hub(dump(spec))
    except Unreachable:
        unknown = (
            f"huggingface.co cannot be reached from here, so nobody knows yet whether it has {spec.data.path}; look "
            "before you invite people: without it nobody can take part"
        )
        print(wrapped(unknown, WIDTH), file=sys.stderr)


def _ask(name: str, stdin: TextIO, screen: TextIO) -> str:
    """Ask a question until the answer is valid, and return it. Raises BadInput if nobody can be asked, or nobody
    answers any more."""
    question, usual = QUESTIONS[name]
    if not stdin.isatty():
        if name in USUALLY:
            return usual
        raise BadInput(f"nobody can be asked here, since there is no terminal; add --{name}")
    asked = wrapped(f"{question} [{usual}]", WIDTH)
    while True:
        print(asked, end=" ", file=screen, flush=True)
        line = stdin.readline()
        if not line:
            raise BadInput(f"the answers end before --{name}")
        try:
            require_answer(name, answer := line.strip() or usual, "the answer")
        except BadInput as error:
            print(wrapped(str(error), WIDTH), file=screen)
        else:
            return answer


def require_answer(name: str, answer: str, called: str) -> None:
    """Raises BadInput for one that no run can come of. Whether a model can be had is known once it is loaded, and
    whether there is text in a folder once that is read."""
    match name:
        case "model":
            is_known = answer in (*SHIPPED, *DRAFTS) or HUB_NAME.fullmatch(answer)
            if not is_known and not os.path.exists(os.path.expanduser(answer)):
                known = "a shipped run, such as tiny, a folder, a .gguf file or OWNER/NAME at huggingface.co"
                raise BadInput(f"{called} is {answer[:60]!r}, which is not here; say {known}")
        case "data":
            is_named = answer == "stdlib" or HUB_NAME.fullmatch(answer)
            if not is_named and not os.path.exists(os.path.expanduser(answer)):
                known = "stdlib, a folder that is here, or OWNER/NAME of a data set"
                raise BadInput(f"{called} is {answer[:60]!r}; say {known}")
        case "friends":
            if not re.fullmatch(r"[0-9]{1,3}", answer) or not 1 <= int(answer) <= MOST_FOUNDERS:
                raise BadInput(f"{called} is {answer[:40]!r}; say a number from 1 to {MOST_FOUNDERS}")
        case "who":
            if answer not in WHO:
                raise BadInput(f"{called} is {answer[:40]!r}; say {' or '.join(WHO)}")
        case "time":
            _rounds_of(answer, 1.0, called)


# ---- from answers to a spec ----


def made(wishes: NewCommand, of_model: Mapping[str, Any]) -> tuple[RunSpec, RoundCost, list[str]]:
    """The spec, the cost of its round for its founders, and what was planned about its rounds, in words, from the
    tables of `_with_model`. Raises BadInput for data on which nobody can train, BadSpec, Unreachable."""
    table = copy.deepcopy(dict(of_model))
    table["data"] = table.get("data", {}) | _data_of(wishes.data)
    table["admission"] = table.get("admission", {}) | {"policy": WHO[wishes.who]}
    table["run"] = table["run"] | {"name": _name_of(wishes), "founders": int(wishes.friends)}
    if table["data"].get("format") == "chat":  # of which the answers alone are learned
        table["aggregation"] = table.get("aggregation", {}) | {"weigh": "predicted"}
    lay_over(table, wishes.sets)
    spec, planned = _with_rounds(from_mapping(table, "the answers"), wishes)
    cost = _cost_of(spec)
    spec = replace(spec, run=replace(spec.run, rounds=_rounds_of(wishes.time, cost.round_s, "--time")))
    from peer.planning.plan.strategy import with_deadlines

    exchange_s = max(cost.agreement.exchange, cost.agreement.reduce)
    table = parse_tables(dump(with_deadlines(spec, exchange_s=exchange_s, ready_spread_s=cost.waits_s)))
    lay_over(table, wishes.sets)  # what was set holds, whatever follows from the answers
    spec = from_mapping(table, "the answers")
    if spec.data.source == "files":
        look_at(spec, wishes.data)
    elif spec.data.source == "hub":
        look_up(spec)
    return spec, cost, planned


def _with_rounds(spec: RunSpec, wishes: NewCommand) -> tuple[RunSpec, list[str]]:
    """The spec with the rounds that a plan recommends, and what they are, in words. Those of a shipped run stay, those
    of whoever sets anything about rounds, and those of a run that would be over before it has warmed up."""
    from tui.simulation.recommended import recommended

    is_chosen = any(text.strip().startswith(ROUNDS) for text in wishes.sets)
    if is_chosen or wishes.model in (*SHIPPED, *DRAFTS):
        return spec, []
    found = recommended(spec)
    if found is None:
        return spec, []
    rounds = _rounds_of(wishes.time, _cost_of(found.spec).round_s, "--time")
    table = spec.round
    warm = max(table.sync_rounds + table.ramp_rounds, spec.outer.momentum_warmup_rounds, spec.aggregation.warmup_rounds)
    if rounds < LEAST_WARM * warm:
        return spec, []
    undo = f"with --set round.steps={table.steps}, or another setting of rounds, nothing is planned"
    return found.spec, [f"planned: {found.words}; {undo}"]


def _with_model(model: str, sets: Sequence[str]) -> dict[str, Any]:
    """The tables of a spec, with [model] and [start] of the chosen model.

    Settings of the model are applied before it is loaded, since the digest depends on them.
    """
    of_model = [text for text in sets if text.strip().startswith(("start.", "model."))]
    if model in (*SHIPPED, *DRAFTS):
        lay_over(table := _tables(model), of_model)
        return _adopted(table)
    lay_over(table := {"run": {"name": "new"}, "start": {"model": model}}, of_model)
    adopted = _adopted(table)
    start = {"model": adopted["model"], "start": adopted["start"]}
    whole = _tables(WHOLE) | start
    if _fits(whole):
        return whole
    beside = _tables(BESIDE) | start
    beside["data"] = {key: value for key, value in beside["data"].items() if key != "template"}  # that of its own model
    return beside


def _tables(name: str) -> dict[str, Any]:
    return tomllib.loads(read_text(name))


def _adopted(table: dict[str, Any]) -> dict[str, Any]:
    """The table with the values that follow from its start model, which is loaded for that."""
    if is_to_adopt(table):
        print(f"loading {table['start']['model']}, once", file=sys.stderr, flush=True)
        adopt(table)
    return table


def _fits(table: dict[str, Any]) -> bool:
    """Whether a home GPU can train the whole model, or the architecture supports no adapter."""
    from peer.planning.plan.model_shape import memory_of, shape_of

    spec = read(RunSpec, table, "the answers")  # which no home may have room for
    return spec.model.architecture not in ADAPTED or memory_of(shape_of(spec), spec).device_bytes <= CARD_BYTES


def _data_of(data: str) -> dict[str, Any]:
    """The values of [data]. Raises BadInput."""
    files = {"subset": "", "held_out_every": FEW_FILES, "held_out_by": "content"}
    if data == "stdlib":
        return {"source": "stdlib", "path": "", **files}
    if os.path.exists(named := os.path.expanduser(data)):
        folder = Path(named).resolve()
        format = format_in(folder)
        today = {"date": date.today().isoformat()} if format == "chat" else {}
        return {"source": "files", "path": folder.name, "format": format, **today, **files}
    return {"source": "hub", "path": data, "subset": ""}


def _name_of(wishes: NewCommand) -> str:
    """A name for the run, from its model and its data."""
    parts = (Path(part).name.removesuffix(".gguf") for part in (wishes.model, wishes.data))
    return re.sub(r"[^a-z0-9.]+", "-", "-".join(parts).lower()).strip("-.")[:64]


def _cost_of(spec: RunSpec) -> RoundCost:
    from peer.planning.plan.coefficients import shipped
    from peer.planning.plan.home_cost import UPLOAD_BPS
    from peer.planning.plan.model_shape import shape_of
    from peer.planning.plan.peer_set import Machine, uniform_peers
    from peer.planning.plan.round_cost import predict
    from peer.planning.plan.run_needs import peers_of

    home = Machine(name="a home", upload_mbps=UPLOAD_BPS / 1e6)
    return predict(shape_of(spec), spec, uniform_peers(peers_of(spec), home), shipped())


def _rounds_of(time: str, round_s: float, called: str) -> int:
    """The number of rounds. Raises BadInput."""
    from bootstrap.config import parse_duration_s

    if number := re.fullmatch(r"([0-9]{1,12})( rounds?)?", time):
        if int(number[1]) == 0:
            raise BadInput(f"{called} is 0; a run has a round at least (one without an end: --set run.rounds=0)")
        return min(int(number[1]), MOST_ROUNDS)
    try:
        return max(1, min(MOST_ROUNDS, round(parse_duration_s(called, time) / round_s)))
    except BadInput as error:
        raise BadInput(f"{error}, or a number of rounds") from error


# ---- in words ----


def about(spec: RunSpec, cost: RoundCost) -> list[str]:
    """A description of the run and what it needs, one line each."""
    from peer.planning.plan.peer_set import HOME_FLOPS
    from peer.planning.plan.run_needs import memory_words, needs_of, traffic_words
    from peer.planning.plan.strategy_search import seconds
    from tui.simulation.plan_page import as_short

    needs = needs_of(spec, PeerSettings().chain_bytes)
    trained = f"{as_short(needs.parameters)} parameters"
    of_what = f"{trained} of {spec.start.model}" if spec.start else f"{trained}, random to begin with"
    if spec.adapter is not None and spec.start is not None:
        of_what = f"an adapter of {trained} beside {spec.start.model}"
    return [
        f"{spec.run.name}: trains {of_what}, context {spec.model.context}",
        f"memory of a peer: {memory_words(needs)}",
        f"a round: about {seconds(cost.round_s)} with homes of {HOME_FLOPS / 1e12:.0f} TFLOP/s on 20 Mbit/s; "
        f"{traffic_words(needs)}",
        f"{count(spec.run.rounds, 'round')}: about {seconds(spec.run.rounds * cost.round_s)}"
        if spec.run.rounds
        else "no last round: it goes on until you end it",
    ]
