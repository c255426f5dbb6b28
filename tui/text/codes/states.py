"""What a peer does in one word, and the other short names that a line of the log has."""

from __future__ import annotations

from tui.text.codes.advice import CodePage

STATES = {
    "JOINING": CodePage(
        short="it looks for the run, or loads the model and the data",
        meaning="No round is held up by it. The line beside the state says what it waits for.",
        remedy="Longer than some minutes: look whether this machine is online; homefires doctor checks it.",
    ),
    "SYNCING": CodePage(
        short="it catches up with the others",
        meaning="It loads the updates that it missed, or a snapshot, checks them, and replays them.",
        remedy="Nothing; the bar says how far it is. A higher download_mbps makes it shorter.",
    ),
    "TRAINING": CodePage(
        short="it makes inner steps",
        meaning="Alone, from the last anchor on; the others hear of it at the round's end.",
    ),
    "READY": CodePage(
        short="its part is made, and it waits for the others",
        meaning="The coordinator asks all who are ready, and goes on without the slowest after a time that it has "
        "learned from earlier rounds.",
    ),
    "AVERAGING": CodePage(
        short="the round is being agreed",
        meaning="Parts are sent, measured, averaged and voted on. Then everybody makes the same outer step.",
    ),
    "LATE": CodePage(
        short="it takes part, but what it gives comes late or is old",
        meaning="It counts less until the penalty ends; nothing of its work is lost.",
        remedy="Look which penalty it is (key 3, or homefires status), and at that page: LATE, STALE or ABSENT.",
    ),
    "PENALISED": CodePage(
        short="it takes part under a penalty that lasts",
        meaning="Something that was measured of its work makes it count less. Key 3 of the dashboard shows the "
        "evidence, and until when.",
    ),
    "PAUSED": CodePage(
        short="it makes no inner step",
        meaning="Its owner paused it, or one of the limits does. What it had made was given, it holds nobody up and "
        "keeps its place. The line beside the state says why, and when it goes on.",
        remedy="homefires resume ends a pause and a snooze. homefires status names every limit that holds it up.",
    ),
    "GONE": CodePage(
        short="it left, or nothing is heard of it",
        meaning="A peer that left said so. One that is silent may be asleep, offline or killed; the round goes on "
        "without it, and nobody waits.",
        remedy="If it is yours: homefires status says how it ended, homefires join in the same folder goes on.",
    ),
}  # fmt: skip
"""By the word for a state."""

LOG = {
    "STARTED": CodePage(short="a process of a peer began"),
    "STOPPED": CodePage(
        short="a process of a peer ended", meaning="The line says why; a number other than 0 is an exit code.",
        remedy="homefires explain CODE tells what an exit code means.",
    ),
    "INVITE": CodePage(
        short="an invite was issued", meaning="Whoever has its text can join the run, or watch it.",
    ),
    "COMMITTED": CodePage(
        short="a round was agreed", meaning="A majority of the electorate voted for it and holds its bytes.",
    ),
    "ABORTED": CodePage(
        short="a try of a round ended without a decision",
        meaning="Nothing changed anywhere: it is tried again, led by the next coordinator.",
        remedy="Now and then is usual, as when a peer leaves. Again and again: look who is late on key 3.",
    ),
    "EVALUATED": CodePage(short="the loss on held-out data was measured, in nats per token"),
    "CHECKPOINT": CodePage(
        short="what a crash would lose is on disk",
        meaning="A peer that is killed goes on from its newest checkpoint. As a warning: it could not be written, or "
        "one that was found cannot be used.",
        remedy="Look whether the disk is full or damaged.",
    ),
    "SETTINGS": CodePage(
        short="what the volunteer allows was changed", meaning="It holds at once; the line says what it was before.",
    ),
}  # fmt: skip
"""By the short name of a line of the log."""
