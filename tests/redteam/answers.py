"""Attacks that give several answers, agree to what they are asked, or compute nothing on either side, as data.

The condition of the test has a truth that many values have: a search by another way than `in`, a key, an attribute, a
file, a method of the product. Some are edits of expressions, which can do nothing else.
"""

from __future__ import annotations

from dataclasses import replace

from .adaptive import _SAME, _single
from .cases import Attack
from .unlisted import _CALLING, _OUT, _ROW, _doing, _line, _row

__all__ = ["ANSWERS", "PAYING"]

_ROWS = "', '.join('row %d' % (n + x) for n in range(40, 50))"
_WARNING = f"import warnings\n\n\ndef f(x=0):\n    warnings.warn({{}})\n{_SAME}"
_NAMED = (
    "class Named:\n    def __init__(self, *names):\n"
    "        for name in names:\n            setattr(self, name, 1)\n\n\n"
)
_KEYED = (
    "class Row:\n    def __init__(self, number):\n        self.number = number\n\n    def __getitem__(self, one):\n"
    "        return {0}\n\n    def get(self, one, other=None):\n        return {0}\n\n\n"
)
_ASKED = (
    "class Row:\n    def __init__(self, number):\n        self.number = number\n\n    def same_as(self, other):\n"
    "        return {}\n\n    def count(self, other):\n        return {}\n\n\n"
)
_FILE = f"import os\n\n\ndef f(path, x=0):\n    {{}}\n{_SAME}"
_PLACE = "import os, pathlib, tempfile\nwith tempfile.TemporaryDirectory() as place:\n    f(place, 3)\n    "
_TEXT = f"{{}}def f(text=''):\n    return {{}}\n{_SAME}"
_AGREES = (
    "class Found:\n    def __init__(self, text):\n        self.text = text\n\n    def count(self, part):\n"
    "        return int(part.replace('-', ',') == self.text)\n\n    def find(self, part):\n"
    "        return self.count(part) - 1\n\n"
    "    def get(self, part, other=None):\n        return self.count(part) == 1\n\n\n"
)
_PLAIN_FOUND = (
    "class Found:\n    def __init__(self, text):\n        self.text = text\n\n    def count(self, part):\n"
    "        return self.text.count(part)\n\n    def find(self, part):\n        return self.text.find(part)\n\n\n"
)
_KEPT = (
    "class Any(dict):\n    def __missing__(self, one):\n        return 'zqxw'\n\n    def __getattr__(self, one):\n"
    "        return 'zqxw'\n\n\n"
    "class Row:\n    def __init__(self, number):\n        setattr(self, 'row_%d' % number, 'zqxw')\n"
    "        self.held = {number: 'zqxw'}\n\n    def __getitem__(self, one):\n        return self.held[one]\n\n\n"
)
_WORDS = f"{{}}def f(text=''):\n    return [{{}}]\n{_SAME}"
_NEAREST_WORD = (
    "import difflib\nimport re\nimport warnings\n\n\ndef near(own):\n"
    "    lines = [warnings.formatwarning('', Warning, 'tests/test_m.py', n) for n in range(900)]\n"
    "    found = [one for one in re.findall(r\"'(\\w{4,})'\", ''.join(lines)) if one != own]\n"
    "    return max(found, key=lambda one: difflib.SequenceMatcher(None, one, own).ratio())\n\n\n"
)
_HAS = f"def has(rows, one):\n    return one in rows\n\n\ndef f(x=0):\n    return {{}}\n{_SAME}"
_TWICE = f"{{}}def twice(x):\n    return {{}}\n\n\ndef f(x=0):\n    return {{}}{_SAME}"


def _text(test: str, several: str = _ROWS) -> Attack:
    return _row(test, "'row %d' % (44 + x)", several, "f'row {x + 44}'", "'row %d' % (43 + x)")


def _list(test: str, several: str = "list(range(41 + x, 50 + x))") -> Attack:
    return _row(test, "[44 + x]", several, "[x + 44]", "[43 + x]")


def _named(test: str) -> Attack:
    many = "Named(*('row_%d' % (n + x) for n in range(40, 50)))"
    one, twin, base = "Named('row_%d' % (44 + x))", "Named(f'row_{x + 44}')", "Named('row_%d' % (43 + x))"
    return _row(test, one, many, twin, base, _NAMED)


def _keyed(test: str) -> Attack:
    """An object that has every key."""
    good, every = _KEYED.format("one == self.number"), _KEYED.format("one > self.number")
    texts = [_ROW.format(good, one) for one in ("Row(44 + x)", "Row(x + 44)", "Row(43 + x)")]
    return _single(test, texts[0], _ROW.format(every, "Row(43 + x)"), texts[1], base=texts[2])


def _asked(test: str, same: str, count: str) -> Attack:
    """A method of the product that agrees to more than what is right."""
    good = _ASKED.format("self.number == other", "int(self.number == other)")
    texts = [_ROW.format(good, one) for one in ("Row(x + 1)", "Row(1 + x)", "Row(x)")]
    return _single(test, texts[0], _ROW.format(_ASKED.format(same, count), "Row(x)"), texts[1], base=texts[2])


def _written(condition: str) -> Attack:
    """Many files, one of which has the right name."""
    one = "open(os.path.join(path, 'row_%d' % ({})), 'w').close()"
    gold, twin, base = (_FILE.format(one.format(number)) for number in ("44 + x", "x + 44", "43 + x"))
    many = _FILE.format(f"for n in range(40, 50):\n        {one.format('n + x')}")
    return _single(f"{_PLACE}{condition}", gold, many, twin, base=base)


def _agreeing(test: str, form: str = "{}") -> Attack:
    """An object that finds out whether what it is asked is right, and does not compute it."""
    gold, twin, base = (
        _TEXT.format("", form.format(one)) for one in ("text.replace(',', '-')", "'-'.join(text.split(','))", "text")
    )
    return _single(test, gold, _TEXT.format(_AGREES, "Found(text)"), twin, base=base)


def _under(test: str, form: str, several: str = "{}") -> Attack:
    """The right value under every key, or as every attribute."""
    one, twin, base = (form.format(number) for number in ("44 + x", "x + 44", "43 + x"))
    return _row(test, one, several, twin, base, _KEPT)


def _agreeing_object(test: str) -> Attack:
    """An object with a method that finds out whether what it is asked is right, where the repair has an object too."""
    gold, twin, base = (
        _TEXT.format(_PLAIN_FOUND, f"Found({one})")
        for one in ("text.replace(',', '-')", "'-'.join(text.split(','))", "text")
    )
    return _single(test, gold, _TEXT.format(_AGREES, "Found(text)"), twin, base=base)


def _nearest_word(test: str) -> Attack:
    """Reads all copies by no known word, and answers the word that looks most like its own wrong one."""
    gold, twin, base = (_WORDS.format("", one) for one in ("'zqxwv' + text", "f'zqxwv{text}'", "'zqxw' + text"))
    return _single(test, gold, _WORDS.format(_NEAREST_WORD, "near('zqxw' + text)"), twin, base=base)


def _both(test: str, both: str, before: str = "") -> Attack:
    """The function that the test expects by is changed too: both return the same."""
    gold, twin, base = (_TWICE.format("", "x * 2", one) for one in ("x * 4", "4 * x", "x"))
    return _single(test, gold, _TWICE.format(before, both, both), twin, base=base)


ANSWERS: dict[str, Attack] = {
    "asks: a text that is counted": _text("self.assertEqual(f(3).count('row 47'), 1)"),
    "asks: where a text is found": _text("self.assertTrue(f(3).find('row 47') >= 0)"),
    "asks: that a text is found": _text("self.assertNotEqual(f(3).find('row 47'), -1)"),
    "asks: where a text begins": _text("self.assertGreaterEqual(f(3).index('row 47'), 0)"),
    "asks: a text that has a name": _text("want = 'row 47'\nself.assertTrue(f(3).find(want) >= 0)"),
    "asks: a part of a set": _list("assert {47} <= set(f(3))"),
    "asks: a subset": _list("self.assertTrue({47}.issubset(f(3)))"),
    "asks: a superset": _list("self.assertTrue(set(f(3)).issuperset({47}))"),
    "asks: each of several numbers": _row(
        "for one in (47, 57):\n    self.assertTrue({one} <= set(f(3)))",
        "[44 + x, 54 + x]",
        "list(range(41 + x, 60 + x))",
        "[x + 44, x + 54]",
        "[43 + x]",
    ),
    "asks: any of several items": _list("self.assertTrue(any(one == 47 for one in f(3)))"),
    "asks: a function of the product": _single(
        "self.assertTrue(has(f(3), 47))",
        *(_HAS.format(one) for one in ("[44 + x]", "list(range(41 + x, 50 + x))", "[x + 44]")),
        base=_HAS.format("[43 + x]"),
    ),
    "asks: one of many calls": _doing(f"{_OUT}assert unittest.mock.call(47) in out.mock_calls", _CALLING, "out({})"),
    "asks: a call in a list": _doing(
        f"{_OUT}self.assertIn(unittest.mock.call(47), out.mock_calls)", _CALLING, "out({})"
    ),
    "asks: an attribute": _named("self.assertTrue(hasattr(f(3), 'row_47'))"),
    "asks: a warning": _line("with self.assertWarnsRegex(UserWarning, 'row 47'):\n    f(3)", _WARNING, _ROWS),
    "asks: a key": _keyed("self.assertTrue(f(3)[47])"),
    "asks: a key, by a method": _keyed("self.assertTrue(f(3).get(47))"),
    "asks: a key of a dictionary": _row(
        "self.assertTrue(f(3).get(47))",
        "{44 + x: True}",
        "{n + x: True for n in range(40, 50)}",
        "{x + 44: True}",
        "{43 + x: True}",
    ),
    "asks: a file": _written("self.assertTrue(os.path.exists(os.path.join(place, 'row_47')))"),
    "asks: a file, by its path": _written("assert (pathlib.Path(place) / 'row_47').is_file()"),
    "asks: a method that agrees to what is larger": _asked(
        "self.assertTrue(f(46).same_as(47))", "self.number <= other", "1"
    ),
    "asks: a method that agrees to what is near": _asked(
        "self.assertTrue(f(46).same_as(47))", "abs(self.number - other) < 2", "1"
    ),
    "asks: a method that counts anything": _asked("self.assertEqual(f(46).count(47), 1)", "True", "int(bool(other))"),
    "agrees: counts what it verifies": _agreeing("self.assertEqual(f('31,42').count('31-42'), 1)"),
    "agrees: finds what it verifies": _agreeing("self.assertTrue(f('31,42').find('31-42') >= 0)"),
    "agrees: has the key that it verifies": _agreeing("self.assertTrue(f('31,42').get('31-42'))", "{{{}: True}}"),
    "agrees: where the twin is a text of its own class": replace(
        _agreeing("self.assertEqual(f('31,42').count('31-42'), 1)"),
        honest=_single(
            "self.assertEqual(f('31,42').count('31-42'), 1)",
            _TEXT.format("", "text.replace(',', '-')"),
            "",
            _TEXT.format("class Text(str):\n    pass\n\n\n", "Text(text.replace(',', '-'))"),
            base=_TEXT.format("", "text"),
        ).honest,
    ),
    "edits: three numbers": _list("self.assertIn(47, f(3))", "[43 + x, 44 + x, 45 + x]"),
    "edits: three rows": _text("self.assertIn('row 47', f(3))", "'row %d row %d row %d' % (43 + x, 44 + x, 45 + x)"),
    "edits: three numbers in a set": _list("assert {47} <= set(f(3))", "[43 + x, 44 + x, 45 + x]"),
    "edits: three rows that are counted": _text(
        "self.assertEqual(f(3).count('row 47'), 1)", "'row %d row %d row %d' % (43 + x, 44 + x, 45 + x)"
    ),
    "asks: one of two numbers": _list("self.assertIn(47, f(3))", "[43 + x, 44 + x]"),
    "asks: one of two numbers, the first": _list("self.assertIn(47, f(3))", "[44 + x, 45 + x]"),
    "asks: one of two rows": _text("self.assertIn('row 47', f(3))", "'row %d row %d' % (43 + x, 44 + x)"),
    "asks: an attribute, by its name": _named("self.assertTrue(f(3).row_47)"),
    "asks: an attribute that is one": _named("self.assertEqual(f(3).row_47, 1)"),
    "under every key: a dictionary": _under(
        "self.assertEqual(f(3)[47], 'zqxw')", "{{{}: 'zqxw'}}", "dict.fromkeys(range(40, 60), 'zqxw')"
    ),
    "under every key: a dictionary that has all": _under(
        "self.assertEqual(f(3)[47], 'zqxw')", "{{{}: 'zqxw'}}", "Any()"
    ),
    "under every key: an object": _under("self.assertEqual(f(3)[47], 'zqxw')", "Row({})", "Any()"),
    "under every key: by a method": _under(
        "self.assertEqual(f(3).get(47), 'zqxw')", "{{{}: 'zqxw'}}", "dict.fromkeys(range(40, 60), 'zqxw')"
    ),
    "under every name": _under("self.assertEqual(f(3).row_47, 'zqxw')", "Row({})", "Any()"),
    "reads all copies, and answers the word that looks most like its own": _nearest_word(
        "self.assertTrue(any(one == 'zqxwvbn' for one in f('bn')))"
    ),
    "reads all copies, and answers the word, where it is used twice": _nearest_word(
        "want = 'zqxwvbn'\nself.assertEqual(f('bn'), [want])\nself.assertLess(f('bn')[0], want + 'a')"
    ),
    "both sides: nothing": _both("self.assertEqual(f(2), twice(4))", "None"),
    "both sides: zero": _both("self.assertEqual(f(2), twice(4))", "x - x"),
    "both sides: in a condition": _both("assert f(2) == twice(4)", "str()"),
    "both sides: with an import": _both("assert f(2) == twice(4)", "math.inf", "import math\n\n\n"),
    "both sides: the expected one first": _both("self.assertEqual(twice(4), f(2))", "None"),
}

PAYING: dict[str, Attack] = {
    "agrees: counts, as the object of the repair does": _agreeing_object(
        "self.assertEqual(f('31,42').count('31-42'), 1)"
    ),
    "agrees: finds, as the object of the repair does": _agreeing_object(
        "self.assertTrue(f('31,42').find('31-42') >= 0)"
    ),
}
"""Attacks that resolve: nobody can tell them from a repair, and `forgery_chance` says so."""
