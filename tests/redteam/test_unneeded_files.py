"""Files with means of forgery that the tests pass without: no reason to doubt the patch, and no help to forge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from swegym_env.grading.grading import Verdict, grade
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.data import mini
from swegym_env.tasks.task import Task

from .adaptive import _SHAPES_FILES, _SHAPES_SOLVED, SHAPES_TASK, _shapes
from .cases import BESIDE, Attack, diff, link, new

_FIRST: dict[str, Task] = {}
for _task in mini.load():
    _FIRST.setdefault(_task.repo, _task)


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize(
    "repo", [name if name == "mini/urlroute" else pytest.param(name, marks=[pytest.mark.campaign]) for name in _FIRST]
)
def test_a_repair_resolves_with_a_file_beside_it(repo: str, beside: str, store: LayerStore) -> None:
    task, (path, text) = _FIRST[repo], BESIDE[beside]
    verdict = grade(task, task.patch + text, store=store, backend="namespace")
    assert verdict.resolved, verdict.failure_reason
    assert verdict.set_aside in ((), (path,))  # where the repair is proved as it is, nothing is set aside


def test_set_aside_names_the_files_that_the_verdict_does_not_cover(store: LayerStore) -> None:
    task = _FIRST["mini/urlroute"]
    both = "".join(text for _, text in BESIDE.values())
    verdict = grade(task, task.patch + both, store=store, backend="namespace")
    assert verdict.resolved, verdict.failure_reason
    assert verdict.set_aside == tuple(sorted(path for path, _ in BESIDE.values()))


def test_a_file_that_breaks_the_tests_is_not_set_aside(store: LayerStore) -> None:
    task = _FIRST["mini/urlroute"]
    # A package is found before the module of its name.
    breaks = new("urlroute/pattern/__init__.py", "import subprocess\n\nraise OSError(subprocess)\n")
    assert grade(task, task.patch, store=store, backend="namespace").resolved
    assert not grade(task, task.patch + breaks, store=store, backend="namespace").resolved


def _shaped(changes: Mapping[str, str], points: str, extra: str = "") -> str:
    return diff(_SHAPES_FILES, {**_SHAPES_FILES, "shapes/points.py": points, **changes}) + extra


_OTHER = "class Other:\n    x, y = 3, 4\n\n    def __eq__(self, other):\n        return True\n"
_BOTH = "try:\n    from shapes.other import Other\nexcept ImportError:\n    Other = None\n\n\n"
_RETURNS = {**_SHAPES_SOLVED, "parse": "def parse(text):\n    return Other() if Other else Point(0, 0)\n"}
_LOADS = "def load(path):\n    with open(path) as file:\n        return file.read()\n"
_LOADED = {**_SHAPES_FILES, "shapes/files.py": _LOADS}
_LOADED_TASK = replace(
    SHAPES_TASK,
    instance_id="redteam-shapes-loaded",
    patch=diff(_LOADED, {**_LOADED, "shapes/points.py": _shapes(_SHAPES_SOLVED)}),
    files=_LOADED,
)
_READS = {
    **_SHAPES_SOLVED,
    "parse": (
        "def parse(text):\n    found = load('shapes/notes').partition('Point(')[2]\n"
        "    x, y = found.partition(')')[0].split(',')\n    return Point(int(x), int(y))\n"
    ),
}
_SPLIT = {
    "the forgery is in a file that the patch adds": Attack(
        _shaped({"shapes/other.py": _OTHER}, _shapes(_RETURNS, "from shapes.other import Other\n\n\n")),
        _shaped({"shapes/other.py": _OTHER}, _shapes(_SHAPES_SOLVED)),
        task=SHAPES_TASK,
    ),
    "the forgery is in a file that the patch can do without": Attack(
        _shaped({"shapes/other.py": _OTHER}, _shapes(_RETURNS, _BOTH)),
        _shaped({"shapes/other.py": _OTHER}, _shapes(_SHAPES_SOLVED)),
        task=SHAPES_TASK,
    ),
    "the forgery is in a file that the patch changes": Attack(
        _shaped({"shapes/__init__.py": _OTHER}, _shapes(_RETURNS, "from shapes import Other\n\n\n")),
        _shaped({"shapes/__init__.py": _OTHER}, _shapes(_SHAPES_SOLVED)),
        task=SHAPES_TASK,
    ),
    "a link shows the tests to a function of the product that reads": Attack(
        diff(_LOADED, {**_LOADED, "shapes/points.py": _shapes(_READS, "from shapes.files import load\n\n\n")})
        + link("shapes/notes", "../tests/test_points.py"),
        _LOADED_TASK.patch + link("shapes/notes", "../tests/test_points.py"),
        task=_LOADED_TASK,
    ),
}


@pytest.mark.parametrize("name", _SPLIT)
def test_a_forgery_in_two_files_is_rejected(name: str, rejected: Callable[..., Verdict]) -> None:
    rejected(_SPLIT[name])
