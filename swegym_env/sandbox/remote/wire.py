"""The status and body of an error response, and the exception that they stand for.

401  the token is missing or wrong               ConfigurationError
404  no such container or snapshot: it is gone   SandboxError
409  the file system inside refused              OSError, with its number
411, 413, 422, 431  the request itself is wrong  ConfigurationError
424  the infrastructure failed                   an InfrastructureError, by its name
429, 503  no place now; ask again                (the client waits)
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from swegym_env import errors
from swegym_env.errors import ConfigurationError, InfrastructureError, SandboxError, SwegymError

__all__ = ["BUSY", "GONE", "error_body", "raised", "status_of"]

GONE = 404
BUSY = (429, 503)
_FILE, _INVALID, _FAILED = 409, 422, 424


def status_of(error: Exception) -> int:
    """The status of a response that reports this error."""
    if isinstance(error, ConfigurationError):
        return _INVALID
    return _FAILED if isinstance(error, SwegymError) else _FILE


def error_body(kind: str, message: str, number: int | None = None) -> bytes:
    """The body of an error response.

    Args:
        kind: name of the exception.
        message: its text, one line.
        number: of an OSError.
    """
    return json.dumps({"error": {"type": kind, "message": message, "errno": number}}).encode()


def raised(status: int, response: Any, where: str) -> Exception:
    """The exception that a response with a status other than 200 stands for."""
    error = response.get("error") if isinstance(response, Mapping) else None
    fields: Mapping[str, Any] = error if isinstance(error, Mapping) else {}
    message = str(fields.get("message") or f"{where} responded with status {status}")
    number = fields.get("errno")
    if status == _FILE and isinstance(number, int):
        return OSError(number, os.strerror(number), message)
    if status in (400, 401, 403, 405, 411, 413, 431, _INVALID):
        return ConfigurationError(f"{where}: {message}")
    kind = getattr(errors, str(fields.get("type", "")), None)
    if status == _FAILED and isinstance(kind, type) and issubclass(kind, InfrastructureError):
        return kind(message)
    return SandboxError(message)
