"""Graded episodes per second and their processor time, beside other designs: `make bench-episodes`.

An episode is a reset, the gold patch by `git apply`, the submission, and the verdict. A case is a dataset and a number
of threads; in it, all contenders play in turns, so that a busy moment of the machine hits all of them. Rows are kept in
`--journal` case by case: an interrupted run goes on where it was, if neither the source nor the machine has changed.

The breakdown is measured apart, with one thread: wall-clock and processor time between the calls of the sandbox that
an episode makes. The parts sum to the whole, since each moment belongs to exactly one of them; what the supervisor does
after `close` has returned counts for it. The processor time of the same episodes is also divided by the processes that
used it; "rest" is what none of them had used when their sandbox was closed, such as the end of its processes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import swegym_env
from benchmarks.episode_designs import DESIGNS
from benchmarks.evaluation import Account, supervisors
from benchmarks.gpu.journal import Journal, read_lines
from benchmarks.records import RESULTS, Row, commit, cpu_name, write_results
from swegym_env.env import SWEBenchEnv
from swegym_env.prepare import LocalWorkspace
from swegym_env.sandbox.backends import LOCAL_BACKENDS, make_backend
from swegym_env.sandbox.client import end_all
from swegym_env.sandbox.local import LocalSandbox
from swegym_env.tasks.datasets import load_tasks
from swegym_env.tasks.task import Task

THREADS = (1, 2, 8, 64)
TASKS = 8  # of each dataset; every contender plays the same ones
RATE, CPU = "episodes per second", "processor time of an episode"
PARTS = ("reset", "act", "capture patch", "grading start", "apply", "tests", "controls", "close", "between")
PROCESSES = ("owner", "supervisor", "births", "shells", "programs of the agent", "programs of grading", "rest")
_AFTER_S = 0.05  # for what the supervisor does after an episode
_SETTLE_S = 0.3  # for what the supervisor still removes; it counts for the contender
Play = Callable[[int], None]
"""Plays one episode on the thread with this number."""


def main() -> int:
    options = _options()
    threads = [int(word) for word in options.threads.split(",")]
    datasets = {name: list(load_tasks(name).shuffled(0)[:TASKS]) for name in options.datasets.split(",")}
    if options.rows:
        rows = load_tasks(options.rows)
        datasets["real rows"] = [rows[name] for name in options.instances.split(",")]
    account = Account()
    journal = Journal(options.journal, [commit()["commit"], _source(), cpu_name(), os.cpu_count(), options.rounds])
    journal.begin({"key": journal.key, "counted_by": account.name})
    place = Path(tempfile.mkdtemp(prefix="swegym-bench-"))
    place.chmod(0o755)
    backends = [name for name in options.backends.split(",") if not make_backend(name).problem()]
    try:
        for dataset, tasks in datasets.items():
            designs = {} if dataset == "real rows" else DESIGNS
            with contextlib.ExitStack() as stack:
                for number in threads:
                    case = f"{dataset}, {number} threads"
                    if not journal.is_done(case):
                        plays = _ours(stack, tasks, backends, number, options.repos)
                        plays |= _designs(tasks, place, designs, number, options.peers_up_to)
                        _measure(journal, account, case, plays, number, options)
                        journal.done(case)
                        stack.close()
            if not journal.is_done(f"{dataset}, parts"):
                _break_down(journal, account, dataset, tasks, backends, options)
                journal.done(f"{dataset}, parts")
            _write(journal, options.output)
    finally:
        shutil.rmtree(place, ignore_errors=True)
        end_all()
        account.close()
    for name, ratio in _write(journal, options.output).items():
        print(f"{ratio:9.2f}  {name}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.episodes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--datasets", default="mini-edit,mini")
    parser.add_argument("--rows", type=Path, help="a file of rows in the SWE-bench schema, measured too")
    parser.add_argument("--instances", default="", help="which of these rows, separated by commas")
    parser.add_argument("--repos", help="directory of the clones that the rows need")
    parser.add_argument("--backends", default=",".join(LOCAL_BACKENDS))
    parser.add_argument("--threads", default=",".join(map(str, THREADS)))
    parser.add_argument("--rounds", type=int, default=5, help="of each contender in each case")
    parser.add_argument("--episodes", type=int, default=32, help="of a round, at least one a thread")
    parser.add_argument(
        "--peer-episodes", type=int, default=8, help="of a round of other designs, at least one a thread"
    )
    parser.add_argument("--peers-up-to", type=int, default=64, help="threads up to which other designs are measured")
    parser.add_argument("--journal", type=Path, default=Path("runs/bench_episodes/rows.jsonl"))
    parser.add_argument("--output", type=Path, default=RESULTS / "episodes.json")
    return parser.parse_args()


def _source() -> str:
    """Changes when a file of the environment does."""
    digest = hashlib.sha256()
    for path in sorted(Path(swegym_env.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _ours(
    stack: contextlib.ExitStack, tasks: list[Task], backends: list[str], threads: int, repos: str | None
) -> dict[str, Play]:
    """Environments as they are trained on: one a thread, tasks chosen at random, the next sandbox started ahead."""
    plays: dict[str, Play] = {}
    for name in backends:
        make = functools.partial(SWEBenchEnv, tasks=tasks, sandbox=name, action_format="raw", repos=repos)
        envs = [stack.enter_context(contextlib.closing(make())) for _ in range(threads)]
        for number, env in enumerate(envs):
            env.reset(seed=number)

        def play(thread: int, envs: list[SWEBenchEnv] = envs) -> None:
            envs[thread].reset()
            _act(envs[thread])

        plays[name] = play
    return plays


def _act(env: SWEBenchEnv) -> None:
    env.step(f"git apply <<'END'\n{env.task.patch}\nEND")
    info = env.step("submit")[4]
    if not info["resolved"]:
        raise SystemExit(f"bench-episodes: {env.task.instance_id} was not resolved: {info['failure_reason']}")


def _designs(tasks: list[Task], place: Path, designs: Any, threads: int, peers_up_to: int) -> dict[str, Play]:
    plays: dict[str, Play] = {}
    for name, make in designs.items():
        if name.startswith("one apptainer") and shutil.which("apptainer") is None:
            continue
        if name != "bare tests" and threads > peers_up_to:
            continue
        directory = place / f"{name.replace(' ', '-')}-{threads}-{time.monotonic_ns()}"
        directory.mkdir()
        design = make(directory, tasks)
        turn = [0] * threads

        def play(thread: int, design: Any = design, turn: list[int] = turn) -> None:
            design.play(tasks[(thread + turn[thread]) % len(tasks)])
            turn[thread] += 1

        plays[name] = play
    return plays


def _measure(
    journal: Journal, account: Account, case: str, plays: dict[str, Play], threads: int, options: argparse.Namespace
) -> None:
    """Rounds of all contenders in turns."""
    rates: dict[str, list[float]] = defaultdict(list)
    costs: dict[str, list[float]] = defaultdict(list)
    with ThreadPoolExecutor(threads) as pool:
        for turn in range(options.rounds + 1):
            for name, play in plays.items():
                is_peer = name in DESIGNS and name != "bare tests"
                each = max(1, (options.peer_episodes if is_peer else options.episodes) // threads)
                each = 1 if turn == 0 else each  # the first round builds layers and warms caches
                cpu, began = account.seconds(), time.perf_counter()
                list(pool.map(lambda thread, play=play, each=each: [play(thread) for _ in range(each)], range(threads)))
                took = time.perf_counter() - began
                time.sleep(_SETTLE_S)
                if turn:
                    rates[name].append(each * threads / took)
                    costs[name].append((account.seconds() - cpu) * 1e3 / (each * threads))
    for name in plays:
        journal.add(f"{case}: {name}", RATE, "1/s", rates[name])
        journal.add(f"{case}: {name}", CPU, "ms", costs[name])


class _Parts:
    """Which part of an episode each moment belongs to, by the calls of the sandbox that it makes."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self.seconds: dict[str, float] = defaultdict(float)
        self.cpu: dict[str, float] = defaultdict(float)
        self._part, self._since = "between", (time.perf_counter(), account.seconds())
        self.grading = False  # the patch was taken
        self.trials = 0  # sandboxes that grading has started
        self._agents: set[int] = set()  # the sandboxes that were started before
        self._begun = account.seconds()
        self.processes: dict[str, float] = defaultdict(float)
        for name, used in self._ours().items():
            self.processes[name] -= used

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Within the block, time counts for `name`; inner blocks count for themselves."""
        before = self.switch(name)
        try:
            yield
        finally:
            self.switch(before)

    def switch(self, name: str) -> str:
        """Count from now on for `name`; what it was before."""
        before, now = self._part, (time.perf_counter(), self._account.seconds())
        self.seconds[before] += now[0] - self._since[0]
        self.cpu[before] += now[1] - self._since[1]
        self._part, self._since = name, now
        return before

    def end(self) -> None:
        """Count what was used since the last call for `close`, and what no process had for the rest."""
        self.switch("close")
        self.seconds["close"] -= _AFTER_S
        for name, used in self._ours().items():
            self.processes[name] += used
        self.processes["rest"] = self._since[1] - self._begun - sum(self.processes.values())

    @staticmethod
    def _ours() -> dict[str, float]:
        return {"owner": time.process_time(), "supervisor": sum(map(_used, supervisors()))}

    def _count_processes(self, sandbox: LocalSandbox) -> None:
        """Count what the processes of a sandbox have used; it is about to be closed."""
        shell = sandbox._shell  # noqa: SLF001 - which processes it has is nobody else's business
        if shell is None:
            return
        birth, bash = _used(shell._launched), _used(shell.pid)  # noqa: SLF001
        user = "the agent" if id(sandbox) in self._agents else "grading"
        self.processes["births"] += birth
        self.processes["shells"] += bash
        self.processes[f"programs of {user}"] += _used_by_group(json.loads(shell._events["group"])) - birth - bash  # noqa: SLF001

    @contextlib.contextmanager
    def watching(self, test_command: Callable[[], str]) -> Iterator[None]:
        """Within the block, calls of local sandboxes and workspaces are counted."""
        methods = [(LocalSandbox, name) for name in ("start", "run", "run_module", "read", "write", "changes", "close")]
        methods.append((LocalWorkspace, "patch"))
        originals = {(owner, name): getattr(owner, name) for owner, name in methods}

        def named(call: str, arguments: tuple[Any, ...]) -> str:
            if call in ("close", "patch"):
                return {"close": "close", "patch": "capture patch"}[call]
            if not self.grading:
                return {"start": "reset", "run": "act"}.get(call, self._part)
            self.trials += call == "start"
            if self.trials > 1:
                return "controls"
            if call == "start":
                return "grading start"
            if call == "run_module" or self._part == "tests":
                return "tests"
            return "tests" if call == "run" and test_command() in arguments[1] else "apply"

        def watched(call: str, original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def inner(*arguments: Any, **keywords: Any) -> Any:
                if call == "start" and not self.grading:
                    self._agents.add(id(arguments[0]))
                if call == "close":
                    self._count_processes(arguments[0])
                with self.part(named(call, arguments)):
                    result = original(*arguments, **keywords)
                self.grading = self.grading or (call == "patch" and keywords.get("fresh", False))
                return result

            return inner

        for (owner, name), original in originals.items():
            setattr(owner, name, watched(name, original))
        try:
            yield
        finally:
            for (owner, name), original in originals.items():
                setattr(owner, name, original)


def _used(pid: int) -> float:
    """Processor seconds of a process with one thread."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) * 1e-9


def _used_by_group(directories: dict[str, str]) -> float:
    """Processor seconds of all processes that have been in a sandbox's control group; 0 without one."""
    for directory in map(Path, directories.values()):
        if (directory / "cpuacct.usage").exists():
            return int((directory / "cpuacct.usage").read_text()) * 1e-9
        if (directory / "cpu.stat").exists() and "usage_usec" in (text := (directory / "cpu.stat").read_text()):
            return int(text.split()[1]) * 1e-6
    return 0.0


def _break_down(
    journal: Journal,
    account: Account,
    dataset: str,
    tasks: list[Task],
    backends: list[str],
    options: argparse.Namespace,
) -> None:
    """One thread, nothing started ahead: the parts of an episode."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    with contextlib.ExitStack() as stack:
        make = functools.partial(SWEBenchEnv, tasks=tasks, action_format="raw", pool=0, repos=options.repos)
        envs = {name: stack.enter_context(contextlib.closing(make(sandbox=name))) for name in backends}
        for turn in range(options.rounds + 1):
            for name, env in envs.items():
                for task in tasks:
                    parts = _Parts(account)
                    with parts.watching(lambda env=env: env.task.test_command):
                        _play_in_parts(env, task, parts)
                    if turn:
                        for part in PARTS:
                            found[name, part].append((parts.seconds[part] * 1e3, parts.cpu[part] * 1e3))
                        for process in PROCESSES:
                            found[name, process].append((0.0, parts.processes[process] * 1e3))
    for name in backends:
        whole = [0.0, 0.0]
        for part in PARTS:
            values = found[name, part]
            case = f"{dataset}, parts: {name}"
            means = [sum(value[kind] for value in values) / len(values) for kind in (0, 1)]
            whole = [total + mean for total, mean in zip(whole, means, strict=True)]
            journal.add(case, f"{part}, wall clock", "ms", [value[0] for value in values], mean=means[0])
            journal.add(case, f"{part}, processor", "ms", [value[1] for value in values], mean=means[1])
        for process in PROCESSES:
            used = [value[1] for value in found[name, process]]
            journal.add(f"{dataset}, processes: {name}", process, "ms", used, mean=sum(used) / len(used))
        journal.add(f"{dataset}, parts: {name}", "whole, wall clock", "ms", [whole[0]], mean=whole[0])
        journal.add(f"{dataset}, parts: {name}", "whole, processor", "ms", [whole[1]], mean=whole[1])


def _play_in_parts(env: SWEBenchEnv, task: Task, parts: _Parts) -> None:
    with parts.part("reset"):
        env.reset(options={"instance_id": task.instance_id})
    _act(env)
    parts.switch("close")
    time.sleep(_AFTER_S)
    parts.end()


def _write(journal: Journal, output: Path) -> dict[str, float]:
    """Write the results so far; the ratios."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    key = None
    for line in read_lines(journal.path):
        key = line["run"].get("key") if "run" in line else key
        if "metric" in line and key == journal.key:
            rows[line["case"], line["metric"]] = line
    plain = [Row(**{name: line[name] for name in Row.__dataclass_fields__}) for line in rows.values()]
    ratios = {}
    for case, metric in rows:
        stem, _, name = case.partition(": ")
        if metric != RATE:
            continue
        for other in ("namespace", *DESIGNS):
            against = rows.get((f"{stem}: {other}", RATE))
            if against is not None and name in LOCAL_BACKENDS and name != other:
                ratios[f"{stem}: {RATE}, {name} / {other}"] = rows[case, RATE]["median"] / against["median"]
        bare = rows.get((f"{stem}: bare tests", CPU))
        if bare is not None and name in LOCAL_BACKENDS:
            ratios[f"{stem}: {CPU}, {name} / bare tests"] = rows[case, CPU]["median"] / bare["median"]
    write_results("episodes", plain, ratios=ratios, packages=["gymnasium"], path=output)
    return ratios


if __name__ == "__main__":
    sys.exit(main())
