"""A TCP relay between a client and a server: it can break the connection, and it keeps what the server has sent."""

import asyncio
from dataclasses import dataclass, field

FRAME_HEADER = 9
HEADERS = 0x1
END_STREAM = 0x1


@dataclass(frozen=True)
class Frame:
    """The head of an HTTP/2 frame; RFC 9113, section 4.1."""

    type: int
    flags: int
    stream: int


@dataclass
class Relay:
    target_port: int
    sent: bytearray = field(default_factory=bytearray)
    """By the server."""
    connection_count: int = 0
    """All that clients have made."""

    async def __aenter__(self) -> "Relay":
        self._writers: list[asyncio.StreamWriter] = []
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Breaks every connection without a word of HTTP/2."""
        for writer in self._writers:
            writer.transport.abort()

    def frames(self) -> list[Frame]:
        frames, at = [], 0
        while at + FRAME_HEADER <= len(self.sent):
            length, kind, flags = int.from_bytes(self.sent[at : at + 3]), self.sent[at + 3], self.sent[at + 4]
            frames.append(Frame(kind, flags, int.from_bytes(self.sent[at + 5 : at + 9]) & 0x7FFFFFFF))
            at += FRAME_HEADER + length
        return frames

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        self.connection_count += 1
        self._writers += [writer, server_writer]
        await asyncio.gather(
            self._pump(reader, server_writer, bytearray()),
            self._pump(server_reader, writer, self.sent),
            return_exceptions=True,
        )

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray) -> None:
        while data := await reader.read(1 << 16):
            kept += data
            writer.write(data)
        writer.close()
