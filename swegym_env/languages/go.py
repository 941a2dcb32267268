"""Go: logs of `go test`. Projects are built by the row's own commands, or run in their image."""

from __future__ import annotations

import json
import re
from types import MappingProxyType

from swegym_env.languages import Language, LogParser, RunnerReport
from swegym_env.languages.machine import MachineRecipe
from swegym_env.tasks.task import Task

__all__ = ["Go"]

_RESULT = re.compile(r"^--- (PASS|FAIL|SKIP): (.+) \(.+\)$")
_STATUSES = {"PASS": "PASSED", "FAIL": "FAILED", "SKIP": "SKIPPED"}


def parse_go_test(log: str) -> dict[str, str]:
    """The lines of `go test -v`, subtests by their whole names (`parse_log_gotest`)."""
    found: dict[str, str] = {}
    for line in log.split("\n"):
        text = line.strip()
        if text.endswith(")") and (match := _RESULT.match(text)):  # else it takes the square of the length
            found[match[2]] = _STATUSES[match[1]]
    return found


def parse_go_json(log: str) -> dict[str, str]:
    """The events of `go test -json` (https://pkg.go.dev/cmd/test2json), one JSON object a line, by package and test.

    A test that ran several times has passed if it never failed.
    """
    found: dict[str, str] = {}
    for line in log.split("\n"):
        if not line.startswith("{"):
            continue
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue  # what a program printed between the events
        test, status = event.get("Test"), _STATUSES.get(str(event.get("Action")).upper())
        if isinstance(test, str) and status:
            name = f"{event.get('Package', '')}/{test}".removeprefix("/")
            found[name] = "FAILED" if found.get(name) == "FAILED" else status
    return found


class Go(Language):
    """See the module."""

    name = "go"
    is_compiled = True
    unreached = "Go and the modules of proxy.golang.org"
    suffixes = (".go",)
    grammars = MappingProxyType({".go": ("tree_sitter_go:language",)})
    parsers = {"go-test": parse_go_test, "go-test-json": parse_go_json, "parse_log_gotest": parse_go_test}  # noqa: RUF012
    repository_parsers = dict.fromkeys(
        ("caddyserver/caddy", "gin-gonic/gin", "gohugoio/hugo", "hashicorp/terraform", "prometheus/prometheus"),
        "parse_log_gotest",
    )
    reporting_runners = re.compile(r"(?!)")  # matches nothing: if the code under test crashes, there is no report
    installing_lines = re.compile(r"go (mod (download|tidy|vendor)|get|install) ?|apt(-get)? ")
    protected_files = re.compile(r"_test\.go$|^(go\.(mod|sum|work|work\.sum)|\.golangci\..*)$|\.(s|o|a|so|syso)$")
    protected_directories = re.compile(r"vendor|testdata")

    def find_recipe(self, task: Task) -> MachineRecipe | None:
        known = task.setup or task.files
        return MachineRecipe("Go", {"go": "golang-go"}, commands=task.setup) if known else None

    def parser_of_command(self, command: str) -> LogParser:
        return parse_go_json if re.search(r"\s-json\b", command) else parse_go_test

    def runner_report(self, log: str, parser: LogParser) -> RunnerReport | None:
        return None
