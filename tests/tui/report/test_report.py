"""The page of a run: whole, harmless, the same for the same events, and with the answers that people look for."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dht.errors import BadInput
from peer.schema.events import (
    Evaluated,
    Event,
    EventLine,
    PeerStarted,
    PhaseEntered,
    RoundCommitted,
    RoundStarted,
    SampleWritten,
    format_line,
)
from peer.testing.child_process import HANG_S
from tui.cli import main
from tui.report.report import default_target, write_report

RECORDING = Path(__file__).parents[1] / "recordings" / "demo.jsonl"
VOID = {"meta", "link", "br", "hr", "img", "input"}
HOSTILE = "</dd><script>alert('x')</script>\x1b[2J $\\frac{ _&"


class Page(HTMLParser):
    """Reads a page and refuses one that is not well-formed: every element is closed in order, no id is given twice."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []
        self.attributes: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)
        self.close()
        assert self.open == []
        assert max(self.ids.values(), default=1) == 1

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.tags[tag] += 1
        self.attributes.append((tag, values))
        self.ids.update([values["id"]] if "id" in values else [])
        self.links += [value for name, value in values.items() if name in ("href", "src", "xlink:href")]
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def report(source: Path, tmp_path: Path) -> Page:
    write_report(source, tmp_path / "report.html")
    return Page((tmp_path / "report.html").read_text())


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the recording, as the command makes it."""
    path = tmp_path_factory.mktemp("report") / "out.html"
    assert main(["report", str(RECORDING), "--to", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def recorded(written: Path) -> Page:
    return Page(written.read_text())


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of words alone: to draw their pictures takes a second."""
    monkeypatch.setattr("tui.report.charts.draw_charts", lambda swarm: [])


def write_run(path: Path, peers: int, rounds: int, name: str = "") -> Path:
    """Event lines of peers that make rounds of 10 s together, without a fault; peer 1 may have a name of its own."""
    ids = [f"id-{number}" for number in range(1, peers + 1)]
    lines: list[EventLine] = []

    def add(t: float, peer: str, event: Event) -> None:
        lines.append(EventLine(seq=len(lines), t=1e9 + t, run="cafe", peer=peer, event=event))

    for number, peer in enumerate(ids, 1):
        called = name if number == 1 and name else f"peer {number}"
        add(0, peer, PeerStarted(name=called, version="1", device=called, rounds=rounds))
    for round in range(rounds):
        for peer in ids:
            add(10 * round + 1, peer, RoundStarted(round=round, steps=5))
            add(10 * round + 8, peer, PhaseEntered(round=round, phase="exchange"))
            add(
                10 * round + 9,
                peer,
                RoundCommitted(
                    round=round + 1, digest=f"{round:064x}", state="aa", group=ids,
                    weights=dict.fromkeys(ids, 65536 // peers), penalties=[], tokens=1000, bytes_sent=500,
                    bytes_received=400, round_s=9.0, exposed_s=1.0, norms=dict.fromkeys(ids, 1.5),
                ),
            )  # fmt: skip
        add(10 * round + 9.5, ids[0], Evaluated(round=round + 1, loss=3.0 - 0.1 * round, tokens=64))
    path.write_text("".join(f"{format_line(line)}\n" for line in lines))
    return path


@pytest.mark.slow
def test_the_page_of_the_recording_is_complete_in_itself(recorded: Page, written: Path) -> None:
    """No address leads out of it, nothing in it runs, and its own policy forbids both; it is small."""
    assert written.stat().st_size < 2e6
    assert recorded.tags["script"] == recorded.tags["link"] == recorded.tags["img"] == 0
    assert all(link.startswith("#") and recorded.ids[link[1:]] for link in recorded.links)
    assert not [name for _, values in recorded.attributes for name in values if name.startswith("on")]
    policies = [values["content"] for tag, values in recorded.attributes if "http-equiv" in values]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


@pytest.mark.outside
def test_the_same_events_give_the_same_bytes(written: Path, tmp_path: Path) -> None:
    """Also in another process, whose hashes are others."""
    code = "import sys; from pathlib import Path; from tui.report.report import write_report; "
    code += "write_report(Path(sys.argv[1]), Path(sys.argv[2]))"
    there = tmp_path / "there.html"
    command = [sys.executable, "-c", code, str(RECORDING), str(there)]
    subprocess.run(command, check=True, env=environment(), timeout=HANG_S)
    assert written.read_bytes() == there.read_bytes()


def environment() -> dict[str, str]:
    return {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "7"}


@pytest.mark.slow
def test_the_facts_of_the_recording_are_on_top(recorded: Page) -> None:
    for fact in ("20 of 20 rounds", "equal on all peers in every round", "lower is better (round 20)", "time"):
        assert fact in recorded.text


def test_every_penalty_has_a_line_with_who_why_how_much_and_until_when(recorded: Page) -> None:
    """Those of the recording, whose facts `../test_recording_facts.py` has."""
    rows = [row[1:] for row in recorded.rows if len(row) == 7]
    late = next(row for row in rows if row[:2] == ["peer-2", "LATE"])
    assert late[3].endswith("parts came in time")
    assert late[4] == "counts 47 %"
    odd = next(row for row in rows if row[:2] == ["peer-4", "ANOMALY"])
    assert odd[2] == "model.layers.2"
    assert "(z " in odd[3]
    assert odd[5] == "13"
    assert ["peer-3", "ABSENT"] in [row[:2] for row in rows]
    assert "STALE: what it gave was learned some rounds ago" in recorded.text


def test_every_picture_is_described(recorded: Page) -> None:
    """For people who do not see it; and what it shows stands below it for all."""
    pictures = [values for tag, values in recorded.attributes if tag == "svg"]
    assert [values["aria-label"].split(".")[0] for values in pictures] == [
        "Loss", "Lanes of the peers", "Norms of what the peers gave", "Shares of the peers", "Tokens and bytes",
        "Seconds of a round",
    ]  # fmt: skip
    assert all(values["role"] == "img" and values["viewbox"] for values in pictures)
    assert recorded.tags["figcaption"] == recorded.tags["figure"] == len(pictures)
    assert recorded.tags["caption"] == recorded.tags["table"] == 3


def test_pictures_take_the_colour_of_the_page(written: Path) -> None:
    """A dark page has light letters: the ink that stands in for them is gone."""
    text = written.read_text()
    assert "currentColor" in text
    assert "#010203" not in text
    assert "#ffffff" not in text.split("<body>")[1]


@pytest.mark.slow
def test_what_a_peer_calls_itself_is_text(tmp_path: Path) -> None:
    """Not markup, not a formula, not a control sequence; a legend has it, too."""
    page = report(write_run(tmp_path / "run.jsonl", peers=2, rounds=3, name=HOSTILE), tmp_path)
    raw = (tmp_path / "report.html").read_text()
    assert page.tags["script"] == 0
    assert "<script" not in raw
    assert "\x1b" not in raw
    assert "alert('x')" in page.text


@pytest.mark.slow
def test_a_name_that_begins_with_an_underscore_is_in_the_legend(tmp_path: Path) -> None:
    page = report(write_run(tmp_path / "run.jsonl", peers=2, rounds=3, name="_me"), tmp_path)
    assert page.texts.count(" _me") == 3  # in two legends and at its lane


@pytest.mark.slow
def test_many_peers_are_shown_as_one_range_and_as_many_lanes_as_fit(tmp_path: Path) -> None:
    page = report(write_run(tmp_path / "run.jsonl", peers=60, rounds=2), tmp_path)
    assert "median of 60 peers" in page.text
    assert "12 more peers without a lane here." in page.text
    assert len([row for row in page.rows if row[0].startswith("peer ")]) == 60


@pytest.mark.slow
def test_a_long_run_is_told_in_minutes(tmp_path: Path) -> None:
    """Or hours; its file stays small, since neighbouring spans that nobody could tell apart are one."""
    page = report(write_run(tmp_path / "run.jsonl", peers=2, rounds=70), tmp_path)
    assert "minutes since the run began" in page.text


@pytest.mark.usefixtures("undrawn")
def test_other_bits_are_named(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run.jsonl", peers=2, rounds=3)
    lines = path.read_text().splitlines()
    last = max(index for index, text in enumerate(lines) if '"RoundCommitted"' in text)
    lines[last] = lines[last].replace('"state":"aa"', '"state":"bb"')
    path.write_text("\n".join(lines))
    assert "round 3 differs: peer 1 and peer 2" in report(path, tmp_path).text


def test_peers_that_have_only_started_make_a_page_without_pictures(tmp_path: Path) -> None:
    page = report(write_run(tmp_path / "run.jsonl", peers=2, rounds=0), tmp_path)
    assert page.tags["svg"] == 0
    assert "nothing was committed" in page.text
    assert "Nobody was penalised." in page.text


@pytest.mark.usefixtures("undrawn")
def test_a_folder_of_peers_is_read_as_one_run(tmp_path: Path) -> None:
    """Each has its own file there; the page is that of the merged file."""
    whole = write_run(tmp_path / "run.jsonl", peers=3, rounds=4)
    for peer in ("id-1", "id-2", "id-3"):
        (tmp_path / "peers" / peer).mkdir(parents=True)
        mine = [text for text in whole.read_text().splitlines(keepends=True) if f'"peer":"{peer}"' in text]
        (tmp_path / "peers" / peer / "events.jsonl").write_text("".join(mine))
    page = report(tmp_path / "peers", tmp_path)
    assert [row[:3] for row in page.rows if row[0] == "4"] == [["4", "00:39", "3"]]
    assert "equal on all peers" in page.text


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("reporting", "bits", "sent"),
    [
        (1, "one peer reports: nothing to compare", "sent in rounds by the peer that reports"),
        (2, "equal on the 2 peers that report in every round", "sent in rounds by the 2 peers that report"),
    ],
)
def test_of_peers_that_do_not_report_nothing_is_claimed(tmp_path: Path, reporting: int, bits: str, sent: str) -> None:
    """As in the folder of one peer: the others are known only by what it received of them."""
    whole = write_run(tmp_path / "run.jsonl", peers=3, rounds=2).read_text().splitlines(keepends=True)
    kept = [text for text in whole if any(f'"peer":"id-{number + 1}"' in text for number in range(reporting))]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(kept))
    page = report(path, tmp_path)
    assert f"3, {reporting} of them reporting" in page.text
    assert bits in page.text
    assert sent in page.text
    assert "equal on all peers" not in page.text
    assert "sent in rounds by all peers" not in page.text


@pytest.mark.usefixtures("undrawn")
def test_lines_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run.jsonl", peers=2, rounds=3)
    path.write_text(f"{path.read_text()}not an event\n")
    assert "lines that could not be read 1" in report(path, tmp_path).text


@pytest.mark.usefixtures("undrawn")
def test_nothing_to_read_and_nowhere_to_write_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(BadInput, match=r"empty\.jsonl"):
        write_report(tmp_path / "empty.jsonl", tmp_path / "out.html")
    run = write_run(tmp_path / "run.jsonl", peers=2, rounds=1)
    with pytest.raises(BadInput, match=r"nowhere/out\.html: No such file or directory; name another file with --to"):
        write_report(run, tmp_path / "nowhere" / "out.html")


def test_the_events_themselves_are_not_written_over(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run.jsonl", peers=2, rounds=1)
    before = run.read_bytes()
    with pytest.raises(BadInput, match="is the file that is read; name another"):
        write_report(run, run)
    assert run.read_bytes() == before


def test_the_page_goes_into_the_folder_or_beside_the_file(tmp_path: Path) -> None:
    assert default_target(tmp_path) == tmp_path / "report.html"
    assert default_target(tmp_path / "demo.jsonl") == tmp_path / "demo.html"


@pytest.mark.slow
def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --to the page lies beside the file."""
    run = write_run(tmp_path / "run.jsonl", peers=2, rounds=1)
    assert main(["report", str(run)]) == 0
    out = tmp_path / "run.html"
    assert capsys.readouterr().out.startswith(f"{out}: 1 round of 2 peers, ")
    assert out.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.usefixtures("undrawn")
def test_the_lines_of_one_peer_tell_of_rounds_of_all_their_members(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run.jsonl", peers=2, rounds=1)
    run.write_text("".join(line for line in run.read_text().splitlines(keepends=True) if '"peer":"id-1"' in line))
    assert ": 1 round of 2 peers, " in write_report(run, tmp_path / "out.html")


def test_a_source_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "nothing")]) == BadInput.exit_code
    assert "nothing" in capsys.readouterr().err


@pytest.mark.outside
def test_only_a_report_loads_what_draws() -> None:
    """Every other command would be a second slower."""
    code = "import sys; from tui.cli import main; main(['report', '--help']); sys.exit('matplotlib' in sys.modules)"
    command = [sys.executable, "-c", code]
    subprocess.run(command, check=True, env=environment(), timeout=HANG_S, stdout=subprocess.DEVNULL)


def test_samples_are_listed_by_prompt(tmp_path: Path) -> None:
    """So that one sees what has changed. Markup in them is text."""
    told = [
        SampleWritten(round=round, prompt=prompt, text=f"{prompt} {round} {HOSTILE}")
        for round in (1, 2)
        for prompt in ("b", "a")
    ]
    lines = [EventLine(seq=n, t=float(n), run="r", peer="A", event=event) for n, event in enumerate(told)]
    (tmp_path / "events.jsonl").write_text("".join(f"{format_line(line)}\n" for line in lines))
    page = report(tmp_path / "events.jsonl", tmp_path)
    head = page.rows.index(["prompt", "round", "how it goes on"])
    rows = page.rows[head + 1 : head + 5]
    assert [row[:2] for row in rows] == [["a", "1"], ["a", "2"], ["b", "1"], ["b", "2"]]
    assert rows[0][2].startswith("a 1 </dd><script>alert('x')</script>")
    assert page.tags["script"] == 0
