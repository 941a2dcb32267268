#!/usr/bin/env python3
"""Validates the bugs of the shipped dataset `mini-c`, for its maintainers.

    python scripts/validate_mini_c.py --check    # the stored results equal those of the tests
    python scripts/validate_mini_c.py --write    # after editing a library or its bugs.md

A bug is valid if the same tests fail with it when the library is built with -O0 and with -O2, at least one fails and
at least one passes, and if the suite that the agent gets (without the tests that fail) passes on the bugged code. The
tests of a library without bugs pass under the sanitizers of gcc, and nothing of it gives a warning.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from swegym_env.errors import SwegymError
from swegym_env.languages.tap import parse_tap
from swegym_env.tasks.data import mini_c

TIMEOUT_S = 120.0
STRICT = "-O1 -std=c99 -Wall -Wextra -Wpedantic -Werror -fsanitize=address,undefined -fno-sanitize-recover"


class InvalidBugError(Exception):
    """A bug that cannot be shipped; the text is the reason."""


def run_tests(files: Mapping[str, str], flags: str) -> dict[str, str]:
    """The tests of a repository and their status."""
    with tempfile.TemporaryDirectory(prefix="mini-c-") as folder:
        for path, text in files.items():
            target = Path(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        command = ["make", "test", f"CFLAGS={flags}"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    found = parse_tap(done.stdout)
    if not found:
        raise InvalidBugError(f"no test ran: {done.stderr.strip()[-500:]}")
    return found


def results_of(library: str) -> tuple[dict[str, object], list[str]]:
    """What belongs into a library's `results.json`, and what is wrong with it."""
    sound = mini_c.files(library)
    found = run_tests(sound, STRICT)
    tests, complaints = sorted(found), [f"{library}: {name} fails" for name in found if found[name] != "PASSED"]
    if sorted(run_tests(sound, "-O1")) != tests:
        complaints.append(f"{library}: the tests end early under the sanitizers, after {tests[-1]}")
    failing: dict[str, list[str]] = {}
    for bug in mini_c.bugs(library):
        try:
            broken = bug.break_files(sound)
            runs = [run_tests(broken, flags) for flags in ("-O0", "-O2")]
            failed = [[name for name in tests if run.get(name) != "PASSED"] for run in runs]
            if failed[0] != failed[1] or not 0 < len(failed[0]) < len(tests):
                raise InvalidBugError(f"these tests fail with -O0 and -O2: {failed}")
            task = mini_c.make_task(bug, sound, tests, failed[0])
            given = run_tests(task.files, "-O1")
            if given != dict.fromkeys(task.pass_to_pass, "PASSED"):
                raise InvalidBugError(f"without the tests that fail, the suite gives {given}")
            failing[bug.number] = failed[0]
        except (InvalidBugError, SwegymError, subprocess.TimeoutExpired) as error:
            complaints.append(f"{bug.instance_id}: {error}")
    print(f"{library}: {len(tests)} tests, {len(failing)} bugs valid")
    return {"tests": tests, "fail_to_pass": failing}, complaints


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true", help="compare with what is stored; exit code 1 if it differs")
    mode.add_argument("--write", action="store_true", help="store what the tests say")
    write = parser.parse_args().write
    wrong: list[str] = []
    for library in mini_c.libraries():
        results, complaints = results_of(library)
        stored = mini_c.DATA / library / "results.json"
        if write and not complaints:
            stored.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        elif not write and (not stored.exists() or json.loads(stored.read_text(encoding="utf-8")) != results):
            complaints.append(f"{library}: results.json is not what the tests say; run with --write")
        wrong += complaints
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
