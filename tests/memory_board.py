"""A board in memory."""

from __future__ import annotations

from collections.abc import Callable

from dht.records import MAX_TTL_S, Record, is_current


class MemoryBoard:
    """The contract of `dht.board.Board` for all logical peers of one process; applies the DHT's own checks."""

    def __init__(self, run: bytes, now_s: Callable[[], float]) -> None:
        self._run = run
        self._now_s = now_s
        self._topics: dict[str, dict[str, Record]] = {}

    async def publish(self, topic: str, record: Record, ttl_s: float) -> bool:
        """Store the record; False if it is not valid or not newer than the author's last one."""
        assert 0 < ttl_s <= MAX_TTL_S, ttl_s
        if record.kind != topic or not is_current(record, self._run, self._now_s()):
            return False
        rows = self._topics.setdefault(topic, {})
        held = rows.get(record.author)
        if held is not None and held.expires >= record.expires:
            return False
        rows[record.author] = record
        return True

    async def read(self, topic: str) -> dict[str, Record]:
        """The records that have not expired, by author."""
        now_s = self._now_s()
        rows = self._topics.get(topic, {})
        for author in [author for author, record in rows.items() if record.expires <= now_s]:
            del rows[author]
        return dict(rows)
