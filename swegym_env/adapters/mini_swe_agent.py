"""mini-swe-agent in our sandboxes: an environment class for its YAML, used by its own commands.

    environment:
      environment_class: swegym_env.adapters.mini_swe_agent.SwegymEnvironment
      dataset: mini
      instance: mini__lrucache-001

Its batch command chooses instances itself; there, `instance` stays empty and the configuration has

    run:
      env_startup_command: swegym task {{instance_id}}

When the agent submits, the verdict goes into its trajectory, as `info.swegym`.
"""

from __future__ import annotations

import dataclasses
import logging
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from swegym_env.adapters.workbench import Workbench, broken_by_agent
from swegym_env.arguments import CheckedArguments
from swegym_env.errors import ConfigurationError, InfrastructureError, SandboxBrokenError
from swegym_env.long_work import LOG
from swegym_env.tasks.datasets import load_tasks

__all__ = ["SwegymEnvironment", "SwegymEnvironmentConfig"]

_SUBMITTED = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_CHOICE = re.compile(r"swegym task (\S+)")


@dataclass(frozen=True)
class SwegymEnvironmentConfig(CheckedArguments):
    """The section `environment` of a configuration of mini-swe-agent.

    Attributes:
        dataset: as `swegym_env.tasks.datasets.load_tasks` takes it.
        split: of the dataset.
        instance: id of the task; empty: the first command is `swegym task ID`.
        sandbox: a back end, see `sandbox.open_sandbox`.
        repos: source of git repositories, see `prepare`.
        grade: whether submitted work is graded.
        cwd: where commands begin; empty: the repository.
        env: variables of every command.
        timeout: seconds of a command.
        interpreter: as mini-swe-agent's configurations have it; there is bash.
    """

    dataset: str = "mini"
    split: str | None = None
    instance: str = ""
    sandbox: str = "auto"
    repos: str | None = None
    grade: bool = True
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 60.0
    interpreter: Sequence[str] = ("bash",)

    def __post_init__(self) -> None:
        if tuple(self.interpreter[:1]) != ("bash",):
            raise ConfigurationError(f"environment: interpreter: expected bash, got {self.interpreter!r}")


class _InItsLog(logging.Handler):
    """Passes our log messages on to a logger of mini-swe-agent, which shows only messages of its own loggers."""

    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger("minisweagent.swegym").log(record.levelno, "%s", record.getMessage())


_LONG_WORK = _InItsLog()


class SwegymEnvironment:
    """A task's sandbox as an environment of mini-swe-agent.

    Attributes:
        outcome: of the submitted work, see `Workbench.outcome`; None before that. If the machine fails, it is invalid,
            the error ends the agent's run, and nothing is submitted.
    """

    def __init__(self, **config: Any) -> None:
        known = {each.name for each in dataclasses.fields(SwegymEnvironmentConfig)}
        for name in config.keys() - known:
            raise ConfigurationError(f"environment: unknown key {name!r}; there are {', '.join(sorted(known))}")
        self.config = SwegymEnvironmentConfig(**config)
        if _LONG_WORK not in LOG.handlers:
            LOG.addHandler(_LONG_WORK)
            LOG.setLevel(logging.INFO)
        self.outcome: dict[str, Any] | None = None
        self._tasks = load_tasks(self.config.dataset, split=self.config.split, on_bad_row="skip")
        self._bench: Workbench | None = None
        if self.config.instance:
            self._start(self.config.instance)

    def _start(self, instance_id: str) -> None:
        config = self.config
        with self._failures_recorded():
            self._bench = Workbench(
                self._tasks[instance_id], backend=config.sandbox, repos=config.repos, env=config.env
            )

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: float | None = None) -> dict[str, Any]:
        """Run one command in a subshell.

        Returns:
            `output`, `returncode` and `exception_info`, as mini-swe-agent's own environments do.
        Raises:
            Submitted: the agent submitted its work.
            InfrastructureError: the machine failed.
            ConfigurationError: no task was chosen.
        """
        command = str(action.get("command", ""))
        if self._bench is None:
            choice = _CHOICE.fullmatch(command.strip())
            if choice is None:
                raise ConfigurationError(
                    "environment: no task. Try: instance: ID, or in `run`, env_startup_command: swegym task "
                    "{{instance_id}}"
                )
            self._start(choice[1])
            return {"output": "", "returncode": 0, "exception_info": ""}
        timeout_s = timeout or self.config.timeout
        with self._failures_recorded():
            result = self._bench.run(command, cwd=cwd or self.config.cwd, timeout_s=timeout_s)
            lines = result.output.lstrip().splitlines(keepends=True)
            if lines and lines[0].strip() == _SUBMITTED and result.exit_code == 0:
                self._submit("".join(lines[1:]))
        exception = f"The command timed out after {timeout_s:g} s." if result.timed_out else ""
        return {
            "output": result.output,
            "returncode": -1 if result.timed_out else result.exit_code,
            "exception_info": exception,
        }

    @contextmanager
    def _failures_recorded(self) -> Iterator[None]:
        try:
            yield
        except SandboxBrokenError as error:
            self.outcome = broken_by_agent(error)
            self.close()
            raise
        except InfrastructureError as error:
            self.outcome = {"valid": False, "failure_reason": f"{type(error).__name__}: {error}"}
            self.close()
            raise

    def _submit(self, text: str) -> None:
        """End the episode with the patch that was printed behind the marker, else with what changed."""
        from minisweagent.exceptions import Submitted  # importing mini-swe-agent prints, and makes a directory

        assert self._bench is not None
        patch = text if text.strip() else self._bench.patch()
        if self.config.grade:
            self.outcome = self._bench.outcome(patch)
            if not self.outcome["valid"]:
                raise InfrastructureError(self.outcome["failure_reason"])
        self.close()
        extra = {"exit_status": "Submitted", "submission": patch}
        raise Submitted({"role": "exit", "content": patch, "extra": extra})

    def get_template_vars(self, **more: Any) -> dict[str, Any]:
        """What the agent's templates may use: this configuration, the task's issue and the kernel."""
        task = self._bench.task if self._bench else None
        statement = {"problem_statement": task.problem_statement, "instance_id": task.instance_id} if task else {}
        kernel = platform.uname()._asdict() | {"node": "swegym"}
        return {**dataclasses.asdict(self.config), **kernel, **statement, **more}

    def serialize(self) -> dict[str, Any]:
        """For the agent's trajectory: this configuration, and the verdict once there is one."""
        kind = f"{type(self).__module__}.{type(self).__name__}"
        info: dict[str, Any] = {"config": {"environment": dataclasses.asdict(self.config), "environment_type": kind}}
        if self.outcome is not None:
            info["swegym"] = self.outcome
        return {"info": info}

    def close(self) -> None:
        """Remove the sandbox. Idempotent; the end of the process does the same."""
        if self._bench is not None:
            self._bench.close()

    cleanup = close  # mini-swe-agent's own word
