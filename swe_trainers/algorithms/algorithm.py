"""The base of every algorithm: hyperparameters with their ranges, a new learner, and one update."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from swe_trainers.algorithms import algorithms_with
from swe_trainers.config import Configuration
from swe_trainers.errors import ConfigurationError
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.forward import HostedPolicy, Policy
from swe_trainers.learning.learner import Decay, Learner, Moments, adamw, scheduled, set_learning_rate
from swe_trainers.learning.losses import AdaptiveKL
from swe_trainers.learning.update import take_step
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.rollout.settings import Branching
from swe_trainers.rollout.trajectory import Trajectory

__all__ = [
    "ABOVE_ONE",
    "AT_LEAST_ONE",
    "AT_LEAST_TWO",
    "BETWEEN",
    "FRACTION",
    "NOT_NEGATIVE",
    "NOT_POSITIVE",
    "POSITIVE",
    "Algorithm",
    "Range",
    "RolloutPlan",
    "Supervised",
    "ranged",
    "ranges",
]

T = TypeVar("T")


@dataclass(frozen=True)
class Range:
    """The values that a hyperparameter may have.

    Attributes:
        contains: whether a value is allowed.
        expected: the range in words, for errors.
    """

    contains: Callable[[Any], bool]
    expected: str


AT_LEAST_ONE = Range(lambda value: value >= 1, "at least 1")
AT_LEAST_TWO = Range(lambda value: value >= 2, "at least 2")
POSITIVE = Range(lambda value: value > 0, "a positive number")
NOT_NEGATIVE = Range(lambda value: value >= 0, "0 or more")
NOT_POSITIVE = Range(lambda value: value <= 0, "0 or less")
FRACTION = Range(lambda value: 0 <= value <= 1, "a number from 0 to 1")
BETWEEN = Range(lambda value: 0 < value < 1, "a number between 0 and 1")
ABOVE_ONE = Range(lambda value: value > 1, "a number above 1")


def ranged(default: T, allowed: Range) -> T:
    """A dataclass field with a default and a range; subclasses that change the default keep the range."""
    made: T = field(default=default, metadata={"range": allowed})
    return made


@cache
def ranges(kind: type[Any]) -> dict[str, Range]:
    """The range of each hyperparameter of an algorithm's class that has one."""
    found: dict[str, Range] = {}
    for ancestor in reversed(kind.__mro__):
        own = getattr(ancestor, "__dataclass_fields__", {}).values()
        found |= {f.name: f.metadata["range"] for f in own if "range" in f.metadata}
    return found


@dataclass(frozen=True)
class RolloutPlan:
    """The episodes that one update is trained on.

    Attributes:
        episodes: number of episodes; of leaves, if episodes are trees.
        temperature: temperature of sampling, and of all probabilities in the update.
        episodes_per_start: number of episodes that begin in the same state; they are a group.
        branching: where episodes fork; None: they do not.
        updates: number of updates of the run.
    """

    episodes: int
    temperature: float = 1.0
    episodes_per_start: int = 1
    branching: Branching | None = None
    updates: int = 1


@dataclass(frozen=True)
class Algorithm(Configuration, ABC):
    """An algorithm with its hyperparameters. The same hyperparameter has the same name in all algorithms.

    A subclass implements `update`. An algorithm is frozen: everything that changes in training is in a `Learner`, the
    first argument of its methods.

    Attributes:
        learning_rate: learning rate of AdamW, after the warm-up.
        warmup_updates: updates over which the learning rate rises linearly.
        decay: learning-rate schedule after the warm-up: `constant`, or `linear` or `cosine` to 0 at the last update.
        weight_decay: weight decay of matrices; gains and biases have none.
        adam_epsilon: epsilon of AdamW; gradients much smaller than it make small steps.
        moments: precision of AdamW's moments, `float32` or `8bit`: 2 bytes per trained parameter instead of 8.
        epochs: passes over the same data.
        microbatch_tokens: tokens of one forward pass, padding included; it changes the memory, not the result.
        pack: concatenate episodes into one row instead of padding each.
        share_prefixes: compute a common prefix of episodes (of a group, of branches of a tree, of turns with a
            shortened history) only once; it changes time and memory, not the result.
        max_grad_norm: gradients are clipped to this norm.
    """

    learning_rate: float = ranged(1e-5, POSITIVE)
    warmup_updates: int = ranged(0, NOT_NEGATIVE)
    decay: Decay = "constant"
    weight_decay: float = ranged(0.0, NOT_NEGATIVE)
    adam_epsilon: float = ranged(1e-8, POSITIVE)
    moments: Moments = "float32"
    epochs: int = ranged(1, AT_LEAST_ONE)
    microbatch_tokens: int = ranged(8192, AT_LEAST_ONE)
    pack: bool = False
    share_prefixes: bool = True
    max_grad_norm: float = ranged(1.0, POSITIVE)

    @classmethod
    def _unknown(cls, name: str, known: Sequence[str]) -> str:
        others = ", ".join(kind.__name__ for kind in algorithms_with(name).values())
        if others:
            return f"{name}: has no effect on {cls.__name__}, it belongs to {others}"
        return super()._unknown(name, known)

    def __post_init__(self) -> None:
        for name, allowed in ranges(type(self)).items():
            value = getattr(self, name)
            if value is not None and not allowed.contains(value):
                raise ConfigurationError(f"{name}: got {value!r}, expected {allowed.expected}")

    @property
    def rollout_plan(self) -> RolloutPlan | None:
        """The episodes to play for each update; None for an algorithm that trains on recorded episodes."""
        return None

    @property
    def needs_reference(self) -> bool:
        """Whether a frozen copy of the policy at the start is needed."""
        return False

    @property
    def needs_critic(self) -> bool:
        """Whether a separate critic is needed."""
        return False

    @property
    def corrects_staleness(self) -> bool:
        """Whether importance weights correct tokens that an older policy sampled."""
        return False

    @property
    def may_stop_early(self) -> bool:
        """Whether an update may drop a minibatch after its backward pass."""
        return False

    @abstractmethod
    def update(self, learner: Learner, episodes: Sequence[Trajectory] | Batch) -> dict[str, float]:
        """Train on some episodes.

        Args:
            learner: changed in place; the caller counts its updates.
            episodes: episodes of the current policy, or recorded ones.
        Returns:
            Metrics by name.
        Raises:
            TrainerError: none of the episodes can be trained on, or the gradient is not finite.
        """

    @abstractmethod
    def total_updates(self, episodes: Batch | None = None) -> int:
        """The number of updates of a run; `episodes` are the recorded ones, if the algorithm trains on such."""

    def wants_more(self, episodes: Sequence[Trajectory], rounds: int) -> bool:
        """Whether another round of episodes is needed before the update.

        Args:
            episodes: the episodes played for the update so far.
            rounds: the number of rounds in which they were played.
        """
        del episodes, rounds
        return False

    def start(self, model: LanguageModel | HostedPolicy, *, seed: int = 0) -> Learner:
        """A new learner, with the copies of the model that the algorithm needs."""
        if isinstance(model, HostedPolicy):
            hosted: Learner = model.learner(self, seed=seed)
            return hosted
        reference = model.reference_copy() if self.needs_reference else None
        critic = model.copy() if self.needs_critic else None
        return self.learner(model, seed=seed, reference=reference, critic=critic)

    def learner(
        self, model: Policy, *, seed: int = 0, reference: Policy | None = None, critic: Policy | None = None
    ) -> Learner:
        """A new learner, of models made by the caller.

        Args:
            model: the policy, or the reward model to train.
            seed: seed of the shuffling.
            reference: a frozen copy of the policy; required if `needs_reference`, else None.
            critic: a model that estimates values; required if `needs_critic`, else None.
        Raises:
            ConfigurationError: a copy is missing, or would have no effect.
        """
        if (reference is None) == self.needs_reference:
            raise ConfigurationError("reference: needed exactly where kl_coefficient is not 0. Try: start(model)")
        if (critic is None) == self.needs_critic:
            raise ConfigurationError("critic: a separate model is needed exactly where critic is separate")
        return Learner(
            model=model,
            optimizer=self.optimizer(model, critic),
            generator=torch.Generator().manual_seed(seed),
            reference=reference,
            critic=critic,
            kl=self.kl_control(),
        )

    def optimizer(self, model: Policy, critic: Policy | None) -> torch.optim.Optimizer:
        """The optimizer of the model's parameters, and of the critic's."""
        return adamw(
            model,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            epsilon=self.adam_epsilon,
            moments=self.moments,
            critic=critic,
        )

    def kl_control(self) -> AdaptiveKL:
        """The initial coefficient of the KL to the reference."""
        return AdaptiveKL(0.0)

    def schedule(self, learner: Learner, total: int) -> float:
        """Set the learning rate of this update, and return it.

        Args:
            learner: its number of updates is the position in the schedule.
            total: number of updates of the run.
        """
        rate = scheduled(
            learner.updates, peak=self.learning_rate, warmup=self.warmup_updates, decay=self.decay, total=total
        )
        set_learning_rate(learner.optimizer, rate)
        return rate


@dataclass(frozen=True)
class Supervised(Algorithm):
    """The base of algorithms that train on recorded episodes: shuffled epochs, one optimizer step per update.

    The order of an epoch depends on the learner's seed and the number of the epoch alone, so that a run that is resumed
    in the middle of an epoch continues with the episodes that it has not seen.

    Attributes:
        minibatch_episodes: episodes of an optimizer step.
    """

    decay: Decay = "cosine"
    minibatch_episodes: int = ranged(32, AT_LEAST_ONE)

    @abstractmethod
    def examples(self, batch: Batch) -> Tensor:
        """The examples of an epoch: indices of trajectories (E,) or pairs of them (E, 2), int64.

        Raises:
            ConfigurationError: there is nothing to train on.
        """

    @abstractmethod
    def accumulate(self, learner: Learner, batch: Batch, examples: Tensor) -> dict[str, float]:
        """Compute the gradients of the loss of some examples; metrics by name, `loss` among them."""

    def update(self, learner: Learner, episodes: Sequence[Trajectory] | Batch) -> dict[str, float]:
        """One optimizer step on the next minibatch of the epoch; see `Algorithm.update`.

        Args:
            learner: its number of updates is the position in the epochs.
            episodes: all recorded episodes, the same in every update.
        """
        batch = Batch.of(episodes)
        examples = self.examples(batch)
        per_epoch = self._updates_per_epoch(examples)
        epoch, number = divmod(learner.updates, per_epoch)
        shuffle = torch.Generator().manual_seed(learner.generator.initial_seed() + epoch)
        chosen = examples[torch.randperm(len(examples), generator=shuffle)].tensor_split(per_epoch)[number]
        learning_rate = self.schedule(learner, self.epochs * per_epoch)
        metrics = self.accumulate(learner, batch, chosen)
        metrics["grad_norm"] = take_step(learner.model, learner.optimizer, self.max_grad_norm)
        learner.episodes += chosen.numel()
        return metrics | {
            "learning_rate": learning_rate,
            "epoch": float(epoch),
            "episodes": float(chosen.numel()),
            "tokens": float(batch.lengths[chosen.flatten()].sum()),
        }

    def total_updates(self, episodes: Batch | None = None) -> int:
        """How many updates all epochs over these episodes take."""
        return 0 if episodes is None else self.epochs * self._updates_per_epoch(self.examples(episodes))

    def _updates_per_epoch(self, examples: Tensor) -> int:
        return math.ceil(len(examples) / max(1, self.minibatch_episodes // (2 if examples.ndim == 2 else 1)))
