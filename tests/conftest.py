"""Read before any test imports torch."""

import os

# The tests' models are small: a second thread waits for the first one, and for whatever else the machine does.
os.environ.setdefault("OMP_NUM_THREADS", "1")
