"""`swegym run`: play one episode with commands from standard input, or let an agent program play it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, TypeVar

from swegym_env.cli.options import (
    add_command,
    add_json,
    add_repos,
    add_sandbox,
    add_task,
    load_for_task,
    require_at_least,
)
from swegym_env.errors import ConfigurationError
from swegym_env.tasks.task import Task, TaskSet

if TYPE_CHECKING:
    import gymnasium

__all__ = ["add_parser"]

P = TypeVar("P")

_ANSWER_TIMEOUT_S = 3600.0
_BEGIN, _END = "<execute>", "</execute>"
_SHOWN_TESTS = 10


def add_parser(commands: Any) -> None:
    """Add `run` to the commands of `swegym`."""
    parser = add_command(
        commands,
        "run",
        _run,
        "play one episode, commands from standard input, or by an agent program",
        "printf 'ls\\nsubmit\\n' | swegym run --dataset mini --seed 0",
        more=(
            ". A line of standard input is a command; one of several lines stands between <execute> and </execute>; "
            "Markdown is no syntax here. "
            "On a terminal each command has a prompt, and empty lines are ignored. "
            "--json: the first object is the reset, with the issue as its observation. "
            "There is no limit of turns. "
            "Exit code: 0 if the work was submitted, resolved or not; 1 if the episode ended otherwise, as where the "
            "agent program crashed; 2 if the machine failed or the request is wrong; 130 after Ctrl-C."
        ),
    )
    add_task(parser)
    add_sandbox(parser)
    parser.add_argument(
        "--tools",
        default="bash",
        help="tools, separated by commas (default bash, the shell alone; `default` is a bundle of tools for looking at "
        "and editing files); see: tools list",
    )
    parser.add_argument(
        "--agent", metavar="NAME", help="an agent program or its folder plays; lines of standard input are its model's"
    )
    parser.add_argument(
        "--model",
        metavar="URL",
        help="with --agent: address of a chat completions server that answers, http://host:8000/v1",
    )
    parser.add_argument("--model-name", help="name of the model at --model (default: the first that the server lists)")
    add_repos(parser)
    parser.add_argument("--record", metavar="DIR", help="record the episode in a folder in DIR, for replay and view")
    parser.add_argument(
        "--deterministic", action="store_true", help="fix the hash seed, time zone, locale and, if possible, the clock"
    )
    add_json(parser, "step")


def _check(options: argparse.Namespace) -> None:
    require_at_least(options, seed=0)
    if options.agent and options.tools != "bash":
        raise ConfigurationError("--tools: an agent program has its own tools")
    if options.model is not None:
        if not options.agent:
            raise ConfigurationError("--model: only with --agent")
        if not options.model.startswith(("http://", "https://")):
            raise ConfigurationError(f"--model: expected an address such as http://host:8000/v1, got {options.model!r}")
    elif options.model_name is not None:
        raise ConfigurationError("--model-name: only with --model")


def _run(options: argparse.Namespace) -> int:
    from swegym_env.recording.recorder import RecordTrajectory

    _check(options)
    tasks = load_for_task(options)
    env: gymnasium.Env[str, str] = _environment(options, tasks)
    if options.record:
        notes = {"agent": options.agent or "swegym run"} | ({"model": options.model} if options.model else {})
        env = RecordTrajectory(env, options.record, notes=notes)
    typed = not (options.agent or options.json) and _is_terminal()
    try:
        choice = {"instance_id": options.instance} if options.instance else None
        observation, info = env.reset(seed=options.seed, options=choice)
        if options.json:
            _print_step(observation, 0.0, info, ended=(False, False))
        else:
            print(f"{info['system_prompt']}\n\n{observation}" + "\n" * typed, flush=True)
        asked = [info]
        commands = _commands(_typed if typed else _piped(), skip_empty=typed)
        for command in _answers(options, asked) if options.model else _lines() if options.agent else commands:
            observation, reward, terminated, truncated, info = env.step(command)
            asked[0] = info
            if options.json:
                _print_step(observation, float(reward), info, ended=(terminated, truncated))
            else:
                print(f"{observation}\n" if typed else f"\n>>> {command}\n{observation}", flush=True)
            if terminated or truncated:
                if not info["valid"]:
                    print(f"swegym: {info['failure_reason']}", file=sys.stderr)
                    return 2
                if not options.json:
                    print(f"\n{_verdict(info)}\n{info['patch']}")
                if info["end_reason"] == "submitted":
                    return 0
                print(f"swegym: the episode ended before the work was submitted: {_ending(info)}", file=sys.stderr)
                return 1
    finally:
        env.close()
    print("swegym: standard input ended before the work was submitted", file=sys.stderr)
    return 1


def _print_step(observation: str, reward: float, info: Mapping[str, Any], *, ended: tuple[bool, bool]) -> None:
    terminated, truncated = ended
    step = {"observation": observation, "reward": reward, "terminated": terminated, "truncated": truncated}
    print(json.dumps({**step, "info": {**info, "timing": info["timing"].seconds}}), flush=True)


def _verdict(info: Mapping[str, Any]) -> str:
    """The verdict in lines, with the tests that failed and the seconds of grading."""
    counts = {name: info[name.lower()] for name in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    tests = "".join(f"  {name} {each[0]}/{each[1]}" for name, each in counts.items() if each)
    lines = [f"resolved: {info['resolved']}{tests}"]
    if info["resolved"]:
        chance = info["forgery_chance"]
        lines[0] += f"  proof {info['proof']}" + ("" if chance is None else f", forgery_chance {chance:.2g}")
    if info["failure_reason"]:
        lines.append(f"reason: {info['failure_reason']}")
    failed = info["failed_tests"]
    lines += [f"failed: {name}" for name in failed[:_SHOWN_TESTS]]
    if len(failed) > _SHOWN_TESTS:
        lines.append(f"failed: {len(failed) - _SHOWN_TESTS} others")
    if info["set_aside"]:
        lines.append(f"not graded: {', '.join(info['set_aside'])}")
    return "\n".join([*lines, f"graded in {info['timing'].grading_s:.1f} s"])


def _ending(info: Mapping[str, Any]) -> str:
    if info["end_reason"] == "crashed":
        return f"the agent crashed with exit code {info['exit_code']}"
    return str(info["end_reason"])


def _environment(options: argparse.Namespace, tasks: TaskSet[Task]) -> gymnasium.Env[str, str]:
    given = {
        "split": options.split,
        "tasks": tasks,
        "sandbox": options.sandbox,
        "repos": options.repos,
        "deterministic": options.deterministic,
        "pool": 0,  # there is no other episode to start ahead for
    }
    if options.agent:
        from swegym_env.programs.env import SWEAgentEnv

        return SWEAgentEnv(options.dataset, agent=options.agent, **given)
    from swegym_env.env import SWEBenchEnv

    return SWEBenchEnv(options.dataset, action_format="raw", tools=options.tools.split(","), max_turns=None, **given)


def _lines() -> Iterator[str]:
    """The lines of standard input; bytes that are not UTF-8 are replaced, as in everything that an agent reads."""
    for line in sys.stdin.buffer if sys.stdin is not None else ():
        yield line.decode("utf-8", "replace").rstrip("\n")


def _piped() -> Callable[[str], str | None]:
    """Reads a line of standard input at each call, None at its end; prompts are not shown."""
    lines = _lines()
    return lambda _prompt: next(lines, None)


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def _typed(prompt: str) -> str | None:
    """A line that is typed after a prompt, with editing and history where Python has readline; None at the end."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - `input` uses it then
    try:
        return input(prompt)
    except EOFError:
        print()
        return None


def _commands(read: Callable[[str], str | None], *, skip_empty: bool) -> Iterator[str]:
    """The commands of standard input: each a line, or what stands in `<execute>` and `</execute>`, over lines or not.

    Args:
        read: returns the next line, None at the end; called with a prompt.
        skip_empty: empty lines between commands are none.
    Raises:
        ConfigurationError: a command in tags does not end, or is followed by something on its last line.
    """
    while (line := read(">>> ")) is not None:
        if skip_empty and not line.strip():
            continue
        if not line.lstrip().startswith(_BEGIN):
            yield line.removesuffix("\r")  # of a file with the line ends of Windows
            continue
        text = line.lstrip().removeprefix(_BEGIN)
        while _END not in text:
            following = read("... ")
            if following is None:
                raise ConfigurationError(f"standard input ended before {_END}")
            text += f"\n{following}"
        command, _, rest = text.partition(_END)
        if rest.strip():
            raise ConfigurationError(f"standard input: expected nothing after {_END}, got {rest.strip()[:80]!r}")
        yield command.removeprefix("\n").removesuffix("\n")


def _answers(options: argparse.Namespace, asked: list[dict[str, Any]]) -> Iterator[str]:
    """The answers of a model to what the agent asks, as messages in JSON.

    Args:
        asked: the info of the last step; the caller replaces it.
    Raises:
        ConfigurationError: the model does not answer.
    """
    name = options.model_name or _part(_ask(options.model, "/models"), "/models", str, "data", 0, "id")
    while True:
        request = {"model": name, "messages": asked[0]["messages"]}
        if asked[0]["tools"]:
            request["tools"] = asked[0]["tools"]
        given = asked[0]["request"]
        request |= {key: given[key] for key in ("temperature", "top_p", "tool_choice", "max_tokens") if key in given}
        reply = _ask(options.model, "/chat/completions", request)
        message = _part(reply, "/chat/completions", dict, "choices", 0, "message")
        yield json.dumps({"role": "assistant", **message, "usage": reply.get("usage")})


def _part(reply: Any, path: str, kind: type[P], *keys: str | int) -> P:
    """What stands under these keys in a reply. Raises ConfigurationError if it is not there, or of another kind."""
    found = reply
    with contextlib.suppress(LookupError, TypeError):
        for key in keys:
            found = found[key]
        if isinstance(found, kind):
            return found
    where = ".".join(map(str, keys))
    raise ConfigurationError(f"--model: {path}: expected {where} in the reply, got {json.dumps(reply)[:200]}")


def _ask(address: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address.rstrip("/") + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_TIMEOUT_S) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        text = error.read(2000).decode(errors="replace")
        raise ConfigurationError(f"--model: {address}{path} answered {error.code}: {' '.join(text.split())}") from error
    except (OSError, HTTPException, ValueError) as error:
        raise ConfigurationError(f"--model: {address}{path}: no response: {error}") from error
