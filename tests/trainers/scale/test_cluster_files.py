"""The SLURM job scripts and the definition of the training container."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from swe_trainers.config import read_config
from swe_trainers.run_config import run_config

ROOT = Path(__file__).parents[3]
LAUNCH = ROOT / "scripts" / "slurm" / "launch.sh"
DEFINITION = ROOT / "scripts" / "containers" / "training.def"


def launch(folder: Path, *options: str, script: Path = LAUNCH, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "DRY_RUN": "1", "PYTHON": str(ROOT / ".venv/bin/python"), **variables}
    return subprocess.run(
        [script, *options], cwd=ROOT, env={**environment, "SLURM_JOB_ID": folder.name}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip


def test_model_file_overrides_the_run_file(tmp_path: Path) -> None:
    model = tmp_path / "model.yaml"
    model.write_text("model: {architecture: {hidden_size: 128}, dtype: bfloat16}\ntrainer: {learning_rate: 2.5e-05}\n")
    ran = launch(
        tmp_path, "--seed", "3", CONFIG="examples/configs/frozen_lake.yaml", MODEL_CONFIG=str(model),
        SLURM_SUBMIT_DIR=str(tmp_path), SLURM_NNODES="2", SLURM_GPUS_ON_NODE="8",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    command = ran.stdout.splitlines()
    assert command[0] == "srun" and command[command.index("--nproc-per-node") + 1] == "8"
    assert command[command.index("--max-restarts") + 1] == "3"
    at = command.index("swe_trainers.cli.main")
    config = run_config(read_config(command[at + 1], command[at + 2 :]))
    assert (config.model.architecture["hidden_size"], config.model.dtype) == (128, "bfloat16")
    assert config.model.architecture["model_type"] == "llama" and config.scale.fsdp and config.seed == 3
    assert config.trainer.learning_rate == 2.5e-5
    assert list(tmp_path.iterdir()) == [model]  # nothing is left


def test_options_override_the_model_file(tmp_path: Path) -> None:
    model = tmp_path / "model.yaml"
    model.write_text("model: {dtype: bfloat16}\n")
    settings = {"CONFIG": "examples/configs/frozen_lake.yaml", "MODEL_CONFIG": str(model)}
    command = launch(tmp_path, "--model.dtype", "float32", **settings).stdout.splitlines()
    at = command.index("swe_trainers.cli.main")
    assert run_config(read_config(command[at + 1], command[at + 2 :])).model.dtype == "float32"


def test_one_node_runs_without_srun_and_inside_the_container(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "slurm" / "small.sbatch"
    settings = {"CONFIG": "examples/configs/frozen_lake.yaml", "CONTAINER": "training.sif"}
    command = launch(
        tmp_path, script=script, **settings, SLURM_GPUS_ON_NODE="8", RANKS_PER_NODE="6"
    ).stdout.splitlines()
    assert command[:5] == ["apptainer", "exec", "--nv", "training.sif", str(ROOT / ".venv/bin/python")]
    assert command[command.index("--nproc-per-node") + 1] == "6"


def test_a_container_runs_its_own_python_for_the_ranks_and_for_the_model_file(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "apptainer").write_text('#!/bin/sh\necho "$*" >>"$0.ran"\n')
    (programs / "apptainer").chmod(0o755)
    ran = launch(
        tmp_path, CONFIG="examples/configs/frozen_lake.yaml", MODEL_CONFIG="examples/configs/tiny.yaml", PYTHON="",
        CONTAINER="training.sif", SLURM_SUBMIT_DIR=str(tmp_path), PATH=f"{programs}:{os.environ['PATH']}",
    )  # fmt: skip
    assert ran.stdout.splitlines()[:5] == ["apptainer", "exec", "--nv", "training.sif", "python"], ran.stderr
    assert (programs / "apptainer.ran").read_text().startswith("exec --nv training.sif python -c import json")


@pytest.mark.parametrize(
    "variables", [{}, {"CONFIG": "nowhere.yaml"}, {"CONFIG": "Makefile", "MODEL_CONFIG": "no.yaml"}]
)
def test_missing_files_are_named(tmp_path: Path, variables: dict[str, str]) -> None:
    ran = launch(tmp_path, **variables)
    assert ran.returncode != 0 and "CONFIG" in ran.stderr and len(ran.stderr.splitlines()) == 1


def test_job_scripts_request_the_documented_resources() -> None:
    for name, nodes, gpus in (("small", 1, 1), ("medium", 1, 8), ("large", 8, 8)):
        text = (ROOT / "scripts" / "slurm" / f"{name}.sbatch").read_text()
        asked = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", text, re.MULTILINE))
        assert (asked["nodes"], asked["gpus-per-node"], asked["ntasks-per-node"]) == (str(nodes), str(gpus), "1")
        before, _, after = text.partition("set -euo pipefail")
        assert "#SBATCH" in before and "#SBATCH" not in after  # sbatch reads no directive after the first command


def test_container_definition_has_its_sections_in_valid_shell(tmp_path: Path) -> None:
    text = DEFINITION.read_text()
    assert text.startswith("Bootstrap: docker\nFrom: ")
    parts = re.split(r"^%(\w+)\n", text, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert set(sections) == {"files", "post", "environment", "runscript", "test"}
    for line in sections["files"].split("\n"):
        if line.strip():
            assert (ROOT / line.split()[0]).exists(), line
    for name in ("post", "environment", "runscript", "test"):
        script = tmp_path / name
        script.write_text(sections[name])
        subprocess.run(["sh", "-n", script], check=True)


def test_container_definition_copies_every_file_that_its_steps_use(tmp_path: Path) -> None:
    files = DEFINITION.read_text().partition("%files\n")[2].partition("%post")[0]
    for source, _, target in (line.strip().partition(" ") for line in files.splitlines() if line.strip()):
        (tmp_path / Path(target).name).symlink_to(ROOT / source)
    (tmp_path / "built").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for step in (
        ["setup.py", "-q", "egg_info", "--egg-base", "built"],  # pip's first step
        ["-c", "import swe_trainers.cli.main, swegym_env; print(swe_trainers.cli.main.__file__)"],
        ["-m", "swe_trainers.cli.main", "--help"],
    ):
        ran = subprocess.run(
            [sys.executable, *step], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
    extras = (tmp_path / "built" / "swegym_env.egg-info" / "requires.txt").read_text()
    assert {"[train]", "[gpu]"} <= set(extras.splitlines())
