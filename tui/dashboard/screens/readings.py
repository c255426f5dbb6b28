"""What a peer measures of that which a setting limits."""

from __future__ import annotations

from tui.swarm.snapshot import PeerView
from tui.text.units import format_bytes


def measured_against(name: str, peer: PeerView) -> str:
    """`83 °C now` beside `max_temperature_c`; empty if nothing is measured of what the setting is about."""
    figures, network = peer.device_figures, peer.network
    if name == "chain_mb" and network is not None:
        return _share(network.disk_bytes, network.disk_quota_bytes)
    if name in ("upload_mbps", "download_mbps"):
        points = peer.ups if name == "upload_mbps" else peer.downs
        return f"{points[-1].value * 8 / 1e6:.1f} Mbit/s now" if points else ""
    if figures is None:
        return ""
    if name == "max_temperature_c" and figures.temperature_c is not None:
        return f"{figures.temperature_c:.0f} °C now"
    if name == "max_power_w" and figures.power_w is not None:
        return f"{figures.power_w:.0f} W now"
    if name == "memory_gb" and figures.memory_bytes is not None:
        return f"{format_bytes(figures.memory_bytes)} now"
    return ""


def _share(used: int, quota: int) -> str:
    """1.0 GB of 4.0 GB, 25.0 %"""
    if not used or not quota:
        return f"{format_bytes(used)} now" if used else ""
    return f"{format_bytes(used)} of {format_bytes(quota)}, {100 * used / quota:.1f} %"
