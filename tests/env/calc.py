"""A small task for tests: a function with a bug, its gold patch, and the test that shows the bug."""

from __future__ import annotations

from swegym_env.tasks.task import Task

__all__ = ["FILES", "GOLD", "TEST_PATCH", "calc_task"]

FILES = {
    "calc/__init__.py": "",
    "calc/add.py": "def add(a, b):\n    return a - b\n\n\ndef neg(a):\n    return -a\n",
    "tests/__init__.py": "",
    "tests/test_add.py": (
        "import unittest\n\nfrom calc.add import add, neg\n\n\nclass AddTest(unittest.TestCase):\n"
        "    def test_zero(self):\n        self.assertEqual(add(1, 0), 1)\n\n"
        "    def test_neg(self):\n        self.assertEqual(neg(2), -2)\n"
    ),
}
GOLD = (
    "diff --git a/calc/add.py b/calc/add.py\n"
    "--- a/calc/add.py\n"
    "+++ b/calc/add.py\n"
    "@@ -1,5 +1,5 @@\n"
    " def add(a, b):\n"
    "-    return a - b\n"
    "+    return a + b\n"
    " \n"
    " \n"
    " def neg(a):\n"
)
TEST_PATCH = (
    "diff --git a/tests/test_add.py b/tests/test_add.py\n"
    "--- a/tests/test_add.py\n"
    "+++ b/tests/test_add.py\n"
    "@@ -9,3 +9,6 @@ class AddTest(unittest.TestCase):\n"
    " \n"
    "     def test_neg(self):\n"
    "         self.assertEqual(neg(2), -2)\n"
    "+\n"
    "+    def test_add(self):\n"
    "+        self.assertEqual(add(1, 2), 3)\n"
)


def calc_task() -> Task:
    """A function with a bug, its tests, and the test that shows the bug."""
    return Task(
        instance_id="calc-1",
        repo="some/calc",
        base_commit="",
        problem_statement="add subtracts",
        patch=GOLD,
        test_patch=TEST_PATCH,
        fail_to_pass=("tests.test_add.AddTest.test_add",),
        pass_to_pass=("tests.test_add.AddTest.test_zero", "tests.test_add.AddTest.test_neg"),
        files=FILES,
        test_command="python3 -m unittest -v",
        log_parser="unittest",
    )
