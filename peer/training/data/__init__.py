"""Token batches. And the way to huggingface.co: nothing that is loaded from here on may fetch code.

This is done before any module of this room, or of those that import it, loads transformers.
"""

import os
import sys

# transformers runs code from the Hub through the package `kernels`, if it is installed: here it is not.
sys.modules.setdefault("kernels", None)  # type: ignore[arg-type]
os.environ["USE_HUB_KERNELS"] = "0"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
# Whoever is logged in there may read what is private: no spec shall have that read.
os.environ["HF_HUB_DISABLE_IMPLICIT_TOKEN"] = "1"
