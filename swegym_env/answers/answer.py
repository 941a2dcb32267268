"""`AnswerEnv`: a text environment in which an action is a whole answer, graded at once.

An episode has one turn by default. With more, an answer that cannot be read or is wrong is followed by what is wrong
with it, and the agent may try again.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from swegym_env.agent.formats.scanning import after_reasoning
from swegym_env.agent.prompts import check_prompt, render_prompt
from swegym_env.env import Outcome, TextEpisode, TurnResult
from swegym_env.tasks.adapters import Example
from swegym_env.tasks.task import TaskSet

__all__ = ["AnswerEnv", "Judgement", "MalformedAnswerError"]

E = TypeVar("E", bound=Example)


class MalformedAnswerError(Exception):
    """An answer that cannot be read; the text is the agent's next observation."""


@dataclass(frozen=True)
class Judgement:
    """The result of one answer.

    Attributes:
        outcome: that of the episode, if it ends with this answer.
        patch: the git diff that the answer amounts to; empty where it is none.
        feedback: the next observation of an agent that may try again.
        grading_s: wall-clock seconds.
        final: the episode ends, right or wrong.
    """

    outcome: Outcome
    patch: str = ""
    feedback: str = "Wrong."
    grading_s: float = 0.0
    final: bool = False


class AnswerEnv(TextEpisode[E]):
    """One example an episode; the reward is 1 for a right answer, else 0. `info` is that of `TextEpisode`.

    Args:
        examples: the examples to choose from.
        prompt: a folder with `system.j2` and `task.j2`; they get `example` and `max_turns`.
        max_turns: answers that may be given.
        render_mode: None, "ansi" or "human".
        arguments: the arguments of the subclass, for recordings.

    Raises:
        ConfigurationError: no example, an argument out of range, a prompt that cannot be read.
    """

    def __init__(
        self,
        examples: TaskSet[E],
        *,
        prompt: str | Path,
        max_turns: int,
        render_mode: str | None,
        arguments: Mapping[str, Any],
    ) -> None:
        check_prompt(prompt)
        super().__init__(examples, max_turns=max_turns, render_mode=render_mode, arguments=arguments)
        self._prompt = str(prompt)

    @abc.abstractmethod
    def judge(self, example: E, answer: str) -> Judgement:
        """Judge an answer, without its reasoning.

        Raises:
            MalformedAnswerError: it cannot be read.
            InfrastructureError: it could not be graded.
        """

    def _begin(self) -> tuple[str, str, dict[str, Any]]:
        values = {"example": self.example, "max_turns": self._max_turns}
        return (*render_prompt(self._prompt, values), {})

    def _play(self, action: str) -> TurnResult:
        turn = TurnResult()
        limit = self._limit_reached()
        try:
            judgement = self.judge(self.example, after_reasoning(action))
        except MalformedAnswerError as error:
            turn.observation = turn.action_error = str(error)
            turn.end_reason = limit
            return turn
        turn.outcome, turn.patch, turn.grading_s = judgement.outcome, judgement.patch, judgement.grading_s
        turn.observation = "Right." if judgement.outcome.resolved else judgement.feedback
        if judgement.outcome.resolved or judgement.final or limit:
            turn.end_reason = "submitted"
        return turn
