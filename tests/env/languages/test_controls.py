"""Negative controls fail wherever the test passes, and differ from the test by one expected value alone."""

from __future__ import annotations

import ast
import contextlib
import io
import unittest
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swegym_env.languages import CHANCE, Scrutiny
from swegym_env.languages.python.controls import control_files, make_control
from swegym_env.languages.python.screening import scrutiny_of, without_means
from swegym_env.repo.patches import added_lines
from swegym_env.tasks.data.mini import DATA
from swegym_env.tasks.task import Task
from tests.env.calc import FILES, GOLD, TEST_PATCH
from tests.redteam.cases import diff

BODIES = {
    "an equality": "assert area(2, 3) == 6",
    "an equality the other way round": "assert 6 == area(2, 3)",
    "an equality of displays": 'assert [area(1, 1), {"a": (1, -2)}] == [1, {"a": (1, -2)}]',
    "an equality of names": "wanted = 6\n    assert area(2, 3) == wanted",
    "text": "assert str(area(2, 3)) == '6'",
    "text without a letter": "assert '-' * area(1, 2) == '--'",
    "empty text": "assert '' == 'x' * area(0, 1)",
    "bytes": "assert bytes(area(1, 2)) == b'\\0\\0'",
    "a float": "assert area(0.5, 0.5) == 0.25",
    "truth": "assert area(1, 1) is True or area(1, 1)",
    "containment": "assert 6 in [area(2, 3)]",
    "both of two": "assert area(1, 2) == 2 and area(2, 2) == 4",
    "a block": "with contextlib.nullcontext():\n        assert area(2, 3) == 6",
    "a sure loop": "for a in (1, 2):\n        assert area(a, 1) == a",
    "an expected error": "with pytest.raises(TypeError):\n        area(1)",
    "an expected error called": "pytest.raises(TypeError, area, 1)",
    "nothing to compare": "area(1, 2)",
    "nothing but a block": "with contextlib.suppress(KeyError):\n        area(1, 2)",
    "nothing but a function of its own": "@str\n    def inner():\n        pass\n    area(1, 2)",
    "a docstring first": "'''Says so.'''\n    area(1, 2)",
    "a loop that may be empty": "for a in range(area(1, 2)):\n        assert a < 2",
    "an early end": "if area(1, 1) == 1:\n        return\n    assert False",
    "a message": "assert area(2, 3) == 6, f'{area(2, 3)} != 6'",
    "odd ends of lines": "assert '\x0c\u2028' != '\x85'\n    for a in range(area(1, 2)):\n        assert a < 2",
    "ünicode before it": "assert 'ü' == 'ü'; assert area(2, 3) == 6",
    "unittest's equality": "case.assertEqual(area(2, 3), 6)",
    "unittest's equality of lists": "case.assertListEqual([area(2, 3)], [6], 'why')",
    "unittest's truth": "case.assertTrue(area(2, 3))",
    "unittest's truth of an equality": "case.assertTrue(area(2, 3) == 6)",
    "unittest's containment": "case.assertIn(area(2, 3), [6])",
    "unittest's error": "with case.assertRaises(TypeError):\n        area(1)",
    "an error and its message": "with pytest.raises(TypeError, match='missing 1 required'):\n        area(1)",
    "unittest's error and its message": (
        "with case.assertRaisesRegex(TypeError, 'missing 1 required'):\n        area(1)"
    ),
    "unittest's expected nothing": "case.assertIsNone(None)",
    "unittest's nearness": "case.assertAlmostEqual(area(0.1, 3), 0.3)",
    "unittest's subtest": "with case.subTest(a=1):\n        case.assertEqual(area(2, 3), 6)",
}
HEAD = "import contextlib, pytest\n\n\n"


def runs(source: str, area: object) -> bool:
    """Whether the test in `source` passes with this function under test."""
    names: dict[str, object] = {"area": area, "case": unittest.TestCase()}
    exec(compile(source, "test_x.py", "exec"), names)
    try:
        names["test_x"]()  # type: ignore[operator]
    except Exception:  # noqa: BLE001 - whatever a test fails with
        return False
    return True


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@given(seed=st.integers(0, 2**64 - 1))
@settings(max_examples=15, deadline=None)
def test_correct_code_fails_every_control(body: str, seed: int) -> None:
    source = f"{HEAD}def test_x():\n    {body}\n"
    assert runs(source, lambda a, b: a * b)
    control = make_control({"t/test_x.py": source}, ["t/test_x.py::test_x"], {}, seed)
    assert control is not None
    assert control.names == {"t/test_x.py::test_x"}
    assert not runs(control.files["t/test_x.py"], lambda a, b: a * b)


class Anything(int):
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


@pytest.mark.parametrize(
    "body", [BODIES[name] for name in BODIES if "equality" in name and not name.endswith(("lists", "displays"))]
)
@given(seed=st.integers(0, 2**64 - 1))
@settings(max_examples=10, deadline=None)
def test_an_object_that_equals_everything_passes_the_control_too(body: str, seed: int) -> None:
    source = f"{HEAD}def test_x():\n    {body}\n"
    control = make_control({"test_x.py": source}, ["test_x.py::test_x"], {}, seed)
    assert control is not None
    assert runs(source, lambda a, b: Anything())
    assert runs(control.files["test_x.py"], lambda a, b: Anything())


def test_a_control_changes_one_value_for_another_of_the_same_type() -> None:
    source = "def test_x():\n    assert area(2, 3) == 6\n    assert name() == 'Ada'\n\n\ndef test_y():\n    pass\n"
    seen = set()
    for seed in range(40):
        control = make_control({"a.py": source}, ["a.py::test_x"], {}, seed)
        assert control is not None
        old, new = source.splitlines(), control.files["a.py"].splitlines()
        (changed,) = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
        shape = [[type(node) for node in ast.walk(ast.parse(line.strip()))] for line in changed]
        assert shape[0] == shape[1]
        seen.add(changed[1])
    assert len(seen) > 8


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("tests/test_add.py::AddTest::test_zero", True),
        ("test_add.py::AddTest::test_zero[1-", True),
        ("tests/test_add.py::OtherTest::test_zero", False),
        ("tests/test_other.py::AddTest::test_zero", False),
        ("tests.test_add.AddTest.test_zero", True),
        ("test_add.AddTest.test_zero", True),
        ("test_other.AddTest.test_zero", False),
        ("test_zero (tests.test_add.AddTest)", True),
        ("test_zero (tests.test_add.AddTest.test_zero)", True),
        ("test_zero", True),
        ("Zero added changes nothing", False),
    ],
)
def test_tests_are_found_by_names_of_every_runner(name: str, found: bool) -> None:
    control = make_control(FILES, [name], {}, 0)
    assert (control is not None) is found
    if control is not None:
        assert control.names == {name}
        assert list(control.files) == ["tests/test_add.py"]


def test_without_a_matching_name_the_tests_with_added_lines_are_changed(task: Task) -> None:
    assert added_lines(TEST_PATCH) == {"tests/test_add.py": frozenset({12, 13, 14})}
    text = FILES["tests/test_add.py"] + "\n    def test_add(self):\n        self.assertEqual(add(1, 2), 3)\n"
    control = make_control({"tests/test_add.py": text}, ["Adds."], added_lines(TEST_PATCH), 0)
    assert control is not None
    assert control.names == frozenset()
    assert control.files["tests/test_add.py"].splitlines()[:13] == text.splitlines()[:13]
    assert make_control({"t.py": "not python ("}, ["t.py::test_x"], {}, 0) is None
    assert make_control({}, ["Adds."], added_lines(TEST_PATCH), 0) is None


def test_control_files_come_from_the_test_patch_or_the_names_of_the_tests(task: Task) -> None:
    import dataclasses

    assert control_files(task) == ("tests/test_add.py",)
    visible = dataclasses.replace(task, test_patch="", fail_to_pass=("a/b.py::test_x", "pkg.mod.Case.test_y", "words"))
    assert control_files(visible) == ("a/b.py", "pkg.py", "pkg/mod.py", "pkg/mod/Case.py")


@pytest.mark.parametrize("package", sorted(path.name for path in DATA.iterdir() if (path / "repo").is_dir())[:6])
def test_every_test_of_a_shipped_package_has_a_control_that_fails(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On real tests with the code as it should be: each control by itself, run by unittest."""
    root = DATA / package / "repo"
    monkeypatch.syspath_prepend(str(root))
    for path in sorted(root.glob("tests/test_*.py")):
        text = path.read_text(encoding="utf-8")
        names = [
            f"tests/{path.name}::{node.name}::{inner.name}"
            for node in ast.parse(text).body
            if isinstance(node, ast.ClassDef)
            for inner in node.body
            if isinstance(inner, ast.FunctionDef) and inner.name.startswith("test")
        ]
        control = make_control({f"tests/{path.name}": text}, names, {}, 7)
        assert control is not None
        assert control.names == set(names)
        module: dict[str, object] = {"__name__": f"control_{package}_{path.stem}"}
        exec(compile(control.files[f"tests/{path.name}"], str(path), "exec"), module)
        cases = [thing for thing in module.values() if isinstance(thing, type) and issubclass(thing, unittest.TestCase)]
        suite = unittest.TestSuite(map(unittest.defaultTestLoader.loadTestsFromTestCase, cases))
        with contextlib.redirect_stderr(io.StringIO()):
            result = unittest.TextTestRunner().run(suite)
        assert {case.id().rpartition(".")[2] for case, _ in (*result.failures, *result.errors)} >= {
            name.rpartition("::")[2] for name in names
        }


PLAIN, ORDINARY = Scrutiny(1.0, harmless=True), Scrutiny(CHANCE)
FORGING, READING = Scrutiny(CHANCE, required=True), Scrutiny(CHANCE, reads=True, required=True)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("return a + b", PLAIN),
        ("return a - -b  # both", PLAIN),
        ("return neg(neg(a)) + b", PLAIN),
        ("return 'text' if not a else a + b", PLAIN),
        ("return unknown(a)", ORDINARY),
        ("return f'{a}'", ORDINARY),
        ("import math; return a", ORDINARY),
        ("raise ValueError(a)", ORDINARY),
        ("'''", READING),  # a file that cannot be parsed
        ("return a.__class__", ORDINARY),
        ("import os; os._exit(0)", FORGING),
        ("raise SystemExit(0)", FORGING),
        ("return getattr(a, 'b')", ORDINARY),
        ("def __eq__(self, other): return True", READING),
        ("print('OK')", FORGING),
        ("import unittest", READING),
        ("from io import FileIO as F; return F(a)", READING),
        ("import os as o; o.fdopen(3)", READING),
        ("import linecache as c", READING),
        ("from pathlib import Path", READING),
        ("import inspect as look", READING),
        ("from sys import _getframe as here", READING),
        ("import importlib.util as u", READING),
        ("__loader__.get_data(a)", READING),
        ("import os; getattr(os, 'op' + 'en')", READING),
        ("from tests.test_add import EXPECTED", READING),
        ("import re; re.compile('a').match(b)", ORDINARY),
    ],
)
def test_scrutiny_depends_on_what_the_added_lines_can_do(tmp_path: Path, line: str, expected: Scrutiny) -> None:
    (tmp_path / "calc").mkdir()
    (tmp_path / "calc/add.py").write_text(FILES["calc/add.py"])
    assert scrutiny_of(GOLD.replace("return a + b", line), tmp_path) == expected


@pytest.mark.parametrize("held", ["def __eq__(self, other): ...", "import random", "def leave(): raise SystemExit"])
def test_no_edit_is_plain_in_a_file_with_means_of_forgery(tmp_path: Path, held: str) -> None:
    (tmp_path / "calc").mkdir()
    (tmp_path / "calc/add.py").write_text(f"{FILES['calc/add.py']}\n\n{held}\n")
    assert scrutiny_of(GOLD, tmp_path) == ORDINARY


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("own = vars(self, 'size', None)", ORDINARY),
        ("    self = vars(self, 'size', None)", ORDINARY),
        ("found = vars(place, 'size', None)", FORGING),
        ("found = vars(self, 'other', None)", FORGING),
        ("found = vars(sys, 'size', None)", READING),
        ("found = setattr(self, 'size', None)", FORGING),
        ("found = vars(self, 'size', None).found", FORGING),
        ("found = vars(self, 'size', None); more = vars(self, 'size', None)", FORGING),
        ("found = vars(self, 'size', None)\nmore = vars(self, 'size', None)", FORGING),
    ],
)
def test_a_line_that_is_moved_or_renamed_is_no_means_of_its_own(tmp_path: Path, line: str, expected: Scrutiny) -> None:
    (tmp_path / "calc").mkdir()
    before = {"calc/add.py": f"def size(self):\n    found = vars(self, 'size', None)\n\n\n{FILES['calc/add.py']}"}
    (tmp_path / "calc/add.py").write_text(before["calc/add.py"])
    text = before["calc/add.py"].replace("found = vars(self, 'size', None)", line.replace("\n", "\n    "))
    assert scrutiny_of(diff(before, {"calc/add.py": text.replace("a - b", "a + b")}), tmp_path) == expected


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("inspect.call(own, size=own)", ORDINARY),
        ("inspect.call(\n        own,\n        size=own)", ORDINARY),
        ("inspect.call(own, length=own)", READING),
        ("inspect.call(own, own=own)", READING),
        ("inspect.call(own, size==own)", READING),
    ],
)
def test_an_argument_by_keyword_is_no_local_name(tmp_path: Path, call: str, expected: Scrutiny) -> None:
    """`size=size` is the same argument as `size=own` in a function that calls its variable `own`."""
    (tmp_path / "calc").mkdir()
    text = "def take(box):\n    size = box\n    return inspect.call(size, size=size)\n\n\n"
    before = {"calc/add.py": text + FILES["calc/add.py"]}
    (tmp_path / "calc/add.py").write_text(before["calc/add.py"])
    after = before["calc/add.py"].replace("size = box", "own = box").replace("inspect.call(size, size=size)", call)
    assert scrutiny_of(diff(before, {"calc/add.py": after.replace("a - b", "a + b")}), tmp_path) == expected


WRITTEN = """\
def take(box, key):
    names = [name for name in inspect.getmembers(box)
             if name != 'a']  # all but one
    if getattr(box, "size", None):
        with inspect.call(f"{box!r}") as found:
            return (found)
    return inspect.call(names, key)


"""
LAID_OUT = """\
own = [each for each in inspect.getmembers(box) if each != "a"]
    if getattr(box, 'size', None):
        with inspect.call(f'{box!r}') as found:
            return found
    return (inspect.call(
        own, key))
"""
TWICE = """\
names = []
    if box:
        return inspect.call(
            names, key)
    return inspect.call(names, key)
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (LAID_OUT, ORDINARY),  # another layout, other quotes, another name of a local variable
        ("return inspect.call([],\n        key)\n", READING),  # another argument
        ("names = []\n    return inspect.call(\n        names, key, box)\n", READING),
        ("names = []\n    return inspect.call(names, (key)) or inspect.call(names, key)\n", READING),
        ("names = []\n    inspect.call(names, key)\n", READING),  # was returned
        ("names = inspect.call(\n        f'{box!s}')\n", READING),
        ('return inspect.call(\n        "names", key)\n', READING),  # a text in place of a variable
        (TWICE, READING),
        ("return [\n        inspect.call(names, key)]\n", READING),
        ("with inspect.call(\n            f'{box!r}') as found: return open(found)\n", READING),
        (
            "names = []\n    def more():\n        return inspect.call(\n            names, key)\n",
            READING,
        ),  # in another function
    ],
)
def test_a_statement_that_is_written_otherwise_is_no_means_of_its_own(
    tmp_path: Path, body: str, expected: Scrutiny
) -> None:
    (tmp_path / "calc").mkdir()
    before = {"calc/add.py": WRITTEN + FILES["calc/add.py"]}
    (tmp_path / "calc/add.py").write_text(before["calc/add.py"])
    after = f"def take(box, key):\n    {body}\n\n" + FILES["calc/add.py"].replace("a - b", "a + b")
    assert scrutiny_of(diff(before, {"calc/add.py": after}), tmp_path) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("inspect.call(kind, key=kind)", ORDINARY),
        ("inspect.call(key, key=kind)", ORDINARY),  # other values of the same two names
        ("inspect.call(kind, tag=kind)", READING),  # another argument of the function that is called
        ("inspect.call(kind, **{'key': kind})", READING),
        ("inspect.call(kind, key:=kind)", READING),
        ("inspect.call(kind, key.key=kind)", READING),  # no Python
        ("inspect.call(kind,\n        key\n        =kind)", ORDINARY),
        ("inspect.call(kind, \\\n        key=kind)", ORDINARY),
        ("inspect.call(kind, key=inspect)", READING),  # a name that is no local one
        ("inspect.call(kind, key=(exec := kind))", READING),
        ("inspect.call(kind, key=kind, exec=kind)", READING),
        ("key = inspect.call(kind, key=kind)", ORDINARY),  # whoever calls the function had what it returned
        ("key[0] = inspect.call(kind, key=kind)", READING),
        ("inspect.call(kind, key=lambda key=kind: key)", READING),
    ],
)
def test_the_name_of_an_argument_hides_no_means(tmp_path: Path, line: str, expected: Scrutiny) -> None:
    (tmp_path / "calc").mkdir()
    text = "def take(box, key):\n    return inspect.call(box, key=key)\n\n\n"
    before = {"calc/add.py": text + FILES["calc/add.py"]}
    (tmp_path / "calc/add.py").write_text(before["calc/add.py"])
    after = before["calc/add.py"].replace("take(box, key)", "take(kind, key)")
    after = after.replace(
        "return inspect.call(box, key=key)", line if line.startswith(("key =", "key[")) else f"return {line}"
    )
    assert scrutiny_of(diff(before, {"calc/add.py": after.replace("a - b", "a + b")}), tmp_path) == expected


CHECKED = """\
def take(box, key):
    kind = open
    if vars(box, "size", None) is None and key:
        return inspect.call(box)
    else:
        return kind(key)


"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (  # what is returned has a name first, and the conditions are turned round
            (
                "kind = open\n    if not key or vars(box, 'size', None) is not None:\n        return kind(key)\n"
                "    found = inspect.call(box)\n    return found\n"
            ),
            ORDINARY,
        ),
        ("if not key:\n        return None\n    if vars(box, 'size', None) is None:\n        return 1\n", ORDINARY),
        ("if vars(box, 'size', None):\n        return 1\n", FORGING),  # another condition
        ("if vars(box, 'size', None) == None:\n        return 1\n", FORGING),
        ("found = vars(box, 'size', None) is None\n    return found\n", FORGING),  # no condition
        ("box.found = inspect.call(box)\n    return box\n", READING),  # other code can see it there
        ("found = other = inspect.call(box)\n    return found\n", READING),
        ("found = [inspect.call(box)]\n    return found\n", READING),
        ("return open\n", ORDINARY),  # `return kind` could be added without a word
        ("global found\n    found = inspect.call(box)\n", READING),
    ],
)
def test_a_condition_that_is_turned_and_a_returned_value_with_a_name_are_no_means_of_their_own(
    tmp_path: Path, body: str, expected: Scrutiny
) -> None:
    before = {"calc/add.py": CHECKED + FILES["calc/add.py"]}
    (tmp_path / "calc").mkdir()
    (tmp_path / "calc/add.py").write_text(before["calc/add.py"])
    after = f"def take(box, key):\n    {body}\n\n" + FILES["calc/add.py"].replace("a - b", "a + b")
    assert scrutiny_of(diff(before, {"calc/add.py": after}), tmp_path) == expected


MOVED = """\
def frames(self, tb):
    while tb is not None:
        found = tb.tb_frame.f_code.co_name
        self.append(found)
        tb = tb.tb_next
"""
SPLIT = """\
def frames(self, tb):
    self.extend(one_by_one(self, tb))


def one_by_one(self, tb):
    while tb is not None:
        found = tb.tb_frame.f_code.co_name
        yield found
        tb = tb.tb_next
"""


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"found": "own"}, ORDINARY),  # another name in a function to which the gold patch moves these lines
        ({"found": "own", "one_by_one": "each"}, READING),  # a function of another name
        ({"co_name": "co_filename"}, READING),
        ({"yield found": "yield tb.tb_frame.f_locals"}, READING),
        ({"yield found": "yield found\n        found = tb.tb_frame.f_code.co_name"}, READING),  # more often
    ],
)
def test_statements_that_the_gold_patch_has_in_the_same_function_are_no_means_of_another_patch(
    tmp_path: Path, changes: dict[str, str], expected: Scrutiny
) -> None:
    (tmp_path / "m.py").write_text(MOVED)
    gold = diff({"m.py": MOVED}, {"m.py": SPLIT})
    after = SPLIT
    for old, new in changes.items():
        after = after.replace(old, new)
    assert scrutiny_of(diff({"m.py": MOVED}, {"m.py": after}), tmp_path, gold=gold) == expected


@pytest.mark.parametrize(
    ("name", "imported", "expected"),
    [
        ("new_class", "", ORDINARY),
        ("new_class", "from types import new_class\n", FORGING),
        ("exec", "", READING),
        ("io", "", ORDINARY),
        ("io", "import io\n", READING),
        ("io", "from shelves import *\n", READING),
        ("io", "from shelves import files\n\nio = files\n", READING),
        ("io", "def more(box):\n    global io\n\n\n", READING),
    ],
)
def test_a_variable_may_have_the_name_of_a_function_or_a_module(
    tmp_path: Path, name: str, imported: str, expected: Scrutiny
) -> None:
    before = f"{imported}def take(box):\n    {name} = box\n    return vars({name}, 'size')\n"
    (tmp_path / "m.py").write_text(before)
    after = before.replace(f"{name} =", "own =").replace(f"({name}", "(own")
    scrutiny = scrutiny_of(diff({"m.py": before}, {"m.py": after}), tmp_path)
    assert scrutiny.required is (expected != ORDINARY)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("", "    # >>> len(pickle.dumps(a))\n", ORDINARY),
        ("", '    """Opened by the system, open(file), exec(code)."""\n', ORDINARY),
        ('    """Sum\n    of a system.\n    """\n', '    """Sum.\n\n    Of a system.\n    """\n', ORDINARY),
        ("", '    """Sums: open."""\n    a = operator.methodcaller(add.__doc__[6:])(a)\n', READING),
        ("", '    """Sums: open."""\n    a = operator.methodcaller(help_of(add)[6:])(a)\n', READING),
        ("", "    # open the file\n    a = setattr(a, 'b', 1)\n", READING),
        ("", '    """Sums."""; a = open(a)\n', READING),
        ("", '    a = """\n    # open\n    """\n', READING),
        ("", "    b = b\n    '''open'''\n", READING),
        ("", "    b = b  # open\n", READING),
    ],
)
def test_comments_and_docstrings_are_no_means_by_themselves(
    tmp_path: Path, before: str, after: str, expected: Scrutiny
) -> None:
    old, new = (f"def add(a, b):\n{text}    return a {sign} b\n" for text, sign in ((before, "-"), (after, "+")))
    (tmp_path / "m.py").write_text(old)
    assert scrutiny_of(diff({"m.py": old}, {"m.py": new}), tmp_path) == expected


@pytest.mark.parametrize(
    ("path", "line", "expected"),
    [
        ("NOTES.md", "a = os", ORDINARY),
        ("notes.txt", "a = os", ORDINARY),
        ("notes.py", "a = os", ORDINARY),  # a comment
        ("NOTES.md", "a = os; exec(b)", READING),  # which may run a text
        ("NOTES.md", "a = os; attrgetter(b)", READING),
    ],
)
def test_a_note_about_locals_is_no_means(tmp_path: Path, path: str, line: str, expected: Scrutiny) -> None:
    (tmp_path / "m.py").write_text("a = 1\n")
    patch = diff({"m.py": "a = 1\n"}, {"m.py": f"{line}\n", path: "# The locals have other names.\n"})
    assert scrutiny_of(patch, tmp_path) == expected


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("def make(own):\n    return type(own, (own,), {})\n", ORDINARY),
        ("def make(own):\n    return type(own, (own,), {'a': own})\n", READING),
        ("def make(name):\n    return name\n\n\ndef more(own):\n    return type(own, (own,), {})\n", READING),
    ],
)
def test_a_class_made_by_type_is_the_same_with_other_local_names(
    tmp_path: Path, after: str, expected: Scrutiny
) -> None:
    before = "def make(name):\n    return type(name, (name,), {})\n"
    (tmp_path / "m.py").write_text(before)
    assert scrutiny_of(diff({"m.py": before}, {"m.py": after}), tmp_path) == expected


@pytest.mark.parametrize(
    ("path", "held", "harmless"),
    [
        ("calc/point.py", "class Point:\n    size = 1\n", True),
        ("calc/point.py", "class Point:\n    def __eq__(self, other): ...\n", False),
        ("calc/point.py", "import attr\n\n@attr.s\nclass Point: ...\n", False),
        ("calc/point.pyi", "@dataclass\nclass Point: ...\n", False),
        ("calc/same.py", "def same(a, b):\n    return a == b\n", True),  # the patch does not change it
        ("calc/large.py", "#\n" * (1 << 20), False),
    ],
)
def test_a_plain_edit_is_harmless_where_values_compare_as_python_does(
    tmp_path: Path, path: str, held: str, harmless: bool
) -> None:
    (tmp_path / "calc").mkdir()
    (tmp_path / "calc/add.py").write_text(FILES["calc/add.py"])
    (tmp_path / path).write_text(held)
    assert scrutiny_of(GOLD, tmp_path, gold=GOLD) == Scrutiny(1.0, harmless=harmless)


def test_an_edit_of_a_function_that_tests_may_judge_by_is_harmless_where_the_gold_patch_changes_it(
    tmp_path: Path,
) -> None:
    before = {"m.py": "def total(a, b):\n    return a - b\n\n\ndef same(a, b):\n    return a - b == 0\n"}
    (tmp_path / "m.py").write_text(before["m.py"])
    total = diff(before, {"m.py": before["m.py"].replace("return a - b\n", "return a + b\n")})
    same = diff(before, {"m.py": before["m.py"].replace("a - b == 0", "a - b == a - b")})
    assert scrutiny_of(total, tmp_path, gold=total).harmless
    assert not scrutiny_of(same, tmp_path, gold=total).harmless
    assert scrutiny_of(same, tmp_path, gold=same).harmless


_EQUAL = "class Point:\n    size = 1\n\n    def __eq__(self, other):\n{}        return self is other\n"


@pytest.mark.parametrize(
    ("body", "old", "new", "expected"),
    [
        ("", "return self is other", "return True", READING),
        (
            "        if self is None:\n            return False\n",
            "        if self is None:\n            return False\n",
            "",
            READING,
        ),
        ("", "    def __eq__(self, other):\n        return self is other\n", "", READING),
        ("", "class Point", "class Other", READING),
        ("", "return self", "# The same.\n        return self", ORDINARY),
        ("", "size = 1", "size = [2]\n    more = size", ORDINARY),
    ],
)
def test_the_changed_body_of_an_equality_is_a_means_to_read(
    tmp_path: Path, body: str, old: str, new: str, expected: Scrutiny
) -> None:
    before = _EQUAL.format(body)
    assert before.count(old) == 1
    (tmp_path / "m.py").write_text(before)
    patch = diff({"m.py": before}, {"m.py": before.replace(old, new)})
    assert scrutiny_of(patch, tmp_path) == expected
    assert scrutiny_of(patch, tmp_path, gold=patch) == ORDINARY


def test_a_gold_patch_that_changes_the_key_lets_another_change_the_equality(tmp_path: Path) -> None:
    before = "class P:\n    def key(self):\n        return 1\n\n"
    before += "    def __eq__(self, other):\n        return self.key() == other.key()\n"
    (tmp_path / "m.py").write_text(before)
    gold = diff({"m.py": before}, {"m.py": before.replace("return 1", "return [2]")})
    patch = diff({"m.py": before}, {"m.py": before.replace("return self.key() == other.key()", "return self is other")})
    assert scrutiny_of(patch, tmp_path, gold=gold) == ORDINARY
    other = diff({"m.py": before}, {"m.py": before.replace("class P:\n", "class P:\n    size = [2]\n\n")})
    assert scrutiny_of(patch, tmp_path, gold=other) == READING


LOADING = """\
def parse(text):
    return text


def load(path):
    return path
"""
LOADS = """\
import inspect


def parse(text):
    return text


def load(path):
    with open(path) as file:
        return parse(file.read())


def callers():
    return inspect.stack()
"""


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"path": "place", "file": "lines"}, ORDINARY),
        ({"with open(path) as file:\n        return parse(file.read())": "return parse(open(path).read())"}, ORDINARY),
        ({"return inspect.stack()": "return list(inspect.stack())"}, ORDINARY),
        ({"return inspect.stack()": "return list(inspect.stack(0))"}, READING),
        (  # another value as its argument
            {
                "with open(path) as file:\n        return parse(file.read())": (
                    "path = path.strip()\n    return parse(open(path).read())"
                )
            },
            READING,
        ),
        ({"open(path)": "open(path, 'rb')"}, READING),
        ({"open(path)": "open('notes.txt')"}, READING),
        ({"return inspect.stack()": "return inspect.stack()[0].frame.f_locals"}, READING),
        ({"return inspect.stack()": "return [inspect.stack(), inspect.stack()]"}, READING),
        ({"def parse(text):\n    return text": "def parse(text):\n    return open(text).read()"}, READING),
        ({"def load": "def read"}, READING),  # a function of another name
        ({"import inspect": "import inspect\nfrom inspect import stack as own"}, READING),
    ],
)
def test_what_the_gold_patch_does_in_a_function_another_patch_may_do_there_and_nowhere_else(
    tmp_path: Path, changes: dict[str, str], expected: Scrutiny
) -> None:
    (tmp_path / "m.py").write_text(LOADING)
    gold = diff({"m.py": LOADING}, {"m.py": LOADS})
    after = LOADS
    for old, new in changes.items():
        assert old in after
        after = after.replace(old, new)
    assert scrutiny_of(diff({"m.py": LOADING}, {"m.py": after}), tmp_path, gold=gold) == expected
    assert scrutiny_of(gold, tmp_path, gold=gold) == ORDINARY


def test_an_equality_of_the_gold_patch_frees_no_other_one(tmp_path: Path) -> None:
    before = "".join(_EQUAL.format("").replace("Point", name) + "\n\n" for name in ("Point", "Other"))
    (tmp_path / "m.py").write_text(before)
    first, second = before.replace("return self is other", "return self == self", 1), before
    second = second[: len(before) // 2] + second[len(before) // 2 :].replace("self is other", "self == self")
    point, other = (diff({"m.py": before}, {"m.py": after}) for after in (first, second))
    assert scrutiny_of(point, tmp_path, gold=point) == ORDINARY
    assert scrutiny_of(other, tmp_path, gold=point) == READING


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("stack = [text]\n    while stack:\n        text = stack.pop()\n    return text", ORDINARY),
        ("for passed, proc in text:\n        text = passed + proc\n    return text", ORDINARY),
        ("return [stack for stack in text]", ORDINARY),
        ("return text.stack()", READING),
        ("stack = text.stack\n    return stack()", READING),
        ("from text import stack\n    stack = stack()\n    return stack", READING),
        ("global stack\n    stack = text\n    return stack", READING),
        ("return take(stack=text)", READING),
        ("return getattr(text, 'size', None)", ORDINARY),
        ("return getattr(text, '_size')", FORGING),
        ("return getattr(text, 'f_back')", READING),
        ("return getattr(text, 'si' + 'ze')", FORGING),
        ("return getattr(text, size)", FORGING),
        ("return getattr(text, **text)", FORGING),
        ("return map(getattr, text)", FORGING),
        ("def getattr(text, size):\n        return size\n    return getattr(text, 'size')", FORGING),
    ],
)
def test_a_word_counts_by_what_it_is(tmp_path: Path, body: str, expected: Scrutiny) -> None:
    (tmp_path / "m.py").write_text(LOADING)
    after = LOADING.replace("def parse(text):\n    return text", f"def parse(text):\n    {body}\n\n\nnone = None")
    found = scrutiny_of(diff({"m.py": LOADING}, {"m.py": after}), tmp_path)
    assert (found.required, found.reads) == (expected.required, expected.reads)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("'tests/test_m.py'", True),
        ("'tests.test_m'", True),
        ("'/testbed/m.py'", True),
        ("'te' 'sts/' + place", True),
        ("place / 'tests'", True),
        ("os.path.join(place, 'test_m.py')", True),
        ("'see file:tests/test_m.py there'", True),
        ("'m.tests.test_m'", True),
        ("'test.test_m'", True),
        ("'pkg/tests'", True),
        ("'the tests.'", False),
        ("'test.example.org'", False),
        ("'latest/test'", True),
        ("'contests/one'", False),
        ("'a test of it'", False),
        ("'test_name'", False),
    ],
)
def test_a_text_that_names_tests_is_a_means_to_read_them(tmp_path: Path, text: str, named: bool) -> None:
    (tmp_path / "m.py").write_text(LOADING)
    after = LOADING.replace("return text", f"return load({text})")
    patch = diff({"m.py": LOADING}, {"m.py": after})
    assert scrutiny_of(patch, tmp_path).reads is named
    assert not scrutiny_of(patch, tmp_path, gold=patch).reads


@pytest.mark.parametrize(
    "text",
    [
        f"a = '%s' % 0x{'f' * 9000}\n",
        f"a = ['{{}}'.format(0x{'f' * 9000}), chr(99999999), chr(0xd800), 'a'[::0], 'a'[1:-1:-1]]\n",
        f"a = {'+'.join(['b'] * 20_000)}\n",
        f"a = {'(' * 150}'{'x' * 900}'{' + str(1))' * 150}\n",
        f"a = '{'{' * 200_000}'\n",
        "# coding: \u00e9-\udce9\n",
        "# coding: ..\n",
        "a = '\udc80'\n\x00",
    ],
)
def test_hostile_texts_are_screened(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.py").write_text("a = 1\n")
    for patch in (diff({}, {"m.py": text}), diff({"m.py": "a = 1\n"}, {"m.py": text}), diff({}, {"n" * 999: text})):
        assert scrutiny_of(patch, tmp_path).chance in (1, CHANCE)


def test_a_line_frees_only_lines_of_its_own_function(tmp_path: Path) -> None:
    method = "    def __eq__(self, other):\n"
    put = "def put(self, name, value):\n    setattr(self, name, value)\n"
    equal = f"class One:\n{method}        return self is other\n"
    for before, after in (
        ({"m.py": equal}, {"m.py": f"class Other:\n{method}        return True\n"}),
        ({"m.py": "a = 1\n", "use.md": method}, {"m.py": f"class Other:\n{method}        return True\n", "use.md": ""}),
        ({"m.py": put, "n.py": "a = 1\n"}, {"m.py": "put = None\n", "n.py": put}),
        ({"m.py": put}, {"m.py": put.replace("setattr", "vary") + put.replace("put", "vary").replace("name", "part")}),
        ({"m.py": "setattr(self, name, value)\n"}, {"m.py": "setattr(kind, name, value)\n"}),
    ):
        for name, text in before.items():
            (tmp_path / name).write_text(text)
        assert scrutiny_of(diff(before, after), tmp_path).required, after


@pytest.mark.parametrize(
    "text",
    [
        "class Other:\n    def __\uff45q__(self, other):\n        return True\n",
        "Other = [0]\n++len([exec('pass')])\n",
        "# coding: utf-7\na = 1\n",
        "#!/usr/bin/python\n# -*- coding: unicode_escape -*-\n",
        "Other = type('Other', (), {'a': 1})\n",
        "Other = type(Point)('Other', (), {'a': 1})\n",
        "Other = type(*parts)\n",
        "Other.__class__('Other', (), {})\n",
        "type.__setattr__(Other, name, value)\n",
        "put(Other, '__e' 'q__', value)\n",
        "put(Other, '__e' + 'q__', value)\n",
        "put(Other, '__%s__' % 'eq', value)\n",
        "put(Other, '__{}__'.format('eq'), value)\n",
        "put(Other, f'__{\"eq\"}__', value)\n",
        "put(Other, '_'.join(['', '', 'eq', '', '']), value)\n",
        "put(Other, '__qe__'[::-1], value)\n",
        "put(Other, '\\x5f_eq__', value)\n",
        "put(Other, chr(95) + '_eq__', value)\n",
        "dataclasses.make_dataclass('Other', [])\n",
        "string.Formatter().vformat(a, b, c)\n",
        "from mock import ANY\n",
        "from dirty_equals import AnyThing\n",
        "from hamcrest import anything\n",
        "import hypothesis\n",
    ],
)
def test_means_are_seen_as_python_reads_them(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.py").write_text("a = 1\n")
    assert scrutiny_of(diff({}, {"new.py": text}), tmp_path).required
    assert scrutiny_of(diff({"m.py": "a = 1\n"}, {"m.py": f"{text}a = 1\n"}), tmp_path).required


@pytest.mark.parametrize("text", ["# coding: latin-1\na = 1\n", "a = type(b)(1, 2, 3)\n", "a = '{0.b}' + 'c'\n"])
def test_these_are_no_means(tmp_path: Path, text: str) -> None:
    assert scrutiny_of(diff({}, {"new.py": text}), tmp_path) == ORDINARY


@pytest.mark.parametrize(
    ("path", "header", "body", "expected"),
    [
        ("m/other.py", "new file mode 100644", "GIT binary patch\nliteral 1\nIcmZPo000310RR91\n\n", READING),
        ("m/other.so", "new file mode 100644", "GIT binary patch\nliteral 1\nIcmZPo000310RR91\n\n", READING),
        ("docs/a.png", "new file mode 100644", "GIT binary patch\nliteral 1\nIcmZPo000310RR91\n\n", ORDINARY),
        ("m/other.py", "new file mode 120000", "--- /dev/null\n+++ b/m/other.py\n@@ -0,0 +1 @@\n+../a\n", READING),
    ],
)
def test_a_file_that_cannot_be_read_here_is_a_means(
    tmp_path: Path, path: str, header: str, body: str, expected: Scrutiny
) -> None:
    patch = f"diff --git a/{path} b/{path}\n{header}\nindex 0000000..1111111\n{body}"
    assert scrutiny_of(patch, tmp_path) == expected
    assert scrutiny_of(patch, tmp_path, gold=patch) == ORDINARY


def test_a_patch_is_divided_by_what_its_files_can_do(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("a = 1\n")
    (tmp_path / "n.py").write_text("import gc\nb = 1\n")
    plain, opens = diff({"m.py": "a = 1\n"}, {"m.py": "a = 2\n"}), "file = open(a)\n"
    changed = diff({"n.py": "import gc\nb = 1\n"}, {"n.py": f"import gc\nb = 1\n{opens}"})
    added = diff({}, {"o.py": opens})
    assert without_means(plain, tmp_path) == ()
    assert without_means(plain + added, tmp_path) == (plain,)
    assert without_means(plain + changed + added, tmp_path) == (plain, plain + changed)
    assert without_means(changed + added, tmp_path) == (changed,)
    assert without_means(plain + added, tmp_path, gold=added) == ()


@pytest.mark.parametrize(
    ("line", "plain"),
    [
        ("return '{}'.format(a)", True),
        ("return '{:.2f}'.format(a)", True),
        ("return '{0.gi_frame}'.format(a)", False),
        ("return '{0[b]}'.format(a)", False),
        ("return ('{' + '0.b}').format(a)", False),
        ("return a.format(b)", False),
        ("return str.format(a, b)", False),
        ("return a.format_map(b)", False),
        ("return 'gi_' 'frame'", False),
        ("return 'ex' + 'ec'", False),
        ("return 'cannot open it'", False),
    ],
)
def test_an_edit_is_not_plain_if_a_format_can_read_attributes(tmp_path: Path, line: str, plain: bool) -> None:
    before = "def f(a, b):\n    return '{} {}'.format(a, str(b))\n\n\nclass C:\n    format = format_map = None\n"
    (tmp_path / "m.py").write_text(before)
    after = before.replace("return '{} {}'.format(a, str(b))", line)
    assert (scrutiny_of(diff({"m.py": before}, {"m.py": after}), tmp_path).chance == 1) is plain


@pytest.mark.parametrize(
    ("held", "line", "plain"),
    [
        ("from other import anything", "return anything", False),
        ("from other import anything", "return anything.else_(a)", False),
        ("from other import *\nanything()", "return anything", False),
        ("import other", "other.add = neg", False),
        ("import other", "(other.add\n) = neg", False),
        ("def add(self): self.kept, self.add = 1, 2", "self.add = a", True),
        ("def add(self): self.kept = 1", "self.add = a", False),
        ("import other\nKNOWN = {}", "KNOWN[a] = b", True),
        ("import other", "other.add[a] = b", False),
        ("def anything(): pass", "return anything", True),
    ],
)
def test_an_edit_is_not_plain_if_it_reaches_what_the_file_imports(
    tmp_path: Path, held: str, line: str, plain: bool
) -> None:
    (tmp_path / "calc").mkdir()
    before = f"{held}\n\n{FILES['calc/add.py']}"
    (tmp_path / "calc/add.py").write_text(before)
    after = before.replace("return a - b", line.replace("\n", "\n    "))
    patch = diff({"calc/add.py": before}, {"calc/add.py": after})
    assert (scrutiny_of(patch, tmp_path).chance == 1) is plain


def test_only_edits_of_existing_python_files_are_plain(tmp_path: Path) -> None:
    (tmp_path / "calc").mkdir()
    (tmp_path / "calc/add.py").write_text(FILES["calc/add.py"])
    assert scrutiny_of("", tmp_path).chance == 1
    for patch in (
        "no patch",
        GOLD.replace("--- a", "old mode 100644\nnew mode 100755\n--- a", 1),
        GOLD.replace("add.py", "new.py"),
        GOLD + "--- a/calc/neg.py\n+++ b/calc/neg.py\n@@ -1 +1 @@\n-a\n+a\n",
        GOLD + GOLD.replace("calc/add.py", "calc/text.txt"),
    ):
        assert scrutiny_of(patch, tmp_path).chance < 1, patch


_STORY = 'def tell(x):\n    """\n    lines = inspect.stack()\n    """\n    return x\n'
_HIDDEN = {
    "lines of a docstring become code": (
        _STORY,
        _STORY.replace('    """\n    lines', '    """"""\n    lines').replace('()\n    """', "()"),
    ),
    "a block becomes reachable": ("def tell(x):\n    if 0:\n        x = inspect.stack()\n    return x\n", "if 1"),
    "a file that cannot be parsed": ("def tell(x):\n    return x\n", "def tell(x):\n    return x + 0\n\x00"),
    "a module that opens files": (
        "def tell(x):\n    return x\n",
        "import mimetypes\n\n\ndef tell(x):\n    return mimetypes\n",
    ),
    "the lines that a warning shows": ("import warnings\n", "import warnings\n\nX = warnings.formatwarning\n"),
    "a template of an equality": (
        "import fractions\n",
        "import fractions\n\nX = {'from_float': 1}\n\n\ndef from_float(x): ...\n",
    ),
}


@pytest.mark.parametrize("case", _HIDDEN)
def test_means_that_no_added_line_names_by_a_listed_word_are_found(tmp_path: Path, case: str) -> None:
    before, after = _HIDDEN[case]
    after = before.replace("if 0", "if 1") if after == "if 1" else after
    (tmp_path / "m.py").write_text(before)
    found = scrutiny_of(diff({"m.py": before}, {"m.py": after}), tmp_path)
    assert found.reads and found.required, found


def test_ordinary_modules_and_those_of_the_repository_are_no_means(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    before, after = (
        "def f(x):\n    return x\n",
        "import math\nfrom own import other\n\n\ndef f(x):\n    return math.sqrt(x)\n",
    )
    (tmp_path / "m.py").write_text(before)
    assert not scrutiny_of(diff({"m.py": before}, {"m.py": after}), tmp_path).required


def test_texts_that_become_code_are_found_beside_what_is_nested_too_deep_to_be_compared(tmp_path: Path) -> None:
    deep = f"y = {'-' * 900}1\n\n\n"
    before, after = _HIDDEN["lines of a docstring become code"]
    (tmp_path / "m.py").write_text(deep + before)
    found = scrutiny_of(diff({"m.py": deep + before}, {"m.py": deep + after}), tmp_path)
    assert found.reads and found.required, found
