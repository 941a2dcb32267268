"""Whether a chat endpoint can be used at all: its URL, the key and the model's name, in two seconds."""

from __future__ import annotations

import fnmatch
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from swe_trainers.config import nearest
from swe_trainers.engines.http import JsonClient, RefusedError
from swe_trainers.errors import ConfigurationError, EngineError

__all__ = ["check_endpoint"]

_SECONDS = 2.0


def check_endpoint(
    url: str, model: str, *, key: str | None, key_variable: str, option: str = "--base-url", seconds: float = _SECONDS
) -> None:
    """Ask a server for its models before anything is started. A server that is slow to answer, or lists none, passes.

    Args:
        url: of the API, usually `…/v1`.
        model: name of the model on the server.
        key: sent as a bearer token.
        key_variable: the environment variable that the key is taken from.
        option: the option that gave the URL.
        seconds: the most that this takes; the connection must be there by then.
    Raises:
        ConfigurationError: the URL is no address, nothing answers there, the key is missing or refused, or the server
            has no such model.
    """
    client = JsonClient(url, api_key=key, timeout_s=seconds, tries=1, option=option)
    parts = urlsplit(url)
    address = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
    connected, done = threading.Event(), threading.Event()
    problem, listed = list[Exception](), list[Any]()

    def ask() -> None:
        try:
            socket.create_connection(address, timeout=seconds).close()
            connected.set()
            listed.append(client.get("/models"))
        except (OSError, EngineError) as error:
            problem.append(error)
        finally:
            done.set()

    # On a thread: looking up a name obeys no timeout.
    began = time.monotonic()
    threading.Thread(target=ask, name="endpoint", daemon=True).start()
    done.wait(seconds)
    if not connected.is_set():
        took = time.monotonic() - began
        reason = f"{getattr(problem[0], 'strerror', None) or problem[0]}" if problem else f"no answer in {took:.1f} s"
        raise ConfigurationError(f"{option} {url}: cannot be reached: {reason}. Is the server up, and the URL right?")
    if problem and isinstance(problem[0], RefusedError) and problem[0].status in (401, 403):
        what = f"the key in {key_variable} is refused" if key else f"needs a key, and {key_variable} is not set"
        raise ConfigurationError(
            f"{option} {url}: {what} ({problem[0].status}). Try: export {key_variable}=…, or --api-key-env NAME"
        )
    names = _names(listed[0]) if listed else []
    if names and not _is_listed(model, names):
        raise ConfigurationError(
            f"--model {model}: {url} has no such model{nearest(model, names[:50])}. Try: --no-preflight, if it "
            "serves models that it does not list"
        )


def _names(answer: Any) -> list[str]:
    rows = answer.get("data") if isinstance(answer, Mapping) else None
    found = [row.get("id") for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    return [name for name in found if isinstance(name, str)]


def _is_listed(model: str, names: Iterable[str]) -> bool:
    """Whether a name is among the listed ones; routers take suffixes (`name:free`) and list patterns (`openai/*`)."""
    asked = {model, model.partition(":")[0]}
    return any(
        fnmatch.fnmatchcase(each, name) or name.endswith(f"/{each}") or name.partition(":")[0] == each
        for name in names
        for each in asked
    )
