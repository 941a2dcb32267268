"""Wrappers around an environment, one duty each: rewards that add up, limits that end an episode, the recorder.

One line for each; `X as X` exports it.
"""

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
