"""From a project to tasks: each resolves with its gold patch only, and equal settings give equal tasks."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from swegym_env.cli.main import main
from swegym_env.errors import ConfigurationError, GradingError, RepositoryError
from swegym_env.grading.grading import grade
from swegym_env.making.inside import runner
from swegym_env.making.issues import Rewriter
from swegym_env.making.journal import Journal
from swegym_env.making.maker import MadeTasks, Progress, make_tasks
from swegym_env.making.settings import MakeSettings
from swegym_env.making.sources import Source, read_source
from swegym_env.prepare import prepare_locally
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.datasets import load_tasks

INSTALL = 'echo /testbed > "$(python -c "import site; print(site.getsitepackages()[0])")/shelf.pth"'
PRELOADS = "import runner, sys; runner.preload(['ends_here', 'colorsys']); print('colorsys' in sys.modules)"
SETTINGS = MakeSettings(count=6, install=(INSTALL,), per_function=2)


@dataclasses.dataclass(frozen=True)
class Work:
    source: Source
    directory: Path
    store: LayerStore
    made: MadeTasks


def make(source: Source, directory: Path, store: LayerStore, **changes: Any) -> MadeTasks:
    changed = {name: changes.pop(name) for name in list(changes) if name in vars(SETTINGS)}
    settings = dataclasses.replace(SETTINGS, **changed)
    return make_tasks(source, directory, settings, store=store, backend="namespace", **changes)


@pytest.fixture(scope="module")
def work(project: Path, wheels: Path, public_directory: Path) -> Iterator[Work]:
    """The project's tasks, made once for all tests of this module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_FIND_LINKS", str(wheels))
        patch.setenv("PIP_NO_INDEX", "1")
        source = read_source(str(project))
        store = LayerStore(public_directory / "making-layers")
        directory = public_directory / "made"
        yield Work(source, directory, store, make(source, directory, store, jobs=2))


def test_tasks_resolve_with_their_gold_patch_and_not_without_it(work: Work) -> None:
    tasks = load_tasks(str(work.directory / "tasks.jsonl"))
    assert len(tasks) == len(work.made.tasks) == 6
    assert len({task.instance_id.split("__")[1].rpartition("-")[0] for task in tasks}) >= 4  # kinds of mistakes
    for task in list(tasks)[:2]:
        gold, empty = (grade(task, patch, store=work.store, backend="namespace") for patch in (task.patch, ""))
        assert gold.resolved, gold
        assert gold.pass_to_pass == (len(task.pass_to_pass),) * 2 and gold.fail_to_pass[1] == len(task.fail_to_pass)
        assert not empty.resolved and empty.fail_to_pass[0] == 0, empty
        assert empty.pass_to_pass == gold.pass_to_pass


def test_a_commit_of_the_project_s_history_is_reverted(work: Work) -> None:
    reverted = next(task for task in work.made.tasks if "__reverted-commit-" in task.instance_id)
    assert reverted.fail_to_pass == ("tests/test_more.py::test_no_years",)
    assert "+    if not years:\n+        return 0\n" in reverted.patch
    row = next(row for row in rows(work.directory) if row["instance_id"] == reverted.instance_id)
    assert row["reverted_commit"] == work.source.history[0].commit


def test_the_failing_tests_are_hidden_from_the_agent(work: Work) -> None:
    for task in work.made.tasks:
        for name in task.fail_to_pass:
            function = name.rpartition("::")[2].partition("[")[0]
            assert f"+def {function}" in task.test_patch or f"+    def {function}" in task.test_patch
        assert all(not line.startswith("+++") or "/tests/" in line for line in task.test_patch.splitlines())
        assert "tests/" not in task.patch


def test_the_issue_shows_the_failing_test_and_its_output(work: Work) -> None:
    reverted = next(task for task in work.made.tasks if "__reverted-commit-" in task.instance_id)
    title, *rest = reverted.problem_statement.splitlines()
    assert title.startswith("shelf: no years: ValueError: ")
    body = "\n".join(rest)
    assert "```python\ndef test_no_years():\n    assert spans([]) == 0\n```" in body
    assert "shelf.py" not in body and "return 0" not in body
    assert all(
        row["difficulty"] in ("easy", "medium", "hard") and 0 <= row["difficulty_score"] <= 1
        for row in rows(work.directory)
    )


def test_unstable_tests_are_not_used_and_are_named(work: Work) -> None:
    assert work.made.unstable == {"tests/test_zz.py::test_needs_the_other_file": "PASSED among all, FAILED alone"}
    assert work.made.tests == 8
    assert not any("test_zz" in name for task in work.made.tasks for name in task.fail_to_pass + task.pass_to_pass)


def test_names_that_logs_cut_are_used_where_they_are_unambiguous(work: Work) -> None:
    names = {name for task in work.made.tasks for name in task.fail_to_pass + task.pass_to_pass}
    assert "tests/test_shelf.py::test_century[last" in names
    assert not any(" " in name for name in names)


def test_no_two_tasks_have_the_same_effect(work: Work) -> None:
    findings = [(row["FAIL_TO_PASS"], row["patch"]) for row in rows(work.directory)]
    assert len({patch for _, patch in findings}) == len(findings)
    assert len({task.patch for task in work.made.tasks}) == 6


def test_an_interrupted_run_continues_to_the_same_tasks_for_any_jobs(work: Work, public_directory: Path) -> None:
    directory = public_directory / "interrupted"

    class InterruptedHereError(Exception):
        pass

    def interrupt(progress: Progress) -> None:
        if progress.stage == "validating" and progress.done == 2:
            raise InterruptedHereError

    with pytest.raises(InterruptedHereError):
        make(work.source, directory, work.store, on_progress=interrupt)
    assert not (directory / "tasks.jsonl").exists()
    findings = directory / ".making" / "findings.jsonl"
    known = len(findings.read_bytes().splitlines())
    with findings.open("ab") as file:
        file.write(b'{"key": "half a li')
    made = make(work.source, directory, work.store)
    assert rows(directory) == rows(work.directory)  # made by two jobs, without an interruption
    known_all = len(findings.read_bytes().splitlines())
    assert made.validated < known_all - 1 and known > 0
    again = make(work.source, directory, work.store)
    assert again.tasks == made.tasks
    assert len(findings.read_bytes().splitlines()) <= known_all + 2  # validations in flight at the end
    with pytest.raises(ConfigurationError, match="holds tasks of another project, seed"):
        make(work.source, directory, work.store, seed=1)
    (public_directory / "mine").mkdir()
    (public_directory / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigurationError, match="expected a new or empty directory"):
        make(work.source, public_directory / "mine", work.store)


def test_the_folder_of_tasks_can_be_moved(work: Work, public_directory: Path) -> None:
    moved = shutil.copytree(work.directory, public_directory / "moved")
    tasks = load_tasks(str(moved / "tasks.jsonl"))
    task = tasks[0]
    assert task.repository == str(moved / "repository.git")
    elsewhere = LayerStore(public_directory / "moved-layers")
    (layer,) = prepare_locally(task, store=elsewhere, install=False).spec.layers
    shutil.rmtree(moved)
    assert (layer / "testbed" / "shelf.py").is_file()
    with pytest.raises(RepositoryError, match="moved"):
        prepare_locally(tasks[1], store=elsewhere, install=False)


def test_a_project_without_passing_tests_is_an_error(work: Work, public_directory: Path) -> None:
    directory = public_directory / "failing"
    message = r"no test of the project passes in its sandbox: .*test_needs_the_other_file: .*assert None.*--requires"
    with pytest.raises(GradingError, match=message):
        make(work.source, directory, work.store, tests=("tests/test_zz.py",))
    assert not (directory / "tasks.jsonl").exists()


def test_the_command_reports_its_tasks_and_its_errors(
    work: Work,
    project: Path,
    public_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SWEGYM_WORKDIR", str(work.store.root.parent / "making-work"))
    (work.store.root.parent / "making-work").mkdir()
    (work.store.root.parent / "making-work" / "layers").symlink_to(work.store.root)
    output = public_directory / "by-command"
    arguments = [
        "make-tasks",
        str(project),
        "--output",
        str(output),
        "--install",
        INSTALL,
        "--sandbox",
        "namespace",
    ]
    assert main([*arguments, "--count", "1", "--kind", "dropped-guard", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["tasks"], summary["dataset"], summary["tests"]) == (1, str(output / "tasks.jsonl"), 8)
    assert main([*arguments, "--count", "99", "--kind", "dropped-guard"]) == 1
    captured = capsys.readouterr()
    assert "of 99 tasks: the project gives no more" in captured.err
    assert "not used: tests/test_zz.py::test_needs_the_other_file" in captured.out
    for wrong, message in (
        (["--kind", "typo"], "no kind of mistake 'typo'"),
        (["--count", "0"], "--count: expected at least 1"),
        (["--test-seconds", "nan"], "--test-seconds: expected more than 0"),
        (["--rewrite-url", "ftp://x"], "--rewrite-url: expected http"),
    ):
        assert main([*arguments[:2], "--output", str(public_directory / "wrong"), *arguments[4:], *wrong]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


@pytest.fixture
def chat_server() -> Iterator[tuple[str, list[dict[str, Any]], list[tuple[int, str]]]]:
    """An OpenAI-compatible server on loopback: its address, the requests it gets, and the answers it gives next."""
    requests: list[dict[str, Any]] = []
    answers: list[tuple[int, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append({"path": self.path, **body})
            status, text = answers.pop(0) if answers else (200, completion(f"Report {len(requests)}\n\nIt broke."))
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1", requests, answers
    server.shutdown()
    thread.join()
    server.server_close()


def completion(text: object) -> str:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]})


def test_a_language_model_rewrites_the_issues_once(
    work: Work, chat_server: tuple[str, list[dict[str, Any]], list[tuple[int, str]]]
) -> None:
    url, requests, _ = chat_server
    rewriter = Rewriter(url, "some-model")
    directory = shutil.copytree(work.directory, work.directory.parent / "rewritten")
    made = make(work.source, directory, work.store, rewriter=rewriter, count=2)
    assert [task.problem_statement for task in made.tasks] == ["Report 1\n\nIt broke.\n", "Report 2\n\nIt broke.\n"]
    assert {(one["path"], one["model"]) for one in requests} == {("/v1/chat/completions", "some-model")}
    assert requests[0]["messages"][1]["content"] == work.made.tasks[0].problem_statement
    assert all(task.patch not in json.dumps(requests) for task in made.tasks)  # the fix is not sent
    make(work.source, directory, work.store, rewriter=rewriter, count=2)
    assert len(requests) == 2  # its answers are kept


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((500, "oops"), "no answer: status 500"),
        ((200, "<html>"), "expected a chat completion"),
        ((200, completion(None)), "no usable report"),
        ((200, completion("  ")), "no usable report"),
        ((200, '{"choices": []}'), "expected a chat completion"),
    ],
)
def test_an_invalid_answer_of_the_server_is_a_one_line_error(
    answer: tuple[int, str], message: str, chat_server: tuple[str, list[dict[str, Any]], list[tuple[int, str]]]
) -> None:
    url, _, answers = chat_server
    answers.append(answer)
    with pytest.raises(ConfigurationError, match=message) as caught:
        Rewriter(url, "m").rewrite("x", seed=0)
    assert "\n" not in str(caught.value)


def test_an_unreachable_server_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"no answer: .*refused"):
        Rewriter("http://127.0.0.1:9", "m").rewrite("x", seed=0)


def test_a_module_that_cannot_be_preloaded_is_logged_and_the_others_are_imported(tmp_path: Path) -> None:
    (tmp_path / "ends_here.py").write_text("raise SystemExit('no display')\n")
    places = os.pathsep.join([str(tmp_path), str(Path(runner.__file__).parent)])
    ran = subprocess.run(
        [sys.executable, "-c", PRELOADS], env={**os.environ, "PYTHONPATH": places}, capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    assert ran.stdout == "True\n"
    assert ran.stderr == "ends_here is not preloaded: SystemExit: no display\n"


def rows(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "tasks.jsonl").read_text().splitlines()]


def test_a_directory_of_a_run_that_found_nothing_takes_other_settings(tmp_path: Path) -> None:
    Journal(tmp_path / "made", {"seed": 0})
    (tmp_path / "made" / "repository.git").mkdir()
    Journal(tmp_path / "made", {"seed": 1})
    assert [path.name for path in (tmp_path / "made").iterdir()] == [".making"]
    (tmp_path / "made" / ".making" / "baseline.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="holds tasks of another project, seed"):
        Journal(tmp_path / "made", {"seed": 2})
