"""What a person can do about a failure, as one tree with one exit code per branch.

    HomefiresError                      exit code
    ├── BadInput (also a ValueError)    2    the command line, a spec, settings, an address
    │   ├── BadSpec
    │   ├── BadAddress
    │   └── BadInvite
    ├── Unreachable                     3    nobody answered in time
    ├── PortInUse                       4    another program listens there
    ├── RunMismatch                     5    other spec, other version, other initial parameters
    ├── DirectoryBusy                   6    another peer runs in this directory
    ├── RoundsFailed                    7    a demo ended without every round committed alike
    ├── DiskFull                        8    no room for what must survive a crash
    ├── BadChain                        9    an audit found a file of a run that is not as it was agreed
    ├── ClockOff                       10    this machine's clock is too far from those of the others
    ├── NotAdmitted                    11    the run asks for an admission, and the organiser gave none
    ├── MemoryFull                     12    no room on the training device, not even for one sequence
    ├── DeviceLost                     13    the training device, or its driver, has failed under a peer
    ├── Unfit                          14    an examination found what keeps this machine from taking part
    ├── KeyInUse                       15    a copy of this peer's folder is at work elsewhere, and was there before
    ├── Declined                       16    whoever was asked did not say yes
    └── RunOver                        17    the others have finished the run, and nobody is left who gives the rest

Exit code 0 is success, 1 an error of ours (a bug), 130 an interrupt. Only the command line
prints: one line that says what, which value and what to do; the traceback with ``--debug``.
"""

from __future__ import annotations


class HomefiresError(Exception):
    """Something a person can act on; ``str(error)`` is the one line they read."""

    exit_code = 1


class BadInput(HomefiresError, ValueError):
    """A value that a person supplied is wrong."""

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
    """No room for what must survive a crash. A peer pauses until there is."""

    exit_code = 8


class MemoryFull(HomefiresError):
    """No room on the training device, for the model or for a single sequence. A peer that trains pauses until then."""

    exit_code = 12


class DeviceLost(HomefiresError):
    """The training device failed in a way that no further try in this process mends."""

    exit_code = 13


class Unfit(HomefiresError):
    """An examination found something that must be mended before this machine can take part."""

    exit_code = 14


class KeyInUse(HomefiresError):
    """Another process speaks with the key of this peer, and began before."""

    exit_code = 15


class Declined(HomefiresError):
    """Somebody was asked whether this machine shall take part, and said no, or nothing."""

    exit_code = 16


class RunOver(HomefiresError):
    """The run has come to its end without this peer, and nobody is left who could bring it there."""

    exit_code = 17


class BadChain(HomefiresError):
    """What lies in a run directory is not what its peers agreed on."""

    exit_code = 9


class ClockOff(HomefiresError):
    """This machine's clock is further from those of the others than the network bears."""

    exit_code = 10


class NotAdmitted(HomefiresError):
    """The run takes those alone whom its organiser has admitted."""

    exit_code = 11
