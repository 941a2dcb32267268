"""`AnswerEnv`: a text environment in which an action is a whole answer, judged at once.

An episode has one turn by default. With more, an answer that cannot be read or is wrong is answered with what is wrong
about it, and the agent may try again.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import gymnasium

from swegym_env.episode import EndReason, Timing
from swegym_env.errors import ConfigurationError, InfrastructureError
from swegym_env.interaction.prompts import render_prompt
from swegym_env.interaction.rendering import print_turn, turn_text
from swegym_env.interaction.spaces import AnyText
from swegym_env.tasks.kinds import FileRepair, FunctionTask, VulnerabilityExample
from swegym_env.tasks.task import Task
from swegym_env.tasks.task_set import TaskSet

__all__ = ["AnswerEnv", "Judgement", "MalformedAnswerError", "names"]


E = TypeVar("E", bound=FileRepair | FunctionTask | VulnerabilityExample)


class MalformedAnswerError(Exception):
    """An answer that cannot be read; the text is what the agent is told."""


@dataclass(frozen=True)
class Judgement:
    """What an answer came to.

    Attributes:
        resolved: it is right.
        patch: the git diff that it amounts to; empty for an answer that is none.
        feedback: what an agent that may try again is told.
        fail_to_pass: tests passed, of all; None where no tests were run.
        failed_tests: those that did not pass.
        failure_reason: why it does not count, where that is not a failing test.
        grading_s: wall-clock seconds.
        final: there is nothing to try again, right or wrong.
    """

    resolved: bool
    patch: str = ""
    feedback: str = ""
    fail_to_pass: tuple[int, int] | None = None
    failed_tests: tuple[str, ...] = ()
    failure_reason: str = ""
    grading_s: float = 0.0
    final: bool = False


class AnswerEnv(gymnasium.Env[str, str], abc.ABC, Generic[E]):
    """One example an episode; the reward is 1 for a right answer, else 0. `info` is that of `SWEBenchEnv`.

    `env.task` is the example in repository form (a `Task`), `env.example` the example itself.

    Args:
        examples: what is to be answered.
        prompt: a folder with `system.j2` and `task.j2`; they see `example` and `max_turns`.
        max_turns: answers that may be given.
        render_mode: "ansi" or "human".
        arguments: what an equal environment is made of: for records.

    Raises:
        ConfigurationError: no example, an argument out of range, a prompt that cannot be read.
    """

    metadata = {"render_modes": ["ansi", "human"], "render_fps": 1}  # noqa: RUF012 - Gymnasium's own contract

    def __init__(
        self,
        examples: TaskSet[E],
        *,
        prompt: str | Path,
        max_turns: int,
        render_mode: str | None,
        arguments: Mapping[str, Any],
    ) -> None:
        if not len(examples):
            raise ConfigurationError(f"{type(self).__name__}: the dataset has no example in this split")
        if max_turns < 1:
            raise ConfigurationError(f"max_turns: expected 1 or more, got {max_turns!r}")
        if render_mode not in (None, "ansi", "human"):
            raise ConfigurationError(f"render_mode: expected None, 'ansi' or 'human', got {render_mode!r}")
        self.observation_space, self.action_space = AnyText(), AnyText()
        self.render_mode = render_mode
        self.arguments = arguments
        self.example: E = examples[0]
        self.task: Task = self.task_of(self.example)
        self._examples, self._prompt, self._max_turns = examples, str(prompt), max_turns
        self._turn, self._over, self._shown = 0, True, ""
        self._ending: EndReason | None = None

    @abc.abstractmethod
    def judge(self, example: E, answer: str) -> Judgement:
        """Judge an answer, from which reasoning was taken out.

        Raises:
            MalformedAnswerError: it cannot be read.
            InfrastructureError: the machine failed.
        """

    @abc.abstractmethod
    def task_of(self, example: E) -> Task:
        """The example in repository form: for rewards and records."""

    @property
    def instance_ids(self) -> tuple[str, ...]:
        """What `reset(options={"instance_id": …})` takes, in the order of the dataset."""
        return self._examples.ids

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin with an example chosen by the seed, or by `options={"instance_id": …}`.

        Raises:
            UnknownTaskError: no such instance.
            ConfigurationError: an unknown option.
        """
        super().reset(seed=seed)
        began = time.perf_counter()
        unknown = set(options or {}) - {"instance_id"}
        if unknown:
            raise ConfigurationError(f"reset: unknown option {min(unknown)!r}; there is instance_id")
        if options and "instance_id" in options:
            self.example = self._examples[str(options["instance_id"])]
        else:
            self.example = self._examples[int(self.np_random.integers(len(self._examples)))]
        self.task = self.task_of(self.example)
        system, self._shown = render_prompt(self._prompt, {"example": self.example, "max_turns": self._max_turns})
        self._turn, self._over, self._ending = 0, False, None
        if self.render_mode == "human":
            print_turn(self.example.instance_id, None, self._shown)
        timing = Timing(time.perf_counter() - began)
        return self._shown, {
            "instance_id": self.example.instance_id,
            "system_prompt": system,
            "tools": [],
            "timing": timing,
        }

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Answer once. Raises gymnasium.error.ResetNeeded where no episode is under way."""
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over: call reset() before step()")
        began = time.perf_counter()
        self._turn += 1
        last = self._turn >= self._max_turns or self._ending is not None
        error, failure = None, ""
        judgement = Judgement(False)
        try:
            judgement = self.judge(self.example, _spoken(action))
        except MalformedAnswerError as malformed:
            error = str(malformed)
        except InfrastructureError as failed:  # the machine's failure makes the episode invalid, never a reward of 0
            failure = f"{type(failed).__name__}: {failed}"
        ended = (judgement.resolved or judgement.final or last) and not failure
        info: dict[str, Any] = {
            "exit_code": -1,
            "truncated_chars": 0,
            "action_error": error,
            "sandbox": "",
            "patch": judgement.patch,
        }
        self._over = ended or bool(failure)
        if self._over:
            reason: EndReason = "submitted" if error is None else self._ending or "max_turns"
            info |= {
                "resolved": judgement.resolved,
                "fail_to_pass": judgement.fail_to_pass,
                "pass_to_pass": (0, 0) if judgement.fail_to_pass else None,
                "failed_tests": judgement.failed_tests,
                "valid": not failure,
                "failure_reason": failure or judgement.failure_reason,
                "end_reason": "error" if failure else reason,
            }
        observation = failure or error or ("Right." if judgement.resolved else judgement.feedback or "Wrong.")
        self._shown = turn_text(f"turn {self._turn}", action, observation)
        if self.render_mode == "human":
            print_turn(f"turn {self._turn}", action, observation)
        info["timing"] = Timing(time.perf_counter() - began, 0.0, judgement.grading_s)
        return observation, float(judgement.resolved), ended, bool(failure), info

    def last_turn(self, reason: Literal["max_turns", "tokens", "time"]) -> None:
        """Let the next answer be the last: for limits."""
        self._ending = reason

    def render(self) -> str | None:
        """The example or the last turn as text ("ansi"); "human" prints as the episode goes."""
        return self._shown if self.render_mode == "ansi" else None


def _spoken(text: str) -> str:
    """What stands after the reasoning."""
    _, closed, after = text.rpartition("</think>")
    return (after if closed else text).partition("<think>")[0]


def names(tests: Sequence[str], *, at_most: int = 20) -> str:
    """Names of tests as lines of a message."""
    more = [f"… and {len(tests) - at_most} more"] if len(tests) > at_most else []
    return "\n".join([*(f"- {name}" for name in tests[:at_most]), *more])
