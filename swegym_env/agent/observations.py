"""What the agent reads after a command (`info` has the exact values), and how a person sees a turn."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from swegym_env.sandbox.api import CommandResult

__all__ = ["Observation", "print_turn", "render_result", "shorten", "turn_text"]

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
# Progress bars overwrite a line: a terminal shows the last version.
_OVERWRITTEN = re.compile(r"^[^\n]*\r(?=[^\n\r])", re.MULTILINE)
_CONTROLS = {chr(code): f"\\x{code:02x}" for code in (*range(32), 127, *range(128, 160)) if chr(code) not in "\t\n"}
_READ = 8  # times the limit, of each end of an output
_LINE_LIMIT = 2_000  # characters of one line; minified sources would fill the context
_REACHED = {
    "time": "ended after {seconds:.0f} s, the time limit of a command",
    "cpu": "ended: it used all the processor time that a command may",
    "memory": "ended: it used all the memory that the sandbox has",
    "processes": "it could not start more processes: the sandbox has as many as it may",
    "disk": "it could not write more: the sandbox's disk is full",
    "file_size": "it could not write more: a file has the size that one may have",
    "output": "it wrote more output than is kept",
}


@dataclass(frozen=True)
class Observation:
    """Text for the agent, and the number of characters of the output that it omits."""

    text: str
    truncated_chars: int


def render_result(result: CommandResult, *, limit_chars: int, show_duration: bool = False) -> Observation:
    r"""The output of a command, its exit code and, in words, the limit that it reached.

    Terminal escapes are removed, as is text that a line overwrote after a carriage return; other control characters are
    written as `\xNN`. Long lines are folded; of a long output, head and tail are kept. Where it is more than 16 times
    as long as the limit, the middle is left out first.

    Args:
        limit_chars: maximum number of characters of output to show, at least 100.
        show_duration: also show how long it took. Equal commands then read differently from run to run.
    """
    output, most = result.output, _READ * limit_chars
    if len(output) <= 2 * most:
        whole, dropped = _readable(output)
        text, omitted = shorten(whole, limit_chars, extra=result.truncated_bytes)
    else:  # the middle of the output is dropped unread: each of these passes stops all other threads
        head, tail = _readable(output[:most])[0], _readable(output[-most:])[0]
        half = limit_chars // 2
        head, tail = head[:half], tail[max(0, len(tail) - (limit_chars - half)) :]
        dropped, omitted = 0, len(output) - len(head) - len(tail) + result.truncated_bytes
        text = f"{head}\n[... {omitted} characters left out ...]\n{tail}"
    if text and not text.endswith("\n"):
        text += "\n"
    limit = "time" if result.timed_out else result.limit
    reason = ": " + _REACHED.get(limit, f"the limit of {limit} was reached") if limit else ""
    took = f" after {result.duration_s:.1f} s" if show_duration and result.limit != "time" else ""
    return Observation(
        f"{text}[exit code {result.exit_code}{took}{reason.format(seconds=result.duration_s)}]", dropped + omitted
    )


def _readable(output: str) -> tuple[str, int]:
    """The output without what a terminal would not show, with folded lines; the number of characters dropped."""
    text = _ESCAPES.sub("", output).replace("\r\n", "\n")
    shown = _OVERWRITTEN.sub("", text) if "\r" in text else text
    dropped = len(text) - len(shown)
    lines = _written(shown).split("\n")
    half = _LINE_LIMIT // 2
    folded = [
        f"{line[:half]} [... {len(line) - _LINE_LIMIT} characters of this line ...] {line[-half:]}"
        if len(line) > _LINE_LIMIT
        else line
        for line in lines
    ]
    dropped += sum(len(line) - _LINE_LIMIT for line in lines if len(line) > _LINE_LIMIT)
    return "\n".join(folded), dropped


def _written(text: str) -> str:
    """The text with its control characters in ASCII."""
    for control, written in _CONTROLS.items():  # faster than `translate`, which asks for every character
        if control in text:
            text = text.replace(control, written)
    return text


def shorten(text: str, limit_chars: int, *, extra: int = 0) -> tuple[str, int]:
    """Keep head and tail of a text, with the number of omitted characters between them.

    Args:
        extra: characters that are already missing from the middle.

    Returns:
        The text, and the number of characters that it omits.
    """
    if len(text) <= limit_chars and not extra:
        return text, 0
    kept = min(limit_chars, len(text))
    head, tail = kept // 2, kept - kept // 2
    dropped = len(text) - kept + extra
    return f"{text[:head]}\n[... {dropped} characters left out ...]\n{text[len(text) - tail :]}", dropped


def turn_text(title: str, action: str | None, observation: str) -> str:
    """One turn as plain text: a title, the action after `>>>`, the observation. Nothing in it controls a terminal."""
    acted = "" if action is None else "\n".join(f">>> {line}" for line in _printable(action).split("\n")) + "\n"
    return f"── {title} ──\n{acted}{_printable(observation)}"


def _printable(text: str) -> str:
    return _written(_ESCAPES.sub("", text).replace("\r\n", "\n"))


def print_turn(title: str, action: str | None, observation: str) -> None:
    """Print one turn, in colours if standard output is a terminal; characters that it lacks are escaped."""
    encoding = sys.stdout.encoding or "utf-8"

    def shown(text: str) -> str:
        return text.encode(encoding, "backslashreplace").decode(encoding)

    if not sys.stdout.isatty():
        print(shown(turn_text(title, action, observation)), flush=True)  # noqa: T201 - the purpose of render_mode="human"
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.rule(Text(title, style="bold cyan"), align="left")
    if action is not None:
        console.print(Text(shown(_printable(action)), style="bold green"))
    body, _, last = shown(_printable(observation)).rpartition("\n")
    style = "" if not last.startswith("[exit code ") else "green" if last.startswith("[exit code 0") else "red"
    console.print(Text(body), Text(last, style=style), sep="\n" if body else "")
