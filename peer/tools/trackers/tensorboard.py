"""Writes the event log of a run as TensorBoard reads it: a folder for each peer, and a step for each round."""

from __future__ import annotations

from pathlib import Path

from dht.errors import BadInput
from peer.schema.extras import require_extra
from peer.tools.trackers.figures import read_figures


def write_tensorboard(directory: Path, out: Path) -> str:
    """Returns a sentence about what was written into the new folder `out`. Raises BadInput."""
    require_extra("tensorboard", "--to tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"--out {out} is there already; name a new folder, or remove it")
    found = read_figures(directory)
    for peer, figures in found.items():
        writer = SummaryWriter(str(out / peer[-8:]))
        for (name, round), figure in sorted(figures.numbers.items()):
            writer.add_scalar(name, figure.value, round, figure.t)
        for (name, round), text in sorted(figures.texts.items()):
            writer.add_text(name, text, round)
        writer.close()
    count = sum(len(figures.numbers) for figures in found.values())
    peers = f"{len(found)} peer{'s' * (len(found) > 1)}"
    return f"{out}: {count:,} figures of {peers}; tensorboard --logdir {out} shows them"
