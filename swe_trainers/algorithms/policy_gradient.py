"""The base of all algorithms that train on rewards: log-probabilities and values of a batch, then epochs of steps.

    play episodes → log-probabilities and values → ADVANTAGES → a few epochs of steps on a POLICY LOSS

The file of an algorithm defines what is in capitals. Every quantity has one number per action token, and none for
observation tokens.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from swe_trainers.algorithms.algorithm import (
    ABOVE_ONE,
    AT_LEAST_ONE,
    BETWEEN,
    NOT_NEGATIVE,
    NOT_POSITIVE,
    POSITIVE,
    Algorithm,
    RolloutPlan,
    ranged,
)
from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import ConfigurationError, TrainerError
from swe_trainers.learning.advantages import Sharing, conversation_shares, returns_to_go
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.forward import ActionTokens, HostedPolicy, Policy, Snapshot, take_snapshot, take_values
from swe_trainers.learning.learner import Decay, Learner, scheduled
from swe_trainers.learning.losses import (
    AdaptiveKL,
    Aggregation,
    Correction,
    KLEstimator,
    RatioLevel,
    clipped_policy_loss,
    kl_estimate,
    policy_log_ratio,
    rollout_weights,
    score_function_loss,
)
from swe_trainers.learning.representation import representation
from swe_trainers.learning.update import Objective, TokenLoss, gradient_noise, optimise
from swe_trainers.model.attention import to_device
from swe_trainers.process_group import n_ranks
from swe_trainers.rollout.settings import Branching
from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["Clipped", "Experience", "PolicyGradient"]


@dataclass
class Experience:
    """Episodes with everything that is computed before the first step of an update; S trajectories of N tokens.

    Attributes:
        batch: the episodes that can be trained on.
        old: log-probabilities and values under the policy before the update.
        rewards: (N,) float32, scaled, less the KL penalty if it is in the reward.
        correction: (N,) float32, importance weights for the difference between engine and trainer.
        reference_logprobs: (N,) float32; None if no sampled estimate of the KL to the reference is used.
        advantages: (N,) float32; 0 before they are computed.
        returns: (N,) float32, the targets of the critic; None without a critic.
        entropy_coefficient: entropy coefficient of the update.
    """

    batch: Batch
    old: Snapshot
    rewards: Tensor
    correction: Tensor
    reference_logprobs: Tensor | None
    advantages: Tensor
    returns: Tensor | None = None
    entropy_coefficient: float = 0.0


@dataclass(frozen=True)
class PolicyGradient(Algorithm):
    """The base of algorithms that train on rewards.

    Attributes:
        max_updates: number of updates of the run.
        episodes_per_update: episodes played for each update.
        minibatches: optimizer steps of an epoch; fewer if too many episodes are invalid.
        reward_scale: rewards are multiplied by it for training; reported rewards are not.
        reward_min: lower bound of the reward of a turn in training, at most 0, applied before scaling; reported rewards
            do not change. For penalties that keep a policy from exploring.
        reward_max: upper bound of the reward of a turn in training, at least 0.
        normalise_rewards: divide rewards by the standard deviation of the discounted returns of all updates so far, so
            that a critic's targets are of the order of 1 whatever the environment's rewards are.
        entropy_coefficient: coefficient of the entropy bonus.
        entropy_decay: schedule of the entropy coefficient: `constant`, or `linear` or `cosine` to 0 at the last update.
        kl_coefficient: coefficient of the KL to the reference; with 0 there is no reference.
        kl_placement: penalise the KL to the reference in the `reward` or in the `loss`.
        kl_estimator: `k1` in the reward; `k2`, `k3` or `full` (exact over the vocabulary) in the loss; null takes k1 in
            the reward and k3 in the loss.
        kl_target: KL to the reference, in nats per token, that an adaptive coefficient aims at; null: it is constant.
        kl_horizon: episodes over which the coefficient adapts.
        stop_kl: end an update early when the KL to the old policy of a minibatch exceeds this, in nats per token.
        correction: importance weights of the policy loss for the difference between engine and trainer: `truncate`,
            `mask`, or `none`.
        correction_level: one weight per `token`, per `sequence` (the geometric mean of its tokens), or per
            `trajectory` (the product).
        correction_cap: the largest weight; null: 2.
        temperature: temperature of sampling, and of all probabilities in the update.
        aggregation: how tokens are averaged: every `token`, `sequence` or `prompt` counts the same, or `constant`.
        aggregation_length: number of tokens that `constant` divides by, in addition to the number of episodes.
        gradient_noise_every: updates between measurements of the gradient noise scale (`gradient_noise/scale`), each
            of which costs a pass over the batch; 0: never.
        conversation_sharing: how the conversations of an episode of an agent program share its advantage: every `token`
            or every `conversation` counts the same, or only the conversation with the `last` action.
    """

    epochs: int = 2
    max_updates: int = ranged(100, AT_LEAST_ONE)
    episodes_per_update: int = ranged(64, AT_LEAST_ONE)
    minibatches: int = ranged(2, AT_LEAST_ONE)
    reward_scale: float = ranged(1.0, POSITIVE)
    reward_min: float | None = ranged(None, NOT_POSITIVE)
    reward_max: float | None = ranged(None, NOT_NEGATIVE)
    normalise_rewards: bool = False
    entropy_coefficient: float = ranged(0.0, NOT_NEGATIVE)
    entropy_decay: Decay = "constant"
    kl_coefficient: float = ranged(0.0, NOT_NEGATIVE)
    kl_placement: Literal["reward", "loss"] = "loss"
    kl_estimator: KLEstimator | None = None
    kl_target: float | None = ranged(None, POSITIVE)
    kl_horizon: int = ranged(1000, AT_LEAST_ONE)
    stop_kl: float | None = ranged(None, POSITIVE)
    correction: Correction = "none"
    correction_level: RatioLevel = "token"
    correction_cap: float | None = ranged(None, ABOVE_ONE)
    temperature: float = ranged(1.0, POSITIVE)
    aggregation: Aggregation = "token"
    aggregation_length: int | None = ranged(None, AT_LEAST_ONE)
    gradient_noise_every: int = ranged(0, NOT_NEGATIVE)
    conversation_sharing: Sharing = "token"

    def __post_init__(self) -> None:
        super().__post_init__()
        Sampling(self.temperature)  # refuses what no token can be sampled at
        if self.minibatches > self.episodes_per_update:
            raise ConfigurationError(
                f"minibatches: got {self.minibatches}, expected at most episodes_per_update "
                f"({self.episodes_per_update}): each has an episode at least"
            )
        if (self.kl_placement == "reward") != (self.estimator == "k1"):
            wanted = {"reward": "k1", "loss": "k2, k3 or full"}[self.kl_placement]
            place = f"{self.estimator} in the {self.kl_placement}"
            raise ConfigurationError(f"kl_estimator: {place} does not pull towards the reference. Try: {wanted}")
        if self.entropy_decay != "constant" and not self.entropy_coefficient:
            raise ConfigurationError("entropy_decay: has no effect with entropy_coefficient 0")
        if self.normalise_rewards and self.reward_scale != 1:
            raise ConfigurationError("reward_scale: has no effect with normalise_rewards, which chooses the scale")
        if self.gradient_noise_every and self.episodes_per_update < 2:
            raise ConfigurationError("gradient_noise_every: one episode has no spread. Try: episodes_per_update 2")
        if self.kl_target is not None and not self.kl_coefficient:
            raise ConfigurationError("kl_target: has no effect with kl_coefficient 0. Try: a positive kl_coefficient")
        if (self.aggregation == "constant") != (self.aggregation_length is not None):
            raise ConfigurationError(
                "aggregation_length: needed by aggregation constant, which divides by it, and without effect elsewhere"
            )
        if self.correction == "none" and (self.correction_cap is not None or self.correction_level != "token"):
            raise ConfigurationError("correction_cap, correction_level: have no effect with correction none")

    @abstractmethod
    def advantages(self, experience: Experience) -> Tensor:
        """The advantage of each token, (N,) float32; 0 where no action is."""

    def policy_loss(
        self, policy_logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sequence_of_token: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The surrogate of the expected return; by default the score-function estimator, without clipping.

        Args:
            policy_logprobs, old_logprobs, advantages: (A,) float32. sequence_of_token: (A,) int64, on the CPU.
        Returns:
            The loss of each token (A,), and where clipping stopped its gradient, (A,) bool.
        """
        del old_logprobs, sequence_of_token
        return score_function_loss(policy_logprobs, advantages), torch.zeros_like(advantages, dtype=torch.bool)

    def minibatch_advantages(self, advantages: Tensor, batch: Batch, sequences: Tensor) -> Tensor:
        """The advantages for one minibatch; by default unchanged.

        Args:
            advantages: (N,) float32, of the whole batch.
            batch: of the update.
            sequences: (R,) int64, the trajectories of the minibatch.
        Returns:
            (N,) float32; only the entries of those trajectories are read.
        """
        del batch, sequences
        return advantages

    def critic_loss(self, tokens: ActionTokens, experience: Experience) -> tuple[Tensor, float] | None:
        """The critic's loss of each token (A,), and its coefficient; None without a critic."""
        del tokens, experience
        return None

    def trained_sequences(self, batch: Batch) -> Tensor | None:
        """(R,) int64, the trajectories in the loss; None for all."""
        del batch
        return None

    def measure(self, experience: Experience) -> dict[str, float]:
        """Further metrics of this algorithm."""
        del experience
        return {}

    def update(self, learner: Learner, episodes: Sequence[Trajectory] | Batch) -> dict[str, float]:
        """Observe episodes, compute advantages, and take a few epochs of steps; see `Algorithm.update`.

        The loss of a token is: policy loss − entropy bonus (+ KL to the reference) (+ critic loss).
        """
        experience = self.observe(learner, episodes)
        advantages = self.advantages(experience)
        learning_rate = self.schedule(learner, self.max_updates)
        batch, acted, kl_coefficient = experience.batch, experience.batch.action_mask, learner.kl.coefficient
        shares = self._shares(batch)
        experience.advantages = shares * advantages

        def objective(tokens: ActionTokens) -> TokenLoss:
            return self.token_loss(tokens, experience, kl_coefficient)

        def begin_minibatch(sequences: Tensor) -> None:
            experience.advantages = shares * self.minibatch_advantages(advantages, batch, sequences)

        before = self._gradient_noise(learner, experience, objective)
        if n_ranks() == 1 and not isinstance(learner.model, HostedPolicy):
            tokens = self.microbatch_tokens
            before |= representation(learner.model, batch, max_tokens=tokens, temperature=self.temperature)
        metrics = before | optimise(
            learner.model,
            learner.optimizer,
            batch,
            objective,
            begin_minibatch=begin_minibatch,
            epochs=self.epochs,
            minibatches=self.minibatches,
            microbatch_tokens=self.microbatch_tokens,
            max_grad_norm=self.max_grad_norm,
            generator=learner.generator,
            temperature=self.temperature,
            aggregation=self.aggregation,
            aggregation_length=self.aggregation_length,
            pack=self.pack,
            share=self.share_prefixes,
            stop_above=None if self.stop_kl is None else ("kl/old", self.stop_kl),
            critic=learner.critic,
            reference=learner.reference if self.estimator == "full" else None,
            sequences=self.trained_sequences(batch),
        )
        if "ratio" in metrics:
            # In the first minibatch a ratio other than 1 is rounding or a defect.
            metrics["ratio_error_first"] = metrics["first/ratio_error_max"]
            metrics["effective_sample_fraction"] = metrics["ratio"] ** 2 / metrics.pop("ratio_squared")
        metrics = {name: value for name, value in metrics.items() if not name.startswith("first/")}
        rewards = batch.total(batch.rewards)
        metrics |= {
            "reward_mean": float(rewards.mean()),
            "reward_std": float(rewards.std(correction=0)),
            "advantage_std": float(advantages[acted].std(correction=0)),
            "logprob_gap": float((batch.rollout_logprobs - experience.old.settle().logprobs)[acted].abs().nanmean()),
            "kl/coefficient": kl_coefficient,
            "entropy_coefficient": experience.entropy_coefficient,
            "learning_rate": learning_rate,
            "episodes": float(batch.n_sequences),
            "episodes_invalid": float(batch.n_excluded),
            "truncated_fraction": float(batch.truncated.float().mean()),
            "turns_mean": sum(len(trajectory.turns) for trajectory in batch.episodes if trajectory.valid)
            / batch.n_sequences,
            "tokens": float(len(batch.token_ids)),
            "action_tokens": float(acted.sum()),
        }
        if "kl/reference" in metrics:
            learner.kl.observe(metrics["kl/reference"], batch.n_sequences)
        learner.episodes += batch.n_sequences
        return metrics | self.measure(experience)

    def observe(self, learner: Learner, episodes: Sequence[Trajectory] | Batch) -> Experience:
        """Compute log-probabilities and values of episodes under the policy before the update and the reference.

        The old log-probabilities need no pass of their own where the first step of the update is on the whole batch:
        its forward pass computes them.

        Args:
            learner: its policy played them.
            episodes: invalid episodes, and those without an action, are excluded and counted.
        Raises:
            TrainerError: none of the episodes can be trained on.
        """
        batch = Batch.of(episodes)
        if not batch.n_sequences:
            why = "; ".join(sorted({t.failure_reason for t in batch.episodes if not t.valid})) or "no actions"
            raise TrainerError(f"none of {len(batch.episodes)} episodes can be trained on: {why}")

        def look(model: Policy, critic: Policy | None = None) -> Snapshot:
            return take_snapshot(
                model,
                batch,
                microbatch_tokens=self.microbatch_tokens,
                temperature=self.temperature,
                pack=self.pack,
                share=self.share_prefixes,
                critic=critic,
            )

        if self.needs_old_logprobs or n_ranks() > 1:
            old = look(learner.model, learner.critic)
        elif self.needs_values:
            critic = learner.critic or learner.model
            old = take_values(
                critic, batch, microbatch_tokens=self.microbatch_tokens, pack=self.pack, share=self.share_prefixes
            )
        else:
            old = Snapshot.pending(batch)
        rewards, reference_logprobs = self._learnt_rewards(learner, batch), None
        if learner.reference is not None and self.estimator != "full":
            reference_logprobs = look(learner.reference).logprobs
            if self.kl_placement == "reward":
                penalty = kl_estimate(old.logprobs, reference_logprobs, self.estimator)
                rewards = rewards - learner.kl.coefficient * penalty
        acted = batch.action_mask
        weights = rollout_weights(
            old.logprobs[acted],
            batch.rollout_logprobs[acted],
            batch.sequence_of_token[acted],
            kind=self.correction,
            level=self.correction_level,
            cap=self.correction_cap or 2.0,
        )
        correction = torch.zeros_like(old.logprobs).masked_scatter(acted, weights)
        return Experience(
            batch,
            old,
            rewards,
            correction,
            reference_logprobs,
            torch.zeros_like(rewards),
            entropy_coefficient=scheduled(
                learner.updates,
                peak=self.entropy_coefficient,
                warmup=0,
                decay=self.entropy_decay,
                total=self.max_updates,
            ),
        )

    def _learnt_rewards(self, learner: Learner, batch: Batch) -> Tensor:
        """The environment's rewards for training, (N,) float32: clipped, and scaled or normalised.

        Normalising counts the batch's returns in `learner.returns` first, so that the first update is normalised too.
        """
        rewards = batch.rewards
        if self.reward_min is not None or self.reward_max is not None:
            rewards = rewards.clamp(self.reward_min, self.reward_max)  # 0 stays 0 where there is no reward
        if not self.normalise_rewards:
            return self.reward_scale * rewards
        acted, gamma = batch.action_mask, getattr(self, "gamma", 1.0)
        returns = batch.unpad(returns_to_go(batch.pad(rewards), batch.pad(acted), gamma=gamma))
        learner.returns.observe(returns[acted])
        return rewards / learner.returns.deviation

    def _shares(self, batch: Batch) -> Tensor:
        """(N,) float32, the share of each conversation in the advantage of its episode."""
        if batch.conversation is None:
            return batch.action_mask.float()
        return conversation_shares(
            batch.action_mask, batch.sequence_of_token, batch.conversation, sharing=self.conversation_sharing
        )

    def _gradient_noise(self, learner: Learner, experience: Experience, objective: Objective) -> dict[str, float]:
        """Metrics of the gradient noise, if this update measures it."""
        if not self.gradient_noise_every or learner.updates % self.gradient_noise_every:
            return {}
        chosen = self.trained_sequences(experience.batch)
        return gradient_noise(
            learner.model,
            learner.optimizer,
            experience.batch,
            objective,
            parts=max(2, self.minibatches),
            sequences=chosen,
            generator=torch.Generator().manual_seed(learner.updates),
            microbatch_tokens=self.microbatch_tokens,
            temperature=self.temperature,
            aggregation=self.aggregation,
            aggregation_length=self.aggregation_length,
            pack=self.pack,
            share=self.share_prefixes,
            critic=learner.critic,
            reference=learner.reference if self.estimator == "full" else None,
        )

    def token_loss(self, tokens: ActionTokens, experience: Experience, kl_coefficient: float) -> TokenLoss:
        """The loss of some action tokens, and their metrics.

        Args:
            tokens: log-probabilities, entropies and values of A tokens under the current policy.
            experience: of the update.
            kl_coefficient: coefficient of the KL to the reference.
        """
        at, device = tokens.index, tokens.logprobs.device
        old_logprobs = experience.old.logprobs_at(at, tokens.logprobs)
        correction = to_device(experience.correction[at], device)
        policy_loss, clipped = self.policy_loss(
            tokens.logprobs,
            old_logprobs,
            to_device(experience.advantages[at], device),
            experience.batch.sequence_of_token[at],
        )
        means = {"policy_loss": policy_loss, "entropy": tokens.entropy}
        loss = correction * policy_loss - experience.entropy_coefficient * tokens.entropy
        if self.correction != "none":
            means["correction"] = correction
        critic = self.critic_loss(tokens, experience)
        if critic is not None:
            means["value_loss"], coefficient = critic
            loss = loss + coefficient * means["value_loss"]
        if tokens.kl is not None:
            means["kl/reference"] = tokens.kl
        elif experience.reference_logprobs is not None:
            reference_logprobs = to_device(experience.reference_logprobs[at], device)
            means["kl/reference"] = kl_estimate(tokens.logprobs, reference_logprobs, self.estimator)
        if "kl/reference" in means and self.kl_placement == "loss":
            loss = loss + kl_coefficient * means["kl/reference"]
        with torch.no_grad():
            ratio = (tokens.logprobs - old_logprobs).exp()
            # Tokens are the old policy's, hence KL(old ‖ policy) with the ratio inverted.
            means |= {"kl/old": kl_estimate(old_logprobs, tokens.logprobs, "k3"), "clip_fraction": clipped.float()}
            means |= {"ratio": ratio, "ratio_squared": ratio.square()}
            maxima = {"ratio_max": ratio, "ratio_error_max": (ratio - 1).abs()}
        return TokenLoss(loss, means, maxima)

    @property
    def estimator(self) -> KLEstimator:
        """The estimator of the KL to the reference."""
        return self.kl_estimator or ("k1" if self.kl_placement == "reward" else "k3")

    @property
    def episodes_per_start(self) -> int:
        """How many episodes begin at the same state."""
        return 1

    @property
    def forks(self) -> Branching | None:
        """Where episodes fork; None where no trees are played."""
        return None

    @property
    def needs_old_logprobs(self) -> bool:
        """Whether the old log-probabilities must be known before the first step."""
        in_reward = self.kl_coefficient != 0 and self.kl_placement == "reward"
        return self.minibatches > 1 or self.correction != "none" or in_reward

    @property
    def needs_values(self) -> bool:
        """Whether the values of states must be known before the first step, for advantages."""
        return False

    @property
    def rollout_plan(self) -> RolloutPlan:
        """See `Algorithm.rollout_plan`."""
        return RolloutPlan(
            self.episodes_per_update, self.temperature, self.episodes_per_start, self.forks, self.max_updates
        )

    @property
    def needs_reference(self) -> bool:
        """Where a divergence from it is penalised."""
        return self.kl_coefficient != 0

    @property
    def corrects_staleness(self) -> bool:
        """With importance weights."""
        return self.correction != "none"

    @property
    def may_stop_early(self) -> bool:
        """Where the divergence from the old policy is limited."""
        return self.stop_kl is not None

    def kl_control(self) -> AdaptiveKL:
        """See `Algorithm.kl_control`."""
        return AdaptiveKL(self.kl_coefficient, self.kl_target, self.kl_horizon)

    def total_updates(self, episodes: Batch | None = None) -> int:
        """`max_updates`."""
        del episodes
        return self.max_updates


@dataclass(frozen=True)
class Clipped(PolicyGradient):
    """What algorithms with PPO's clipped surrogate have in addition.

    Attributes:
        ratio: the probability ratio that is clipped: of each `token`, the geometric mean of a `sequence`, or of the
            whole `trajectory`.
        clip_low: the ratio is clipped below 1 − clip_low.
        clip_high: the ratio is clipped above 1 + clip_high.
        dual_clip: bound on the loss where the advantage is negative, in advantages; above 1.
    """

    ratio: RatioLevel = "token"
    clip_low: float = ranged(0.2, BETWEEN)
    clip_high: float = ranged(0.2, POSITIVE)
    dual_clip: float | None = ranged(None, ABOVE_ONE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ratio != "token" and self.conversation_sharing != "token":
            # Its gradient is that of all tokens, whichever of them the shares give weight to.
            raise ConfigurationError(
                f"conversation_sharing: ratio {self.ratio} is one ratio for all tokens of an episode. Try: ratio token"
            )

    def policy_loss(
        self, policy_logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sequence_of_token: Tensor
    ) -> tuple[Tensor, Tensor]:
        """PPO's surrogate of the algorithm's ratio; see `PolicyGradient.policy_loss`."""
        log_ratio = policy_log_ratio(policy_logprobs, old_logprobs, sequence_of_token, self.ratio)
        return clipped_policy_loss(
            log_ratio, advantages, clip_low=self.clip_low, clip_high=self.clip_high, dual_clip=self.dual_clip
        )
