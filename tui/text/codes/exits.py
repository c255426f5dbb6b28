"""Exit codes of every command: one for each branch of the error tree in `dht/errors.py`."""

from __future__ import annotations

from tui.text.codes.advice import CodePage

EXITS = {
    "0": CodePage(short="done as asked"),
    "1": CodePage(
        short="a bug of ours",
        meaning="The command met something that it was not made for. The line names it, and where its traceback lies.",
        remedy="Run it again with --debug, and report what it prints. A peer keeps all that was on its disk.",
    ),
    "2": CodePage(
        short="a value that you gave is wrong",
        meaning="Something on the command line, in a spec, in the settings, in an invite or in an address. The line "
        "says what, which value, and what is allowed.",
        remedy="Correct it. homefires COMMAND --help shows what a command takes.",
    ),
    "3": CodePage(
        short="nobody answered in time",
        meaning="No address of the invite answered, or no peer runs in the folder that was named.",
        remedy="Look whether this machine is online. An invite whose addresses are all gone: ask its organiser for a "
        "new one, or join with --peer and the address of somebody who takes part (in his peer's folder, peers.json has "
        "some). A peer: homefires status, and homefires join to start it.",
    ),
    "4": CodePage(
        short="the port is in use",
        meaning="Another program listens at the address that was to be listened on.",
        remedy="Name another port with --listen, or port 0, which takes a free one.",
    ),
    "5": CodePage(
        short="this machine and the run disagree",
        meaning="Another spec, another version of homefires, or other initial parameters than the others have. A peer "
        "that went on would compute something else.",
        remedy="Use the version that the organiser names, and a new folder (--dir) for another run.",
    ),
    "6": CodePage(
        short="the folder is in use",
        meaning="A peer works in this folder already; two in one folder would destroy each other's files.",
        remedy="Look at it with: homefires attach. A second peer on this machine takes another folder (--dir).",
    ),
    "7": CodePage(
        short="a demo did not end as it must",
        meaning="Not every round was committed by all peers with the same bits. The line names the round and the peer.",
        remedy="Run it again with --dir DIR, which keeps the logs of every process, and report what it says.",
    ),
    "8": CodePage(
        short="the disk is full",
        meaning="There is no room for what must survive a crash. A peer that has joined does not end for that: it "
        "pauses until there is room.",
        remedy="Make room, or name a folder on another disk with --dir.",
    ),
    "9": CodePage(
        short="an audit found a file that is not as it was agreed",
        meaning="A byte of a chain differs from what its certificate says: a damaged disk, or somebody's edit. The "
        "line names the first round and file.",
        remedy="Take a copy of the run from another peer: join in a new folder. Check the disk.",
    ),
    "10": CodePage(
        short="this machine's clock is off",
        meaning="It is further from those of the others than the network bears: nobody would understand this peer.",
        remedy="Set the clock by the network: timedatectl set-ntp true.",
    ),
    "11": CodePage(
        short="the run does not admit you",
        meaning="It takes those alone whom its organiser has admitted, and this invite admits nobody any more.",
        remedy="Ask the organiser for a new invite.",
    ),
    "12": CodePage(
        short="the device has no room for a single sequence",
        meaning="The model does not fit into the memory of the device that was to train it.",
        remedy="Close other programs that use it, take another device (--device), or a smaller run.",
    ),
    "130": CodePage(
        short="interrupted",
        meaning="Ctrl-C, or the system asked it to end. A peer that is interrupted once leaves politely: what was "
        "written is kept, and joining again in the same folder goes on from there.",
    ),
}  # fmt: skip
"""By exit code."""
