"""The programs `swegym`, `swe-train`, `swe-eval` and `swe-serve`.

A module beside the packages, since importing one takes up to 0.3 s: Ctrl-C meanwhile ends a program in one line, as it
does later.
"""

import sys
from importlib import import_module

__all__ = ["swe_eval", "swe_serve", "swe_train", "swegym"]


def swegym() -> int:
    """Run `swegym`; returns its exit code."""
    return _run("swegym", "swegym_env.cli.main", "main")


def swe_train() -> int:
    """Run `swe-train`; returns its exit code."""
    return _run("swe-train", "swe_trainers.cli.main", "main")


def swe_eval() -> int:
    """Run `swe-eval`; returns its exit code."""
    return _run("swe-eval", "swe_trainers.cli.main", "main_eval")


def swe_serve() -> int:
    """Run `swe-serve`; returns its exit code."""
    return _run("swe-serve", "swe_trainers.cli.serve", "main")


def _run(program: str, module: str, function: str) -> int:
    try:
        code: int = getattr(import_module(module), function)()
        return code
    except KeyboardInterrupt:  # before the command handles it
        print(f"{program}: interrupted", file=sys.stderr)
        return 130
