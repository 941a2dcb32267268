"""What importing the packages loads, prints and writes. Each package is imported completely in a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TENSORS = {"torch", "transformers", "accelerate", "peft"}
HEAVY = {*TENSORS, "datasets", "git", "jinja2", "matplotlib", "pandas", "rich", "spython"}

# Peers that are not installed beside this package, since they need another Python or other versions of packages than
# ours: scripts/test_adapter.sh uses their adapters.
IMPORT_EVERY_MODULE = """
import importlib, importlib.util, pkgutil, {package}
apart = {{
    "swegym_env.adapters.harbor": "harbor",
    "swegym_env.adapters.inspect_ai": "inspect_ai",
    "swegym_env.adapters.nemo_gym": "nemo_gym",
    "swegym_env.adapters.openenv": "openenv",
    "swegym_env.adapters.openenv_client": "openenv",
    "swegym_env.adapters.verifiers": "verifiers",
    "swe_trainers.tinker.engine": "tinker",
    "swe_trainers.tinker.policy": "tinker",
    "swe_trainers.tinker.server": "tinker",
    "swe_trainers.tinker.states": "tinker",
    "swe_trainers.tinker.training": "tinker",
}}
for module in pkgutil.walk_packages({package}.__path__, "{package}."):
    if module.name not in apart or importlib.util.find_spec(apart[module.name]):
        importlib.import_module(module.name)
"""
NAME_WHAT_WAS_LOADED = """
import pathlib, sys
pathlib.Path(sys.argv[1]).write_text(" ".join({name.partition(".")[0] for name in sys.modules}))
"""


@dataclass(frozen=True)
class Imported:
    """What an import loaded (top-level names), printed, and wrote to an empty home directory."""

    loaded: set[str]
    output: str
    left: list[str]


def run_imports(code: str, folder: Path) -> Imported:
    """Run `code` with warnings as errors, its home and working directory an empty folder."""
    home, names = folder / "home", folder / "names"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SWEGYM_", "XDG_", "HF_"))}
    environment |= {"HOME": str(home), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-W", "error", "-c", code + NAME_WHAT_WAS_LOADED, str(names)]
    ran = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    left = [path.relative_to(home).as_posix() for path in home.rglob("*")]
    return Imported(set(names.read_text().split()), ran.stdout + ran.stderr, left)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Imported:
    return run_imports(IMPORT_EVERY_MODULE.format(package="swegym_env"), tmp_path_factory.mktemp("environment"))


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Imported:
    return run_imports(IMPORT_EVERY_MODULE.format(package="swe_trainers"), tmp_path_factory.mktemp("trainer"))


def test_import_of_the_environment_loads_nothing_heavy(tmp_path: Path) -> None:
    loaded = run_imports("import swegym_env", tmp_path).loaded
    assert "swegym_env" in loaded
    assert not loaded & (HEAVY | {"swe_trainers"})


def test_no_module_of_the_environment_loads_torch_or_the_trainer(environment: Imported) -> None:
    assert "swegym_env" in environment.loaded
    assert not environment.loaded & (TENSORS | {"swe_trainers"})


def test_no_module_of_the_trainer_loads_the_environment(trainer: Imported) -> None:
    assert "torch" in trainer.loaded
    assert "swegym_env" not in trainer.loaded


def test_import_prints_nothing_and_writes_nothing(environment: Imported, trainer: Imported) -> None:
    assert (environment.output, environment.left) == ("", [])
    assert (trainer.output, trainer.left) == ("", [])
