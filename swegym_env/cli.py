"""`swegym`: the command line. Every command says what it does, gives an example, and fails in one line."""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from swegym_env import __version__
from swegym_env.command_line import DATASETS, add_command, add_repos, add_sandbox
from swegym_env.errors import ConfigurationError, SwegymError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `swegym` with these arguments (those of the process by default).

    Returns:
        0 on success; 1 where an episode ended without an answer or the answer is no (a task is not sound, a replay went
        another way, nothing can run here); 2 where what was asked for is wrong or cannot be had
        here (one line on standard error says why); 130 after Ctrl-C; 141 where nobody reads the output any more.
    """
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # else each of its retries is a line on standard error
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # tasks hold characters that a terminal may not have
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        code = command(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _flush_output()
        return 128 + signal.SIGPIPE
    except (SwegymError, OSError) as error:
        if options.debug:
            traceback.print_exc()
        print(f"swegym: {_one_line(error)}", file=sys.stderr)
        _flush_output()
        return 2
    except KeyboardInterrupt:
        from swegym_env.sandbox.client import end_all

        end_all()
        print("swegym: interrupted; its sandboxes are removed", file=sys.stderr)
        return 128 + signal.SIGINT


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def _flush_output() -> None:
    """Write what is still unwritten; where standard output takes no more, let it go: Python would complain at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other error is said."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}. Try: {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    from swegym_env.interaction import command as tools_command
    from swegym_env.judging import certify_command
    from swegym_env.judging import command as grade_command
    from swegym_env.recording import command as record_command
    from swegym_env.serving import command as serve_command
    from swegym_env.tasks import export_command, images_command
    from swegym_env.tasks.dataset_arguments import add_dataset_arguments
    from swegym_env.tasks.making import command as make_command

    parser = _Parser(prog="swegym", description="Software engineering tasks in sandboxes, for agents.")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    doctor = add_command(
        commands, "doctor", _doctor, "try what this machine can do, and say what is missing", "swegym doctor"
    )
    doctor.add_argument("--json", action="store_true", help="print one object for each finding")

    tasks = add_command(
        commands, "tasks", _tasks, "list the tasks of a dataset, or show one", "swegym tasks --dataset mini"
    )
    tasks.add_argument("--dataset", default="mini", help=DATASETS)
    add_dataset_arguments(tasks)
    tasks.add_argument("--instance", help="show this one whole")
    tasks.add_argument("--json", action="store_true", help="print one object for each task")

    _add_run(commands)
    grade_command.add_parser(commands)
    certify_command.add_parser(commands)
    make_command.add_parser(commands)
    images_command.add_parser(commands)
    export_command.add_parser(commands)
    record_command.add_parsers(commands)
    tools_command.add_parser(commands)
    serve_command.add_parsers(commands)

    gc = add_command(commands, "gc", _gc, "remove what dead processes left: sandboxes, half-built layers", "swegym gc")
    gc.add_argument("--json", action="store_true", help="print one object")

    completion = add_command(
        commands,
        "completion",
        _completion,
        "print the script that completes swegym in a shell",
        "swegym completion bash",
        more=": for bash into ~/.local/share/bash-completion/completions/swegym, for zsh into a file _swegym in a "
        "folder of $fpath.",
    )
    completion.add_argument("shell", choices=["bash", "zsh"], help="which speaks it")
    return parser


def _add_run(commands: Any) -> None:
    run = add_command(
        commands,
        "run",
        _run,
        "play one episode, commands from standard input",
        "printf 'ls\\nsubmit\\n' | swegym run --dataset mini --seed 0",
    )
    run.add_argument("--dataset", default="mini", help=DATASETS)
    run.add_argument("--split", help="train, test, hash:train, …; by default all, or the dataset's own default")
    run.add_argument("--instance", help="which task; by default the seed chooses")
    run.add_argument("--seed", type=int, default=0, help="chooses the task (default 0)")
    add_sandbox(run)
    run.add_argument("--tools", default="bash", help="what to act with, by commas (default bash); see: tools list")
    add_repos(run)
    run.add_argument("--record", metavar="DIR", help="write the episode to a folder in DIR, for replay and view")
    run.add_argument(
        "--deterministic", action="store_true", help="equal hash seed, time zone, locale, clock if possible"
    )
    run.add_argument("--json", action="store_true", help="print one object for each step")


def _doctor(options: argparse.Namespace) -> int:
    import dataclasses

    from swegym_env.doctor import can_run, diagnose, render

    findings = diagnose()
    if options.json:
        for finding in findings:
            print(json.dumps(dataclasses.asdict(finding)))
    else:
        print(render(findings))
    return 0 if can_run(findings) else 1


def _tasks(options: argparse.Namespace) -> int:
    import dataclasses

    from swegym_env.tasks.dataset_arguments import load_chosen

    tasks = load_chosen(options, options.dataset)
    if options.instance:
        print(json.dumps(dataclasses.asdict(tasks[options.instance]), indent=2))
        return 0
    for task in tasks:
        first_line = task.problem_statement.strip().partition("\n")[0]
        if options.json:
            print(json.dumps({"instance_id": task.instance_id, "repo": task.repo, "problem_statement": first_line}))
        else:
            print(f"{task.instance_id:40}  {first_line[:100]}")
    return 0


def _run(options: argparse.Namespace) -> int:
    import gymnasium

    from swegym_env.env import SWEBenchEnv
    from swegym_env.recording.recorder import RecordTrajectory

    if options.seed < 0:
        raise ConfigurationError(f"--seed: expected 0 or more, got {options.seed}")
    env: gymnasium.Env[str, str] = SWEBenchEnv(
        options.dataset,
        split=options.split,
        sandbox=options.sandbox,
        action_format="raw",
        tools=options.tools.split(","),
        repos=options.repos,
        max_turns=None,
        deterministic=options.deterministic,
    )
    if options.record:
        env = RecordTrajectory(env, options.record, notes={"agent": "swegym run"})
    try:
        choice = {"instance_id": options.instance} if options.instance else None
        observation, info = env.reset(seed=options.seed, options=choice)
        if not options.json:
            print(f"{info['system_prompt']}\n\n{observation}")
        for line in _commands():
            observation, reward, terminated, truncated, info = env.step(line)
            if options.json:
                info["timing"] = info["timing"].seconds
                print(json.dumps({"observation": observation, "reward": reward, "info": info}))
            else:
                print(f"\n>>> {line}\n{observation}", flush=True)
            if terminated or truncated:
                if not info["valid"]:
                    print(f"swegym: {info['failure_reason']}", file=sys.stderr)
                    return 2
                if not options.json:
                    tests = f"tests passed: {info['fail_to_pass']} {info['pass_to_pass']}"
                    print(f"\nresolved: {info['resolved']}  {tests}\n{info['patch']}")
                return 0
    finally:
        env.close()
    print("swegym: standard input ended before the work was submitted", file=sys.stderr)
    return 1


def _commands() -> Iterator[str]:
    """Lines of standard input as they come; a byte that is no UTF-8 is replaced, as in all that the agent reads."""
    for line in sys.stdin.buffer if sys.stdin is not None else ():
        yield line.decode("utf-8", "replace").rstrip("\n")


def _completion(options: argparse.Namespace) -> int:
    from swegym_env.completion import completion_script

    print(completion_script(_parser(), options.shell))
    return 0


def _gc(options: argparse.Namespace) -> int:
    from swegym_env.paths import work_dir
    from swegym_env.sandbox.gc import collect_garbage
    from swegym_env.sandbox.layers import LayerStore

    report = collect_garbage()
    layers = [path for kind in ("layers", "images") for path in LayerStore(work_dir() / kind).collect_garbage()]
    found = {"sandboxes": report.directories, "processes": report.processes, "layers": [path.name for path in layers]}
    if options.json:
        print(json.dumps({**found, "in_use": report.kept}))
    else:
        removed = ", ".join(f"{len(names)} {kind}" for kind, names in found.items())
        print(f"removed of dead owners: {removed}; {report.kept} sandboxes are in use")
    return 0


if __name__ == "__main__":
    sys.exit(main())
