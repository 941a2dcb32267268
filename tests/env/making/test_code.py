"""Edits of Python files: splices, and the removal of the tests that reveal a bug."""

from __future__ import annotations

import ast
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swegym_env.making.code import Code, Splice, find_test, without_tests

FILE = b'''\
import pytest


@pytest.mark.parametrize("x", [1, 2])
def test_a(x):
    assert x


class TestB:
    """Of b."""

    def test_one(self):
        pass

    def test_two(self):
        pass


class TestC(TestB):
    def test_three(self):
        pass
'''


def test_a_test_is_removed_with_its_decorators_and_all_parameters() -> None:
    assert without_tests(FILE, ["test_a[1]"]) == FILE.replace(
        FILE[FILE.index(b"@") : FILE.index(b"class TestB")], b"\n\n"
    )


@pytest.mark.parametrize(
    "decorator", ["@(  # of @\n    # @\n    mark\n)\n@mark\n", "@((\n    mark\n    @ mark\n))\n", "@\\\nmark\n"]
)
@pytest.mark.parametrize("outer", ["", "class TestA:\n    x = 1\n\n"])
def test_a_decorator_over_several_lines_is_removed_whole(decorator: str, outer: str) -> None:
    indent = "    " if outer else ""
    rest = textwrap.indent("def test_b():\n    pass\n", indent)
    file = outer + textwrap.indent(f"{decorator}def test_a():\n    return 1\n", indent) + rest
    compile(file, "test", "exec")
    assert without_tests(file.encode(), ["TestA::test_a" if outer else "test_a"]).decode() == outer + rest
    code = Code(file.encode())
    one = next(
        node for node in ast.walk(code.tree) if isinstance(node, ast.Constant) and node.value == 1 and node.lineno > 3
    )
    assert code.changed_by([code.replace(one, "2")])


def test_a_class_stays_while_it_has_other_methods() -> None:
    left = without_tests(FILE, ["TestB::test_one", "TestB::nothing"])
    assert b"test_one" not in left and b"test_two" in left and b"test_three" in left
    compile(left, "test", "exec")


def test_an_empty_class_is_removed_unless_another_refers_to_it() -> None:
    left = without_tests(FILE, ["TestC::test_three"])
    assert b"TestC" not in left
    left = without_tests(FILE, ["TestB::test_one", "TestB::test_two", "TestC::test_three"])
    assert b"class TestB:" in left and b"test_one" not in left and b"test_two" not in left
    compile(left, "test", "exec")


def test_an_empty_class_that_another_refers_to_gets_a_body() -> None:
    file = b"class A:\n    def test_x(self):\n        pass\n    def test_y(self): pass\n\nclass B(A):\n    z = 1\n"
    left = without_tests(file, ["A::test_x", "A::test_y"])
    names: dict[str, type] = {}
    exec(left, names)
    assert (
        issubclass(names["B"], names["A"]) and not hasattr(names["A"], "test_x") and not hasattr(names["B"], "test_y")
    )


def test_a_file_that_cannot_be_parsed_is_unchanged() -> None:
    assert without_tests(b"def (", ["test_a"]) == b"def ("
    assert without_tests(b"\xff", ["test_a"]) == b"\xff"
    assert find_test(b"def (", "test_a") == ""


def test_a_test_is_found_by_its_id_and_dedented() -> None:
    assert find_test(FILE, "TestB::test_two") == "def test_two(self):\n    pass"
    assert find_test(FILE, "test_a[1]") == "def test_a(x):\n    assert x"
    assert find_test(FILE, "TestB::nothing") == ""


@given(st.text("ab \n#'(", max_size=30), st.data())
def test_splices_replace_exactly_their_bytes(text: str, data: st.DataObject) -> None:
    content = text.encode()
    places = sorted(data.draw(st.lists(st.integers(0, len(content)), min_size=4, max_size=4)))
    code = Code(b"")
    code.content = content
    made = code.spliced([Splice(places[2], places[3], "ü"), Splice(places[0], places[1], "")])
    assert made == content[: places[0]] + content[places[1] : places[2]] + "ü".encode() + content[places[3] :]


def test_overlapping_edits_are_refused() -> None:
    with pytest.raises(ValueError, match="overlap"):
        Code(b"x = 1\n").spliced([Splice(0, 3, ""), Splice(2, 4, "")])
