"""Settings on disk and in memory: private, whole, and the command line wins."""

from __future__ import annotations

import stat
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dht.errors import BadInput, BadSpec
from peer.node.control import saved_settings
from peer.node.limits.desired_state import Desired, DesiredState, Intent
from peer.schema.live_settings import LiveSettings
from peer.schema.settings import PeerSettings, dump_settings, settings_from, settings_of

ALL: dict[str, Any] = {
    "name": 'al "the cat"', "devices": ("cuda:0", "cuda:1"), "sharding": "full", "offload": True, "compile": "no",
    "stages": 0, "activations": "bfloat16", "threads": 4, "data_path": "~/my texts", "min_step_s": 0.25,
    "listen": ("/ip4/127.0.0.1/tcp/0",),
    "chain_mb": 100, "upload_mbps": 20.5, "download_mbps": 1e5, "newcomers_mbps": 0.0, "on_battery": True,
    "schedule": "mon-fri 22:00-07:00, sat-sun", "idle_min": 10.0, "pause_for": ("steam", "Elden Ring.exe"),
    "max_temperature_c": 70.0, "max_power_w": 180.0, "monthly_gb": 300.0, "disk_gb": 50.0, "memory_gb": 12.0,
    "nice": 19, "metrics_port": 9464,
}  # fmt: skip


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Every setting there is; nobody else can read them."""
    chosen = PeerSettings(**ALL)
    assert set(ALL) == set(vars(chosen))
    saved_settings.write(tmp_path, chosen)
    assert settings_of(saved_settings.read_table(tmp_path)) == chosen
    assert stat.S_IMODE((tmp_path / saved_settings.FILE).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [saved_settings.FILE]


def test_only_what_was_chosen_is_written(tmp_path: Path) -> None:
    """So that a better default of a later version reaches who never chose."""
    saved_settings.write(tmp_path, PeerSettings(nice=5))
    assert saved_settings.read_table(tmp_path) == {"nice": 5}
    assert saved_settings.read_table(tmp_path / "nowhere") == {}


def test_a_word_of_an_older_client_is_read_and_what_is_said_later_wins(tmp_path: Path) -> None:
    """Whoever upgrades keeps the device that was chosen."""
    (tmp_path / saved_settings.FILE).write_text('device = "cuda:1"\n')
    kept = saved_settings.read_table(tmp_path)
    assert settings_from([], kept).devices == ("cuda:1",)
    assert settings_from(["settings.devices=cuda:0,cuda:1"], kept).devices == ("cuda:0", "cuda:1")
    saved_settings.write(tmp_path, settings_of(kept))
    assert saved_settings.read_table(tmp_path) == {"devices": ["cuda:1"]}


def test_processors_and_gpus_may_be_several() -> None:
    for devices in (("cpu", "cpu", "cpu"), ("cuda", "cuda:1"), ("auto",), ("cuda:3",)):
        assert settings_of({"devices": devices}).devices == devices
    for count in (4, 6, 9):
        assert settings_of({"devices": ["cpu"] * count, "sharding": "hybrid"}).sharding == "hybrid"


def test_the_command_line_wins_over_what_was_kept() -> None:
    kept = {"upload_mbps": 10.0, "idle_min": 5, "listen": ["/ip4/0.0.0.0/tcp/4001"]}
    chosen = settings_from(["settings.upload_mbps=20"], kept, listen=())
    assert (chosen.upload_mbps, chosen.idle_min, chosen.listen) == (20.0, 5.0, ("/ip4/0.0.0.0/tcp/4001",))
    assert settings_from([], kept, listen=("/ip4/127.0.0.1/tcp/0",)).listen == ("/ip4/127.0.0.1/tcp/0",)


@pytest.mark.parametrize("content", [b"nice = ", b"\xff\xfe", b"nice = 5\nnice = 6"])
def test_a_damaged_file_is_one_line_that_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / saved_settings.FILE).write_bytes(content)
    with pytest.raises(BadSpec, match=r"settings\.toml is not TOML .*correct it, or remove it") as error:
        saved_settings.read_table(tmp_path)
    assert "\n" not in str(error.value)


def test_a_key_that_is_not_known_is_refused_at_start_too(tmp_path: Path) -> None:
    """With the name of the file."""
    (tmp_path / saved_settings.FILE).write_text("idle_minutes = 5\n")
    with pytest.raises(BadSpec, match=r"settings\.toml: unknown key 'idle_minutes'; did you mean 'idle_min'"):
        saved_settings.read_table(tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"schedule": "mon-fry"}, "settings: schedule: 'fry': days are mon"),
        ({"idle_min": -1}, "settings: idle_min is -1; it must be between 0 and 10080"),
        ({"max_temperature_c": 20}, r"max_temperature_c is 20; it must be 0 \(no limit\) or between 30 and 120"),
        ({"max_power_w": 5}, r"max_power_w is 5; it must be 0 \(no limit\) or between 10 and 5000"),
        ({"monthly_gb": 0.01}, "monthly_gb is 0.01"), ({"disk_gb": -5}, "disk_gb is -5"),
        ({"memory_gb": float("nan")}, "memory_gb is nan"), ({"nice": 20}, "nice is 20; it must be between 0 and 19"),
        ({"pause_for": ["x" * 65]}, "a program has 1 to 64 printable characters"),
        ({"pause_for": [f"p{n}" for n in range(65)]}, "the number of programs in pause_for is 65"),
        ({"on_battery": "perhaps"}, "on_battery is 'perhaps'"), ({"devices": "cuda\x7f"}, "devices is 'cuda"),
        ({"devices": "cpu, gpu"}, "devices is 'gpu'; use auto, cpu"), ({"devices": ""}, "devices is ''; use auto, cpu"),
        ({"devices": "auto, cuda"}, "devices is 'auto, cuda'; auto stands alone"),
        ({"devices": "cuda, cpu"}, "devices is 'cuda, cpu'; several must be of one kind"),
        ({"devices": "cuda, cuda:0"}, "devices is 'cuda, cuda:0'; one GPU is named twice"),
        ({"devices": "mps, mps"}, "devices is 'mps, mps'; one GPU is named twice"),
        ({"devices": ["cpu"] * 17}, "the number of devices is 17; it must be between 1 and 16"),
        ({"stages": "some"}, "stages is 'some'"),
        ({"stages": 33}, "stages is 33"),
        ({"stages": 2, "devices": ["cpu", "cpu"]}, "stages is 2, and devices names 2; .* trains on one device"),
        ({"activations": "int3"}, "activations is 'int3'; use int8, bfloat16 or float32"),
        ({"sharding": "half"}, "sharding is 'half'; use auto, replicated, full, hierarchical or hybrid"),
        ({"sharding": "hybrid", "devices": ["cpu"] * 5}, "sharding is 'hybrid', .* 4, 6, 8 .* devices names 5"),
        ({"offload": "perhaps"}, "offload is 'perhaps'"), ({"threads": 10**9}, "threads is 1e\\+09"),
        ({"listen": "/ip4/0.0.0.0/tcp"}, "/ip4/0.0.0.0/tcp"), ({"listen": "4001"}, "4001"),
        ({"nice": None}, "nice is None"), ({"upload_mbps": [1]}, "upload_mbps is \\[1\\]"),
    ],
)  # fmt: skip
def test_a_refusal_names_key_value_and_range_and_changes_nothing(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    chosen = LiveSettings(keep=partial(saved_settings.write, tmp_path))
    heard: list[PeerSettings] = []
    chosen.listen(heard.append)
    with pytest.raises(BadInput, match=message) as error:
        chosen.change({"chain_mb": 5} | values)
    assert "\n" not in str(error.value)
    assert (chosen.settings, heard, list(tmp_path.iterdir())) == (PeerSettings(), [PeerSettings()], [])


def test_a_peer_that_listens_nowhere_may_do_so() -> None:
    """Others reach it through relays."""
    chosen = LiveSettings()
    assert chosen.change({"listen": "none"}) == "listen takes effect when the peer starts again"
    assert chosen.settings.listen == ("none",)


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.lists(st.text(max_size=5))


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(sorted(ALL)) | st.text(max_size=10), VALUES, max_size=4))
@settings(max_examples=500)
def test_whatever_is_asked_for_is_refused_or_survives_a_restart(values: dict[str, Any]) -> None:
    """Nothing that is taken can make a file that the next start does not read."""
    chosen = LiveSettings()
    try:
        chosen.change(values)
    except BadInput:
        assert chosen.settings == PeerSettings()
    else:
        assert settings_of(tomllib.loads(dump_settings(chosen.settings))) == chosen.settings


def test_who_listens_hears_the_present_and_every_change() -> None:
    """And says what else it takes; who is forgotten hears no more."""
    chosen, heard = LiveSettings(), list[float]()

    def listen(settings: PeerSettings) -> str:
        heard.append(settings.nice)
        return "a lower nice takes effect later" if settings.nice < 10 else ""

    chosen.listen(listen)
    assert chosen.change({"nice": 12}) == ""
    assert chosen.change({"nice": 3, "threads": 2}) == (
        "a lower nice takes effect later; threads takes effect when the peer starts again"
    )
    chosen.forget(listen)
    chosen.change({"nice": 1})
    assert heard == [10, 12, 3]


def test_the_chain_has_at_most_half_of_the_disk_quota() -> None:
    assert PeerSettings(chain_mb=4000).chain_bytes == 4 * 10**9
    assert PeerSettings(chain_mb=4000, disk_gb=2).chain_bytes == 10**9
    assert PeerSettings(chain_mb=100, disk_gb=2).chain_bytes == 10**8


# ---- what the owner wished last ----


@pytest.mark.parametrize("wished", [Desired(wish) for wish in Intent] + [Desired(Intent.TRAIN, 1_794_830_000.25)])
def test_a_wish_that_is_written_is_read(tmp_path: Path, wished: Desired) -> None:
    assert saved_settings.read_wish(tmp_path) == Desired()
    saved_settings.write_wish(tmp_path, wished)
    assert saved_settings.read_wish(tmp_path) == wished
    assert [path.name for path in tmp_path.iterdir()] == [saved_settings.WISH]


def test_a_snooze_keeps_its_end_and_one_that_is_over_is_none(tmp_path: Path) -> None:
    """Not so many hours more with every restart."""
    now = [1000.0]
    DesiredState(lambda: now[0], keep=partial(saved_settings.write_wish, tmp_path)).snooze(3600.0)
    now[0] += 600.0
    again = DesiredState(lambda: now[0], saved_settings.read_wish(tmp_path))
    assert (again.pausing, again.until) == (True, 4600.0)
    now[0] = 4600.0
    assert not DesiredState(lambda: now[0], saved_settings.read_wish(tmp_path)).pausing


def test_who_finishes_the_round_while_it_snoozes_goes_on_to_snooze_after_it(tmp_path: Path) -> None:
    """It would be a pause without an end, where one with an end was asked for."""
    now = [1000.0]
    wishes = DesiredState(lambda: now[0], keep=partial(saved_settings.write_wish, tmp_path))
    wishes.snooze(3600.0)
    wishes.wish(Intent.FINISH)
    assert not wishes.pausing
    wishes.round_is_given()
    assert (wishes.pausing, wishes.until) == (True, 4600.0)
    assert saved_settings.read_wish(tmp_path) == Desired(Intent.TRAIN, 4600.0)
    now[0] = 4600.0
    assert not wishes.pausing


def test_a_round_that_is_finished_is_a_pause_also_after_a_restart(tmp_path: Path) -> None:
    """Before it is given the next life finishes it."""
    wishes = DesiredState(keep=partial(saved_settings.write_wish, tmp_path))
    wishes.wish(Intent.FINISH)
    assert saved_settings.read_wish(tmp_path) == Desired(Intent.FINISH)
    wishes.round_is_given()
    assert saved_settings.read_wish(tmp_path) == Desired(Intent.PAUSE)


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{}", '{"wish": "explode", "until": null}', '{"wish": [], "until": null}', '{"wish": "pause"}',
        '{"wish": "resume", "until": "soon"}', '{"wish": "resume", "until": NaN}', '{"wish": "resume", "until": 1e300}',
        '{"wish": "resume", "until": -5}',
    ],
)  # fmt: skip
def test_a_damaged_wish_is_one_line_that_says_what_to_do(tmp_path: Path, content: str) -> None:
    """A peer that may have been paused does not train unasked."""
    (tmp_path / saved_settings.WISH).write_text(content)
    with pytest.raises(BadInput, match=r"desired\.json is damaged; remove it, and the peer trains$"):
        saved_settings.read_wish(tmp_path)


def test_a_wish_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / saved_settings.WISH).mkdir()
    with pytest.raises(BadInput, match=r"desired\.json cannot be read: Is a directory$"):
        saved_settings.read_wish(tmp_path)
