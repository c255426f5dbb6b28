"""Token batches. Importing this package also forbids transformers to fetch code, before anything loads it."""

import logging
import os
import sys

# transformers runs code from the Hub through the package `kernels`, if it is installed: here it is not.
sys.modules.setdefault("kernels", None)  # type: ignore[arg-type]
# These it would load with some architectures, to compute otherwise than peers that have none.
for package in ("causal_conv1d", "fla"):
    sys.modules.setdefault(package, None)  # type: ignore[arg-type]
logging.getLogger("transformers.integrations.hub_kernels").setLevel(logging.ERROR)  # it advises to install them
os.environ["USE_HUB_KERNELS"] = "0"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
# Whoever is logged in there may read what is private: no spec shall have that read.
os.environ["HF_HUB_DISABLE_IMPLICIT_TOKEN"] = "1"
