"""The parts of the benchmark, one function each: the measurement, its repetitions and its targets."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.env.measuring import (
    Run,
    footprint,
    milliseconds,
    repository_task,
    resident_bytes,
    small_task,
    timed,
    tree,
)
from benchmarks.env.peers import minimal_root, peers
from benchmarks.waiting import wait_until
from swegym_env.env import SWEBenchEnv
from swegym_env.paths import run_dir
from swegym_env.prepare import prepare_locally
from swegym_env.repo.capture import capture_patch
from swegym_env.sandbox import Sandbox, open_sandbox
from swegym_env.sandbox.client import supervisor
from swegym_env.tasks.data import mini_edit

__all__ = ["PARTS"]

EDIT_TWO = "echo value = {} >package_0/module_1.py; echo value = {} >package_30/module_3001.py"


@contextlib.contextmanager
def _environment(run: Run, files: int, backend: str, **options: object) -> Iterator[SWEBenchEnv]:
    options = {"pool": 0, **options}  # cold, unless warm is requested
    env = SWEBenchEnv(
        tasks=[repository_task(run.repos, files)],
        repos=str(run.repos),
        sandbox=backend,
        reward="none",
        max_turns=None,
        action_format="raw",
        **options,  # type: ignore[arg-type]
    )
    try:
        env.reset(seed=0)
        yield env
    finally:
        env.close()


@contextlib.contextmanager
def _sandbox(run: Run, backend: str) -> Iterator[tuple[Sandbox, Path]]:
    workspace = prepare_locally(repository_task(run.repos, 6000), repos=run.repos)
    sandbox = open_sandbox(workspace.spec, backend=backend)
    try:
        sandbox.start()
        yield sandbox, workspace.base
    finally:
        sandbox.close()


def steps(run: Run, backends: list[str]) -> None:
    """A step of the environment with its patch on 6,000 files, alternating with one command of each peer."""
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="swegym-bench-root-"))
        others = stack.enter_context(peers(minimal_root(Path(directory) / "root")))
        run.notes += [f"{name} could not be measured here: {why}" for name, why in others.missing.items()]
        run.notes += [f"peers: {json.dumps(others.versions)}", others.used]
        clean = {name: stack.enter_context(_environment(run, 6000, name)) for name in backends}
        edited = {name: stack.enter_context(_environment(run, 6000, name)) for name in backends}
        for env in edited.values():
            env.step(EDIT_TWO.format(-1, -1))
        for turn in range(run.times(12)):
            for name in backends:
                _steps_of(run, name, clean[name], edited[name], turn)
            for name in others.names:
                run.add(name, "one command", "ms", *others.measure(name, "step", 3))
    for name in backends:
        ours = run.median(name, "step, nothing changed")
        run.target(f"{name}: trivial step with patch, 6,000 files (ms)", ours, 3)
        run.target(
            f"{name}: trivial step, two files edited before (ms)", run.median(name, "step, two files changed"), 3
        )
        run.target(f"{name}: step that edits two files (ms)", run.median(name, "step that edits two files"), 12)
        for other in others.names:
            run.ratios[f"{other} / {name} step"] = run.median(other, "one command") / ours
        if "apptainer exec" in others.names:
            ratio = run.ratios[f"apptainer exec / {name} step"]
            run.target(f"{name}: times faster than one `apptainer exec` a step", ratio, 40, less=False)
    _breakdown(run, backends)


def _steps_of(run: Run, name: str, clean: SWEBenchEnv, edited: SWEBenchEnv, turn: int) -> None:
    for _ in range(20):
        run.add(name, "step, nothing changed", "ms", milliseconds(lambda: clean.step(":")))
    for _ in range(20):
        run.add(name, "step, two files changed", "ms", milliseconds(lambda: edited.step(":")))
    for number in range(20):
        command = EDIT_TWO.format(f"{turn}{number}", number)
        run.add(name, "step that edits two files", "ms", milliseconds(lambda c=command: edited.step(c)))  # type: ignore[misc]
    time.sleep(0.06)  # the last edit settles


def _breakdown(run: Run, backends: list[str]) -> None:
    """The parts of a step's time."""
    for name in backends:
        with _sandbox(run, name) as (sandbox, base):
            for _ in range(run.times(200)):
                run.add(name, "of a step: shell, builtin", "ms", milliseconds(lambda: sandbox.run(":")))
            for _ in range(run.times(40)):
                run.add(name, "of a step: shell, /bin/true", "ms", milliseconds(lambda: sandbox.run("/bin/true")))
            sandbox.run(EDIT_TWO.format(1, 2))
            time.sleep(0.1)
            for _ in range(run.times(100)):
                find, known = lambda: sandbox.changes("/testbed"), lambda: capture_patch(sandbox, base)
                run.add(name, "of a step: finding two changed files", "ms", milliseconds(find))
                run.add(name, "of a step: patch, state known", "ms", milliseconds(known))
                fresh = milliseconds(lambda: capture_patch(sandbox, base, fresh=True))
                run.add(name, "of a step: patch, read and diffed", "ms", fresh)
        run.target(f"{name}: shell's round trip, builtin (ms)", run.median(name, "of a step: shell, builtin"), 0.3)


EACH = "apptainer, one exec a sandbox"


@contextlib.contextmanager
def _way(name: str) -> Iterator[str]:
    """The back end of a case; for `EACH`, sandboxes started within the block use no container that stays up."""
    before = os.environ.get("SWEGYM_WITHOUT")
    if name == EACH:
        os.environ["SWEGYM_WITHOUT"] = "container"
    try:
        yield "apptainer" if name == EACH else name
    finally:
        os.environ.pop("SWEGYM_WITHOUT", None)
        os.environ.update({} if before is None else {"SWEGYM_WITHOUT": before})


def _ways(backends: list[str]) -> list[str]:
    return [*backends, *([EACH] if "apptainer" in backends else [])]


def _compare(run: Run, metric: str, backends: list[str]) -> None:
    """How often the time of a metric of one back end is that of another, in this run."""
    for one, other in (("apptainer", "namespace"), (EACH, "apptainer")):
        if {one, other} <= set(_ways(backends)):
            run.ratios[f"{metric}: {one} / {other}"] = run.median(one, metric) / run.median(other, metric)


def reset(run: Run, backends: list[str]) -> None:
    """A reset, cold and from the warm pool, on 10 and on 6,000 files, alternating."""
    with contextlib.ExitStack() as stack:
        envs = {}
        for name in _ways(backends):
            with _way(name) as backend:
                envs[name] = [stack.enter_context(_environment(run, files, backend)) for files in (10, 6000)]
        for _ in range(run.times(25)):
            for name, (small, big) in envs.items():
                with _way(name):
                    run.add(name, "reset, 10 files", "ms", milliseconds(lambda env=small: env.reset(seed=0)))  # type: ignore[misc]
                    run.add(name, "reset, 6,000 files", "ms", milliseconds(lambda env=big: env.reset(seed=0)))  # type: ignore[misc]
    _compare(run, "reset, 6,000 files", backends)
    for name in backends:
        cold, small_one = run.median(name, "reset, 6,000 files"), run.median(name, "reset, 10 files")
        run.target(f"{name}: reset, cold (ms)", cold, 20)
        run.ratios[f"{name}: reset on 6,000 files / on 10"] = cold / small_one
        run.target(f"{name}: reset on 6,000 files / on 10", cold / small_one, 1.2)
        with _environment(run, 6000, name, pool=1) as env:
            for _ in range(run.times(15)):
                time.sleep(1)  # agents take longer
                run.add(name, "reset, warm", "ms", milliseconds(env.reset))
        run.target(f"{name}: reset, warm (ms)", run.median(name, "reset, warm"), 10)
        _breakdown_of_reset(run, name)
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="swegym-bench-root-"))
        others = stack.enter_context(peers(minimal_root(Path(directory) / "root")))
        for other in others.names:
            run.add(other, "made and first command", "ms", *others.measure(other, "reset", run.times(4)))


def _breakdown_of_reset(run: Run, name: str) -> None:
    task = repository_task(run.repos, 6000)
    for _ in range(run.times(10)):
        took, workspace = timed(lambda: prepare_locally(task, repos=run.repos))
        run.add(name, "of a reset: layers found", "ms", took)
        sandbox = open_sandbox(workspace.spec, backend=name)
        run.add(name, "of a reset: sandbox started", "ms", milliseconds(sandbox.start))
        run.add(name, "of a reset: sandbox closed", "ms", milliseconds(sandbox.close))


def fork(run: Run, backends: list[str]) -> None:
    """A fork of a sandbox with 1,000 changed files, and the caller's time of closing one."""
    for name in backends:
        with _sandbox(run, name) as (sandbox, _):
            sandbox.run("mkdir new; for ((i = 0; i < 1000; i++)); do echo $i >new/$i; done")
            for _ in range(run.times(12)):
                took, other = timed(sandbox.fork)
                run.add(name, "fork, 1,000 changed files", "ms", took)
                run.add(name, "close, 1,000 changed files", "ms", milliseconds(other.close))
                took, snapshot = timed(sandbox.snapshot)
                run.add(name, "snapshot, 1,000 changed files", "ms", took)
                began = time.perf_counter()
                sandbox.restore(snapshot)
                run.add(name, "restore, 1,000 changed files", "ms", (time.perf_counter() - began) * 1e3)
                snapshot.discard()
        run.target(f"{name}: fork, 1,000 changed files (ms)", run.median(name, "fork, 1,000 changed files"), 150)
        run.target(f"{name}: close (ms)", run.median(name, "close, 1,000 changed files"), 20)


def live(run: Run, backends: list[str]) -> None:
    """64 live sandboxes."""
    for name in backends:
        many = 64
        spec = prepare_locally(repository_task(run.repos, 10), repos=run.repos).spec
        before = footprint([os.getpid()])["beyond_page_cache"]
        sandboxes = [open_sandbox(spec, backend=name) for _ in range(many)]
        try:
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda sandbox: sandbox.start(), sandboxes))
            for sandbox in sandboxes:
                assert sandbox.run("echo here").output == "here\n"
            theirs = footprint(tree(supervisor().pid))
            ours = footprint([os.getpid()])["beyond_page_cache"] - before
            written = (
                int(
                    subprocess.run(
                        ["du", "-s", "-B1", run_dir()], capture_output=True, text=True, check=True
                    ).stdout.split()[0]
                )
                / 1e6
            )
        finally:
            for sandbox in sandboxes:
                sandbox.close()
        run.add(name, "64 live: memory of each, page cache shared", "MB", (theirs["pss"] + ours + written) / many)
        beyond = (theirs["beyond_page_cache"] + ours + written) / many
        run.add(name, "64 live: memory of each beyond the page cache", "MB", beyond)
        run.add(name, "64 live: files of each, in memory", "MB", written / many)
        run.target(f"{name}: memory of each of 64 live sandboxes beyond the page cache (MB)", beyond, 25)


def starts(run: Run, backends: list[str]) -> None:
    """32 concurrent cold starts, the back ends alternating."""
    many = 32
    spec = prepare_locally(repository_task(run.repos, 10), repos=run.repos).spec
    for _ in range(run.times(10)):
        for name in _ways(backends):
            with _way(name) as backend:
                sandboxes = [open_sandbox(spec, backend=backend) for _ in range(many)]
                with ThreadPoolExecutor(many) as pool:
                    began = time.perf_counter()
                    list(pool.map(lambda sandbox: sandbox.start(), sandboxes))
                    run.add(name, "32 cold starts at once", "s", time.perf_counter() - began)
            for sandbox in sandboxes:
                sandbox.close()
            _await(lambda: not list(run_dir().glob("*-sandbox")))
    _compare(run, "32 cold starts at once", backends)
    for name in backends:
        run.target(f"{name}: 32 cold starts (s)", run.median(name, "32 cold starts at once"), 0.4)


def graded(run: Run, backends: list[str]) -> None:
    """Episodes of `mini-edit` on eight threads: reset, the gold patch, submit, graded; the back ends alternating."""
    threads, each = 8, run.times(8)
    tasks = [mini_edit.generate(number) for number in range(threads)]
    with contextlib.ExitStack() as stack:
        players: dict[str, list[Callable[[], None]]] = {}
        for name in _ways(backends):
            with _way(name) as backend:
                for task in tasks:
                    made = SWEBenchEnv(tasks=[task], sandbox=backend, action_format="raw", pool=0)
                    env = stack.enter_context(contextlib.closing(made))
                    players.setdefault(name, []).append(partial(_play, env, task.patch))
                    players[name][-1]()  # layers are built once
        for _ in range(run.times(6)):
            for name, theirs in players.items():
                with _way(name), ThreadPoolExecutor(threads) as pool:
                    began = time.perf_counter()
                    list(pool.map(lambda play: [play() for _ in range(each)], theirs))
                    took = time.perf_counter() - began
                    run.add(name, "an episode, graded, 8 at once", "ms", took * 1e3 / (threads * each))
    _compare(run, "an episode, graded, 8 at once", backends)
    if {"apptainer", "namespace"} <= set(backends):
        slower = run.ratios["an episode, graded, 8 at once: apptainer / namespace"]
        run.target("graded episodes per second: apptainer / namespace", 1 / slower, 0.85, less=False)


def _play(env: SWEBenchEnv, patch: str) -> None:
    env.reset(seed=0)
    env.step(f"git apply <<'END'\n{patch}\nEND")
    info = env.step("submit")[4]
    assert info["resolved"], info


def episodes(run: Run, backends: list[str]) -> None:
    """5,000 episodes in one process: resources that grow."""
    for name in backends:
        _episodes_of(run, name, run.times(5000))


def _episodes_of(run: Run, name: str, total: int) -> None:
    tasks = [small_task(number) for number in range(8)]
    env = SWEBenchEnv(tasks=tasks, sandbox=name, reward="none", max_turns=None, action_format="raw", pool=1)
    samples: dict[str, list[float]] = {}
    at: list[int] = []
    took = 0.0
    env.reset(seed=0)
    for episode in range(total):
        began = time.perf_counter()
        env.step(f"echo {episode} >module_1.py")
        env.step("submit")
        took += time.perf_counter() - began
        if episode % max(1, total // 100) == 0:
            _await(lambda: len(list(run_dir().glob("*-sandbox"))) == 1)
            gc.collect()
            at.append(episode)
            for what, value in _taken().items():
                samples.setdefault(what, []).append(value)
        began = time.perf_counter()
        env.reset()
        took += time.perf_counter() - began
    env.close()
    run.add(name, "episode, with a step and a submission", "ms", took * 1e3 / total)
    warm = len(at) // 5  # initial filling is not growth
    for what, values in samples.items():
        unit = "MB" if "memory" in what else ""
        run.add(name, f"{total} episodes: {what}", unit, *values)
        slope = float(np.polyfit(at[warm:], values[warm:], 1)[0]) * 1000
        run.add(name, f"{total} episodes: {what}, growth in 1,000", unit, slope)
        run.target(f"{name}: growth of {what} in 1,000 of {total} episodes", slope, 1)


def _taken() -> dict[str, float]:
    """The resources of this process and its supervisor."""
    return {
        "resident memory": resident_bytes() / 1e6,
        "supervisor's memory": footprint([supervisor().pid])["beyond_page_cache"],
        "descriptors": len(os.listdir("/proc/self/fd")),
        "directories": len(list(run_dir().iterdir())),
        "processes": len(tree(os.getpid())),
        "threads": threading.active_count(),
    }


def _await(condition: Callable[[], bool]) -> None:
    if not wait_until(condition, 30.0, every_s=0.005):
        sys.exit("bench-env: closed sandboxes were not removed within 30 s")


PARTS: dict[str, Callable[[Run, list[str]], None]] = {
    "steps": steps,
    "reset": reset,
    "fork": fork,
    "live": live,
    "starts": starts,
    "graded": graded,
    "episodes": episodes,
}
