"""`TestProgressReward`: how each step changes the results of the hidden tests."""

from __future__ import annotations

from typing import Any

import gymnasium

from swegym_env.errors import ConfigurationError
from swegym_env.rewards.part import RewardPart, Turn, check_not_negative

__all__ = ["TestProgressReward"]

_Counts = tuple[tuple[int, int], tuple[int, int]]  # FAIL_TO_PASS and PASS_TO_PASS, passed of all


class TestProgressReward(RewardPart):
    """The change of the work's progress from step to step: potential-based shaping (Ng, Harada and Russell 1999).

    Progress is the fraction of FAIL_TO_PASS that passes, minus `regression_cost` times the fraction of PASS_TO_PASS
    that fails. A step earns `weight` times the difference to the step before, so the parts of an episode sum to
    `weight` times its final progress, and undoing and redoing work earns nothing.

    Each patch is graded once per episode, in its own sandbox; a step that changes no file costs nothing. The counts are
    in `info["tests"]`. They are for the trainer: the agent does not see them.

    Args:
        env: has `verdict()`, like `SWEBenchEnv`.
        weight: of the part.
        regression_cost: cost of a fraction of broken tests relative to the gain for an equal fraction of repaired ones.

    Raises:
        ConfigurationError: a number is negative or not finite, or the environment has no `verdict()`.
    """

    __test__ = False  # pytest would collect it because of its name

    def __init__(self, env: gymnasium.Env[str, str], *, weight: float = 1.0, regression_cost: float = 1.0) -> None:
        if not env.has_wrapper_attr("verdict"):
            raise ConfigurationError(f"TestProgressReward: {env} has no verdict() that grades the work so far")
        self._weight, self._regression_cost = check_not_negative(weight=weight, regression_cost=regression_cost)
        super().__init__(env, name="test_progress")
        self._graded: dict[str, _Counts] = {}  # patch → counts, of this episode
        self._start: dict[str, _Counts] = {}  # instance → counts of the untouched repository
        self._progress = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Reset the environment. The untouched repository of an instance is graded the first time it is used."""
        observation, info = super().reset(seed=seed, options=options)
        instance = info["instance_id"]
        if instance not in self._start:
            self._start[instance] = self._grade()
        self._graded = {"": self._start[instance]}
        self._progress = self._progress_of(self._start[instance], info)
        return observation, info

    def part(self, turn: Turn) -> float:
        """`weight` times the gain of this step."""
        patch = turn.info["patch"]
        if turn.info.get("fail_to_pass") is not None:  # the environment has graded it: the episode is over
            self._graded[patch] = turn.info["fail_to_pass"], turn.info["pass_to_pass"]
        elif patch not in self._graded:
            self._graded[patch] = self._grade()
        before, self._progress = self._progress, self._progress_of(self._graded[patch], turn.info)
        return self._weight * (self._progress - before)

    def _grade(self) -> _Counts:
        verdict = self.env.get_wrapper_attr("verdict")()
        return verdict.fail_to_pass, verdict.pass_to_pass

    def _progress_of(self, counts: _Counts, info: dict[str, Any]) -> float:
        """The progress that these counts mean; they are also written to `info["tests"]`."""
        info["tests"] = {"fail_to_pass": counts[0], "pass_to_pass": counts[1]}
        (repaired, to_repair), (kept, to_keep) = counts
        broken = (to_keep - kept) / to_keep if to_keep else 0.0
        return (repaired / to_repair if to_repair else 0.0) - self._regression_cost * broken
