"""`python -m bootstrap` that looks around many times a second."""

import sys

from bootstrap import peer_monitor, server
from bootstrap.__main__ import main

if __name__ == "__main__":
    peer_monitor.LOOK_S = server.LOOK_S = 0.05
    sys.exit(main())
