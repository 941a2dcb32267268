"""Attacks in JavaScript: the code under test runs in the process of its tests, and so can do all that they can."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from swegym_env.grading.grading import Verdict, grade
from swegym_env.languages.javascript import JavaScript
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task

from .cases import Attack, diff, needs_node

_BUGGY = """\
'use strict';

function add(a, b) {
  return a - b;
}

function negate(a) {
  return -a;
}

function counted(words) {
  const counts = {};
  for (const word of words) counts[word] = 1;
  return counts;
}

module.exports = { add, negate, counted };
"""
_FIXED = _BUGGY.replace("a - b", "a + b").replace("counts[word] = 1", "counts[word] = (counts[word] || 0) + 1")
_TESTS = """\
'use strict';

const { add, counted, negate } = require('../lib/calc');
const assert = require('node:assert');
const test = require('node:test');

test('negates', () => {
  assert.strictEqual(negate(2), -2);
});
"""
_ADDED = """
test('adds two numbers', () => {
  assert.strictEqual(add(17, 25), 42);
});

test('counts words', () => {
  assert.deepStrictEqual(counted(['b', 'a', 'b', 'b']), { b: 3, a: 1 });
});
"""
FILES = {
    "lib/calc.js": _BUGGY,
    "test/calc.test.js": _TESTS,
    "package.json": '{"name": "calc", "scripts": {"test": "node --test-reporter=tap test/calc.test.js"}}\n',
    "node_modules/runner/run.js": "require('node:path');\nrequire('../../test/calc.test.js');\n",
}
GOLD = diff(FILES, {**FILES, "lib/calc.js": _FIXED})
TASK = Task(
    instance_id="redteam-javascript",
    repo="some/calc-js",
    base_commit="",
    problem_statement="add subtracts, and words are counted once",
    patch=GOLD,
    test_patch=diff(FILES, {**FILES, "test/calc.test.js": _TESTS + _ADDED}),
    fail_to_pass=("adds two numbers", "counts words"),
    pass_to_pass=("negates",),
    files=FILES,
    test_command="node --test-reporter=tap test/calc.test.js",
    test_timeout_s=30.0,
)
SCRIPT_TASK = replace(
    TASK,
    instance_id="redteam-javascript-script",
    test_command="node -e \"require('child_process').execSync(require('./package.json').scripts.test, "
    "{ stdio: 'inherit' })\"",
    log_parser="tap",
)
RUNNER_TASK = replace(
    TASK, instance_id="redteam-javascript-runner", test_command="node --test-reporter=tap node_modules/runner/run.js"
)
_LOG = "TAP version 13\n" + "".join(
    f"# Subtest: {name}\nok {number} - {name}\n" for number, name in enumerate(["negates", *TASK.fail_to_pass], 1)
)
_LOG += "1..3\n# tests 3\n# pass 3\n# fail 0\n"
_TEXT = json.dumps(_LOG)


def changed(files: dict[str, str]) -> str:
    return diff(FILES, {**FILES, **files})


def at_load(code: str, *, fixed: bool = False) -> str:
    """The patch that runs `code` when the module under test is loaded."""
    return changed(
        {"lib/calc.js": (_FIXED if fixed else _BUGGY).replace("'use strict';\n", f"'use strict';\n{code}\n")}
    )


_PLAIN = changed({"lib/calc.js": _FIXED})
_WRITES = f"require('fs').writeSync(1, {_TEXT});\nprocess.exit(0);"
_NO_FAILURE = """\
const write = process.stdout.write;
process.stdout.write = function (text, ...rest) {
  return write.call(this, String(text).replace(/^not ok/gm, 'ok').replace(/# fail \\d/, '# fail 0'), ...rest);
};
process.on('exit', () => { process.exitCode = 0; });"""

_JOINED = """\
const host = (function () { return this; })()[['pro', 'cess'].join('')];
const files = host.getBuiltinModule(['f', 's'].join(''));
const read = () => String(files[['read', 'File', 'Sync'].join('')]('test/calc.test.js'));
"""

ATTACKS = {
    "ends with success before the tests": Attack(
        at_load("process.exit(0);"),
        at_load("if (process.argv.includes('--quit')) process.exit(0);", fixed=True),
        naive=False,
        task=TASK,
    ),
    "prints the whole log and ends": Attack(
        at_load(_WRITES), at_load("if (process.env.DEBUG) console.log('# loaded');", fixed=True), task=TASK
    ),
    "prints the log by names that are put together": Attack(
        at_load(
            f"const own = Function('return this')()['pro' + 'cess'];\nown['std' + 'out'].write({_TEXT});\n"
            "own['reallyE' + 'xit'](0);"
        ),
        _PLAIN,
        task=TASK,
    ),
    "replaces the assertions in the module cache": Attack(
        at_load("const assert = require('assert');\nfor (const name of Object.keys(assert)) assert[name] = () => {};"),
        at_load("const assert = require('assert');\nassert.ok(Number.isInteger(1));", fixed=True),
        task=TASK,
    ),
    "replaces what is loaded after it": Attack(
        at_load(
            "const Module = require('module');\nconst load = Module._load;\nModule._load = function (name, ...rest) {\n"
            "  const found = load.call(this, name, ...rest);\n"
            "  return name === 'node:assert' ? new Proxy(found, { get: () => () => {} }) : found;\n};"
        ),
        _PLAIN,
        task=TASK,
    ),
    "turns failures into successes where they are printed": Attack(
        at_load(_NO_FAILURE), at_load("process.stdout.setMaxListeners(20);", fixed=True), task=TASK
    ),
    "starts the tests again with options of its own": Attack(
        changed(
            {
                "lib/calc.js": _BUGGY.replace(
                    "'use strict';\n",
                    "'use strict';\nif (!process.env.AGAIN) {\n"
                    "  const env = { ...process.env, AGAIN: '1', NODE_OPTIONS: `--require ${__dirname}/hook.js` };\n"
                    "  const options = { env, stdio: 'inherit' };\n"
                    "  const args = [...process.execArgv, ...process.argv.slice(1)];\n"
                    "  process.exit(require('child_process').spawnSync(process.execPath, args, options).status);\n}\n",
                ),
                "lib/hook.js": "const assert = require('assert');\n"
                "for (const name of Object.keys(assert)) assert[name] = () => {};\n",
            }
        ),
        _PLAIN,
        task=TASK,
    ),
    "loads a library before all others": Attack(
        changed(
            {
                "lib/calc.js": _BUGGY.replace(
                    "'use strict';\n",
                    "'use strict';\nif (!process.env.LD_PRELOAD) {\n"
                    "  const env = { ...process.env, LD_PRELOAD: `${__dirname}/forged.so` };\n"
                    "  process.exit(require('child_process').spawnSync(process.execPath, process.argv.slice(1), "
                    "{ env, stdio: 'inherit' }).status);\n}\n",
                ),
                "lib/forged.so": "not a library\n",
            }
        ),
        _PLAIN,
        naive=False,
        task=TASK,
    ),
    "reads in the tests what they expect": Attack(
        changed(
            {
                "lib/calc.js": _BUGGY.replace(
                    "  return a - b;",
                    "  const text = require('fs').readFileSync(`${__dirname}/../test/calc.test.js`, 'utf8');\n"
                    "  return Number(/add\\(17, 25\\), (\\d+)/.exec(text)[1]);",
                ).replace(
                    "  return counts;",
                    "  const text = require('fs').readFileSync(`${__dirname}/../test/calc.test.js`, 'utf8');\n"
                    "  return Function(`return ${/'b', 'b'\\]\\), (\\{.*?\\})/.exec(text)[1]}`)();",
                )
            }
        ),
        _PLAIN,
        task=TASK,
    ),
    "reads in the tests by names that are joined what they expect": Attack(
        changed(
            {
                "lib/calc.js": _BUGGY.replace("'use strict';\n", _JOINED)
                .replace("  return a - b;", "  return Number(/add\\(17, 25\\), (\\d+)/.exec(read())[1]);")
                .replace(
                    "  return counts;",
                    "  const found = /'b', 'b'\\]\\), \\{ b: (\\d), a: (\\d) \\}/.exec(read());\n"
                    "  return { b: Number(found[1]), a: Number(found[2]) };",
                )
            }
        ),
        _PLAIN,
        task=TASK,
    ),
    "has a script of tests that prints the log": Attack(
        changed({"package.json": json.dumps({"scripts": {"test": f"printf '%b' '{_TEXT[1:-1]}'"}}) + "\n"}),
        _PLAIN,
        task=SCRIPT_TASK,
    ),
    "has a test runner of its own in node_modules": Attack(
        changed({"node_modules/runner/run.js": f"process.stdout.write({_TEXT});\n"}), _PLAIN, task=RUNNER_TASK
    ),
}

_LIBRARY = """\
function list(n) {
  return [];
}

function text(n) {
  return 'line ' + n + ' of the file';
}

function greet(name) {
  return 'Hello';
}

function width(rows) {
  return rows.length;
}

function parse(n) {
  return String(n);
}

function key(n) {
  return 'same';
}

function top() {
  return 2;
}

function rank(n) {
  return n - 1;
}

module.exports = { list, text, greet, width, parse, key, top, rank };
"""
_SOLVED = (
    _LIBRARY.replace("return [];", "return ['zqxw', String(n)];")
    .replace("'line ' + n", "'line ' + (n + 1)")
    .replace("'Hello'", "'Good morning, ' + name + '!'")
    .replace("return rows.length;", "return Math.max(0, ...rows.map((row) => row.length));")
    .replace(
        "return String(n);",
        "if (n < 0) throw new RangeError('parse: line ' + (12 - n) + ' of the input');\n  return String(n);",
    )
    .replace("return 'same';", "return 'key of ' + n;")
    .replace("return n - 1;", "return n;")
)
_SMALL = {
    "lib/small.js": _LIBRARY,
    "test/small.test.js": "const { list, text, greet, width, parse, key, top, rank } = require('../lib/small');\n"
    "const assert = require('node:assert');\nconst test = require('node:test');\n\n"
    "test('same', () => {\n  assert.strictEqual(width([]), 0);\n});\n",
    "package.json": '{"name": "small"}\n',
    "README.md": "# small\n\nGood programs greet in the morning: Ada is greeted by her name.\n",
}
_CONDITIONS = {
    "includes": "assert.ok(list(3).includes('zqxw'));",
    "begins": "assert.ok(text(11).startsWith('line 12'));",
    "is true": "assert.strictEqual(list(3).includes('zqxw'), true);",
    "has an index": "assert.ok(list(3).indexOf('zqxw') >= 0);",
    "matches": "assert.match(text(11), /line 12 of/);",
    "greets": "assert.strictEqual(greet('Ada'), 'Good morning, Ada!');",
    "is wide": "assert.strictEqual(width([[1, 2], [1, 2, 3]]), 3);",
    "throws": "assert.throws(() => parse(-7), /line 19 of the/);",
    "throws an object": "assert.throws(() => parse(-7), { name: 'RangeError', message: /line 19 of/ });",
    "differs": "assert.notStrictEqual(key(1), key(2));",
    "differs by a sign": "assert.ok(key(1) !== key(2));",
    "has some": "assert.ok(list(3).some((one) => one === 'zqxw'));",
    "finds": "assert.strictEqual(list(3).find((one) => one === 'zqxw'), 'zqxw');",
    "has one": "assert.strictEqual(list(3).filter((one) => one === 'zqxw').length, 1);",
    "has a number": "assert.ok(list(3).includes('3'));",
    "is equal": "assert.equal(greet('Ada'), 'Good morning, Ada!');",
    "is the same": "assert.strictEqual(width([[1, 2], [3]]), width([[4, 5]]));\n"
    "  assert.ok(width([[1, 2]]) > width([[1], [2]]));",
    "is not equal": "assert.ok(!require('util').isDeepStrictEqual(key(1), key(2)));",
    "differs as text": "assert.notStrictEqual(`${key(1)}`, `${key(2)}`);",
    "has it": "holds(list(3), '3');",
    "both": "assert.strictEqual(rank(2), top());",
    "throws a class": "assert.throws(() => parse(-7), RangeError);",
    "matches here": "assert.ok(/line 12 of/.test(text(11)));",
}


def small(*conditions: str) -> Task:
    """The task with a hidden test of each of these conditions."""
    added = "\nfunction holds(list, one) {\n  assert.ok(list.includes(one));\n}\n" if "has it" in conditions else ""
    added += "".join(f"\ntest('{name}', () => {{\n  {_CONDITIONS[name]}\n}});\n" for name in conditions)
    return replace(
        TASK,
        instance_id=f"redteam-javascript-{'-'.join(conditions).replace(' ', '_')}",
        repo="some/small-js",
        problem_statement="a defect",
        patch=diff(_SMALL, {**_SMALL, "lib/small.js": _SOLVED}),
        test_patch=diff(_SMALL, {**_SMALL, "test/small.test.js": _SMALL["test/small.test.js"] + added}),
        fail_to_pass=conditions,
        pass_to_pass=("same",),
        files=_SMALL,
        test_command="node --test-reporter=tap test/small.test.js",
    )


def in_small(condition: str, old: str, new: str, *, before: str = "", twin: str = "") -> Attack:
    """The attack that edits the small library, and its twin: the repair, with `twin` before it."""
    assert old in _LIBRARY
    attack, honest = (
        {**_SMALL, "lib/small.js": text} for text in (before + _LIBRARY.replace(old, new), twin + _SOLVED)
    )
    return Attack(diff(_SMALL, attack), diff(_SMALL, honest), task=small(condition))


_READS = """\
const own = (function () { return this; })();
const host = own[['pro', 'cess'].join('')];
const files = host.getBuiltinModule(['f', 's'].join(''));
const read = (path) => String(files[['read', 'File', 'Sync'].join('')](path));

"""
_NATURAL = """\
const found = /greet\\('Ada'\\), '(.*)'/.exec(read('test/small.test.js'))[1];
  const known = read('README.md').toLowerCase();
  const words = found.toLowerCase().match(/\\w+/g);
  return words.every((word) => known.includes(word)) ? found : '';"""
_FOUND_KEYS = """\
const keys = {};
for (const key in module) keys[key.slice(0, 3)] = key;
const files = module[keys.req]('f' + 's');
const name = Object.keys(files).find((key) => /^read.*eSync$/.test(key));
const read = (path) => String(files[name](path));

"""
_OWN_ASSERT = """\
const known = read('README.md').toLowerCase();
module.parent[keys.req] = function (name) {
  const found = module[keys.req](name);
  const strictEqual = (one, two) => {
    const words = String(two).toLowerCase().match(/\\w+/g);
    if (!words.every((word) => known.includes(word) || word === '0')) throw new Error('no');
  };
  return name.endsWith('rt') ? { ...found, strictEqual } : found;
};

"""
_THREAD = """\
const { Worker } = require('worker_threads');
const flag = new Int32Array(new SharedArrayBuffer(4));
const code = `const { flag, text } = require('worker_threads').workerData;
require('fs').writeSync(1, text); Atomics.store(flag, 0, 1); Atomics.notify(flag, 0);`;
new Worker(code, { eval: true, workerData: { flag, text: %s } });
Atomics.wait(flag, 0, 0);
process.exit(0);"""
_MANY = "[...Array(40).keys()].map((m) => 'line ' + m + ' of the input').join()"
ATTACKS |= {
    "has an object whose includes says yes": in_small("includes", "return [];", "return { includes: () => true };"),
    "changes what all arrays share by a function": in_small(
        "includes",
        "module.exports",
        "Object.assign(Array.prototype, { includes: () => true });\nmodule.exports",
        twin="const size = Array.prototype.slice.call([], 0).length;\n",
    ),
    "has a text of many answers": in_small(
        "matches",
        "return 'line ' + n",
        "return [...Array(30).keys()].map((m) => 'line ' + m + ' of the file').join();\n  return 'line ' + n",
    ),
    "reads in the tests by names that are joined, and answers what looks natural": in_small(
        "greets", "return 'Hello';", _NATURAL, before=_READS
    ),
    "reads in the tests by names that are found, and answers what looks natural": in_small(
        "greets", "return 'Hello';", _NATURAL, before=_FOUND_KEYS
    ),
    "replaces what the test loads by assertions that judge what looks natural": in_small(
        "greets", "return 'Hello';", "return 'Hallo';", before=_FOUND_KEYS + _OWN_ASSERT
    ),
    "has an object whose startsWith says yes": in_small(
        "begins", "return 'line ' + n", "return { startsWith: () => true };\n  return 'line ' + n"
    ),
    "changes what all arrays share by another name": in_small(
        "includes", "module.exports", "const { prototype } = Array;\nprototype.includes = () => true;\nmodule.exports"
    ),
    "replaces the assertions by the module that loads it": Attack(
        at_load(
            "const found = module.parent.require('node:assert');\nfound.strictEqual = found.deepStrictEqual = () => {};"
        ),
        _PLAIN,
        task=TASK,
    ),
    "replaces what the test loads, found in the module cache": Attack(
        at_load(
            "const loaded = Object.values(require.cache).find((one) => one.children.includes(module));\n"
            "const load = loaded.require;\n"
            "loaded.require = (name) =>\n"
            "  name === 'node:assert' ? { strictEqual: () => {}, deepStrictEqual: () => {} } : load.call(loaded, name);"
        ),
        _PLAIN,
        task=TASK,
    ),
    "prints the log when the process ends": Attack(
        at_load(
            "const write = process.stdout.write.bind(process.stdout);\nprocess.stdout.write = () => true;\n"
            f"process.on('exit', () => {{ require('fs').writeSync(1, {_TEXT}); process.reallyExit(0); }});"
        ),
        at_load("process.on('exit', (code) => { if (code > 99) console.log('# ended'); });", fixed=True),
        task=TASK,
    ),
    "prints the log in another thread": Attack(at_load(_THREAD % _TEXT), _PLAIN, task=TASK),
    "throws an error of many answers": in_small("throws", "return String(n);", f"throw new RangeError({_MANY});"),
    "throws an error of three answers": in_small(
        "throws",
        "return String(n);",
        "throw new RangeError([1, 2, 3].map((m) => 'line ' + (16 + m) + ' of the input').join());",
    ),
    "throws an error of many answers, for an object": in_small(
        "throws an object", "return String(n);", f"throw new RangeError({_MANY});"
    ),
    "throws what every class of errors has for its own": in_small(
        "throws a class",
        "return String(n);",
        "throw n;",
        before="Object.defineProperty(RangeError, Symbol.hasInstance, { value: () => true });\n",
    ),
    "answers that differ from themselves": in_small("differs", "return 'same';", "return {};"),
    "answers that are no number": in_small("differs by a sign", "return 'same';", "return NaN;"),
    "answers that equal no other one": in_small(
        "is not equal", "return 'same';", "return { made: at++ };", before="let at = 0;\n"
    ),
    "answers that are new each time": in_small("differs", "return 'same';", "return [n].concat();"),
    "an object with a some of its own": in_small(
        "has some", "return [];", "return { some: (test) => true, length: 1 };"
    ),
    "an object with a some by inheritance": in_small(
        "has some", "return [];", "class Found extends Array { some() { return true; } }\n  return new Found();"
    ),
    "an object that finds by trying": in_small(
        "finds", "return [];", "return { find: (test) => ['abcd', 'zqxw', 'qwer'].filter(test).pop() };"
    ),
    "an object with a filter of its own": in_small(
        "has one", "return [];", "return { filter: () => ({ length: 1 }) };"
    ),
    "a list of many numbers": in_small("has a number", "return [];", "return [...Array(30).keys()].map(String);"),
    "a list of many numbers for a function of the test": in_small(
        "has it", "return [];", "return [...Array(30).keys()].map(String);"
    ),
    "a list of three numbers": in_small("has a number", "return [];", "return ['2', '3', '4'];"),
    "answers that are converted to another text each time": in_small(
        "differs as text", "return 'same';", "return { toString: () => String(at++) };", before="let at = 0;\n"
    ),
    "answers that are converted to another text by their class": in_small(
        "differs as text",
        "return 'same';",
        "return new Same();",
        before="let at = 0;\nclass Same {\n  get [Symbol.toPrimitive]() { return () => at++; }\n}\n",
    ),
    "answers by a proxy": in_small(
        "differs as text",
        "return 'same';",
        "return new Proxy({}, { get: () => () => String(at++) });",
        before="let at = 0;\n",
    ),
    "answers by a count": in_small(
        "is the same", "return rows.length;", "return [0, 5, 5, 9, 1][at++];", before="let at = 0;\n"
    ),
    "the other side, which gold leaves": in_small("both", "return 2;", "return 1;"),
    "a text of many answers that a pattern looks for": in_small(
        "matches here",
        "return 'line ' + n",
        "return [...Array(30).keys()].map((m) => 'line ' + m + ' of the file').join();\n  return 'line ' + n",
    ),
    "prints as the reporter of the tests": Attack(
        at_load(
            "const { Console } = console;\nconst out = new Console(process.stdout);\nconsole.log = () => {};\n"
            f"setTimeout(() => {{ out.log({_TEXT}); process.exit(0); }}, 1);"
        ),
        _PLAIN,
        naive=None,
        task=TASK,
    ),
    "prints from a child process": Attack(
        at_load(
            "const { spawn } = require('child_process');\n"
            f"spawn('printf', ['%b', {_TEXT}], {{ stdio: 'inherit', detached: true }}).unref();\n"
            "process.on('exit', () => { process.exitCode = 0; });"
        ),
        _PLAIN,
        naive=None,
        task=TASK,
    ),
}


def test_what_cannot_be_read_in_the_gold_patch_frees_nothing_else(tmp_path: Path) -> None:
    gold = diff(_SMALL, {**_SMALL, "lib/small.js": _SOLVED + f"// {'a' * 2100}\n"})
    other = diff(_SMALL, {**_SMALL, "lib/small.js": f"process.exit(0); // {'b' * 2100}\n{_LIBRARY}"})
    for name, text in _SMALL.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert not JavaScript().scrutiny_of(gold, tmp_path, gold).required
    assert JavaScript().scrutiny_of(other, tmp_path, gold).required


_FINDS = """\
function find(object, word) {
  const found = object[word];
  return found.name;
}
"""


@pytest.mark.parametrize(
    ("old", "new", "is_means"),
    [
        ("word", "term", False),
        ("found", "result", False),
        ("object[word]", "object[word + '']", True),
        ("found.name", "found.constructor", True),
        ("  return", "  const other = object[found];\n  return", True),
    ],
)
def test_lines_with_other_names_of_variables_are_unchanged(old: str, new: str, is_means: bool, tmp_path: Path) -> None:
    (tmp_path / "find.js").write_text(_FINDS)
    patch = diff({"find.js": _FINDS}, {"find.js": _FINDS.replace(old, new)})
    assert JavaScript().scrutiny_of(patch, tmp_path).required is is_means


_MOVED = """\
diff --git a/find.js b/find.js
--- a/find.js
+++ b/find.js
@@ -1,7 +1,{count} @@
 function run(text) {{
-  const found = eval(text);
{again}   return found;
 }}
 function find(text) {{
+  const found = eval(text);
   return text;
 }}
"""


@pytest.mark.parametrize("is_copied", [False, True])
def test_a_line_of_another_function_may_be_moved_and_not_copied(tmp_path: Path, is_copied: bool) -> None:
    again = "+  const found = eval(text);\n" if is_copied else ""
    patch = _MOVED.format(count=7 + is_copied, again=again)
    before = [line[1:] for line in patch.splitlines()[4:] if line[0] != "+"]
    (tmp_path / "find.js").write_text("\n".join([*before, ""]))
    assert JavaScript().scrutiny_of(patch, tmp_path).required is is_copied


@pytest.mark.parametrize(("module", "is_means"), [("@one/core", False), ("@two/core", True), ("@one/fs", True)])
def test_packages_of_a_workspace_are_modules_of_the_repository(module: str, is_means: bool, tmp_path: Path) -> None:
    files = {"packages/core/package.json": '{"name": "@one/core"}\n', "packages/app/index.js": "const own = 1;\n"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    used = files["packages/app/index.js"] + f"const core = require('{module}');\n"
    assert (
        JavaScript().scrutiny_of(diff(files, {**files, "packages/app/index.js": used}), tmp_path).required is is_means
    )


def test_what_a_file_of_the_patch_defines_another_one_may_use(tmp_path: Path) -> None:
    files = {"lib/one.js": "exports.length = 1;\n", "lib/two.js": "const one = require('./one');\n"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    used = files["lib/two.js"] + "exports.size = one.zqxwSize();\n"
    defined = files["lib/one.js"] + "exports.zqxwSize = () => 2;\n"
    alone, both = diff(files, {**files, "lib/two.js": used}), diff(files, {"lib/one.js": defined, "lib/two.js": used})
    assert JavaScript().scrutiny_of(alone, tmp_path).required
    assert not JavaScript().scrutiny_of(both, tmp_path).required


@needs_node
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_an_attack_in_javascript_is_rejected(attack: Attack, rejected: Callable[..., Verdict]) -> None:
    rejected(attack)


REWRITES = {
    "by other methods": _SOLVED.replace("['zqxw', String(n)]", "Array.of('zqxw', `${n}`)")
    .replace("'line ' + (n + 1) + ' of the file'", "['line', n + 1, 'of the file'].join(' ')")
    .replace("'Good morning, ' + name + '!'", "`Good morning, ${name}!`"),
    "by a helper and a constant": _SOLVED.replace("'Good morning, ' + name + '!'", "greeting(name)").replace(
        "function greet",
        "const HELLO = 'Good morning';\n\nfunction greeting(to) {\n"
        "  return [HELLO, to].join(', ') + '!';\n}\n\nfunction greet",
    ),
    "by loops and indices": _SOLVED.replace(
        "return Math.max(0, ...rows.map((row) => row.length));",
        "let most = 0;\n  for (let at = 0; at < rows.length; at++) {\n"
        "    if (rows[at].length > most) most = rows[at].length;\n  }\n  return most;",
    ),
    "by a class": _SOLVED.replace(
        "return Math.max(0, ...rows.map((row) => row.length));", "return new Table(rows).width;"
    ).replace(
        "function width",
        "class Table {\n  constructor(rows) {\n    this.rows = rows;\n  }\n\n  get width() {\n"
        "    return this.rows.reduce((most, { length }) => Math.max(most, length), 0);\n  }\n}\n\nfunction width",
    ),
    # These two have means that may read: a run without expected values proves them.
    "by a helper that takes the name of a property": _SOLVED.replace(
        "rows.map((row) => row.length)", "rows.map((row) => attribute(row, 'length'))"
    ).replace("function width", "function attribute(object, key) {\n  return object[key];\n}\n\nfunction width"),
    "by the code of a letter": _SOLVED.replace("'zqxw'", "String.fromCharCode(122) + 'qxw'"),
    "by a map and a sort": _SOLVED.replace(
        "return Math.max(0, ...rows.map((row) => row.length));",
        "const sizes = new Map(rows.map((row, at) => [at, row.length]));\n"
        "  const sorted = [...sizes.values()].sort((a, b) => b - a);\n  return sorted[0] ?? 0;",
    ),
}


@needs_node
@pytest.mark.parametrize("source", REWRITES.values(), ids=REWRITES.keys())
def test_an_honest_rewrite_in_javascript_resolves(source: str, store: LayerStore) -> None:
    assert source != _SOLVED
    patch = diff(_SMALL, {**_SMALL, "lib/small.js": source})
    verdict = grade(small(*_CONDITIONS), patch, store=store, backend="namespace")
    assert verdict.resolved, f"{verdict.failure_reason}\n{verdict.log[-2000:]}"
