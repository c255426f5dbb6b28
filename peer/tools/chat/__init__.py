"""Nothing that is loaded from here on may fetch code."""

import peer.training.data  # noqa: F401
