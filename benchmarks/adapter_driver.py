"""Runs in the peers' environment: an episode through the back ends of Harbor and verifiers; prints its seconds."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from harbor.environments.singularity import SingularityEnvironment
from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths
from verifiers.v1.runtimes.apptainer import ApptainerRuntime

from benchmarks.root_file_system import write_files
from swegym_env.adapters.harbor import SwegymEnvironment
from swegym_env.adapters.verifiers import SwegymRuntime
from swegym_env.tasks.datasets import load_tasks

Run = Callable[[str], Awaitable[int]]
Opened = tuple[Run, Callable[[], Awaitable[Any]]]
"""What runs a command and returns its exit code, and what closes the environment."""


async def harbor(kind: type, place: Path, image: str) -> Opened:
    """One of Harbor's environments."""
    place.mkdir(parents=True)
    (place / "environment").mkdir()
    (place / "environment/Dockerfile").write_text("FROM adapters:1\nWORKDIR /testbed\n")
    paths = TrialPaths(place / "trial")
    paths.mkdir()
    environment = kind(
        environment_dir=place / "environment",
        environment_name="adapters",
        session_id=place.name,
        trial_paths=paths,
        task_env_config=EnvironmentConfig(docker_image=image),
        logger=logging.getLogger("adapters"),
    )
    await environment.start(force_build=False)

    async def run(command: str) -> int:
        return int((await environment.exec(command, cwd="/testbed")).return_code)

    return run, lambda: environment.stop(delete=True)


async def verifiers(runtime: Any) -> Opened:
    """One of verifiers' runtimes."""
    await runtime.start()

    async def run(command: str) -> int:
        return int((await runtime.run(["bash", "-c", command], {})).exit_code)

    return run, runtime.stop


async def bare(folder: Path, files: Mapping[str, str]) -> Opened:
    """No sandbox at all: what the programs themselves take, started as verifiers' runtimes start them."""
    write_files(files, folder)

    async def run(command: str) -> int:
        process = await asyncio.create_subprocess_exec("bash", "-c", command, cwd=folder, stdout=PIPE, stderr=PIPE)
        await process.communicate()
        return int(process.returncode or 0)

    async def close() -> None:
        shutil.rmtree(folder)

    return run, close


async def play(opening: Awaitable[Opened], commands: list[str]) -> tuple[float, list[float]]:
    """Seconds of an episode, and of each of its turns."""
    began, turns = time.perf_counter(), []
    run, close = await opening
    for command in commands:
        start = time.perf_counter()
        code = await run(command)
        turns.append(time.perf_counter() - start)
        assert code == 0, (command, code)
    await close()
    return time.perf_counter() - began, turns


async def main() -> None:
    """Read what to do from standard input, and print case → episodes and turns in seconds."""
    request = json.load(sys.stdin)
    place, image = Path(request["place"]), request["image"]
    task = load_tasks("mini")[request["instance"]]
    apptainer = vf.ApptainerConfig(image=image, workdir="/testbed")
    cases: dict[str, Callable[[int], Awaitable[Opened]]] = {
        "Harbor, singularity": lambda number: harbor(SingularityEnvironment, place / f"theirs-{number}", image),
        "Harbor, swegym_env": lambda number: harbor(SwegymEnvironment, place / f"ours-{number}", image),
        "verifiers, apptainer": lambda _: verifiers(ApptainerRuntime(apptainer)),
        "verifiers, swegym_env": lambda _: verifiers(SwegymRuntime(task)),
        "verifiers, bare programs": lambda number: bare(place / f"bare-{number}", task.files),
    }
    found: dict[str, dict[str, list[float]]] = {name: {"episode": [], "turn": []} for name in cases}
    for number in range(request["episodes"] + 1):
        for name, opening in cases.items():
            seconds, turns = await play(opening(number), request["commands"])
            if number:  # the first one of each builds what the later ones find
                found[name]["episode"].append(seconds)
                found[name]["turn"] += turns
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main())
