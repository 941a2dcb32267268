"""How Python projects are installed: the machine's interpreters, the table of set-up commands, and their steps.

Old repositories need old Pythons. If the machine has the version (from pyenv, uv, conda or the system), tasks are
installed with it into a virtual environment at `/opt/testbed`. An interpreter under `/usr` is in every sandbox on the
image "host". Any other, often below a home that the sandbox's user cannot enter, is copied once into a layer, under the
same path, because its libraries and settings refer to that path.

The shipped table is `setup_commands.yaml` beside this file. Entries of the user's own table, named by
`$SWEGYM_SETUP_COMMANDS`, take precedence.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from swegym_env.errors import ConfigurationError, LayerError
from swegym_env.languages import Installation
from swegym_env.repo.patches import runnable_test_files
from swegym_env.sandbox.identity import own
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task

__all__ = ["SHIPPED_TABLE", "Interpreter", "PythonRecipe", "find_interpreter", "find_recipe", "read_table"]

SHIPPED_TABLE = Path(__file__).with_name("setup_commands.yaml")
TABLE_VARIABLE = "SWEGYM_SETUP_COMMANDS"
ENVIRONMENT = "/opt/testbed"
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Old packages cannot be built with current tools; these are the last versions that build those of each Python.
_BUILD_TOOLS = {"3.6": ("pip==21.3.1", "setuptools==59.6.0", "wheel==0.37.1")}
_BUILD_TOOLS_LATER = ("pip==24.0", "setuptools==69.5.1", "wheel==0.43.0")


@dataclass(frozen=True)
class PythonRecipe:
    """How one repository is installed and its tests are run: an entry of the table.

    Attributes:
        python: version of the interpreter, "3.9"; empty for any.
        build_tools: what pip installs before anything else; None for what suits the interpreter.
        packages: requirements for pip, installed once for all commits of a version.
        requirements: files of requirements in the repository, installed once for a version; missing ones are skipped.
        commands: bash commands in `/testbed` that install the repository: once for the version, and again for each
            base commit.
        distribution: name of the package if it is not the repository's: setuptools_scm gets the version under it.
        env: variables of the commands and of every sandbox of the task.
        test_command: runs the tests that are appended to it.
        test_targets: how the tests are named: "files", or "modules" (`a.b` for `tests/a/b.py`).
    """

    python: str = ""
    build_tools: tuple[str, ...] | None = None
    packages: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    distribution: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    test_command: str = ""
    test_targets: str = "files"

    def tests_of(self, task: Task) -> str:
        """The command that runs the tests of `task`: the files of its test patch, or all tests if it has none."""
        files = runnable_test_files(task.test_patch)
        if not self.test_command or not files:
            return self.test_command
        if self.test_targets == "modules":
            files = [path.removesuffix(".py").removeprefix("tests/").replace("/", ".") for path in files]
        return f"{self.test_command} {shlex.join(files)}"

    def installation(self, task: Task, store: LayerStore) -> Installation:
        """Plan the installation. Raises LayerError: the machine has no such interpreter."""
        env = dict(self.env)
        layers: tuple[Path, ...] = ()
        steps: list[str] = []
        version = ""
        if task.image == "host":
            interpreter = find_interpreter(self.python or "3")
            version = interpreter.version
            copied = interpreter_layer(interpreter, store)
            layers = (copied,) if copied else ()
            env = {"PATH": f"{ENVIRONMENT}/bin:{_SYSTEM_PATH}", "VIRTUAL_ENV": ENVIRONMENT} | env
            steps = [f"{interpreter.executable} -m venv {ENVIRONMENT}"]
            tools = self.build_tools
            if tools is None:
                tools = _BUILD_TOOLS.get(version.rpartition(".")[0], _BUILD_TOOLS_LATER)
            if tools:
                steps.append("python -m pip install " + " ".join(f"'{tool}'" for tool in tools))
        if task.version:
            name = re.sub(r"[-_.]+", "_", self.distribution or task.repo.rpartition("/")[2]).upper()
            env.setdefault(f"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_{name}", task.version)
        steps += [f"if [ -f '{path}' ]; then python -m pip install -r '{path}'; fi" for path in self.requirements]
        if self.packages:
            steps.append("python -m pip install " + " ".join(f"'{package}'" for package in self.packages))
        # How the repository is tested does not change what is installed, so it is no part of the key.
        installed = self.packages, self.requirements, self.build_tools, self.commands
        return Installation(layers, env, tuple(steps), self.commands, (version, repr(installed)))


def find_recipe(task: Task) -> PythonRecipe | None:
    """The recipe of `task`: its own `setup` commands, else the table's entry; None if there is neither.

    Raises:
        ConfigurationError: a table is malformed.
    """
    if task.setup:
        return PythonRecipe(task.python, build_tools=None if task.python else (), commands=task.setup)
    if task.files:
        return None
    own_table = os.environ.get(TABLE_VARIABLE)
    for path in (*([Path(own_table)] if own_table else []), SHIPPED_TABLE):
        for versions, recipe in read_table(path).get(task.repo, ()):
            if not versions or task.version in versions:
                return recipe
    return None


@lru_cache(maxsize=8)
def read_table(path: Path) -> Mapping[str, tuple[tuple[frozenset[str], PythonRecipe], ...]]:
    """Read a table: repository → entries, each with the versions that it is for (none: all) and the recipe.

    Raises:
        ConfigurationError: it cannot be read, or an entry has an unknown or ill-typed field.
    """
    import yaml

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError(
            f"{path}: the table of set-up commands cannot be read: {' '.join(str(error).split())}"
        ) from error
    if not isinstance(data, dict):
        raise ConfigurationError(
            f"{path}: expected repositories (owner/name) with lists of entries, got {type(data).__name__}"
        )
    return {
        repo: tuple(
            _entry(entry, f"{path}: {repo}, entry {number}")
            for number, entry in enumerate(_listed(entries, f"{path}: {repo}"), 1)
        )
        for repo, entries in data.items()
    }


def _listed(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigurationError(f"{where}: expected a list, got {type(value).__name__}")
    return value


def _entry(entry: Any, where: str) -> tuple[frozenset[str], PythonRecipe]:
    if not isinstance(entry, dict):
        raise ConfigurationError(f"{where}: expected fields, got {type(entry).__name__}")
    values = dict(entry)
    versions = _strings(values.pop("versions", []), f"{where}, versions")
    known = [spec.name for spec in fields(PythonRecipe)]
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(str(name), ["versions", *known], 1)
            raise ConfigurationError(
                f"{where}: unknown field {name!r}"
                + (f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}")
            )
        if name == "env":
            if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
                raise ConfigurationError(f"{where}, env: expected variables with text in quotes, got {value!r}")
        elif name in ("python", "distribution", "test_command", "test_targets"):
            if not isinstance(value, str):
                raise ConfigurationError(f"{where}, {name}: expected text in quotes, got {value!r}")
            if name == "test_targets" and value not in ("files", "modules"):
                raise ConfigurationError(f"{where}, {name}: expected 'files' or 'modules', got {value!r}")
        else:
            values[name] = _strings(value, f"{where}, {name}")
    return frozenset(versions), PythonRecipe(**values)


def _strings(value: Any, where: str) -> tuple[str, ...]:
    for item in _listed(value, where):
        if not isinstance(item, str):
            raise ConfigurationError(f"{where}: expected text in quotes, got {item!r}")
    return tuple(value)


_PROBE = """\
import os, sys, ensurepip, venv
print("%d.%d.%d" % sys.version_info[:3], sys.base_prefix, os.path.realpath(sys.executable), sep="\\n")
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python that can make virtual environments.

    Attributes:
        version: all three numbers, as in "3.9.18".
        prefix: where it is installed on the host.
        executable: on the host and in a sandbox.
    """

    version: str
    prefix: Path
    executable: Path


@cache
def find_interpreter(version: str = "3") -> Interpreter:
    """The machine's newest interpreter whose version begins with `version`; "3" prefers the system's.

    Raises:
        LayerError: the machine has none, or none with `venv` and `ensurepip`.
    """
    seen: list[str] = []
    for executable in _candidates(version):
        try:
            probe = subprocess.run(
                [executable, "-I", "-c", _PROBE],
                capture_output=True,
                text=True,
                timeout=60,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            seen.append(f"{executable} (does not run)")
            continue
        if probe.returncode != 0:
            seen.append(f"{executable} (without venv or ensurepip)")
            continue
        full, prefix, resolved = probe.stdout.splitlines()
        if f"{full}.".startswith(f"{version}."):
            return Interpreter(full, Path(prefix), Path(resolved))
    without = f"; unfit: {', '.join(seen)}" if seen else ""
    raise LayerError(
        f"no Python {version} on this machine (looked in pyenv, uv, conda, /usr/bin, /usr/local/bin, /opt and PATH)"
        f"{without}. Try: uv python install {version}"
    )


def _candidates(version: str) -> Iterator[Path]:
    """Executables that may be Python `version`, the preferred ones first."""
    minor = ".".join(version.split(".")[:2])
    name = f"python{minor}"
    home = Path("~").expanduser()
    system = [Path("/usr/bin") / name]
    if version == "3":
        yield from (path for path in system if path.exists())
    managed = [
        (Path(os.environ.get("PYENV_ROOT") or home / ".pyenv") / "versions", f"{version}*"),
        (Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or home / ".local/share/uv/python"), f"cpython-{version}*"),
        *((place / "envs", "*") for place in _conda_places(home)),
        *((place.parent, place.name) for place in _conda_places(home)),  # the base environment
        (Path("/opt"), f"python*{version}*"),
    ]
    for directory, pattern in managed:
        for prefix in sorted(directory.glob(pattern), key=_numbers, reverse=True):
            for executable in (prefix / "bin" / name, prefix / "bin" / "python3"):
                if executable.exists():
                    yield executable
                    break
    yield from (path for path in (Path("/usr/local/bin") / name, *system) if path.exists())
    found = shutil.which(name)
    if found:
        yield Path(found)


def _conda_places(home: Path) -> Iterator[Path]:
    """Directories in which conda and similar managers are installed, or keep environments."""
    for variable in ("CONDA_PREFIX", "MAMBA_ROOT_PREFIX"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    for name in ("miniconda3", "miniforge3", "mambaforge", "anaconda3", "micromamba"):
        yield from (home / name, Path("/opt") / name)
    yield from (home / ".conda", Path("/opt/conda"))


def _numbers(path: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", path.name))


def interpreter_layer(interpreter: Interpreter, store: LayerStore) -> Path | None:
    """The layer with a copy of `interpreter` for sandboxes; None if the image "host" has it.

    Raises:
        LayerError: it cannot be copied.
    """
    if interpreter.prefix == Path("/usr"):
        return None

    def copy(layer: Path) -> None:
        target = layer / interpreter.prefix.relative_to("/")
        target.parent.mkdir(parents=True)
        # Not copied: installed packages (pip comes from ensurepip), and archives for linking C programs.
        shutil.copytree(interpreter.prefix, target, symlinks=True, ignore=_not_copied)
        for directory, _, files in os.walk(layer):
            own(Path(directory))
            for name in files:
                own(Path(directory, name))

    return store.get_or_build(("interpreter", interpreter.version, str(interpreter.prefix)), copy)


def _not_copied(directory: str, names: list[str]) -> set[str]:
    if os.path.basename(directory) == "site-packages":
        return set(names)
    return {name for name in names if name.startswith("libpython") and name.endswith(".a")}
