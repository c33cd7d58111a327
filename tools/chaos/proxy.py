"""A TCP proxy in front of the server that cuts, delays and swallows what goes through."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress


class Proxy:
    """Forwards connections to a port of this machine; its faults hold for all of them.

    :param target: the port of the server, which may be down.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.held = False  # True: nothing arrives, in neither direction
        self.swallowing = False  # True: what the server replies is lost, and then the connection
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop: asyncio.AbstractEventLoop
        self._stopping: asyncio.Event
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="proxy")

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def cut(self) -> None:
        """Break all connections, as a firewall does that forgets them."""
        self._loop.call_soon_threadsafe(self._abort_all)

    def _abort_all(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    def _run(self) -> None:
        asyncio.run(self._listen())

    async def _listen(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopping.wait()
        server.close()
        self._abort_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        mine = {writer, to_server}
        self._writers |= mine
        with suppress(OSError, asyncio.CancelledError):
            pumps = {
                asyncio.ensure_future(self._pump(reader, to_server, replies=False)),
                asyncio.ensure_future(self._pump(from_server, writer, replies=True)),
            }
            _, left = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in left:
                pump.cancel()
        for each in mine:
            each.transport.abort()
        self._writers -= mine

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                while self.held:
                    await asyncio.sleep(0.02)
                if replies and self.swallowing:
                    return
                writer.write(data)
                await writer.drain()
