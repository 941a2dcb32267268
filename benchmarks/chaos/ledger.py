"""Checks that every command ran once: each appends its number to a file in its sandbox, which is read afterwards."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium

from swegym_env.errors import SwegymError
from swegym_env.sandbox.api import Sandbox

__all__ = ["Ledger", "RunsOnce", "read_ledger"]

_FILE = "/tmp/commands-that-ran"
_SAID = "this command ran more than once"


class RunsOnce(gymnasium.Wrapper[str, str, str, str]):
    """Wraps `SWEBench-v0` with raw actions and counts how often each command ran, as long as its sandbox is reachable.

    The command itself checks whether its number is already there, so that the last one of an episode is counted too.

    Args:
        env: the environment.
        folder: where each process writes its findings, one line per command.
    """

    def __init__(self, env: gymnasium.Env[str, str], folder: str) -> None:
        super().__init__(env)
        self._path = Path(folder) / f"{os.getpid()}-{id(self)}.jsonl"
        self._sent = 0
        self._told: set[int] = set()

    def reset(self, **arguments: Any) -> tuple[str, dict[str, Any]]:
        """Begin an episode and reset the count."""
        self._sent, self._told = 0, set()
        return self.env.reset(**arguments)

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """Step, and count."""
        if action.strip() in ("", "submit") or "\0" in action:  # which is refused: no command can contain it
            return self.env.step(action)
        self._sent += 1
        number = self._sent
        # A separate line: the action may be a syntax error, and the shell reads and runs one line before the next.
        mark = f"echo {number} >>{_FILE}; [ $(grep -cx {number} {_FILE}) = 1 ] || echo '{_SAID}'\n"
        step = self.env.step(mark + action)
        observation, info = step[0], step[4]
        found = self._found() if info.get("exit_code", -1) != -1 and not (step[2] or step[3]) else None
        wrong = {} if found is None else {each: found[each] for each in range(1, number + 1) if found[each] != 1}
        new = [count for each, count in wrong.items() if each not in self._told]
        self._told |= wrong.keys()
        line = {
            "valid": bool(info.get("valid", True)),
            "twice": observation.count(_SAID) + sum(count > 1 for count in new),
            "never": new.count(0),
            "action": action if new else None,
        }
        with self._path.open("a") as ledger:
            ledger.write(json.dumps(line) + "\n")
        return step

    def _found(self) -> Counter[int] | None:
        """Number → its count in the sandbox; None if the sandbox is gone."""
        sandbox: Sandbox | None = self.env.unwrapped._sandbox  # type: ignore[attr-defined]
        assert sandbox is not None
        try:
            return Counter(map(int, sandbox.read(_FILE).split()))
        except (SwegymError, OSError):
            return None  # its server died, or an agent made the file unreadable


@dataclass(frozen=True)
class Ledger:
    """The findings of all processes of a run.

    Attributes:
        commands: commands sent.
        twice: commands that ran more than once.
        never: commands with a result that never ran.
    """

    commands: int
    twice: int
    never: int


def read_ledger(folder: Path) -> Ledger:
    """All lines together; an incomplete last line is ignored."""
    lines = []
    for path in folder.glob("*.jsonl"):
        for text in path.read_text().splitlines():
            try:
                lines.append(json.loads(text))
            except ValueError:
                continue
    return Ledger(len(lines), sum(each["twice"] for each in lines), sum(each["never"] for each in lines))
