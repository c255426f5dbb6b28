from __future__ import annotations

import hypothesis  # noqa: F401  # before a recording freezes what the collector sees: it looks for referrers of trio's

from tests.pictures import OTHER

collect_ignore = ["test_pictures.py"] if OTHER else []
