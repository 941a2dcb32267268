"""An installed package extends every registry by entry points: examples/plugin, installed by pip and used by name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import public_directory
from tests.programs import ROOT, offline, run_to_end


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory with the package installed in `installed`, and room for sandboxes."""
    with public_directory("plugin") as directory:
        source = shutil.copytree(
            ROOT / "examples/plugin", directory / "source", ignore=shutil.ignore_patterns("__pycache__")
        )
        command = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--no-index", "--no-build-isolation"]
        subprocess.run(
            [*command, "--target", str(directory / "installed"), str(source)],
            check=True,
            capture_output=True,
            timeout=200,
        )
        yield directory


def run(
    place: Path, *command: str, stdin: str = "", installed: tuple[str, ...] = ("installed",)
) -> subprocess.CompletedProcess[str]:
    """A Python command with these folders on its path."""
    environment = {**os.environ, **offline(place), "ACME_JOURNAL": str(place / "journal.jsonl")}
    environment["PYTHONPATH"] = ":".join([str(ROOT), *(str(place / name) for name in installed)])
    return run_to_end([sys.executable, *command], environment, cwd=place, stdin=stdin)


EPISODE = """
import gymnasium, json, sys
from swegym_env.env import SWEBenchEnv
from swegym_env.wrappers import BrevityReward

assert {name for name in sys.modules if name.startswith("acme")} == {"acme_swegym", "acme_swegym.reward"}
env = BrevityReward(SWEBenchEnv("acme-mini", sandbox="acme", action_format="prompt"), bonus=0.5)
_, info = env.reset(options={"instance_id": "acme__add"})
first, second = (env.step(action) for action in ("I repair it.\\n$ sed -i 's#/#+#' add.sh", "$ submit"))
env.close()
last = second[-1]
print(json.dumps([first[-1]["reward"], last["reward"], last["resolved"], last["fail_to_pass"], last["sandbox"]]))
"""


def test_an_episode_uses_everything_that_the_package_adds_to_the_environment(place: Path) -> None:
    ran = run(place, "-c", EPISODE)
    assert ran.returncode == 0, ran.stderr[-2000:]
    first, last, resolved, fail_to_pass, backend = json.loads(ran.stdout)
    assert first == {"environment": 0.0, "brevity": 0.5} and last == {"environment": 1.0, "brevity": 0.5}
    assert (resolved, fail_to_pass, backend) == (True, [1, 1], "acme")
    opened = [json.loads(line) for line in (place / "journal.jsonl").read_text().splitlines()]
    assert len(opened) >= 2 and all(entry["image"] == "host" for entry in opened)  # the agent's, and one for grading


AGENT = """
from swegym_env.programs.env import SWEAgentEnv

env = SWEAgentEnv("acme-mini", agent="acme-agent")
env.reset(options={"instance_id": "acme__add"})
observation, *_ = env.step("sed -i 's#/#+#' add.sh; sh add.sh 6 3")
*_, info = env.step("submit")
env.close()
print(observation.strip(), info["resolved"])
"""


def test_an_agent_of_the_package_plays(place: Path) -> None:
    ran = run(place, "-c", AGENT)
    assert ran.stdout == "9 True\n", ran.stderr[-2000:]
    assert "acme-agent" in run(place, "-m", "swegym_env", "agents", "list").stdout
    refused = run(place, "-m", "swegym_env", "agents", "check", "acme", stdin="")
    assert refused.returncode == 2 and ", acme-agent, or a folder" in refused.stderr


def test_the_command_line_knows_the_names_of_the_package(place: Path) -> None:
    shown = run(place, "-m", "swegym_env.cli.main", "run", "--help").stdout
    assert "acme-mini" in shown and "acme" in shown.partition("--sandbox")[2]
    verdicts = {}
    for patches in ("gold", "empty"):
        graded = run(
            place, "-m", "swegym_env.cli.main", "grade", "--predictions", patches, "--dataset", "acme-mini", "--json"
        )
        rows = [json.loads(line) for line in graded.stdout.splitlines()]
        verdicts[patches] = [(row["instance_id"], row["resolved"], row["valid"]) for row in rows]
    assert verdicts["gold"] == [("acme__add", True, True), ("acme__subtract", True, True)]
    assert verdicts["empty"] == [("acme__add", False, True), ("acme__subtract", False, True)]


RUN = """
environment:
  {id: FrozenLake-v1, adapter: text, parallel: 2, max_turns: 4, max_tokens: 64, max_new_tokens: 1}
model:
  architecture: {model_type: gpt2, n_embd: 16, n_layer: 1, n_head: 2, n_positions: 64}
  tokenizer: words
trainer: {algorithm: acme, floor: 0.25, episodes_per_update: 4, max_updates: 1, learning_rate: 0.001}
output_dir: trained
"""


def test_an_algorithm_of_the_package_trains_by_configuration(place: Path) -> None:
    (place / "run.yaml").write_text(RUN)
    ran = run(place, "-m", "swe_trainers.cli.main", "run.yaml")
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert len((place / "trained/metrics.jsonl").read_text().splitlines()) >= 1
    assert "algorithm: acme" in (place / "trained/config.yaml").read_text()
    wrong = run(place, "-m", "swe_trainers.cli.main", "run.yaml", "--trainer.flor", "1")
    assert wrong.returncode == 2 and "Did you mean 'floor'?" in wrong.stderr


def test_without_the_package_its_names_are_unknown(place: Path) -> None:
    graded = run(
        place, "-m", "swegym_env.cli.main", "grade", "--predictions", "gold", "--dataset", "acme-mini", installed=()
    )
    assert graded.returncode == 2 and "no dataset 'acme-mini'" in graded.stderr


def test_a_name_that_is_taken_is_left_out_and_reported(place: Path) -> None:
    metadata = place / "rival/rival-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: rival\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[swegym_env.sandboxes]\nnamespace = rival:Backend\n[swe_trainers.algorithms]\nppo = rival:Algorithm\n"
    )
    code = (
        "from swegym_env.sandbox.backends import BACKENDS; from swe_trainers.algorithms import ALGORITHMS;"
        "print(BACKENDS['namespace'], ALGORITHMS['ppo'])"
    )
    ran = run(place, "-c", code, installed=("rival",))
    assert ran.stdout == "swegym_env.sandbox.namespace:NamespaceBackend swe_trainers.algorithms.ppo:PPO\n"
    assert "swegym_env.sandboxes: 'namespace' of rival is left out" in ran.stderr
    assert "swe_trainers.algorithms: 'ppo' of rival is left out" in ran.stderr


def test_a_broken_package_is_named_where_its_object_is_used(place: Path) -> None:
    metadata = place / "broken/broken-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[swegym_env.sandboxes]\nbroken = no_such_module:Backend\n")
    ran = run(place, "-m", "swegym_env.cli.main", "run", "--sandbox", "broken", stdin="submit\n", installed=("broken",))
    assert ran.returncode == 2 and ran.stderr.count("\n") == 1
    assert "sandbox back end 'no_such_module:Backend' cannot be imported" in ran.stderr
