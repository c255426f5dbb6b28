"""Token batches. Importing this package also forbids transformers to fetch code, before anything loads it."""

import os
import sys

# transformers runs code from the Hub through the package `kernels`, if it is installed: here it is not.
sys.modules.setdefault("kernels", None)  # type: ignore[arg-type]
os.environ["USE_HUB_KERNELS"] = "0"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
# Whoever is logged in there may read what is private: no spec shall have that read.
os.environ["HF_HUB_DISABLE_IMPLICIT_TOKEN"] = "1"
