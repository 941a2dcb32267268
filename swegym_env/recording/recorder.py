"""`RecordTrajectory`: a wrapper that writes each episode to its own folder."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import gymnasium

from swegym_env.errors import ConfigurationError
from swegym_env.recording.record import Record, RecordedTurn, write_record

__all__ = ["RecordTrajectory"]


class RecordTrajectory(gymnasium.Wrapper[str, str, str, str]):
    """Writes each episode to `<directory>/<instance>__<time>/`: `traj.json`, `patch.diff` and `meta.json`.

    It records what passes through it, so make it the outermost wrapper. An episode is written atomically when it ends.
    One that is abandoned by `reset` or `close` is written up to its last turn, if it has any.

    Args:
        directory: created if it does not exist.
        notes: added to `meta.json`: the model, its sampling parameters, …; must be JSON values.

    Attributes:
        last_record: the folder of the last written episode; None before the first.

    Raises:
        ConfigurationError: the directory cannot be written.
    """

    def __init__(
        self, env: gymnasium.Env[str, str], directory: str | Path, *, notes: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(env)
        self._directory = Path(directory)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"{directory}: episodes cannot be recorded there: {error}") from error
        self._notes = dict(notes or {})
        self._begun: dict[str, Any] = {}
        self._meta: dict[str, Any] = {}
        self._turns: list[RecordedTurn] = []
        self.last_record: Path | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Reset the environment and begin a record."""
        self.finish()
        observation, info = self.env.reset(seed=seed, options=options)
        self._begun = {
            "instance_id": str(info.get("instance_id", "episode")),
            "prompt": observation,
            "system_prompt": info.get("system_prompt", ""),
            "tools": info.get("tools", []),
        }
        self._meta = {
            "recorded_at": datetime.now(timezone.utc).isoformat(),
            "environment": self._environment(),
            "task": self._attribute("task"),
            "seed": seed,
            "options": options,
            "notice": info.get("notice", ""),
            "notes": self._notes,
        }
        return observation, info

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """Step the environment, add a turn to the record, and write it if the episode ended."""
        began = time.perf_counter()
        observation, reward, terminated, truncated, info = self.env.step(action)
        rest = {key: value for key, value in info.items() if key not in ("patch", "timing", "request")}
        if info.get("continues"):  # earlier messages are in the turns before
            rest["messages"] = info["messages"][-info["new_messages"] :]
        self._turns.append(
            RecordedTurn(
                action,
                observation,
                float(reward),
                terminated,
                truncated,
                info.get("patch", ""),
                rest,
                time.perf_counter() - began,
            )
        )
        if terminated or truncated:
            self.finish()
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Write an unfinished record and close the environment, also if the record cannot be written."""
        try:
            self.finish()
        finally:
            super().close()

    def finish(self) -> None:
        """Write the record of an episode that the environment has not ended but its player has, if it has any turn."""
        turns, self._turns = self._turns, []
        if turns:
            self.last_record = write_record(self._directory, Record(**self._begun, turns=turns, meta=self._meta))

    def _environment(self) -> dict[str, Any]:
        kind = type(self.env.unwrapped)
        return {
            "kind": f"{kind.__module__}:{kind.__qualname__}",
            "id": self.env.spec.id if self.env.spec is not None else None,
            "arguments": self._attribute("arguments"),
        }

    def _attribute(self, name: str) -> Any:
        return self.env.get_wrapper_attr(name) if self.env.has_wrapper_attr(name) else None
