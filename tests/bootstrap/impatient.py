"""`python -m bootstrap` that looks around many times a second."""

import sys

from bootstrap import around, server
from bootstrap.__main__ import main

if __name__ == "__main__":
    around.LOOK_S = server.LOOK_S = 0.05
    sys.exit(main())
