"""`python -m tui` is `homefires`."""

import sys

from tui.cli import main

sys.exit(main())
