"""A patched repository is built once for all runs of a verdict; a patch cannot distinguish the runs by that."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swegym_env.grading.builds import _WORTH_S, Builds, environment_lines
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


def change(path: str, old: str, new: str, files: dict[str, str] = FILES) -> str:
    """A patch that replaces `old` in one file."""
    before, after = files[path], files[path].replace(old, new, 1)
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
def every_build_is_worth_keeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """The builds here take a moment, and what is done with them is the same after one of minutes."""
    monkeypatch.setattr("swegym_env.grading.builds._WORTH_S", 0.0)


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


def building(command: str) -> str:
    """A patch whose build runs a command of the shell."""
    call = f"system({json.dumps(command)});"
    declared = 'extern int system(const char *);\n    puts("#define STEP 1"); fflush(stdout);'
    return change("src/generate.c", 'puts("#define STEP 1");', f"{declared}\n    {call}")


@contextlib.contextmanager
def kept(task: Task, store: LayerStore, backend: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[TaskTests]:
    """The tests of a task, run on kept builds whether they can be or not."""
    builds = Builds(task, store)
    monkeypatch.setattr(builds, "_are_kept", True)
    with contextlib.closing(builds):
        yield TaskTests(task, prepare_locally(task, store=store, backend=backend), "strict", backend, 60.0, builds)


def builds_of(commands: list[str]) -> int:
    return sum("\nmake" in command for command in commands)


def until(condition: Callable[[], bool]) -> None:
    """Wait for what the supervisor does by itself."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(name="tests")
def on_kept_builds(store: LayerStore, backend: str) -> Iterator[TaskTests]:
    """The tests of the task, of which is known that they run on kept builds."""
    workspace = prepare_locally(TASK, store=store, backend=backend)
    with contextlib.closing(Builds(TASK, store)) as builds:
        tests = TaskTests(TASK, workspace, "strict", backend, 60.0, builds)
        builds.learn(tests, GOLD)
        yield tests


def test_the_tests_run_on_one_build_of_a_patch(tests: TaskTests, commands: list[str]) -> None:
    assert tests.builds is not None
    for patch, passes in ((GOLD, True), ("", False), (change("src/tool.c", "- STEP", "+ STEP + 1"), False)):
        before = builds_of(commands)
        verdicts = [tests.verdict(tests.run(patch)) for _ in range(2)]
        assert [one.resolved for one in verdicts] == [passes, passes]
        assert verdicts[0].tests.keys() == {"one", "two"}
        # Gold and the base commit were built to find out whether this can be done.
        assert builds_of(commands) - before == (patch not in (GOLD, ""))


def test_verdicts_are_the_same_and_what_is_known_is_kept(store: LayerStore, backend: str, commands: list[str]) -> None:
    first = grade(TASK, GOLD, store=store, backend=backend)
    assert first.resolved
    [record] = (store.root.parent / "builds").iterdir()
    assert '"are_kept": true' in record.read_text()
    commands.clear()
    for patch, passes in ((GOLD, True), ("", False), (PLANTING, False)):
        commands.clear()
        verdict = grade(TASK, patch, store=store, backend=backend)
        assert (verdict.resolved, verdict.valid) == (passes, True)
        assert builds_of(commands) == 1
        official = grade(TASK, patch, store=store, backend=backend, policy="official")
        assert official.resolved == (passes or patch == PLANTING)  # that policy defends against nothing
        assert builds_of(commands) == 2


@pytest.mark.parametrize("pause_s", [0.0, _WORTH_S + 0.1])
def test_whether_products_are_kept_is_determined_only_for_long_builds(
    store: LayerStore, monkeypatch: pytest.MonkeyPatch, pause_s: float
) -> None:
    """The pause simulates a compiler in a large repository."""
    monkeypatch.setattr("swegym_env.grading.builds._WORTH_S", _WORTH_S)
    task = dataclasses.replace(
        TASK,
        files={**FILES, "Makefile": f"{MAKEFILE}\tsleep {pause_s}\n"},
        test_patch=TASK.test_patch + new_file("tests/check.h", "/* a test */\n"),
    )
    workspace = prepare_locally(task, store=store, backend="namespace")
    with contextlib.closing(Builds(task, store)) as builds:
        tests = TaskTests(task, workspace, "strict", "namespace", 60.0, builds)
        assert tests.verdict(tests.run(GOLD)).resolved
        builds.learn(tests, GOLD)
    assert (store.root.parent / "builds").exists() == (pause_s > _WORTH_S)


def test_no_run_of_a_patch_builds_where_another_does_not(store: LayerStore, backend: str) -> None:
    """In the verdict in which is found out whether builds can be kept, the patch is built as in its first run."""
    workspace = prepare_locally(TASK, store=store, backend=backend)
    with contextlib.closing(Builds(TASK, store)) as builds:
        tests = TaskTests(TASK, workspace, "strict", backend, 60.0, builds)
        begun, other = (change("src/tool.c", "- STEP", f"+ STEP + {number} - {number}") for number in (1, 2))
        assert tests.verdict(tests.run(begun)).resolved
        builds.learn(tests, GOLD)
        for patch, is_kept in ((begun, False), (GOLD, True), ("", True), (other, True)):
            with builds.layers(tests, patch) as layers:
                assert bool(layers) == is_kept


def test_only_products_in_the_repository_are_kept_from_a_build(tests: TaskTests) -> None:
    assert tests.builds is not None
    patch = PLANTING + new_file("src/extra.c", "int extra;\n") + new_file("docs/notes.txt")
    with tests.builds.layers(tests, patch) as layers:
        found = {
            str(path.relative_to(layer)): path for layer in layers for path in layer.rglob("*") if not path.is_dir()
        }
        assert found.keys() == {
            "testbed/src/generate.c", "testbed/src/extra.c", "testbed/docs/notes.txt",
            "testbed/src/generate", "testbed/src/step.h", "testbed/tool", "testbed/src/tool.c",
        }  # fmt: skip
        assert all(layer.exists() for layer in layers)
    until(lambda: not any(layer.exists() for layer in layers))


def test_file_times_do_not_reveal_how_long_ago_the_build_was(tests: TaskTests) -> None:
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
        assert status.st_atime == second[name].st_atime == status.st_mtime
        assert began < status.st_ctime < second[name].st_ctime
        assert status.st_ino != second[name].st_ino
    # The order, which `make` goes by, stays.
    assert first["testbed/src/tool.c"].st_mtime < first["testbed/tool"].st_mtime


@pytest.mark.parametrize("path", ["tests/test_tool.c", "tests/check.h"])
def test_tests_that_are_compiled_are_built_in_each_run(store: LayerStore, backend: str, path: str) -> None:
    task = dataclasses.replace(TASK, test_patch=TASK.test_patch + new_file(path, "/* a test */\n"))
    assert grade(task, GOLD, store=store, backend=backend).resolved
    [record] = (store.root.parent / "builds").iterdir()
    assert '"are_kept": false' in record.read_text()
    assert grade(task, GOLD, store=store, backend=backend).resolved


def test_tests_that_the_build_brings_are_built_in_each_run(store: LayerStore, backend: str) -> None:
    """The build copies the cases to where the tests read them: without the hidden ones, those of the base commit."""
    files = {
        **FILES,
        "Makefile": MAKEFILE.replace(
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


def test_what_a_build_removes_is_removed_in_the_runs(
    store: LayerStore, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        **FILES,
        "Makefile": MAKEFILE.replace("\tcc -o tool", "\trm -f src/old src/tool.h && rm -rf tests\n\tcc -o tool"),
    }
    files["src/tool.h"] = "/* of the repository */\n"
    task = dataclasses.replace(TASK, files=files, setup=("make; git checkout -q . ; touch src/old",))
    with kept(task, store, backend, monkeypatch) as tests:
        assert tests.builds is not None
        with tests.builds.layers(tests, GOLD) as layers, tests.patched(GOLD, layers) as (sandbox, _, _):
            assert layers
            found = sandbox.run("cd /testbed && ls src tests && git status --short").output.split()
    assert "old" not in found
    assert {"tool.h", "run.sh", "cases.txt"} <= {*found}


def test_lines_that_set_variables_are_left_of_a_script() -> None:
    script = "export A=1\nmake -j4\nB=2\n  export C='x y'\nD=3 make\nsource ./env.sh"
    assert environment_lines(script) == "export A=1\nB=2\n  export C='x y'"


def test_a_verdict_leaves_no_build(store: LayerStore, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Path(store.root.parent / "run")
    place.mkdir(mode=0o711)
    monkeypatch.setenv("SWEGYM_RUNDIR", str(place))
    assert grade(TASK, GOLD, store=store, backend=backend).resolved
    until(lambda: not any(path.name.endswith("-builds") for path in place.iterdir()))


def test_a_link_in_the_place_of_the_repository_leads_nowhere(
    store: LayerStore, backend: str, monkeypatch: pytest.MonkeyPatch, public_directory: Path
) -> None:
    """What is not kept is removed by the owner: it must not be removed where a link leads."""
    place = Path(tempfile.mkdtemp(dir=public_directory))
    place.chmod(0o755)
    (place / "src").mkdir()
    for name in (".git", "Makefile", "run.sh", "src/tool.c", "src/precious.so"):
        (place / name).write_text("precious")
    command = f"mv /testbed /elsewhere; ln -s {place} /testbed"
    with kept(TASK, store, backend, monkeypatch) as tests:
        assert not tests.verdict(tests.run(building(command))).resolved
    assert sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()) == [
        ".git", "Makefile", "run.sh", "src/precious.so", "src/tool.c",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [
        'python3 -c \'import os\nfor _ in range(1500): os.mkdir("d"); os.chdir("d")\'',
        'python3 -c \'import os\nfor _ in range(30): os.mkdir("d" * 250); os.chdir("d" * 250)\'',
        'touch src/f; python3 -c \'import os\nfor number in range(66000): os.link("src/f", f"src/{number}")\'',
        "chmod 0 /",
        "mkdir -p src/d/e; mkfifo src/d/fifo; ln -s /etc/passwd src/d/link; chmod 0 src/d src",
        "touch -d 2400-01-01 src/tool.c src/late; touch -d 1910-01-01 src/early; truncate -s 1G src/sparse",
        "printf x > \"$(printf 'src/a\\nb\\377 \\042')\"; mkdir -p .wh.src .wh..wh..opq tests/.wh..wh..opq",
        "rm -rf .git tests src; mkdir tests; chmod 0 tests; ln -s / src",
        "(while true; do date > src/date; mkdir -p src/x/y; mv src/x src/z; rm -r src/z; done) & sleep 0.2",
    ],
)
def test_no_build_makes_grading_fail(
    store: LayerStore, backend: str, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Whatever a patch leaves, the verdict says that the patch is wrong, as where each run builds."""
    with kept(TASK, store, backend, monkeypatch) as tests:
        for _ in range(2):
            verdict = tests.verdict(tests.run(building(command)))
            assert (verdict.resolved, verdict.valid) == (False, True)


def test_the_list_of_mounts_does_not_reveal_the_number_of_a_run(
    store: LayerStore, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []
    with kept(TASK, store, backend, monkeypatch) as tests:
        assert tests.builds is not None
        for _ in range(2):
            with tests.builds.layers(tests, GOLD) as built, tests.patched(GOLD, built) as (sandbox, _, _):
                mounts = sandbox.run("cat /proc/self/mountinfo").output
            names.append({*re.findall(r"-(\w+)-(?:sandbox|builds)\b", mounts), *re.findall(r"-builds/(\w+)", mounts)})
    assert all(len(name) == 12 for found in names for name in found)
    assert len(names[0] & names[1]) <= 1  # the directory of all builds


# The build compiles a limit of the tests into what checks the answers.
CHECK = """\
#include <stdio.h>
#include <stdlib.h>
#include "limit.h"
int main(int count, char **words) {
    return abs(atoi(words[1]) - atoi(words[2])) > LIMIT;
}
"""
LIMITED = {
    **FILES,
    "src/check.c": CHECK,
    "Makefile": MAKEFILE.replace("tool: ", "tool: tests/limit.txt src/check.c ")
    + "\tsed 's/^/#define LIMIT /' tests/limit.txt > src/limit.h && cc -o check src/check.c\n",
    "tests/run.sh": RUN.replace('[ "$(./tool $number)" = "$wanted" ]', './check "$(./tool $number)" "$wanted"'),
    "tests/limit.txt": "1\n",
}


@pytest.mark.parametrize("command", ["cp", "mv", "ln -f"])
def test_what_the_build_reads_of_the_tests_is_that_of_the_hidden_ones(
    store: LayerStore, backend: str, command: str
) -> None:
    """A wrong patch would pass with the limit of the base commit."""
    makefile = LIMITED["Makefile"].replace("\tsed", f"\t{command} tests/limit.txt src/limit.txt\n\tsed")
    task = dataclasses.replace(
        TASK,
        files={**LIMITED, "Makefile": makefile.replace("/' tests/limit", "/' src/limit")},
        test_patch=TASK.test_patch
        + "diff --git a/tests/limit.txt b/tests/limit.txt\n--- a/tests/limit.txt\n+++ b/tests/limit.txt\n"
        "@@ -1 +1 @@\n-1\n+0\n",
    )
    assert grade(task, GOLD, store=store, backend=backend).resolved
    wrong = change("src/tool.c", "- STEP", "+ 2 * STEP")
    assert not grade(task, wrong, store=store, backend=backend).resolved
    [record] = (store.root.parent / "builds").iterdir()
    assert '"are_kept": false' in record.read_text()


def test_what_git_reads_of_the_tests_is_no_reason_to_build_in_each_run(store: LayerStore, backend: str) -> None:
    files = {**FILES, "Makefile": MAKEFILE + "\tgit status --short; git describe --always --dirty\n"}
    task = dataclasses.replace(TASK, files=files)
    assert grade(task, GOLD, store=store, backend=backend).resolved
    [record] = (store.root.parent / "builds").iterdir()
    assert '"are_kept": true' in record.read_text()


def test_a_program_that_the_build_brings_for_the_tests_is_built_in_each_run(store: LayerStore, backend: str) -> None:
    script = SCRIPT.replace("make\n", "make\nmkdir -p ~/bin; cp tool ~/bin/tested; export PATH=$HOME/bin:$PATH\n")
    task = dataclasses.replace(TASK, eval_script=script.replace("sh tests/run.sh", "tested 1 && sh tests/run.sh"))
    for _ in range(2):
        verdict = grade(task, GOLD, store=store, backend=backend)
        assert (verdict.resolved, verdict.valid) == (True, True)
    [record] = (store.root.parent / "builds").iterdir()
    assert '"are_kept": false' in record.read_text()


PRODUCED = {
    **FILES,
    "Makefile": "tool: src/tool.c src/generate.c\n\tcc -o src/generate src/generate.c\n"
    "\t./src/generate > src/step.h\n\tcc -fPIC -shared -o part.so src/tool.c\n"
    "\tfor one in src/*.c; do cc -fPIC -shared -o $${one%.c}.so $$one; done\n"
    "\tmkdir -p out; cp src/tool.c out/tool.c; cc -o tool src/tool.c\n",
    "out/tool.c": "/* made by the build */\n",
}


def test_what_a_build_makes_again_is_kept(store: LayerStore, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products in the repository, those that the patch removes, and those of files that the patch adds."""
    task = dataclasses.replace(TASK, files=PRODUCED)
    removed = "diff --git a/out/tool.c b/out/tool.c\ndeleted file mode 100644\n--- a/out/tool.c\n+++ /dev/null\n"
    removed += "@@ -1 +0,0 @@\n-/* made by the build */\n"
    with kept(task, store, backend, monkeypatch) as tests:
        assert tests.builds is not None
        for patch in (GOLD, GOLD + removed):
            patch += new_file("src/extra.c", "int extra;\n")
            with tests.builds.layers(tests, patch) as built, tests.patched(patch, built) as (sandbox, _, _):
                result = sandbox.run("cd /testbed && cmp src/tool.c out/tool.c && ls src/extra.so src/tool.so")
            assert result.exit_code == 0, result.output


BUNDLER = """\
const fs = require("fs");
const plugin = require("../src/plugin.js");
fs.mkdirSync("dist", { recursive: true });
for (const place of process.argv.slice(2))
  for (const name of fs.readdirSync(place))
    if (name !== "plugin.js") fs.writeFileSync(`dist/${name}`, plugin(fs.readFileSync(`${place}/${name}`, "utf8")));
"""
STEP = 'const { test } = require("node:test");\nconst assert = require("node:assert");\n'
STEP += 'test("steps", () => assert.strictEqual(require("../dist/step.js")(1), %d));\n'
BUNDLED = {
    "tools/bundle.js": BUNDLER,
    "src/plugin.js": "module.exports = (text) => text;\n",
    "src/step.js": "module.exports = (number) => number - 1;\n",
    "check/step.test.js": STEP % 0,
}


@pytest.mark.parametrize("bundled", ["src", "src check"])
def test_a_bundle_of_the_product_is_kept_and_one_of_the_tests_is_not(
    store: LayerStore, backend: str, bundled: str
) -> None:
    build = f"node tools/bundle.js {bundled}"
    place = "dist" if "check" in bundled else "check"
    task = dataclasses.replace(
        TASK,
        patch=change("src/step.js", "- 1", "+ 1", BUNDLED),
        test_patch=change("check/step.test.js", "(1), 0", "(1), 2", BUNDLED),
        files=BUNDLED,
        fail_to_pass=("steps",),
        setup=(build,),
        eval_script=SCRIPT.replace("make\n", f"{build}\n").replace(
            "sh tests/run.sh", f"node --test --test-reporter tap {place}/step.test.js"
        ),
    )
    planting = change(
        "src/plugin.js",
        "=> text;",
        '=> (require("fs").writeFileSync("check/step.test.js", ""), text.replace("0)", "2)"));',
        BUNDLED,
    )
    for patch, passes in ((task.patch, True), ("", False), (planting, False)):
        verdict = grade(task, patch, store=store, backend=backend)
        assert (verdict.resolved, verdict.valid) == (passes, True)
    [record] = (store.root.parent / "builds").iterdir()
    assert json.loads(record.read_text())["are_kept"] == (bundled == "src")
