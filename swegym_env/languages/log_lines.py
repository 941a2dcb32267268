"""Logs of test runners with one line for each test."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["parse_lines"]


def parse_lines(log: str, pattern: re.Pattern[str], statuses: Mapping[str, str]) -> dict[str, str]:
    """Test → status, from the lines that match; a later line of the same test counts.

    Args:
        log: the output of the test runner.
        pattern: matches a line without surrounding blanks; its groups are the runner's word and the name of the test.
        statuses: the runner's word → status.
    """
    found: dict[str, str] = {}
    for line in log.split("\n"):
        if match := pattern.match(line.strip()):
            found[match[2]] = statuses[match[1]]
    return found
