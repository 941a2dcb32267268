"""`SWEBenchEnv`: an agent repairs a repository in a sandbox, by text; its work is a git diff."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import gymnasium

from swegym_env.episode import CLOSING, UNJUDGED, EndReason, Step, Timing, check_arguments, failed_step, failed_tests
from swegym_env.errors import ConfigurationError, InfrastructureError
from swegym_env.interaction.actions import Command, Malformed, Submit
from swegym_env.interaction.formats import action_format as find_format
from swegym_env.interaction.observations import render_result
from swegym_env.interaction.prompts import render_prompt
from swegym_env.interaction.rendering import print_turn, turn_text
from swegym_env.interaction.spaces import AnyText
from swegym_env.interaction.tool_layers import equip, handed_in
from swegym_env.interaction.toolsets import tools_for
from swegym_env.judging.certification import find_certificate, trusted
from swegym_env.judging.grading import Verdict, grade
from swegym_env.judging.patch import capture_patch
from swegym_env.sandbox import open_sandbox
from swegym_env.sandbox.pool import WarmPool
from swegym_env.sandbox.protocol import Limits, Sandbox, SandboxSpec, Snapshot
from swegym_env.sandbox.remote import is_remote
from swegym_env.tasks.determinism import with_determinism
from swegym_env.tasks.loading import TaskSet, load_tasks
from swegym_env.tasks.task import Task
from swegym_env.tasks.workspace import prepare_workspace

__all__ = ["EnvSnapshot", "SWEBenchEnv", "Timing"]


@dataclass(frozen=True)
class EnvSnapshot:
    """A frozen episode: the sandbox's state and the environment's own."""

    sandbox: Snapshot
    task: Task
    turn: int
    elapsed_s: float
    patch: str = ""

    def discard(self) -> None:
        """Free what the snapshot holds."""
        self.sandbox.discard()


class SWEBenchEnv(gymnasium.Env[str, str]):
    """Repository repair as a text environment.

    The observation at reset is the task; after a step it is what the agent should read. An action is text in the
    chosen format: one shell command, or the submission. The episode terminates with the submission, or when the turns
    that the agent was promised are used up (a rule of the task, so a termination and no truncation: Pardo et al.
    2018, section 2); it is truncated when `episode_timeout_s` is over. Where it terminates, the work is graded in a
    fresh sandbox.

    `info` at reset: `instance_id`, `system_prompt`, `tools`, `trust` (the share of right verdicts that `swegym certify`
    found, None where it was not asked). At every step: `exit_code` (-1 where nothing ran),
    `patch`, `truncated_chars`, `action_error` (None, or why the action could not be read), `sandbox` (the back end's
    name). At the end: `resolved`, `fail_to_pass` and `pass_to_pass` (passed, of all), `failed_tests` (those of both
    lists that did not pass), `end_reason`, `valid`, `failure_reason`. Wall-clock figures are in `timing` only.

    Args:
        dataset: "mini", "mini-edit", a hub name, or a `.jsonl`, `.json` or `.parquet` file in the SWE-bench schema.
        split: of the dataset; None: all of it, or what the dataset calls its default.
        tasks: the tasks themselves, instead of a dataset.
        sandbox: "auto", "apptainer", "namespace", or the address of a service of sandboxes ("http://host:8300", see
            `swegym serve` and `swegym pool`), which then grades too.
        reward: "resolved" (1 where the submitted work passes, else 0) or "none" (0, and nothing is graded: for wrappers
            that judge by other means).
        action_format: a name (see `interaction.formats`), or `module:attribute` of one's own.
        chat_template: the model's, as Jinja2 text; with `action_format="auto"` it decides in what form calls are read.
        tools: what the agent may use: "bash", shipped bundles, folders of one's own, or a set: "default", "debug",
            "rewrite-only" (see `interaction.toolsets`).
        prompt: a shipped prompt ("default", "terse") or a folder with `system.j2` and `task.j2`.
        max_turns: turns of an episode; None: no limit.
        turn_timeout_s: seconds of one command.
        episode_timeout_s: seconds of an episode; None: no limit.
        limits: what the agent's sandbox may use instead of the defaults, for example `{"memory_bytes": 8 << 30}`; see
            `sandbox.protocol.Limits`. Grading has its own.
        observation_limit: most characters of output shown to the agent.
        show_duration: tell the agent how long a command took; then equal episodes may read differently.
        repos: where clones lie (see `tasks.repositories`); None: those are fetched from their origin.
        trust: only tasks that `swegym certify` found at least so trustworthy, from 0 to 1; None: all.
        deterministic: equal hash seed, time zone, locale and, where possible, clock (see `tasks.determinism`).
        pool: how many sandboxes to start ahead for the tasks that come next; they are ready at a `reset` that takes the
            task by chance. None is started while less than 2 GiB of memory are free, or while resets name their tasks.
        render_mode: "ansi" (`render()` gives the last turn as text) or "human" (turns are printed as they are played).

    Raises:
        ConfigurationError: an argument out of range, an unknown dataset, prompt or format.
    """

    metadata = {"render_modes": ["ansi", "human"], "render_fps": 1}  # noqa: RUF012 - Gymnasium's own contract

    def __init__(
        self,
        dataset: str = "mini",
        *,
        split: str | None = None,
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
        trust: float | None = None,
        deterministic: bool = False,
        pool: int = 1,
        render_mode: str | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "tasks", "__class__")}
        check_arguments(reward, max_turns, turn_timeout_s, episode_timeout_s, observation_limit, pool, render_mode)
        self.observation_space = AnyText()
        self.action_space = AnyText()
        self.render_mode = render_mode
        self._tasks = _chosen_tasks(dataset, split, tasks, trust)
        if is_remote(sandbox) and repos is not None:
            raise ConfigurationError(f"repos: clones lie where {sandbox} runs. Try: swegym serve --repos {repos}")
        self._backend = sandbox
        self._reward = reward
        self._prompt = prompt
        self._max_turns = max_turns
        self._turn_timeout_s = turn_timeout_s
        self._episode_timeout_s = episode_timeout_s
        self._limits = None if limits is None else Limits.of(limits)
        self._observation_limit = observation_limit
        self._show_duration = show_duration
        self._repos = repos
        self._deterministic = deterministic
        self._format = find_format(action_format, chat_template=chat_template)
        self._tools = tools_for(self._format, tools)
        self.arguments: Mapping[str, Any] = given  # what an equal environment is made of: for records of episodes
        self._sandbox: Sandbox | None = None
        self._pool = WarmPool(pool)
        self._resets = 0
        self._base = Path()
        self._turn = 0
        self._started = 0.0
        self._over = True
        self._ending: EndReason | None = None
        self._patch = ""
        self._shown = ""
        self.task: Task = self._tasks[0]

    @property
    def instance_ids(self) -> tuple[str, ...]:
        """What `reset(options={"instance_id": …})` takes, in the order of the dataset."""
        return self._tasks.ids

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode on a task chosen by the seed, or by `options={"instance_id": …}`.

        Raises:
            UnknownTaskError: no such instance.
            ConfigurationError: an unknown option.
            InfrastructureError: the sandbox could not be made.
        """
        super().reset(seed=seed)
        began = time.perf_counter()
        self._close_sandbox()
        self.task = self._choose(options or {})
        spec, self._base = self._prepared(self.task)
        sandbox = self._pool.take(self.task.instance_id)
        if sandbox is not None and sandbox.spec != spec:
            sandbox.close()
            sandbox = None
        self._sandbox = sandbox or self._started_sandbox(self.task)
        self._look_ahead(foretold=seed is None and not options)
        self._turn, self._started, self._over = 0, time.monotonic(), False
        self._ending, self._patch = None, ""
        system_prompt, self._shown = self._prompts(spec)
        info = {
            "instance_id": self.task.instance_id,
            "system_prompt": system_prompt,
            "tools": self._tools.schemas if self._format.write_call else [],
            "trust": None if (certificate := find_certificate(self.task)) is None else certificate.trust,
            "timing": Timing(time.perf_counter() - began),
        }
        if self.render_mode == "human":
            print_turn(self.task.instance_id, None, self._shown)
        return self._shown, info

    def _prepared(self, task: Task) -> tuple[SandboxSpec, Path]:
        """What a sandbox for `task` is made of, and its repository layer (a service keeps that to itself)."""
        if is_remote(self._backend):
            from swegym_env.interaction.orders import order

            timeout_s = self._turn_timeout_s
            wanted = order(task, self._tools, turn_timeout_s=timeout_s, deterministic=self._deterministic)
            return self._limited(wanted), Path()
        workspace = prepare_workspace(task, repos=self._repos, backend=self._backend)
        spec = with_determinism(workspace.spec) if self._deterministic else workspace.spec
        tests = task.test_command or workspace.test_command
        told = {"SWEGYM_TEST_COMMAND": tests, "SWEGYM_TURN_TIMEOUT_S": f"{self._turn_timeout_s:g}"}
        return equip(self._limited(spec), self._tools, env=told, backend=self._backend), workspace.spec.layers[-1]

    def _limited(self, spec: SandboxSpec) -> SandboxSpec:
        return spec if self._limits is None else replace(spec, limits=self._limits)

    def _started_sandbox(self, task: Task) -> Sandbox:
        sandbox = open_sandbox(self._prepared(task)[0], backend=self._backend)
        try:
            sandbox.start()
        except InfrastructureError:
            sandbox.close()
            raise
        return sandbox

    def _look_ahead(self, *, foretold: bool) -> None:
        """Start the sandboxes of the next tasks, unless resets turn out not to follow the generator."""
        follows = foretold or self._resets == 0
        self._resets += 1
        ahead = copy.deepcopy(self.np_random)
        tasks = [self._tasks[int(ahead.integers(len(self._tasks)))] for _ in range(self._pool.size * follows)]
        self._pool.expect({task.instance_id: partial(self._started_sandbox, task) for task in tasks})

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Act once. Raises gymnasium.error.ResetNeeded where no episode is under way."""
        if self._over or self._sandbox is None:
            raise gymnasium.error.ResetNeeded("the episode is over: call reset() before step()")
        began = time.perf_counter()
        try:
            step = self._act(action, self._sandbox)
        except InfrastructureError as error:  # the one place where the machine's failures become an invalid episode
            step = failed_step(error)
        self._over = step.terminated or step.truncated
        self._patch = step.info["patch"]
        self._shown = turn_text(f"turn {self._turn}", action, step.observation)
        if self._over:
            self._close_sandbox()
        if self.render_mode == "human":
            print_turn(f"turn {self._turn}", action, step.observation)
        step.info["timing"] = Timing(time.perf_counter() - began, step.command_s, step.grading_s)
        return step.observation, step.reward, step.terminated, step.truncated, step.info

    def render(self) -> str | None:
        """The task or the last turn as text ("ansi"); "human" prints as the episode goes."""
        return self._shown if self.render_mode == "ansi" else None

    def close(self) -> None:
        """End the sandbox. Idempotent."""
        self._over = True
        self._close_sandbox()
        self._pool.close()

    def last_turn(self, reason: Literal["max_turns", "tokens", "time"]) -> None:
        """Let the next step be the episode's last, which ends it for `reason` unless it submits: for limits."""
        self._ending = reason

    def verdict(self) -> Verdict:
        """What the hidden tests say of the work as it stands, in a sandbox of their own; the episode does not notice.

        Raises:
            InfrastructureError: the tests could not be run.
        """
        return grade(self.task, self._patch, repos=self._repos, backend=self._backend)

    def snapshot(self) -> EnvSnapshot:
        """Freeze the episode: files, directory, shell variables, turn. `discard()` it when done."""
        elapsed_s = time.monotonic() - self._started
        return EnvSnapshot(self._live().snapshot(), self.task, self._turn, elapsed_s, self._patch)

    def restore(self, snapshot: EnvSnapshot) -> None:
        """Return to a snapshot of this episode, or of the one this environment was forked from."""
        self._live().restore(snapshot.sandbox)
        self.task, self._turn, self._over = snapshot.task, snapshot.turn, False
        self._patch, self._ending = snapshot.patch, None
        self._started = time.monotonic() - snapshot.elapsed_s

    def fork(self) -> SWEBenchEnv:
        """An independent environment in the same state of the same episode."""
        sandbox = self._live().fork()
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._sandbox = sandbox
        twin._pool = WarmPool(self._pool.size)
        twin._np_random = copy.deepcopy(self._np_random)
        return twin

    def _act(self, action: str, sandbox: Sandbox) -> Step:
        self._turn += 1
        parsed = self._tools.resolve(self._format.parse(action))
        submits = isinstance(parsed, Submit)
        step = Step(info={"exit_code": -1, "truncated_chars": 0, "action_error": None, "sandbox": sandbox.backend})
        if isinstance(parsed, Malformed):
            step.observation = step.info["action_error"] = parsed.message
        elif isinstance(parsed, Command):
            result = sandbox.run(parsed.text, timeout_s=self._turn_timeout_s)
            shown = render_result(result, limit_chars=self._observation_limit, show_duration=self._show_duration)
            submits = handed_in(sandbox, self._tools)
            step.observation, step.command_s = shown.text, result.duration_s
            step.info |= {"exit_code": result.exit_code, "truncated_chars": shown.truncated_chars}
        reason = self._end_reason(submits)
        base = self._base / sandbox.spec.workdir.lstrip("/")
        step.info["patch"] = capture_patch(sandbox, base, fresh=reason is not None)
        if reason is not None:
            self._end(step, reason)
        return step

    def _end(self, step: Step, reason: EndReason) -> None:
        step.observation = f"{step.observation}\n{CLOSING[reason]}".lstrip()
        step.terminated, step.truncated = reason != "time", reason == "time"
        step.info |= UNJUDGED | {"end_reason": reason}
        if step.truncated or self._reward == "none":
            return
        self._patch = step.info["patch"]
        verdict = self.verdict()
        step.reward = float(verdict.valid and verdict.resolved)
        step.grading_s = verdict.duration_s
        step.info |= {
            "resolved": verdict.resolved,
            "fail_to_pass": verdict.fail_to_pass,
            "pass_to_pass": verdict.pass_to_pass,
            "failed_tests": failed_tests(self.task, verdict),
            "valid": verdict.valid,
            "failure_reason": verdict.failure_reason,
        }

    def _end_reason(self, submitted: bool) -> EndReason | None:
        if submitted:
            return "submitted"
        if self._max_turns is not None and self._turn >= self._max_turns:
            return "max_turns"
        if self._ending is not None:
            return self._ending
        if self._episode_timeout_s is not None and time.monotonic() - self._started >= self._episode_timeout_s:
            return "time"
        return None

    def _choose(self, options: dict[str, Any]) -> Task:
        unknown = set(options) - {"instance_id"}
        if unknown:
            raise ConfigurationError(f"reset: unknown option {min(unknown)!r}; there is instance_id")
        if "instance_id" not in options:
            return self._tasks[int(self.np_random.integers(len(self._tasks)))]
        return self._tasks[str(options["instance_id"])]

    def _prompts(self, spec: SandboxSpec) -> tuple[str, str]:
        values = {
            "task": self.task,
            "action_format": self._format,
            "max_turns": self._max_turns,
            "workdir": spec.workdir,
            "tools": self._tools,
        }
        return render_prompt(self._prompt, values)

    def _live(self) -> Sandbox:
        if self._sandbox is None:
            raise gymnasium.error.ResetNeeded("there is no episode under way: call reset() first")
        return self._sandbox

    def _close_sandbox(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None


def _chosen_tasks(dataset: str, split: str | None, tasks: Sequence[Task] | None, trust: float | None) -> TaskSet[Task]:
    """The tasks that an environment's arguments name."""
    found = load_tasks(dataset, split=split) if tasks is None else TaskSet(tasks)
    if not len(found):
        raise ConfigurationError(f"dataset {dataset!r} has no task in split {split!r}")
    return found if trust is None else trusted(found, trust)
