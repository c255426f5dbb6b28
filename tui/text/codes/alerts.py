"""Alerts: what a person should know of a peer, of the run, or of this machine."""

from __future__ import annotations

from tui.text.codes.advice import CodePage

ALERTS = {
    "ADDRESS": CodePage(
        short="where the invites send newcomers needs a look",
        meaning="An invite names the addresses of the organiser's node. Those of a network at home lead nobody there "
        "from elsewhere, and a port that another program has by now leads nowhere.",
        remedy="Have the router forward a fixed port to this machine, and start homefires bootstrap with --listen and "
        "--announce. New invites are printed by homefires invite.",
    ),
    "ADMISSION": CodePage(
        short="the organiser does not renew this peer's admission",
        meaning="It takes part until the admission that it has ends, which the line says, with the organiser's reason. "
        "Then it stops; what it has given the run stays.",
        remedy="Speak with the organiser. If it is admitted again before then, nothing else is to be done.",
    ),
    "ADMITTED": CodePage(short="the organiser's node admitted a peer to the run"),
    "AUDIT": CodePage(
        short="a mean was doubted, and the doubt was not proved",
        meaning="Some means are computed twice, by two peers. They differed, and whoever doubted could not show why: "
        "for the rest of the round its word does not count.",
        remedy="Once means little. The same peer again and again: its memory or its client is not sound.",
    ),
    "CHAIN": CodePage(
        short="a peer gave a block of the chain that does not hold",
        meaning="A signature, a digest or a vote was not right. It was refused, and others are asked.",
        remedy="Nothing: what does not check out is never used. Tell the organiser if it is always the same peer.",
    ),
    "CHECKPOINT": CodePage(
        short="a checkpoint could not be written, or one that was found cannot be used",
        meaning="Training goes on. A crash now would lose the inner steps since the last good checkpoint; rounds that "
        "were agreed are never lost.",
        remedy="Look whether the disk is full or damaged.",
    ),
    "CLOCK": CodePage(
        short="a clock is further off than the network bears",
        meaning="What peers tell each other carries the time, and expires by it. By a wrong clock nobody sees this "
        "peer, or it sees nobody. It is compared with others' at the start, every ten minutes, and when it has jumped, "
        "as after a laptop's sleep. While it is wrong this peer has no connection and does not train; nothing is lost.",
        remedy="Set the clock by the network: timedatectl set-ntp true. Training then goes on by itself.",
    ),
    "CONTROL": CodePage(
        short="the peer takes no commands",
        meaning="Its control socket could not be opened, mostly because the path of its folder is too long. It "
        "trains, but pause, set and the keys of the dashboard do not reach it.",
        remedy="Join with a shorter --dir. Until then Ctrl-C, or the system's kill, ends it politely.",
    ),
    "DISK": CodePage(
        short="the disk is full",
        meaning="What was learned stays in memory and is given as soon as it can be written.",
        remedy="Make room; training goes on by itself.",
    ),
    "DOCTOR": CodePage(
        short="something about this machine may hold it up",
        meaning="The checks of homefires doctor are made quietly at every start; the line says what was found and "
        "what to do.",
        remedy="homefires doctor --dir DIR looks closer, also while the peer runs, and says for each check how to put "
        "it right.",
    ),
    "DONOR": CodePage(
        short="a peer that gave a piece of a snapshot is not asked any more",
        meaning="It was too slow, or its piece was not what the hash says. The pieces of others are kept.",
    ),
    "EQUIVOCATION": CodePage(
        short="a coordinator proposed two different updates for one round",
        meaning="Its own signatures prove it. Its proposals decide nothing, and it is left out from now on.",
        remedy="If it is yours, use an unchanged client, and never run two peers with one identity.",
    ),
    "FINGERPRINT": CodePage(
        short="the words by which people know the organiser",
        meaning="Who joins is shown words for the organiser's key. If somebody has put another key into the invite, "
        "they differ.",
        remedy="The organiser tells them to people by another way than the invite; compare them before you join.",
    ),
    "FIT": CodePage(
        short="which micro-batch this device was given",
        meaning="It is tried out once per device, in a process that may run out of memory. As a warning: nothing could "
        "be measured, and the line says what is taken instead.",
    ),
    "FORECAST": CodePage(
        short="this peer's part of a round is likely to come too late",
        meaning="After every round it compares what it had expected with what came. By the newest rounds its part will "
        "be there later than the others wait, or nearly so. What comes late is not lost: it counts in the next round.",
        remedy="The line names the setting that helps, with its value; homefires set changes it while the peer runs.",
    ),
    "FORK": CodePage(
        short="two parts of the swarm had gone on apart and come together again",
        meaning="The side that did more is kept, by a rule that all follow. What a peer had put into undone rounds is "
        "owed to it again and offered anew, while it is on its disk.",
        remedy="Nothing. Often: some peers lose sight of each other; look at their network.",
    ),
    "FOUNDERS": CodePage(
        short="how many of the first peers are here",
        meaning="A run begins when as many peers have joined as run.founders says.",
    ),
    "GENESIS": CodePage(short="the run begins", meaning="The first electorate is fixed and written."),
    "GENESIS_LOST": CodePage(
        short="peers train, and this node does not know how their run began",
        meaning="The file that fixes the first electorate is not in this folder, so newcomers cannot be served.",
        remedy="Restore it from a copy of the folder, or start bootstrap in the folder in which the run began. "
        "If the run is new, somebody says so who is not in it: put the peers of the line in quarantine.",
    ),
    "KEEP": CodePage(
        short="a checkpoint that the organiser's node was to keep could not be kept",
        meaning="The run goes on; the next one is tried at its time.",
        remedy="Look whether the disk is full, or the folder may not be written to.",
    ),
    "LIMIT": CodePage(
        short="a limit that you set has no effect on this machine",
        meaning="The machine does not say what the limit needs to know; the line names the limit.",
        remedy="Where it is about the GPU: install its driver with NVML. Otherwise use another limit, as a schedule.",
    ),
    "LINK": CodePage(
        short="the part that talks to the others ended and is started again",
        meaning="It is a process of its own. Nothing is lost: what was told to nobody lies on disk.",
        remedy="Once: nothing. Again and again: its log is peer.log in the peer's folder; report it.",
    ),
    "MEMORY": CodePage(
        short="the device ran out of memory, and takes fewer sequences at a time",
        meaning="Nothing is lost, and the step counts as much as before; it only takes a little longer. "
        "Where it cannot even measure the held-out loss, that is left out for a round.",
        remedy="Close other programs that use the GPU, then start the peer again: it tries the larger one anew.",
    ),
    "METRICS": CodePage(
        short="no metrics are served",
        meaning="The port of the setting metrics_port is taken, or may not be listened on. Training goes on.",
        remedy="Choose another port: homefires set metrics_port=9464, then start the peer again.",
    ),
    "MISDECLARED": CodePage(
        short="a peer signed what its bytes do not bear out",
        meaning="Most of the members measured otherwise than it said. It counts nothing for some rounds.",
        remedy="If it is yours: use an unchanged client, test the memory, and report it if both are sound.",
    ),
    "ORGANISER": CodePage(
        short="somebody who is not the organiser spoke for the run",
        meaning="What only the organiser may say was not signed by its key. It was refused.",
        remedy="If you took the invite from somebody else, compare the organiser's fingerprint with the organiser.",
    ),
    "QUARANTINE": CodePage(
        short="the organiser keeps a peer out of the run",
        meaning="The order is signed, names its reason, and can be lifted; everybody can read it.",
        remedy="If it is yours: the line says why. Speak with the organiser.",
    ),
    "RECORD": CodePage(
        short="a record was not what its author signed for this run",
        meaning="It was too large, was to live too long, or its signature does not fit. It was refused.",
        remedy="Nothing: what does not check out is never used.",
    ),
    "REPAIR": CodePage(
        short="some means are computed again by other peers",
        meaning="Whoever was to compute them did not answer in time. The round loses seconds, and no work.",
        remedy="Often, and always for one peer: its line is too slow for its share; lower what it declares.",
    ),
    "REPLAY": CodePage(
        short="a record whose time is over was put up again",
        meaning="Somebody sent an old record once more. It was refused.",
        remedy="Nothing: what is over counts no more.",
    ),
    "RESYNC": CodePage(
        short="this peer goes on from a snapshot, since its own chain leads nowhere",
        meaning="The others went on where it cannot follow by updates alone. What it had learned and nobody can have "
        "counted is kept.",
        remedy="Usual after days away. Otherwise look at the disk: homefires audit DIR.",
    ),
    "SNAPSHOT": CodePage(
        short="a snapshot for newcomers could not be written",
        meaning="Training goes on; newcomers take one from another peer.",
        remedy="Look whether the disk is full or damaged.",
    ),
    "SPEC": CodePage(
        short="a spec is not the one that the invite names",
        meaning="Its hash differs from the one in the signed invite. It was refused, and others are asked.",
        remedy="If nobody has the right one: ask the organiser for a new invite.",
    ),
    "STALE": CodePage(
        short="work was too old to be taken, and is given up",
        meaning="The run takes what was learned up to round.max_staleness rounds ago. Training goes on from here.",
        remedy="A peer that is away for long gives what it has before: homefires finish, then leave.",
    ),
    "STATE": CodePage(
        short="one machine has other bits than the others",
        meaning="From the same updates everybody must compute the same bits. A peer that does not takes no part, "
        "so that it spoils nothing.",
        remedy="The machine that is alone with its bits: test its memory, take back an overclock, update the driver. "
        "A new folder starts it afresh.",
    ),
    "STATE_DIFFERS": CodePage(
        short="some peers would start from other initial parameters",
        meaning="They made them from the same seed and got other bits: another version, or a machine that "
        "miscomputes. The run begins without them.",
        remedy="Use the same version on all machines; test the memory of those that differ.",
    ),
    "STRANGER": CodePage(
        short="a peer that the organiser has not admitted knocked",
        meaning="The run serves only those whom its organiser has admitted. It was refused.",
        remedy="If it is yours: ask the organiser for an invite that admits you.",
    ),
    "TAKEOVER": CodePage(
        short="a majority was out of sight for long, and those who are here go on",
        meaning="What they agree on is weak: if the others come back having done more, it is undone, and the work in "
        "it is owed again.",
        remedy="Look at the network of those that are gone. An organiser can set round.takeover_s = 0: never.",
    ),
    "TOKEN": CodePage(
        short="an invite does not admit any more",
        meaning="It is expired or used up, or belongs to another run or organiser.",
        remedy="Ask the organiser for a new invite.",
    ),
    "WATCH": CodePage(
        short="what a watcher was told does not check out, or it cannot follow",
        meaning="A watcher checks every certificate and shows only what holds.",
        remedy="Wait: it asks other peers. If it never gets further, take a new invite.",
    ),
}  # fmt: skip
"""By code."""
