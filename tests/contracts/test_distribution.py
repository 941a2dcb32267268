"""The content of the wheel, the commands, and the pinned versions match pyproject.toml."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INSTALLED_EXTRAS = ("train", "javascript", "dev", "gpu")


def files_below(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and not any(part == "__pycache__" or part.endswith("_cache") for part in path.parts)
    }


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_names(*extras: str) -> set[str]:
    """The distributions that the project and these extras require."""
    requirements = [*PROJECT["dependencies"]]
    for extra in extras:
        requirements += PROJECT["optional-dependencies"][extra]
    return {normalised(re.split(r"[^A-Za-z0-9._-]", requirement)[0]) for requirement in requirements}


def distributions_imported(package: str) -> set[str]:
    """The installed distributions that any module of `package` imports, at its top or inside a function."""
    names: set[str] = set()
    for path in (ROOT / package).rglob("*.py"):
        if {"data", "inside", "installed"} & set(path.relative_to(ROOT).parts[:-1]):
            continue  # files of tasks, and code that runs inside sandboxes
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names.add(node.module.partition(".")[0])
    installed = importlib.metadata.packages_distributions()
    return {normalised(installed[name][0]) for name in names if name in installed} - {normalised(PROJECT["name"])}


@pytest.mark.parametrize(("package", "extras"), [("swegym_env", ()), ("swe_trainers", ("train",))])
def test_imported_distributions_are_declared(package: str, extras: tuple[str, ...]) -> None:
    optional = requirement_names(
        "swebench", "gpu", "serve", "ray", "mcp", "mini-swe-agent", "swe-rex", "javascript", "grammar"
    )
    imported = distributions_imported(package)
    assert "gymnasium" in imported
    assert imported - requirement_names(*extras) - optional == set()


def test_declared_distributions_are_imported() -> None:
    base, used = requirement_names(), distributions_imported("swegym_env")
    assert base - used == {"tomli"} - used, "a plain installation installs what it never imports"
    by_others = {"tensorboard"}  # torch.utils.tensorboard imports it
    assert requirement_names("train") - base - distributions_imported("swe_trainers") == by_others


def test_wheel_contains_every_file_of_both_packages_and_the_tools(tmp_path: Path) -> None:
    for package in ("swegym_env", "swe_trainers"):  # of an earlier build
        (tmp_path / package).mkdir()
        (tmp_path / package / "removed_since.py").touch()
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    for package, shipped_as in (("swegym_env", ""), ("swe_trainers", ""), ("tools", "swegym_env/shipped_tools")):
        built = files_below(tmp_path / (shipped_as or package))
        if package == "swegym_env":
            built = {name for name in built if not name.startswith("shipped_tools/")}
        assert built == files_below(ROOT / package)
    assert (tmp_path / "swegym_env/py.typed").exists()
    assert (tmp_path / "swe_trainers/py.typed").exists()


@pytest.mark.parametrize("command", sorted(PROJECT["scripts"]))
def test_every_console_script_is_callable(command: str) -> None:
    module, _, name = PROJECT["scripts"][command].partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_every_installed_requirement_is_pinned() -> None:
    pins = (ROOT / "constraints.txt").read_text()
    pinned = {normalised(name) for name in re.findall(r"^([A-Za-z0-9._-]+)==\S+", pins, flags=re.MULTILINE)}
    assert requirement_names(*INSTALLED_EXTRAS) - pinned == set()


def test_torch_has_one_exact_pin() -> None:
    pins = (ROOT / "constraints.txt").read_text()
    assert len(re.findall(r"^torch==\d+\.\d+\.\d+$", pins, flags=re.MULTILINE)) == 1


def test_changelog_has_a_section_for_this_version() -> None:
    sections = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert PROJECT["version"] in re.findall(r"\d+\.\d+\.\d+", sections[0])


def test_lock_matches_the_project_and_names_the_public_index_only() -> None:
    text = (ROOT / "uv.lock").read_text()
    (project,) = (each for each in tomllib.loads(text)["package"] if each["name"] == PROJECT["name"])
    asked = [*PROJECT["dependencies"], *(one for extra in PROJECT["optional-dependencies"].values() for one in extra)]
    found = {
        (each["name"], Requirement(f"x{each.get('specifier', '')}").specifier)
        for each in project["metadata"]["requires-dist"]
    }
    expected = {(normalised(each.name), each.specifier) for each in map(Requirement, asked)}
    assert found == expected, "pyproject.toml has changed. Try: make pins"
    places = set(re.findall(r'(?:url|registry|path|git) = "(\w+://[^/"]+)', text))
    assert places == {"https://pypi.org", "https://files.pythonhosted.org"}


def test_pip_and_uv_install_the_same_versions() -> None:
    locked = {(each["name"], each["version"]) for each in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    pinned = set(re.findall(r"^([a-z0-9._-]+)==([^ ;\n]+)", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE))
    assert locked - {(PROJECT["name"], PROJECT["version"])} == pinned, "Try: make pins"


def test_ci_runs_every_supported_python() -> None:
    named = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)]
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    assert jobs["check-and-test"]["strategy"]["matrix"]["python"] == named
    assert PROJECT["requires-python"] == f">={named[0]}"
