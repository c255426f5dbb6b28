"""Which settings the Limits screen shows, whether they can be changed from here, and what each holds up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tui.dashboard.view import View
from tui.swarm.snapshot import PeerView
from tui.text.pause_reasons import Hold
from tui.text.setting_info import SettingInfo, grouped


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    group: str
    first: bool
    """Of its group."""
    setting: SettingInfo
    value: Any


def why_fixed(view: View) -> str:
    """Why nothing can be changed from here; empty if it can."""
    if view.refusal:
        return view.refusal
    if "set" not in view.takes:
        return "these are several peers; change one with: homefires set KEY=VALUE --dir DIR/peer-1"
    return "" if view.mine is not None else "the peer has not started yet"


def shown_peer(view: View) -> PeerView | None:
    """Mine, or the one that is looked at; None if it told nothing itself."""
    peer = view.mine or view.swarm.peers.get(view.selected)
    return peer if peer is not None and peer.reports else None


def _settings(view: View) -> Mapping[str, Any]:
    """As my peer answers, or as the peer that is looked at has told."""
    peer = shown_peer(view)
    if peer is None:
        return {}
    return (view.status.settings if view.mine is peer and view.status else None) or peer.settings


def rows_of(view: View) -> list[Row]:
    """The lines of the table."""
    rows: list[Row] = []
    for group, setting, value in grouped(_settings(view)):
        first = not rows or rows[-1].group != group
        rows.append(Row(group=group, first=first, setting=setting, value=value))
    return rows


def hold_of(setting: SettingInfo, view: View) -> Hold | None:
    """What this setting holds up now."""
    return view.status.hold(setting.hold) if setting.hold and view.status is not None else None
