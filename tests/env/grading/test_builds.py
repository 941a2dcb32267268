"""A patched repository is built once for all runs of a verdict, which cannot be told apart by that."""

from __future__ import annotations

import dataclasses
import difflib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swegym_env.grading.builds import Builds, environment_lines
from swegym_env.grading.grading import grade
from swegym_env.grading.task_tests import TaskTests
from swegym_env.prepare import prepare_locally
from swegym_env.sandbox.layers import LayerStore
from swegym_env.sandbox.local import LocalSandbox
from swegym_env.tasks.task import Task

from .test_excluded_paths import new_file

GENERATE = """\
#include <stdio.h>
int main(void) {
    puts("#define STEP 1");
    return 0;
}
"""
TOOL = """\
#include <stdio.h>
#include <stdlib.h>
#include "step.h"
int main(int count, char **words) {
    printf("%d\\n", atoi(words[1]) - STEP);
    return 0;
}
"""
MAKEFILE = """\
tool: src/tool.c src/generate.c
\tcc -o src/generate src/generate.c
\t./src/generate > src/step.h
\tcc -o tool src/tool.c
\tsleep 3.1
"""
RUN = """\
while read name number wanted; do
    if [ "$(./tool $number)" = "$wanted" ]; then echo "ok - $name"; else echo "not ok - $name"; fi
done < tests/cases.txt
"""
FILES = {
    "Makefile": MAKEFILE,
    "src/generate.c": GENERATE,
    "src/tool.c": TOOL,
    "tests/run.sh": RUN,
    "tests/cases.txt": "one 1 0\n",
}
SCRIPT = """\
#!/bin/bash
cd /testbed
export LANG=C
make
: '>>>>> Start Test Output'
sh tests/run.sh
: '>>>>> End Test Output'
"""


def change(path: str, old: str, new: str) -> str:
    """A patch that replaces `old` in one file."""
    before, after = FILES[path], FILES[path].replace(old, new, 1)
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), f"a/{path}", f"b/{path}", lineterm="")
    return f"diff --git a/{path} b/{path}\n" + "\n".join(lines) + "\n"


GOLD = change("src/tool.c", "- STEP", "+ STEP")
TASK = Task(
    "built-1",
    "example/tool",
    "",
    "The tool counts down. It has to count up.",
    GOLD,
    test_patch="diff --git a/tests/cases.txt b/tests/cases.txt\n--- a/tests/cases.txt\n+++ b/tests/cases.txt\n"
    "@@ -1 +1,2 @@\n-one 1 0\n+one 1 2\n+two 41 42\n",
    fail_to_pass=("one", "two"),
    eval_script=SCRIPT,
    log_parser="tap",
    setup=("make",),
    files=FILES,
)
# The pause stands for what a compiler does in a large repository.
SLOW = dataclasses.replace(TASK, files={**FILES, "Makefile": f"{MAKEFILE}\tsleep 3.1\n"})
# Run by the build, these write what the tests are, and what they run.
PLANTING = change(
    "src/generate.c",
    'puts("#define STEP 1");',
    'puts("#define STEP 1");\n'
    '    FILE *to = fopen("tests/run.sh", "w"); fputs("echo ok - one; echo ok - two\\n", to); fclose(to);\n'
    '    to = fopen("tests/more.sh", "w"); fputs("echo ok - one; echo ok - two\\n", to); fclose(to);\n'
    '    to = fopen(".git/planted", "w"); fputs("x", to); fclose(to);\n'
    '    to = fopen("/home/agent/planted", "w"); if (to) { fputs("x", to); fclose(to); }\n'
    '    to = fopen("/tmp/planted", "w"); fputs("x", to); fclose(to);\n'
    '    to = fopen("src/tool.c", "a"); fputs("/* later */\\n", to); fclose(to);',
)


@pytest.fixture(autouse=True)
def commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that sandboxes run, recorded."""
    found: list[str] = []
    original = LocalSandbox.run

    def recorded(self: LocalSandbox, command: str, **options: Any) -> Any:
        found.append(command)
        return original(self, command, **options)

    monkeypatch.setattr(LocalSandbox, "run", recorded)
    return found


def builds_of(commands: list[str]) -> int:
    return sum("\nmake" in command for command in commands)


def until(condition: Callable[[], bool]) -> None:
    """Wait for what the supervisor does by itself."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def tests(store: LayerStore, backend: str) -> Iterator[TaskTests]:
    """The tests of the task, of which is known that they run on kept builds."""
    workspace = prepare_locally(TASK, store=store, backend=backend)
    builds = Builds(TASK, store)
    tests = TaskTests(TASK, workspace, "strict", backend, 60.0, builds)
    builds.took(10.0)
    builds.learn(tests, GOLD)
    yield tests
    builds.close()


def test_the_tests_run_on_one_build_of_a_patch(tests: TaskTests, commands: list[str]) -> None:
    assert tests.builds is not None
    for patch, passes in ((GOLD, True), ("", False), (change("src/tool.c", "- STEP", "+ STEP + 1"), False)):
        before = builds_of(commands)
        verdicts = [tests.verdict(tests.run(patch)) for _ in range(2)]
        assert [one.resolved for one in verdicts] == [passes, passes]
        assert verdicts[0].tests.keys() == {"one", "two"}
        # Gold and base were built to find out whether this can be done.
        assert builds_of(commands) - before == (patch not in (GOLD, ""))


def test_verdicts_are_the_same_and_what_is_known_is_kept(store: LayerStore, backend: str, commands: list[str]) -> None:
    first = grade(SLOW, GOLD, store=store, backend=backend)
    assert first.resolved
    [record] = (store.root.parent / "builds").iterdir()
    assert '"are_kept": true' in record.read_text()
    commands.clear()
    for patch, passes in ((GOLD, True), ("", False), (PLANTING, False)):
        commands.clear()
        verdict = grade(SLOW, patch, store=store, backend=backend)
        assert (verdict.resolved, verdict.valid) == (passes, True)
        assert builds_of(commands) == 1
        official = grade(SLOW, patch, store=store, backend=backend, policy="official")
        assert official.resolved == (passes or patch == PLANTING)  # that policy defends against nothing
        assert builds_of(commands) == 2


def test_of_a_build_only_its_products_in_the_repository_are_kept(tests: TaskTests) -> None:
    assert tests.builds is not None
    patch = PLANTING + new_file("src/extra.c", "int extra;\n") + new_file("docs/notes.txt")
    with tests.builds.layers(tests, patch) as layers:
        found = {
            str(path.relative_to(layer)): path for layer in layers for path in layer.rglob("*") if not path.is_dir()
        }
        assert found.keys() == {
            "testbed/src/generate.c", "testbed/src/extra.c", "testbed/docs/notes.txt",
            "testbed/src/generate", "testbed/src/step.h", "testbed/tool",
        }  # fmt: skip
        assert all(layer.exists() for layer in layers)
    until(lambda: not any(layer.exists() for layer in layers))


def test_dates_tell_no_run_how_long_ago_the_build_was(tests: TaskTests) -> None:
    assert tests.builds is not None
    began = time.time()
    with tests.builds.layers(tests, GOLD) as one:
        time.sleep(0.05)
        with tests.builds.layers(tests, GOLD) as other:
            first, second = (
                {str(path.relative_to(layer)): path.lstat() for layer in layers for path in layer.rglob("*")}
                for layers in (one, other)
            )
    assert first.keys() == second.keys()
    made = max(layer.lstat().st_ctime for layer in tests.workspace.spec.layers)
    for name, status in first.items():
        assert status.st_mtime == second[name].st_mtime < made + 30
        assert began < status.st_ctime < second[name].st_ctime
        assert status.st_ino != second[name].st_ino
    # The order, which `make` goes by, stays.
    assert first["testbed/src/tool.c"].st_mtime < first["testbed/tool"].st_mtime


@pytest.mark.parametrize("path", ["tests/test_tool.c", "tests/check.h"])
def test_tests_that_are_compiled_are_built_in_each_run(store: LayerStore, backend: str, path: str) -> None:
    task = dataclasses.replace(SLOW, test_patch=TASK.test_patch + new_file(path, "/* a test */\n"))
    assert grade(task, GOLD, store=store, backend=backend).resolved
    [record] = (store.root.parent / "builds").iterdir()
    assert '"are_kept": false' in record.read_text()
    assert grade(task, GOLD, store=store, backend=backend).resolved


def test_tests_that_the_build_brings_are_built_in_each_run(store: LayerStore, backend: str) -> None:
    """The build copies the cases to where the tests read them: without the hidden ones, those of the base commit."""
    files = {
        **FILES,
        "Makefile": SLOW.files["Makefile"].replace(
            "src/generate.c\n", "src/generate.c tests/cases.txt\n\tcp tests/cases.txt cases\n", 1
        ),
        "tests/run.sh": RUN.replace("tests/cases.txt", "cases"),
    }
    task = dataclasses.replace(TASK, files=files)
    assert grade(task, GOLD, store=store, backend=backend).resolved
    [record] = (store.root.parent / "builds").iterdir()
    assert '"are_kept": false' in record.read_text()
    assert not grade(task, "", store=store, backend=backend).resolved


def test_a_patch_that_does_not_build_fails(tests: TaskTests) -> None:
    run = tests.run(change("src/tool.c", "- STEP", "+ MISSING"))
    assert not tests.verdict(run).resolved


def test_what_a_build_removes_is_removed_in_the_runs(store: LayerStore, backend: str) -> None:
    files = {
        **FILES,
        "Makefile": SLOW.files["Makefile"].replace(
            "\tcc -o tool", "\trm -f src/old src/tool.h && rm -rf tests\n\tcc -o tool"
        ),
    }
    files["src/tool.h"] = "/* of the repository */\n"
    task = dataclasses.replace(TASK, files=files, setup=("make; git checkout -q . ; touch src/old",))
    workspace = prepare_locally(task, store=store, backend=backend)
    builds = Builds(task, store)
    tests = TaskTests(task, workspace, "strict", backend, 60.0, builds)
    builds.took(10.0)
    builds.learn(tests, GOLD)
    with builds.layers(tests, GOLD) as layers:
        assert layers
        with tests.patched(GOLD, layers) as (sandbox, _, _):
            found = sandbox.run("cd /testbed && ls src tests && git status --short").output.split()
    builds.close()
    assert "old" not in found
    assert {"tool.h", "run.sh", "cases.txt"} <= {*found}


def test_lines_that_set_variables_are_left_of_a_script() -> None:
    script = "export A=1\nmake -j4\nB=2\n  export C='x y'\nD=3 make\nsource ./env.sh"
    assert environment_lines(script) == "export A=1\nB=2\n  export C='x y'"


def test_a_verdict_leaves_no_build(store: LayerStore, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Path(store.root.parent / "run")
    place.mkdir(mode=0o711)
    monkeypatch.setenv("SWEGYM_RUNDIR", str(place))
    assert grade(SLOW, GOLD, store=store, backend=backend).resolved
    until(lambda: not any(path.name.endswith("-builds") for path in place.iterdir()))
