"""`python -m peer.parallel.autotune SPEC.toml --devices D …`: trains a few steps on noise and prints the fastest
configuration that fits into memory.

It is a process of its own, since it may run out of memory and must return all that it took. It is started by
`peer.parallel.autotune.cache`.
"""

from __future__ import annotations

import argparse
import sys

from dht.errors import HomefiresError
from dht.process import die_with_parent
from peer.node.host.threads import sleep_while_waiting


def main(arguments: list[str] | None = None) -> int:
    die_with_parent()
    sleep_while_waiting()
    parser = argparse.ArgumentParser(prog="python -m peer.parallel.autotune")
    parser.add_argument("spec")
    parser.add_argument("--devices", nargs="+", default=["auto"])
    parser.add_argument("--sharding", default="auto")
    parser.add_argument("--offload", action="store_true", help="layers may lie in main memory")
    parser.add_argument("--compile", default="auto", help="whether compiled blocks are tried: auto, yes or no")
    parser.add_argument("--most", type=int, default=0, help="sequences of a micro-batch; 0: as many as a step reads")
    options = parser.parse_args(arguments)
    from peer.parallel.autotune.rank_trials import (
        fit_devices,  # torch takes seconds, in which whoever started this may end
    )
    from peer.schema.spec import load

    try:
        fit = fit_devices(
            load(options.spec),
            options.devices,
            sharding=options.sharding,
            offload=options.offload,
            most=options.most,
            compile=options.compile,
        )
        print(fit.to_json())
    except HomefiresError as error:
        print(f"homefires: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
