"""Ray's control service (GCS), watched: about a minute after it is gone Ray ends every process that uses it, ours too."""

from __future__ import annotations

import asyncio

_NAME = "Ray's control service (GCS)"
#: Seconds between two looks, and that an answer may take.
_LOOK_S = 1.0
_ANSWER_S = 3.0
#: Seconds without an answer after which it is lost: one that is fault-tolerant is back sooner, and Ray itself waits for 60.
_LOST_S = 10.0


async def answers(address: str) -> bool:
    """Tells whether somebody listens at an address, ``host:port``."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_ANSWER_S):
            _, writer = await asyncio.open_connection(host, int(port))
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def missing(address: str) -> str:
    """Returns what of a cluster does not answer, in words; empty if its control service and a node do.

    Args:
        address: Of the control service.
    """
    import ray

    if not await answers(address):
        return f"{_NAME} at {address} does not answer"
    nodes = [f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}" for node in ray.nodes() if node["Alive"]]
    for node in nodes:
        if await answers(node):
            return ""
    return f"no node of the Ray cluster at {address} answers ({', '.join(nodes) or 'none is alive'})"


async def lost(address: str) -> str:
    """Waits until the control service is gone; returns that in words.

    Args:
        address: ``host:port``, as Ray knows it.
    """
    loop = asyncio.get_running_loop()
    answered = loop.time()
    while loop.time() - answered < _LOST_S:
        await asyncio.sleep(_LOOK_S)
        if await answers(address):
            answered = loop.time()
    return (
        f"{_NAME} at {address} has not answered for {_LOST_S:g} s, and about a minute after its end Ray ends this process as "
        "well: call shutdown; if the group started Ray, restart brings both back, else call ray.shutdown and start both anew"
    )
