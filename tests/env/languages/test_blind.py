"""Rewritten tests hold no expected value, and a comparison outside gives the outcome that the test had."""

from __future__ import annotations

import ast
import datetime
import json
import math
import textwrap
import unittest
from collections import ChainMap, OrderedDict, UserDict, UserList, UserString, deque, namedtuple
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swegym_env.grading.comparisons import canonical, error_class, holds, read_records
from swegym_env.languages import Blinded, python
from swegym_env.languages.python.blind import make_blind
from swegym_env.languages.python.constants import NotConstantError, fold

SENDER = Path(python.__file__).parent / "inside/swegym_blind.py"
HEAD = "import datetime, decimal, numpy, pytest, re, textwrap\n\n\n"


def blinded(source: str, *names: str, left: frozenset[str] = frozenset(), seed: int = 3) -> Blinded | None:
    return make_blind({"t/test_x.py": source}, names or ["t/test_x.py::test_x"], left, seed)


def outcome(source: str, value: Any, tmp_path: Path) -> bool | None:
    """Whether the test in `source` passes where `value()` returns or raises `value`; None if it is not rewritten."""
    found = blinded(source)
    if found is None:
        return None
    (text,) = found.files.values()
    for path, content in found.support.items():
        (tmp_path / "sender.py").write_text(content)
        text = text.replace(path, str(tmp_path / "sender.py"))
    sent = tmp_path / "sent"
    sent.unlink(missing_ok=True)
    text = text.replace(found.output, str(sent))

    def give() -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    names: dict[str, Any] = {"value": give, "case": unittest.TestCase(), "Message": Message}
    exec(compile(text, "test_x.py", "exec"), names)
    names["test_x"]()
    records = list(read_records(sent.read_bytes()))
    expected = [
        (found.expectations[record.key], found.placeholders.get(record.placeholder or ""), record.value)
        for record in records
    ]
    assert {record.key for record in records} == set(found.expectations), "not every comparison was reached"
    return all(holds(e, e.value if e.constant else p.value, value) for e, p, value in expected if e.constant or p)


def sent_by(source: str, tmp_path: Path, **names: Any) -> list[tuple[str, Any]]:
    """Kind and value of what the rewritten test sends, which runs with these names."""
    found = blinded(source)
    assert found is not None
    (text,) = found.files.values()
    (script,) = found.support
    (tmp_path / "sender.py").write_text(found.support[script])
    sent = tmp_path / "sent"
    sent.unlink(missing_ok=True)
    text = text.replace(script, str(tmp_path / "sender.py")).replace(found.output, str(sent))
    scope: dict[str, Any] = {"case": unittest.TestCase(), **names}
    exec(compile(text, "test_x.py", "exec"), scope)
    try:
        scope["test_x"]()
    finally:
        records = list(read_records(sent.read_bytes())) if sent.exists() else []
    return [(found.expectations[record.key].kind, record.value) for record in records]


class Day(datetime.date):
    pass


class Shout(str):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__

    def __str__(self) -> str:
        return "alpha-one"


class Same:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


@dataclass
class Message:
    text: str
    level: int


Pair = namedtuple("Pair", "a b")

# The body of a test, a value with which it passes, values with which it fails.
CASES: dict[str, tuple[str, Any, list[Any]]] = {
    "an equality": ("assert value() == 'alpha-one'", "alpha-one", ["alpha", b"alpha-one", None, Same(), Shout("x")]),
    "the other way round": ("assert 'alpha-one' == value()", "alpha-one", ["alpha-two"]),
    "a subclass of text": ("assert value() == 'alpha-one'", Shout("alpha-one"), [Shout("other")]),
    "numbers of another type": ("assert value() == 1", 1.0, [2, "1", True + 1]),
    "an exact float": ("assert value() == 0.1 + 0.2", 0.1 + 0.2, [0.3]),
    "a float that equals nothing": ("assert value() == -1e400", -math.inf, [math.nan, math.inf]),
    "a container": (
        "assert value() == {'a': [1, (2, b'x')], 'b': {3}}",
        {"b": {3}, "a": [1, (2, b"x")]}, [{}, {"a": 1}],
    ),
    "a date": (
        "assert value() == datetime.date(2024, 2, 29)", Day(2024, 2, 29),
        [datetime.date(2024, 2, 28), datetime.datetime(2024, 2, 29), "2024-02-29", Same()],
    ),
    "a time": (
        "assert value() == [datetime.datetime(2024, 2, 29, 12), datetime.timedelta(days=1)]",
        [datetime.datetime(2024, 2, 29, 12), datetime.timedelta(hours=24)],
        [[datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.timezone.utc), datetime.timedelta(days=1)]],
    ),
    "a decimal written out": ("assert value() == decimal.Decimal('1.10')", Decimal("1.1"), [Decimal("1.2"), 1.1]),
    "a comprehension": ("assert value() == [f'no {n}' for n in range(2)]", ["no 0", "no 1"], [["no 0"]]),
    "a piece": ("assert value() == 'alpha-one'[:5]", "alpha", ["alpha-one"]),
    "what the code may have changed": ("kept = {'a': 1}\n    assert kept == {'a': value()}", 1, []),
    "a named tuple": ("assert value() == (1, 'two')", Pair(1, "two"), [[1, "two"], (1, "Two")]),
    "an ordered dictionary": ("assert value() == dict(a=1)", OrderedDict(a=1), [{"a": 2}]),
    "containment": ("assert 'needle' in value()", "hay needle hay", ["hay", ["hay"], Same()]),
    "containment in a list": ("assert 'needle' in value()", ["hay", "needle"], [["needles"]]),
    "one of some": ("assert value() in ('left', 'right')", "right", ["up"]),
    "identity": ("assert value() is None", None, [False, 0]),
    "identity of truth": ("assert value() is True", True, [1, Same()]),
    "both of two": ("assert value() == 'alpha' and 'alpha' == value(), 'why'", "alpha", ["two"]),
    "nearness": ("assert value() == pytest.approx(2.5, rel=1e-3)", 2.5001, [2.6, "2.5", None]),
    "nearness of a list": ("assert value() == pytest.approx([1.0, 2.0])", [1.0, 2.0 + 1e-9], [[1.0], [1.0, 2.1]]),
    "a beginning": ("assert value().startswith('Usage: ')", "Usage: x", ["usage: x", 3]),
    "a name": ("wanted = 'alpha-one'\n    assert value() == wanted, wanted", "alpha-one", ["wanted"]),
    "one of two names": (
        "if value():\n        wanted = 'alpha'\n    else:\n        wanted = ''\n    assert value() == wanted",
        "alpha",
        ["beta", "alph"],
    ),
    "a composed constant": ("wanted = ['a', 'b']\n    assert value() == '-'.join(wanted) + '!' * 2", "a-b!!", ["a-b"]),
    "a format": ("name = 'Bo'\n    assert value() == f'Hi {name}' '!' % ()", "Hi Bo!", ["Hi {name}!"]),
    "dedented text": (
        'assert value() == textwrap.dedent("""\\\n        a\n          b\n        """)', "a\n  b\n",
        ["a"],
    ),
    "a loop": ("for number in (1, 2):\n        assert value() == 'alpha-one'", "alpha-one", ["x"]),
    "a column of a loop": ("for _, word in [(1, 'one'), (2, 'one')]:\n        assert value() == word", "one", ["two"]),
    "an expected error": (
        "with pytest.raises(ValueError, match='bad thing'):\n        value()",
        ValueError("a bad thing"), [],
    ),
    "unittest's equality": ("case.assertEqual(value(), 'alpha-one', 'why')", "alpha-one", ["x", Same(), Shout("x")]),
    "unittest's name": ("wanted = [1, 2]\n    case.assertListEqual(wanted, value())", [1, 2], [[2, 1]]),
    "unittest's count": ("case.assertCountEqual(value(), ['b', 'a'])", ["a", "b"], [["a"], ["a", "a", "b"]]),
    "unittest's truth of an equality": ("case.assertTrue(value() == 'alpha')", "alpha", ["beta"]),
    "unittest's None": ("case.assertIsNone(value())", None, [0]),
    "unittest's containment": ("case.assertIn('needle', value())", "a needle", ["a nettle"]),
    "unittest's nearness": ("case.assertAlmostEqual(value(), 2.5, places=3)", 2.5001, [2.51]),
    "unittest's pattern": ("case.assertRegex(value(), r'line \\d+: bad')", "line 12: bad", ["line x: bad"]),
    "truth": ("assert value()", [0], [[], None, 0]),
    "untruth": ("assert not value(), 'why'", 0, [1, "x"]),
    "unittest's truth": ("case.assertTrue(value())", 1, [0, ""]),
    "unittest's untruth": ("case.assertFalse(value())", "", [1, Same()]),
    "constants among other values": (
        "one = str(numpy)\n    wanted = [(one, 'alpha'), {'key': 'beta'}]\n    assert value() == wanted",
        [(str(numpy), "alpha"), {"key": "beta"}],
        [[(str(numpy), "alpha"), {"key": "x"}], [(str(numpy), Same()), {"key": "beta"}]],
    ),
    "unittest's constants among other values": (
        "case.assertSequenceEqual(value(), [str(numpy), 'alpha'])",
        (str(numpy), "alpha"),
        [(str(numpy), "beta")],
    ),
    "an object that keeps its arguments": (
        "assert value() == [Message('some text', level=7)]",
        [Message("some text", 7)],
        [[Message("other text", 7)], [Message(Same(), 7)]],
    ),
    "unittest's sequence": ("case.assertSequenceEqual(value(), [1, 'alpha'])", (1, "alpha"), [[1, "beta"]]),
    "arrays": (
        "numpy.testing.assert_allclose(value(), [1.5, numpy.nan], rtol=1e-3)",
        numpy.array([1.5001, numpy.nan]),
        [numpy.array([1.6, numpy.nan]), [1.5, 2.5], [1.5], "x"],
    ),
    "equal arrays": (
        "numpy.testing.assert_array_equal(value(), numpy.array([[1, 2], [3, 4]]))",
        numpy.array([[1, 2], [3, 4]]),
        [numpy.array([[1, 2], [3, 5]]), numpy.array([1, 2]), Same()],
    ),
    "all of an array": ("assert (value() == 3).all()", numpy.array([3, 3]), [numpy.array([3, 4]), numpy.float64(2.5)]),
    "a scalar of numpy": ("assert value() == 2.5", numpy.float64(2.5), [numpy.float64(2.25)]),
    "a view of keys for a set": (
        "assert value() == {'a', 'b'}", {"a": 1, "b": 2}.keys(),
        [{"a": 1}.keys(), {1: "a", 2: "b"}.values(), ["a", "b"]],
    ),
    "a view of items for a set": (
        "assert value() == {('a', 1)}", {"a": 1}.items(), [{"a": 2}.items(), {"a": []}.items()],
    ),
    "ordered keys for a set": ("assert value() == {'a'}", OrderedDict(a=1).keys(), [OrderedDict(b=1).keys()]),
    "a fraction": ("assert value() == 4096", Fraction(4096), [Fraction(4095), Fraction(8193, 2)]),
    "a decimal number": ("assert value() == 1.5", Decimal("1.50"), [Decimal("1.51"), Decimal("NaN"), Decimal("sNaN")]),
    "numbers in a set": ("assert value() == {1, 2}", {Decimal(1), Fraction(2)}, [{Decimal(1), Fraction(3)}]),
    "a chain of mappings": ("assert value() == {'a': 1}", ChainMap({}, {"a": 1}), [ChainMap({"a": 2}), [("a", 1)]]),
    "a view of a mapping": ("assert value() == {'a': 1}", MappingProxyType({"a": 1}), [MappingProxyType({})]),
    "a text in an object": ("assert value() == 'alpha'", UserString("alpha"), [UserString("beta")]),
    "a list in an object": ("assert value() == ['alpha']", UserList(["alpha"]), [UserList(["beta"]), deque(["alpha"])]),
    "a dictionary in an object": ("assert value() == {'a': 1}", UserDict({"a": 1}), [UserDict({"a": 2})]),
    "a view of bytes": ("assert value() == b'ab'", memoryview(b"ab"), [memoryview(b"ac")]),
    "identity of a type": ("assert value() is True", True, [Fraction(1), Decimal(1)]),
    "containment in keys": ("case.assertIn('a', value())", {"a": 1}.keys(), [{"b": 1}.keys()]),
    "containment in values": ("case.assertIn('a', value())", {1: "a"}.values(), [{1: "b"}.values(), map(str, [1])]),
    "containment in a range": ("assert 3 in value()", range(4), [range(3), deque([1])]),
    "a list for an iterator": ("assert value() == ['a']", ["a"], [iter(["a"]), map(str, "a"), {1: "a"}.values()]),
    "lines of a page": (
        "case.assertEqual(\n        value(),\n        'one '\n        'two',  # three\n    )",
        "one two",
        ["one"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_comparison_outside_has_the_outcome_that_it_had_inside(
    case: tuple[str, Any, list[Any]], tmp_path: Path
) -> None:
    body, right, wrong = case
    source = f"{HEAD}def test_x():\n    {body}\n"
    assert outcome(source, right, tmp_path) is True
    for value in wrong:
        try:
            assert outcome(source, value, tmp_path) is False
        except AttributeError:  # 3 has no startswith: the test fails inside
            assert "startswith" in body


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_no_expected_value_is_left_in_a_rewritten_test(case: tuple[str, Any, list[Any]]) -> None:
    source = f"{HEAD}def test_x():\n    {case[0]}\n"
    found = blinded(source)
    assert found is not None
    (text,) = found.files.values()
    assert len(text.split("\n")) == len(source.split("\n"))
    known = {node.value for node in ast.walk(ast.parse(HEAD)) if isinstance(node, ast.Constant)}
    inside = {
        repr(node.value)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and node.value not in known and not isinstance(node.value, bool)
    }
    for value in [e.value for e in found.expectations.values()] + [p.value for p in found.placeholders.values()]:
        if isinstance(value, str) and len(value) > 1:
            assert repr(value) not in inside
            assert value not in text


def test_errors_with_messages_are_compared_by_their_messages(tmp_path: Path) -> None:
    source = f"{HEAD}def test_x():\n    with pytest.raises(ValueError, match='bad.* thing'):\n        value()\n"
    assert outcome(source, ValueError("a bad, bad thing"), tmp_path) is True
    assert outcome(source, ValueError("a good thing"), tmp_path) is False
    with pytest.raises(KeyError):
        outcome(source, KeyError("a bad, bad thing"), tmp_path)
    regex = f"{HEAD}def test_x():\n    case.assertRaisesRegex(ValueError, 'bad', value)\n"
    assert outcome(regex, ValueError("bad"), tmp_path) is True
    assert outcome(regex, ValueError("good"), tmp_path) is False


LEFT = {
    "no constant": "assert value() == other()",
    "two constants": "assert 1 == 1",
    "an inequality": "assert value() != 'x'",
    "a comparison of three": "assert value() == 'x' == other()",
    "an alternative": "assert value() == 'x' or other()",
    "a name with another use": "wanted = pick()\n    assert value() == wanted",
    "a list with a name in it": "assert value() == [other]",
}


@pytest.mark.parametrize("body", LEFT.values(), ids=LEFT.keys())
def test_what_does_not_compare_with_a_constant_stays(body: str) -> None:
    source = f"{HEAD}def test_x():\n    {body}\n"
    found = blinded(source)
    assert found is None or all("beside" in one.options for one in found.expectations.values())
    text = next(iter(found.files.values())) if found is not None else source
    inside = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
    assert {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)} <= inside


CHECKED = {
    "an equality": ("case.assertEqual(value(), other())", [1, 1]),
    "a condition": ("assert value() == other()", [1, 1]),
    "an order": ("assert 0 <= value() < other() + 1", [1, 2]),
    "a helper of the product": ("assert_alike(value(), wanted=other())", [1, 1]),
    "a constant with another use": ("wanted = value()\n    assert other() == wanted", [1, 1]),
}


@pytest.mark.parametrize("body", CHECKED)
def test_what_computed_conditions_compare_is_sent_beside_them_and_they_are_checked(body: str, tmp_path: Path) -> None:
    line, sent = CHECKED[body]

    def alike(one: int, wanted: int) -> None:
        assert one == wanted

    source = f"{HEAD}def test_x():\n    {line}\n"
    names: dict[str, Any] = {"value": lambda: 1, "assert_alike": alike}
    assert sent_by(source, tmp_path, other=lambda: 1, **names) == [("gold", sent)]
    with pytest.raises(AssertionError):
        sent_by(source, tmp_path, other=lambda: 0, **names)


def test_a_part_is_sent_as_it_was_before_later_parts_were_computed(tmp_path: Path) -> None:
    held: list[int] = []

    def filled() -> int:
        held.append(3)
        return 3

    source = f"{HEAD}def test_x():\n    assert value() == [other()]\n    assert same() != [other()]\n"
    names: dict[str, Any] = {"value": lambda: held, "other": filled, "same": lambda: [4]}
    assert sent_by(source, tmp_path, **names) == [("gold", [[3], [3], '["l", []]']), ("gold", [[4], [3]])]


@pytest.mark.parametrize(
    ("body", "option"),
    [
        ("case.assertEqual(f('3,4'), Point(3, 4))", ""),
        ("assert f('3,4') == Point(3, 4)", ""),
        ("assert f('3,4') == [Point(3, 4), m.LEFT]", ""),
        ("assert f(2) < g(3)", "either"),
        ("assert Point(3, 4) == f('3,4')", "either"),
        ("want = Point(3, 4)\n    assert f('3,4') == want", "given"),
        ("want = Point(3, 4)\n    assert f('3,4') == [want]", "given"),
        ("assert f('3,4') == case.want", "given"),
        ("for want in [f(1), f(2)]:\n        assert f(3) == want", "given"),
        ("assert f(3) != 5", ""),
    ],
)
def test_what_the_code_under_test_may_be_given_before_it_computes_is_known(body: str, option: str) -> None:
    found = blinded(f"from m import Point, f, g\nimport m\n\n\ndef test_x(case):\n    {body}\n")
    assert found is not None
    (expectation,) = found.expectations.values()
    known = expectation.options.keys() & {"given", "either"}
    assert option in known if option else not known


@pytest.mark.parametrize(
    ("body", "is_loose"),
    [
        ("assert f(Decimal('1.5')) == 'zqxw'", False),
        ("assert f(decimal.Decimal('1.5')) == 'zqxw'", False),
        ("assert f(Fraction(1, 2)) == 47", False),
        ("assert f(Own('1.5')) == 'zqxw'", True),
        ("assert f(m.Decimal('1.5')) == 'zqxw'", True),
        ("assert f(Decimal(g())) == 'zqxw'", True),
        ("assert f(2).same_as(Decimal('1.5'))", True),
        ("assert f(2).same_as(Decimal('1.5')) == 0", True),
        ("want = Own(3)\n    assert f(2).same_as(want)", True),
        ("want = 3\n    assert f(2).same_as(want)", True),
        ("assert f(2).same_as(3)", True),
        ("with pytest.raises(KeyError, match='zqxw'):\n        f(2)", True),
        ("assert 'zqxw' in f(2)", False),
    ],
)
def test_an_outcome_that_many_values_have_is_loose(body: str, is_loose: bool) -> None:
    imports = "import decimal, pytest, m\nfrom decimal import Decimal\nfrom fractions import Fraction\n"
    found = blinded(f"{imports}from m import Own, f, g\n\n\ndef test_x():\n    {body}\n")
    assert found is not None
    compared = [one for one in found.expectations.values() if one.kind != "asked"]
    assert [("loose" in one.options) for one in compared] == [is_loose]


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        ("assert value().find('row') >= 0", [("asked", "a row"), ("gold", [2])]),
        (
            "case.assertTrue(value().startswith(other()) and value().find('row') >= 0)",
            [("gold", [True]), ("asked", "a row"), ("gold", [2])],
        ),
        ("assert value().count('row') == 1", [("asked", "a row"), ("eq", 1)]),
        ("assert value() == 'a row'", [("eq", "a row")]),
    ],
)
def test_what_a_condition_asks_is_sent_and_asked(body: str, sent: list[Any], tmp_path: Path) -> None:
    found = sent_by(f"{HEAD}def test_x():\n    {body}\n", tmp_path, value=lambda: "a row", other=lambda: "a")
    assert found[: len(sent)] == sent


def test_a_method_of_an_object_that_cannot_be_inspected_is_still_called(tmp_path: Path) -> None:
    class Hidden:
        def __getattribute__(self, name: str) -> Any:
            if name == "get":
                return {47: True}.get
            raise RuntimeError(name)

    source = f"{HEAD}def test_x():\n    assert value().get(47)\n"
    assert ("is", True) in sent_by(source, tmp_path, value=Hidden)


def test_an_error_of_many_kinds_has_no_message(tmp_path: Path) -> None:
    class ManyError(KeyError, TypeError):
        pass

    class OneError(KeyError):
        pass

    source = f"{HEAD}def test_x():\n    with pytest.raises(KeyError, match='zqxw'):\n        value()\n"

    def sent(error: Exception) -> Any:
        def value() -> None:
            raise error

        ((_, found),) = sent_by(source, tmp_path, value=value)
        return found

    assert sent(KeyError("zqxw")) == sent(OneError("zqxw")) == "'zqxw'"
    assert sent(ManyError("zqxw")).name.endswith("ManyError")


class Closed:
    @property
    def __class__(self) -> Any:
        raise OSError("do not look at me")

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        raise OSError(kind)


def test_a_condition_of_objects_that_cannot_be_inspected_is_still_checked(tmp_path: Path) -> None:
    closed = Closed()
    source = f"{HEAD}def test_x():\n    assert value() is other()\n    case.assertTrue(one() == other())\n"
    names: dict[str, Any] = {"value": lambda: closed, "one": lambda: closed}
    assert sent_by(source, tmp_path, other=lambda: closed, **names) == []
    with pytest.raises(AssertionError):
        sent_by(source, tmp_path, other=Closed, **names)


class Safe(str):
    """Like Django's SafeString."""

    __slots__ = ()

    def __add__(self, other: str) -> Safe:
        return Safe(str.__add__(self, other))

    def __str__(self) -> str:
        return self


class Loud(Safe):
    def __contains__(self, item: object) -> bool:
        return True


class Lying(str):
    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name)


class Items(list):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter(["alpha"])


@pytest.mark.parametrize(
    ("kind", "value", "may_differ"),
    [
        ("eq", "alpha", False),
        ("eq", Safe("alpha"), False),
        ("in", Safe("alpha"), False),
        ("eq", [Safe("alpha")], False),
        ("eq", OrderedDict(a=1), False),
        ("eq", Pair(1, 2), False),
        ("eq", Shout("alpha"), True),
        ("eq", [Shout("alpha")], True),
        ("eq", Pair(1, Shout("alpha")), True),
        ("in", Loud("alpha"), True),
        ("eq", Lying("alpha"), True),
        ("count", Items(["alpha"]), True),
        ("eq", type("Number", (int,), {})(1), True),
        ("is", Safe("alpha"), True),
    ],
)
def test_a_subclass_that_compares_as_its_builtin_base_is_distinguished(
    kind: str, value: Any, may_differ: bool, tmp_path: Path
) -> None:
    scope: dict[str, Any] = {"OUT": str(tmp_path / "sent")}
    exec(compile(SENDER.read_text(encoding="utf-8"), "sender.py", "exec"), scope)
    scope["compare"]("key", kind, value)
    (record,) = read_records((tmp_path / "sent").read_bytes())
    assert record.foreign is may_differ


def test_an_error_of_a_class_of_the_product_is_sent_and_checked(tmp_path: Path) -> None:
    class OwnError(Exception):
        pass

    def fail(error: Exception) -> Any:
        raise error

    source = (
        f"{HEAD}def test_x():\n    with case.assertRaises(OwnError) as caught:\n        value()\n    assert caught\n"
    )
    ((kind, error), *_) = sent_by(source, tmp_path, value=lambda: fail(OwnError()), OwnError=OwnError)
    assert kind == "raised"
    assert error[0].endswith("OwnError")
    with pytest.raises(ValueError, match="another"):
        sent_by(source, tmp_path, value=lambda: fail(ValueError("another")), OwnError=OwnError)


def test_inherited_tests_of_the_same_file_are_found() -> None:
    source = textwrap.dedent("""\
        class Base:
            def test_x(self):
                assert value() == 'alpha-one'

        class Middle(Base):
            pass

        class Last(Middle):
            pass
    """)
    for name in ("t/test_x.py::Last::test_x", "t.test_x.Last.test_x", "test_x (t.test_x.Middle)"):
        found = blinded(source, name)
        assert found is not None
        assert [one.names for one in found.expectations.values()] == [{name}]
    assert blinded(source, "t/test_x.py::Other::test_x") is None


def test_a_constant_that_the_test_also_uses_stays_readable_and_its_comparison_is_still_outside(tmp_path: Path) -> None:
    source = "def test_x():\n    wanted = 'alpha-one'\n    len(wanted)\n    assert value() == wanted\n"
    found = blinded(source)
    assert found is not None
    assert "'alpha-one'" in next(iter(found.files.values()))
    assert outcome(source, "alpha-one", tmp_path) is True
    assert outcome(source, "alpha", tmp_path) is False


def test_placeholders_stand_in_parametrised_tests_and_in_their_names() -> None:
    source = textwrap.dedent("""\
        import pytest

        CASES = [(1, "uno"), (2, "dos")]

        @pytest.mark.parametrize("number, word", CASES)
        def test_x(number, word):
            check(name(number), word)

        def check(actual, wanted):
            assert actual == wanted

        @pytest.mark.parametrize("number, word", [(3, "tres")])
        def test_other(number, word):
            assert name(number) == word
    """)
    found = blinded(source, "t/test_x.py::test_x[1-uno]")
    assert found is not None
    (text,) = found.files.values()
    assert "uno" not in text
    assert "dos" not in text
    assert "tres" in text  # another test
    assert sorted((mark.value, mark.text) for mark in found.placeholders.values()) == [("dos", "dos"), ("uno", "uno")]
    (expectation,) = found.expectations.values()
    assert expectation.names == {"t/test_x.py::test_x[1-uno]"}


def test_expressions_of_sympy_that_are_written_out_are_compared_by_their_structure() -> None:
    source = textwrap.dedent("""\
        from sympy import S, Symbol, pi, solve, sqrt, symbols
        x, y = symbols("x y")

        def test_x():
            z = Symbol("z")
            assert solve(x**2 - 5) == [-sqrt(5), sqrt(5)]
            assert y**7 + pi == solve(x)
            assert solve(z) == z
            assert set(solve(x**2)) == {x**2, 4*y, S.One}
            assert solve(x) == 3
            assert solve(x) == solve(y)
            assert solve(x) == later
    """)
    found = blinded(source)
    assert found is not None
    (text,) = found.files.values()
    assert "sqrt(5)" not in text
    assert "y**7" not in text
    kinds = sorted((e.place.split(":")[1], e.kind, e.value) for e in found.expectations.values())
    written = [("6", "same"), ("7", "same"), ("8", "same"), ("9", "same")]
    assert "4*y" not in text
    assert [(line, kind) for line, kind, _ in kinds] == [("10", "eq"), ("11", "gold"), ("12", "gold"), *written]
    assert kinds[4][2] == [7, "pi", "y"]


_VALUE_ERROR = ["builtins.ValueError", "builtins.Exception", "builtins.BaseException", "builtins.object"]
_KEY_ERROR = ["builtins.KeyError", "builtins.LookupError", *_VALUE_ERROR[1:]]


@pytest.mark.parametrize(
    ("names", "wanted", "found"),
    [
        (_VALUE_ERROR, "ValueError", "builtins.ValueError"),
        (["m.Empty", *_VALUE_ERROR], "ValueError", "builtins.ValueError"),
        (["m.Empty", "m.Wrong", *_VALUE_ERROR], "Wrong", "m.Wrong"),
        (["m.Empty", *_KEY_ERROR], "LookupError", "builtins.LookupError"),
        (["m.Lost", "builtins.OSError", *_VALUE_ERROR[1:]], "IOError", "builtins.OSError"),
        (["m.ValueError", *_VALUE_ERROR[1:]], "ValueError", "m.ValueError"),  # another class of that name
        (["m.Empty", *_VALUE_ERROR], "KeyError", "m.Empty"),
        (["m.All", *_KEY_ERROR[:2], *_VALUE_ERROR], "ValueError", "m.All"),  # guesses two builtin classes at once
        (["m.All", "builtins.ValueError", *_KEY_ERROR], "KeyError", "m.All"),
        (["m.All", "m.One", "m.Two", *_VALUE_ERROR[1:]], "Two", "m.All"),
        (["m.All", *_VALUE_ERROR, "m.Two"], "Two", "m.All"),
        (None, "ValueError", None),
        ([], "ValueError", []),
        ([["x"]], "ValueError", [["x"]]),
    ],
)
def test_an_error_is_of_the_class_that_the_test_names_or_of_its_own(names: Any, wanted: str, found: Any) -> None:
    assert error_class(names, wanted) == found


@pytest.mark.parametrize(
    "packed",
    [
        ["q", ["0x1", "0x0"]],
        ["q", ["0x1"]],
        ["q", ["f" * 5000, "0x1"]],
        ["m", "1" * 5000],
        ["m", "x"],
        ["m", 1],
        ["w", ["date", 1, 2]],
        ["w", ["date", 1, 2, 1 << 99]],
        ["w", ["sleep", 1]],
        ["w", "date"],
        ["w", ["date", 1, 2, "3"]],
    ],
)
def test_numbers_that_are_none_or_too_long_are_skipped(packed: Any) -> None:
    assert list(read_records(json.dumps(["k", None, packed, ["", "", ""]]).encode())) == []


def test_equal_numbers_have_the_same_canonical_text_whatever_their_size() -> None:
    for equal in ((3, 3.0, Fraction(3), Decimal("3.0")), (1.5, Fraction(3, 2), Decimal("1.50"))):
        assert len({canonical(value) for value in equal}) == 1
    others = (1 << 20000, Decimal("1E+999999"), Decimal("NaN"), Decimal("sNaN"), Fraction(1, 3), Fraction(10**400, 3))
    assert len({canonical(value) for value in others}) == len(others)


def test_placeholders_are_drawn_anew() -> None:
    source = "def test_x():\n    assert value() == 'x'\n"
    one, two = blinded(source, seed=1), blinded(source, seed=2)
    assert one is not None
    assert two is not None
    assert one.output != two.output
    assert not set(one.expectations) & set(two.expectations)
    assert [e.place for e in one.expectations.values()] == [e.place for e in two.expectations.values()]


def test_a_place_that_is_to_be_left_is_left() -> None:
    source = "def test_x():\n    assert value() == 'x'\n    assert value() == 'y'\n"
    found = blinded(source, left=frozenset({"t/test_x.py:2:11"}))
    assert found is not None
    assert [e.value for e in found.expectations.values()] == ["y"]
    assert "assert value() == 'x'" in next(iter(found.files.values()))


@given(
    st.binary(max_size=300)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=30).map(
        lambda value: json.dumps(["k", None, value, ["", ""]]).encode()
    )
)
@settings(deadline=None)
def test_records_are_read_from_any_bytes(content: bytes) -> None:
    for record in read_records(content):
        assert isinstance(record.key, str)


@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000, b'["k", null, ' + b'["l", [' * 5000, b'["k", null, ["i", "' + b"f" * 5000 + b'"], ["", ""]]',
     b'["k", null, ["e", [["l", []]]], ["", ""]]', b'["k", null, ["d", [["n"]]], ["", ""]]', b"\xff\xfe" * 10],
)  # fmt: skip
def test_hostile_records_are_skipped_or_read(content: bytes) -> None:
    assert len(list(read_records(content))) <= 1


@pytest.mark.parametrize(
    "source", ["'x' * (1 << 40)", "'%999999999d' % 1", "2 ** 10 ** 10", "'{:>999999999}'.format(1)", "x", "f()",
               "'a'.__class__", "open('x')", "('a' * 9999).replace('a', 'b' * 9999)", "[*x]", "'{0.real}'.format(1)",
               "time.time()", "time()", "range(1 << 40)", "[a for a in range(9) for b in 'ab']", "[1 for a in x]",
               "[[1 for b in 'ab' * 999] for a in 'ab' * 999]", "datetime.now()"]
)  # fmt: skip
def test_what_is_no_small_constant_is_not_folded(source: str) -> None:
    with pytest.raises(NotConstantError):
        fold(ast.parse(source, mode="eval").body)


_SECRET = "zq7wk"
_HOLDING = f'''"""Of {_SECRET}."""
import unittest

import pytest

from m import Point, f

# it is {_SECRET}
WANTED = Point("{_SECRET}")
OTHER, KEPT = Point("{_SECRET}"), "abc"
LATER = [WANTED]


def made(name):
    """Makes {_SECRET}."""
    return Point(name or "{_SECRET}")


def check(case, text, point):
    case.assertEqual(f(text), point)


@pytest.fixture
def point_of_abc():
    yield Point("{_SECRET}")


@pytest.fixture
def text_of_abc(): return "abc"


def test_y(text_of_abc, point_of_abc):
    def test_inner():
        return text_of_abc

    assert f(test_inner()) == point_of_abc


@pytest.mark.parametrize("text", ["{_SECRET}"])
def test_other(text):
    assert f(text) == Point("{_SECRET}")


@pytest.mark.parametrize("text, point", [("abc", Point("{_SECRET}")), ("abd", LATER[0])])
def test_x(text, point):
    """
    Not {_SECRET}."""
    assert f(text) == point


class TestX(unittest.TestCase):
    point = Point("{_SECRET}")

    def setUp(self):
        self.held = Point("{_SECRET}")

    @staticmethod
    def make():
        return Point("{_SECRET}")

    def test_other(self):
        self.assertEqual("{_SECRET}", "{_SECRET}")

    async def test_await(self): self.assertEqual("{_SECRET}", "{_SECRET}")

    def test_x(self):
        local = Point("{_SECRET}")
        self.assertEqual(f(KEPT), WANTED)
        self.assertEqual(f(KEPT), self.point)
        self.assertEqual(f(KEPT), self.held)
        self.assertEqual(f(KEPT), self.make())
        self.assertEqual(f(KEPT), made(""))
        self.assertEqual(f(KEPT), local)
        check(self, KEPT, Point("{_SECRET}"))
        check(self, KEPT, OTHER)
        for text, point in [("abc", Point("{_SECRET}"))]:
            self.assertEqual(f(text), point)
'''


def test_without_expected_values_a_file_contains_only_the_tests_and_what_they_use() -> None:
    names = [f"t/test_x.py::{name}" for name in ("test_x[abc-point0]", "test_x[abd-point1]", "TestX::test_x", "test_y")]
    found = make_blind({"t/test_x.py": _HOLDING}, names, frozenset(), 3, computed=True)
    assert found is not None
    text = found.files["t/test_x.py"]
    lines = [f"{number}: {line}" for number, line in enumerate(text.splitlines(), 1) if _SECRET in line]
    assert lines == []
    assert text.count("\n") == _HOLDING.count("\n")
    functions = [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    assert functions.count("test_x") == functions.count("test_other") == 2
    assert "KEPT = " in text
    assert '"abc"' in text
    assert len(found.expectations) == 10
    assert all(kept in text for kept in ('return "abc"', "return text_of_abc", "@staticmethod"))
    plain = make_blind({"t/test_x.py": _HOLDING}, names, frozenset(), 3)
    assert plain is not None
    assert _SECRET in plain.files["t/test_x.py"], "elsewhere the tests check what they compare"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("decorator", ["@ skipif(False)", "@(skipif(False))", "@(\n    skipif\n    (False)\n)"])
def test_decorators_in_parentheses_go_with_their_function(decorator: str, end: str) -> None:
    inner = decorator.replace("\n", "\n    ")
    text = (
        f"{decorator}\ndef test_other():\n    assert f(3) == 'word'\n\n\nclass TestA:\n"
        f"    {inner}\n    def test_more(self):\n        assert f(4) == 'words'\n\n"
        f"    {inner}\n    def test_x(self):\n        assert f(5) == f(6)\n        assert f(2) == 1234\n"
    ).replace("\n", end)
    for computed in (False, True):
        found = make_blind({"t/test_x.py": text}, ["t/test_x.py::TestA::test_x"], frozenset(), 3, computed=computed)
        assert found is not None
        made = found.files["t/test_x.py"]
        names = [node.name for node in ast.walk(ast.parse(made)) if isinstance(node, ast.FunctionDef)]
        assert names == ["test_other", "test_more", "test_x"]
        assert ("word" not in made) == computed
