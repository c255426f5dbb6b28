"""Holds: why a peer pauses. `homefires status` names each one, with its end where that is known."""

from __future__ import annotations

from tui.text.codes.advice import CodePage

_GIVEN = "What it had made is given and counts, and it holds nobody up."

HOLDS = {
    "PAUSED": CodePage(
        short="its owner paused it",
        meaning=f"By homefires pause, homefires finish, or key p or f. {_GIVEN} It lasts when the peer starts again.",
        remedy="homefires resume, or key p.",
    ),
    "SNOOZED": CodePage(
        short="its owner snoozed it for some hours",
        meaning=f"By homefires snooze, or key z (1 h, again 3 h, again 8 h). {_GIVEN} It goes on by itself.",
        remedy="Sooner: homefires resume, or key p.",
    ),
    "SCHEDULE": CodePage(
        short="it is outside its hours",
        meaning=f"The setting schedule names the hours in which it may train, by the clock of this machine. {_GIVEN}",
        remedy="Change them: homefires set schedule='mon-fri 22:00-07:00, sat-sun 00:00-24:00'; empty means always.",
    ),
    "IDLE": CodePage(
        short="somebody uses this machine",
        meaning=f"The setting idle_min has it train only after nobody used the machine for so many minutes. {_GIVEN}",
        remedy="homefires set idle_min=0 lets it train whoever is there.",
    ),
    "BATTERY": CodePage(
        short="this machine runs on battery",
        meaning=f"It goes on by itself shortly after the mains are back. {_GIVEN}",
        remedy="homefires set on_battery=yes lets it train on battery, too.",
    ),
    "PROGRAM": CodePage(
        short="a program that you listed is running",
        meaning=f"The setting pause_for names programs that shall have the machine to themselves. {_GIVEN} It goes on "
        "by itself shortly after the program has ended.",
        remedy="homefires set pause_for= empties the list.",
    ),
    "QUOTA": CodePage(
        short="the traffic of this month is used up",
        meaning=f"The setting monthly_gb counts what is sent and received in a calendar month. {_GIVEN} It goes on "
        "when the next month begins.",
        remedy="homefires set monthly_gb=500 raises it. A run with longer rounds sends less: homefires plan.",
    ),
    "DISK": CodePage(
        short="its folder has reached its quota",
        meaning=f"The setting disk_gb limits all that lies in the folder of the run. {_GIVEN}",
        remedy="Raise disk_gb, or lower chain_mb, the room for updates that others may need.",
    ),
    "MEMORY": CodePage(
        short="its processes have reached their quota of memory",
        meaning=f"The setting memory_gb limits what all processes of the peer take together. {_GIVEN}",
        remedy="Raise memory_gb, or close other programs. A model that never fits needs another machine: homefires "
        "plan says what it takes.",
    ),
    "TEMPERATURE": CodePage(
        short="the GPU is too hot",
        meaning="The setting max_temperature_c is held by computing less of the time. That was not enough: it "
        f"rests until the GPU has cooled. {_GIVEN}",
        remedy="Look at fans and dust, or raise max_temperature_c.",
    ),
    "POWER": CodePage(
        short="the GPU draws too much power",
        meaning="The setting max_power_w is held by computing less of the time. That was not enough: it rests. "
        f"{_GIVEN}",
        remedy="Raise max_power_w, or lower the power limit of the GPU itself.",
    ),
}  # fmt: skip
"""By code."""
