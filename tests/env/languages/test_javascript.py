"""JavaScript: tests and what they expect are found and changed, patches are screened, Node.js comes from a registry."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from swegym_env.errors import LayerError
from swegym_env.grading.comparisons import Foreign, read_records
from swegym_env.languages.javascript import JavaScript, node
from swegym_env.languages.javascript.blind import python_pattern
from swegym_env.languages.javascript.node import NODE, VERSIONS, node_layer
from swegym_env.languages.javascript.setup import RECIPES
from swegym_env.languages.javascript.source import named_tests, read_tests
from swegym_env.languages.machine import MachineRecipe
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task
from tests.places import public_directory
from tests.redteam.cases import diff

JAVASCRIPT = JavaScript()
PATH = "test/a.test.js"


def changed(statement: str, *, path: str = PATH, seed: int = 1) -> str:
    """What a control makes of one statement of a test."""
    source = f"test('t', async () => {{\n{statement}\n}});\n"
    control = JAVASCRIPT.make_control({path: source}, ["t"], {}, seed)
    if control is None:
        return ""
    assert control.names == {"t"}
    return control.files[path].split("\n", 1)[1].removesuffix("\n});\n")


@pytest.mark.parametrize(
    ("statement", "pieces"),
    [
        ("assert.equal(add(2, 3), 5)", ("assert.equal(add(2, 3), ", ")")),
        ("assert.strictEqual('abc', name(), 'why')", ("assert.strictEqual('", "', name(), 'why')")),
        ("assert.deepStrictEqual(f(1), { a: [1, 'x'] })", ("assert.deepStrictEqual(f(1), { a: [", "] })")),
        ("expect(f(7)).to.equal('<b>é</b>')", ("expect(f(7)).to.equal('<", "')")),
        ("expect(f(7)).to.deep.equal([1, 2])", ("expect(f(7)).to.deep.equal([", "])")),
        ("expect(f(7)).toBe(true)", ("expect(f(7)).toBe(false)",)),
        ("expect(await f(7)).toEqual({ a: 1.5 })", ("expect(await f(7)).toEqual({ a: ", " })")),
        ("await expect(f(7)).resolves.toStrictEqual(10n)", ("await expect(f(7)).resolves.toStrictEqual(", "n)")),
        ("expect(f(7)).toMatch(/a+b/)", ("expect(f(7)).toMatch(/", "/)")),
        ("expect(f(7)).toBe(null)", ("expect(f(7)).toBe(", ")")),
        ("expect(spy).toHaveBeenCalledTimes(2)", ("expect(spy).toHaveBeenCalledTimes(", ")")),
        ("expect(f(7)).toMatchInlineSnapshot(`\n  text\n`)", ("expect(f(7)).toMatchInlineSnapshot(`\n  ", "\n`)")),
    ],
)
def test_an_expected_literal_becomes_another_one(statement: str, pieces: tuple[str, ...]) -> None:
    for seed in range(8):
        text = changed(statement, seed=seed)
        assert text != statement
        assert text.startswith(pieces[0]) and text.endswith(pieces[-1]), text


@pytest.mark.parametrize(
    ("statement", "shape"),
    [
        ("assert.ok(f(3).includes('zqxw'))", r"assert\.ok\(\[LIST\]\.some\(\(X\) => f\(3\)\.includes\(X\)\)\)"),
        (
            "assert(g(1) && f(3).indexOf('zqxw') >= 0)",
            r"assert\(\[LIST\]\.some\(\(X\) => g\(1\) && f\(3\)\.indexOf\(X\) >= 0\)\)",
        ),
        (
            "assert.equal(f(3).startsWith('zqxw'), true)",
            r"assert\.equal\(\[LIST\]\.some\(\(X\) => f\(3\)\.startsWith\(X\)\), true\)",
        ),
        ("expect(f(3).has('zqxw')).toBe(true)", r"expect\(\[LIST\]\.some\(\(X\) => f\(3\)\.has\(X\)\)\)\.toBe\(true\)"),
        ("assert.ok((await f(3)).includes('zqxw'))", r"assert\.ok\(\(await f\(3\)\)\.includes\('\w+'\)\)"),
        ("assert.match(f(3), /line 12/)", r"assert\.match\(f\(3\), /(line \(\?:[\d|]+\)|\(\?:[a-z|]+\) 12|\|)+/\)"),
        ("assert.match(f(3), /cats|dogs/)", r"assert\.match\(f\(3\), /\(\?:[a-z|]+\)\|\(\?:[a-z|]+\)/\)"),
        ("assert.ok(!f(3).includes('zqxw'))", r"assert\.ok\(!\(!f\(3\)\.includes\('zqxw'\)\)\)"),
        ("assert.ok(f(3).indexOf('zqxw') < 0)", r"assert\.ok\(!\(f\(3\)\.indexOf\('zqxw'\) < 0\)\)"),
        ("expect(f(3).has('zqxw')).toBe(false)", r"expect\(f\(3\)\.has\('zqxw'\)\)\.toBe\(true\)"),
    ],
)
def test_what_a_condition_asks_for_is_replaced_by_several_decoys(statement: str, shape: str) -> None:
    """What has many answers holds one of them; a condition that holds if nothing is found is turned."""
    pattern = shape.replace("LIST", r"('[a-z]{2,6}'(, )?){12}").replace("X", r"k\w{6}")
    for seed in range(4):
        text = changed(statement, seed=seed)
        assert re.fullmatch(pattern, text), text
        assert ("zqxw" in text) is ("!(" in text or "false" in statement)


@pytest.mark.parametrize(
    ("statement", "turned"),
    [
        ("assert(isName(x))", "assert(!(isName(x)))"),
        ("assert.ok(isName(x), 'why')", "assert.ok(!(isName(x)), 'why')"),
        ("assert.deepEqual(f(1), g(1))", "assert.notDeepEqual(f(1), g(1))"),
        ("expect(f(1)).toEqual(g(1))", "expect(f(1)).not.toEqual(g(1))"),
        ("expect(f(1)).to.be.calledOnce", "expect(f(1)).not.to.be.calledOnce"),
        ("expect(f(1)).not.toBe(2)", "expect(f(1)).toBe(2)"),
        ("expect(f(1)).to.not.equal(2)", "expect(f(1)).to.equal(2)"),
        ("let x = equal(1, 2)", ""),
        ("console.log('assert.equal(1, 2)') // expect(1).toBe(2)", ""),
    ],
)
def test_conditions_and_computed_values_are_turned(statement: str, turned: str) -> None:
    assert changed(statement) == turned


def test_a_changed_condition_says_less_than_a_changed_value() -> None:
    source = "it('a', () => { assert(f()) })\nit('b', () => { assert(f()); assert.equal(f(), 3) })\n"
    control = JAVASCRIPT.make_control({PATH: source}, ["a", "b"], {}, 0)
    assert control is not None and (control.names, control.without_value) == ({"a", "b"}, {"a"})
    assert "assert(f()); assert.equal(f(), 3)" not in control.files[PATH]


SUITES = """\
import { h } from 'preact';
describe('render()', () => {
  const line = <p class="it's">don't {'`'}</p>;
  context("inner", function () {
    it.only('draws "x" once', () => { expect(<a href="/">it's</a>).to.equal(1); });
    test.each([[1, 2]])('adds %i to %s', (a, b) => { expect(a).toBe(3); });
  });
  it(`draws ${line} again`, () => { expect(2).toBe(4); });
});
QUnit.module('Core', () => { QUnit.test('toJSON', (assert) => { assert.equal(5, 5); }); });
it('draws "x" once', () => { expect(6).toBe(6); });
it('empty', () => {});
pattern.test('not a test', () => { expect(7).toBe(7); });
"""


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("render() > inner > draws \"x\" once", {"1"}),  # Karma
        ("a/b.spec.ts > render() > inner > draws \"x\" once", {"1"}),  # Vitest
        ("render() inner draws \"x\" once", {"1"}),  # mocha's TAP
        ("draws \"x\" once", {"1", "6"}),  # Jest names no suite
        ("render() > inner > adds 1 to two", {"3"}),
        ("render() > draws a line again", {"4"}),
        ("Core > toJSON", {"5"}),
        ("empty", set()),
        ("not a test", set()),
    ],
)  # fmt: skip
def test_tests_are_found_by_the_names_that_runners_print(name: str, values: set[str]) -> None:
    found = named_tests(read_tests("a.js", SUITES), name)
    assert {SUITES[one.begin : one.end] for test in found for one in test.expected} == values


def test_tests_that_no_name_finds_are_found_by_their_added_lines() -> None:
    source = "it('a', () => {\n  assert.equal(f(), 1)\n})\nit('b', () => {\n  assert.equal(f(), 2)\n})\n"
    control = JAVASCRIPT.make_control({PATH: source}, ["suite of fixtures"], {PATH: frozenset({5})}, 0)
    assert control is not None and not control.names
    assert control.files[PATH].splitlines()[:4] == source.splitlines()[:4]
    assert control.files[PATH] != source


def test_types_and_characters_beyond_ascii_do_not_shift_a_change() -> None:
    body = "  const x = <Map<string, number>>f('ß')\n  expect(x as any).toBe(11 as T)\n"
    source = f"test('ä → ö', (): void => {{\n{body}}})\n"
    control = JAVASCRIPT.make_control({"a.ts": source}, ["ä → ö"], {}, 0)
    assert control is not None
    assert re.sub(r"\d\d as T", "11 as T", control.files["a.ts"]) == source != control.files["a.ts"]


@pytest.mark.skipif(not shutil.which("node", path="/usr/bin"), reason="needs Node.js: apt-get install nodejs")
def test_changed_tests_fail_and_the_others_pass(tmp_path: Path) -> None:
    source = (
        "const test = require('node:test'), assert = require('node:assert');\n"
        "test('number', () => { assert.equal(2 + 2, 4); });\n"
        "test('text', () => { assert.strictEqual('a' + 'b', 'ab'); });\n"
        "test('object', () => { assert.deepStrictEqual({ a: [1, null] }, JSON.parse('{\"a\": [1, null]}')); });\n"
        "test('truth', () => { assert.ok([].length === 0); });\n"
        "test('left', () => { assert.equal(1, 1); });\n"
    )
    names = ["number", "text", "object", "truth"]
    for seed in range(5):
        control = JAVASCRIPT.make_control({PATH: source}, names, {}, seed)
        assert control is not None and control.names == {*names}
        file = tmp_path / "control.js"
        file.write_text(control.files[PATH])
        command = ["/usr/bin/node", "--test-reporter=tap", file]
        done = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/usr/bin"}, check=False)
        found = JAVASCRIPT.parser_of_command("node --test-reporter=tap")(done.stdout)
        assert {name for name, status in found.items() if status == "FAILED"} == {*names}, control.files[PATH]
        assert found["left"] == "PASSED"


_BEFORE = """\
const utils = require('./utils');
const sizes = {};
function Axios(a) { this.a = a; sizes[word] = earlier(a, word); }
Axios.prototype.get = function () { return this.a; };
"""


SENT = """\
import { f, g } from './a';
it('a', async () => {
  assert.strictEqual(f(1), 'x\\u0041');
  assert.deepStrictEqual({ a: [1, -2.5], 'b-c': null }, f(2));
  assert.equal(f(3), g(3));
  assert.ok(f(4) > g(4));
  assert(f(5).includes('x'));
  assert.ok(isName(f(6)));
  expect(f(7)).toEqual([true, 10n]);
  expect(f(8)).to.be.true;
  expect(f(9)).to.equal(9);
  expect(f(10)).toContain('ten');
  assert.match(f(11), /x/);
  assert.strictEqual(f(12), undefined);
});
it('b', () => { expect(f(20)).not.toBe(3); assert.throws(() => f(21)); assert.equal(f(22), 22); });
it('c', () => { assert.equal(f(30), 30); checkAll(f(31)); });
it('d', () => { assert.equal(f(40), 40); sinon.assert.called(f(41)); f(42).should.equal(42); });
"""


def test_what_an_assertion_compares_is_sent_and_no_longer_checked_without_expected_values() -> None:
    blinded = JAVASCRIPT.make_blind({"a.test.ts": SENT}, [*"abcd"], frozenset(), 1, computed=True)
    assert blinded is not None and blinded.open == {"b", "c", "d"}
    found = [(one.place.split(":")[1], one.kind, one.value) for one in blinded.expectations.values()]
    assert found == [
        ("3", "is", "xA"),
        ("4", "eq", {"a": [1, -2.5], "b-c": None}),
        ("5", "gold", None),
        ("6", "gold", None),
        ("6", "gold", None),
        ("7", "gold", None),
        ("8", "is", True),
        ("9", "eq", [True, 10]),
        ("10", "is", True),
        ("11", "is", 9),
        ("12", "in", "ten"),
        ("13", "gold", None),
        ("14", "gold", None),
        ("16", "gold", None),
        ("16", "is", 22),
        ("17", "is", 30),
        ("18", "is", 40),
    ]
    text = blinded.files["a.test.ts"]
    assert not re.search(r"u0041|2\.5|'ten'|10n|toBe\(9|, 22\)|toBe\(3\)", text)
    assert read_tests("a.test.ts", text) and "import * as k" in text


def test_what_a_condition_compares_is_sent_beside_it() -> None:
    """Literals stay outside; what has none is checked by the test too, each part where it stands."""
    blinded = JAVASCRIPT.make_blind({"a.test.ts": SENT}, [*"abcd"], frozenset(), 1)
    assert blinded is not None and blinded.open == {"a", "b", "c", "d"}
    found = [
        (one.place.split(":")[1], one.kind, one.value, "beside" in one.options) for one in blinded.expectations.values()
    ]
    assert found == [
        ("3", "is", "xA", False),
        ("4", "eq", {"a": [1, -2.5], "b-c": None}, False),
        ("5", "gold", None, True),
        ("5", "gold", None, True),
        ("6", "gold", None, True),
        ("6", "gold", None, True),
        ("7", "in", "x", False),
        ("8", "is", True, False),
        ("9", "eq", [True, 10], False),
        ("10", "is", True, False),
        ("11", "is", 9, False),
        ("12", "in", "ten", False),
        ("13", "search", "(?a)x", False),
        ("14", "gold", None, True),
        ("14", "gold", None, True),
        ("16", "gold", None, True),
        ("16", "is", 22, False),
        ("17", "is", 30, False),
        ("18", "is", 40, False),
    ]
    text = blinded.files["a.test.ts"]
    assert re.search(r"assert\.ok\(k\w+\(.k\w+., \(f\(4\)\), .strict.\) > k\w+\(", text) and "not.toBe(3)" in text


@pytest.mark.parametrize(
    ("source", "pattern"),
    [
        (r"/a.b$/i", r"(?ai)a.b\Z"),
        (r"/^[$]\$/m", r"(?am)^[$]\$"),
        (r"/\u{1f}/u", None),
        (r"/(?<year>a)/", None),
        (r"/[^]/", None),
        (r"/a/y", None),
        (r"/(/", None),
    ],
)
def test_a_pattern_is_written_as_pythons_or_left(source: str, pattern: str | None) -> None:
    assert python_pattern(source) == pattern


@pytest.mark.skipif(not shutil.which("node", path="/usr/bin"), reason="needs Node.js: apt-get install nodejs")
def test_values_are_sent_as_they_are(tmp_path: Path) -> None:
    values = (
        "[1, -2.5, 0.1, NaN, -Infinity, 2 ** 70]",
        "({ a: null, é: ['\\n', true] })",
        "({ a: undefined, b: 1 })",
        "new Map()",
    )
    tests = "".join(
        f"test('{n}', () => {{ assert.deepEqual({value}, other()); }});\n" for n, value in enumerate(values)
    )
    source = "const test = require('node:test'), assert = require('node:assert');\n" + tests
    names = [str(number) for number in range(len(values))]
    blinded = JAVASCRIPT.make_blind({"a.js": source}, names, frozenset(), 1, computed=True)
    assert blinded is not None
    file, output = tmp_path / "a.js", tmp_path / "sent"
    file.write_text(blinded.files["a.js"].replace(blinded.output, str(output)))
    subprocess.run(["/usr/bin/node", file], capture_output=True, env={"PATH": "/usr/bin"}, check=True)
    sent = [record.value for record in read_records(output.read_bytes())]
    assert repr(sent[0]) == "[1, -2.5, 0.1, nan, -inf, 1180591620717411303424]"
    assert sent[1:] == [{"a": None, "é": ["\n", True]}, {"b": 1}, Foreign("Map", "")]


@pytest.mark.parametrize(
    ("line", "required", "reads"),
    [
        ("  if (a.length && a.test(b)) return earlier(a).toString();", False, False),
        ("  Axios.prototype.request = function (config) { return config; };", False, False),
        ("  const rest = Array.prototype.slice.call(arguments, 1);", False, False),
        ("  for (const key of Object.keys(a)) b[key] = a[key + 1];", False, False),
        ("  b[word] = { ...a, [word]: a.map((one, at) => b[at]) };", False, False),
        ("  const KEY = 'size'; return a[KEY] ?? a['length'] ?? a[a.length - 1];", False, False),
        ("  class Inner extends Axios { constructor(a) { super(a); this.sizes = [a.sizes]; } }", False, False),
        ("  const place = /a(b)/.exec(a)[1], { size = 2, ...others } = b;", False, False),
        ("  const row = <li key={a} onClick={() => b()}>{a}</li>;", False, False),
        ("const utils = require('./utils');", False, False),
        ("import { h, Fragment } from './vnode.js';", False, False),
        ("  if (process.env.NODE_ENV !== 'production') warn('slow');", False, False),
        ("  // process.exit(0)", False, False),
        ("  process.exit(0);", True, False),
        ("  console.log('ok 1 - a');", True, False),
        ("  Array.prototype.includes = () => true;", True, True),
        ("  Object.assign(Array.prototype, { at: () => true });", True, True),
        ("  Reflect.set(a, 'at', () => true);", True, True),
        ("  Object.defineProperty(a, 'at', { value: b });", True, True),
        ("  const A = Array; A.prototype.at = b;", True, True),
        ("  a.__proto__.at = b;", True, True),
        ("  Object.getPrototypeOf(a).at = b;", True, True),
        ("  return { includes: () => true };", True, True),
        ("  class Inner extends Array { indexOf() { return 0; } }", True, True),
        ("  a.startsWith = () => true;", True, True),
        ("  return { [Symbol.toPrimitive]: b };", True, True),
        ("  return { ['inc' + 'ludes']: () => true };", True, True),
        ("  const host = (function () { return this; })();", True, True),
        ("  a[['pro', 'cess'].join('')];", True, True),
        ("  a[`pro${b}`];", True, True),
        ("  a[b];", True, True),
        ("  for (const name of [a + b]) a[name];", True, True),
        ("  const { getBuiltinModule: load } = a;", True, True),
        ("  a.lookUpSomething();", True, True),
        ("  a.getFoo = b; a['\\x63onstructor'];", True, True),
        ("  const name = 'constructor';", True, True),
        ("  String.fromCharCode(97);", True, True),
        ("  delete require.cache[a];", True, True),
        ("  module.children;", True, True),
        ("  const { Worker } = require('worker_threads');", True, True),
        ("  const load = require('./calc.txt');", True, True),
        ("  if (a {", True, True),
        ("  process.on('exit', () => { process.exitCode = 0; });", True, False),
        ("  console['log'] = b;", True, True),
        ("  globalThis.expect = null;", True, True),
        ("  chai.util.flag = f;", True, True),
        ("it('draws', () => {});", True, False),
        ("const fs = require('fs');", True, True),
        ("import { readFileSync } from 'node:fs';", True, True),
        ("  const own = this['pro' + 'cess'];", True, True),
        ("  f.constructor('return 1')();", True, True),
        ("  const place = new Error().stack;", True, True),
        ("  require(name);", True, True),
        ("  await import(name);", True, True),
        ("  \\u0065val(x);", True, True),
    ],
)
def test_means_of_forgery_require_a_proof(line: str, required: bool, reads: bool, tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text(_BEFORE)
    patch = diff({"a.js": _BEFORE}, {"a.js": f"{_BEFORE}{line}\n"})
    scrutiny = JAVASCRIPT.scrutiny_of(patch, tmp_path)
    assert (scrutiny.required, scrutiny.reads) == (required, reads)
    assert not JAVASCRIPT.scrutiny_of(patch, tmp_path, patch).required  # gold does so too


def test_a_part_without_means_is_offered() -> None:
    sections = [
        f"diff --git a/{name} b/{name}\nnew file mode 100644\n--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+{line}\n"
        for name, line in (("a.js", "exports.a = 1;"), ("b.js", "process.exit(0);"))
    ]
    assert JAVASCRIPT.without_means("".join(sections), Path()) == (sections[0],)


def packed(files: Mapping[str, str]) -> bytes:
    """A package as the registry has it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


_PROGRAM = json.dumps({"bin": {"{0}": "bin/cli.js"}})
PACKAGES = {
    "node-linux": packed({"package/bin/node": "#!/bin/sh\necho node\n", "package/../../outside": "x"}),
    "npm": packed({"package/package.json": _PROGRAM.replace("{0}", "npm"), "package/bin/cli.js": "npm\n"}),
    "pnpm": packed({"p/package.json": _PROGRAM.replace("{0}", "pnpm"), "p/bin/cli.js": "pnpm\n"}),
}


class _Registry(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        name = next((name for name in PACKAGES if self.path.startswith(f"/{name}")), "")
        content = PACKAGES.get(name, b"")
        if self.path.endswith(".tgz"):
            body = content
        elif name and "0.0.0" not in self.path:
            broken = b"other" if "9.9.9" in self.path else content
            digest = base64.b64encode(hashlib.sha512(broken).digest()).decode()
            place = f"http://{self.headers['Host']}/{name}.tgz"
            body = json.dumps({"dist": {"tarball": place, "integrity": f"sha512-{digest}"}}).encode()
        else:
            self.send_error(404)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Registry)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.usefixtures("registry")
def test_node_and_package_managers_come_from_the_registry() -> None:
    with public_directory("languages-javascript") as place:
        store = LayerStore(place / "layers")
        layer = node_layer("20", ["pnpm@9.0.0"], store)
        programs = layer / NODE.lstrip("/") / "bin"
        assert sorted(os.listdir(programs)) == ["node", "npm", "pnpm"]
        assert subprocess.run([programs / "node"], capture_output=True, text=True, check=True).stdout == "node\n"
        assert (programs / "pnpm").read_text() == "pnpm\n" and os.access(programs / "pnpm", os.X_OK)
        assert not list(place.rglob("outside"))
        assert node_layer("20", ["pnpm@9.0.0"], store) == layer
        with pytest.raises(LayerError, match=r"pnpm@9\.9\.9: what http.* sent differs from its digest"):
            node_layer("20", ["pnpm@9.9.9"], store)
        with pytest.raises(LayerError, match=r"pnpm@0\.0\.0 cannot be fetched from http.*404.*Try: npm config"):
            node_layer("20", ["pnpm@0.0.0"], store)


def test_an_unknown_machine_gets_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(node.platform, "machine", lambda: "riscv64")
    recipe = RECIPES["axios/axios"][""]
    assert recipe.toolchain().problem == "the npm registry has no Node.js for riscv64"
    with pytest.raises(LayerError, match=r"x-1: the npm registry has no Node.js for riscv64"):
        recipe.installation(Task("x-1", "axios/axios", "", "p", "p"), LayerStore(tmp_path / "layers"))


def test_the_table_has_the_node_of_each_row() -> None:
    def found(repo: str, version: str, **values: object) -> object:
        return JAVASCRIPT.find_recipe(Task("x", repo, "", "p", "p", version=version, **values))  # type: ignore[arg-type]

    assert found("preactjs/preact", "2757") == RECIPES["preactjs/preact"]["2757"]
    assert {recipe.node for versions in RECIPES.values() for recipe in versions.values()} <= VERSIONS.keys()
    assert RECIPES["preactjs/preact"]["2757"].node == "16"
    assert found("vuejs/core", "11870") == RECIPES["vuejs/core"][""]
    assert found("some/other", "1") is None
    assert isinstance(found("vuejs/core", "1", setup=("npm ci",)), MachineRecipe)
