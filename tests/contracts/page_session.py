"""Runs the blocks of one page, in order and in this directory: a program of its own, for test_commands.py.

Reads them as JSON from standard input. Shell blocks share exported variables, Python blocks share their names.
Exit code 1 after the first block that does not end as it should; its place is the last line on standard output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

_SHELL = ["bash", "--noprofile", "--norc", "-euo", "pipefail", "-c"]


def run_shell(step: dict[str, Any]) -> bool:
    """Run one shell block; what it exports stays."""
    reads, writes = os.pipe()
    ended = f"trap 'code=$?; env -0 >&{writes}; exit $code' EXIT\n"
    with subprocess.Popen([*_SHELL, ended + step["text"]], pass_fds=[writes], stdin=subprocess.DEVNULL) as process:
        os.close(writes)
        with os.fdopen(reads, "rb") as variables:
            entries = variables.read().decode(errors="surrogateescape")
    for entry in filter(None, entries.split("\0")):
        name, _, value = entry.partition("=")
        os.environ[name] = value
    return process.returncode == step["exit_code"]


def main() -> int:
    steps = json.load(sys.stdin)
    names: dict[str, Any] = {"__name__": "page"}
    for step in steps:
        print(f"== {step['place']}", flush=True)
        began = time.monotonic()
        if step["language"] == "python":
            exec(compile(step["text"], step["place"], "exec"), names)
            passed = True
        else:
            passed = run_shell(step)
        print(f"   {time.monotonic() - began:.1f} s", flush=True)
        if not passed:
            print(f"{step['place']}: expected exit code {step['exit_code']}", flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
