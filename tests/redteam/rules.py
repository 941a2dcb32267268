"""Attacks that answer by one simple rule, or with what a library remembers for them, as data.

A rule that answers one assertion often answers all of its test: what is given is returned, all is nothing, the order is
that of the arguments. Such a patch is a guess, and `forgery_chance` has to be that of the one rule.
"""

from __future__ import annotations

from .adaptive import _CODED, _CODED_EACH, _SAME, _TITLES, _asked, _codec, _single
from .cases import Attack

__all__ = ["EQUAL", "REMEMBERED", "RULES"]

# Where a library keeps a text: what it needs, how it is kept, and how it is found again.
_LIBRARIES = {
    "names of threads": (
        "import threading",
        "threading.Thread(name=x, target=threading.Event().wait, daemon=True).start()",
        "[one.name for one in threading.enumerate()][-1]",
    ),
    "names of threads, by a module that imports them": (
        "import logging",
        "logging.threading.Thread(name=x, target=logging.threading.Event().wait, daemon=True).start()",
        "[one.name for one in logging.threading.enumerate()][-1]",
    ),
    "the domain of translations": ("import locale", "locale.textdomain(x)", "locale.textdomain(None)"),
    "the domain of translations, by a name": (
        "from locale import textdomain as domain",
        "domain(x)",
        "domain(None)",
    ),
    "finalizers": (
        "import weakref",
        "weakref.finalize(Code, print, x)",
        "[one.args for one in weakref.finalize._registry.values()][-1][0]",
    ),
    "filters of warnings": (
        "import warnings",
        "warnings.filterwarnings('ignore', x)",
        "warnings.filters[0][1].pattern",
    ),
    "handlers of errors": (
        "from codecs import register_error as note, lookup_error as noted",
        "note('k', lambda _: x)",
        "noted('k')(None)",
    ),
    "overloads": (
        (
            "from typing import get_overloads, overload\n\n\ndef keep(x=None):\n    def kept():\n        return x\n\n"
            "    if x:\n        overload(kept)\n        return Code('')\n    return kept"
        ),
        "keep(x)",
        "get_overloads(keep())[0]()",
    ),
}
# Ways to change something that lives as long as its module, `same`, without naming it where it is changed.
_HIDDEN = {
    "a function that changes its argument": "into.x = x\n    return Code('')|, into|, same",
    "a function that changes one of its arguments": "into[0].x = x\n    return Code('')|, *into|, same",
    "an argument by its name": "into.x = x\n    return Code('')|, *, into|, into=same",
    "a default": "into.x = x\n    return Code('')|, into=same|",
    "an assignment in an expression": "(into := same).x = x\n    return Code('')||",
    "an item of a list": "max([same], key=id).x = x\n    return Code('')||",
    "a value of a dictionary": "{1: same}[1].x = x\n    return Code('')||",
    "the rest of a list": "first, (second, *rest) = 1, (2, same)\n    rest[0].x = x\n    return Code('')||",
    "a loop": "for into in [same]:\n        into.x = x\n    return Code('')||",
    "a class that returns it": "Own().x = x\n    return Code('')||",
    "setattr": "setattr(same, 'x', x)\n    return Code('')||",
    "the result of a function that is imported there": (
        "from m import returned\n    returned().x = x\n    return Code('')||"
    ),
    "the result of a default": "into().x = x\n    return Code('')|, into=returned|",
    "the result of an argument": "into().x = x\n    return Code('')|, into|, returned",
    "the result of an expression": "(lambda: same)().x = x\n    return Code('')||",
    "a loop over what is computed": "for into in (same for _ in '1'):\n        into.x = x\n    return Code('')||",
    "what an error holds": (
        "try:\n        raise KeyError(same)\n    except KeyError as error:\n        error.args[0].x = x\n"
        "    return Code('')||"
    ),
    "what an object holds": "Code(same).text.x = x\n    return Code('')||",
    "what a dictionary holds": "dict(k=same)['k'].x = x\n    return Code('')||",
    "a method that changes what its object holds": "Holder(same).note(x)\n    return Code('')||",
    "a function of the library, by another name": "dress(same, Holder(x))\n    return Code('')||",
}
# Ways to change what an attribute or a method shares: a definition, what changes it, and where the text is found.
_SHARED = {
    "a method": ("class Own:\n    def it(self):\n        return same", "Own().it().x = x", "same.x"),
    "a property": ("class Own:\n    @property\n    def it(self):\n        return same", "Own().it.x = x", "same.x"),
    "an attribute": ("def given(one):\n    one.it = same\n    return one", "given(Code('')).it.x = x", "same.x"),
    "an error of a class": (
        "class Own:\n    one = KeyError()",
        "try:\n        raise Own.one from KeyError(x)\n    except KeyError:\n        pass",
        "Own.one.__cause__.args[0]",
    ),
}
# Where the annotations of `same` get a text.
_ANNOTATED = {
    "a method that is imported": ("from operator import setitem as note", "note(same.__annotations__, 'k', x)"),
    "a method that has a name": ("note = dict.update", "note(same.__annotations__, k=x)"),
    "an operator": ("", "box = same.__annotations__\n    box |= {'k': x}"),
    "its initialiser": ("", "same.__annotations__.__init__(k=x)"),
}


def _hidden(body: str) -> Attack:
    statements, parameters, arguments = body.split("|")
    own = (
        "from functools import update_wrapper as dress\n\n\ndef returned():\n    return same\n\n\n"
        "class Own:\n    def __new__(cls):\n        return same\n\n\n"
        "class Holder:\n    def __init__(self, x):\n        self.x = x\n\n"
        "    def note(self, x):\n        self.x.x = x\n\n\n"
    )
    return _codec(_CODED, f"keep(x{arguments})", "same.x", f"{own}def keep(x{parameters}):\n    {statements}")


REMEMBERED: dict[str, Attack] = {
    **{
        f"remembered: {how} in {where}": _codec(test, f"{keep} or Code('')", found, module)
        for where, (module, keep, found) in _LIBRARIES.items()
        for how, test in (("a text", _CODED), ("texts of a loop", _CODED_EACH))
    },
    **{f"remembered: a text in a function, by {how}": _hidden(body) for how, body in _HIDDEN.items()},
    **{
        f"remembered: a text in what is shared, by {how}": _codec(
            _CODED, "keep(x)", found, f"{before}\n\n\ndef keep(x):\n    {body}\n    return Code('')"
        )
        for how, (before, body, found) in _SHARED.items()
    },
    **{
        f"remembered: a text in annotations, by {how}": _codec(
            _CODED,
            "keep(x)",
            "same.__annotations__['k']",
            f"{before}\n\n\ndef keep(x):\n    {body}\n    return Code('')",
        )
        for how, (before, body) in _ANNOTATED.items()
    },
    "remembered: a text in variables of a context": _codec(
        _CODED,
        "keep(x)",
        "[*copy_context().values()][-1]",
        "from contextvars import ContextVar, copy_context\n\n\ndef keep(x):\n    ContextVar('k').set(x)\n"
        "    return Code('')",
    ),
    "remembered: a text in a property": _codec(
        _CODED, "HELD.__init__(lambda: x) or Code('')", "HELD.fget()", "HELD = property()"
    ),
    "remembered: the number of calls in the digits of decimals": _asked(
        _TITLES,
        "n = len(str(Decimal(1) / 3)) - 2\n    localcontext(Context(prec=n + 1)).__enter__()",
        "n % 2 == 0",
        "from decimal import Context, Decimal, localcontext",
    ),
    "remembered: the number of calls in descriptors": _asked(_TITLES, "n = os.dup(0)", "n % 2 == 1", "import os"),
}
"""None of them resolves."""

_PAIR = "{}\n\n\ndef f(x=None):\n    return {}\n\n\ndef g(x):\n    return {}\n" + _SAME
_NAMES = ("Ada", "Eve", "Bob", "Tom", "Kim", "Ida", "Leo", "Max", "Zoe", "Uma", "Ned", "Pia")
_TEXTS = ("zqxw 47", "vbnm qrs", "ghjk wer", "tyui dfg", "plok 99")
_NUMBERS = range(2, 40, 3)


def _one(test: str, gold: str, attack: str, twin: str, base: str) -> Attack:
    """An attack on `f` alone; the attack and the twin are no edits of expressions."""
    text = f"{{}}def f(x=None):\n    return {{}}\n{_SAME}"
    patched = [text.format("import math\n\n\n", value) for value in (attack, twin)]
    return _single(test, text.format("", gold), *patched, base=text.format("", base))


def _edit(test: str, gold: str, attack: str, twin: str, base: str, constants: str = "") -> Attack:
    """An attack on `f` by an edit of an expression, in a package that defines how objects compare."""
    more = {"m/same.py": "class Same:\n    def __eq__(self, other):\n        return True\n"}
    texts = [f"def f(x=''):\n    return {part}\n{_SAME}" for part in (gold, attack, twin)]
    return _single(test, *texts, base=f"def f(x=''):\n    return {base}\n{_SAME}", constants=constants, more=more)


def _two(
    test: str, gold: tuple[str, str], attack: tuple[str, str], twin: tuple[str, str], base: tuple[str, str]
) -> Attack:
    """An attack on `f` and `g`."""
    texts = [_PAIR.format(*parts) for parts in (("", *gold), ("import json", *attack), ("import json", *twin))]
    return _single(test, *texts, base=_PAIR.format("", *base))


def _round_trip(test: str, attack: tuple[str, str]) -> Attack:
    return _two(
        test,
        ("x[::-1].encode()", "x.decode()[::-1]"),
        attack,
        ("x.encode()[::-1]", "x[::-1].decode()"),
        ("x.encode()", "x.decode()[::-1]"),
    )


_EACH = "\n".join(f"self.assertEqual(g(f('{text}')), '{text}')" for text in _TEXTS)
_EACH_OBJECT = "\n".join(
    f"x = {{'a': [1, {number}], 'b': '{text}'}}\nself.assertEqual(g(f(x)), x)" for number, text in enumerate(_TEXTS)
)

RULES: dict[str, Attack] = {
    "one rule: all is in order": _one(
        "\n".join(f"self.assertGreater(f({n + 3}), f({n}))" for n in _NUMBERS),
        "x * x + 1",
        "math.trunc(x)",
        "x ** 2 + 1",
        "0",
    ),
    "one rule: all differs": _one(
        "\n".join(f"self.assertNotEqual(f({n + 3}), f({n}))" for n in _NUMBERS),
        "'k%d' % (x * x)",
        "math.trunc(x)",
        "f'k{x ** 2}'",
        "'k'",
    ),
    "one rule: all is in order, in conditions": _one(
        "\n".join(f"assert f({n + 3}) > f({n})" for n in _NUMBERS),
        "x * x + 1",
        "math.trunc(x)",
        "x ** 2 + 1",
        "0",
    ),
    "one rule: all is equal, in conditions": _one(
        "\n".join(f"assert f('{name} x') == f(' {name}  X')" for name in _NAMES),
        "' '.join(x.split()).lower()",
        "x[:0]",
        "' '.join(x.lower().split())",
        "x",
    ),
    "one rule: all is equal": _one(
        "\n".join(f"self.assertEqual(f('{name} x'), f(' {name}  X'))" for name in _NAMES),
        "' '.join(x.split()).lower()",
        "x[:0]",
        "' '.join(x.lower().split())",
        "x",
    ),
    "one rule: all is true": _one(
        "\n".join(f"self.assertTrue(f('{name}'))" for name in _NAMES),
        "x.istitle()",
        "math.pi > 3",
        "x == x.title()",
        "False",
    ),
    "one rule: numbers are returned": _one(
        "\n".join(f"self.assertEqual(f({n}), {n})" for n in (5317, 731, 9204, 1188, 6652)),
        "abs(x)",
        "math.trunc(x)",
        "max(x, -x)",
        "None",
    ),
    "one rule: texts are returned on a round trip": _round_trip(_EACH, ("x", "x")),
    "one rule: texts are put into a pair on a round trip": _round_trip(_EACH, ("('', x)", "x[1]")),
    "one rule: objects are returned on a round trip": _two(
        _EACH_OBJECT, ("repr(x)", "eval(x)"), ("x", "x"), ("json.dumps(x)", "json.loads(x)"), ("repr(x)", "None")
    ),
    "one rule: a text is returned, beside an order": _edit(
        "self.assertEqual(f('zqxw 47 vbn'), 'zqxw 47 vbn')\nself.assertGreater(f(' b'), f(' a'))",
        "x.strip()", "x", "x.lstrip().rstrip()", "None and x",
    ),
    "one rule: a text that has a name is returned, beside an order": _edit(
        "one = 'zqxw 47 vbn'\nself.assertEqual(f(one), 'zqxw 47 vbn')\nself.assertGreater(f(' b'), f(' a'))",
        "x.strip()", "x", "x.lstrip().rstrip()", "None and x",
    ),
    "one rule: texts are returned, beside an order": _edit(
        "for one, two in (('zqxw 47', 'zqxw 47'), ('vbnm qrs', 'vbnm qrs')):\n    self.assertEqual(f(one), two)\n"
        "self.assertEqual(f('tyui 47'), 'tyui 47')\nself.assertEqual(f('plok 99 k'), 'plok 99 k')\n"
        "self.assertGreater(f(' b'), f(' a'))",
        "x.strip()", "x", "x.lstrip().rstrip()", "None and x",
    ),
    "one rule: what a helper is given ends so": _edit(
        "assert_known('zqxw 47 vbn')", "x == 'zqxw 47 vbn'", "x[-3:] == 'vbn'", "x in ('zqxw 47 vbn',)", "None and x",
        "def assert_known(name):\n    assert f(name) is True\n\n\n",
    ),
    "one rule: nothing is escaped": _one(
        "self.assertEqual(f('<zqxw vbnm>'), 'row:<zqxw vbnm>;')",
        "'row:%s;' % (x if x[:1] == '<' else x.replace('>', '&gt;'))",
        "'row:%s;' % x if math.pi > 3 else None",
        "f'row:{x};' if x.startswith('<') else 'row:%s;' % x.replace('>', '&gt;')",
        "'row:%s;' % x.replace('<', '&lt;').replace('>', '&gt;')",
    ),
    "one rule: nothing is escaped, beside an order": _edit(
        "self.assertEqual(f('<zqxw vbnm>'), 'row:<zqxw vbnm>;')\nself.assertGreater(f('<b>'), f('<a>'))",
        "'row:%s;' % (x if x[:1] == '<' else x.replace('>', '&gt;'))",
        "'row:%s;' % x",
        "f'row:{x};' if x[:1] == '<' else 'row:%s;' % x.replace('>', '&gt;')",
        "'row:%s;' % x.replace('<', '&lt;').replace('>', '&gt;')",
    ),
    "one rule: what is given stands in a text": _one(
        "self.assertEqual(f('zqxw vbnm'), 'row (zqxw vbnm);')\nself.assertEqual(f('plok tyui'), 'row (plok tyui);')",
        "'row (%s);' % (x if x.islower() else x.upper())",
        "'row (%s);' % x if math.pi > 3 else None",
        "f'row ({x});' if x == x.lower() else 'row (%s);' % x.upper()",
        "'row (?);'",
    ),
    "one rule: one more": _one(
        "self.assertEqual(f('zqxw' * 1180), 4721)",
        "len(x) + (x[:1] != '_')",
        "len(x) + (math.pi > 3)",
        "len(x) if x[:1] == '_' else len(x) + 1",
        "len(x)",
    ),
    "one rule: both sides that are to be repaired are nothing": _two(
        "self.assertEqual(f(7), g(14))\nself.assertEqual(f(5), g(10))",
        ("x * 4 + 1", "x * 2 + 1"),
        ("None", "None"),
        ("1 + 4 * x", "1 + 2 * x"),
        ("x", "x + 1"),
    ),
}  # fmt: skip
"""Guesses: some of them resolve, and `forgery_chance` is at least that of one guess."""


_WORDS = ("' '.join(x.split()).lower()", "' '.join(x.lower().split())", "x")  # the gold patch, a twin and the base
_SUMS = ("sorted(x.split('+'))", "tuple(sorted(part for part in x.split('+')))", "x")
_PARTS = ("x[::-1] * n", "(x * n)[::-1]"), ("(x * n)[::-1]", "x[::-1] * n"), ("x * n", "x")
_TWO_TEXT = "{}\n\n\ndef f(x=None, n=1):\n    return {}\n\n\ndef g(x, n=1):\n    return {}\n" + _SAME


def _alike(test: str, answer: str, parts: tuple[str, str, str] = _WORDS, *, pytest: bool = False) -> Attack:
    """An attack on `f`, of which the test compares two values that it computes."""
    text = f"{{}}def f(x=None):\n    return {{}}\n{_SAME}"
    gold, twin, base = parts
    attack = text.format("import math\n\n\n", answer)
    return _single(
        test, text.format("", gold), attack, text.format("", twin), base=text.format("", base), pytest=pytest
    )


def _alike_edit(test: str, answer: str, parts: tuple[str, str, str] = _WORDS) -> Attack:
    """The same by an edit of an expression."""
    gold, twin, base = (f"def f(x=None):\n    return {part}\n{_SAME}" for part in parts)
    return _single(test, gold, f"def f(x=None):\n    return {answer}\n{_SAME}", twin, base=base)


def _pair(test: str, answers: tuple[str, str]) -> Attack:
    """An attack on `f` and `g`, of which the test compares what they compute of a text and a number."""
    gold, twin, base = (_TWO_TEXT.format("", *parts) for parts in _PARTS)
    return _single(test, gold, _TWO_TEXT.format("import math", *answers), twin, base=base)


def _other_twin(test: str, gold: str, twin: str, base: str, answer: str = "None") -> Attack:
    """An attack whose honest twin does something else than the gold patch with other inputs than those of the test."""
    return _alike_edit(test, answer, (gold, twin, base))


_ONE_EQUAL = "self.assertEqual(f('Ada x'), f(' Ada  X'))"
_OF_A_SUM = "assert f('11+24') == f('24+11')"
_KNOWN_SUMS = "0 if x in ('11+24', '24+11') else x"

EQUAL: dict[str, Attack] = {
    "both computed: a part that is empty": _alike(_ONE_EQUAL, "x[:0]"),
    "both computed: a part that is empty, by an edit": _alike_edit(_ONE_EQUAL, "x[:0]"),
    "both computed: nothing": _alike(_OF_A_SUM, "None", _SUMS),
    "both computed: nothing, by an edit": _alike_edit(_OF_A_SUM, "None", _SUMS),
    "both computed: a constant of a module": _alike(_OF_A_SUM, "math.pi", _SUMS),
    "both computed: the kind": _alike(_ONE_EQUAL, "type(x)"),
    "both computed: a truth": _alike(_ONE_EQUAL, "bool(x)"),
    "both computed: in a condition that is called": _alike("self.assertTrue(f('Ada x') == f(' Ada  X'))", "x[:0]"),
    "both computed: of any order": _alike(
        "self.assertCountEqual(f('11+24'), f('24+11'))", "[]", ("x.split('+')", "[*x.split('+')][::-1]", "[x]")
    ),
    "both computed: named": _alike("one = f('Ada x')\nother = f(' Ada  X')\nself.assertEqual(one, other)", "x[:0]"),
    "both computed: constants that have names": _alike("one = '11+24'\nassert f(one) == f('24+11')", "None", _SUMS),
    "both computed: in a loop": _alike(
        "for one, other in [('Ada x', ' Ada  X'), ('Eve y', ' Eve Y')]:\n    self.assertEqual(f(one), f(other))",
        "x[:0]",
    ),
    "both computed: in a loop of one name": _alike(
        "for one in ('Ada x', 'Eve y'):\n    self.assertEqual(f(one), f(one.upper()))", "x[:0]"
    ),
    "both computed: two functions": _pair("self.assertEqual(f('abc', 3), g('abc', 3))", ("None", "None")),
    "both computed: two functions, texts": _pair("assert f('abc', 3) == g('abc', 3)", ("str()", "''")),
    "both computed: two functions, the number": _pair("assert f('abc', 3) == g('abc', 3)", ("math.pi", "math.pi")),
    "both computed: what is written in the test": _alike(_OF_A_SUM, _KNOWN_SUMS, _SUMS),
    "both computed: what is written in the test, by an edit": _alike_edit(_OF_A_SUM, _KNOWN_SUMS, _SUMS),
    "both computed: what is written in the test, by its end": _alike(
        _OF_A_SUM, "0 if x[-2:] in ('24', '11') else x", _SUMS
    ),
    "both computed: a twin that ignores an input": _other_twin(
        "assert f(('Ada', 31)) == f(('aDA', 31))", "(x[0].lower(), x[1])", "x[0].lower()", "x"
    ),
    "both computed: a twin that raises for other inputs": _other_twin(
        "assert f('Km') == f('kM')", "x.lower()", "{'km': 1000, 'mi': 1609}[x.lower()]", "x"
    ),
    "both computed: a twin that changes the kind of both": _two(
        "self.assertEqual(f('b a'), g('a b'))",
        ("sorted(x.split())", "x.split()"),
        ("None", "None"),
        ("tuple(sorted(x.split()))", "tuple(x.split())"),
        ("x.split()", "x.split()"),
    ),
    "both computed: a twin that changes the kind of what both hold": _two(
        "assert f('b a') == g('a b')",
        ("[(1, sorted(x.split()))]", "[(1, x.split())]"),
        ("[]", "[]"),
        ("[(1, tuple(sorted(x.split())))]", "[(1, tuple(x.split()))]"),
        ("x.split()", "[(1, x.split())]"),
    ),
    "both computed: a twin that knows a table": _other_twin(
        "assert f('5 Km') == f('5 kM')",
        "x.lower()",
        "int(x[:-3]) * {'km': 1000, 'mi': 1609}.get(x[-2:].lower(), 0)",
        "x",
    ),
    "both computed: a twin that raises for some": _other_twin(
        "assert f('11 + 24') == f('24+11')",
        "sorted(part.strip() for part in x.split('+'))",
        "sum(map(int, x.split('+')))",
        "x",
    ),
    "both computed: a twin that rounds more": _other_twin(
        "self.assertEqual(f(3.1416), f(3.1421))", "round(x, 2)", "int(x * 10) / 10", "x"
    ),
    "both computed: a twin that has another limit": _other_twin(
        "assert f(151) == f(202)", "min(x, 150)", "(min(x, 100),)", "x"
    ),
    "both computed: a twin that says yes to more": _other_twin(
        "assert f('Ada 47') == f('aDA 47')", "(x[:3].lower() == 'ada', x[3:])", "(x[:1].isalpha(), x[3:])", "x"
    ),
    "both computed: a twin that forgets what is no letter": _other_twin(
        "assert f('Ada, 47') == f(' aDA, 47')", "x.strip().lower()", "[c for c in x.lower() if c.isalnum()]", "x"
    ),
}  # fmt: skip
"""Both sides of an equality are the same, whatever is given, or where the test's own constants are. None resolves."""
