"""A language: shell scripts, whose tests are scripts too. All other attributes of a `Language` have safe defaults."""

import re

from swegym_env.languages import Language, LogParser, RunnerReport
from swegym_env.tasks.task import Task


def parse(log: str) -> dict[str, str]:
    """Lines `ok NAME` and `not ok NAME` as test → status."""
    lines = re.findall(r"^(ok|not ok) (\S+)$", log, re.MULTILINE)
    return {name: "PASSED" if word == "ok" else "FAILED" for word, name in lines}


class Shell(Language):
    """Which tests passed, and which files no patch may change."""

    name = "shell"
    suffixes = (".sh",)
    parsers = {"acme": parse}  # noqa: RUF012
    reporting_runners = re.compile(r"$^")  # this runner prints no report at its end
    installing_lines = re.compile(r"$^")
    protected_files = re.compile(r"_test\.sh$|^run_tests\.sh$")
    protected_directories = re.compile(r"$^")

    def find_recipe(self, task: Task) -> None:
        """Nothing needs to be installed."""

    def parser_of_command(self, command: str) -> LogParser:
        """The only parser."""
        return parse

    def runner_report(self, log: str, parser: LogParser) -> RunnerReport | None:
        """None: see `reporting_runners`."""
        return None
