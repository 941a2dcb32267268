"""A learned reward: the value head scores episodes, or each of their turns, and PPO may take the scores for rewards.

pairwise    of two episodes from the same start the one that earned more gets the higher score
regression  the score after an episode's last action is what it earned
process     the score after every turn is what the whole episode will have earned: a turn's own worth is by how much
            it raised the score
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from swe_trainers.algorithms.settings import Settings
from swe_trainers.errors import ConfigurationError
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.forward import Policy
from swe_trainers.learning.learner import Learner
from swe_trainers.learning.losses import clipped_value_loss, pairwise_loss
from swe_trainers.learning.optimizer import Decay, adamw, learning_rate_at, set_learning_rate
from swe_trainers.learning.rewards import Judge
from swe_trainers.learning.scores import accumulate_scores, take_scores
from swe_trainers.learning.update import take_step
from swe_trainers.policy.language_model import LanguageModel
from swe_trainers.rollout.trajectory import Trajectory

__all__ = [
    "RewardModel",
    "load_judge",
    "preference_pairs",
    "reward_model_accuracy",
    "reward_model_judge",
    "reward_model_learner",
    "reward_model_step",
    "reward_model_updates",
]


@dataclass(frozen=True)
class RewardModel(Settings):
    """A model of rewards, learnt from recorded episodes, that scores the ones of another run.

    Attributes:
        algorithm: its name.
        kind: `pairwise`, `regression` or `process`.
        minibatch_episodes: episodes an optimiser step; two of them make a pair.
        center: of the sum of a pair's scores squared, which keeps them around 0; only `pairwise`.
    """

    algorithm: Literal["reward_model"] = "reward_model"
    learning_rate: float = 1e-4
    decay: Decay = "cosine"
    kind: Literal["pairwise", "regression", "process"] = "pairwise"
    minibatch_episodes: int = 32
    center: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "pairwise" and self.minibatch_episodes % 2:
            raise ConfigurationError(
                f"minibatch_episodes: got {self.minibatch_episodes}, expected pairs: an even number"
            )
        if self.kind != "pairwise" and self.center:
            raise ConfigurationError(f"center: has no effect on {self.kind}, whose scores are not free")


def reward_model_learner(model: Policy, settings: RewardModel, *, seed: int) -> Learner:
    """A learner at its start; `seed` is that of the shuffling."""
    optimizer = adamw(
        model,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        epsilon=settings.adam_epsilon,
    )
    return Learner(model=model, optimizer=optimizer, generator=torch.Generator().manual_seed(seed))


def reward_model_updates(batch: Batch, settings: RewardModel) -> int:
    """How many updates all epochs over these episodes take.

    Raises:
        ConfigurationError: no two episodes from the same start differ in what they earned, and pairs are asked for.
    """
    return settings.epochs * math.ceil(len(_examples(batch, settings)) / _examples_an_update(settings))


def preference_pairs(batch: Batch) -> Tensor:
    """All pairs of episodes of one group of which the first earned more, (P, 2) int64."""
    returns, pairs = batch.total(batch.rewards), []
    for number in torch.unique(batch.group):
        members = (batch.group == number).nonzero().squeeze(1)
        better = returns[members][:, None] > returns[members][None, :]
        first, second = better.nonzero(as_tuple=True)
        pairs.append(torch.stack([members[first], members[second]], 1))
    return torch.cat(pairs) if pairs else torch.zeros(0, 2, dtype=torch.int64)


def reward_model_step(learner: Learner, batch: Batch, settings: RewardModel) -> dict[str, float]:
    """One optimiser step on the next episodes of the epoch; what `train` repeats.

    The order of an epoch is a function of the learner's seed and the epoch alone; see `cloning_step`.

    Args:
        learner: changed in place; its number of updates says where in the epochs it stands.
        batch: all episodes.
        settings: of the reward model.
    Returns:
        `loss`, `grad_norm`, `learning_rate`, `epoch`, `episodes`.
    """
    examples = _examples(batch, settings)
    an_epoch = math.ceil(len(examples) / _examples_an_update(settings))
    epoch, number = divmod(learner.updates, an_epoch)
    shuffling = torch.Generator().manual_seed(learner.generator.initial_seed() + epoch)
    chosen = examples[torch.randperm(len(examples), generator=shuffling)].tensor_split(an_epoch)[number]
    learning_rate = learning_rate_at(
        learner.updates,
        peak=settings.learning_rate,
        warmup=settings.warmup_updates,
        decay=settings.decay,
        total=settings.epochs * an_epoch,
    )
    set_learning_rate(learner.optimizer, learning_rate)
    loss = accumulate_scores(
        learner.model,
        learner.optimizer,
        batch,
        torch.unique(chosen),
        _marked(batch, settings.kind),
        lambda scores: _loss(scores, batch, chosen, settings),
        microbatch_tokens=settings.microbatch_tokens,
        pack=settings.pack,
    )
    grad_norm = take_step(learner.model, learner.optimizer, settings.max_grad_norm)
    episodes = chosen.numel()
    learner.episodes += episodes
    return {
        "loss": loss,
        "grad_norm": grad_norm,
        "learning_rate": learning_rate,
        "epoch": float(epoch),
        "episodes": float(episodes),
    }


def reward_model_accuracy(model: Policy, batch: Batch, *, microbatch_tokens: int = 8192) -> float:
    """The share of pairs that the scores after the last action put in their order; NaN where there are no pairs."""
    pairs = preference_pairs(batch)
    marked = _marked(batch, "pairwise")
    scores = take_scores(model, batch, marked, microbatch_tokens=microbatch_tokens, pack=False)[batch.last_actions]
    return float((scores[pairs[:, 0]] > scores[pairs[:, 1]]).float().mean())


def reward_model_judge(model: Policy, *, per_turn: bool, microbatch_tokens: int = 8192) -> Judge:
    """A trained reward model as a judge of episodes whose tokens are its own tokenizer's.

    Args:
        model: trained by `reward_model_step`.
        per_turn: each turn is worth by how much it raised the score, from 0 before the first: of a `process` model.
            Else the last turn is worth the whole score.
        microbatch_tokens: entries of one forward pass, padding counted.
    """

    def judge(trajectories: Sequence[Trajectory]) -> list[list[float]]:
        batch = Batch.of(trajectories)
        scores = take_scores(model, batch, batch.turn_ends, microbatch_tokens=microbatch_tokens, pack=False)
        worth = []
        for s in range(batch.n_sequences):
            here = slice(int(batch.offsets[s]), int(batch.offsets[s + 1]))
            own = scores[here][batch.turn_ends[here]].tolist()
            rises = [after - before for before, after in zip([0.0, *own], own)]  # noqa: B905 - one before each
            worth.append(rises if per_turn else [0.0] * (len(own) - 1) + own[-1:])
        return worth

    return judge


def load_judge(folder: Path, policy: LanguageModel, *, per_turn: bool) -> Judge:
    """A reward model from a folder, as a judge of a policy's episodes; see `reward_model_judge`.

    Raises:
        ConfigurationError: there is no such model, or it was trained on another vocabulary.
    """
    model = LanguageModel.from_pretrained(folder).to(policy.device).requires_grad_(False)
    known, spoken = model.tokenizer.vocab_size, policy.tokenizer.vocab_size
    if known != spoken:
        raise ConfigurationError(f"{folder}: a reward model of {known} tokens cannot read a policy's of {spoken}")
    return reward_model_judge(model, per_turn=per_turn)


def _marked(batch: Batch, kind: str) -> Tensor:
    """(N,) bool, the tokens after which a score is asked for."""
    if kind == "process":
        return batch.turn_ends
    return torch.zeros_like(batch.action_mask).index_fill(0, batch.last_actions, True)


def _examples(batch: Batch, settings: RewardModel) -> Tensor:
    """Pairs (P, 2) or episodes (S,), int64."""
    examples = preference_pairs(batch) if settings.kind == "pairwise" else torch.arange(batch.n_sequences)
    if not len(examples):
        raise ConfigurationError(
            "demonstrations: no two episodes of one group differ in their return, so there is nothing to prefer. "
            "Try: kind regression, or episodes sampled in groups"
        )
    return examples


def _examples_an_update(settings: RewardModel) -> int:
    return settings.minibatch_episodes // 2 if settings.kind == "pairwise" else settings.minibatch_episodes


def _loss(scores: Tensor, batch: Batch, chosen: Tensor, settings: RewardModel) -> Tensor:
    """Of some pairs or episodes; each counts alike."""
    if settings.kind == "pairwise":
        first, second = scores[batch.last_actions[chosen]].unbind(1)
        return pairwise_loss(first, second, center=settings.center).mean()
    marked = _marked(batch, settings.kind) & torch.isin(batch.sequence_of_token, chosen)
    earned = batch.total(batch.rewards)[batch.sequence_of_token]  # (N,)
    error = clipped_value_loss(scores[marked], scores[marked].detach(), earned[marked], clip=None)
    turns = torch.zeros(batch.n_sequences).index_add(0, batch.sequence_of_token, marked.float())
    return (error / turns[batch.sequence_of_token[marked]]).sum() / len(chosen)
