"""`python -m peer.autotune SPEC.toml --device D`: train a few steps on noise, and print what is fastest and has room.

A process of its own, since it may run out of memory, and gives back all that it took. Started by
`peer.autotune.cache`.
"""

from __future__ import annotations

import argparse
import sys

from dht.errors import HomefiresError
from dht.process import die_with_parent
from peer.host.threads import sleep_while_waiting


def main(arguments: list[str] | None = None) -> int:
    die_with_parent()
    sleep_while_waiting()
    parser = argparse.ArgumentParser(prog="python -m peer.autotune")
    parser.add_argument("spec")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--most", type=int, default=0, help="sequences of a micro-batch; 0: as many as a step reads")
    options = parser.parse_args(arguments)
    from peer.autotune.trial import fit  # torch takes seconds, in which whoever started this may end
    from peer.spec import load

    try:
        print(fit(load(options.spec), options.device, options.most).to_json())
    except HomefiresError as error:
        print(f"homefires: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
