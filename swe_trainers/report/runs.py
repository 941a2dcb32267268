"""The record of a run, as its folder holds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from swe_trainers.errors import ConfigurationError
from swe_trainers.logging import read_metrics
from swe_trainers.report.examples import read_examples

__all__ = ["RunRecord", "differences", "read_run"]

_OWN = ("seed", "output_dir")
"""What runs that are shown together may differ in."""


@dataclass(frozen=True)
class RunRecord:
    """A run.

    Attributes:
        name: of its folder.
        config: as it was resolved; empty where it was not written.
        rows: of `metrics.jsonl`.
        examples: of `examples.jsonl`.
    """

    name: str
    config: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    examples: Sequence[Mapping[str, Any]]

    def stages(self) -> list[str]:
        """The stages that were recorded, in order."""
        return list(dict.fromkeys(str(row.get("stage", "")) for row in self.rows))

    def of(self, stage: str) -> list[Mapping[str, Any]]:
        """The rows of a stage."""
        return [row for row in self.rows if str(row.get("stage", "")) == stage]

    def setting(self, dotted: str) -> Any:
        """A value of the configuration; None where there is none."""
        found: Any = self.config
        for key in dotted.split("."):
            found = found.get(key) if isinstance(found, Mapping) else None
        return found


def read_run(directory: str | Path) -> RunRecord:
    """Read what a run wrote.

    Raises:
        ConfigurationError: nothing was recorded there, or it cannot be read.
    """
    directory = Path(directory)
    metrics = directory / "metrics.jsonl"
    if not metrics.is_file():
        raise ConfigurationError(f"{directory}: no metrics.jsonl there. Try: the output_dir of a swe-train run")
    try:
        rows = [row for row in read_metrics(metrics) if isinstance(row.get("update"), int)]
        config = yaml.safe_load((directory / "config.yaml").read_text()) if (directory / "config.yaml").exists() else {}
        examples = read_examples(directory / "examples.jsonl")
    except (OSError, ValueError, AttributeError, yaml.YAMLError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigurationError(f"{directory}: the run cannot be read: {reason}") from error
    if not rows:
        raise ConfigurationError(f"{metrics}: no update is recorded yet")
    return RunRecord(directory.resolve().name, config if isinstance(config, dict) else {}, rows, examples)


def differences(runs: Sequence[RunRecord]) -> list[str]:
    """The settings, by dotted name, in which runs differ beyond their seed and place."""
    flat = [dict(_flat(run.config)) for run in runs]
    names = dict.fromkeys(name for settings in flat for name in settings)
    return [
        name
        for name in names
        if name.partition(".")[0] not in _OWN and len({repr(settings.get(name)) for settings in flat}) > 1
    ]


def _flat(values: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", value
