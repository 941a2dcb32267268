"""How Python projects are installed: the table of set-up commands, and their steps.

Tasks are installed with an interpreter of the version in the table (`interpreters`) into a virtual environment at
`/opt/testbed`.

The shipped table is `setup_commands.yaml` beside this file. Entries of the user's own table, named by
`$SWEGYM_SETUP_COMMANDS`, take precedence.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from swegym_env.errors import ConfigurationError, LayerError
from swegym_env.files import read_yaml
from swegym_env.languages import Installation, Toolchain
from swegym_env.languages.debian import PROGRAMS, SYSTEM_PATH, programs_layer, why_missing
from swegym_env.languages.python.interpreters import (
    Interpreter,
    fetch_interpreter,
    find_interpreter,
    interpreter_layer,
    shared_interpreter,
)
from swegym_env.repo.patches import runnable_test_files
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task

__all__ = ["SHIPPED_TABLE", "PythonRecipe", "find_recipe", "read_table"]

SHIPPED_TABLE = Path(__file__).with_name("setup_commands.yaml")
_MODULES = Path(__file__).with_name("installed")
TABLE_VARIABLE = "SWEGYM_SETUP_COMMANDS"
ENVIRONMENT = "/opt/testbed"

# Old packages cannot be built with current tools. These are the last versions that can build packages for each Python.
_BUILD_TOOLS = {
    "3.5": ("pip==20.3.4", "setuptools==50.3.2", "wheel==0.37.1"),
    "3.6": ("pip==21.3.1", "setuptools==59.6.0", "wheel==0.37.1"),
    "3.7": ("pip==24.0", "setuptools==68.0.0", "wheel==0.42.0"),
}
_BUILD_TOOLS_LATER = ("pip==24.0", "setuptools==69.5.1", "wheel==0.43.0")


_EXTENSION_LIBRARIES = f"{ENVIRONMENT}/lib/extensions"
# The sources are in /testbed or, for matplotlib, in /testbed/lib. Files that the repository has are not replaced. A
# clone without large files lacks astropy's table of the Earth's rotation (eopc04), and astropy then cannot be imported.
_PUT_EXTENSIONS = f"""\
wheel=/tmp/extensions && rm -rf $wheel && python -m pip install --no-deps --no-compile --target $wheel {{release}} &&
cd $wheel && sources=/testbed && first=$(ls -d */ | grep -v -e info/ -e libs/ -e __pycache__ -e bin/ | head -n 1) &&
if [ -d /testbed/lib/$first ]; then sources=/testbed/lib; fi && mkdir -p {_EXTENSION_LIBRARIES} &&
find . -path '*libs/*.so*' -exec cp {{{{}}}} {_EXTENSION_LIBRARIES} \\; &&
find $first '(' -name '*.so' -not -path '*libs/*' -o -name _version.py -o -name matplotlibrc -o -name 'eopc04*' ')' \\
  -exec cp -n --parents {{{{}}}} $sources \\; &&
packages=$(python -c 'import site; print(site.getsitepackages()[0])') &&
cp -r *.dist-info $packages && echo $sources > $packages/testbed.pth"""


@dataclass(frozen=True)
class PythonRecipe:
    """How one repository is installed and its tests are run: an entry of the table.

    Attributes:
        python: version of the interpreter, "3.9"; empty for any.
        instead: other versions with which the published lists are right too, for a machine without `python`.
        build_tools: what pip installs before anything else; None for the defaults of the interpreter.
        packages: requirements for pip, installed once for all commits of a version.
        requirements: files of requirements in the repository, installed once for a version; missing ones are skipped.
        commands: bash commands in `/testbed` that install the repository: once for the version, and again for each base
            commit.
        extensions: a release on the index, "scikit-learn==0.22", for a repository that has to be compiled: the
            release's compiled extensions and generated files are copied beside the sources, and nothing is compiled.
        modules: files of `installed/` beside this module, without their suffix, that the environment's Python imports
            when it starts.
        programs: programs that the tests call and the machine may lack → the Debian packages that each needs,
            separated by blanks.
        instance_programs: instance → further programs, of tests that the lists of all other instances leave out.
        distribution: name of the package if it is not the repository's: setuptools_scm gets the version under it.
        env: variables of the commands and of every sandbox of the task.
        test_command: runs the tests that are appended to it.
        test_targets: how the tests are named: "files", or "modules" (`a.b` for `tests/a/b.py`).
    """

    python: str = ""
    instead: tuple[str, ...] = ()
    build_tools: tuple[str, ...] | None = None
    packages: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    extensions: str = ""
    modules: tuple[str, ...] = ()
    programs: Mapping[str, str] = field(default_factory=dict)
    instance_programs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    distribution: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    test_command: str = ""
    test_targets: str = "files"

    def toolchain(self) -> Toolchain:
        """See `Recipe.toolchain`; nothing is fetched."""
        problems = []
        for version in (self.python or "3", *self.instead):
            try:
                return Toolchain(f"Python {find_interpreter(version).version}", why_missing(self.programs))
            except LayerError as error:
                problems.append(str(error))
        return Toolchain(f"Python {self.python or '3'}", problems[0])

    def _interpreter(self, store: LayerStore) -> Interpreter:
        """The interpreter of a shared store, that of the machine, or a fetched one. Raises LayerError."""
        problems = []
        if self.python:  # a recipe without a version uses the system's interpreter
            for version in (self.python, *self.instead):
                if (offered := shared_interpreter(version, store)) is not None:
                    return offered
        for version in (self.python or "3", *self.instead):
            try:
                return find_interpreter(version)
            except LayerError as error:
                problems.append(error)
        try:
            return fetch_interpreter(self.python or "3")
        except LayerError as error:
            raise LayerError(f"{problems[0]}. {error}") from error

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
            interpreter = self._interpreter(store)
            version = interpreter.version
            copied = interpreter_layer(interpreter, store)
            programs = programs_layer(self.programs, store)
            layers = tuple(layer for layer in (copied, programs) if layer)
            path = f"{ENVIRONMENT}/bin:{PROGRAMS}/bin:{SYSTEM_PATH}" if programs else f"{ENVIRONMENT}/bin:{SYSTEM_PATH}"
            env = {"PATH": path, "VIRTUAL_ENV": ENVIRONMENT} | env
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
        steps += map(_module_step, self.modules)
        commands = self.commands
        if self.extensions:
            commands = (_PUT_EXTENSIONS.format(release=shlex.quote(self.extensions)), *commands)
            env["LD_LIBRARY_PATH"] = _EXTENSION_LIBRARIES
        # How the repository is tested does not change the installed files, so it is not part of the key.
        installed = self.packages, self.requirements, self.build_tools, commands, *map(_module_step, self.modules)
        return Installation(layers, env, tuple(steps), commands, (version, repr(installed)))


def _module_step(name: str) -> str:
    """The command that installs a module of `installed/`."""
    text = (_MODULES / f"{name}.py").read_text(encoding="utf-8")
    return (
        "packages=$(python -c 'import site; print(site.getsitepackages()[0])') && "
        f"printf %s {shlex.quote(text)} > $packages/{name}.py && echo 'import {name}' > $packages/{name}.pth"
    )


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
                further = recipe.instance_programs.get(task.instance_id)
                return replace(recipe, programs={**recipe.programs, **further}) if further else recipe
    return None


@lru_cache(maxsize=8)
def read_table(path: Path) -> Mapping[str, tuple[tuple[frozenset[str], PythonRecipe], ...]]:
    """Read a table: repository → entries, each with the versions that it is for (none: all) and the recipe.

    Raises:
        ConfigurationError: it cannot be read, or an entry has an unknown or ill-typed field.
    """
    import yaml

    try:
        data = read_yaml(path)
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
        if name in ("env", "programs"):
            what = "variables" if name == "env" else "names of programs"
            _check_texts(value, what, f"{where}, {name}")
        elif name == "instance_programs":
            if not isinstance(value, dict):
                raise ConfigurationError(f"{where}, {name}: expected instances with programs, got {value!r}")
            for instance, programs in value.items():
                _check_texts(programs, "names of programs", f"{where}, {name}, {instance}")
        elif name in ("python", "extensions", "distribution", "test_command", "test_targets"):
            if not isinstance(value, str):
                raise ConfigurationError(f"{where}, {name}: expected text in quotes, got {value!r}")
            if name == "test_targets" and value not in ("files", "modules"):
                raise ConfigurationError(f"{where}, {name}: expected 'files' or 'modules', got {value!r}")
        else:
            values[name] = _strings(value, f"{where}, {name}")
    return frozenset(versions), PythonRecipe(**values)


def _check_texts(value: Any, what: str, where: str) -> None:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ConfigurationError(f"{where}: expected {what} with text in quotes, got {value!r}")


def _strings(value: Any, where: str) -> tuple[str, ...]:
    for item in _listed(value, where):
        if not isinstance(item, str):
            raise ConfigurationError(f"{where}: expected text in quotes, got {item!r}")
    return tuple(value)
