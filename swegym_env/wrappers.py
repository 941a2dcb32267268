"""Wrappers around an environment, one duty each: rewards that add up, limits that end an episode, the recorder.

One line for each; `X as X` exports it. Wrappers of installed packages (entry points "swegym_env.rewards") are exported
under the names of their entry points.
"""

from swegym_env import registry as _registry
from swegym_env.limits import TokenLimit as TokenLimit
from swegym_env.limits import TurnLimit as TurnLimit
from swegym_env.limits import WallTimeLimit as WallTimeLimit
from swegym_env.recording.recorder import RecordTrajectory as RecordTrajectory
from swegym_env.rewards.format import FormatReward as FormatReward
from swegym_env.rewards.judge import JudgeError as JudgeError
from swegym_env.rewards.judge import JudgeReward as JudgeReward
from swegym_env.rewards.part import RewardPart as RewardPart
from swegym_env.rewards.part import Turn as Turn
from swegym_env.rewards.penalties import PatchSizePenalty as PatchSizePenalty
from swegym_env.rewards.penalties import StepPenalty as StepPenalty
from swegym_env.rewards.progress import TestProgressReward as TestProgressReward
from swegym_env.rewards.resolved import ResolvedReward as ResolvedReward
from swegym_env.rewards.scoring import ScoringFunction as ScoringFunction
from swegym_env.rewards.shaped import ShapedReward as ShapedReward
from swegym_env.rewards.similarity import PatchSimilarityReward as PatchSimilarityReward


def __getattr__(name: str) -> object:
    installed = _registry.with_installed("swegym_env.rewards", {})
    if name not in installed:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _registry.resolve(installed[name], "reward")
