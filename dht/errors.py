"""The errors that a person can do something about: one tree, with one exit code per branch.

    HomefiresError                      exit code
    ├── BadInput (also a ValueError)    2    the command line, a spec, settings, an address
    │   ├── BadSpec
    │   ├── BadAddress
    │   └── BadInvite
    ├── Unreachable                     3    nobody answered in time
    ├── PortInUse                       4    another program listens on this port
    ├── RunMismatch                     5    another spec, another version, other initial parameters
    ├── DirectoryBusy                   6    another peer runs in this directory
    ├── RoundsFailed                    7    a demo ended before every round was committed with equal bits
    ├── DiskFull                        8    no room for files that must survive a crash
    ├── BadChain                        9    an audit found a file that is not what the run agreed on
    ├── ClockOff                       10    this machine's clock is too far from the others'
    ├── NotAdmitted                    11    the run asks for an admission, and the organiser gave none
    ├── MemoryFull                     12    no room on the training device, not even for one sequence
    ├── DeviceLost                     13    the training device or its driver failed while a peer trained
    ├── Unfit                          14    an examination found a reason why this machine cannot take part
    ├── KeyInUse                       15    a copy of this peer's folder already runs elsewhere
    ├── Declined                       16    the person who was asked did not say yes
    └── RunOver                        17    the run is finished, and no peer is left that gives its last state

Exit code 0 is success, 1 an error of ours (a bug), 130 an interrupt. Only the command line prints errors: one line
that says what happened, which value and what to do. With ``--debug`` it adds the traceback.
"""

from __future__ import annotations


class HomefiresError(Exception):
    """An error that a person can do something about; ``str(error)`` is the one line they read."""

    exit_code = 1


class BadInput(HomefiresError, ValueError):
    """A value that a person gave is wrong."""

    exit_code = 2


class BadSpec(BadInput):
    """A run spec or settings file does not parse, or holds a value out of range."""


class BadAddress(BadInput):
    """A multiaddr that we cannot dial."""


class BadInvite(BadInput):
    """An invite that is damaged, forged, expired or too new."""


class Unreachable(HomefiresError):
    """Nobody answered within the time-out."""

    exit_code = 3


class PortInUse(HomefiresError):
    """The address to listen on is taken."""

    exit_code = 4


class RunMismatch(HomefiresError):
    """This machine and the run disagree about what is trained."""

    exit_code = 5


class DirectoryBusy(HomefiresError):
    """Another process holds the lock of the run directory."""

    exit_code = 6


class RoundsFailed(HomefiresError):
    """A demo finished, but not every round committed with the same bits everywhere."""

    exit_code = 7


class DiskFull(HomefiresError):
    """No room on disk for files that must survive a crash. A peer pauses until there is."""

    exit_code = 8


class MemoryFull(HomefiresError):
    """No memory on the training device for the model or for a single sequence. A peer that trains pauses until there
    is."""

    exit_code = 12


class DeviceLost(HomefiresError):
    """The training device failed, and no further attempt in this process can succeed."""

    exit_code = 13


class Unfit(HomefiresError):
    """An examination found something that must be mended before this machine can take part."""

    exit_code = 14


class KeyInUse(HomefiresError):
    """Another process uses the key of this peer, and began earlier."""

    exit_code = 15


class Declined(HomefiresError):
    """Somebody was asked whether this machine shall take part, and said no or nothing."""

    exit_code = 16


class RunOver(HomefiresError):
    """The run has ended without this peer, and no peer is left that could give it the last state."""

    exit_code = 17


class BadChain(HomefiresError):
    """A file in a run directory is not what its peers agreed on."""

    exit_code = 9


class ClockOff(HomefiresError):
    """This machine's clock is further from the others' than the network tolerates."""

    exit_code = 10


class NotAdmitted(HomefiresError):
    """The run takes only peers that its organiser has admitted."""

    exit_code = 11
