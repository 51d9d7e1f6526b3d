"""Watches Ray's control service (GCS): about a minute after it is gone, Ray ends every process that uses it, also ours."""

from __future__ import annotations

import asyncio

_NAME = "Ray's control service (GCS)"
#: Seconds between two checks, and the time limit of an answer.
_LOOK_S = 1.0
_ANSWER_S = 3.0
#: Seconds without an answer after which it is lost: a fault-tolerant one recovers sooner, and Ray itself waits for 60.
_LOST_S = 10.0


async def answers(address: str) -> bool:
    """Returns whether a process listens at an address, ``host:port``."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_ANSWER_S):
            _, writer = await asyncio.open_connection(host, int(port))
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def missing(address: str) -> str:
    """Returns a message about the part of a cluster that does not answer; empty if its control service and a node do.

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
    """Waits until the control service is gone; returns a message about it.

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
        "well: call shutdown; if the group started Ray, restart brings both back, else call ray.shutdown and start both again"
    )
