"""A chat endpoint on loopback whose answers are written beforehand."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Answer", "ScriptedModel", "call"]

Answer = dict[str, Any]


def call(name: str, **arguments: str) -> Answer:
    """An answer that calls one function."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    called = {"id": f"call-{os.urandom(4).hex()}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [called]}


class ScriptedModel:
    """An OpenAI-compatible endpoint that gives the same answers to each conversation.

    Attributes:
        script: the answers by the number of the turn, or what makes them.
        requests: the bodies of all requests.
        reached: set when the last answer is asked for.
        url: of the API.
    """

    def __init__(self, script: list[Answer | Callable[[], Answer]] | None = None) -> None:
        self.script = script or []
        self.requests: list[dict[str, Any]] = []
        self.reached = threading.Event()
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                model.requests.append(body)
                turn = sum(message["role"] == "assistant" for message in body["messages"])
                if turn == len(model.script) - 1:
                    model.reached.set()
                answer = model.script[turn]
                message = answer() if callable(answer) else answer
                reason = "tool_calls" if message.get("tool_calls") else "stop"
                reply = {
                    "id": "scripted",
                    "object": "chat.completion",
                    "created": 1,
                    "model": body["model"],
                    "choices": [{"index": 0, "message": message, "finish_reason": reason}],
                    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
                }
                data = json.dumps(reply).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()
