"""The same scripted episode through the back ends of other projects and through ours, in turns, in one run.

    python -m benchmarks.adapters [--episodes 5] [--python .venv/adapters/peers/bin/python]

An episode: the environment is made, 20 turns are played in it (reading, searching, one edit), and it is closed. In
mini-swe-agent its own agent plays, and the last turn submits: `local` has no sandbox, `singularity` is one `apptainer
exec` a command on a directory image, which its authors' class builds for each episode; ours takes the patch too, once
without a verdict on it and once with one. In Harbor and verifiers the commands go through their own interfaces:
`singularity` is a server in a container, `apptainer` one `apptainer exec` a command in an instance; the bare programs
without any sandbox are the floor of the latter. Harbor and verifiers are in an environment of their own
(`scripts/test_adapter.sh peers --make`).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")

from benchmarks.options import require_python
from benchmarks.records import row, write_results
from benchmarks.root_file_system import make_root, write_files
from benchmarks.tampering.place import make_image, write_singularity
from swegym_env.sandbox.images.store import settle
from swegym_env.tasks.datasets import load_tasks

TASK = load_tasks("mini")["mini__lrucache-001"]
READING = ["ls -a", "cat README.md", "grep -rn evictions lrucache", "wc -l lrucache/*.py", "head -50 lrucache/cache.py"]
EDIT = "sed -i 's/weight >= self.capacity/weight > self.capacity/' lrucache/cache.py"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
COMMANDS = [*(READING * 4)[:18], EDIT, SUBMIT]
PROGRAMS = ("bash", "cat", "grep", "head", "ls", "sed", "wc")
OURS = "swegym_env"


def local(place: Path) -> Any:
    """mini-swe-agent's `local` on a copy of the repository."""
    from minisweagent.environments.local import LocalEnvironment

    folder = Path(tempfile.mkdtemp(dir=place))
    write_files(TASK.files, folder)
    return LocalEnvironment(cwd=str(folder), timeout=60)


def singularity(place: Path) -> Any:
    """mini-swe-agent's `singularity`, with Apptainer, as root in its container where that is allowed."""
    from minisweagent.environments.singularity import SingularityEnvironment

    from benchmarks.env.peer_driver import flags

    root = place / "root"
    if not root.exists():
        make_root(root, PROGRAMS, more=("sys", "root"))
        (root / "etc/localtime").touch()  # without it every command's output begins with a warning
        write_files(TASK.files, root / "testbed")
    return SingularityEnvironment(
        image=str(root), cwd="/testbed", executable="apptainer", timeout=60, exec_args=flags(str(root))
    )


def ours(*, grade: bool) -> Callable[[Path], Any]:
    """This package's environment class."""

    def make(_: Path) -> Any:
        from swegym_env.adapters.mini_swe_agent import SwegymEnvironment

        return SwegymEnvironment(instance=TASK.instance_id, grade=grade)

    return make


BACK_ENDS: dict[str, Callable[[Path], Any]] = {
    "local": local,
    "singularity": singularity,
    OURS: ours(grade=False),
    f"{OURS}, graded": ours(grade=True),
}


def play(make: Callable[[Path], Any], place: Path) -> tuple[float, list[float]]:
    """Seconds of an episode, and of each of its turns but the submission."""
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.models.test_models import DeterministicModel, make_output

    model = DeterministicModel(outputs=[make_output(command, [{"command": command}]) for command in COMMANDS])
    began = time.perf_counter()
    environment = make(place)
    turns: list[float] = []
    execute = environment.execute

    def timed(action: dict[str, Any], **options: Any) -> dict[str, Any]:
        start = time.perf_counter()
        output: dict[str, Any] = execute(action, **options)
        turns.append(time.perf_counter() - start)
        assert output["returncode"] == 0, output
        return output

    environment.execute = timed
    agent = DefaultAgent(model, environment, system_template="", instance_template="", cost_limit=0)
    ended = agent.run()
    if hasattr(environment, "cleanup"):
        environment.cleanup()
    seconds = time.perf_counter() - began
    assert ended["exit_status"] == "Submitted" and len(turns) == len(COMMANDS) - 1
    return seconds, turns


def play_peers(python: Path, place: Path, episodes: int) -> dict[str, dict[str, list[float]]]:
    """Case → seconds of the episodes and of the turns in Harbor and verifiers, on an image with Harbor's server."""
    root = place / "bases/adapters:1"
    make_image(root)
    write_files(TASK.files, root / "testbed")
    image = place / "image.sif"
    subprocess.run(["apptainer", "--quiet", "build", image, root], check=True, capture_output=True)
    settle(root)  # everything in it now belongs to the user of our sandboxes
    commands = [command for command in COMMANDS if command != SUBMIT] + READING[:1]
    request = {
        "place": str(place),
        "image": str(image),
        "instance": TASK.instance_id,
        "commands": commands,
        "episodes": episodes,
    }
    own = {
        **os.environ,
        "PATH": f"{write_singularity(place)}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "SWEGYM_BASE_IMAGES": str(root.parent),
    }
    command = [str(python), "-m", "benchmarks.adapter_driver"]
    ran = subprocess.run(command, input=json.dumps(request), env=own, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(ran.stderr[-2000:])
    found: dict[str, dict[str, list[float]]] = json.loads(ran.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure, and write benchmarks/results/adapters.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--episodes", type=int, default=5)
    parser.add_argument(
        "--python", type=Path, default=Path(".venv/adapters/peers/bin/python"), help="of Harbor and verifiers"
    )
    options = parser.parse_args()
    require_python(parser, "--python", options.python)
    names = [name for name in BACK_ENDS if name != "singularity" or shutil.which("apptainer")]
    times: dict[str, dict[str, list[float]]] = {
        f"mini-swe-agent, {name}": {"episode": [], "turn": []} for name in names
    }
    with tempfile.TemporaryDirectory(prefix="swegym-adapters-") as folder:
        place = Path(folder)
        place.chmod(0o755)
        for number in range(options.episodes + 1):
            for name in names:
                seconds, steps = play(BACK_ENDS[name], place)
                if number:  # the first one of each builds what the later ones find
                    times[f"mini-swe-agent, {name}"]["episode"].append(seconds)
                    times[f"mini-swe-agent, {name}"]["turn"] += steps
        times |= play_peers(options.python.absolute(), place, options.episodes)
    rows = [
        each
        for case, found in times.items()
        for each in (
            row(case, "episode", "s", found["episode"]),
            row(case, "turn", "ms", [seconds * 1000 for seconds in found["turn"]]),
        )
    ]
    medians = {(each.case, each.metric): each.median for each in rows}
    ratios = {}
    for case in times:
        ours_there = f"{case.partition(',')[0]}, {OURS}"
        if OURS not in case:
            for metric in ("episode", "turn"):
                ratios[f"{metric}: {case} / {OURS}"] = medians[case, metric] / medians[ours_there, metric]
    code = "import importlib.metadata as m; print(m.version('harbor'), m.version('verifiers'))"
    versions = subprocess.run([options.python, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    place = write_results(
        "adapters",
        rows,
        ratios=ratios,
        packages=["mini-swe-agent"],
        peers=dict(zip(("harbor", "verifiers"), versions, strict=True)),
        conditions={"turns": len(COMMANDS), "load": os.getloadavg()[0]},
    )
    for each in rows:
        print(f"{each.case:40} {each.metric:8} {each.median:10.3f} {each.unit} ({each.p10:.3f} to {each.p90:.3f})")
    for name, value in ratios.items():
        print(f"{name:50} {value:10.2f}")
    print(place)


if __name__ == "__main__":
    main()
