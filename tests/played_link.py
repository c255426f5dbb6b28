"""A link that only plays its part, and a session whose every step is told."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from peer.node.lifecycle.inputs_effects import LifeInput
from peer.schema.ipc import ToLink
from peer.session import Session


@dataclass
class PlayedLink:
    """Remembers what it is told, and says what a test has it say."""

    told: list[ToLink] = field(default_factory=list)
    restarts: int = 0
    is_of_cluster: bool = False

    def send(self, message: ToLink) -> None:
        self.told.append(message)

    def restart(self) -> None:
        self.restarts += 1


def watched(session: Session) -> threading.Condition:
    """Is notified after every input that the session has taken in: all that can be seen of it changes there."""
    stepped, feed = threading.Condition(), session._feed

    def feed_and_tell(event: LifeInput) -> None:
        feed(event)
        with stepped:
            stepped.notify_all()

    vars(session)["_feed"] = feed_and_tell
    return stepped
