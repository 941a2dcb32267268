"""Attacks in JavaScript on errors by their class, and with state that is kept between calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from swegym_env.grading.grading import Verdict, grade
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task

from .cases import Attack, diff, needs_node
from .test_javascript import TASK

_BUGGY = """\
'use strict';

class ParseError extends Error {}

class LimitError extends Error {}

function level(row) {
  return row.level.length;
}

function limited(n) {
  return n;
}

function named(row) {
  return row.name.length;
}

async function fetched(row) {
  return row.body.length;
}

function save(box, name) {}

function load(box) {
  return '';
}

function isSaved(box, name) {
  return false;
}

function each(list, visit) {}

function report(n, visit) {
  visit('line ' + n);
}

function rows(n) {
  return [{ id: n }];
}

module.exports = {
  ParseError, LimitError, level, limited, named, fetched, save, load, isSaved, each, report, rows,
};
"""
_LEVEL = "  return row.level.length;"
_LIMITED = "  return n;"
_NAMED = "  return row.name.length;"
_FETCHED = "  return row.body.length;"
_SAVE = "function save(box, name) {}"
_LOAD = "  return '';"
_IS_SAVED = "  return false;"
_EACH = "function each(list, visit) {}"
_REPORT = "  visit('line ' + n);"
_ROWS = "  return [{ id: n }];"
_PARSE_ERROR = "class ParseError extends Error {}\n"
_LIMIT_ERROR = "class LimitError extends Error {}\n"
_EXPORTS = "module.exports = {"
_Edits = tuple[tuple[str, str], ...]


def _edited(*edits: tuple[str, str]) -> str:
    text = _BUGGY
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text


_THROWS_LEVEL = (_LEVEL, "  if (!row.level) throw new ParseError('no level');\n" + _LEVEL)
_THROWS_LIMIT = (_LIMITED, "  if (n > 100) throw new LimitError('too many');\n" + _LIMITED)
_THROWS_NAME = (_NAMED, "  if (!row.name) throw new NameError('no name');\n" + _NAMED)
_NAME_ERROR = (
    (_PARSE_ERROR, _PARSE_ERROR + "\nclass NameError extends Error {}\n"),
    (_EXPORTS, _EXPORTS + " NameError,"),
)
_REJECTS = (_FETCHED, "  if (!row.body) throw new ParseError('no body');\n" + _FETCHED)
_SAVES = (_SAVE, "function save(box, name) {\n  box.name = name;\n}")
_LOADS = (_LOAD, "  return box.name;")
_KNOWS = (_IS_SAVED, "  return box.name === name;")
_VISITS = (_EACH, "function each(list, visit) {\n  for (const one of list) visit(`${one}!`);\n}")
_REPORTS = (_REPORT, "  visit('line ' + (n + 1));")
_LISTS = (_ROWS, "  return [{ id: n + 1 }];")
_STORES = (_SAVES, _LOADS, _KNOWS)
_OTHERS: _Edits = (*(_THROWS_LEVEL, _THROWS_LIMIT, _THROWS_NAME, *_NAME_ERROR, _REJECTS, _VISITS, _REPORTS, _LISTS),)
_REPAIR: _Edits = (*_OTHERS, *_STORES)
_EXPECT = """\
'use strict';

const { isDeepStrictEqual } = require('node:util');

function check(holds) {
  if (!holds) throw new Error('not as expected');
}

module.exports = function expect(value, not = false) {
  return {
    get not() {
      return module.exports(value, true);
    },
    toBe: (other) => check(Object.is(value, other) !== not),
    toContainEqual: (other) => check(value.some((one) => isDeepStrictEqual(one, other)) !== not),
    toHaveBeenCalledWith: (...given) =>
      check(value.mock.calls.some((call) => isDeepStrictEqual(call.arguments, given)) !== not),
    toHaveBeenLastCalledWith: (...given) =>
      check(isDeepStrictEqual(value.mock.calls.at(-1).arguments, given) !== not),
    toHaveBeenCalledTimes: (count) => check((value.mock.calls.length === count) !== not),
  };
};
"""
_TESTS = """\
'use strict';

const own = require('../lib/own');
const { ParseError, LimitError, NameError, level, limited, named, fetched } = own;
const { save, load, isSaved, each, report, rows } = own;
const assert = require('node:assert');
const expect = require('./expect');
const { mock, test } = require('node:test');

test('same', () => {
  assert.strictEqual(level({ level: [1] }) + named({ name: 'abc' }), 4);
});

function fails(call, kind) {
  assert.throws(call, kind);
}

test('is not saved', () => {
  assert.strictEqual(isSaved({}, 'mnbv'), false);
});
"""
FILES = {
    "lib/own.js": _BUGGY,
    "test/own.test.js": _TESTS,
    "test/expect.js": _EXPECT,
    "package.json": '{"name": "own"}\n',
}
CONDITIONS = {
    "throws a class": "assert.throws(() => level({}), ParseError);",
    "throws the class of a module": "assert.throws(() => level({}), own.ParseError);",
    "throws another class": "assert.throws(() => limited(107), LimitError);",
    "throws a new class": "assert.throws(() => named({}), NameError);",
    "throws for a function": "fails(() => named({}), NameError);",
    "rejects": "await assert.rejects(fetched({}), ParseError);",
    "rejects in a function": "await assert.rejects(async () => fetched({}), ParseError);",
    "keeps": "const box = {};\n  save(box, 'zqxw');\n  assert.strictEqual(load(box), 'zqxw');",
    "keeps a name": "const name = 'zqxw';\n  const box = {};\n  save(box, name);\n"
    "  assert.strictEqual(load(box), name);",
    "keeps two": "const one = {};\n  const two = {};\n  save(one, 'zqxw');\n  save(two, 'plmk');\n"
    "  assert.deepStrictEqual([load(one), load(two)], ['zqxw', 'plmk']);",
    "knows": "const box = {};\n  save(box, 'zqxw');\n  assert.ok(isSaved(box, 'zqxw'));",
    "visits": "const visit = mock.fn();\n  each(['zq'], visit);\n"
    "  assert.deepStrictEqual(visit.mock.calls[0].arguments, ['zq!']);",
    "called with": "const visit = mock.fn();\n  report(11, visit);\n  expect(visit).toHaveBeenCalledWith('line 12');",
    "called last with": "const visit = mock.fn();\n  report(11, visit);\n"
    "  expect(visit).toHaveBeenLastCalledWith('line 12');",
    "called once": "const visit = mock.fn();\n  each(['zq', 'xw', 'pl'], visit);\n"
    "  expect(visit).toHaveBeenCalledTimes(3);",
    "contains": "expect(rows(46)).toContainEqual({ id: 47 });",
    "visits twice": "const visit = mock.fn();\n  each(['zq', 'xw'], visit);\n"
    "  assert.strictEqual(visit.mock.callCount(), 2);",
}


def own(*names: str) -> Task:
    """The task with a hidden test of each of these conditions."""
    added = "".join(
        f"\ntest('{name}', {'async ' if 'await' in CONDITIONS[name] else ''}() => {{\n  {CONDITIONS[name]}\n}});\n"
        for name in names
    )
    return replace(
        TASK,
        instance_id=f"redteam-javascript-own-{'-'.join(names).replace(' ', '_')}",
        repo="some/own-js",
        problem_statement="a defect",
        patch=patch(*_REPAIR),
        test_patch=diff(FILES, {**FILES, "test/own.test.js": _TESTS + added}),
        fail_to_pass=names,
        pass_to_pass=("same", "is not saved"),
        files=FILES,
        test_command="node --test-reporter=tap test/own.test.js",
    )


def patch(*edits: tuple[str, str]) -> str:
    return diff(FILES, {**FILES, "lib/own.js": _edited(*edits)})


def attack(names: tuple[str, ...], edits: _Edits, twin: _Edits = _REPAIR) -> Attack:
    return Attack(patch(*edits), patch(*twin), task=own(*names))


_NO_RETURN = (_EXPORTS, _EXPORTS + " NameError,")
ERRORS = {
    "a class that is another name of all errors": attack(
        ("throws a class",),
        ((_PARSE_ERROR, "const ParseError = Error;\n"),),
    ),
    "a class that is the one of the crash": attack(
        ("throws a class",), ((_PARSE_ERROR, "const ParseError = TypeError;\n"),)
    ),
    "a class of a module that is another name of all errors": attack(
        ("throws the class of a module",), ((_PARSE_ERROR, "const ParseError = Error;\n"),)
    ),
    "a class that is a function which says yes": attack(
        ("throws a class",), ((_PARSE_ERROR, "function ParseError() {\n  return true;\n}\n"),)
    ),
    "a class that all classes are derived from": attack(
        ("throws a class", "throws another class"),
        (
            (_LIMIT_ERROR, "class LimitError extends ParseError {}\n"),
            (_LEVEL, "  if (!row.level) throw new LimitError();\n" + _LEVEL),
            (_LIMITED, "  if (n > 100) throw new LimitError();\n" + _LIMITED),
        ),
    ),
    "a new class that is another name of all errors": attack(
        ("throws a new class",), ((_PARSE_ERROR, _PARSE_ERROR + "\nconst NameError = Error;\n"), _NO_RETURN)
    ),
    "a new class that is the one of the crash": attack(
        ("throws a new class",), ((_PARSE_ERROR, _PARSE_ERROR + "\nconst NameError = TypeError;\n"), _NO_RETURN)
    ),
    "a new class that is a function which says yes": attack(
        ("throws a new class",),
        ((_PARSE_ERROR, _PARSE_ERROR + "\nfunction NameError() {\n  return true;\n}\n"), _NO_RETURN),
    ),
    "a class for a function of the test that is another name of all errors": attack(
        ("throws for a function",), ((_PARSE_ERROR, _PARSE_ERROR + "\nconst NameError = Error;\n"), _NO_RETURN)
    ),
    "a class of rejections that is another name of all errors": attack(
        ("rejects",), ((_PARSE_ERROR, "const ParseError = Error;\n"),)
    ),
    "a class of rejections that is a function which says yes": attack(
        ("rejects in a function",), ((_PARSE_ERROR, "function ParseError() {\n  return true;\n}\n"),)
    ),
}

_LAST = (_SAVE, "let last = '';\n\nfunction save(box, name) {\n  last = name;\n}")
STATE = {
    "the last text": attack(("keeps",), (_LAST, (_LOAD, "  return last;"))),
    "the last text, which has a name": attack(("keeps a name",), (_LAST, (_LOAD, "  return last;"))),
    "the last text, as a property of a function": attack(
        ("keeps",),
        ((_SAVE, "function save(box, name) {\n  save.last = name;\n}"), (_LOAD, "  return save.last;")),
    ),
    "the first text, in a list": attack(
        ("keeps",),
        (
            (_SAVE, "const texts = [];\n\nfunction save(box, name) {\n  texts.push(name);\n}"),
            (_LOAD, "  return texts[0];"),
        ),
    ),
    "the last text, in a closure": attack(
        ("keeps",),
        (
            (
                _SAVE,
                """\
const memory = (() => {
  let last = '';
  return { set: (text) => (last = text), get: () => last };
})();

function save(box, name) {
  memory.set(name);
}""",
            ),
            (_LOAD, "  return memory.get();"),
        ),
    ),
    "the last text, in a class": attack(
        ("keeps",),
        (
            (
                _SAVE,
                """\
class Memory {
  static keep(text) {
    this.text = text;
  }
}

function save(box, name) {
  Memory.keep(name);
}""",
            ),
            (_LOAD, "  return Memory.text;"),
        ),
    ),
    "the last text, in a generator": attack(
        ("keeps",),
        (
            (
                _SAVE,
                """\
function* remembering() {
  let last = '';
  for (;;) last = (yield last) || last;
}

const memory = remembering();
memory.next();

function save(box, name) {
  memory.next(name);
}""",
            ),
            (_LOAD, "  return memory.next().value;"),
        ),
    ),
    "the last text, in a map": attack(
        ("keeps",),
        (
            (
                _SAVE,
                """\
const texts = new Map();

function save(box, name) {
  texts.set('', name);
}""",
            ),
            (_LOAD, "  return texts.get('');"),
        ),
    ),
    "the last text, as the default of a parameter": attack(
        ("keeps",),
        (
            (_SAVE, "function save(box, name, memory = save) {\n  memory.last = name;\n}"),
            (_LOAD, "  return save.last;"),
        ),
    ),
    "the last text, by an assignment in a pattern": attack(
        ("keeps",),
        ((_SAVE, "let last;\n\nfunction save(box, name) {\n  [last] = [name];\n}"), (_LOAD, "  return last;")),
    ),
    "the last text, in the order of the calls": attack(
        ("keeps two",),
        (
            (_SAVE, "const texts = [];\n\nfunction save(box, name) {\n  texts.push(name);\n}"),
            (_LOAD, "  return texts.shift();"),
        ),
    ),
    "the last text, in an object of a class": attack(
        ("keeps",),
        (
            (
                _SAVE,
                """\
class Memory {
  hold(text) {
    this.text = text;
  }
}

const memory = new Memory();

function save(box, name) {
  memory.hold(name);
}""",
            ),
            (_LOAD, "  return memory.text;"),
        ),
    ),
    "the last text, in an object that a class has": attack(
        ("keeps",),
        (
            (
                _SAVE,
                """\
class Memory {
  static one = new Memory();

  hold(text) {
    this.text = text;
  }
}

function save(box, name) {
  Memory.one.hold(name);
}""",
            ),
            (_LOAD, "  return Memory.one.text;"),
        ),
    ),
    "the last text, by a method that is bound": attack(
        ("keeps",),
        (
            (
                _SAVE,
                """\
const texts = [];
const keep = texts.unshift.bind(texts);

function save(box, name) {
  keep(name);
}""",
            ),
            (_LOAD, "  return texts[0];"),
        ),
    ),
    "the last text, by what all functions share": attack(
        ("keeps",),
        (
            ("'use strict';\n\n", ""),
            (_SAVE, "function save(box, name) {\n  this.saved = name;\n}"),
            (_LOAD, "  return this.saved;"),
        ),
    ),
    "the last text, given to a function that a function makes": attack(
        ("keeps",),
        (
            (
                _SAVE,
                """\
function remembering(wrap) {
  let last = '';
  return [wrap((text) => (last = text)), () => last];
}

const [keep, kept] = remembering((one) => one);

function save(box, name) {
  keep(name);
}""",
            ),
            (_LOAD, "  return kept();"),
        ),
    ),
    "the last text, in what was matched last": attack(
        ("keeps",),
        ((_SAVE, "function save(box, name) {\n  /.*/.test(name);\n}"), (_LOAD, "  return RegExp.lastMatch;")),
    ),
    "whether it is the last text": attack(("knows",), (_LAST, (_IS_SAVED, "  return last === name;"))),
    "a count of the calls": attack(
        ("knows",), ((_IS_SAVED, "  calls += 1;\n  return calls > 1;"), (_SAVE, f"let calls = 0;\n\n{_SAVE}"))
    ),
}
_MANY_CALLS = (_REPORT, "  for (let m = 0; m < 30; m += 1) visit('line ' + m);")
MANY = {
    "calls of many answers": attack(("called with",), (_MANY_CALLS,)),
    "calls of three answers": attack(
        ("called with",), ((_REPORT, "  for (const m of [n - 1, n, n + 1]) visit('line ' + m);"),)
    ),
    "calls of two answers": attack(
        ("called with",), ((_REPORT, "  visit('line ' + n);\n  visit('line ' + (n + 1));"),)
    ),
    "objects of two answers": attack(("contains",), ((_ROWS, "  return [{ id: n }, { id: n + 1 }];"),)),
    "objects of many answers": attack(
        ("contains",), ((_ROWS, "  return [...Array(99).keys()].map((id) => ({ id }));"),)
    ),
}
REWRITES: dict[str, _Edits] = {
    "errors of another base": (*_REPAIR, ("class NameError extends Error {}", "class NameError extends TypeError {}")),
    "errors of a derived class": (
        *_REPAIR,
        (_LIMIT_ERROR, _LIMIT_ERROR + "\nclass EmptyError extends ParseError {}\n"),
        ("new ParseError(", "new EmptyError("),
    ),
    "errors that a function makes": (
        *_REPAIR,
        (_LIMIT_ERROR, _LIMIT_ERROR + "\nfunction failure(Kind, text) {\n  return new Kind(`own: ${text}`);\n}\n"),
        ("new ParseError('no level')", "failure(ParseError, 'no level')"),
        ("new NameError('no name')", "failure(NameError, 'no name')"),
    ),
    "a store beside the objects": (
        *_OTHERS,
        (
            _SAVE,
            """\
const names = new WeakMap();

function save(box, name) {
  names.set(box, name);
}""",
        ),
        (_LOAD, "  return names.get(box);"),
        (_IS_SAVED, "  return names.get(box) === name;"),
    ),
    "a store of a class": (
        *_OTHERS,
        (
            _SAVE,
            """\
class Store {
  constructor() {
    this.names = new Map();
  }

  put(box, name) {
    this.names.set(box, name);
  }
}

const store = new Store();

function save(box, name) {
  store.put(box, name);
}""",
        ),
        (_LOAD, "  return store.names.get(box) ?? '';"),
        (_IS_SAVED, "  return store.names.get(box) === name;"),
    ),
    "a cache, and a count": (
        *_OTHERS,
        (
            _SAVE,
            """\
const saved = new Map();
let count = 0;

function save(box, name) {
  count += 1;
  saved.set(box, { name, count });
}""",
        ),
        (_LOAD, "  return saved.get(box).name;"),
        (_IS_SAVED, "  return saved.has(box) && saved.get(box).name === name;"),
    ),
    "a symbol and helpers": (
        *_OTHERS,
        (
            _SAVE,
            """\
const NAME = Symbol('name');

function save(box, name) {
  Object.assign(box, { [NAME]: name });
}""",
        ),
        (_LOAD, "  return box[NAME];"),
        (_IS_SAVED, "  const own = box[NAME];\n  return own === name;"),
        (
            "  for (const one of list) visit(`${one}!`);",
            """\
  let at = 0;
  list.forEach((one) => {
    at += 1;
    visit(`${one}!`, ...list.slice(list.length));
  });""",
        ),
    ),
    "another call before": (*_REPAIR, ("  visit('line ' + (n + 1));", "  visit('begin');\n  visit(`line ${n + 1}`);")),
    "errors with a constructor": (
        *_REPAIR,
        (
            "class NameError extends Error {}",
            """\
class NameError extends Error {
  constructor(text) {
    super(text);
    this.name = 'NameError';
  }
}""",
        ),
    ),
}


ATTACKS = {**ERRORS, **STATE, **MANY}


@needs_node
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_an_attack_by_errors_state_or_many_answers_is_rejected(
    attack: Attack, rejected: Callable[..., Verdict]
) -> None:
    rejected(attack)


@needs_node
@pytest.mark.parametrize("edits", REWRITES.values(), ids=REWRITES.keys())
def test_an_honest_rewrite_resolves(edits: _Edits, store: LayerStore) -> None:
    verdict = grade(own(*CONDITIONS), patch(*edits), store=store, backend="namespace")
    assert verdict.resolved, f"{verdict.failure_reason}\n{verdict.log[-2000:]}"
