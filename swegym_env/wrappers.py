"""All wrappers: rewards, which add up, limits, which end an episode, and the recorder.

Wrappers of installed packages (entry points "swegym_env.rewards") can be imported from here by the names of their entry
points.
"""

from swegym_env import registry as _registry
from swegym_env.arguments import nearest as _nearest
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
        public = [each for each in (*globals(), *installed) if not each.startswith("_")]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_nearest(name, public)}", name=name)
    return _registry.resolve(installed[name], "reward")
