"""What conditions of tests ask for, and which tests more than one answer passes."""

from __future__ import annotations

import ast

import pytest

from swegym_env.languages.python.parsing import walk
from swegym_env.languages.python.questions import asked, holders, may_have_many_answers, value_of, variables_of

NAME = "tests.test_m.MTest.test_f"


def of_body(body: str) -> str:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    head = "import unittest\nfrom datetime import date\nfrom m import Point, f, g\n\n\ndef rows(*numbers):\n"
    head += "    return [f(one) for one in numbers]\n\n\nclass MTest(unittest.TestCase):\n    def test_f(self):\n"
    return head + lines


@pytest.mark.parametrize(
    ("body", "wanted", "held"),
    [
        ("assert f(3).find('row 47') >= 0", ["row 47"], ["f(3)"]),
        ("assert f(46).same_as(47)", [47], ["f(46)"]),
        ("assert f(3).get('a').get(47)", [47, "a"], ["f(3).get('a')"]),
        ("assert {47} <= set(f(3))", [47], ["set(f(3))"]),
        ("assert {47}.issubset(f(3))", [47], ["f(3)"]),
        ("assert call(47, name='a') in out.mock_calls", [], []),  # `out` is a name of the module here
        ("out = g()\nassert call(47, name='a') in out.mock_calls", [47, "a"], ["out.mock_calls"]),
        ("assert hasattr(f(3), 'size')", ["size"], ["f(3)"]),
        ("assert f(3)[47]", [47], ["f(3)"]),
        ("assert f(3)['row'] is True", ["row"], ["f(3)"]),
        ("assert f(3)['row'].size", [], []),
        ("assert f(3)[0]", [], []),
        ("want = 47\nassert f(3).get(want)", [47], ["f(3)"]),
        ("for one in (47, 57):\n    assert f(3).get(one)", [47], ["f(3)"]),
        ("assert any(one == 47 for one in f(3))", [47], []),
        ("assert g(f(3), 47)", [47], ["f(3)"]),
        ("assert f(3)", [], []),
        ("assert f('row 47')", [], []),
    ],
)
def test_what_a_condition_asks_for_is_a_constant_beside_a_computed_value(
    body: str, wanted: list[object], held: list[str]
) -> None:
    function = next(
        node for node in walk(ast.parse(of_body(body))) if isinstance(node, ast.FunctionDef) and node.name == "test_f"
    )
    condition = next(node for node in walk(function) if isinstance(node, ast.Assert)).test
    variables = variables_of(function)
    assert [value_of(one, variables) for one in asked(condition, variables)] == wanted
    assert [ast.unparse(holder) for holder in holders(condition, variables)] == held


@pytest.mark.parametrize(
    ("body", "many"),
    [
        ("self.assertEqual(f(3), 47)", False),
        ("self.assertEqual(f(3), [47, 'row'])", False),
        ("self.assertEqual(f(3), Point(3, 4))", False),
        ("self.assertEqual(f(3), date(2024, 2, 29))", False),
        ("self.assertEqual(f(3).get('row'), 47)", True),
        ("self.assertEqual(f(3).degree('row'), 1)", False),
        ("self.assertTrue(f('row'))", False),
        ("with self.assertRaises(ValueError):\n    f(3)", False),
        ("self.assertEqual(f(3).count('row'), 1)", True),
        ("self.assertTrue(f(3).get('row'))", True),
        ("self.assertIn(47, f(3))", True),
        ("assert 47 in f(3)", True),
        ("self.assertEqual(f(2), g(4))", True),
        ("assert f(2) == g(4)", True),
        ("self.assertEqual(f(2), rows(4))", False),
        ("with self.assertRaisesRegex(ValueError, 'row'):\n    f(3)", True),
        ("def check(x):\n    self.assertGreater(x, 46)\nf(3, check)", True),
        ("f(3, lambda x: self.assertGreater(x, 46))", True),
        ("f(3, self.check_other)", True),
        ("f(3, self.assertTrue)", True),
        ("f(3, lambda x: 2 * x)", False),
        ("def double(x):\n    return 2 * x\nself.assertEqual(f(3), 47)", False),
        ("self.check(3)", True),
        ("self.check_other(3)", False),
        ("f(3, check_elsewhere)", True),
        ("f(3, [46, 47].index)", True),
        ("got = []\nf(3, got.append)\nself.assertEqual(got, [47])", False),
        ("for x in f(3):\n    self.assertGreater(x, 46)", True),
        ("for x, y in zip(f(3), [46]):\n    assert x == y", True),
        ("for x, y in [(3, 47), (4, 62)]:\n    assert f(x) == y", False),
        ("rows = [3, 4]\nfor x in rows:\n    self.assertEqual(f(x), 47)", False),
        ("for x in f(3):\n    g(x)\nself.assertEqual(f(4), 47)", False),
        ("self.assertNotIn(46, f(3))", True),
        ("assert 46 not in f(3)", True),
        ("self.assertFalse(any(x == 46 for x in f(3)))", True),
        ("self.assertEqual([x for x in f(3) if x < 46], [])", True),
        ("self.assertEqual([x + 1 for x in f(3)], [47])", False),
        ("if 46 in f(3):\n    self.fail('found')", True),
        ("found = 47 in f(3)\nassert found", True),
    ],
)
def test_which_tests_more_than_one_answer_passes(body: str, many: bool) -> None:
    helpers = (
        "    def check(self, x):\n        self.assertIn(x, f(x))\n\n    def check_other(self, x):\n        assert x\n"
    )
    files = {"tests/test_m.py": f"from tests.other import check_elsewhere\n{of_body(body)}\n{helpers}"}
    assert may_have_many_answers(files, [NAME]) is many


def test_a_test_that_is_not_found_may_have_many_answers() -> None:
    assert may_have_many_answers({"tests/test_m.py": of_body("assert f(3) == 4")}, ["tests.test_m.MTest.test_other"])
    assert may_have_many_answers({"tests/test_m.py": "def test_f(:"}, [NAME])
