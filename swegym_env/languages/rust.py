"""Rust: logs of `cargo test`. Projects are built by the row's own commands, or run in their image."""

from __future__ import annotations

import re
from types import MappingProxyType

from swegym_env.languages import Language, LogParser, RunnerReport
from swegym_env.languages.machine import MachineRecipe
from swegym_env.tasks.task import Task

__all__ = ["Rust"]

_RESULT = re.compile(r"^test\s+(\S+)\s+\.\.\.\s+(\w+)$")
_ANY_RESULT = re.compile(r"^test (.+?) \.\.\. (ok|FAILED|ignored)\b")


def parse_cargo(log: str) -> dict[str, str]:
    """The lines of `cargo test` with a name of one word (`parse_log_cargo`)."""
    found: dict[str, str] = {}
    for line in log.split("\n"):
        match = _RESULT.match(line.strip())
        if match and match[2] in ("ok", "FAILED"):
            found[match[1]] = "PASSED" if match[2] == "ok" else "FAILED"
    return found


def parse_cargo_test(log: str) -> dict[str, str]:
    """All lines of `cargo test`: doctests, whose names have blanks, and ignored tests too.

    A test that occurs in several programs has passed if it never failed.
    """
    found: dict[str, str] = {}
    for line in log.split("\n"):
        if match := _ANY_RESULT.match(line.strip()):
            name = match[1].removesuffix(" - should panic")
            status = {"ok": "PASSED", "FAILED": "FAILED"}.get(match[2], "SKIPPED")
            found[name] = "FAILED" if found.get(name) == "FAILED" else status
    return found


class Rust(Language):
    """See the module."""

    name = "rust"
    is_compiled = True
    unreached = "Rust and crates.io"
    suffixes = (".rs",)
    grammars = MappingProxyType({".rs": ("tree_sitter_rust:language",)})
    parsers = {"cargo-test": parse_cargo_test, "parse_log_cargo": parse_cargo}  # noqa: RUF012
    repository_parsers = dict.fromkeys(
        (
            *("astral-sh/ruff", "burntsushi/ripgrep", "nushell/nushell", "sharkdp/bat", "tokio-rs/axum"),
            *("tokio-rs/tokio", "uutils/coreutils"),
        ),
        "parse_log_cargo",
    )
    reporting_runners = re.compile(r"(?!)")  # matches nothing: if the code under test crashes, there is no report
    installing_lines = re.compile(r"cargo (fetch|install) ?|rustup |apt(-get)? ")
    protected_files = re.compile(
        r"^(tests?|.*_tests?)\.rs$|^(cargo\.(toml|lock)|build\.rs|rust-toolchain(\.toml)?|clippy\.toml|\.?nextest.*)$"
        r"|\.(o|a|so|rlib|rmeta|snap)$",
        re.IGNORECASE,
    )
    protected_directories = re.compile(r"\.cargo|target|snapshots|vendor")

    def find_recipe(self, task: Task) -> MachineRecipe | None:
        known = task.setup or task.files
        return MachineRecipe("Rust", {"cargo": "cargo"}, commands=task.setup) if known else None

    def parser_of_command(self, command: str) -> LogParser:
        return parse_cargo_test

    def runner_report(self, log: str, parser: LogParser) -> RunnerReport | None:
        return None
