"""Which screens there are, in the order of their keys."""

from __future__ import annotations

from tui.dashboard.home import HomePanel
from tui.dashboard.learning import LearningPanel
from tui.dashboard.limits import LimitsPanel
from tui.dashboard.log import LogPanel
from tui.dashboard.network import NetworkPanel
from tui.dashboard.panel import Panel
from tui.dashboard.peer import PeerPanel
from tui.dashboard.peers import PeersPanel
from tui.dashboard.rounds import RoundsPanel

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
