"""Text environments: `TextEpisode`, the base of all of them, and `SWEBenchEnv`, the repair of a repository."""

from __future__ import annotations

import abc
import contextlib
import copy
import errno
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import gymnasium

from swegym_env import vector
from swegym_env.agent.actions import Command, Malformed, Submit
from swegym_env.agent.formats import action_format as find_format
from swegym_env.agent.observations import print_turn, render_result, turn_text
from swegym_env.agent.prompts import check_prompt, render_prompt
from swegym_env.agent.spaces import AnyText
from swegym_env.agent.tools import tools_for
from swegym_env.arguments import (
    CheckedArguments,
    check_between,
    check_choice,
    check_dataset,
    check_positive,
    check_whole,
    elements,
)
from swegym_env.errors import ConfigurationError, InfrastructureError, SandboxBrokenError
from swegym_env.grading.certificates import find_certificate, trusted
from swegym_env.grading.grading import Verdict, grade
from swegym_env.grading.verdict import Proof, names_by_outcome
from swegym_env.prepare import Workspace, check_backend, prepare
from swegym_env.repo.patches import refusal
from swegym_env.sandbox.api import Imports, Limits, Sandbox, Snapshot
from swegym_env.sandbox.pool import WarmPool
from swegym_env.tasks.adapters import Example
from swegym_env.tasks.datasets import load_tasks
from swegym_env.tasks.task import Task, TaskSet

__all__ = ["EndReason", "EnvSnapshot", "Outcome", "SWEBenchEnv", "TextEpisode", "Timing", "TurnResult", "make_vector"]

EndReason = Literal["submitted", "crashed", "max_turns", "tokens", "time", "broken", "error"]

_LEAST_OBSERVATION = 100  # characters
_SUBMITTED = "/.swegym/submitted"  # written by the program `submit`
_NO_SUBMIT = "submit: command not found"
_CLOSING: Mapping[EndReason, str] = {
    "submitted": "Submitted.",
    "crashed": "The agent has failed.",
    "max_turns": "No turns are left.",
    "tokens": "No tokens are left.",
    "time": "The time of the episode is over.",
}

E = TypeVar("E", bound=Example)


@dataclass(frozen=True)
class Timing:
    """Wall-clock times. Two timings always compare equal, so that equal episodes have equal `info`.

    Attributes:
        seconds: seconds of the whole call of `reset` or `step`.
        command_s: seconds of the agent's command.
        grading_s: seconds of grading.
    """

    seconds: float = field(compare=False)
    command_s: float = field(default=0.0, compare=False)
    grading_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Outcome:
    """The result of an episode: the keys that `info` has at its end, besides `end_reason`.

    Attributes:
        resolved: whether the work solves the task.
        fail_to_pass: number of tests of FAIL_TO_PASS that passed, and of all; None if no tests were run.
        pass_to_pass: the same for PASS_TO_PASS.
        failed_tests: the tests of both lists that did not pass.
        valid: False if the infrastructure failed; the episode is then excluded from training and evaluation.
        failure_reason: why the work is not resolved or not valid, if not because of failing tests.
        proof: evidence that the tests passed by a repair: "blind", "controls" or "none", see `Verdict`.
        proof_bits: number of bits in the blind expectations.
        forgery_chance: largest chance that a patch without the repair gets this verdict; None if nothing was examined.
        set_aside: paths whose changes were not graded.
    """

    resolved: bool = False
    fail_to_pass: tuple[int, int] | None = None
    pass_to_pass: tuple[int, int] | None = None
    failed_tests: tuple[str, ...] = ()
    valid: bool = True
    failure_reason: str = ""
    proof: Proof = "none"
    proof_bits: float = 0.0
    forgery_chance: float | None = None
    set_aside: tuple[str, ...] = ()

    @classmethod
    def of(cls, verdict: Verdict, task: Task) -> Outcome:
        """The outcome of a verdict on `task`."""
        failed = expected = (*task.fail_to_pass, *task.pass_to_pass)
        if verdict.tests:
            failed = tuple(names_by_outcome(expected, verdict.tests, task.eval_type, "strict")[1])
        return cls(
            resolved=verdict.resolved,
            fail_to_pass=verdict.fail_to_pass,
            pass_to_pass=verdict.pass_to_pass,
            failed_tests=failed,
            valid=verdict.valid,
            failure_reason=verdict.failure_reason,
            proof=verdict.proof,
            proof_bits=verdict.proof_bits,
            forgery_chance=verdict.forgery_chance,
            set_aside=verdict.set_aside,
        )


@dataclass
class TurnResult:
    """The effect of an action.

    Attributes:
        observation: what the agent reads.
        exit_code: exit code of the command; -1 if no command ran to its end: the action could not be parsed, it was the
            submission, or the sandbox failed or was broken by the agent.
        patch: the git diff so far; a line that begins with "# refused:" if the changes exceed the limits.
        truncated_chars: number of characters of the output that the observation does not show.
        action_error: why the action could not be parsed; None if it could.
        sandbox: name of the back end; empty without a sandbox.
        end_reason: why the episode ends with this turn; None if it continues.
        outcome: the result of the episode, if it ends.
        command_s: wall-clock seconds of the command.
        grading_s: wall-clock seconds of grading.
        more: further keys of `info`.
    """

    observation: str = ""
    exit_code: int = -1
    patch: str = ""
    truncated_chars: int = 0
    action_error: str | None = None
    sandbox: str = ""
    end_reason: EndReason | None = None
    outcome: Outcome = Outcome()
    command_s: float = 0.0
    grading_s: float = 0.0
    more: Mapping[str, Any] = field(default_factory=dict)


class TextEpisode(CheckedArguments, gymnasium.Env[str, str], abc.ABC, Generic[E]):
    """A text environment in which each episode is one example of a dataset.

    It chooses the example, plays turns until the episode ends, and reports the outcome. A subclass implements the start
    of an episode (`_begin`) and the effect of an action (`_play`).

    `info` at reset: `instance_id`, `system_prompt`, `tools`, `timing`. At every step: `exit_code`, `patch`,
    `truncated_chars`, `action_error`, `sandbox` (see `TurnResult`) and `timing`. At the end: `end_reason` and the
    attributes of `Outcome`. An episode that ends by "time" or "error" is truncated, any other terminates. The reward is
    1 at the end if the example is resolved, else 0. The end reason "broken" is the agent's fault: it changed its
    sandbox so that no shell starts any more; the episode is valid and not resolved. The end reason "error" is a failure
    of the infrastructure: the episode is invalid. `swegym_env.errors` explains how the two are distinguished.

    `env.example` is the example of the episode, `env.task` the same as a `Task`, `env.arguments` the arguments that
    make an equal environment.

    Args:
        examples: the examples to choose from.
        max_turns: maximum turns of an episode; None: no limit.
        episode_timeout_s: maximum seconds of an episode; None: no limit.
        render_mode: None, "ansi" or "human".
        arguments: the arguments of the subclass, for recordings.

    Raises:
        ConfigurationError: there is no example, or an argument is out of range.
    """

    metadata = {"render_modes": ["ansi", "human"], "render_fps": 1}  # noqa: RUF012 - Gymnasium's own contract

    def __init__(
        self,
        examples: TaskSet[E],
        *,
        max_turns: int | None,
        episode_timeout_s: float | None = None,
        render_mode: str | None,
        arguments: Mapping[str, Any],
    ) -> None:
        if not len(examples):
            raise ConfigurationError(f"{type(self).__name__}: there is no task in {examples.name!r}")
        check_whole("max_turns", max_turns, 1, optional=True)
        check_positive("episode_timeout_s", episode_timeout_s, optional=True)
        check_choice("render_mode", render_mode, (None, "ansi", "human"))
        self.observation_space, self.action_space = AnyText(), AnyText()
        self.render_mode = render_mode
        self.arguments = arguments
        self._examples = examples
        self._max_turns = max_turns
        self._episode_timeout_s = episode_timeout_s
        self._turn = 0
        self._started = 0.0
        self._over = True
        self._thread: int | None = None  # that is in `reset` or `step`
        self._last_turn_reason: EndReason | None = None
        self._shown = ""
        self.example: E = examples[0]
        self.task: Task = self._task_of(self.example)

    @classmethod
    def make_vector(cls, num_envs: int = 1, **arguments: Any) -> vector.ThreadVectorEnv:
        """Environments with equal arguments on threads, see `vector.make_vector`."""
        return vector.make_vector(cls, num_envs, **arguments)

    @property
    def instance_ids(self) -> tuple[str, ...]:
        """The values of `reset(options={"instance_id": …})`, in the order of the dataset."""
        return self._examples.ids

    @abc.abstractmethod
    def _begin(self) -> tuple[str, str, dict[str, Any]]:
        """Start an episode of `self.example`.

        Returns:
            The system prompt, the first observation, and further keys of `info`.
        Raises:
            InfrastructureError: the episode cannot be started.
        """

    @abc.abstractmethod
    def _play(self, action: str) -> TurnResult:
        """Play one turn. Raises InfrastructureError, which ends the episode as invalid."""

    def _release(self) -> None:
        """Release the resources of the episode; called after its last turn, before the next episode, and by `close`."""

    def _task_of(self, example: E) -> Task:
        """The example as a `Task`, for rewards and recordings."""
        return example.as_task()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode on an example chosen by the seed, or by `options={"instance_id": …}`.

        Raises:
            UnknownTaskError: no such instance.
            ConfigurationError: an unknown option, or another thread uses the environment.
            InfrastructureError: the episode cannot be started.
        """
        with self._in_one_thread():
            return self._reset(seed, options)

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[str, dict[str, Any]]:
        began = time.perf_counter()
        options = {} if options is None else options
        if not isinstance(options, Mapping):
            raise ConfigurationError(f"options: expected a dictionary with instance_id, got {options!r}")
        unknown = next((name for name in options if name != "instance_id"), None)
        if unknown is not None:
            raise ConfigurationError(f"reset: unknown option {unknown!r}; the only option is instance_id")
        super().reset(seed=seed)
        self._over = True
        self._release()
        if "instance_id" in options:
            self.example = self._examples[str(options["instance_id"])]
        else:
            self.example = self._examples[int(self.np_random.integers(len(self._examples)))]
        self.task = self._task_of(self.example)
        system_prompt, self._shown, more = self._begin()
        self._turn, self._started, self._over, self._last_turn_reason = 0, time.monotonic(), False, None
        if self.render_mode == "human":
            print_turn(self.example.instance_id, None, self._shown)
        info = {"instance_id": self.example.instance_id, "system_prompt": system_prompt, "tools": [], **more}
        return self._shown, {**info, "timing": Timing(time.perf_counter() - began)}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one turn.

        Raises:
            gymnasium.error.ResetNeeded: no episode is in progress.
            ConfigurationError: the action is not text, or another thread uses the environment; nothing has happened.
        """
        with self._in_one_thread():
            return self._step(action)

    @contextlib.contextmanager
    def _in_one_thread(self) -> Iterator[None]:
        """Refuse calls from several threads at the same time: two commands would share one output."""
        if self._thread not in (None, threading.get_ident()):
            raise ConfigurationError(
                f"{type(self).__name__}: another thread is using it. Try: an environment for each thread"
            )
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None

    def _step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over: call reset() before step()")
        if not isinstance(action, str):
            raise ConfigurationError(f"step: expected the action as text, got {type(action).__name__}")
        began = time.perf_counter()
        self._turn += 1
        try:
            turn = self._play(action)
        except SandboxBrokenError as error:  # the agent has broken it: a failure like any other
            turn = TurnResult(
                observation=f"The episode is over. {str(error)[:1].upper()}{str(error)[1:]}.",
                end_reason="broken",
                outcome=Outcome(failure_reason=str(error)),
            )
        except InfrastructureError as error:  # the one place where it becomes an invalid episode, never a reward of 0
            reason = f"{type(error).__name__}: {error}"
            turn = TurnResult(
                observation=f"The sandbox failed; this episode is invalid. {reason}",
                end_reason="error",
                outcome=Outcome(valid=False, failure_reason=reason),
            )
        info: dict[str, Any] = {
            "exit_code": turn.exit_code,
            "patch": turn.patch,
            "truncated_chars": turn.truncated_chars,
            "action_error": turn.action_error,
            "sandbox": turn.sandbox,
            **turn.more,
        }
        if turn.end_reason is not None:
            info |= {"end_reason": turn.end_reason, **vars(turn.outcome)}
            self._over = True
            self._release()
        self._shown = turn_text(f"turn {self._turn}", action, turn.observation)
        if self.render_mode == "human":
            print_turn(f"turn {self._turn}", action, turn.observation)
        truncated = turn.end_reason in ("time", "error")
        reward = float(turn.outcome.valid and turn.outcome.resolved)
        info["timing"] = Timing(time.perf_counter() - began, turn.command_s, turn.grading_s)
        return turn.observation, reward, self._over and not truncated, truncated, info

    def last_turn(self, reason: Literal["max_turns", "tokens", "time"]) -> None:
        """Make the next turn the last: it ends the episode with `reason` unless it submits. Used by limits."""
        self._last_turn_reason = reason

    def _limit_reached(self) -> EndReason | None:
        """The limit that ends the episode with the current turn, if any."""
        if self._max_turns is not None and self._turn >= self._max_turns:
            return "max_turns"
        if self._last_turn_reason is not None:
            return self._last_turn_reason
        if self._episode_timeout_s is not None and self._elapsed_s() >= self._episode_timeout_s:
            return "time"
        return None

    def _elapsed_s(self) -> float:
        """Seconds of the episode that count against `episode_timeout_s`."""
        return time.monotonic() - self._started

    def render(self) -> str | None:
        """The first observation or the last turn as text ("ansi"); "human" prints turns as they are played."""
        return self._shown if self.render_mode == "ansi" else None

    def close(self) -> None:
        """End the episode. Idempotent."""
        self._over = True
        self._release()


@dataclass(frozen=True)
class EnvSnapshot:
    """The state of an episode: of its sandbox and of the environment."""

    sandbox: Snapshot
    task: Task
    turn: int
    elapsed_s: float
    patch: str = ""

    def discard(self) -> None:
        """Release the resources of the snapshot."""
        self.sandbox.discard()


class SWEBenchEnv(TextEpisode[Task]):
    """An agent repairs a repository in a sandbox; the result is a git diff.

    The first observation is the task; after a step the observation is the output of the command. An action is text in
    the chosen format: one shell command, or the submission. The episode terminates with the submission, or after
    `max_turns` turns (a rule of the task, so this is not a truncation: Pardo et al. 2018, section 2). It is truncated
    after `episode_timeout_s`. When it terminates, the work is graded in a fresh sandbox.

    `info` has the keys of `TextEpisode`; at reset it also has `trust`: the fraction of right verdicts that
    `swegym certify` measured for this task, None if it was not certified.

    Args:
        dataset: "mini", "mini-edit", a hub name, or a `.jsonl`, `.json` or `.parquet` file in the SWE-bench schema.
        split: split of the dataset; None: the dataset's default, or all of it.
        strict_rows: raise an error for a malformed row of the dataset; False: skip it with a warning.
        tasks: the tasks themselves, instead of a dataset.
        sandbox: sandbox back end (`sandbox.backends.BACKENDS`): "auto", "apptainer", "namespace", or the address of a
            server ("http://host:8300", see `swegym serve` and `swegym pool`), which then grades too.
        reward: "resolved" (1 if the submitted work passes, else 0) or "none" (always 0, and nothing is graded: for
            wrappers with other rewards).
        action_format: name of a format (see `agent.formats`), or your own as `module:attribute`.
        chat_template: chat template of the model, as Jinja2 text; with `action_format="auto"` it selects the format of
            function calls.
        tools: the agent's tools: "bash", shipped bundles, your own folders, or a set: "default", "debug",
            "rewrite-only" (see `agent.tools`).
        prompt: a shipped prompt ("default", "terse") or a folder with `system.j2` and `task.j2`.
        max_turns: maximum turns of an episode; None: no limit.
        turn_timeout_s: maximum seconds of a command.
        episode_timeout_s: maximum seconds of an episode; None: no limit.
        limits: resource limits of the agent's sandbox that replace the defaults, for example
            `{"memory_bytes": 8 << 30}`; see `sandbox.api.Limits`. Grading has its own limits.
        observation_limit: maximum characters of output in an observation.
        show_duration: show the agent how long a command took; equal episodes then have different observations.
        repos: directory of clones (see `repo.repositories`); None: repositories are fetched from their origin.
        max_forgery_chance: a patch with means of forgery fails as `unproven` if the chance that it passed without a
            repair is above this; None: see `grading.grade`.
        trust: use only tasks with at least this `trust`, from 0 to 1; None: all tasks.
        deterministic: fix the hash seed, the time zone, the locale and, where possible, the clock (see
            `languages.determinism`).
        pool: number of sandboxes to start in advance for the next tasks, for resets that choose the task at random. No
            sandbox is started in advance while less than 2 GiB of memory are free, or while resets name their tasks.
        render_mode: "ansi" (`render()` returns the last turn as text) or "human" (turns are printed).

    Raises:
        ConfigurationError: an argument is out of range, or the dataset, back end, prompt or format is unknown.
    """

    _port: int | None = None  # of the sandbox's loopback interface, on which a subclass answers requests
    _imports: Imports | None = None  # a program that a subclass starts in each sandbox

    def __init__(
        self,
        dataset: str = "mini",
        *,
        split: str | None = None,
        strict_rows: bool = False,
        tasks: Sequence[Task] | None = None,
        sandbox: str = "auto",
        reward: str = "resolved",
        action_format: str = "auto",
        chat_template: str | None = None,
        tools: str | Sequence[str] = ("bash",),
        prompt: str = "default",
        max_turns: int | None = 50,
        turn_timeout_s: float = 60.0,
        episode_timeout_s: float | None = None,
        limits: Mapping[str, float] | None = None,
        observation_limit: int = 10_000,
        show_duration: bool = False,
        repos: str | None = None,
        max_forgery_chance: float | None = None,
        trust: float | None = None,
        deterministic: bool = False,
        pool: int = 1,
        render_mode: str | None = None,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "tasks", "__class__")}
        check_dataset(dataset, "tasks")
        check_choice("reward", reward, ("resolved", "none"))
        check_positive("turn_timeout_s", turn_timeout_s)
        check_whole("observation_limit", observation_limit, _LEAST_OBSERVATION)
        check_whole("pool", pool, 0)
        if max_forgery_chance is not None:
            check_between("max_forgery_chance", max_forgery_chance, 0, 1, open_ended=True)
        check_prompt(prompt)
        check_backend(sandbox, repos)
        found = (
            load_tasks(dataset, split=split, on_bad_row="raise" if strict_rows else "warn")
            if tasks is None
            else TaskSet(elements("tasks", tasks, Task))
        )
        super().__init__(
            found if trust is None else trusted(found, trust),
            max_turns=max_turns,
            episode_timeout_s=episode_timeout_s,
            render_mode=render_mode,
            arguments=arguments,
        )
        self._backend = sandbox
        self._reward = reward
        self._prompt = prompt
        self._turn_timeout_s = turn_timeout_s
        self._limits = None if limits is None else Limits.of(limits)
        self._observation_limit = observation_limit
        self._show_duration = show_duration
        self._repos = repos
        self._max_forgery_chance = max_forgery_chance
        self._deterministic = deterministic
        self._format = find_format(action_format, chat_template=chat_template)
        self._tools = tools_for(self._format, tools)
        self._workspace: Workspace | None = None
        self._sandbox: Sandbox | None = None
        self._pool = WarmPool(pool)
        self._resets = 0
        self._patch = ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """See `TextEpisode.reset`. If resets choose tasks at random, sandboxes of the next tasks are started."""
        observation, info = super().reset(seed=seed, options=options)
        random = not options and (seed is None or self._resets == 0)  # Gymnasium: seed the first reset only
        self._resets += 1
        tasks = []
        if random and self._pool.size:
            drawn = self.np_random.bit_generator.state
            tasks = [self._examples[int(self.np_random.integers(len(self._examples)))] for _ in range(self._pool.size)]
            self.np_random.bit_generator.state = drawn
        self._pool.expect({task.instance_id: partial(self._start, task) for task in tasks})
        return observation, info

    def _begin(self) -> tuple[str, str, dict[str, Any]]:
        workspace = self._take_sandbox()
        values = {
            "task": self.task,
            "action_format": self._format,
            "max_turns": self._max_turns,
            "workdir": workspace.spec.workdir,
            "tools": self._tools,
            "turn_timeout_s": self._turn_timeout_s,
            "observation_limit": self._observation_limit,
        }
        system_prompt, observation = render_prompt(self._prompt, values)
        certificate = find_certificate(self.task)
        return (
            system_prompt,
            observation,
            {
                "tools": self._tools.schemas if self._format.write_call else [],
                "trust": None if certificate is None else certificate.trust,
            },
        )

    def _take_sandbox(self) -> Workspace:
        """The workspace of `self.task`; `self._sandbox` is started, unless that was done in advance."""
        self._workspace = workspace = self._prepare(self.task)
        sandbox = self._pool.take(self.task.instance_id)
        if sandbox is not None and sandbox.spec != workspace.spec:
            sandbox.close()
            sandbox = None
        self._sandbox = sandbox or self._start(self.task, workspace)
        self._patch = ""
        return workspace

    def _prepare(self, task: Task) -> Workspace:
        return prepare(
            task,
            tools=self._tools,
            backend=self._backend,
            repos=self._repos,
            limits=self._limits,
            turn_timeout_s=self._turn_timeout_s,
            deterministic=self._deterministic,
            port=self._port,
            imports=self._imports,
        )

    def _start(self, task: Task, workspace: Workspace | None = None) -> Sandbox:
        """A sandbox of `task`. The pool calls this on its threads, for later tasks, without a workspace."""
        return (workspace or self._prepare(task)).start()

    def _play(self, action: str) -> TurnResult:
        sandbox, _ = self._live()
        turn = TurnResult(sandbox=sandbox.backend)
        parsed = self._tools.resolve(self._format.parse(action))
        submits = isinstance(parsed, Submit)
        if isinstance(parsed, Malformed):
            turn.observation = turn.action_error = parsed.message
        elif isinstance(parsed, Command):
            result = sandbox.run(parsed.text, timeout_s=self._turn_timeout_s)
            shown = render_result(result, limit_chars=self._observation_limit, show_duration=self._show_duration)
            turn.observation, turn.truncated_chars = shown.text, shown.truncated_chars
            turn.exit_code, turn.command_s = result.exit_code, result.duration_s
            if self._tools.bundles:
                submits = _exists(sandbox, _SUBMITTED)
            elif _NO_SUBMIT in turn.observation:
                turn.observation += "\n[To hand in your work, submit has to be the whole command.]"
        turn.end_reason = "submitted" if submits else self._limit_reached()
        return self._finish(turn)

    def _finish(self, turn: TurnResult) -> TurnResult:
        """Complete a turn: add the patch and, if the episode ends, the verdict."""
        sandbox, workspace = self._live()
        turn.patch = self._patch = workspace.patch(sandbox, fresh=turn.end_reason is not None)
        if reason := refusal(turn.patch):
            turn.observation = f"{turn.observation}\n[There is no patch of your work: {reason}.]".lstrip("\n")
        if turn.end_reason is None:
            return turn
        turn.observation = f"{turn.observation}\n{_CLOSING[turn.end_reason]}".lstrip()
        if turn.end_reason != "time" and self._reward != "none":
            verdict = self.verdict()
            turn.outcome, turn.grading_s = Outcome.of(verdict, self.task), verdict.duration_s
        return turn

    def verdict(self) -> Verdict:
        """Grade the current work in a separate sandbox; the episode is not affected.

        Raises:
            InfrastructureError: the tests could not be run.
        """
        return grade(
            self.task,
            self._patch,
            repos=self._repos,
            backend=self._backend,
            max_forgery_chance=self._max_forgery_chance,
        )

    def snapshot(self) -> EnvSnapshot:
        """Save the episode: files, working directory, shell variables, turn. Call its `discard()` when done."""
        elapsed_s = time.monotonic() - self._started
        return EnvSnapshot(self._live()[0].snapshot(), self.task, self._turn, elapsed_s, self._patch)

    def restore(self, snapshot: EnvSnapshot) -> None:
        """Return to a snapshot of this episode, or of the episode that this environment was forked from.

        After the end of the episode, a new sandbox is started for it.

        Raises:
            SandboxError: the snapshot is of another task, was discarded, or is at another server of a pool; nothing has
                happened.
        """
        if self._sandbox is not None:
            self._sandbox.restore(snapshot.sandbox)
        else:
            workspace = self._prepare(snapshot.task)
            sandbox = self._start(snapshot.task, workspace)
            try:
                sandbox.restore(snapshot.sandbox)
            except BaseException:
                sandbox.close()
                raise
            self._sandbox, self._workspace = sandbox, workspace
        self.example = self.task = snapshot.task
        self._turn, self._patch = snapshot.turn, snapshot.patch
        self._over, self._last_turn_reason = False, None
        self._started = time.monotonic() - snapshot.elapsed_s

    def fork(self) -> SWEBenchEnv:
        """An independent environment in the same state of the same episode."""
        sandbox = self._live()[0].fork()
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._sandbox = sandbox
        twin._pool = WarmPool(self._pool.size)
        twin._np_random = copy.deepcopy(self._np_random)
        return twin

    def _live(self) -> tuple[Sandbox, Workspace]:
        if self._sandbox is None or self._workspace is None:
            raise gymnasium.error.ResetNeeded("no episode is in progress: call reset() first")
        return self._sandbox, self._workspace

    def _release(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def close(self) -> None:
        """End the episode, and the sandboxes that were started in advance. Idempotent."""
        super().close()
        self._pool.close()


def _exists(sandbox: Sandbox, path: str) -> bool:
    try:
        sandbox.read(path)
    except OSError as error:
        return error.errno == errno.EFBIG
    return True


make_vector = SWEBenchEnv.make_vector
