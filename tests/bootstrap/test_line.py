"""The organiser limits what its node sends and takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bootstrap import __main__ as command
from bootstrap import server
from dht.errors import BadInput, Unreachable
from dht.node import NetworkConfig


@pytest.fixture(name="opened")
def opened_fixture(monkeypatch: pytest.MonkeyPatch) -> list[NetworkConfig]:
    """With what the node would be opened; it never is."""
    opened: list[NetworkConfig] = []

    def no_node(config: NetworkConfig) -> None:
        opened.append(config)
        raise Unreachable("there is no network here")

    monkeypatch.setattr(server, "open_node", no_node)
    monkeypatch.setattr(command, "die_with_parent", lambda: None)
    return opened


@pytest.mark.parametrize(
    ("words", "limits"), [([], (0, 0)), (["--upload", "8"], (8e6, 0)), (["--upload=1", "--download=50"], (1e6, 5e7))]
)  # fmt: skip
def test_its_node_is_limited(
    words: list[str], limits: tuple[float, float], tmp_path: Path, opened: list[NetworkConfig]
) -> None:
    assert command.main(["micro", "--dir", str(tmp_path), *words]) == Unreachable.exit_code
    (config,) = opened
    assert (config.upload_bps, config.download_bps) == limits


@pytest.mark.parametrize("cap", ["much", "0", "0.1", "nan", "-5", "1e9"])
def test_what_is_no_limit_is_refused_with_its_option(
    cap: str, tmp_path: Path, opened: list[NetworkConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["micro", "--dir", str(tmp_path), "--check", f"--download={cap}"]) == BadInput.exit_code
    assert capsys.readouterr().err == (
        f"homefires: --download is '{cap}'; write megabits per second, between 0.5 and 1,000,000\n"
    )
