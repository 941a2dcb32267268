"""Modules of a repository that its tests judge with are found by what the tests import, name and ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from swegym_env.languages.python.machinery import test_machinery as find_machinery

JUDGE = "def assert_same(a, b):\n    assert a == b\n"


def patch_of(path: str, text: str) -> str:
    body = "".join(f"+{line}\n" for line in text.splitlines())
    return (
        f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
        f"@@ -0,0 +1,{len(text.splitlines())} @@\n{body}"
    )


# name → the repository's files, the hidden test, what is found
CASES: dict[str, tuple[dict[str, str], str, set[str]]] = {
    "a function that asserts": (
        {"calc/check.py": JUDGE, "calc/add.py": ""},
        "from calc.add import add\nfrom calc.check import assert_same\n",
        {"calc/check.py"},
    ),
    "a function that the package passes on": (
        {"calc/__init__.py": "from calc.deep import raises\n", "calc/deep.py": "from .deeper import raises\n",
         "calc/deeper.py": "def raises(): ...\n", "calc/add.py": ""},
        "from calc import add, raises\n",
        {"calc/__init__.py", "calc/deep.py", "calc/deeper.py"},
    ),
    "a function of an imported module": (
        {"src/calc/check.py": JUDGE}, "import calc.check as c\nc.assert_same(1, 1)\n", {"src/calc/check.py"},
    ),
    "a package by its name": (
        {"calc/testing/__init__.py": "", "calc/testing/inner.py": "", "calc/add.py": ""},
        "from calc.testing.inner import build\nfrom calc.add import add\n",
        {"calc/testing/", "calc/testing/__init__.py"},
    ),
    "a function that asserts under another name": (
        {"calc/__init__.py": "from calc.check import agree\n", "calc/add.py": "def add(a, b):\n    return a + b\n",
         "calc/check.py": "def agree(a, b):\n    x = str(a)\n    if x != str(b):\n        raise AssertionError(x)\n"},
        "from calc import agree\nfrom calc.add import add\n\n\ndef test_x():\n    agree(add(1, 2), 3)\n    add(1, 1)\n",
        {"calc/check.py"},
    ),
    "a function that says whether two values are equal": (
        {"calc/check.py": "def same(a, b):\n    c = str(a)\n    d = str(b)\n    return c.strip() == d.strip()\n",
         "calc/add.py": "def grows(a, b):\n    assert a != 0 and b != 0\n    return a + b > a\n"},
        ("import calc.check as c\nfrom calc.add import grows\n\n\nclass T:\n    def test_x(self):\n"
        "        assert grows(1, 2)\n        grows(1, 2)\n        self.assertTrue(c.same(1, 1))\n"),
        {"calc/check.py"},
    ),
    "a base class": (
        {"calc/cases.py": "class Case: ...\n", "calc/add.py": "class Number: ...\n"},
        ("from calc.cases import Case\nfrom calc.add import Number\n\n\nclass T(Case):\n    def test_x(self): ...\n\n\n"
        "class Own(Number):\n    pass\n"),
        {"calc/cases.py"},
    ),
    "a fixture": (
        {"calc/plugin.py": "import pytest\n\n\n@pytest.fixture(scope='module')\ndef server():\n    return 1\n",
         "calc/other.py": "import pytest\n\n\n@pytest.fixture\ndef unused():\n    return 1\n"},
        "def test_x(server): ...\n",
        {"calc/plugin.py"},
    ),
    "a plugin of the tests' conftest": (
        {"calc/plugin.py": "", "tests/conftest.py": "pytest_plugins = ['calc.plugin']\n"}, "", {"calc/plugin.py"},
    ),
    "what machinery judges with": (
        {"calc/cases.py": "from calc.inner import assert_deep\nclass MyTestCase: ...\n", "calc/inner.py": JUDGE},
        "from calc.cases import MyTestCase\n",
        {"calc/cases.py", "calc/inner.py"},
    ),
    "a helper among the tests": (
        {"calc/inner.py": JUDGE, "tests/helpers.py": "from calc.inner import assert_same\n"},
        "from tests.helpers import assert_same\n",
        {"calc/inner.py", "tests/helpers.py"},
    ),
    "a function by its dotted name": (
        {"calc/check.py": "def agree(a, b):\n    if a != b:\n        raise ValueError(a)\n",
         "calc/add.py": "def span(a, b):\n    if a > b:\n        raise ValueError(a)\n"},
        "import calc.add\nimport calc.check\n\n\ndef test_x():\n    calc.check.agree(1, 1)\n    calc.add.span(1, 2)\n",
        {"calc/check.py"},
    ),
    "a base class of the file's own base class": (
        {"calc/cases.py": "class Case: ...\n"},
        ("import calc.cases\n\n\nclass Base(calc.cases.Case): ...\n\n\nclass T(Base):\n    def test_x(self): ...\n"),
        {"calc/cases.py"},
    ),
    "a base class of a base class among the tests": (
        {"calc/cases.py": "class Case: ...\n", "tests/base.py": "from calc.cases import Case\nclass Base(Case): ...\n"},
        "from tests.base import Base\n\n\nclass T(Base):\n    def test_x(self): ...\n",
        {"calc/cases.py", "tests/base.py"},
    ),
    "what a helper among the tests judges with": (
        {"calc/check.py": "def same(a, b):\n    return str(a) == str(b)\n",
         "tests/helpers.py": "from calc.check import same\ndef check(a, b):\n    assert same(a, b)\n"},
        "from tests import helpers\n\n\ndef test_x():\n    helpers.check(1, 1)\n",
        {"calc/check.py", "tests/helpers.py"},
    ),
    "a function that another one compares for": (
        {"calc/check.py": ("def same(a, b):\n    return _same(a, b)\n\n\ndef _same(one, two):\n"
                           "    return str(one) == str(two)\n")},
        ("from calc.check import same\n\n\ndef test_x():\n    found = same(1, 1)\n    if not found:\n"
         "        raise AssertionError\n"),
        {"calc/check.py"},
    ),
    "nothing": (
        {"calc/add.py": "def check_array(): ...\n", "calc/latest.py": ""},
        "import calc.latest\nfrom calc.add import check_array\nfrom calc import add\n",
        set(),
    ),
}  # fmt: skip


def existing(found: frozenset[str], base: Path) -> set[str]:
    return {path for path in found if (base / path).exists()}


def test_a_method_that_a_patch_adds_to_a_class_of_tests_is_read_in_it(tmp_path: Path) -> None:
    (tmp_path / "calc").mkdir()
    (tmp_path / "calc/check.py").write_text("def agree(a, b):\n    if a != b:\n        raise AssertionError(a)\n")
    (tmp_path / "t.py").write_text("import calc.check as c\n\n\nclass T:\n    def test_a(self): ...\n")
    patch = (
        "diff --git a/t.py b/t.py\n--- a/t.py\n+++ b/t.py\n@@ -5,1 +5,4 @@\n     def test_a(self): ...\n+\n"
        "+    def test_b(self):\n+        c.agree(1, 1)\n"
    )
    assert existing(find_machinery(patch, (), tmp_path), tmp_path) == {"calc/check.py"}


@pytest.mark.parametrize(("files", "test", "found"), CASES.values(), ids=CASES.keys())
def test_what_tests_judge_with_is_found(files: dict[str, str], test: str, found: set[str], tmp_path: Path) -> None:
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert existing(find_machinery(patch_of("tests/test_new.py", test), (), tmp_path), tmp_path) == found
    (tmp_path / "tests").mkdir(exist_ok=True)
    (tmp_path / "tests/test_old.py").write_text(test)
    assert existing(find_machinery("", ("tests/test_old.py",), tmp_path), tmp_path) == found


def test_imports_that_a_patch_adds_to_a_file_count(tmp_path: Path) -> None:
    (tmp_path / "calc").mkdir()
    (tmp_path / "calc/check.py").write_text(JUDGE)
    patch = (
        "diff --git a/t.py b/t.py\n--- a/t.py\n+++ b/t.py\n@@ -3,1 +3,3 @@\n+from calc.check import assert_same\n"
        " def test():\n+        assert_same(1, 1)\n"
    )
    found = find_machinery(patch, (), tmp_path)
    assert existing(found, tmp_path) == {"calc/check.py"}
    assert {"calc/check/", "src/calc/check.py", "lib/calc/check/"} <= found, "where another would be imported instead"
