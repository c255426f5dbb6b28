"""Before the first join: one screen that says what the run is and what it takes, and one question.

Nothing is trained and nothing is kept before the answer is yes. The answer is kept in the run directory, so that nobody
is asked twice. The screen goes to stderr, since stdout belongs to `--ui`.
"""

from __future__ import annotations

import json
import shlex
import shutil
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from dht.atomic_files import write_atomic
from dht.errors import BadInput, Declined, DiskFull, Unreachable
from dht.invite import Invite, as_temporary_file, parse_for
from peer.schema.byte_text import format_bytes
from peer.schema.events import printable
from peer.schema.extras import require_extra
from tui.data_page import inspected, require_sound
from tui.folders import AGREED, is_at_work, note_folder
from tui.processes.children import python_module, repeated
from tui.processes.one_shot import answer
from tui.terminal import columns, wrapped

if TYPE_CHECKING:
    from tui.commands.join import JoinCommand

VERSION = 1
INTRODUCE_S = 120.0
"""The time limit for an introduction. Dialling and asking have their own, shorter time-outs."""
NOT_JOINED = "not joined; nothing was trained, and nothing is kept"
YES = ("y", "yes")
WIDTH, NAMES = 79, 14
"""The most columns of the screen, and of the name before each line."""

Introduce = Callable[[str, Sequence[str]], Mapping[str, Any]]
"""Called with an invite and further addresses; returns the description of the run."""


def introduce(invite: str, peers: Sequence[str] = ()) -> Mapping[str, Any]:
    """Ask the invite's nodes and `peers` about the run, in a child process, which loads hivemind. Raises the error
    with which the child failed."""
    late = Unreachable(f"no address of the invite told within {INTRODUCE_S:.0f} s what the run is")
    with as_temporary_file(invite) as path:
        argv = python_module("peer", "introduce", path, *repeated("--peer", peers))
        told: dict[str, Any] = json.loads(answer("introduction", argv, INTRODUCE_S, late=late, apart=True))
    return told


def consents(
    join: JoinCommand, *, yes: bool, stdin: TextIO, screen: TextIO, introduce: Introduce = introduce,
    is_decided: bool = False, data_path: str = "",
) -> tuple[str, ...]:  # fmt: skip
    """Ask the owner of this machine whether it should join. Returns the chosen settings (`KEY=VALUE`) for a machine
    on which the model does not fit, and remembers the consent. With `is_decided`, the way to train was already
    given. `data_path` names files for the run, which are inspected first.

    From then on, commands find the peer's folder without a name. Raises Declined for a no, BadInvite as
    `JoinCommand.place` does, BadInput if nobody can be asked, and Unreachable if no node describes the run.
    """
    settings: tuple[str, ...] = ()
    directory = join.place()
    invite = parse_for(directory, join.invite, time.time())
    if not (is_agreed(directory, invite) or is_at_work(directory)):
        settings = () if yes else _ask(join, invite, stdin, screen, introduce, is_decided, data_path)
        _remember(directory, invite, "--yes" if yes else "asked")
    try:
        note_folder(directory)
    except OSError as error:
        print(f"commands find this peer with --dir alone: {error.filename}: {error.strerror}", file=screen)
    return settings


def _ask(
    join: JoinCommand, invite: Invite, stdin: TextIO, screen: TextIO, introduce: Introduce, is_decided: bool,
    data_path: str,
) -> tuple[str, ...]:  # fmt: skip
    if not (stdin.isatty() and screen.isatty()):
        raise BadInput(
            "nobody can be asked here whether this machine shall join, since there is no terminal; add --yes"
        )
    many, named = len(invite.addrs), " and the peers you named" if join.peers else ""
    asked = f"{many} address{'es' if many != 1 else ''} of the invite{named}"
    asking = wrapped(f"asking {asked} what the run is; whoever answers sees your IP address", WIDTH)
    print(asking, file=screen, flush=True)
    told = introduce(join.invite, join.peers)
    ways = [] if is_decided else told["ways"]
    for line in [*describe(told, join.place()), *([] if is_decided else lacking(told))]:
        print(printable(line), file=screen)
    _require_disk(told, join.place())
    for name in told["hub_data"]:
        require_extra("datasets", f"the data set {name}")
    asked_for = () if data_path or not told["reads_files"] else (f"data_path={_ask_folder(told, stdin, screen)}",)
    if data_path:
        _look_at(data_path, told["spec"], screen)
    settings: dict[str, tuple[str, ...]] = {str(at): (way["setting"],) for at, way in enumerate(ways, start=1)}
    settings = settings or {word: () for word in YES}
    numbers = "/".join(settings)
    question = f"Join this run, and which way? [{numbers}/N] " if ways else "Join this run? [y/N] "
    word = _word(question, stdin, screen)
    while ways and word in YES:  # it would find no room as it is
        word = _word(f"This machine does not hold the model; say which way. [{numbers}/N] ", stdin, screen)
    if word not in settings:
        raise Declined(NOT_JOINED)
    return (*settings[word], *asked_for)


def _require_disk(told: Mapping[str, Any], directory: Path) -> None:
    """Raises DiskFull where the run has no room for what it writes at least: nobody has to agree to that."""
    nearest = next(place for place in (directory, *directory.absolute().parents) if place.is_dir())
    free, least = shutil.disk_usage(nearest).free, told["least_disk_bytes"]
    if free < least:
        raise DiskFull(
            f"the run takes {format_bytes(least)} of disk at least, and {nearest} has {format_bytes(free)} free; free "
            f"{format_bytes(least - free)}, or name a folder on a larger disk with --dir"
        )


def _ask_folder(told: Mapping[str, Any], stdin: TextIO, screen: TextIO) -> Path:
    """Where the text lies that this run reads, asked until it is one that can be trained on. Raises Declined."""
    while True:
        print("Which folder of your text shall it read? (none: do not join) ", end="", file=screen, flush=True)
        named = stdin.readline().strip()
        if not named:
            raise Declined(NOT_JOINED)
        folder = Path(named).expanduser().resolve()
        try:
            _look_at(str(folder), told["spec"], screen)
        except BadInput as error:
            print(wrapped(printable(str(error)), WIDTH), file=screen)
        else:
            return folder


def _look_at(data_path: str, spec: str, screen: TextIO) -> None:
    """Show what the files contain. Raises BadInput if nobody can train on them."""
    found = inspected(spec, data_path)
    for each in found:
        print(*each.lines(columns(WIDTH)), "", sep="\n", file=screen)
    require_sound(found)


def _word(question: str, stdin: TextIO, screen: TextIO) -> str:
    print(question, end="", file=screen, flush=True)
    return stdin.readline().strip().lower()


def is_agreed(directory: Path, invite: Invite) -> bool:
    """Whether somebody has agreed to this organiser's run in this folder."""
    try:
        said = json.loads((directory / AGREED).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(said, dict) and said | _agreement(invite) == said


def _remember(directory: Path, invite: Invite, how: str) -> None:
    """Write the consent down. Only the run's hash and the organiser matter; the time and the way of consent are for
    people."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    said = _agreement(invite) | {"at": round(time.time()), "how": how}
    write_atomic(directory / AGREED, json.dumps(said).encode() + b"\n")


def _agreement(invite: Invite) -> dict[str, Any]:
    return {"v": VERSION, "run": invite.spec_hash.hex(), "organiser": invite.organiser}


def describe(told: Mapping[str, Any], directory: Path) -> list[str]:
    """The lines of the screen, without the question."""
    where, main = shlex.quote(str(directory)), format_bytes(told["main_bytes"])
    disk = f"{format_bytes(told['least_disk_bytes'])} to {format_bytes(told['disk_bytes'])}"
    length = f"{told['rounds']:,} rounds" if told["rounds"] else "until its organiser ends it"
    rows = [
        ("organiser", "known by these words; compare them with what the organiser told you:"),
        *(("", line) for line in in_two_lines(told["fingerprint"])),
        ("trains", f"a {told['architecture']} language model of {_short(told['parameters'])} parameters, {length}"),
        *([("starts from", told["start"])] if told["start"] else []),
        ("on", f"{told['data']}; licence: {told['licence']}"),
        ("memory", f"about {format_bytes(told['device_bytes'])} on the device that trains, {main} beside"),
        ("disk", f"{disk} in {directory}{_elsewhere(told)}"),
        ("traffic", _traffic(told)),
        ("power", _power(told)),
        ("others see", "your IP address, the name you choose, and what you contribute"),
        ("no code", "comes from the network; models are built from the transformers library here"),
        ("try first", "homefires doctor INVITE says what this machine would make of it"),
        ("pause, leave", _leaving(told, where)),
    ]
    return ["", f"  {told['run']}", *(line for name, text in rows for line in _row(name, text)), ""]


def in_two_lines(words: str) -> tuple[str, str]:
    """Eight words, four in each: they are compared one by one, and no terminal breaks them elsewhere."""
    first = words.split(" ")
    half = len(first) // 2
    return " ".join(first[:half]), " ".join(first[half:])


def _elsewhere(told: Mapping[str, Any]) -> str:
    """Where the peer keeps other data, in words."""
    if not told["elsewhere"]:
        return "; your files' tokens too, which nobody but you can read"
    mine = "" if "tokens" in told["elsewhere"] else "; your files' tokens too, which nobody but you can read"
    return f"{mine}; {told['elsewhere']} in {told['cache']}"


def _leaving(told: Mapping[str, Any], where: str) -> str:
    forget = " --forget" if told["elsewhere"] else ""
    hub = ", but for what huggingface.co gave, in its own cache" if "huggingface.co" in told["data"] else ""
    return f"homefires pause, homefires leave{forget}; then delete {where} and nothing is left{hub}"


def lacking(told: Mapping[str, Any]) -> list[str]:
    """If the model does not fit in the memory of this machine's GPUs: what the owner can do, one line each.
    Otherwise empty."""
    if told["lacking_bytes"] is None:
        return []
    has, needs, ways = format_bytes(told["lacking_bytes"]), format_bytes(told["device_bytes"]), told["ways"]
    head = wrapped(f"  GPU memory here comes to {has}, and training the whole model takes {needs}.", WIDTH)
    rows = [
        f"{number}  {way['words']}: about {way['tokens_per_s']:,.0f} tokens/s (--set {way['setting']})"
        for number, way in enumerate(ways, start=1)
    ]
    if any(way["setting"].startswith("stages=") for way in ways):
        rows.append("or a stage in the cluster of a friend: join again with --cluster and the line that you get")
    indented = partial(textwrap.wrap, width=columns(WIDTH), initial_indent="    ", subsequent_indent=" " * 7)
    told_ways = [line for row in rows for line in indented(row)] or ["    There is no other way for it to train."]
    return [head, *told_ways, ""]


def _row(name: str, text: str) -> list[str]:
    indent = " " * (NAMES + 2)
    return textwrap.wrap(
        f"  {name:<{NAMES}}{text}",
        columns(WIDTH),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _traffic(told: Mapping[str, Any]) -> str:
    day, whole = told["day_bytes"], told["rounds"] * told["round_bytes"]
    if whole and whole < day:
        much = f"{format_bytes(whole)} each way for the whole run"
    else:
        round = f"a round takes {told['round_s']:.0f} s, as with {told['assumed_flops'] / 1e12:g} TFLOP/s"
        much = f"about {format_bytes(day)} a day each way if {round}"
    per_round = f"{format_bytes(told['round_bytes'])} out and as much in per round for {told['peers']} peers"
    return f"{per_round}; {much}; more when newcomers come; cap it with --upload and --download"


def _power(told: Mapping[str, Any]) -> str:
    if told["power_w"] is None:
        return "what your processor draws at full load; no GPU here tells its limit"
    return f"up to {told['power_w']:.0f} W while it trains, which is the limit of the GPU"


def _short(count: float) -> str:
    for limit, unit in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if count >= limit:
            return f"{count / limit:.3g} {unit}"
    return f"{count:.0f}"
