"""Log lines as JSON objects: `time`, `level`, `message` and, of an error that was caught, `exception`."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from typing import Any

from loguru import logger

__all__ = ["json_line", "start_json_logs"]


def json_line(record: Any) -> str:
    """One record of loguru as a JSON object."""
    line = {"time": record["time"].isoformat(), "level": record["level"].name, "message": record["message"]}
    if record["exception"] is not None:
        line["exception"] = "".join(traceback.format_exception(*record["exception"]))
    return json.dumps(line, ensure_ascii=False)


def start_json_logs() -> None:
    """Write warnings and what any library of the program logs to standard error as JSON objects.

    A `Run` writes its own lines.
    """
    logger.remove()
    logger.add(
        lambda message: print(json_line(message.record), file=sys.stderr),  # noqa: T201
        level="INFO",
        filter=lambda record: "run" not in record["extra"],
    )
    logging.basicConfig(level=logging.WARNING, handlers=[_ToLoguru()], force=True)
    logging.captureWarnings(capture=True)


class _ToLoguru(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        level: int | str = record.levelname
        try:
            logger.level(record.levelname)
        except ValueError:  # a library's own level, which loguru does not know
            level = record.levelno
        logger.opt(exception=record.exc_info).log(level, "{}", record.getMessage())
