"""The findings of a `make-tasks` run on disk, from which an interrupted run continues."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swegym_env.errors import ConfigurationError
from swegym_env.files import append_json_line, read_json_lines
from swegym_env.making.issues import Rewriter
from swegym_env.making.validation import Finding

__all__ = ["Journal"]

_VERSION = 3  # of the files; a run with another version cannot be continued


class Journal:
    """The findings of a run, in `DIRECTORY/.making`; only a run of the same project and settings can continue it.

    Attributes:
        place: the directory.
        findings: candidate's key → finding.
    """

    def __init__(self, directory: Path, run: Mapping[str, Any]) -> None:
        """Open the journal of the run that `run` describes completely, or start one.

        Raises:
            ConfigurationError: the directory holds something else.
        """
        digest = hashlib.sha256(json.dumps({**run, "version": _VERSION}, sort_keys=True).encode()).hexdigest()
        self.place = directory / ".making"
        if directory.exists() and not self.place.exists() and any(directory.iterdir()):
            raise ConfigurationError(
                f"--output {directory}: expected a new or empty directory, or that of an earlier run"
            )
        self.place.mkdir(parents=True, exist_ok=True)
        note = self.place / "run"
        if note.exists() and note.read_text() != digest:
            if any(path != note for path in self.place.iterdir()):
                raise ConfigurationError(
                    f"--output {directory}: holds tasks of another project, seed or set of options; only --count, -j "
                    "and --rewrite-url may change. Try: another directory"
                )
            shutil.rmtree(directory / "repository.git", ignore_errors=True)  # that run could not install the project
            note.unlink()
        if not note.exists():
            note.write_text(digest)
        self.findings: dict[str, Finding] = {}
        for data in read_json_lines(self.place / "findings.jsonl"):
            finding = Finding.from_json(data)
            self.findings[finding.key] = finding
        self._issues = {data["key"]: data["issue"] for data in read_json_lines(self.place / "issues.jsonl")}

    def add(self, finding: Finding) -> None:
        """Record a finding, also on disk. Thread-safe."""
        self.findings[finding.key] = finding
        append_json_line(self.place / "findings.jsonl", finding.to_json())

    def rewritten(self, rewriter: Rewriter, issue: str, seed: int) -> str:
        """The issue in the rewriter's words, requested once."""
        key = hashlib.sha256(f"{rewriter.url}\0{rewriter.model}\0{seed}\0{issue}".encode()).hexdigest()
        if key not in self._issues:
            self._issues[key] = rewriter.rewrite(issue, seed=seed)
            append_json_line(self.place / "issues.jsonl", {"key": key, "issue": self._issues[key]})
        return str(self._issues[key])
