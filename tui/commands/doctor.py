"""`homefires doctor` and `homefires devices`: whether this machine can take part in a run, and on what."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tui.commands.options import INVITE, Commands, add_addresses, add_command


def add_to(commands: Commands) -> None:
    """Add them."""
    add_command(commands, "devices", _devices, "list what can train on this machine, as --device calls it")
    parser = add_command(commands, "doctor", _doctor, "say what keeps this machine from taking part, and what to do")
    text = f"{INVITE} (default: the run of --dir, else only what needs no run)"
    parser.add_argument("invite", nargs="?", default="", metavar="INVITE", help=text)
    text = "where the peer lives or would live (default: by run, below your data)"
    parser.add_argument("--dir", type=Path, metavar="DIR", help=text)
    parser.add_argument("--device", default="", metavar="D", help="auto, cpu, cuda, cuda:1 or mps (default auto)")
    add_addresses(parser, "--listen", "as for join; repeatable")
    parser.add_argument("--json", action="store_true", help="print one JSON object per check, the verdict last")


def _devices(options: argparse.Namespace) -> int:
    from tui.commands.doctor_run import list_devices

    print(list_devices())
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from dht.invite import read_text
    from tui.commands.doctor_run import DoctorOptions, run_doctor

    invite = read_text(options.invite) if options.invite else ""
    asked = DoctorOptions(invite=invite, directory=options.dir, device=options.device, listen=tuple(options.listen))
    return run_doctor(asked, sys.stdout, as_json=options.json, debug=options.debug)
