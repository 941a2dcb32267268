"""Tasks made of projects in C and JavaScript: their own command runs the tests, and its log names them."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from swegym_env.errors import ConfigurationError, GradingError
from swegym_env.grading.grading import grade
from swegym_env.making.maker import MadeTasks, make_tasks
from swegym_env.making.settings import MakeSettings
from swegym_env.making.sources import read_source, source_language
from swegym_env.sandbox.layers import LayerStore

C = {
    "Makefile": "test:\n\t@cc -I. -o run calc.c tests/test_calc.c && ./run\n",
    "calc.h": "int area(int a, int b);\nint least(int a, int b);\nint sum(const int *of, int count);\n",
    "calc.c": """\
#include "calc.h"

int area(int a, int b)
{
    if (a < 0)
        return 0;
    return a * b;
}

int least(int a, int b)
{
    return a < b ? a : b;
}

int sum(const int *of, int count)
{
    int all = 0;
    for (int i = 0; i < count; i++)
        all += of[i];
    return all;
}
""",
    "tests/test_calc.c": """\
#include <stdio.h>
#include "calc.h"

static int failed;
static int number;

static void check(int got, int expected)
{
    if (got != expected) {
        printf("# got %d, expected %d\\n", got, expected);
        failed = 1;
    }
}

static void run(void (*test)(void), const char *name)
{
    failed = 0;
    test();
    printf("%sok %d - %s\\n", failed ? "not " : "", ++number, name);
}

#define RUN(test) run(test, #test)

static void test_area(void)
{
    check(area(2, 3), 6);
}

static void test_area_of_nothing(void)
{
    check(area(-1, 3), 0);
}

static void test_least(void)
{
    check(least(1, 2), 1);
    check(least(2, 1), 1);
}

static void test_sum(void)
{
    int of[] = {1, 2, 3};
    check(sum(of, 3), 6);
}

int main(void)
{
    RUN(test_area);
    RUN(test_area_of_nothing);
    RUN(test_least);
    RUN(test_sum);
    printf("1..%d\\n", number);
    return 0;
}
""",
}
JAVASCRIPT = {
    "package.json": json.dumps({"name": "calc", "scripts": {"test": "node --test --test-reporter=tap"}}),
    "calc.js": """\
exports.area = (a, b) => (a < 0 ? 0 : a * b)

exports.least = function (a, b) {
  if (a < b) {
    return a
  }
  return b
}
""",
    "test/calc.test.js": """\
const test = require('node:test')
const assert = require('node:assert')
const { area, least } = require('../calc.js')

test('area', () => {
  assert.strictEqual(area(2, 3), 6)
})

test('area of nothing', () => {
  assert.strictEqual(area(-1, 3), 0)
})

test('least', () => {
  assert.strictEqual(least(1, 2), 1)
  assert.strictEqual(least(2, 1), 1)
})
""",
}
SETTINGS = MakeSettings(count=2)


def write(place: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text)
    return place


def make(place: Path, output: Path, store: LayerStore, **changes: Any) -> MadeTasks:
    settings = dataclasses.replace(SETTINGS, **changes)
    return make_tasks(read_source(str(place)), output, settings, jobs=2, store=store, backend="namespace")


@pytest.mark.parametrize(
    ("files", "tool", "install", "test_file", "output"),
    [
        (C, "gcc", (), "tests/test_calc.c", ", expected "),
        (JAVASCRIPT, "node", ("true",), "test/calc.test.js", "error: "),
    ],
    ids=["c", "javascript"],
)
def test_made_tasks_resolve_with_their_gold_patch_alone(
    files: dict[str, str],
    tool: str,
    install: tuple[str, ...],
    test_file: str,
    output: str,
    public_directory: Path,
    tmp_path: Path,
) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed (apt-get install gcc make libc6-dev nodejs)")
    store = LayerStore(public_directory / "making-other-layers")
    made = make(write(tmp_path / "calc", files), tmp_path / "made", store, install=install)
    assert len(made.tasks) == 2 and made.tests == len(made.tasks[0].fail_to_pass) + len(made.tasks[0].pass_to_pass)
    for task in made.tasks:
        assert task.test_patch.startswith(f"diff --git a/{test_file} ") and "\n+" in task.test_patch
        assert task.fail_to_pass[0].removeprefix("test_").replace("_", " ") in task.problem_statement
        assert output in task.problem_statement.partition("Instead I get")[2]
    for patch, expected in ((made.tasks[0].patch, True), ("", False)):
        verdict = grade(made.tasks[0], patch, backend="namespace")
        assert (verdict.resolved, verdict.valid) == (expected, True)
        assert list(verdict.tests) and all(verdict.tests[name] == "PASSED" for name in made.tasks[0].pass_to_pass)


def test_the_language_is_that_of_a_manifest_and_of_most_files() -> None:
    assert source_language(["a.c", "b.c", "tools/x.py", "Makefile"]).name == "c"
    assert source_language(["a.js", "b.js", "x.py", "package.json", "Makefile", "y.c"]).name == "javascript"
    assert source_language(["setup.py", "x.py", "a.c"]).name == "python"


def test_what_a_project_lacks_is_an_error(tmp_path: Path, public_directory: Path) -> None:
    store = LayerStore(public_directory / "making-other-layers")
    place = write(tmp_path / "calc", {"calc.c": "int f(void) { return 1; }\n"})
    with pytest.raises(ConfigurationError, match=r"says how its tests are run\. Try: --test-command"):
        make(place, tmp_path / "a", store)
    with pytest.raises(ConfigurationError, match="--requires: for pytest alone, not for c"):
        make(place, tmp_path / "b", store, requires=("x",))
    with pytest.raises(ConfigurationError, match="no kind of mistake 'removed-await'; there are wrong-operator"):
        make(place, tmp_path / "c", store, test_command="echo ok 1 - a", kinds=("removed-await",))
    with pytest.raises(GradingError, match="or its log names none: nothing to see"):
        make(place, tmp_path / "d", store, test_command="echo nothing to see")
