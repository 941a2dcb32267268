"""Deterministic sandboxes, in which equal commands print equal output: hash seed, time zone, locale, dates, clock.

If the image has libfaketime (Debian: `apt-get install libfaketime`), the clock stands at 2024-01-01; monotonic clocks
run on, so timeouts work. Without it the date is the machine's. Process ids, times of files, the order of threads and
durations are not controlled. Grading is not affected.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from swegym_env.languages import all_languages
from swegym_env.sandbox.api import SandboxSpec

__all__ = ["with_determinism"]

_EPOCH_S = 1_704_067_200  # 2024-01-01 00:00:00 UTC
_SETTINGS = {
    "TZ": "UTC",
    "LC_ALL": "C.UTF-8",
    "LANG": "C.UTF-8",
    "SOURCE_DATE_EPOCH": str(_EPOCH_S),
    "GIT_AUTHOR_DATE": f"{_EPOCH_S} +0000",
    "GIT_COMMITTER_DATE": f"{_EPOCH_S} +0000",
}
_CLOCK = {
    "FAKETIME": "2024-01-01 00:00:00",
    "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    "FAKETIME_DISABLE_SHM": "1",
    "NO_FAKE_STAT": "1",
}
_LIBRARIES = ("usr/lib/*/faketime/libfaketime.so.1", "usr/lib64/faketime/libfaketime.so.1")


def with_determinism(spec: SandboxSpec) -> SandboxSpec:
    """`spec` with the variables that make its commands repeatable, those of every language; its own take precedence."""
    env = dict(_SETTINGS)
    for language in all_languages():
        env |= language.deterministic_env
    root = Path("/" if spec.image == "host" else spec.image)
    libraries = [path for pattern in _LIBRARIES for path in sorted(root.glob(pattern))] if root.is_dir() else []
    if libraries:
        env |= _CLOCK | {"LD_PRELOAD": f"/{libraries[0].relative_to(root)}"}
    return replace(spec, env={**env, **spec.env})
