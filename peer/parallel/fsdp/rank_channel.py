"""One end of the channel between lead and rank: whole messages over a socket."""

from __future__ import annotations

import socket
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

import msgspec

Told = TypeVar("Told")
Heard = TypeVar("Heard")


class HungUp(Exception):
    """The other end is gone."""


class RankChannel(Generic[Told, Heard]):
    """Sends messages of one kind and receives those of another, for one thread at a time."""

    def __init__(self, end: socket.socket, heard: object) -> None:
        """Takes over `end`; `heard` is the type, or the union, of the messages to receive."""
        self.connection = Connection(end.detach())
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(heard).decode

    def tell(self, message: Told) -> None:
        """Send a message. Raises HungUp."""
        try:
            self.connection.send_bytes(self._encode(message))
        except OSError as error:
            raise HungUp from error

    def hear(self) -> Heard:
        """Wait for the next message. Raises HungUp."""
        try:
            heard: Heard = self._decode(self.connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise HungUp from error
        return heard

    def close(self) -> None:
        self.connection.close()
