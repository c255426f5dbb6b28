"""What a tracker is given of a run: the figures of its event log, by peer and round."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dht.errors import BadInput
from peer.__main__ import main
from peer.schema.events import EventLine, InnerProgressed, RoundCommitted, SampleWritten, read_lines
from peer.tools.trackers.figures import figures_in, read_figures

RECORDING = Path(__file__).parents[3] / "tui" / "recordings" / "demo.jsonl"


class Writer:
    """Stands for torch's SummaryWriter, which needs the extra."""

    written: list[tuple[Any, ...]]

    def __init__(self, folder: str) -> None:
        self._peer = Path(folder).name

    def add_scalar(self, name: str, value: float, step: int, t: float) -> None:
        Writer.written.append((self._peer, name, step, value, t))

    def add_text(self, name: str, text: str, step: int) -> None:
        Writer.written.append((self._peer, name, step, text))

    def close(self) -> None:
        Writer.written.append((self._peer, "closed"))


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """The folder of a demo: one below it for each peer."""
    lines = [line for line in RECORDING.read_text().splitlines() if '"type"' in line]
    for peer in sorted(read_peers()):
        (tmp_path / peer).mkdir()
        own = [line for line in lines if f'"peer":"{peer}"' in line]
        (tmp_path / peer / "events.jsonl").write_text("\n".join(own) + "\n")
    return tmp_path


def read_peers() -> set[str]:
    return {line.peer for line in read_lines(RECORDING) if line is not None}


def at(t: float, event: Any) -> EventLine:
    return EventLine(seq=0, t=t, run="r", peer="p1", event=event)


def test_the_last_figure_of_a_round_counts_and_what_is_no_number_is_left_out() -> None:
    def step(t: float, loss: float | None) -> EventLine:
        said = InnerProgressed(
            round=3, step=1, steps=2, loss=loss, tokens=1, tokens_per_s=9.0, learning_rate=0.1
        )  # fmt: skip
        return at(t, said)

    found = figures_in([step(1.0, 2.5), step(2.0, 2.25), at(3.0, SampleWritten(round=3, prompt="Once", text="upon"))])
    assert {name: figure.value for name, figure in found["p1"].numbers.items()} == {
        ("loss/training", 3): 2.25, ("learning rate", 3): 0.1, ("tokens per second", 3): 9.0,
    }  # fmt: skip
    assert found["p1"].numbers["loss/training", 3].t == 2.0
    assert found["p1"].texts == {("sample/Once", 3): "upon"}
    assert ("loss/training", 3) not in figures_in([step(1.0, None)])["p1"].numbers


def test_every_committed_round_of_every_peer_is_there(demo: Path) -> None:
    """Of a demo, and of one of its peers alone."""
    found = read_figures(demo)
    committed = [line for line in read_lines(RECORDING) if line and isinstance(line.event, RoundCommitted)]
    for line in committed:
        assert isinstance(line.event, RoundCommitted)
        weight = found[line.peer].numbers["mine/weight", line.event.round].value
        assert weight == line.event.weights.get(line.peer, 0) / 65_536
    peer = committed[0].peer
    assert read_figures(demo / peer) == {peer: found[peer]}


def test_a_folder_without_events_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no events of a peer"):
        read_figures(tmp_path)


def test_without_tensorboard_one_line_says_what_to_install(
    demo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert main(["events", str(demo), "--to", "tensorboard"]) == 2
    assert "needs tensorboard, which is not installed; install homefires[tensorboard]" in capsys.readouterr().err
    assert not (demo / "tensorboard").exists()


def test_tensorboard_gets_a_folder_for_each_peer_and_no_folder_is_written_twice(
    demo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    summaries: Any = ModuleType("torch.utils.tensorboard")
    summaries.SummaryWriter, Writer.written = Writer, []
    installed = ModuleType("tensorboard")
    installed.__spec__ = ModuleSpec("tensorboard", None)
    monkeypatch.setitem(sys.modules, "tensorboard", installed)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", summaries)
    assert main(["events", str(demo), "--to", "tensorboard"]) == 0
    found = read_figures(demo)
    assert {row[0] for row in Writer.written} == {peer[-8:] for peer in found}
    numbers = [row for row in Writer.written if len(row) == 5]
    assert len(numbers) == sum(len(figures.numbers) for figures in found.values())
    assert f"{len(numbers):,} figures of {len(found)} peers" in capsys.readouterr().out
    assert sum(row[1:] == ("closed",) for row in Writer.written) == len(found)
    (demo / "tensorboard").mkdir()
    (demo / "tensorboard" / "mine").touch()
    assert main(["events", str(demo), "--to", "tensorboard"]) == 2
    assert "is there already" in capsys.readouterr().err
