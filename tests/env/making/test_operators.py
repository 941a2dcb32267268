"""Each mutation operator on code where it applies; the expected results are written by hand."""

from __future__ import annotations

import ast

import pytest

from swegym_env.making.code import Code
from swegym_env.making.operators import OPERATORS

CASES: dict[str, list[tuple[str, set[str]]]] = {
    "wrong-operator": [
        ("x = (a) + b  # sum\n", {"x = (a) - b  # sum\n"}),
        ("x += 1\n", {"x -= 1\n"}),
        ("x = 'a' + b\n", set()),
        ("x = a % 2\n", {"x = a // 2\n"}),
    ],
    "wrong-boundary": [("x = a <b\n", {"x = a <=b\n"}), ("x = a < b < c\n", set())],
    "wrong-direction": [("x = a >= b\n", {"x = a <= b\n"})],
    "inverted-condition": [
        ("if a:\n    f()\n", {"if not a:\n    f()\n"}),
        ("x = a is  not b\n", {"x = a is b\n"}),
        ("x = not a\n", {"x = a\n"}),
        ("x = a == b\n", {"x = a != b\n"}),
    ],
    "wrong-connective": [("x = a and b\n", {"x = (a or b)\n"})],
    "dropped-condition": [("x = a or b.c\n", {"x = a\n", "x = b.c\n"})],
    "off-by-one": [
        ("x = a[1:]\n", {"x = a[2:]\n"}),
        ("x = n - 1\n", {"x = n\n"}),
        ("x = n == 2\n", {"x = n == 3\n"}),
    ],
    "wrong-loop-bound": [
        ("x = range(n)\n", {"x = range(n - 1)\n", "x = range(n + 1)\n", "x = range(1, n)\n"}),
        ("x = enumerate(a)\n", {"x = enumerate(a, 1)\n"}),
    ],
    "swapped-arguments": [("f(a, b.c)\n", {"f(b.c, a)\n"}), ("f(a, a)\n", set()), ("f(*a, b)\n", set())],
    "dropped-argument": [
        ("f(a, key=b)\n", {"f(a)\n"}),
        ("f(key=b)\n", {"f()\n"}),
        ("f(**a)\n", set()),
        ("f(a=1, *b)\n", set()),
    ],
    "dropped-guard": [
        ("def f(a):\n    if a:\n        return 1\n    return 2\n", {"def f(a):\n    return 2\n"}),
        ("if a:\n    b()\n", set()),
    ],
    "lost-update": [
        ("def f(a):\n    a.append(1)  # grows\n", {"def f(a):\n    pass\n"}),
        ("a.b = 1\nc = 2\n", {"c = 2\n"}),
        ("a.b = 1; c = 2\n", set()),
    ],
    "wrong-default": [
        (
            "def f(a=True, *, b=2, c='x', d=None): pass\n",
            {
                "def f(a=False, *, b=2, c='x', d=None): pass\n",
                "def f(a=True, *, b=3, c='x', d=None): pass\n",
                'def f(a=True, *, b=2, c="", d=None): pass\n',
            },
        ),
    ],
    "mutable-default": [
        (
            "def f(a=None):\n    if a is None:\n        a = list()\n    return a\n",
            {"def f(a=[]):\n    return a\n"},
        ),
        ("def f(a=None):\n    if a is None:\n        a = b\n    return a\n", set()),
    ],
    "wrong-constant": [("x = True\n", {"x = False\n"}), ("f(a=False)\n", {"f(a=True)\n"})],
    "removed-return": [("def f():\n    return g(1)\n", {"def f():\n    g(1)\n"})],
    "removed-await": [("async def f():\n    x = await g()\n", {"async def f():\n    x = g()\n"})],
    "wrong-variable": [("def f(a, b):\n    return g(a)\n", {"def f(a, b):\n    return g(b)\n"})],
    "confused-name": [("x = min(a)\n", {"x = max(a)\n"}), ("x = a.lstrip()\n", {"x = a.rstrip()\n"})],
    "swapped-branches": [("x = a if c else b + 1\n", {"x = (b + 1) if c else a\n"})],
    "dropped-term": [("x = a * b\n", {"x = a\n"})],
    "dropped-sign": [("x = -a\n", {"x = a\n"})],
    "dropped-conversion": [("x = int(a + b)\n", {"x = (a + b)\n"}), ("x = int(a, 2)\n", set())],
    "wrong-slice": [("x = a[b:c]\n", {"x = a[:c]\n", "x = a[b:]\n"})],
    "wrong-jump": [("for a in b:\n    break\n", {"for a in b:\n    continue\n"})],
    "wrong-exception": [
        ("raise ValueError('x')\n", {"raise TypeError('x')\n"}),
        ("try:\n    f()\nexcept KeyError:\n    pass\n", {"try:\n    f()\nexcept IndexError:\n    pass\n"}),
    ],
}


def broken(kind: str, text: str) -> set[str]:
    code = Code(text.encode())
    found = (edit for node in ast.walk(code.tree) for edit in OPERATORS[kind](node, code) if edit)
    return {code.spliced(edit).decode() for edit in found}


def test_every_operator_has_cases() -> None:
    assert set(CASES) == set(OPERATORS)
    assert len(OPERATORS) >= 15


@pytest.mark.parametrize("kind", OPERATORS)
def test_an_operator_makes_exactly_the_expected_edits(kind: str) -> None:
    for text, expected in CASES[kind]:
        assert broken(kind, text) == expected, text


def test_an_edit_keeps_every_other_byte() -> None:
    text = "x = 'ä'  # é\r\nif (a  +  # why\r\n    b):\r\n    y = a  <  b ;z = 1\r\n"
    assert broken("wrong-boundary", text) == {text.replace("<", "<=")}
    assert broken("wrong-operator", text) == set()  # a comment is in between
