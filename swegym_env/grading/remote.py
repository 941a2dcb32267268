"""Grading by a server (`swegym serve`, `swegym pool`): task and patch are sent, the verdict is received."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from swegym_env.grading.verdict import Verdict
from swegym_env.tasks.task import Task, task_to_row

if TYPE_CHECKING:
    from swegym_env.sandbox.remote.connection import ServerClient

__all__ = ["grade_remotely", "verdict_from_message", "verdict_to_message"]

_PREPARATION_S = 3600.0
_TRIALS = 12  # how often the tests run at most, controls included


def grade_remotely(
    task: Task,
    patch: str,
    server: ServerClient,
    *,
    timeout_s: float | None,
    policy: str,
    max_forgery_chance: float | None = None,
) -> Verdict:
    """The verdict of a server. Raises InfrastructureError: it failed, or did not respond."""
    payload = {"task": task_to_row(task), "patch": patch, "policy": policy, "timeout_s": timeout_s}
    if max_forgery_chance is not None:  # servers before version 0.3 do not know it
        payload["max_forgery_chance"] = max_forgery_chance
    longest = _PREPARATION_S + _TRIALS * (task.test_timeout_s if timeout_s is None else timeout_s)
    return verdict_from_message(server.call("/container/evaluate", payload, timeout_s=longest))


def verdict_to_message(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON."""
    return dataclasses.asdict(verdict)


def verdict_from_message(message: Mapping[str, Any]) -> Verdict:
    """The verdict that `verdict_to_message` wrote."""
    pairs = {name: tuple(message[name]) for name in ("fail_to_pass", "pass_to_pass", "set_aside", "proof_tests")}
    return Verdict(**{**message, **pairs})
