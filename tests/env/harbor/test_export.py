"""Exported tasks give the verdicts of their originals, when they are played as Harbor's."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.root_file_system import make_root
from swegym_env.cli.main import main
from swegym_env.errors import ConfigurationError
from swegym_env.grading.grading import grade
from swegym_env.harbor.export import export_harbor_tasks
from swegym_env.harbor.state import grade_state, solve, start_task
from swegym_env.harbor.tasks import HarborTask, load_harbor_tasks
from swegym_env.languages import log_parser
from swegym_env.sandbox.images.store import settle
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.data import mini, mini_c
from swegym_env.tasks.task import Task
from tests import places
from tests.env.calc import FILES, calc_task
from tests.env.harbor.conftest import PROGRAMS

_NOT_NEEDED = ("test", "site-packages", "dist-packages", "__pycache__", "idlelib", "ensurepip", "*.a", "config-*")


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A working directory whose bases have the `python:3.11-bookworm` that exported tasks ask for: this machine's."""
    with places.public_directory("exported") as folder, pytest.MonkeyPatch.context() as patch:
        root = folder / "bases/python:3.11-bookworm"
        make_root(root, (*PROGRAMS, "git", "python3", "sed"), more=("root",))
        (root / "usr").unlink()
        (root / "usr").mkdir()
        (root / "bin").rename(root / "usr/bin")
        (root / "bin").symlink_to("usr/bin")
        asked = "import sysconfig; print(sysconfig.get_paths()['stdlib'])"
        python = shutil.which("python3", path="/usr/bin:/bin")
        assert python is not None
        library = subprocess.run([python, "-I", "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
        shutil.copytree(library, root / library[1:], ignore=shutil.ignore_patterns(*_NOT_NEEDED))
        settle(root)
        patch.setenv("SWEGYM_BASE_IMAGES", str(folder / "bases"))
        patch.setenv("SWEGYM_WORKDIR", str(folder / "work"))
        yield folder


@pytest.fixture
def exported(place: Path, tmp_path: Path) -> HarborTask:
    """The task `calc-1` in Harbor's format."""
    (folder,) = export_harbor_tasks([calc_task()], tmp_path)
    return load_harbor_tasks(folder)[0]


def reward_after(task: HarborTask, commands: str) -> float:
    sandbox = start_task(task, backend="namespace")
    try:
        assert sandbox.run(commands).exit_code == 0
        return grade_state(task, sandbox, backend="namespace").reward
    finally:
        sandbox.close()


def test_an_exported_task_of_mini_gives_the_same_verdicts(place: Path, tmp_path: Path) -> None:
    chosen = [task for task in mini.load() if task.instance_id in ("mini__lrucache-001", "mini__jsonpatch-002")]
    assert len(chosen) == 2
    export_harbor_tasks(chosen, tmp_path / "out")
    for original, task in zip(chosen, load_harbor_tasks(tmp_path / "out"), strict=True):
        assert task.instance_id == original.instance_id
        sandbox = start_task(task, backend="namespace")
        try:
            untouched = grade_state(task, sandbox, backend="namespace")
            assert solve(task, sandbox) == 0
            solved = grade_state(task, sandbox, backend="namespace")
        finally:
            sandbox.close()
        assert (untouched.reward, solved.reward) == (0.0, 1.0)
        assert grade(original, original.patch, backend="namespace").resolved


def test_the_agent_finds_a_repository_without_the_hidden_tests(exported: HarborTask) -> None:
    sandbox = start_task(exported, backend="namespace")
    try:
        assert sandbox.run("git -C /testbed status --porcelain; git -C /testbed log --format=%s").output == "base\n"
        assert sandbox.run("cat calc/add.py").output == FILES["calc/add.py"]
        assert sandbox.run("grep -rq 'def test_add(' .").exit_code == 1
        assert sandbox.run("ls /tests /solution").exit_code != 0
    finally:
        sandbox.close()


@pytest.mark.parametrize(
    ("commands", "reward"),
    [
        ("sed -i 's/a - b/b + a/' calc/add.py", 1.0),
        ("sed -i 's/a - b/3 if b else 0/' calc/add.py", 0.0),  # the new test passes, an old one does not
        ("printf 'raise SystemExit(0)\\n' >> calc/add.py", 0.0),  # the runner does not reach its end
        ("echo 'def add(a, b): return 3' > calc/add.py", 0.0),
        ("sed -i 's/assertEqual/assertTrue/' tests/test_add.py", 0.0),  # is put back
        ("printf 'test_add (tests.test_add.AddTest.test_add) ... ok\\n' > README", 0.0),
    ],
)
def test_verdicts_follow_the_tests(exported: HarborTask, commands: str, reward: float) -> None:
    assert reward_after(exported, commands) == reward


def test_a_log_that_names_more_tests_than_ran_earns_nothing(exported: HarborTask) -> None:
    forged = "print('test_add (tests.test_add.AddTest.test_add) ... ok\\n' * 3)"
    assert reward_after(exported, f'echo "{forged}" >> calc/add.py; sed -i s/-/,/ calc/add.py') == 0.0


@pytest.mark.parametrize("dataset", [mini, mini_c])
def test_the_parsers_that_leave_read_as_those_that_stay(dataset: object, place: Path, tmp_path: Path) -> None:
    task = next(iter(dataset.load()))  # type: ignore[attr-defined]
    (folder,) = export_harbor_tasks([task], tmp_path)
    log = grade(task, task.patch, backend="namespace").log
    program = (
        "import importlib, json, sys; sys.path.insert(0, sys.argv[1]); task = json.load(open(sys.argv[2]))\n"
        "module = importlib.import_module(task['parser_module']); parser = module.PARSERS[task['log_parser']]\n"
        "report = module.runner_report(log := sys.stdin.read(), parser)\n"
        "print(json.dumps([parser(log), report and [report.passed_at_most, report.success]]))"
    )
    command = [sys.executable, "-I", "-S", "-c", program, folder / "tests/parsers", folder / "tests/task.json"]
    ran = subprocess.run(command, input=log, capture_output=True, text=True, check=True)
    tests, report = json.loads(ran.stdout)
    assert tests == log_parser(task)(log)
    assert set(task.fail_to_pass) <= tests.keys()
    assert report == [len(tests), True]


def row(**changes: object) -> Task:
    """A row whose repository would be installed by the table of set-up commands."""
    return dataclasses.replace(
        calc_task(), files={}, repo="pallets/flask", version="2.3", base_commit="0" * 40, **changes
    )  # type: ignore[arg-type]


def test_what_has_no_equivalent_is_refused_in_one_line(place: Path, tmp_path: Path, store: LayerStore) -> None:
    (tmp_path / "clones/pallets+flask").mkdir(parents=True)
    git = ["git", "-C", str(tmp_path / "clones/pallets+flask"), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "clones/pallets+flask/flask.py").write_text("x = 1\n")
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "base"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    task = dataclasses.replace(row(), base_commit=commit, test_patch="")
    with pytest.raises(ConfigurationError, match="no equivalent in a Dockerfile"):
        export_harbor_tasks([task], tmp_path / "out", repos=tmp_path / "clones", store=store)
    assert list((tmp_path / "out").iterdir()) == []
    imaged = dataclasses.replace(task, official_image="docker://swebench/flask:1", image_repository="/app")
    (folder,) = export_harbor_tasks([imaged], tmp_path / "out", repos=tmp_path / "clones", store=store)
    text = (folder / "environment/Dockerfile").read_text()
    assert text == "FROM swebench/flask:1\nRUN ln -sfn /app /testbed\nWORKDIR /testbed\n"
    assert not (folder / "environment/repository").exists()


def test_the_command_writes_folders_and_replaces_none(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["export", "mini", "--format", "harbor", "--output", str(tmp_path / "out"), "--select", ":2"]
    assert main(arguments) == 0
    names = capsys.readouterr().out.split()
    assert [task.instance_id for task in load_harbor_tasks(tmp_path / "out")] == sorted(names)
    assert main(arguments) == 2
    assert "exists already. Try: --force" in capsys.readouterr().err
    assert main([*arguments, "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["written"] == names
    assert main(["export", "mini", "--repos", "clones", "--output", str(tmp_path / "rows")]) == 2
