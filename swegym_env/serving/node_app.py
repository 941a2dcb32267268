"""The API over one machine's containers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from swegym_env.sandbox.images import image_store
from swegym_env.serving.api import cancelled, make_app
from swegym_env.serving.gate import Asked, Gate
from swegym_env.serving.node import Answer, Node

__all__ = ["node_app"]


class _OfNode:
    def __init__(self, node: Node) -> None:
        self._node = node

    async def answer(self, path: str, message: Any, asked: Asked) -> Answer:
        do = getattr(self._node, path.rpartition("/")[2])
        answer: Answer = await do(message, asked.request_id)
        return answer

    async def health(self) -> dict[str, Any]:
        node = self._node
        return {
            "status": "draining" if node.draining else "ok",
            "kind": "server",
            "identity": node.identity,
            "capacity": node.capacity,
            "containers": node.containers,
        }

    async def images(self) -> list[str]:
        stored = await asyncio.to_thread(image_store().inventory)
        return ["host", *sorted({name for image in stored for name in image.names})]


def node_app(node: Node, token: str, *, body_limit_bytes: int) -> Gate:
    """The application that serves `node`."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        reaping = asyncio.create_task(node.reap())
        try:
            yield
        finally:
            await cancelled(reaping)
            await node.close()

    gauges = {
        "containers": ("Containers that there are.", lambda: float(node.containers)),
        "capacity": ("Containers that there may be.", lambda: float(node.capacity)),
        "reaped": ("Containers closed because their owner was silent.", lambda: float(node.reaped)),
        "draining": ("Whether no more containers are taken.", lambda: float(node.draining)),
    }
    return make_app(_OfNode(node), token, gauges=gauges, body_limit_bytes=body_limit_bytes, lifespan=lifespan)
