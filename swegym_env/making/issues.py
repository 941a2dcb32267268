"""The issue of a made task, as a user would report it, from the failing test's output; and an estimate of difficulty.

A language model can rewrite it, through any server with OpenAI's chat completions.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from swegym_env.errors import ConfigurationError
from swegym_env.making.candidates import Candidate
from swegym_env.making.validation import Finding

__all__ = ["Rewriter", "difficulty", "write_issue"]

_INSTRUCTIONS = (
    "You report bugs to open-source projects. Rewrite the report below in your own words, as a user who met the "
    "problem in practice: a title line, an empty line, then what you did, what you got and what you expected. Keep "
    "every value, message and code that somebody needs to see the problem for themselves. Invent nothing, do not guess "
    "the cause, and do not mention tests. Answer with the report alone."
)
_MAX_CHARACTERS = 20_000
_MAX_LINES = 40
_MAX_NAMES = 8


def write_issue(name: str, finding: Finding, test: str, fence: str) -> str:
    """The report: a failing test, its output, and the other failing tests.

    It names neither the file nor the line of the bug, unless the test's output does.

    Args:
        name: the project's name.
        test: the source of the shown test; empty if it is not known.
        fence: how its language is marked in Markdown.
    """
    inner = finding.shown_test.partition("::")[2] or finding.shown_test
    error = _error_lines(finding.text)
    subject = re.sub(r"^test_?|\[.*$", "", inner.rpartition("::")[2], flags=re.DOTALL).replace("_", " ").strip()
    headline = _shortened(error[0] if error else "the result is wrong", 100)
    parts = [f"{name}: {subject + ': ' if subject else ''}{headline}"]
    if test:
        shown = test.splitlines()
        if len(shown) > _MAX_LINES:
            shown = [*shown[:_MAX_LINES], "    ..."]
        case = re.search(r"\[(.*)\]$", inner, re.DOTALL)
        with_case = f" (with the parameters `{_shortened(case[1], 100)}`)" if case else ""
        parts.append(f"This should pass{with_case}:\n\n```{fence}\n" + "\n".join(shown) + "\n```")
    if error:
        parts.append("Instead I get\n\n```\n" + "\n".join(error[:_MAX_LINES]) + "\n```")
    others = [test for test in finding.fail_to_pass if test != finding.shown_test]
    if others:
        listed = ", ".join(f"`{other.rpartition('::')[2]}`" for other in others[:_MAX_NAMES])
        more = f" and {len(others) - _MAX_NAMES} more" if len(others) > _MAX_NAMES else ""
        parts.append(f"Probably of the same cause: {listed}{more}.")
    return "\n\n".join(parts) + "\n"


def _error_lines(text: str) -> list[str]:
    """The lines that pytest marks with `E`, without the mark."""
    lines = [line[1:] for line in text.splitlines() if re.match(r"E( |$)", line)]
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return [line[indent:].rstrip() for line in lines if line.strip()]


def _shortened(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"


def difficulty(candidate: Candidate, finding: Finding) -> tuple[str, float]:
    """An estimate of difficulty: "easy", "medium" or "hard", and a score from 0 to 1. Not calibrated on any model.

    The score is the mean of four: the fraction of the tests that reach the bug and pass; how much code the shown test
    runs (0 at 1 line, 1 at 1,000, logarithmic); how far the failure's traceback is from the bug (0 in its function, ½
    in its file, 1 elsewhere); and how many lines the fix changes (0 at 1 line, 1 at 30, logarithmic).
    """
    passing = 1 - len(finding.failing) / max(1, finding.covering)
    visited = _log_fraction(finding.visited, 1000)
    path, _, name = candidate.function.partition(":")
    frames = set(re.findall(r"^(\S+\.py):\d+: ", finding.text, re.MULTILINE))
    function = name.rpartition(".")[2]
    in_function = bool(function) and bool(
        re.search(rf"^    (async )?def {re.escape(function)}\(", finding.text, re.MULTILINE)
    )
    far = 0.0 if in_function and path in frames else 0.5 if path in frames else 1.0
    size = _log_fraction(sum(map(len, candidate.lines.values())), 30)
    score = (passing + visited + far + size) / 4
    return ("easy" if score < 0.4 else "medium" if score < 0.6 else "hard"), round(score, 3)


def _log_fraction(count: int, maximum: int) -> float:
    return min(1.0, math.log(max(1, count)) / math.log(maximum))


@dataclass(frozen=True)
class Rewriter:
    """Rewrites issues with a language model.

    Attributes:
        url: the server's, with or without `/chat/completions` (`http://127.0.0.1:8000/v1`).
        model: the model's name there.
        timeout_s: for one answer.
    """

    url: str
    model: str
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        """Raises ConfigurationError for an invalid URL."""
        if not self.url.startswith(("http://", "https://")):
            raise ConfigurationError(f"--rewrite-url: expected http://… or https://…, got {self.url!r}")

    def rewrite(self, issue: str, *, seed: int) -> str:
        """The report in the model's words. The server's API key, if it needs one, is `$OPENAI_API_KEY`.

        Raises:
            ConfigurationError: the server cannot be reached, refuses, or its answer is no report.
        """
        address = self.url.rstrip("/")
        address += "" if address.endswith("/chat/completions") else "/chat/completions"
        messages = [{"role": "system", "content": _INSTRUCTIONS}, {"role": "user", "content": issue}]
        body = {"model": self.model, "messages": messages, "seed": seed}
        headers = {"Content-Type": "application/json"}
        if os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {os.environ['OPENAI_API_KEY']}"
        request = urllib.request.Request(address, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as response:
                answer: Any = json.loads(response.read())
            text = answer["choices"][0]["message"]["content"]
        except (OSError, http.client.HTTPException) as error:
            status: object = error
            if isinstance(error, urllib.error.HTTPError):
                status = f"status {error.code}"
                error.close()
            raise ConfigurationError(
                f"--rewrite-url {address}: no answer: {status}. Run again without it, or when it is up: "
                "all findings are kept"
            ) from error
        except (ValueError, LookupError, TypeError) as error:
            raise ConfigurationError(
                f"--rewrite-url {address}: expected a chat completion, got something else ({type(error).__name__})"
            ) from error
        if not isinstance(text, str) or not text.strip() or len(text) > _MAX_CHARACTERS:
            raise ConfigurationError(f"--rewrite-url {address}: model {self.model!r} answered with no usable report")
        return text.strip() + "\n"
