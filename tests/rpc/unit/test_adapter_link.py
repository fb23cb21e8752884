"""The end of a link to an adapter."""

import asyncio
import os

from corral.rpc.adapter_link import AdapterLink


async def test_a_link_whose_closing_is_cancelled_is_closed_all_the_same() -> None:
    """Leak checks would tell the socket."""
    link = AdapterLink.open()
    await link.__aenter__()
    closing = asyncio.create_task(link.__aexit__())
    await asyncio.sleep(0)  # it waits for its listener to end
    closing.cancel()
    await asyncio.wait({closing})

    assert closing.cancelled()
    os.close(link.descriptor)
