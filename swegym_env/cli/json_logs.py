"""`--json-logs`: log lines on standard error as JSON objects, with the fields of `swe-train --json-logs`."""

from __future__ import annotations

import argparse
import json
import logging
from datetime import datetime

__all__ = ["add_json_logs", "start_json_logs"]


def add_json_logs(parser: argparse.ArgumentParser) -> None:
    """Add `--json-logs` to the options of a command."""
    parser.add_argument(
        "--json-logs", action="store_true", help="write log lines as JSON objects: time, level, message, exception"
    )


def start_json_logs(options: argparse.Namespace) -> None:
    """Write what is logged from here on as JSON objects, if `--json-logs` was given."""
    if options.json_logs:
        handler = logging.StreamHandler()
        handler.setFormatter(_JsonLine())
        logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
        for noisy in ("httpx2", "httpx", "httpcore", "urllib3", "asyncio"):
            logging.getLogger(noisy).setLevel(logging.WARNING)


class _JsonLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).astimezone()
        line = {"time": time.isoformat(), "level": record.levelname, "message": record.getMessage()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
