"""Losses, probability ratios and KL estimators: one function per formula, with one number per token.

`loss_weights` computes how tokens are averaged.

For tokens sampled from the policy, three estimators of KL(policy ‖ reference) are in use (Schulman, "Approximating KL
divergence", 2020), and `full` is the divergence itself, summed over the vocabulary at every state. What counts is the
gradient that they give in expectation, and that depends on their place:

    in the loss     k1 nothing;  k2 and full that of KL(policy ‖ reference);  k3 that of KL(reference ‖ policy)
    in the reward   k1 that of KL(policy ‖ reference);  k2 and k3 nothing to first order near the reference;  full
                    nothing at the state itself, whose divergence does not depend on the token sampled there

so that k1 belongs in the reward, k2, k3 and full in the loss, and the rest is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from swe_trainers.errors import ConfigurationError
from swe_trainers.learning.batch import Batch
from swe_trainers.model.attention import to_device

__all__ = [
    "AdaptiveKL",
    "Aggregation",
    "Correction",
    "KLEstimator",
    "RatioLevel",
    "clipped_policy_loss",
    "clipped_value_loss",
    "kl_estimate",
    "loss_weights",
    "pairwise_loss",
    "policy_log_ratio",
    "rollout_weights",
    "score_function_loss",
]

Aggregation = Literal["token", "sequence", "prompt", "constant"]
KLEstimator = Literal["k1", "k2", "k3", "full"]
RatioLevel = Literal["token", "sequence", "trajectory"]
Correction = Literal["none", "truncate", "mask"]

_MOST_LOG_RATIO = 20.0
"""A logarithm of a ratio counts as at most this, as in verl: float32 has no exp(89), and 0 · ∞ in a gradient is NaN."""


def clipped_policy_loss(
    log_ratio: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """PPO's clipped surrogate (Schulman et al. 2017, eq. 7), asymmetric where the two bounds differ (DAPO, eq. 8).

    Args:
        log_ratio: (A,) float32, of the policy being updated to the policy at the start of the update, as
            `policy_log_ratio` gives it.
        advantages: (A,) float32.
        clip_low, clip_high: the ratio is clipped to [1 − clip_low, 1 + clip_high].
        dual_clip: where the advantage is negative the loss is at most dual_clip · |advantage| (Ye et al. 2020, eq. 5);
            None leaves it unbounded.
    Returns:
        The loss of each token (A,), and where clipping stopped its gradient, (A,) bool.
    """
    ratio = log_ratio.clamp(max=_MOST_LOG_RATIO).exp()
    free = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(free, clipped)
    cut = (clipped > free) | (log_ratio > _MOST_LOG_RATIO)
    if dual_clip is not None:
        ceiling = -advantages * dual_clip
        bounded = (advantages < 0) & (loss > ceiling)
        loss, cut = torch.where(bounded, ceiling, loss), cut | bounded
    return loss, cut


def score_function_loss(policy_logprobs: Tensor, advantages: Tensor) -> Tensor:
    """The loss whose gradient is REINFORCE's estimate: −A log p (Williams 1992, eq. 2).

    Args:
        policy_logprobs: (A,) float32, of the policy being updated.
        advantages: (A,) float32.
    Returns:
        (A,) float32.
    """
    return -advantages * policy_logprobs


def pairwise_loss(chosen: Tensor, rejected: Tensor, *, center: float = 0.0) -> Tensor:
    """−log σ(chosen − rejected), of Bradley and Terry's model (Ouyang et al. 2022, eq. 1).

    Args:
        chosen, rejected: (P,) float32, the scores of each pair.
        center: of (chosen + rejected)², which pulls the scores, free up to a constant, to 0 (Eisenstein et al. 2023).
    Returns:
        (P,) float32.
    """
    return -torch.nn.functional.logsigmoid(chosen - rejected) + center * (chosen + rejected).square()


def clipped_value_loss(values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float | None) -> Tensor:
    """Half the squared error of the critic, the worse of the free and the clipped prediction (as in the PPO code).

    Args:
        values: (A,) float32, of the critic being updated.
        old_values: (A,) float32, of the critic at the start of the update.
        returns: (A,) float32, the target.
        clip: how far a prediction may move from the old one before its gradient stops; None for the plain error.
    Returns:
        (A,) float32.
    """
    error = (values - returns).square()
    if clip is not None:
        near = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (near - returns).square())
    return error / 2


def loss_weights(batch: Batch, sequences: Tensor, mode: Aggregation, *, length: int | None = None) -> Tensor:
    """The weight of each action token of a minibatch in its loss; except for `constant`, the weights sum to 1.

    The denominators are those of the whole minibatch, so that the division into micro-batches changes nothing.

    Args:
        batch: where the trajectories are.
        sequences: (R,) int64, the trajectories of the minibatch, all different.
        mode: `token`: equal weight for every token; `sequence`: for every trajectory; `prompt`: for every group, and
            for every token of a group; `constant`: the sum over tokens divided by the number of trajectories times
            `length`, so that the weight of a token does not depend on the length of its trajectory (Dr. GRPO: Liu et
            al. 2025, 3.1).
        length: length of the mode `constant` in tokens.
    Returns:
        (S,) float32: the weight of each single action token of a trajectory, 0 outside the minibatch.
    Raises:
        ConfigurationError: there is no such mode, or `constant` has no length.
    """
    counts = batch.actions_of_sequence[sequences].double()  # (R,)
    if mode == "token":
        share = torch.ones_like(counts) / counts.sum()
    elif mode == "sequence":
        share = 1 / (counts * len(counts))
    elif mode == "prompt":
        groups, group_of_sequence = torch.unique(batch.group[sequences], return_inverse=True)
        tokens = torch.zeros(len(groups), dtype=counts.dtype).index_add(0, group_of_sequence, counts)
        share = 1 / (len(groups) * tokens[group_of_sequence])
    elif mode == "constant":
        if length is None:
            raise ConfigurationError("aggregation constant: needs a length to divide by")
        share = torch.ones_like(counts) / (len(counts) * length)
    else:
        raise ConfigurationError(f"aggregation: got {mode!r}, expected token, sequence, prompt or constant")
    weights = torch.zeros(batch.n_sequences, dtype=counts.dtype)
    weights[sequences] = share
    return weights.float()


def policy_log_ratio(
    policy_logprobs: Tensor, old_logprobs: Tensor, sequence_of_token: Tensor, level: RatioLevel
) -> Tensor:
    """log(policy / old policy) for a surrogate loss, one number per token.

    Args:
        policy_logprobs, old_logprobs: (A,) float32, of all action tokens of some whole trajectories.
        sequence_of_token: (A,) int64, the trajectory of each; on the CPU, so that a GPU is not waited for.
        level: `token`: of the token itself (PPO, GRPO); `sequence`: the mean over its trajectory, the logarithm of the
            geometric mean of the ratios (GSPO: Zheng et al. 2025, eq. 7); `trajectory`: the sum over its trajectory,
            the ratio of the probabilities of the whole (RLOO).
    Returns:
        (A,) float32, differentiable.
    Raises:
        ConfigurationError: there is no such level.
    """
    ratio = policy_logprobs - old_logprobs
    if level == "token":
        return ratio
    if level not in ("sequence", "trajectory"):
        raise ConfigurationError(f"ratio: got {level!r}, expected token, sequence or trajectory")
    return _over_sequences(ratio, sequence_of_token, mean=level == "sequence")


def rollout_weights(
    old_logprobs: Tensor,
    rollout_logprobs: Tensor,
    sequence_of_token: Tensor,
    *,
    kind: Correction,
    level: RatioLevel,
    cap: float,
) -> Tensor:
    """Importance weights for the difference between the probabilities of the engine and of the trainer.

    Args:
        old_logprobs: (A,) float32, the trainer's, of the policy that the engine was given.
        rollout_logprobs: (A,) float32, the engine's, of the distribution that it sampled from.
        sequence_of_token: (A,) int64, the trajectory of each; on the CPU, so that a GPU is not waited for.
        kind: `none`: 1 everywhere; `truncate`: the ratio, at most `cap` (truncated importance sampling: Ionides 2008);
            `mask`: the ratio, or 0 where it is outside 1/cap to cap.
        level: as in `policy_log_ratio`.
        cap: above 1.
    Returns:
        (A,) float32, a constant: not differentiated through.
    Raises:
        ConfigurationError: there is no such kind or level.
    """
    if kind == "none":
        return torch.ones_like(old_logprobs)
    weights = policy_log_ratio(old_logprobs, rollout_logprobs, sequence_of_token, level).detach().exp()
    if kind == "truncate":
        return weights.clamp(max=cap)
    if kind == "mask":
        return weights.where((weights >= 1 / cap) & (weights <= cap), 0.0)
    raise ConfigurationError(f"correction: got {kind!r}, expected none, truncate or mask")


def _over_sequences(x: Tensor, sequence_of_token: Tensor, *, mean: bool) -> Tensor:
    """Each trajectory's sum or mean, given to each of its tokens."""
    found = torch.unique(sequence_of_token, return_inverse=True, return_counts=True)
    member_of, sizes = (to_device(each, x.device) for each in found[1:])
    sums = torch.zeros(len(sizes), dtype=x.dtype, device=x.device).index_add(0, member_of, x)
    return (sums / sizes if mean else sums)[member_of]


def kl_estimate(policy_logprobs: Tensor, reference_logprobs: Tensor, kind: KLEstimator) -> Tensor:
    """KL(policy ‖ reference) from one sampled token each, in nats; `full` needs hidden states, see `forward`.

    k1 = log p − log r is unbiased; k2 = (log p − log r)² / 2 is biased with little variance; k3 = r/p − 1 − log r/p is
    unbiased and never negative.

    Args:
        policy_logprobs: (...) float32, of tokens sampled from the policy.
        reference_logprobs: (...) float32, of the same tokens.
        kind: which estimator.
    Returns:
        (...) float32, differentiable.
    Raises:
        ConfigurationError: there is no such estimator.
    """
    difference = policy_logprobs - reference_logprobs
    if kind == "k1":
        return difference
    if kind == "k2":
        return difference.square() / 2
    if kind == "k3":
        difference = difference.clamp(min=-_MOST_LOG_RATIO)
        return (-difference).expm1() + difference
    raise ConfigurationError(f"KL estimator: got {kind!r}, expected k1, k2 or k3")


@dataclass
class AdaptiveKL:
    """A KL coefficient that rises while the KL is above its target, and falls below it (Ziegler et al. 2019, 2.2).

    Attributes:
        coefficient: the current one.
        target: target KL in nats per token; None: the coefficient is constant.
        horizon: number of episodes over which the coefficient changes by its maximum step of 20 %.
        first: the one with which training began.
    """

    coefficient: float
    target: float | None = None
    horizon: int = 1000
    first: float = field(init=False)

    def __post_init__(self) -> None:
        self.first = self.coefficient

    def observe(self, divergence: float, episodes: int) -> None:
        """Adapt the coefficient after an update that measured `divergence` on `episodes` episodes."""
        if self.target is not None:
            error = min(0.2, max(-0.2, divergence / self.target - 1))
            self.coefficient *= 1 + error * min(1.0, episodes / self.horizon)
