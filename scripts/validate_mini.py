#!/usr/bin/env python3
"""Validates the bugs of the shipped dataset `mini`, for its maintainers.

    python scripts/validate_mini.py --check             # the stored results equal those of the tests
    python scripts/validate_mini.py --write [PACKAGE …]  # after editing a package or its bugs.md

A bug is valid if, over three runs with different hash seeds, the same tests fail with it, at least one fails and at
least one passes, within ten seconds; and if the suite that the agent gets (without the tests that fail) passes on the
bugged code. If its issue shows a Python session, the output must be as written on the bugged code and different on the
fixed code. `--write` stores the lists in `results.json` and fills the output of the sessions into the issues; `{fixed}`
in an issue becomes the output of the fixed code for the first line that differs.
"""

from __future__ import annotations

import argparse
import doctest
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from swegym_env.errors import SwegymError
from swegym_env.tasks.data import mini
from swegym_env.tasks.data.mini import Bug

HASH_SEEDS = (0, 1, 2)
TIMEOUT_S = 10.0
FENCE = re.compile(r"(?<=```python\n).*?(?=```)", re.DOTALL)
PLACE = "{fixed}"

RUN_TESTS = """
import json, sys, unittest

class Outcomes(unittest.TestResult):
    passed = ()
    def addSuccess(self, test):
        self.passed += (test.id(),)

outcomes = Outcomes()
suite = unittest.defaultTestLoader.discover(".", top_level_dir=".")
suite.run(outcomes)
failed = [test.id() for test, _ in outcomes.failures + outcomes.errors]
print(json.dumps({"passed": sorted(outcomes.passed), "failed": sorted(failed)}))
"""

RUN_SESSION = """
import contextlib, io, json, sys, traceback
names, outputs = {}, []
for source in json.load(sys.stdin):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            exec(compile(source, "<session>", "single"), names)
        except Exception as error:
            print("Traceback (most recent call last):\\n  ...")
            print("".join(traceback.format_exception_only(type(error), error)).strip())
    outputs.append(out.getvalue())
print(json.dumps(outputs))
"""


class InvalidBugError(Exception):
    """A bug that cannot be shipped; the text is the reason."""


@contextmanager
def checked_out(files: Mapping[str, str]) -> Iterator[Path]:
    """A temporary directory with these files."""
    with tempfile.TemporaryDirectory(prefix="mini-") as folder:
        for path, text in files.items():
            target = Path(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8", newline="")
        yield Path(folder)


def run_python(program: str, folder: Path, *, stdin: str = "", hash_seed: int = 0) -> Any:
    """The JSON output of `program`, run in `folder`."""
    environment = {"PATH": os.environ["PATH"], "PYTHONHASHSEED": str(hash_seed), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=folder,
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InvalidBugError(f"no answer within {TIMEOUT_S:.0f} s") from None
    if done.returncode:
        raise InvalidBugError("the test runner failed: " + done.stderr.strip().rpartition("\n")[2])
    return json.loads(done.stdout.strip().rpartition("\n")[2])


def run_tests(files: Mapping[str, str], seeds: tuple[int, ...] = HASH_SEEDS) -> tuple[list[str], list[str]]:
    """The passing and the failing tests, equal in every run."""
    with checked_out(files) as folder:
        runs = [run_python(RUN_TESTS, folder, hash_seed=seed) for seed in seeds]
    if any(run != runs[0] for run in runs):
        raise InvalidBugError("the results differ from run to run")
    return runs[0]["passed"], runs[0]["failed"]


def validate(bug: Bug, files: Mapping[str, str], tests: list[str]) -> list[str]:
    """The tests that this bug breaks.

    Raises:
        InvalidBugError: it cannot be shipped.
    """
    broken = bug.break_files(files)
    compile(broken[bug.path], bug.path, "exec")
    passed, _ = run_tests(broken)
    failing = [test for test in tests if test not in passed]
    if not failing:
        raise InvalidBugError("no test fails")
    if not passed:
        raise InvalidBugError("no test passes")
    task = mini.make_task(bug, files, tests, failing)
    still_passed, still_failed = run_tests(task.files, seeds=(0,))
    if still_failed or still_passed != sorted(task.pass_to_pass):
        raise InvalidBugError(f"without the tests that fail, the suite gives {still_failed or 'other tests'}")
    return failing


def play(files: Mapping[str, str], issue: str) -> list[str]:
    """The output of each line of the issue's sessions."""
    sources = [example.source for fence in FENCE.findall(issue) for example in examples_of(fence)]
    with checked_out(files) as folder:
        return run_python(RUN_SESSION, folder, stdin=json.dumps(sources)) if sources else []


def examples_of(fence: str) -> list[doctest.Example]:
    """The lines of one session."""
    return doctest.DocTestParser().get_examples(fence)


def with_outputs(bug: Bug, files: Mapping[str, str]) -> str:
    """The issue with the real output of its sessions, and the expected output if requested.

    Raises:
        InvalidBugError: the sessions show no difference between the bugged code and the fixed code.
    """
    bugged = play(bug.break_files(files), bug.issue)
    if not bugged:
        return bug.issue
    fixed = play(files, bug.issue)
    different = [after.strip() for before, after in zip(bugged, fixed, strict=True) if before != after]
    if not different:
        raise InvalidBugError(f"the session prints the same on the fixed code: {fixed}")
    outputs = iter(bugged)

    def played(match: re.Match[str]) -> str:
        lines = []
        for example in examples_of(match[0]):
            first, *rest = example.source.splitlines()
            lines += [f">>> {first}", *(f"... {line}" for line in rest)]
            lines.append(next(outputs).rstrip("\n"))
        return "\n".join(line for line in lines if line) + "\n"

    return FENCE.sub(played, bug.issue).replace(PLACE, different[0].rpartition("\n")[2])


def process(package: str, *, write: bool, only: str | None = None) -> list[str]:
    """Validates one package; returns the errors."""
    files = mini.read_repository(package)
    stored = mini.DATA / package / "results.json"
    tests, failed = run_tests(files)
    if failed:
        return [f"{package}: these tests fail without any bug: {failed}"]
    complaints: list[str] = []
    results: dict[str, list[str]] = {}
    issues: dict[str, str] = {}
    bugs = mini.read_bugs(package)
    if only and all(bug.number != only for bug in bugs):
        return [f"{package}: no bug {only}; there are {', '.join(bug.number for bug in bugs)}"]
    for bug in bugs:
        if only and bug.number != only:
            continue
        try:
            results[bug.number] = validate(bug, files, tests)
            issues[bug.number] = with_outputs(bug, files)
        except (InvalidBugError, SwegymError, SyntaxError) as error:
            complaints.append(f"{bug.instance_id}: {error}")
    with_session = sum(1 for bug in bugs if ">>>" in bug.issue)
    print(f"{package}: {len(tests)} tests, {len(results)} of {len(bugs)} bugs valid, {with_session} with a session")
    if write and not complaints:
        text = (mini.DATA / package / "bugs.md").read_text(encoding="utf-8")
        for bug in bugs:
            text = text.replace(bug.issue, issues[bug.number])
        (mini.DATA / package / "bugs.md").write_text(text, encoding="utf-8")
        content = {"tests": tests, "fail_to_pass": results}
        stored.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    elif not write:
        known = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else {}
        if not only and known != {"tests": tests, "fail_to_pass": results}:
            complaints.append(f"{package}: results.json is not what the tests say; run with --write")
        complaints += [
            f"{bug.instance_id}: the issue's session prints something else; it should read:\n{issues[bug.number]}"
            for bug in bugs
            if issues.get(bug.number, bug.issue) != bug.issue
        ]
    return complaints


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true", help="compare with what is stored; exit code 1 if it differs")
    mode.add_argument(
        "--write", action="store_true", help="store what is found, package by package, if all its bugs are valid"
    )
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="default: all")
    parser.add_argument("--only", metavar="NUMBER", help="check this bug alone")
    options = parser.parse_args()
    if options.write and options.only:
        parser.error("--only: with --check; what --write stores is of all bugs of a package")
    unknown = sorted(set(options.packages) - set(mini.packages()))
    if unknown:
        parser.error(f"no package {unknown[0]}; there are {', '.join(mini.packages())}")
    complaints: list[str] = []
    for package in options.packages or mini.packages():
        complaints += process(package, write=options.write, only=options.only)
    print("\n".join(complaints), file=sys.stderr, end="\n" if complaints else "")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
