"""The trainer stands back; the threads that answer its owner and start its link do not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from peer.testing.child_process import HANG_S

pytestmark = pytest.mark.outside

STORY = """
import os, threading
from peer.node.host.processes import stand_back
from peer.schema.settings import PeerSettings
go, told = threading.Event(), {}
def answer():
    go.wait(60)
    told["control"] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
control = threading.Thread(target=answer, name="control")
worker = threading.Thread(target=go.wait, args=(60,), name="pool")
control.start(); worker.start()
before = os.getpriority(os.PRIO_PROCESS, 0)
assert before < 17, before
words = stand_back(PeerSettings(nice=17))
told["main"] = os.getpriority(os.PRIO_PROCESS, 0)
told["pool"] = os.getpriority(os.PRIO_PROCESS, worker.native_id)
born = threading.Thread(target=lambda: told.update(born=os.getpriority(os.PRIO_PROCESS, 0)))
born.start(); born.join()
go.set(); control.join(); worker.join()
print(words == "", told["main"], told["pool"], told["born"], told["control"] == before)
"""


LINKS = """
import os, sys
from pathlib import Path
from peer.network.link.handle import LinkProcess
from peer.node.host.processes import stand_back
from peer.schema.settings import PeerSettings
LinkProcess.module = "waits_for_ever"
before = os.getpriority(os.PRIO_PROCESS, 0)
link = LinkProcess("", Path(sys.argv[1]), PeerSettings(), lambda message: None, lambda error: None)
stand_back(PeerSettings(nice=17))
link.restart()
print(os.getpriority(os.PRIO_PROCESS, 0), os.getpriority(os.PRIO_PROCESS, link._process.pid) == before)
link.kill()
link._process.wait(60)
"""


def test_a_link_that_is_started_again_is_as_quick_as_the_first(tmp_path: Path) -> None:
    (tmp_path / "waits_for_ever.py").write_text("import signal\nsignal.pause()\n")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[4]}"}
    run = subprocess.run(
        [sys.executable, "-c", LINKS, str(tmp_path)], capture_output=True, text=True, timeout=HANG_S, check=True,
        env=environment,
    )  # fmt: skip
    assert run.stdout.split() == ["17", "True"]


def test_threads_of_the_trainer_have_its_niceness_and_no_others() -> None:
    """In a process of its own, since niceness cannot be taken back."""
    run = subprocess.run(
        [sys.executable, "-c", STORY], capture_output=True, text=True, timeout=HANG_S, check=True
    )  # fmt: skip
    assert run.stdout.split() == ["True", "17", "17", "17", "True"]
