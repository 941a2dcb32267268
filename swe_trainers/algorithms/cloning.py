"""Behavioural cloning: the likelihood of demonstrated actions, and of nothing else, is raised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from swe_trainers.algorithms.settings import Settings
from swe_trainers.errors import ConfigurationError
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.forward import ActionTokens, Policy, take_snapshot
from swe_trainers.learning.learner import Learner
from swe_trainers.learning.optimizer import Decay, adamw, learning_rate_at, set_learning_rate
from swe_trainers.learning.update import TokenLoss, accumulate, take_step
from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["Cloning", "cloning_batch", "cloning_learner", "cloning_loss", "cloning_step", "cloning_updates"]


@dataclass(frozen=True)
class Cloning(Settings):
    """Cloning, or supervised fine-tuning: demonstrated actions are made more likely.

    Attributes:
        algorithm: its name.
        minibatch_episodes: demonstrations an optimiser step.
        minimum_return: episodes that earned less are no demonstrations; null takes all that are valid.
        aggregation: `token`, `sequence` or `prompt`: what counts alike in the loss.
    """

    algorithm: Literal["cloning"] = "cloning"
    learning_rate: float = 1e-3
    decay: Decay = "cosine"
    minibatch_episodes: int = 32
    minimum_return: float | None = None
    aggregation: Literal["token", "sequence", "prompt"] = "token"


def cloning_batch(trajectories: Sequence[Trajectory], settings: Cloning) -> Batch:
    """What there is to learn from: written demonstrations, recorded episodes, or the best of these.

    Raises:
        ConfigurationError: nothing is left.
    """
    least = settings.minimum_return
    batch = Batch.of([t for t in trajectories if least is None or t.rewards.sum() >= least])
    if not batch.n_sequences:
        wanted = "valid ones with an action" + ("" if least is None else f" that earned {least} or more")
        raise ConfigurationError(f"demonstrations: none of {len(trajectories)} are {wanted}")
    return batch


def cloning_learner(model: Policy, settings: Cloning, *, seed: int) -> Learner:
    """A learner at its start; `seed` is that of the shuffling."""
    optimizer = adamw(
        model,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        epsilon=settings.adam_epsilon,
    )
    return Learner(model=model, optimizer=optimizer, generator=torch.Generator().manual_seed(seed))


def cloning_updates(batch: Batch, settings: Cloning) -> int:
    """How many updates all epochs over these demonstrations take."""
    return settings.epochs * _updates_an_epoch(batch, settings)


def cloning_step(learner: Learner, batch: Batch, settings: Cloning) -> dict[str, float]:
    """One optimiser step on the next demonstrations of the epoch; what `train` repeats.

    The order of an epoch is a function of the learner's seed and the epoch alone: a run taken up again in its middle
    goes on with the demonstrations it had not seen.

    Args:
        learner: changed in place; its number of updates says where in the epochs it stands.
        batch: all demonstrations.
        settings: of cloning.
    Returns:
        `loss` in nats a token, `perplexity`, `entropy`, `grad_norm`, `learning_rate`, `epoch`, `episodes`.
    """
    epoch, number = divmod(learner.updates, _updates_an_epoch(batch, settings))
    order = torch.randperm(batch.n_sequences, generator=_generator(learner, epoch))
    chosen = order.tensor_split(_updates_an_epoch(batch, settings))[number]
    learning_rate = learning_rate_at(
        learner.updates,
        peak=settings.learning_rate,
        warmup=settings.warmup_updates,
        decay=settings.decay,
        total=cloning_updates(batch, settings),
    )
    set_learning_rate(learner.optimizer, learning_rate)
    metrics = accumulate(
        learner.model,
        learner.optimizer,
        batch,
        chosen,
        _negative_log_likelihood,
        microbatch_tokens=settings.microbatch_tokens,
        aggregation=settings.aggregation,
        pack=settings.pack,
    )
    metrics["grad_norm"] = take_step(learner.model, learner.optimizer, settings.max_grad_norm)
    learner.episodes += len(chosen)
    position = {"learning_rate": learning_rate, "epoch": float(epoch), "episodes": float(len(chosen))}
    return metrics | position | {"perplexity": math.exp(min(metrics["loss"], 700.0))}


def cloning_loss(model: Policy, batch: Batch, *, microbatch_tokens: int = 8192) -> float:
    """Nats a demonstrated action token, without learning: for held-out demonstrations."""
    seen = take_snapshot(model, batch, microbatch_tokens=microbatch_tokens)
    return -float(seen.logprobs[batch.action_mask].mean())


def _negative_log_likelihood(tokens: ActionTokens) -> TokenLoss:
    return TokenLoss(-tokens.logprobs, means={"entropy": tokens.entropy.detach()})


def _updates_an_epoch(batch: Batch, settings: Cloning) -> int:
    return math.ceil(batch.n_sequences / settings.minibatch_episodes)


def _generator(learner: Learner, epoch: int) -> torch.Generator:
    return torch.Generator().manual_seed(learner.generator.initial_seed() + epoch)
