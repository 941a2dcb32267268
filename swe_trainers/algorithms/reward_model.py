"""A learned reward: the value head scores episodes or turns, and another run can train on the scores as rewards.

pairwise    of two episodes from the same start, the one with the higher return gets the higher score
regression  the score after an episode's last action predicts its return
process     the score after every turn predicts the return of the whole episode: the reward of a turn is the increase of
            the score
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from swe_trainers.algorithms.algorithm import NOT_NEGATIVE, Supervised, ranged
from swe_trainers.errors import ConfigurationError
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.forward import Policy, take_scores
from swe_trainers.learning.learner import Learner
from swe_trainers.learning.losses import clipped_value_loss, pairwise_loss
from swe_trainers.learning.rewards import Judge
from swe_trainers.learning.update import accumulate_scores
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["RewardModel", "load_judge", "preference_pairs", "reward_model_accuracy", "reward_model_judge"]


@dataclass(frozen=True)
class RewardModel(Supervised):
    """A reward model, trained on recorded episodes, that scores the episodes of another run.

    Attributes:
        kind: `pairwise`, `regression` or `process`.
        minibatch_episodes: episodes of an optimizer step; a pair is two episodes.
        center: coefficient of the squared sum of the scores of a pair, which keeps scores near 0; only for `pairwise`.
    """

    learning_rate: float = 1e-4
    kind: Literal["pairwise", "regression", "process"] = "pairwise"
    center: float = ranged(0.0, NOT_NEGATIVE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "pairwise" and self.minibatch_episodes % 2:
            raise ConfigurationError(
                f"minibatch_episodes: got {self.minibatch_episodes}, expected pairs: an even number"
            )
        if self.kind != "pairwise" and self.center:
            raise ConfigurationError(f"center: has no effect with kind {self.kind}, whose scores have a fixed scale")

    def examples(self, batch: Batch) -> Tensor:
        """Pairs (E, 2) or episodes (E,), int64; see `Supervised.examples`."""
        if not batch.n_sequences:
            raise ConfigurationError(f"demonstrations: none of {len(batch.episodes)} are valid with an action")
        found = preference_pairs(batch) if self.kind == "pairwise" else torch.arange(batch.n_sequences)
        if not len(found):
            raise ConfigurationError(
                "demonstrations: no two episodes of one group differ in their return, so there is nothing to prefer. "
                "Try: kind regression, or episodes sampled in groups"
            )
        return found

    def accumulate(self, learner: Learner, batch: Batch, examples: Tensor) -> dict[str, float]:
        """Gradients of the loss of some pairs or episodes, each of the same weight."""
        marked = _scored_tokens(batch, self.kind)

        def loss(scores: Tensor) -> Tensor:
            if self.kind == "pairwise":
                first, second = scores[batch.last_actions[examples]].unbind(1)
                return pairwise_loss(first, second, center=self.center).mean()
            here = marked & torch.isin(batch.sequence_of_token, examples)
            returns = batch.total(batch.rewards)[batch.sequence_of_token]  # (N,)
            error = clipped_value_loss(scores[here], scores[here].detach(), returns[here], clip=None)
            turns = torch.zeros(batch.n_sequences).index_add(0, batch.sequence_of_token, here.float())
            return (error / turns[batch.sequence_of_token[here]]).sum() / len(examples)

        value = accumulate_scores(
            learner.model,
            learner.optimizer,
            batch,
            torch.unique(examples),
            marked,
            loss,
            microbatch_tokens=self.microbatch_tokens,
            pack=self.pack,
            share=self.share_prefixes,
        )
        return {"loss": value}


def preference_pairs(batch: Batch) -> Tensor:
    """All pairs of episodes of one group of which the first has the higher return, (P, 2) int64."""
    returns, pairs = batch.total(batch.rewards), []
    for number in torch.unique(batch.group):
        members = (batch.group == number).nonzero().squeeze(1)
        better = returns[members][:, None] > returns[members][None, :]
        first, second = better.nonzero(as_tuple=True)
        pairs.append(torch.stack([members[first], members[second]], 1))
    return torch.cat(pairs) if pairs else torch.zeros(0, 2, dtype=torch.int64)


def reward_model_accuracy(model: Policy, batch: Batch, *, microbatch_tokens: int = 8192) -> float:
    """The share of pairs that the scores after the last action put in their order; NaN where there are no pairs."""
    pairs = preference_pairs(batch)
    marked = _scored_tokens(batch, "pairwise")
    scores = take_scores(model, batch, marked, microbatch_tokens=microbatch_tokens, pack=False)[batch.last_actions]
    return float((scores[pairs[:, 0]] > scores[pairs[:, 1]]).float().mean())


def reward_model_judge(model: Policy, *, per_turn: bool, microbatch_tokens: int = 8192) -> Judge:
    """A trained reward model as a judge of episodes whose tokens are its own tokenizer's.

    Args:
        model: trained by `RewardModel`.
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
        ConfigurationError: there is no such model, it is no trained reward model, or it has another vocabulary.
    """
    model = LanguageModel.from_pretrained(folder).to(policy.device).requires_grad_(False)
    own, others = model.tokenizer, policy.tokenizer
    known, of_policy = own.vocab_size, others.vocab_size
    if known != of_policy:
        raise ConfigurationError(f"{folder}: a reward model of {known} tokens cannot read a policy's of {of_policy}")
    if any(own.decode([token]) != others.decode([token]) for token in range(known)):
        raise ConfigurationError(f"{folder}: a reward model with another vocabulary than the policy's")
    if not model.value_head.weight.any():
        raise ConfigurationError(
            f"{folder}: its value head is 0: it has not been trained to score. Try: the folder RUN/model of a "
            "reward_model run"
        )
    return reward_model_judge(model, per_turn=per_turn)


def _scored_tokens(batch: Batch, kind: str) -> Tensor:
    """(N,) bool, the tokens after which a score is computed."""
    if kind == "process":
        return batch.turn_ends
    return torch.zeros_like(batch.action_mask).index_fill(0, batch.last_actions, True)
