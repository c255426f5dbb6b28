"""Checks the files of training text that a run expects from its volunteers. It loads torch, as all reading of data
does.
"""

from __future__ import annotations

from dht.errors import BadInput
from peer.schema.byte_text import format_bytes
from peer.tools.doctor.check import Check, failed, one_line, passed, warned
from peer.training.data.inspection import MANY_PASSES, DataInspection

NOTICED = ("left out", "converted", "not learned")
"""Rows of an inspection about which an owner should know."""


def check_data(found: DataInspection) -> Check:
    """Of files that their owner has named: whether they can be trained on, and what of them is."""
    about = "" if found.is_counted else "about "
    said = one_line(
        f"{len(found.files):,} files in {found.folder} with {format_bytes(found.bytes_read)}: "
        f"{found.documents:,} documents, {about}{found.tokens:,} tokens"
    )
    figures = {
        "files": len(found.files), "left_out_files": len(found.left_out), "left_out_bytes": found.bytes_left_out,
        "replaced_characters": found.replaced, "duplicates": found.duplicates, "long_documents": found.long,
        "tokens": found.tokens, "passes": found.passes or 0.0,
    }  # fmt: skip
    if refused := found.refused():
        fix = "mend these files, or move them elsewhere"
        return failed("data", one_line("; ".join(refused)), fix, BadInput, **figures)
    rows = found.table()
    notices = [f"{name}: {text}" for name, text in rows if name in NOTICED and text != "nothing"]
    if found.passes is not None and found.passes > MANY_PASSES:
        notices.append(dict(rows)["passes"])
    if notices:
        return warned("data", said, one_line(f"nothing must be done, but see: {'; '.join(notices)}"), **figures)
    return passed("data", said, **figures)
