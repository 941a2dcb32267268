"""Examples whose answer is the whole of one file, and the environments that grade it by tests.

They are graded like every other task: the repository form is a folder of one file whose tests come with the test patch,
so the same grader, policy and sandboxes serve them.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

from swegym_env.agent.observations import shorten
from swegym_env.answers.answer import AnswerEnv, Judgement
from swegym_env.answers.python_tests import runnable_tests
from swegym_env.arguments import check_choice, check_dataset, elements
from swegym_env.env import Outcome
from swegym_env.errors import ConfigurationError
from swegym_env.grading.grading import grade
from swegym_env.languages.python.parsing import parse
from swegym_env.prepare import check_backend
from swegym_env.repo.patches import LineEdit, git_diff
from swegym_env.tasks.datasets import load_examples
from swegym_env.tasks.task import Task, TaskSet

__all__ = ["OneFile", "OneFileEnv", "OneFileExample"]

_TEST_TIMEOUT_S = 60.0
_LOG_CHARS = 3_000
_MOST_NAMES = 20


class OneFile(Protocol):
    """An example that is one file, its solution and its tests.

    Attributes:
        instance_id: unique within the dataset.
        problem_statement: the problem, as the agent reads it.
        path: name of the file.
        source: the file at the beginning.
        solution: the file as it should be.
        tests: a module of Python tests that imports the file; empty where the dataset has none.
    """

    @property
    def instance_id(self) -> str: ...
    @property
    def problem_statement(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def solution(self) -> str: ...
    @property
    def tests(self) -> str: ...

    def patch(self, text: str) -> str:
        """See `OneFileExample.patch`."""

    def as_task(self) -> Task:
        """See `OneFileExample.as_task`."""


class OneFileExample:
    """What the examples of `OneFile` share: the patch of an answer, and the repository form."""

    def patch(self: OneFile, text: str) -> str:
        """The git diff from the file at the beginning to `text`, the whole file; empty if they are equal."""
        lines, changed = _lines(self.source), _lines(text)
        return git_diff(self.path, lines, [LineEdit(0, len(lines), tuple(changed))])

    def as_task(self: OneFile) -> Task:
        """The task in repository form; every test must pass. Raises ConfigurationError if there are no tests."""
        if not self.tests.strip():
            raise ConfigurationError(f"{self.instance_id}: it has no tests to run; compare with its solution")
        module = runnable_tests(self.tests, where=self.instance_id)
        return Task(
            instance_id=self.instance_id,
            repo=f"{self.instance_id.rpartition('__')[0] or 'files'}/{self.instance_id.rpartition('__')[2]}",
            base_commit="",
            problem_statement=self.problem_statement,
            patch=self.patch(self.solution),
            test_patch="".join(_new_file(path, text) for path, text in sorted(module.files.items())),
            fail_to_pass=module.names,
            version="1.0",
            setup=module.setup,
            test_command=module.command,
            log_parser=module.log_parser,
            files={self.path: "".join(_lines(self.source))},
            test_timeout_s=_TEST_TIMEOUT_S,
        )


def _new_file(path: str, text: str) -> str:
    lines = _lines(text)
    body = "".join(f"+{line}" for line in lines)
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
    return f"{head}@@ -0,0 +1,{len(lines)} @@\n{body}"


def _lines(text: str) -> list[str]:
    # Git's lines end with a newline and nothing else; `str.splitlines` knows eight other ends.
    return [f"{line}\n" for line in text.removesuffix("\n").split("\n")]


X = TypeVar("X", bound=OneFile)


class OneFileEnv(AnswerEnv[X]):
    """Runs the tests of an example on the whole file that an answer amounts to.

    An example without tests is compared with its solution: as programs where both parse as Python, else as text.

    Args:
        dataset: a hub name or a file; None: the shipped dataset.
        split: of the dataset; None: all of it.
        strict_rows: a malformed row of the dataset is an error; else it is skipped, with a warning.
        examples: the examples themselves, instead of a dataset.
        sandbox: a back end, see `sandbox.backends.BACKENDS`.
        reward: "resolved" or "none" (nothing is run: for `PatchSimilarityReward`).
        prompt: a folder with `system.j2` and `task.j2`; None: the shipped one.
        max_turns: answers that may be given; after a wrong one the agent reads which tests fail.
        render_mode: "ansi" or "human".
    """

    example_type: type[X]
    shipped_dataset: ClassVar[str]
    shipped_prompt: ClassVar[Path]

    def __init__(
        self,
        dataset: str | None = None,
        *,
        split: str | None = None,
        strict_rows: bool = False,
        examples: Sequence[X] | None = None,
        sandbox: str = "auto",
        reward: str = "resolved",
        prompt: str | None = None,
        max_turns: int = 1,
        render_mode: str | None = None,
    ) -> None:
        dataset = self.shipped_dataset if dataset is None else dataset
        arguments = {name: value for name, value in locals().items() if name not in ("self", "examples", "__class__")}
        check_dataset(dataset, "examples")
        check_choice("reward", reward, ("resolved", "none"))
        check_backend(sandbox)
        self._backend, self._reward = sandbox, reward
        found = (
            load_examples(self.example_type, dataset, split=split, on_bad_row="raise" if strict_rows else "warn")
            if examples is None
            else TaskSet(elements("examples", examples, self.example_type))
        )
        super().__init__(
            found,
            prompt=prompt or self.shipped_prompt,
            max_turns=max_turns,
            render_mode=render_mode,
            arguments=arguments,
        )

    def _task_of(self, example: X) -> Task:
        if example.tests.strip():
            return example.as_task()
        return Task(
            example.instance_id, "", "", example.problem_statement, example.patch(example.solution), image="host"
        )

    def grade_file(self, example: X, text: str) -> Judgement:
        """Judge `text`, the whole file as answered. Raises InfrastructureError: the tests could not be run."""
        patch = example.patch(text)
        if self._reward == "none":
            return Judgement(Outcome(), patch, "Not judged.")
        if not example.tests.strip():
            return Judgement(Outcome(resolved=_is_same_program(text, example.solution)), patch)
        task = example.as_task()
        verdict = grade(task, patch, backend=self._backend)
        outcome = Outcome.of(verdict, task)
        reason = f" ({outcome.failure_reason})" if outcome.failure_reason else ""
        failed = [f"- {name}" for name in outcome.failed_tests[:_MOST_NAMES]]
        if len(outcome.failed_tests) > _MOST_NAMES:
            failed.append(f"… and {len(outcome.failed_tests) - _MOST_NAMES} more")
        log = shorten(verdict.log.strip(), _LOG_CHARS)[0]
        feedback = "\n".join([f"Wrong{reason}. These tests do not pass:", *failed, f"\nWhat they print:\n{log}"])
        return Judgement(outcome, patch, feedback, verdict.duration_s)


def _is_same_program(ours: str, theirs: str) -> bool:
    try:
        return ast.dump(parse(ours)) == ast.dump(parse(theirs))
    except (SyntaxError, ValueError, RecursionError):
        return ours.split() == theirs.split()
