"""Exports tasks of any dataset as folders in Harbor's format, for Harbor, `Harbor-v0` and other users of that format.

    task.toml, instruction.md
    environment/Dockerfile, environment/repository/   the repository at the base commit, one commit without history
    tests/test.sh, tests/files/                       runs the tests on what the agent leaves, and writes the reward
    tests/verdict.py, tests/task.json, tests/parsers/ reads the log as our grading does: with the same parsers
    solution/solve.sh, solution/gold.patch

The verdict follows the rule of `strict` for one run: all of FAIL_TO_PASS and PASS_TO_PASS pass, and the log does not
contradict itself. Tests and what configures the test runner are put back first. What an exported task has not is what
follows a passing run here: negative controls and blind expectations. A folder cannot hide its tests from code that runs
in its container, so a patch that forges a log of the tests' own process earns the reward there.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import shlex
import shutil
import stat
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from swegym_env.errors import ConfigurationError
from swegym_env.grading.evaluation import evaluation_of
from swegym_env.languages import Language, language_of, log_parser
from swegym_env.prepare import prepare_locally
from swegym_env.repo.applying import apply_to_files
from swegym_env.repo.patches import touched_paths
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task

__all__ = ["export_harbor_tasks"]

_INSTRUCTION = """\
{problem}

The repository is in `/testbed`. Change it so that the issue is solved; tests that you have not seen decide. Changes of
tests and of what configures the test runner are not graded.
"""
_TOML = """\
schema_version = "1.4"

[task]
name = {name}
description = {description}

[metadata]
repo = {repo}
base_commit = {commit}

[verifier]
timeout_sec = {timeout_s}

[environment]
network_mode = "no-network"
"""
_BASES = {"python": "python:{version}-bookworm", "c": "buildpack-deps:bookworm"}
_PYTHON = "3.11"  # of Debian 12, which the base images are made of
_DOCKERFILE = """\
FROM {base}
{packages}COPY repository /testbed
WORKDIR /testbed
RUN git config --system --add safe.directory /testbed && git init -q && git add -A -f && \\
    git -c user.name=swegym -c user.email=swegym@localhost commit -q -m base
{setup}"""
_TEST = """\
#!/bin/bash
# Put back the tests, run them, and let verdict.py write the reward.
cd /testbed || exit 1
mkdir -p /logs/verifier
{removals}cp -R /tests/files/. /testbed/
{env}(
{settings}
{{
{tests}
}} >/logs/verifier/test.log 2>&1
)
exec python3 -I /tests/verdict.py $?
"""
_VERDICT = '''\
"""Reads the log of the tests and writes the reward: 1 if every listed test passed, else 0."""

import importlib
import json
import pathlib
import sys

here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here / "parsers"))
task = json.loads((here / "task.json").read_text())
exit_code = int(sys.argv[1])
log = pathlib.Path("/logs/verifier/test.log").read_bytes().decode("utf-8", "surrogateescape")
module = importlib.import_module(task["parser_module"])
parser = module.PARSERS[task["log_parser"]]
tests, problem = parser(log), ""
report = module.runner_report(log, parser)
if report is not None and report.statuses is not None:
    tests = dict(report.statuses)
if task["reports"]:
    passed = sum(status == "PASSED" for status in tests.values())
    if report is None:
        problem = "the test runner did not reach its end"
    elif passed > report.passed_at_most:
        problem = "the log names more passed tests than the test runner counted"
    elif task["one_command"] and (exit_code == 0) != report.success:
        problem = "the test runner's report contradicts its exit code"


def passes(name):
    status = tests.get(name)
    return status != "FAILED" if task["eval_type"] == "fail_only" else status in ("PASSED", "XFAIL")


failed = [name for kind in ("FAIL_TO_PASS", "PASS_TO_PASS") for name in task[kind] if not passes(name)]
resolved = not problem and not failed
place = pathlib.Path("/logs/verifier")
(place / "verdict.json").write_text(json.dumps({"resolved": resolved, "problem": problem, "failed": failed}))
(place / "reward.txt").write_text(f"{int(resolved)}\\n")
'''
_SOLVE = """\
#!/bin/bash
cd /testbed && git apply --whitespace=nowarn /solution/gold.patch
"""
# What a parser's module imports of the rest of the package, where the package is not installed.
_STUB = '''\
"""What the parsers beside this file need of `swegym_env.languages`."""

from dataclasses import dataclass

LogParser = object


@dataclass(frozen=True)
class RunnerReport:
    passed_at_most: int
    success: bool
    statuses: object = None
'''


def export_harbor_tasks(
    tasks: Iterable[Task],
    output: Path,
    *,
    repos: str | os.PathLike[str] | None = None,
    store: LayerStore | None = None,
    force: bool = False,
) -> list[Path]:
    """Write a folder for each task into `output`; a folder appears only when it is whole.

    Args:
        repos: where repositories come from, see `repo.repositories.repository_layer`.
        force: replace existing folders.
    Returns:
        The folders, in the order of the tasks.
    Raises:
        ConfigurationError: a folder exists already or cannot be written, or a task has no equivalent: its repository
            is installed by the table of set-up commands, and its row names no image; or its log parser is none of ours.
        InfrastructureError: the repository is not there.
    """
    store = store or LayerStore()
    written: list[Path] = []
    for task in tasks:
        folder = output / task.instance_id
        if os.path.lexists(folder) and not force:
            raise ConfigurationError(f"--output: {folder} exists already. Try: --force, or another folder")
        try:
            output.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=".export-", dir=output))
            try:
                whole = scratch / task.instance_id
                _write_task(task, whole, repos, store)
                if os.path.lexists(folder):
                    shutil.rmtree(folder)
                whole.rename(folder)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        except OSError as error:
            raise ConfigurationError(f"--output: {folder}: cannot be written: {error.strerror or error}") from error
        written.append(folder)
    return written


def _write_task(task: Task, folder: Path, repos: str | os.PathLike[str] | None, store: LayerStore) -> None:
    language = language_of(task)
    workspace = prepare_locally(task, repos=repos, store=store, install=False)
    # In its own image the row's script runs as it is.
    evaluation = evaluation_of(replace(task, image=task.official_image or task.image), workspace.test_command)
    quoted = {
        "name": json.dumps(f"{task.repo.split('/')[0]}/{task.instance_id}"),
        "description": json.dumps(task.problem_statement.strip().partition("\n")[0][:200]),
        "repo": json.dumps(task.repo),
        "commit": json.dumps(task.base_commit),
    }
    _put(folder / "task.toml", _TOML.format(**quoted, timeout_s=f"{task.test_timeout_s + 60:.1f}"))
    _put(folder / "instruction.md", _INSTRUCTION.format(problem=task.problem_statement.strip()))
    _put(folder / "environment/Dockerfile", _dockerfile(task, language))
    if not task.official_image:
        _copy_tree(workspace.base, folder / "environment/repository")

    before, after = apply_to_files(task.test_patch, workspace.base)
    allowed = touched_paths(task.patch)
    for path in _files_of(workspace.base):
        if path not in before and path not in allowed and language.is_protected(path, workspace.base, evaluation.tests):
            _copy(workspace.base / path, folder / "tests/files" / path)
    (folder / "tests/files").mkdir(parents=True, exist_ok=True)
    for path, (mode, content) in after.items():
        _put(folder / "tests/files" / path, content, mode & 0o777)
    removals = sorted(before.keys() - after.keys())
    script = _TEST.format(
        removals=f"rm -f -- {shlex.join(removals)}\n" if removals else "",
        env="".join(f"export {name}={shlex.quote(value)}\n" for name, value in language.deterministic_env.items()),
        settings=evaluation.settings or ":",
        tests=evaluation.tests,
    )
    _put(folder / "tests/test.sh", script, 0o755)
    _put(folder / "tests/verdict.py", _VERDICT)
    _put_parser(task, language, evaluation.tests, folder / "tests")
    _put(folder / "solution/solve.sh", _SOLVE, 0o755)
    _put(folder / "solution/gold.patch", task.patch)


def _dockerfile(task: Task, language: Language) -> str:
    if task.official_image:
        place = task.image_repository
        link = "" if place == "/testbed" else f"RUN ln -sfn {shlex.quote(place)} /testbed\n"
        return f"FROM {task.official_image.removeprefix('docker://')}\n{link}WORKDIR /testbed\n"
    if language.name not in _BASES or (not task.setup and not task.files and language.find_recipe(task) is not None):
        raise ConfigurationError(
            f"{task.instance_id}: {task.repo} is installed by set-up commands for this machine, which have no "
            "equivalent in a Dockerfile. Try: rows with an official image"
        )
    base = _BASES[language.name].format(version=task.python or _PYTHON)
    apt = "apt-get update && apt-get install -y --no-install-recommends python3"
    return _DOCKERFILE.format(
        base=base,
        packages="" if language.name == "python" else f"RUN {apt}\n",
        setup="".join(f"RUN {command}\n" for command in task.setup),
    )


def _put_parser(task: Task, language: Language, command: str, folder: Path) -> None:
    """The language's module of log parsers, with what it imports of this package."""
    parser = log_parser(task)
    name = next((name for name, each in language.parsers.items() if each is parser), None)
    logs = f"{type(language).__module__}.logs"
    module = importlib.import_module(logs) if importlib.util.find_spec(logs) else None
    if module is None or name not in getattr(module, "PARSERS", ()) or not hasattr(module, "runner_report"):
        raise ConfigurationError(f"{task.instance_id}: its log parser ({task.log_parser!r}) cannot leave this package")
    place = folder / "parsers"
    for each in _modules_of(module):
        path = place / (each.__name__.replace(".", "/") + ".py")
        _put(path, Path(str(each.__file__)).read_text(encoding="utf-8"))
        for parent in path.relative_to(place).parents:
            if parent.parts and not (place / parent / "__init__.py").exists():
                _put(place / parent / "__init__.py", _STUB if parent.as_posix() == "swegym_env/languages" else "")
    about = {
        "instance_id": task.instance_id,
        "parser_module": module.__name__,
        "log_parser": name,
        "reports": bool(language.reporting_runners.search(command)) and task.repo not in language.nested_logs,
        "one_command": len(command.splitlines()) == 1,
        "eval_type": task.eval_type,
        "FAIL_TO_PASS": list(task.fail_to_pass),
        "PASS_TO_PASS": list(task.pass_to_pass),
    }
    _put(folder / "task.json", json.dumps(about, indent=1) + "\n")


def _modules_of(module: ModuleType) -> list[ModuleType]:
    """A module and those of `swegym_env.languages` whose names it has."""
    found = {module.__name__: module}
    for value in vars(module).values():
        other = inspect.getmodule(value)
        if other is not None and re.match(r"swegym_env\.languages\.", other.__name__):
            found[other.__name__] = other
    return list(found.values())


def _files_of(root: Path) -> list[str]:
    """The paths of the files of a repository, without git's own."""
    found = []
    for place, names, files in os.walk(root):
        if Path(place) == root and ".git" in names:
            names.remove(".git")
        found += [os.path.relpath(os.path.join(place, name), root) for name in files]
    return sorted(found)


def _copy_tree(root: Path, target: Path) -> None:
    for path in _files_of(root):
        _copy(root / path, target / path)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(os.readlink(source))
    else:
        _put(target, source.read_bytes(), stat.S_IMODE(source.stat().st_mode) | 0o644)


def _put(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content)
    path.chmod(mode)
