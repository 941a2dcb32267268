"""A real server of the chat API on loopback whose model is a function, for tests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Served", "say", "serving"]

Body = Mapping[str, Any]
Script = Callable[[Body], object]


@dataclass
class Served:
    """Where it answers, and what it was asked."""

    url: str = ""
    asked: list[Body] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)


def say(
    text: str | None = None, *, read: int = 100, wrote: int = 10, cached: int = 0, **message: Any
) -> dict[str, Any]:
    """A whole answer of the API."""
    usage = {"prompt_tokens": read, "completion_tokens": wrote, "prompt_tokens_details": {"cached_tokens": cached}}
    answer = {"role": "assistant", "content": text, **message}
    return {"choices": [{"index": 0, "message": answer, "finish_reason": "stop"}], "usage": usage}


@contextmanager
def serving(script: Script) -> Iterator[Served]:
    """A server whose answer to a request is what `script` makes of its body.

    A dictionary is the answer's JSON; a number a bare status; a pair a status and a body; None cuts the connection.
    """
    served = Served()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                served.asked.append(body)
                served.headers.append(dict(self.headers))
                found = script(body)
            if found is None:
                return
            status, content = found if isinstance(found, tuple) else (200, found)
            if isinstance(found, int):
                status, content = found, {}
            data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with suppress(BrokenPipeError, ConnectionResetError):  # who asked may have been killed
                self.wfile.write(data)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            served.url = f"http://127.0.0.1:{server.server_port}/v1"
            yield served
        finally:
            server.shutdown()
            thread.join()
