"""What all algorithms that learn from rewards share: how a batch is seen, and the epochs of steps on it.

    collect episodes → see them as the policy does now → ADVANTAGES → a few epochs of steps on a SURROGATE

An algorithm's page chooses what is in capitals. Every quantity is one number an action token, never an observation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from swe_trainers.algorithms.settings import Settings
from swe_trainers.errors import ConfigurationError, TrainerError
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.forward import ActionTokens, Policy, Snapshot, take_snapshot, take_values
from swe_trainers.learning.kl import AdaptiveKL, KLEstimator, kl_estimate
from swe_trainers.learning.learner import Learner
from swe_trainers.learning.losses import Aggregation, clipped_policy_loss, score_function_loss
from swe_trainers.learning.optimizer import adamw, learning_rate_at, set_learning_rate
from swe_trainers.learning.ranks import n_ranks
from swe_trainers.learning.ratio import Correction, RatioLevel, policy_log_ratio, rollout_weights
from swe_trainers.learning.update import TokenLoss, optimise
from swe_trainers.rollout.plan import Branching
from swe_trainers.rollout.trajectory import Trajectory

__all__ = [
    "Clipped",
    "Collect",
    "CriticLoss",
    "Experience",
    "Reinforcement",
    "experience_of",
    "improve",
    "reinforcement_learner",
    "timed_step",
]

Collect = Callable[[int], Sequence[Trajectory]]
"""Episodes for the update of this number, sampled from the policy as it is now."""
CriticLoss = Callable[[ActionTokens, Tensor], Tensor]
"""The critic's loss (A,) of some action tokens, which are at these positions of the batch."""


@dataclass(frozen=True)
class Reinforcement(Settings):
    """What every algorithm that learns from rewards can be told, beside `Settings`.

    Attributes:
        max_updates: updates in all.
        episodes_per_update: sampled from one policy.
        minibatches: optimiser steps a pass.
        reward_scale: rewards are multiplied by it before anything is learnt from them; never in what is reported.
        entropy_coefficient: of the entropy bonus.
        kl_coefficient: of the divergence from the reference; 0 for no reference at all.
        kl_placement: penalise it in the `reward` or in the `loss`.
        kl_estimator: `k1` in the reward, `k2` or `k3` in the loss; null takes k1 and k3.
        kl_target: nats a token at which the coefficient is held by adapting it; null for a fixed one.
        kl_horizon: episodes over which the coefficient adapts.
        stop_kl: stop an update once a minibatch has moved this far from the old policy, nats a token.
        correction: of the policy's loss for what the engine computes otherwise than the trainer: `truncate` or `mask`
            importance weights, or `none`.
        correction_level: weights of each `token`, of a `sequence` by its geometric mean, or of a whole `trajectory`.
        correction_cap: the greatest weight; null takes 2.
        temperature: of sampling, and of every probability here.
        aggregation: `token`, `sequence`, `prompt` or `constant`: what counts alike in the loss.
        aggregation_length: tokens that `constant` divides by, beside the number of episodes.
    """

    epochs: int = 2
    max_updates: int = 100
    episodes_per_update: int = 64
    minibatches: int = 2
    reward_scale: float = 1.0
    entropy_coefficient: float = 0.0
    kl_coefficient: float = 0.0
    kl_placement: Literal["reward", "loss"] = "loss"
    kl_estimator: KLEstimator | None = None
    kl_target: float | None = None
    kl_horizon: int = 1000
    stop_kl: float | None = None
    correction: Correction = "none"
    correction_level: RatioLevel = "token"
    correction_cap: float | None = None
    temperature: float = 1.0
    aggregation: Aggregation = "token"
    aggregation_length: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.kl_placement == "reward") != (self.estimator == "k1"):
            wanted = {"reward": "k1", "loss": "k2 or k3"}[self.kl_placement]
            place = f"{self.estimator} in the {self.kl_placement}"
            raise ConfigurationError(f"kl_estimator: {place} does not pull towards the reference. Try: {wanted}")
        if self.kl_target is not None and not self.kl_coefficient:
            raise ConfigurationError("kl_target: has no effect with kl_coefficient 0. Try: a positive kl_coefficient")
        if (self.aggregation == "constant") != (self.aggregation_length is not None):
            raise ConfigurationError(
                "aggregation_length: needed by aggregation constant, which divides by it, and without effect elsewhere"
            )
        if self.correction == "none" and (self.correction_cap is not None or self.correction_level != "token"):
            raise ConfigurationError("correction_cap, correction_level: have no effect with correction none")

    @property
    def estimator(self) -> KLEstimator:
        """The estimator of the divergence from the reference."""
        return self.kl_estimator or ("k1" if self.kl_placement == "reward" else "k3")

    @property
    def episodes_per_start(self) -> int:
        """How many episodes begin at the same state: 1, or an algorithm's `group_size`."""
        return int(getattr(self, "group_size", 1))

    @property
    def looks_before(self) -> bool:
        """Whether the policy must be asked before the first step; else the pass of that step tells what it said."""
        priced = self.kl_coefficient != 0 and self.kl_placement == "reward"
        return self.minibatches > 1 or self.correction != "none" or priced or n_ranks() > 1

    @property
    def values_states(self) -> bool:
        """Whether the values of states must be known before the first step, for advantages."""
        return False

    @property
    def forks(self) -> Branching | None:
        """Where episodes fork; None where an algorithm plays no trees."""
        return None

    def policy_loss(
        self, policy_logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sequence_of_token: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The surrogate of the expected return: by default the plain score function, which nothing clips.

        Args:
            policy_logprobs, old_logprobs, advantages: (A,) float32. sequence_of_token: (A,) int64.
        Returns:
            The loss a token (A,), and where clipping cut the gradient off, (A,) bool.
        """
        del old_logprobs, sequence_of_token
        return score_function_loss(policy_logprobs, advantages), torch.zeros_like(advantages, dtype=torch.bool)


@dataclass(frozen=True)
class Clipped(Reinforcement):
    """What algorithms with a clipped surrogate can be told, beside `Reinforcement`.

    Attributes:
        ratio: whose probability ratio is clipped: each `token`'s, a `sequence`'s geometric mean, or the whole
            `trajectory`'s.
        clip_low: the ratio is clipped below 1 − this.
        clip_high: and above 1 + this.
        dual_clip: bound on the loss where the advantage is negative, in advantages; above 1.
    """

    ratio: RatioLevel = "token"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None

    def policy_loss(
        self, policy_logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sequence_of_token: Tensor
    ) -> tuple[Tensor, Tensor]:
        """PPO's surrogate, of the ratio that the algorithm takes; see `Reinforcement.policy_loss`."""
        log_ratio = policy_log_ratio(policy_logprobs, old_logprobs, sequence_of_token, self.ratio)
        return clipped_policy_loss(
            log_ratio, advantages, clip_low=self.clip_low, clip_high=self.clip_high, dual_clip=self.dual_clip
        )


@dataclass(frozen=True)
class Experience:
    """Episodes as the policy that played them sees them: fixed for the length of an update.

    Attributes:
        trajectories: all that were played.
        batch: those of them that can be learnt from; N tokens.
        rewards: (N,) float32, scaled, less a divergence that is penalised in the reward.
        old: the policy's view; pending where the first step is on all of the batch, and sees it anyway.
        reference_logprobs: (N,) float32; None where no divergence is penalised.
    """

    trajectories: Sequence[Trajectory]
    batch: Batch
    rewards: Tensor
    old: Snapshot
    reference_logprobs: Tensor | None


def reinforcement_learner(
    model: Policy,
    settings: Reinforcement,
    *,
    seed: int,
    reference: Policy | None = None,
    critic: Policy | None = None,
    critic_learning_rate: float | None = None,
) -> Learner:
    """A learner at its start.

    Args:
        model: the policy.
        settings: of the algorithm.
        seed: of the shuffling.
        reference: a frozen copy of the policy as it is now; needed exactly where `kl_coefficient` is not 0.
        critic: a model of its own that values states.
        critic_learning_rate: of that; None is the policy's.
    Raises:
        ConfigurationError: a reference is missing, or would have no effect.
    """
    if (reference is None) != (settings.kl_coefficient == 0):
        raise ConfigurationError("a reference policy is needed exactly where kl_coefficient is not 0")
    return Learner(
        model=model,
        optimizer=adamw(
            model,
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
            epsilon=settings.adam_epsilon,
            critic=critic,
            critic_learning_rate=critic_learning_rate,
        ),
        generator=torch.Generator().manual_seed(seed),
        reference=reference,
        critic=critic,
        kl=AdaptiveKL(settings.kl_coefficient, settings.kl_target, settings.kl_horizon),
    )


def timed_step(
    collect: Callable[[], Sequence[Trajectory]], update: Callable[[Sequence[Trajectory]], dict[str, float]]
) -> dict[str, float]:
    """Collect, update, and say how long each took."""
    started = time.monotonic()
    trajectories = collect()
    collected = time.monotonic()
    metrics = update(trajectories)
    return {**metrics, "seconds/collect": collected - started, "seconds/learn": time.monotonic() - collected}


def experience_of(learner: Learner, trajectories: Sequence[Trajectory], settings: Reinforcement) -> Experience:
    """See episodes as the policy does now.

    Args:
        learner: whose policy played them.
        trajectories: the ones that are not valid are counted and left out.
        settings: of the algorithm.
    Raises:
        TrainerError: no trajectory can be learnt from.
    """
    batch = Batch.of(trajectories)
    if not batch.n_sequences:
        reasons = sorted({t.failure_reason for t in trajectories if not t.valid})
        why = "; ".join(reasons) or "no actions"
        raise TrainerError(f"none of {len(trajectories)} episodes can be learnt from: {why}")

    size, heat, pack = settings.microbatch_tokens, settings.temperature, settings.pack

    def look(model: Policy, critic: Policy | None = None) -> Snapshot:
        return take_snapshot(model, batch, microbatch_tokens=size, temperature=heat, pack=pack, critic=critic)

    if settings.looks_before:
        old = look(learner.model, learner.critic)
    elif settings.values_states:
        critic = learner.model if learner.critic is None else learner.critic
        old = take_values(critic, batch, microbatch_tokens=size, pack=pack)
    else:
        old = Snapshot.pending(batch)
    rewards, reference_logprobs = settings.reward_scale * batch.rewards, None
    if learner.reference is not None:
        reference_logprobs = look(learner.reference).logprobs
        if settings.kl_placement == "reward":
            penalty = kl_estimate(old.logprobs, reference_logprobs, settings.estimator)
            rewards = rewards - learner.kl.coefficient * penalty
    return Experience(trajectories, batch, rewards, old, reference_logprobs)


def improve(
    learner: Learner,
    seen: Experience,
    advantages: Tensor,
    settings: Reinforcement,
    *,
    critic_loss: CriticLoss | None = None,
    value_coefficient: float = 1.0,
    sequences: Tensor | None = None,
) -> dict[str, float]:
    """Epochs of steps: surrogate − entropy bonus (+ divergence from the reference) (+ critic).

    Args:
        learner: changed in place.
        seen: the episodes.
        advantages: (N,) float32, one number a token.
        settings: of the algorithm.
        critic_loss, value_coefficient: added where there is a critic.
        sequences: (R,) int64, the trajectories to learn from; None for all.
    Returns:
        Losses, divergences, clipping, gradients and episodes, by name.
    Raises:
        TrainerError: the gradient is not finite.
    """
    set_learning_rate(
        learner.optimizer,
        learning_rate_at(
            learner.updates,
            peak=settings.learning_rate,
            warmup=settings.warmup_updates,
            decay=settings.decay,
            total=settings.max_updates,
        ),
    )
    statistics = optimise(
        learner.model,
        learner.optimizer,
        seen.batch,
        _objective(seen, advantages, learner.kl.coefficient, settings, critic_loss, value_coefficient),
        epochs=settings.epochs,
        minibatches=settings.minibatches,
        microbatch_tokens=settings.microbatch_tokens,
        max_grad_norm=settings.max_grad_norm,
        generator=learner.generator,
        temperature=settings.temperature,
        aggregation=settings.aggregation,
        aggregation_length=settings.aggregation_length,
        pack=settings.pack,
        stop_above=None if settings.stop_kl is None else ("kl_old", settings.stop_kl),
        critic=learner.critic,
        sequences=sequences,
    )
    metrics = _metrics(learner, seen, advantages, statistics)
    if "kl_reference" in metrics:
        learner.kl.observe(metrics["kl_reference"], seen.batch.n_sequences)
    learner.episodes += seen.batch.n_sequences
    return metrics


def _objective(
    seen: Experience,
    advantages: Tensor,
    kl_coefficient: float,
    settings: Reinforcement,
    critic_loss: CriticLoss | None,
    value_coefficient: float,
) -> Callable[[ActionTokens], TokenLoss]:
    weights = rollout_weights(
        seen.old.logprobs[seen.batch.action_mask],
        seen.batch.rollout_logprobs[seen.batch.action_mask],
        seen.batch.sequence_of_token[seen.batch.action_mask],
        kind=settings.correction,
        level=settings.correction_level,
        cap=settings.correction_cap or 2.0,
    )
    correction = torch.zeros_like(seen.old.logprobs).masked_scatter(seen.batch.action_mask, weights)  # (N,)

    def objective(tokens: ActionTokens) -> TokenLoss:
        at, device = tokens.index.cpu(), tokens.logprobs.device
        old_logprobs = seen.old.logprobs_at(at, tokens.logprobs)
        policy_loss, clipped = settings.policy_loss(
            tokens.logprobs, old_logprobs, advantages[at].to(device), seen.batch.sequence_of_token[at].to(device)
        )
        means = {"policy_loss": policy_loss, "entropy": tokens.entropy}
        loss = correction[at].to(device) * policy_loss - settings.entropy_coefficient * tokens.entropy
        if settings.correction != "none":
            means["correction"] = correction[at].to(device)
        if critic_loss is not None:
            means["value_loss"] = critic_loss(tokens, at)
            loss = loss + value_coefficient * means["value_loss"]
        if seen.reference_logprobs is not None:
            reference_logprobs = seen.reference_logprobs[at].to(device)
            means["kl_reference"] = kl_estimate(tokens.logprobs, reference_logprobs, settings.estimator)
            if settings.kl_placement == "loss":
                loss = loss + kl_coefficient * means["kl_reference"]
        with torch.no_grad():
            ratio = (tokens.logprobs - old_logprobs).exp()
            # Tokens are the old policy's, hence KL(old ‖ policy) with the ratio turned round.
            means |= {"kl_old": kl_estimate(old_logprobs, tokens.logprobs, "k3"), "clip_fraction": clipped.float()}
            means |= {"ratio": ratio, "ratio_squared": ratio.square()}
            maxima = {"ratio_max": ratio, "ratio_error_max": (ratio - 1).abs()}
        return TokenLoss(loss, means, maxima)

    return objective


def _metrics(learner: Learner, seen: Experience, advantages: Tensor, statistics: dict[str, float]) -> dict[str, float]:
    """What is reported of an update; in its first minibatch a ratio away from 1 is noise or a defect."""
    batch, acted = seen.batch, seen.batch.action_mask
    played = [trajectory for trajectory in seen.trajectories if trajectory.valid]
    metrics = {name: value for name, value in statistics.items() if not name.startswith("first/")}
    if "ratio" in metrics:
        metrics["ratio_error_first"] = statistics["first/ratio_error_max"]
        metrics["effective_sample_share"] = metrics["ratio"] ** 2 / metrics.pop("ratio_squared")
    episode_rewards = batch.total(batch.rewards)
    return metrics | {
        "reward_mean": float(episode_rewards.mean()),
        "reward_std": float(episode_rewards.std(correction=0)),
        "advantage_std": float(advantages[acted].std(correction=0)),
        "engine_logprob_gap": float((batch.rollout_logprobs - seen.old.logprobs)[acted].abs().nanmean()),
        "kl_coefficient": learner.kl.coefficient,
        "learning_rate": float(learner.optimizer.param_groups[0]["lr"]),
        "episodes": float(batch.n_sequences),
        "episodes_left_out": float(batch.left_out),
        "truncated_share": sum(trajectory.truncated for trajectory in played) / batch.n_sequences,
        "turns_mean": sum(len(trajectory.turns) for trajectory in played) / batch.n_sequences,
        "tokens": float(len(batch.token_ids)),
        "action_tokens": float(acted.sum()),
    }
