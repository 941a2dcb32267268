"""`SWEAgentEnv`: the agent is a program in the sandbox; its request to a language model is the observation."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn

import gymnasium

from swegym_env.agent.tools import ToolSet
from swegym_env.env import SWEBenchEnv, TurnResult
from swegym_env.errors import SandboxBrokenError, SandboxError
from swegym_env.grading.certificates import find_certificate
from swegym_env.prepare import Workspace
from swegym_env.programs.answers import read_answer
from swegym_env.programs.conversations import Conversations, messages_text
from swegym_env.programs.protocols import PROTOCOLS, Answered, read_request
from swegym_env.programs.protocols.model import ModelRequest
from swegym_env.programs.spec import PORT, TASK_FILE, AgentSpec, load_agent
from swegym_env.sandbox.api import ProgramEnded, Sandbox
from swegym_env.sandbox.endpoint import run_command
from swegym_env.tasks.task import Task

__all__ = ["SWEAgentEnv", "make_vector"]

_log = logging.getLogger(__name__)

_OUTPUT_FILE = "/.swegym/agent.log"
_SHOWN_BYTES = 4000  # of the agent's output, at its end
_START_TIMEOUT_S = 60.0
_ASIDE = 1000  # requests in one turn that need no model; an agent that asks more is in a loop
_END_TIMEOUT_S = 10.0
_AT_ONCE_S = 1e-9
# Whatever the agent has left running; bash itself is not reached by its own signal.
_END_ALL = f"kill -9 -- -1 2>/dev/null; sync -f {_OUTPUT_FILE} 2>/dev/null; tail -c {_SHOWN_BYTES} {_OUTPUT_FILE}"
_SYSTEM = ("system", "developer")


class _NotOffered:
    """In the place of a method that the class above has and this one cannot offer: `hasattr` is False."""

    def __get__(self, env: object, kind: type) -> NoReturn:
        raise AttributeError(f"{kind.__name__} has no snapshots and forks: its agent is a running program")


class SWEAgentEnv(SWEBenchEnv):
    """Repair of a repository by an agent program, whose language model is the policy.

    The program runs in the sandbox of a task, unchanged. The addresses of its model (`OPENAI_BASE_URL`,
    `ANTHROPIC_BASE_URL`) are those of a port of the sandbox's own loopback, which this process answers: no other
    network exists. Each request for a completion is an observation, and the action answers it. The observation is the
    text of the messages that are new; whoever renders a chat template uses `info`. Requests at the same time wait for
    their turns in the order in which they arrived.

    An action is the text of a model: where the request offers tools, calls in `action_format` become calls of the
    protocol. A JSON object with the role "assistant" is taken as the message itself.

    The episode terminates when the program ends: with "submitted" if its exit code is 0, else with "crashed". It ends
    with "max_turns" when so many requests were answered and the program has acted on the last answer. In all these
    cases the work is graded. It is truncated with "time" when the program has not asked for `turn_timeout_s`, or has
    worked for `episode_timeout_s`; while it waits for an answer, no time counts. A program that ends before it has
    asked for anything is an error of `reset`.

    `info` is that of `SWEBenchEnv`, and at reset and at each step before the end: `messages`, `tools` (both in the form
    of chat completions), `request` (the JSON object that the agent sent), `protocol` ("chat", "responses" or
    "messages"), `conversation` (its number in the episode), `continues` (the request begins with all messages of
    this conversation, as far as its meaning goes; the observation is then only what is new), `new_messages` (how many
    of `messages` are new). At the end: `exit_code` of the program.

    Args:
        agent: a name (see `swegym agents list`), a folder with `agent.yaml`, or an `AgentSpec` or its arguments.
        action_format: in which the text of an action calls tools, see `agent.formats`.
        max_turns: answered requests of an episode; None: no limit.
        turn_timeout_s: seconds between an answer and the next request.
        episode_timeout_s: seconds of the agent's own work; None: no limit.

    The other arguments, and the errors, are those of `SWEBenchEnv`.
    """

    _port = PORT
    snapshot = restore = fork = _NotOffered()

    def __init__(
        self,
        dataset: str = "mini",
        *,
        agent: str | os.PathLike[str] | AgentSpec | Mapping[str, Any] = "mini-swe-agent",
        split: str | None = None,
        strict_rows: bool = False,
        tasks: Sequence[Task] | None = None,
        sandbox: str = "auto",
        reward: str = "resolved",
        action_format: str = "auto",
        chat_template: str | None = None,
        max_turns: int | None = 100,
        turn_timeout_s: float = 600.0,
        episode_timeout_s: float | None = None,
        limits: Mapping[str, float] | None = None,
        repos: str | None = None,
        trust: float | None = None,
        deterministic: bool = False,
        pool: int = 1,
        render_mode: str | None = None,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "tasks", "__class__")}
        self._agent = load_agent(agent)
        super().__init__(
            dataset,
            split=split,
            strict_rows=strict_rows,
            tasks=tasks,
            sandbox=sandbox,
            reward=reward,
            action_format=action_format,
            chat_template=chat_template,
            max_turns=max_turns,
            turn_timeout_s=turn_timeout_s,
            episode_timeout_s=episode_timeout_s,
            limits=limits,
            repos=repos,
            trust=trust,
            deterministic=deterministic,
            pool=pool,
            render_mode=render_mode,
        )
        self._tools = ToolSet(shell=True, bundles=(self._agent.bundle(),))
        self._imports = self._agent.imported()
        self.imports_problem = ""  # why the last agent that started was not forked from its imported copy
        self._logged: set[str] = set()
        if isinstance(agent, AgentSpec):
            named = ("name", "description", "install", "command", "environment", "imports")
            agent = str(agent.folder) if agent.folder else {key: getattr(agent, key) for key in named}
        self.arguments = {**arguments, "agent": dict(agent) if isinstance(agent, Mapping) else str(agent)}
        self._conversations = Conversations()
        self._request: ModelRequest | None = None
        self._number = 0  # of the request, at the endpoint
        self._worked_s = 0.0

    @property
    def agent(self) -> str:
        """The name of the agent."""
        return self._agent.name

    def _begin(self) -> tuple[str, str, dict[str, Any]]:
        self._take_sandbox()
        self._conversations, self._request, self._worked_s = Conversations(), None, 0.0
        found = self._wait(_START_TIMEOUT_S + self._turn_timeout_s)
        if not isinstance(found, ModelRequest):
            what = "did not ask for anything" if found is None else f"ended with exit code {found.exit_code}"
            output = " ".join(self._end_all().split())[-300:] or "no output"
            raise SandboxError(
                f"the agent {self._agent.name} {what} before its first request: {output}. "
                f"Try: swegym agents check {self._agent.folder or self._agent.name}"
            )
        self._worked_s = 0.0
        observation, info = self._observe(found)
        certificate = find_certificate(self.task)
        trust = None if certificate is None else certificate.trust
        system = [message for message in found.messages if message["role"] in _SYSTEM]
        if system:
            observation = messages_text([message for message in found.messages if message["role"] not in _SYSTEM])
        return messages_text(system), observation, {**info, "trust": trust}

    def _start(self, task: Task, workspace: Workspace | None = None) -> Sandbox:
        sandbox = super()._start(task, workspace)
        try:
            sandbox.write(TASK_FILE, task.problem_statement.encode("utf-8", "surrogateescape"))
            start = getattr(sandbox, "starts_imported", "")
            sandbox.run(run_command(self._agent.script(start), PORT, _OUTPUT_FILE), timeout_s=_START_TIMEOUT_S)
            if self._agent.imports is not None:
                self._start_imported(sandbox)
        except OSError as error:
            sandbox.close()
            raise SandboxError(f"the agent {self._agent.name} cannot be started: {error}") from error
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    def _start_imported(self, sandbox: Sandbox) -> None:
        """Let the agent's imported copy be the one that starts; log once why it is started as usual, where it is."""
        start = getattr(sandbox, "start_imported", None)
        self.imports_problem = start() if start is not None else f"{sandbox.backend} does not import agents"
        if self.imports_problem and self.imports_problem not in self._logged:
            self._logged.add(self.imports_problem)
            _log.warning("the agent %s imports in each episode: %s", self._agent.name, self.imports_problem)

    def _play(self, action: str) -> TurnResult:
        sandbox, _ = self._live()
        asked, self._request = self._request, None
        if asked is None:
            raise gymnasium.error.ResetNeeded(
                "the last step was interrupted, and nothing asks for an answer: call reset()"
            )
        turn = TurnResult(sandbox=sandbox.backend)
        answer = read_answer(action, asked, self._format, self._turn)
        self._conversations.answered(answer.message)
        body, content_type = PROTOCOLS[asked.protocol].write(asked, answer, self._turn)
        sandbox.endpoint().answer(self._number, 200, body, content_type)
        before_s = self._worked_s
        left_s = self._turn_timeout_s
        if self._episode_timeout_s is not None:
            left_s = min(left_s, self._episode_timeout_s - self._worked_s)
        found = self._wait(left_s)
        turn.command_s = self._worked_s - before_s
        if isinstance(found, ModelRequest):
            turn.end_reason = self._limit_reached()
            if turn.end_reason is None:
                turn.observation, turn.more = self._observe(found)
                return self._finish(turn)
        elif found is None:
            turn.end_reason = "time"
        else:
            turn.exit_code = found.exit_code
            turn.end_reason = "crashed" if found.exit_code else "submitted"
        turn.observation = self._end_all().strip()
        if isinstance(found, ProgramEnded):
            turn.observation = f"{turn.observation}\n[exit code {found.exit_code}]".lstrip()
        return self._finish(turn)

    def _wait(self, timeout_s: float) -> ModelRequest | ProgramEnded | None:
        """Wait for the agent's next request to its model; None if there is none in time.

        The time that this takes counts as the agent's own.
        """
        endpoint = self._live()[0].endpoint()
        began = time.monotonic()
        try:
            for asked in range(_ASIDE):
                left_s = began + timeout_s - time.monotonic()
                if asked and left_s < 0:  # requests that need no model took all the time
                    return None
                found = endpoint.next(left_s)
                if found is None or isinstance(found, ProgramEnded):
                    return found
                request = read_request(found)
                if isinstance(request, Answered):
                    endpoint.answer(found.number, request.status, request.body)
                    continue
                self._request, self._number = request, found.number
                return request
            return ProgramEnded(-1)
        finally:
            self._worked_s += time.monotonic() - began

    def _observe(self, request: ModelRequest) -> tuple[str, dict[str, Any]]:
        placed = self._conversations.place(request)
        added = ({"role": "assistant", "content": placed.added},) if placed.added else ()
        return messages_text([*added, *placed.new]), {
            "messages": list(request.messages),
            "tools": list(request.tools),
            "request": request.body,
            "protocol": request.protocol,
            "conversation": placed.conversation,
            "continues": placed.continues,
            "new_messages": len(placed.new),
        }

    def _end_all(self) -> str:
        """End whatever runs in the sandbox, so that its files are what they are; the end of the agent's output."""
        sandbox, output = self._live()[0], ""
        try:
            result = sandbox.run(_END_ALL, timeout_s=_END_TIMEOUT_S)
            if result.exit_code == 128 + signal.SIGKILL and not result.timed_out:
                # The agent's end is known before a shell that it has killed has died: the command went to that one.
                result = sandbox.run(_END_ALL, timeout_s=_END_TIMEOUT_S)
            output = result.output
            if not result.timed_out:  # the shell or its programs may be the agent's own: out of time, all are ended
                sandbox.run(":", timeout_s=_AT_ONCE_S)
        except SandboxBrokenError as error:
            output = output or f"[{error}]"
        return output

    def _elapsed_s(self) -> float:
        return self._worked_s

    def last_turn(self, reason: Literal["max_turns", "tokens", "time"]) -> None:
        """Make the next turn the last: the agent acts on its answer, and is asked for nothing more."""
        super().last_turn(reason)


make_vector = SWEAgentEnv.make_vector
