"""JavaScript: what a patch keeps between calls, errors by their class, spies and snapshots."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from swegym_env.languages.javascript import JavaScript
from swegym_env.languages.javascript.source import parsed
from tests.redteam.cases import diff

JAVASCRIPT = JavaScript()
PATH = "test/a.test.js"
BEFORE = "const known = new Map();\n\nfunction find(key) {\n  return known.get(key);\n}\n"


@pytest.mark.parametrize(
    ("code", "keeps"),
    [
        ("function f(a) {\n  let n = 0;\n  a.forEach(() => { n += 1; });\n  return n;\n}", False),
        ("function f(box, name) {\n  box.name = name;\n  delete box.other;\n}", False),
        ("class Box {\n  keep(name) {\n    this.name = name;\n  }\n}", False),
        (
            "const NAMES = ['a'];\nfunction f(a) {\n  return NAMES.includes(a) ? NAMES[0] : Object.keys(NAMES);\n}",
            False,
        ),
        ("const names = new Set(['a']);\nconst f = (a) => [...names].filter((one) => names.has(a));", False),
        ("let size = 3;\nsize += 1;\nfunction f() {\n  return size;\n}", False),
        ("function Box(name) {\n  this.name = name;\n}", False),
        ("const word = /a/;\nfunction f(a) {\n  return word.test(a);\n}", False),
        ("let last;\nfunction f(a) {\n  last = a;\n}", True),
        ("let last;\nfunction f(a) {\n  ({ a: last } = { a });\n}", True),
        ("let last;\nfunction f(a) {\n  for (last of [a]);\n}", True),
        ("let at = 0;\nconst f = () => at++;", True),
        ("const f = (a) => { f.last = a; };", True),
        ("const g = function h(a) { h.last = a; };", True),
        ("const all = [];\nfunction f(a) {\n  all[all.length] = a;\n}", True),
        ("const all = [];\nfunction f(a) {\n  Array.prototype.push.call(all, a);\n}", True),
        ("const all = {};\nfunction f(a) {\n  const mine = all;\n  mine.last = a;\n}", True),
        ("const all = {};\nfunction f(a, mine = all) {\n  mine.last = a;\n}", True),
        ("const all = {};\nfunction f() {\n  return all;\n}", True),
        ("const all = {};\nfunction f(a) {\n  return put(all, a);\n}", True),
        ("function f(a) {\n  exports.last = a;\n}", True),
        ("function f(a) {\n  require('./b').last = a;\n}", True),
        ("function make() {\n  let last;\n  return { set: (a) => { last = a; }, get: () => last };\n}", True),
        ("const api = {\n  set(a) {\n    this.last = a;\n  },\n};", True),
        ("class Box {\n  static keep(name) {\n    this.name = name;\n  }\n}", True),
        ("class Box {\n  static names = [];\n}", True),
        ("const box = new Box();\nfunction f(a) {\n  box.hold(a);\n}", True),
        ("const word = /a/g;\nfunction f(a) {\n  return word.test(a);\n}", True),
        ("function f() {\n  return RegExp.$1;\n}", True),
        ("const steps = counting();\nfunction f() {\n  for (const step of steps) return step;\n}", True),
        ("function f(a) {\n  known.set('', a);\n}", True),
        ("function f(a) {\n  return known.get(a);\n}", False),
    ],
)
def test_what_outlives_a_call_is_kept(code: str, keeps: bool, tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text(BEFORE)
    patch = diff({"a.js": BEFORE}, {"a.js": f"{BEFORE}\n{code}\n"})
    assert JAVASCRIPT.keeps_state(patch, tmp_path) is keeps
    assert not JAVASCRIPT.keeps_state(patch, tmp_path, patch)


def test_what_a_file_keeps_already_is_free_as_often(tmp_path: Path) -> None:
    before = f"{BEFORE}\nfunction put(key) {{\n  known.set(key, 1);\n}}\n"
    (tmp_path / "a.js").write_text(before)
    other = before.replace("known.set(key, 1)", "known.set(String(key), 1)")
    twice = other.replace("1);", "1);\n  known.set('', key);")
    assert not JAVASCRIPT.keeps_state(diff({"a.js": before}, {"a.js": other}), tmp_path)
    assert JAVASCRIPT.keeps_state(diff({"a.js": before}, {"a.js": twice}), tmp_path)


@pytest.mark.parametrize(
    ("test", "gives"),
    [
        ("save(box, 'zqxw'); assert.strictEqual(load(box), 'zqxw');", True),
        ("const name = 'zqxw'; save(box, name); expect(load(box)).toBe(name);", True),
        ("save(box, 'mnbv'); assert.strictEqual(load(box), 'zqxw');", False),
        ("assert.strictEqual(load('zqxw'), 'zqxw');", False),
        ("assert.strictEqual(load(1)[0], 'zqxw'); assert.strictEqual(load(1)[1], 'zqxw');", False),
        ("save(box, 'zqxw'); assert.ok(has(box, 'zqxw'));", True),
        ("assert.strictEqual(size(box), 3);", True),
        ("assert.deepStrictEqual(load(box), other(box));", True),
        ("assert.throws(() => load(box), ParseError);", False),
        ("assert.equal(load(boxed('zqxw')), 'zqxw');", True),
        ("assert.equal(boxed('zqxw').name, 'zqxw');", True),
        ("assert.equal(upper('zqxw'), 'ZQXW');", False),
        ("assert.equal(same('zqxw'), 'zqxw');", False),
        ("save(box, 'zqxw'); expect(load(box)).toMatchInlineSnapshot(`\"zqxw\"`);", True),
        ("save(box, 'zqxw'); expect(load(box)).toMatchSnapshot();", True),
    ],
)
def test_tests_that_give_what_they_expect_are_found(test: str, gives: bool) -> None:
    files = {PATH: f"test('t', () => {{\n{test}\n}});\n"}
    assert JAVASCRIPT.given_tests(files, ["t"]) == ({"t"} if gives else set())
    assert JAVASCRIPT.given_tests(files, ["u"]) == {"u"}


def test_a_copy_has_all_statements_of_its_twins_with_other_values() -> None:
    test = "const { box } = make({ kind: 'k' })\n  save(box, put('zqxw'))\n  expect(load(box)).toBe('zqxw')"
    twins = JAVASCRIPT.make_twins({PATH: f"it('t', () => {{\n  {test}\n}})\n"}, ["t"], 1, 4)
    assert twins is not None
    assert not twins.open and [one.right for one in twins.lineup.copies] == [True] * 6 + [False] * 3
    is_right = {one.name: one.right for one in twins.lineup.copies}
    for copy in re.split(r"(?=^it|^;?\nit)", twins.lineup.files[PATH], flags=re.MULTILINE)[1:]:
        assert copy.count("make({ kind: 'k' })") == 5 and copy.count("expect(") == 1
        given = re.findall(r"put\(['\"](\w+)['\"]\)", copy)
        expected = re.findall(r"expect\(made_\d\)\.toBe\(['\"]?(\w+)['\"]?\)", copy)
        assert len(set(given)) == 5 and "zqxw" in given and len(expected) == 1
        own = re.findall(r"^save\(box, made_0\);$|^const made_0 = put\(['\"](\w+)['\"]\);$", copy, re.MULTILINE)
        if is_right[re.findall(r"^;?\n?it\('(\w+)'", copy)[0]]:
            assert expected == own[:1]
        else:  # what a twin gives is expected
            other = re.findall(
                rf"^const {expected[0]} = \w+\('zqxw', \[\[\"zqxw\", \"(\w+)\"\]\]\);$", copy, re.MULTILINE
            )
            assert own[0] == "zqxw" and other[0] in given and other[0] != "zqxw"


TABLES = """\
const names = [{ name: 'plmk' }, { name: 'mnbv' }];
describe.each(['one', 'two'])('%s', (suite) => {
  test.each([['zqxw', 3], ['qwer', 5]])('a %s', (name, size) => { save(name); expect(load()).toBe(name); });
});
for (const { name } of names) { test(`b ${name}`, () => { save(name); return expect(load()).resolves.toBe(name); }); }
names.forEach(({ name }) =>
  test('c ' + name, (done) => { save(name); setTimeout(() => { expect(load()).toBe(name); done(); }); }));
"""


@pytest.mark.parametrize(
    ("test", "keys"), [("a zqxw", ("zqxw", "qwer")), ("b plmk", ("plmk", "mnbv")), ("c mnbv", ("plmk", "mnbv"))]
)
def test_tests_in_tables_and_loops_have_twins_of_their_rows(test: str, keys: tuple[str, ...]) -> None:
    twins = JAVASCRIPT.make_twins({PATH: TABLES}, [test], 1, 3)
    assert twins is not None
    assert not twins.open
    texts = {one.expectation.text for one in twins.lineup.copies if one.expectation.names}
    assert texts == {"as it is", *map(repr, keys)}
    written = twins.lineup.files[PATH]
    tree = parsed(PATH, written)
    assert not tree.has_error
    if test.startswith("b"):
        assert len(re.findall(r"^return made_\d+;$", written, re.MULTILINE)) == len(twins.lineup.copies)
    if test.startswith("c"):
        assert written.count("done()") == len(twins.lineup.copies)  # twins end nothing


@pytest.mark.parametrize(
    ("test", "is_open"),
    [
        ("save('zqxw'); expect(load()).toBe('zqxw');", False),
        ("if (slow) return; save('zqxw'); expect(load()).toBe('zqxw');", False),
        ("for (const one of ['zqxw', 'plmk']) { save(one); expect(load()).toBe(one); }", False),
        ("for (const one of names()) { save('zqxw'); expect(load()).toBe('zqxw'); }", True),
        ("within('zqxw', () => { expect(load()).toBe('zqxw'); });", True),
        ("expect(kept('zqxw')).toBe('zqxw');", True),
        ("try { save('zqxw'); expect(load()).toBe('zqxw'); } finally { expect(closed()).toBe(true); }", False),
        ("assert.doesNotThrow(() => { save('zqxw'); expect(load()).toBe('zqxw'); });", False),
        ("try { start(); } finally { save('zqxw'); expect(load()).toBe('zqxw'); }", True),
        ("checkKept('zqxw');", True),
        ("checkIt('zqxw'); save('zqxw'); checkIt('zqxw');", False),
        ("if (fast) { save('zqxw'); expect(load()).toBe('zqxw'); }", True),
        ("const found = fast && save('zqxw') && load(); expect(found).toBe('zqxw');", True),
    ],
)
def test_twins_are_open_where_none_stands_between_what_is_given_and_asked(test: str, is_open: bool) -> None:
    source = (
        "function kept(one) { save(one); return load(); }\n"
        "function checkKept(one) { save(one); expect(load()).toBe(one); }\n"
        f"function checkIt(one) {{ expect(load()).toBe(one); }}\ntest('t', () => {{ {test} }});\n"
    )
    twins = JAVASCRIPT.make_twins({PATH: source}, ["t"], 1, 3)
    assert twins is not None
    assert bool(twins.open) is is_open
    assert not parsed(PATH, twins.lineup.files[PATH]).has_error


CALLS = """\
test('t', async () => {
  expect(() => f(1)).toThrow(ParseError);
  assert.throws(() => f(2), { name: 'RangeError' });
  await assert.rejects(f(3), TypeError);
  await expect(f(4)).rejects.toThrow('four');
  expect(spy).toHaveBeenCalledWith('five');
  expect(spy).toHaveBeenLastCalledWith(6, 'six');
  expect(spy).toHaveBeenCalledTimes(7);
  expect(f(8)).toMatchSnapshot();
  expect(f(9)).toMatchInlineSnapshot(`"nine"`);
  sinon.assert.calledWith(spy, 10);
});
"""


def test_errors_spies_and_snapshots_are_sent() -> None:
    def sent(*, computed: bool) -> list[tuple[str, str, object]]:
        blinded = JAVASCRIPT.make_blind({PATH: CALLS}, ["t"], frozenset(), 1, computed=computed)
        assert blinded is not None
        found = blinded.expectations.values()
        return [
            (one.place.split(":")[1], f"{one.kind}{' beside' * ('beside' in one.options)}", one.value) for one in found
        ]

    outside = [
        *(("3", "is", "RangeError"), ("4", "is", "TypeError"), ("5", "in", "four")),
        *(("7", "eq", [6, "six"]), ("8", "is", 7), ("10", "is", "nine")),
    ]
    inside = [(line, "gold beside", None) for line in ("2", "2", "6", "9", "11")]
    assert sent(computed=False) == sorted([*outside, *inside], key=lambda one: int(one[0]))
    inside = [(line, "gold", None) for line in ("2", "6", "11")]
    assert sent(computed=True) == sorted([*outside, *inside], key=lambda one: int(one[0]))


@pytest.mark.parametrize(
    ("statement", "wanted"),
    [
        ("expect(spy).toHaveBeenCalledWith('line 12')", r"void \(\[.*\]\.some\(.*try.*\) \|\| expect\(spy\).*\)"),
        ("expect(f()).toMatchSnapshot()", r"expect\(\[f\(\)\]\)\.toMatchSnapshot\(\)"),
        ("expect(f).toThrow(RangeError)", r"expect\(f\)\.toThrow\(class extends Error \{.*TypeError.*\}\)"),
        ("assert.throws(f, Error)", r"assert\.throws\(f, class extends Error \{.*return false; \} \}\)"),
        ("sinon.assert.calledWith(spy, 'abc')", r"void \(\[.*\]\.some\(.*sinon\.assert\.calledWith\(spy, \w+\).*\)"),
    ],
)
def test_a_control_of_spies_errors_and_snapshots(statement: str, wanted: str) -> None:
    control = JAVASCRIPT.make_control({PATH: f"test('t', () => {{\n{statement}\n}});\n"}, ["t"], {}, 1)
    assert control is not None and re.fullmatch(wanted, control.files[PATH].split("\n")[1])


SNAPSHOTS = """\
describe('own', () => {
  test('shows', () => { expect(f(1)).toMatchSnapshot(); expect(f(2)).toMatchSnapshot('a hint'); });
  test('lists', () => { expect(f(3)).toMatchSnapshot(); expect(f(4)).toMatchSnapshot(); });
  test('throws', () => { expect(f).toThrowErrorMatchingSnapshot(); });
  test.each([1, 2])('each %s', (n) => { expect(f(n)).toMatchSnapshot(); });
  test('stays', () => { expect(f(5)).toMatchSnapshot(); });
  test('is like', () => { expect(f(6)).toMatchSnapshot({ id: expect.any(Number) }); });
});
"""
# As Jest 29.7 and Vitest 2.1 write them.
OF_JEST = r"""// Jest Snapshot v1, https://goo.gl/fbAQLP

exports[`own each 1 1`] = `"n1"`;

exports[`own each 2 1`] = `"n2"`;

exports[`own is like 1`] = `{}`;

exports[`own lists 1`] = `
{
  "a": 1,
}
`;

exports[`own lists 2`] = `5`;

exports[`own shows 1`] = `"zq \`x\` \${a} \\ "w""`;

exports[`own shows: a hint 1`] = `
"a
b"
`;

exports[`own stays 1`] = `"stays"`;

exports[`own throws 1`] = `"bad "x""`;
"""
OF_VITEST = (
    OF_JEST.replace(
        "Jest Snapshot v1, https://goo.gl/fbAQLP", "Vitest Snapshot v1, https://vitest.dev/guide/snapshot.html"
    )
    .replace("own shows: a hint", "own > shows > a hint")
    .replace("[`own ", "[`own > ")
    .replace("own > > ", "own > ")
    .replace('`"bad "x""`', '`[Error: bad "x"]`')
)


@pytest.mark.parametrize(
    ("held", "separator", "error"), [(OF_JEST, " ", 'bad "x"'), (OF_VITEST, " > ", 'Error: bad "x"')]
)
def test_what_snapshots_in_files_show_stays_outside(held: str, separator: str, error: str) -> None:
    place = "test/__snapshots__/a.test.js.snap"
    names = [f"own{separator}{one}" for one in ("shows", "lists", "throws", "each 1", "each 2", "is like")]

    def blinded(
        *, computed: bool, left: frozenset[str] = frozenset()
    ) -> tuple[list[tuple[str, str, object]], set[str]]:
        found = JAVASCRIPT.make_blind({PATH: SNAPSHOTS, place: held}, names, left, 1, computed=computed)
        assert found is not None
        sent = [(one.place.split(":")[1], str(one.kind), one.value) for one in found.expectations.values()]
        gone = {line for line in held.splitlines() if line not in found.files.get(place, held).splitlines()}
        return sent, {
            re.sub(r"^exports\[`own (> )?(.*?)`.*", r"\2", line) for line in gone if line.startswith("exports")
        }

    hint = f"shows{':' if separator == ' ' else ' >'} a hint 1"
    texts = [("2", "is", 'zq `x` ${a} \\ "w"'), ("2", "is", "a\nb"), ("4", "is", error)]
    sent, gone = blinded(computed=False)
    assert [one for one in sent if one[1] == "is"] == texts
    assert gone == {"shows 1", hint, "throws 1"}
    sent, gone = blinded(computed=True)
    assert sent == [*texts[:2], ("3", "gold", None), ("3", "is", 5), texts[2], ("5", "gold", None)]
    assert gone == {"shows 1", hint, "throws 1", "lists 1", "lists 2", "each 1 1", "each 2 1"}
    # One that stays in its test keeps all of them there: they are counted.
    _, gone = blinded(computed=False, left=frozenset({f"{PATH}:2:25"}))
    assert gone == {"throws 1"}
