"""Nothing that is loaded from here on may fetch code."""

import peer.data  # noqa: F401
