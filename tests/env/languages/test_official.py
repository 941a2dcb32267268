"""The policy `official` gives the verdict of `swebench.harness.grading` on the same log, generated or recorded."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swegym_env.grading.verdict import grade_log
from swegym_env.languages import log_parser
from swegym_env.languages.official import official_module, official_parsers
from swegym_env.languages.python.logs import REPOSITORY_PARSERS
from swegym_env.tasks.task import Task

from .test_logs import PYTEST_LOG, UNITTEST_LOG_3_8

REPOSITORIES = sorted(REPOSITORY_PARSERS)
FAIL_ONLY = ("chartjs/Chart.js", "processing/p5.js", "markedjs/marked")
LOGS = Path(__file__).parent / "logs"

# One a line, as they would stand in a log: {n} is a name, {s} a status.
NAMES = """\
test_a
test_b (app.T)
tests/x.py::test_a
tests/x.py::test_b[a b]
t.py::test_c[/tmp/x/y]
[1]
-
A docstring
test_d (app.T.test_d)
x.py::e[MouseButton.LEFT]
--version is equivalent to version"""
TEMPLATES = """\
{s} {n}
{s} {n} - assert 1 == 2
{n} {s}
{n} {s} [ 50%]
{n} ... {s}
{n} ...  {s}
{s}: {n}
{s}
\x1b[32m{s}\x1b[0m {n}
  {n} ... {s}
{n} ... noise
ok
{n} E
{n} F
{n} ok
__ x.py:{n} __
{n} ... Internal Server Error: /x/|ok
{n} ... System check identified no issues (0 silenced)|ok
Applying sites.0002_alter_domain_unique...test_no_migrations (x) ... ok
x\x0dy
>>>>> Tests Timed Out
>>>>> Patch Apply Failed
>>>>> End Test Output
>>>>> Start Test Output"""
words = st.sampled_from(NAMES.split("\n"))
statuses = st.sampled_from(["PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "XPASS", "ok", "OK", "FAIL", "skipped"])
templates = st.sampled_from([line.replace("|", "\n") for line in TEMPLATES.split("\n")])
lines = st.builds(lambda template, name, status: template.format(n=name, s=status), templates, words, statuses)
logs = st.lists(lines | st.text(max_size=20), max_size=12).map("\n".join)
names = st.lists(words | st.just("x.py:test_a"), max_size=4, unique=True)


def row(repo: str, instance_id: str = "x", *, parser: str = "") -> Task:
    return Task(instance_id, repo, "", "p", "p", log_parser=parser)


def harness_says(repo: str, log: str, fail_to_pass: list[str], pass_to_pass: list[str]) -> tuple[bool, object, object]:
    """Resolved, and the counts passed of all, as the harness reads them from a file."""
    grading = official_module("grading")
    assert grading is not None, "the SWE-bench harness is not installed: scripts/setup.sh installs it"
    spec = SimpleNamespace(
        repo=repo, version=_version(repo), instance_id="x", FAIL_TO_PASS=fail_to_pass, PASS_TO_PASS=pass_to_pass
    )
    with tempfile.NamedTemporaryFile("w", newline="", encoding="utf-8") as file:
        file.write(f">>>>> Start Test Output\n{log}\n>>>>> End Test Output\n")
        file.flush()
        prediction = {"instance_id": "x", "model_name_or_path": "m", "model_patch": "p"}
        report = grading.get_eval_report(spec, prediction, file.name, include_tests_status=True)["x"]
    found = report.get("tests_status")
    counts = [
        (len(part["success"]), len(part["success"]) + len(part["failure"])) if found else None
        for part in ((found[kind] if found else {}) for kind in ("FAIL_TO_PASS", "PASS_TO_PASS"))
    ]
    return report["resolved"], counts[0], counts[1]


def _version(repo: str) -> str:
    grading = official_module("grading")
    assert grading is not None
    return next(iter(grading.MAP_REPO_VERSION_TO_SPECS[repo]))


def ours(repo: str, log: str, fail_to_pass: list[str], pass_to_pass: list[str]) -> tuple[bool, object, object]:
    task = Task(
        "x", repo, "", "p", "p",
        fail_to_pass=tuple(fail_to_pass),
        pass_to_pass=tuple(pass_to_pass),
        eval_type="fail_only" if repo in FAIL_ONLY else "pass_and_fail",
    )  # fmt: skip
    # The harness reads its log as a text file does.
    read = log.replace("\r\n", "\n").replace("\r", "\n")
    verdict = grade_log(task, read, policy="official")
    if verdict.failure_reason:
        return verdict.resolved, None, None
    return verdict.resolved, verdict.fail_to_pass, verdict.pass_to_pass


@settings(max_examples=400, deadline=None)
@given(st.sampled_from([*REPOSITORIES, *FAIL_ONLY]), logs, names, names)
@example("psf/requests", PYTEST_LOG, ["tests/test_x.py::test_path[/file.txt]"], ["[1]", "tests/test_x.py::test_x"])
@example("django/django", UNITTEST_LOG_3_8, ["test_ok (test_a.T)"], ["A docstring (really)"])
def test_official_verdicts_equal_the_harness(
    repo: str, log: str, fail_to_pass: list[str], pass_to_pass: list[str]
) -> None:
    try:
        expected = harness_says(repo, log, fail_to_pass, pass_to_pass)
    except IndexError:
        return  # its parser of seaborn's logs fails on a bare status; no verdict to agree with
    assert ours(repo, log, fail_to_pass, pass_to_pass) == expected


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(REPOSITORIES), logs)
def test_the_built_in_parsers_equal_the_harnesses(repo: str, log: str) -> None:
    module = official_module("log_parsers")
    assert module is not None
    try:
        expected = module.MAP_REPO_TO_PARSER[repo](log, None)
    except IndexError:
        return
    assert log_parser(row(repo))(log) == expected


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem)
def test_recorded_logs_get_the_harnesses_statuses_and_verdicts(path: Path) -> None:
    log = path.read_text(encoding="utf-8")
    for repo in REPOSITORIES:
        tests = log_parser(row(repo))(log)
        passed = [name for name, status in tests.items() if status == "PASSED"]
        others = [name for name in tests if name not in passed]
        for fail_to_pass, pass_to_pass in (
            (passed[:3], passed[3:]),
            (passed[:1], others[:5]),
            (["absent"], passed[:2]),
        ):
            assert ours(repo, log, fail_to_pass, pass_to_pass) == harness_says(repo, log, fail_to_pass, pass_to_pass)


def test_there_are_recorded_logs() -> None:
    assert len(list(LOGS.glob("*.log"))) >= 4


def test_the_parser_of_every_repository_of_the_harness_is_found() -> None:
    parsers = official_parsers()
    assert len(parsers) > 50
    assert {repo for repo in parsers if repo in REPOSITORY_PARSERS} == set(REPOSITORIES)
    for repo in parsers:
        assert isinstance(log_parser(row(repo, "x-2006"))("no log of a test runner\n"), dict)
    assert log_parser(row("", parser="parse_log_cargo"))("test a::b ... ok\n") == {"a::b": "PASSED"}


def test_the_parsers_are_loaded_without_docker_modal_or_the_whole_harness() -> None:
    assert official_module("grading") is not None
    assert not {"docker", "modal", "swebench"}.intersection(sys.modules)
