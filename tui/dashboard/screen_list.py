"""Which screens there are, in the order of their keys."""

from __future__ import annotations

from tui.dashboard.screens.curves import LearningPanel
from tui.dashboard.screens.home import HomePanel
from tui.dashboard.screens.limits import LimitsPanel
from tui.dashboard.screens.log import LogPanel
from tui.dashboard.screens.network import NetworkPanel
from tui.dashboard.screens.peer import PeerPanel
from tui.dashboard.screens.peers import PeersPanel
from tui.dashboard.screens.rounds import RoundsPanel
from tui.dashboard.view import Panel

SCREENS: dict[str, type[Panel]] = {
    "home": HomePanel,
    "peers": PeersPanel,
    "rounds": RoundsPanel,
    "learning": LearningPanel,
    "network": NetworkPanel,
    "log": LogPanel,
    "limits": LimitsPanel,
}
"""By id; the first one is shown at the start, and the n-th is on key n."""

DETAIL = "peer"
"""The screen of one peer, which Enter opens."""

PANELS: dict[str, type[Panel]] = SCREENS | {DETAIL: PeerPanel}
