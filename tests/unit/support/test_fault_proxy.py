import asyncio

import pytest

from support.aio import aio
from support.fault_proxy import FaultProxy


@aio
async def test_a_connection_that_was_not_passed_on_yet_is_reset_when_the_proxy_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect, waiting = asyncio.open_connection, asyncio.Event()

    async def connect_for_ever(*_: object) -> None:
        waiting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "open_connection", connect_for_ever)
    async with FaultProxy("127.0.0.1", 1) as proxy:
        reader, writer = await connect("127.0.0.1", proxy.port)
        await waiting.wait()

    async with asyncio.timeout(10):
        with pytest.raises(ConnectionResetError):
            await reader.read()
    writer.close()
