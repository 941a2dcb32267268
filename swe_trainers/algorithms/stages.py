"""From an algorithm's settings to what `train` repeats: the one place that knows them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from swe_trainers.algorithms.cloning import Cloning, cloning_batch, cloning_learner, cloning_step, cloning_updates
from swe_trainers.algorithms.grpo import DAPO, GRPO, GSPO, RLOO, DrGRPO, GroupRelative, grpo_step
from swe_trainers.algorithms.ppo import PPO, ppo_learner, ppo_step
from swe_trainers.algorithms.reinforce import REINFORCE, REINFORCEPlusPlus, reinforce_step
from swe_trainers.algorithms.reinforcement import Reinforcement, reinforcement_learner
from swe_trainers.algorithms.reward_model import (
    RewardModel,
    reward_model_learner,
    reward_model_step,
    reward_model_updates,
)
from swe_trainers.algorithms.settings import Settings
from swe_trainers.algorithms.tree import MonteCarloTree, tree_step
from swe_trainers.errors import ConfigurationError
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.forward import Policy
from swe_trainers.learning.learner import Learner
from swe_trainers.policy.language_model import LanguageModel
from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["ALGORITHMS", "OFFLINE", "Copies", "Play", "Stage", "make_stage"]

ALGORITHMS: dict[str, type[Settings]] = {
    "ppo": PPO,
    "grpo": GRPO,
    "dr_grpo": DrGRPO,
    "dapo": DAPO,
    "gspo": GSPO,
    "rloo": RLOO,
    "reinforce": REINFORCE,
    "reinforce_plus_plus": REINFORCEPlusPlus,
    "monte_carlo_tree": MonteCarloTree,
    "cloning": Cloning,
    "reward_model": RewardModel,
}
"""The settings of each algorithm, by the name that a configuration calls it by."""

OFFLINE = (Cloning, RewardModel)
"""Those that learn from recorded episodes and play none."""


class Play(Protocol):
    """Plays episodes of the policy as it is now."""

    def __call__(self, update: int, attempt: int = 0) -> Sequence[Trajectory]:
        """Episodes for the update of this number, and for this attempt at it, in groups where there are any."""
        ...


@dataclass(frozen=True)
class Copies:
    """Copies of a policy as it is at the start.

    Attributes:
        learning: one that learns.
        frozen: one that stays as it is.
    """

    learning: Callable[[], LanguageModel]
    frozen: Callable[[], Policy]


@dataclass(frozen=True)
class Stage:
    """An algorithm at work.

    Attributes:
        learner: at its start.
        step: one update.
        max_updates: updates in all.
    """

    learner: Learner
    step: Callable[[Learner], Mapping[str, float]]
    max_updates: int


def make_stage(
    settings: Settings,
    model: LanguageModel,
    *,
    seed: int,
    play: Play,
    recorded: Sequence[Trajectory] = (),
    copies: Copies | None = None,
) -> Stage:
    """An algorithm at its start, with the copies of the model that it needs.

    Args:
        settings: of one of `ALGORITHMS`.
        model: the policy, or the reward model to be.
        seed: of the shuffling.
        play: where episodes come from.
        copies: makes the copies of the model, for one that cannot make them itself.
        recorded: episodes to learn from, for those that play none.
    Raises:
        ConfigurationError: the recorded episodes hold nothing to learn from.
    """
    if isinstance(settings, Cloning):
        return _cloning(settings, model, seed, recorded)
    if isinstance(settings, RewardModel):
        return _reward_model(settings, model, seed, recorded)
    assert isinstance(settings, Reinforcement)
    freeze: Callable[[], Policy] = model.reference_copy if copies is None else copies.frozen
    reference = freeze() if settings.kl_coefficient else None
    if isinstance(settings, PPO):
        ppo = settings
        copy = model.copy if copies is None else copies.learning
        critic = copy() if ppo.critic == "separate" else None
        learner = ppo_learner(model, ppo, seed=seed, reference=reference, critic=critic)
        return Stage(learner, lambda learner: ppo_step(learner, play, ppo), ppo.max_updates)
    learner = reinforcement_learner(model, settings, seed=seed, reference=reference)
    if isinstance(settings, GroupRelative):
        group = settings
        return Stage(learner, lambda learner: grpo_step(learner, play, group), group.max_updates)
    if isinstance(settings, MonteCarloTree):
        tree = settings
        return Stage(learner, lambda learner: tree_step(learner, play, tree), tree.max_updates)
    assert isinstance(settings, (REINFORCE, REINFORCEPlusPlus))
    plain = settings
    return Stage(learner, lambda learner: reinforce_step(learner, play, plain), plain.max_updates)


def _cloning(settings: Cloning, model: LanguageModel, seed: int, recorded: Sequence[Trajectory]) -> Stage:
    batch = cloning_batch(recorded, settings)
    learner = cloning_learner(model, settings, seed=seed)
    return Stage(learner, lambda learner: cloning_step(learner, batch, settings), cloning_updates(batch, settings))


def _reward_model(settings: RewardModel, model: LanguageModel, seed: int, recorded: Sequence[Trajectory]) -> Stage:
    batch = Batch.of(recorded)
    if not batch.n_sequences:
        raise ConfigurationError(f"demonstrations: none of {len(recorded)} are valid ones with an action")
    learner = reward_model_learner(model, settings, seed=seed)
    updates = reward_model_updates(batch, settings)
    return Stage(learner, lambda learner: reward_model_step(learner, batch, settings), updates)
