"""A run that is in the output directory already: it is resumed with the same settings, with changed ones, or replaced.

A run keeps the `config.yaml` that it was trained with. Other settings are refused, unless the user asks for one of:

another `output_dir`       a new run
`--resume-with-changes`    the run goes on with them; `changes.jsonl` has the update from which on they hold
`--restart`                what the run has written is moved to `replaced-N`, and a new run begins

In Python, `Trainer(…, output_dir=…, resume="changed" or "never")` asks for the latter two.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf

from swe_trainers.config import plain, read_config, to_yaml, write_config
from swe_trainers.errors import ConfigurationError
from swe_trainers.logging import Run, lock
from swe_trainers.run_config import RunConfig, run_config

__all__ = [
    "CHANGES",
    "Changes",
    "Former",
    "Resume",
    "Settings",
    "is_resumable",
    "last_saved",
    "set_aside",
]

Resume = Literal["same", "changed", "never"]
"""What becomes of a run in the output directory: `same` refuses changed settings, `changed` takes them over and records
where, `never` sets the run aside."""
Changes = Mapping[str, tuple[Any, Any]]
"""Setting, by dotted name → its value in the run, and its value now."""

CHANGES = "changes.jsonl"
_CONFIG = "config.yaml"
_WRITTEN = (
    "checkpoints", "model", "metrics.jsonl", "examples.jsonl", "batches", "evaluation", "serving", "tensorboard",
    "wandb", "report.html", "curves.png", CHANGES, _CONFIG,
)  # fmt: skip
"""What a run writes and a new one must not find. The checkpoints go first and the configuration last: whatever moment
the program dies in, what is left is a run that can be compared, or none."""
_NO_SETTINGS = ("output_dir",)
_ABSENT = "(absent)"


class Settings:
    """The settings of a run that is to begin, as its `config.yaml` will have them.

    Args:
        directory: of the run.
        text: YAML.
        complete: fills what a former configuration left out with the defaults, and raises ConfigurationError where it
            is of another version.
        ways: how the caller asks for the three ways on.
    """

    def __init__(
        self,
        directory: str | Path,
        text: str,
        complete: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
        ways: tuple[str, str, str] = ("--output_dir DIR", "--resume-with-changes", "--restart"),
    ) -> None:
        self.directory, self.text, self._complete, self._ways = Path(directory), text, complete, ways

    @classmethod
    def of(cls, config: RunConfig) -> Settings:
        """Those of `swe-train`."""
        return cls(config.output_dir, config.yaml(), lambda values: _parsed(run_config(values).yaml()))

    @classmethod
    def in_python(cls, directory: str | Path, sections: Mapping[str, Any]) -> Settings:
        """Those of a program; what YAML has no words for, such as functions, is compared by its name or type."""
        ways = ("output_dir=…", 'resume="changed"', 'resume="never"')
        return cls(directory, to_yaml(_named(plain(sections))), ways=ways)

    def changes(self) -> Changes:
        """Those in which a run in the directory differs; empty where there is none.

        Raises:
            ConfigurationError: its `config.yaml` cannot be read.
        """
        path = self.directory / _CONFIG
        if not path.is_file():
            return {}
        now, former = _flat(_parsed(self.text)), read_config(path)
        try:  # settings that are younger than the run have the defaults, which are what it was trained with
            before = _flat(self._complete(former))
            names = dict.fromkeys((*now, *before))
        except ConfigurationError:  # of another version, which had other settings
            before = _flat(former)
            names = dict.fromkeys(before)
        found = {name: (before.get(name, _ABSENT), now.get(name, _ABSENT)) for name in names}
        return {name: values for name, values in found.items() if values[0] != values[1] and name not in _NO_SETTINGS}

    def refuse_changes(self) -> None:
        """Raise ConfigurationError with the differences if a run in the directory has other settings."""
        changes = self.changes()
        if not changes or not is_resumable(self.directory):
            return
        few = list(changes.items())[:8]
        shown = [f"{name}: {_shown(before)} there, {_shown(now)} now" for name, (before, now) in few]
        more = f"; and {len(changes) - len(shown)} more" if len(changes) > len(shown) else ""
        another, changed, never = self._ways
        raise ConfigurationError(
            f"{self.directory}: has a run with other settings: {'; '.join(shown)}{more}. Try: another folder "
            f"({another}); {changed}, which goes on with them and records where; or {never}, which "
            "moves the run aside and begins anew"
        )

    def settle(self, resume: Resume) -> Changes:
        """Make room for a new run, or find in which settings the one that is there is to change.

        Raises:
            ConfigurationError: another process is writing it.
        """
        if not self.directory.is_dir():
            return {}
        lock(self.directory).close()
        changes = self.changes()
        if resume == "never" or (changes and not is_resumable(self.directory)):
            set_aside(self.directory)
            return {}
        return changes

    def write(self, run: Run) -> None:
        """Write `config.yaml` of a new run."""
        if not (run.directory / _CONFIG).exists():
            if is_resumable(run.directory):
                run.warning(f"{_CONFIG} is missing: whether the run had these settings is not known")
            write_config(self.text, run.directory / _CONFIG)


class Former:
    """The changed settings of a run that is resumed: written when the first update was made with them.

    A run that is finished, or dies before that, keeps its configuration.

    Args:
        settings: of the run from now on; None where there are none to keep.
        changes: against the former ones.

    Attributes:
        pending: changes that are not written yet.
    """

    def __init__(self, settings: Settings | None, changes: Changes) -> None:
        self._settings, self.pending = settings, changes

    def record(self, updates: int) -> None:
        """Append the changes to `changes.jsonl` and write the new `config.yaml`.

        Args:
            updates: that were made in all; the last one was the first with the changes.
        Raises:
            OSError, ConfigurationError: they cannot be written.
        """
        if self._settings is None or not self.pending:
            return
        row = {
            "update": updates - 1,
            "time": round(time.time(), 3),
            "changes": {name: {"from": before, "to": now} for name, (before, now) in self.pending.items()},
        }
        with (self._settings.directory / CHANGES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        write_config(self._settings.text, self._settings.directory / _CONFIG)
        self.pending = {}

    def close(self, run: Run) -> None:
        """Warn of changes without effect."""
        if self.pending:
            run.warning(f"the run was finished: {', '.join(self.pending)} changed nothing, nor {_CONFIG}")


def is_resumable(directory: Path) -> bool:
    """Whether a run in a directory has checkpoints, or a trained model; else it would begin anew anyway."""
    checkpoints = directory / "checkpoints"
    if (directory / "model").is_dir():
        return True
    return checkpoints.is_dir() and any(checkpoints.glob("*/[0-9]*"))


def last_saved(directory: Path) -> int | None:
    """The number of the update of a run's newest checkpoint; None if there is none."""
    found = (directory / "checkpoints").glob("*/[0-9]*")
    return max((int(path.name) for path in found if path.name.isdecimal()), default=None)


def set_aside(directory: Path) -> Path | None:
    """Move what a run has written to `replaced-N` in its directory; the folder, or None if there was nothing.

    `training.log` stays: it goes on. Raises ConfigurationError if it cannot be moved.
    """
    written = [directory / name for name in _WRITTEN if (directory / name).exists()]
    if not written:
        return None
    number = 1
    while (directory / f"replaced-{number}").exists():
        number += 1
    target = directory / f"replaced-{number}"
    try:
        target.mkdir()
        for path in written:
            path.rename(target / path.name)
    except OSError as error:
        raise ConfigurationError(f"{directory}: the run cannot be moved aside: {error.strerror or error}") from error
    return target


def _parsed(text: str) -> dict[str, Any]:
    values = OmegaConf.to_container(OmegaConf.create(text), resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _named(value: Any) -> Any:
    """Plain values as they are, everything else by its name, or that of its type."""
    if isinstance(value, Mapping):
        return {str(key): _named(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_named(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}:{named.__qualname__}"


def _flat(values: Any) -> dict[str, Any]:
    """Nested sections by dotted name; an empty section is a value."""

    def pairs(section: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for key, value in section.items():
            if isinstance(value, Mapping) and value:
                yield from pairs(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", value

    return dict(pairs(values, ""))


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) and value else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
