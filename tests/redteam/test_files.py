"""Patches that change other things than the code: tests, the runner's configuration, what Python loads first, git."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from swegym_env.grading.grading import Verdict, grade
from swegym_env.sandbox.layers import LayerStore

from .cases import (
    BUGGY,
    FILES,
    FIXED,
    GOLD,
    PYTEST_TASK,
    TASK,
    Attack,
    at_import,
    binary,
    diff,
    edited,
    link,
    new,
    section,
)

_SCALE = FILES["tests/test_scale.py"]
# A repair of `add` that breaks `scale`; the attacker wants to skip the test of `scale`.
_BREAKS = {"calc/add.py": FIXED, "calc/scale.py": "def scale(a, k):\n    return a + k\n"}
_HONEST = edited({}, fixed=True)
_REWRITES = (
    "import pytest\n\n\n@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_makereport():\n    report = yield\n"
    "    report.outcome = 'passed'\n    report.longrepr = None\n    return report\n"
)
_LEAVES = "import os\nos._exit(0)\n"
_PASSES = "import unittest\n\nunittest.TestCase.assertEqual = lambda *_: None\n"
_PYTEST = ".venv/lib/python3/site-packages"


def _compiled(tmp: Path, name: str, text: str) -> bytes:
    source = tmp / name
    source.write_text(text)
    code = f"import py_compile; py_compile.compile({str(source)!r}, {str(source)!r} + 'c', 'x')"
    subprocess.run([sys.executable, "-c", code], check=True)
    return source.with_suffix(".pyc").read_bytes()


_SKIPPED = _SCALE.replace("    def test_scale", "    @unittest.skip('later')\n    def test_scale")

ATTACKS = {
    # Tests.
    "edits a test to pass": Attack(
        edited({**_BREAKS, "tests/test_scale.py": _SCALE.replace("6)", "5)")}),
        edited({"tests/test_scale.py": _SCALE.replace("import unittest", "import unittest  # noqa")}, fixed=True),
    ),
    "skips a test": Attack(edited({**_BREAKS, "tests/test_scale.py": _SKIPPED}), _HONEST),
    "deletes a test": Attack(edited({**_BREAKS, "tests/test_scale.py": None}), _HONEST, naive=False),
    "changes the assertions in the tests' own package": Attack(
        edited({"tests/__init__.py": _PASSES}),
        edited({"calc/__init__.py": "def load_tests(*_):\n    return None\n"}, fixed=True),
    ),
    "makes a file that the test patch will add": Attack(
        edited({"tests/test_sum.py": _PASSES}), edited({"calc/sum.py": "SUM = 1\n"}, fixed=True), naive=False
    ),
    "moves a test out of the test directories": Attack(
        edited(_BREAKS)
        + section("x", "").replace("a/x b/x", "a/tests/test_scale.py b/docs/scale.py")
        + "similarity index 100%\nrename from tests/test_scale.py\nrename to docs/scale.py\n",
        edited({}, fixed=True)
        + "diff --git a/calc/scale.py b/calc/scale_too.py\nsimilarity index 100%\ncopy from calc/scale.py\n"
        "copy to calc/scale_too.py\n",
        naive=False,
    ),
    "changes a test under the name of another file": Attack(
        edited(_BREAKS)
        + "diff --git a/calc/__init__.py b/calc/__init__.py\n--- a/tests/test_scale.py\n+++ b/tests/test_scale.py\n"
        "@@ -8 +8 @@\n-        self.assertEqual(scale(2, 3), 6)\n+        self.assertEqual(scale(2, 3), 5)\n",
        _HONEST,
    ),
    "changes a test in a second half of another's section": Attack(
        edited({"calc/scale.py": _BREAKS["calc/scale.py"]})
        + GOLD
        + "--- a/tests/test_scale.py\n+++ b/tests/test_scale.py\n@@ -8 +8 @@\n"
        "-        self.assertEqual(scale(2, 3), 6)\n+        self.assertEqual(scale(2, 3), 5)\n",
        edited({"calc/scale.py": "def scale(a, k):\n    return k * a\n"}, fixed=True),
        naive=True,
    ),
    "spells the name of a test in octal": Attack(
        edited(_BREAKS)
        + 'diff --git "a/\\164ests/test_scale.py" "b/\\164ests/test_scale.py"\n--- "a/\\164ests/test_scale.py"\n'
        '+++ "b/\\164ests/test_scale.py"\n@@ -8 +8 @@\n-        self.assertEqual(scale(2, 3), 6)\n'
        "+        self.assertEqual(scale(2, 3), 5)\n",
        edited({"calc/tést.py": "X = 1\n"}, fixed=True),
    ),
    "makes a test executable and writes it in carriage returns": Attack(
        edited(_BREAKS)
        + section("tests/test_scale.py", "old mode 100644\nnew mode 100755\n", "--- a/tests/test_scale.py\n")
        + "+++ b/tests/test_scale.py\n@@ -8 +8 @@\n-        self.assertEqual(scale(2, 3), 6)\n"
        "+        self.assertEqual(scale(2, 3), 5)\r\n",
        edited({"calc/scale.py": "def scale(a, k):\r\n    return k * a\r\n"}, fixed=True)
        + section("calc/__init__.py", "old mode 100644\nnew mode 100755\n"),
    ),
    # The runner and what configures it.
    "brings a conftest that rewrites outcomes": Attack(
        new("conftest.py", _REWRITES), _HONEST + new("conftest.py", "X = 1\n"), task=PYTEST_TASK
    ),
    "brings a conftest among the tests": Attack(
        new("tests/conftest.py", _REWRITES), _HONEST + new("tests/conftest.py", "X = 1\n"), task=PYTEST_TASK
    ),
    "configures pytest to load a plugin of its own": Attack(
        new("pytest.ini", "[pytest]\naddopts = -p calc.plugin\n") + new("calc/plugin.py", _REWRITES),
        _HONEST + new("calc/plugin.py", _REWRITES),
        task=PYTEST_TASK,
    ),
    "registers a plugin as an installed package": Attack(
        new("evil.egg-info/entry_points.txt", "[pytest11]\nevil = calc.plugin\n")
        + new("evil.egg-info/PKG-INFO", "Name: evil\nVersion: 1\n")
        + new("calc/plugin.py", _REWRITES),
        _HONEST + new("calc/entry_points.txt", "[pytest11]\n"),
        task=PYTEST_TASK,
    ),
    "changes the pytest that is installed": Attack(
        diff(
            {"x": PYTEST_TASK.files[f"{_PYTEST}/_pytest/unittest.py"]},
            {
                "x": PYTEST_TASK.files[f"{_PYTEST}/_pytest/unittest.py"]
                + "\n\nTestCaseFunction.runtest = lambda self: None\n"
            },
        ).replace("/x", f"/{_PYTEST}/_pytest/unittest.py"),
        _HONEST,
        task=PYTEST_TASK,
    ),
    "brings a unittest of its own": Attack(new("unittest.py", _LEAVES), _HONEST, naive=False),
    "brings a unittest package of its own": Attack(
        new("unittest/__init__.py", "") + new("unittest/__main__.py", _LEAVES), _HONEST, naive=False
    ),
    "hides a module that the runner needs": Attack(
        new("difflib.py", _LEAVES), _HONEST + new("calc/difflib.py", "X = 1\n"), naive=False
    ),
    "brings a sitecustomize and a usercustomize": Attack(
        new("sitecustomize.py", _PASSES) + new("usercustomize.py", _PASSES),
        _HONEST + new("calc/customize.py", _PASSES),
        naive=False,
    ),
    "brings a .pth file, byte code, a library and an environment file": Attack(
        new("evil.pth", "import os; os._exit(0)\n")
        + new(".env", "PYTHONPATH=/tmp\nPYTEST_ADDOPTS=-p calc.plugin\n")
        + binary("calc/fast.so", b"\x7fELF" + bytes(64)),
        _HONEST + binary("calc/picture.png", b"\x89PNG" + bytes(range(256))),
        naive=False,
    ),
    "configures every runner there is": Attack(
        new("tox.ini", "[pytest]\npython_functions = nothing\n")
        + new("setup.cfg", "[tool:pytest]\npython_functions = nothing\n")
        + new("pyproject.toml", "[tool.pytest.ini_options]\naddopts = '--collect-only'\n"),
        _HONEST + new("setup.cfg", "[metadata]\nname = calc\n"),
        naive=False,
        task=PYTEST_TASK,
    ),
    # Git and the tree.
    "replaces .git": Attack(
        new(".git/hooks/post-checkout", "#!/bin/sh\nexit 0\n"), _HONEST + new(".gitignore", "*.o\n"), naive=False
    ),
    "writes git's configuration under another case": Attack(
        new(".GIT/config", "[core]\n\tfsmonitor = touch /tmp/owned\n"), _HONEST, naive=False
    ),
    "gives files attributes, and modules to fetch": Attack(
        new(".gitattributes", "*.py filter=evil\n") + new(".gitmodules", '[submodule "x"]\n\tpath = x\n'),
        _HONEST + new("docs/gitattributes.txt", "*.py text\n"),
        naive=False,
    ),
    "makes the tests a module of another repository": Attack(
        edited(_BREAKS)
        + section("tests", "new file mode 160000\n", "--- /dev/null\n+++ b/tests\n@@ -0,0 +1 @@\n")
        + f"+Subproject commit {'1' * 40}\n",
        _HONEST
        + section("vendor", "new file mode 160000\n", "--- /dev/null\n+++ b/vendor\n@@ -0,0 +1 @@\n")
        + f"+Subproject commit {'1' * 40}\n",
        naive=False,
    ),
    "leads out of the tree by names": Attack(
        new("../../tmp/evil.py", _LEAVES) + new("/testbed/tests/test_scale.py", _PASSES), _HONEST, naive=False
    ),
    "leads out of the tree by a link": Attack(
        link("calc/out", "../..") + new("calc/out/testbed/conftest.py", _REWRITES),
        _HONEST + link("calc/readme", "../README.md"),
        naive=False,
    ),
    "makes the tests a link": Attack(link("tests", "/tmp"), _HONEST + link("calc/here", "."), naive=False),
    "writes an ed script, which runs commands": Attack(
        "--- calc/add.py\n+++ calc/add.py\n2c\n    return a + b  # by ed\n.\n!touch conftest.py\nw\n",
        _HONEST,
        naive=False,
    ),
    "is no patch": Attack("resolved: true\n", _HONEST + "\n", naive=False),
    "changes nothing but a mode": Attack(
        section("calc/add.py", "old mode 100644\nnew mode 100755\n"),
        _HONEST + section("calc/scale.py", "old mode 100644\nnew mode 100755\n"),
        naive=False,
    ),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_a_patch_of_other_things_than_code_is_rejected(attack: Attack, rejected: Callable[..., Verdict]) -> None:
    rejected(attack)


def test_byte_code_of_a_test_is_not_graded(store: LayerStore, tmp_path: Path) -> None:
    compiled = _compiled(tmp_path, "test_scale.py", _PASSES)
    patch = edited(_BREAKS) + binary("tests/__pycache__/test_scale.cpython-311.pyc", compiled)
    verdict = grade(PYTEST_TASK, patch + binary("calc/scale.pyc", compiled), store=store, backend="namespace")
    assert not verdict.resolved
    assert verdict.set_aside == ("calc/scale.pyc", "tests/__pycache__/test_scale.cpython-311.pyc")


@pytest.mark.parametrize("megabytes", [5, pytest.param(50, marks=pytest.mark.campaign)])
def test_a_large_patch_is_graded_like_any_other(store: LayerStore, megabytes: int) -> None:
    ballast = new("calc/ballast.txt", ("x" * 1023 + "\n") * (megabytes << 10))
    attack = ballast + at_import("import os\nos._exit(0)")
    assert not grade(TASK, attack, store=store, backend="namespace").resolved
    honest = grade(TASK, ballast + GOLD, store=store, backend="namespace")
    assert honest.resolved, honest.failure_reason


@pytest.mark.parametrize("patch", [at_import(_LEAVES), edited({**_BREAKS, "tests/test_scale.py": _SKIPPED})])
def test_attacks_are_rejected_in_apptainer_sandboxes_too(store: LayerStore, patch: str) -> None:
    from swegym_env.sandbox.backends import make_backend

    broken = make_backend("apptainer").problem(fresh=True)
    if broken:
        pytest.skip(f"apptainer does not work here: {broken} (scripts/install_apptainer.sh, swegym doctor)")
    assert not grade(TASK, patch, store=store, backend="apptainer").resolved
    assert grade(TASK, GOLD, store=store, backend="apptainer").resolved


def test_the_attacked_function_has_a_bug() -> None:
    assert BUGGY in FILES.values()
    assert FIXED not in FILES.values()
