"""A language is one class and one registry line: a small one, of shell scripts, graded in real sandboxes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from swegym_env import languages
from swegym_env.grading.grading import grade
from swegym_env.languages import (
    CHANCE,
    Language,
    LogParser,
    RunnerReport,
    Scrutiny,
    all_languages,
    language_of,
    log_parser,
)
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task
from tests.env.calc import calc_task


def parse_tap(log: str) -> dict[str, str]:
    """Lines `ok NAME` and `not ok NAME`."""
    lines = re.findall(r"^(ok|not ok) (\S+)$", log, re.MULTILINE)
    return {name: "PASSED" if word == "ok" else "FAILED" for word, name in lines}


class Shell(Language):
    """Scripts whose tests print `ok NAME`, and at the end how many there were."""

    name = "shell"
    suffixes = (".sh",)
    parsers = {"shell-tap": parse_tap}  # noqa: RUF012
    reporting_runners = re.compile(r"\brun_tests\.sh\b")
    installing_lines = re.compile(r"make install")
    protected_files = re.compile(r"_test\.sh$|^run_tests\.sh$")
    protected_directories = re.compile(r"bats")

    def find_recipe(self, task: Task) -> None:
        return None

    def parser_of_command(self, command: str) -> LogParser:
        return parse_tap

    def runner_report(self, log: str, parser: LogParser) -> RunnerReport | None:
        end = re.search(r"^(\d+) passed, (\d+) failed$", log, re.MULTILINE)
        return end and RunnerReport(int(end[1]), end[2] == "0")


FILES = {
    "add.sh": "echo $(($1 - $2))\n",
    "run_tests.sh": (
        "p=0; f=0\nfor t in tests/*_test.sh; do\n  if sh $t; then echo ok $t; p=$((p+1)); "
        "else echo not ok $t; f=$((f+1)); fi\ndone\necho $p passed, $f failed\n[ $f = 0 ]\n"
    ),
    "tests/zero_test.sh": "[ $(sh add.sh 1 0) = 1 ]\n",
}


def patch(path: str, old: str | None, new: str) -> str:
    source, kind = (f"a/{path}", "") if old is not None else ("/dev/null", "new file mode 100644\n")
    lines = f"@@ -1 +1 @@\n-{old}+{new}" if old is not None else f"@@ -0,0 +1 @@\n+{new}"
    return f"diff --git a/{path} b/{path}\n{kind}--- {source}\n+++ b/{path}\n{lines}"


GOLD = patch("add.sh", FILES["add.sh"], "echo $(($1 + $2))\n")
TASK = Task(
    "shell-1", "some/shell", "", "add subtracts", GOLD,
    test_patch=patch("tests/add_test.sh", None, "[ $(sh add.sh 1 2) = 3 ]\n"),
    fail_to_pass=("tests/add_test.sh",),
    pass_to_pass=("tests/zero_test.sh",),
    files=FILES,
    test_command="sh run_tests.sh",
)  # fmt: skip


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(languages, "LANGUAGES", {**languages.LANGUAGES, "shell": f"{__name__}:Shell"})
    all_languages.cache_clear()
    yield
    all_languages.cache_clear()


def test_the_language_of_a_task_is_that_of_its_test_files() -> None:
    assert language_of(TASK).name == "shell"
    assert language_of(calc_task()).name == "python"
    assert language_of(Task("x", "a/b", "", "p", "no patch")).name == "python"
    assert log_parser(TASK) is parse_tap
    assert log_parser(Task("x", "a/b", "", "p", "p", log_parser="shell-tap")) is parse_tap


def test_a_registered_language_is_graded_without_further_changes(store: LayerStore) -> None:
    gold = grade(TASK, GOLD, store=store, backend="namespace")
    assert (gold.resolved, gold.fail_to_pass, gold.pass_to_pass, gold.controls) == (True, (1, 1), (1, 1), 0)
    empty = grade(TASK, "", store=store, backend="namespace")
    assert (empty.resolved, empty.valid, empty.fail_to_pass) == (False, True, (0, 1))
    tampered = GOLD + patch("bats/x.sh", None, "exit\n") + patch("run_tests.sh.orig", None, "exit\n")
    assert grade(TASK, tampered, store=store, backend="namespace").set_aside == ("bats/x.sh",)
    forged = patch("add.sh", FILES["add.sh"], "echo ok tests/add_test.sh; kill $PPID\n")
    verdict = grade(TASK, forged, store=store, backend="namespace")
    assert (verdict.resolved, verdict.valid) == (False, True)


def test_the_defaults_of_a_language_are_safe(tmp_path: Path) -> None:
    shell = language_of(TASK)
    assert shell.scrutiny_of(GOLD, tmp_path) == Scrutiny(CHANCE, reads=True)
    assert shell.make_control({"tests/add_test.sh": "x"}, TASK.fail_to_pass, {}, 0) is None
    assert shell.vary({"A": "1"}, order="reversed", seed=0, busy=0).env == {"A": "1"}
    protected = ("tests/x", "node_modules/x", ".git/config", "../x", "Makefile", "a_test.sh", "add.sh")
    assert [path for path in protected if not shell.is_protected(path, tmp_path)] == ["add.sh"]
    assert shell.is_protected("add.sh", tmp_path, "sh ./add.sh")
