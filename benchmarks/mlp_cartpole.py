"""PPO with a small network on CartPole-v1, with the settings of CleanRL's ppo.py.

The losses, the advantage estimation and the clipping are those of the trainer; only the network and the loop over
plain environments are different.
"""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from swe_trainers.learning.advantages import generalized_advantages, whiten
from swe_trainers.learning.learner import scheduled, set_learning_rate
from swe_trainers.learning.losses import clipped_policy_loss, clipped_value_loss

__all__ = ["CleanRL", "cartpole_return"]


@dataclass(frozen=True)
class CleanRL:
    """The settings of CleanRL's ppo.py, except the seed."""

    seed: int = 1
    steps: int = 500_000
    envs: int = 4
    rollout: int = 128
    epochs: int = 4
    minibatches: int = 4
    learning_rate: float = 2.5e-4
    gamma: float = 0.99
    lam: float = 0.95
    clip: float = 0.2
    entropy_coefficient: float = 0.01
    value_coefficient: float = 0.5
    max_grad_norm: float = 0.5


class ActorCritic(nn.Module):
    """Two networks of two layers of 64."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = _network(2, 0.01), _network(1, 1.0)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """(N, 4) to log-probabilities (N, 2) and values (N,)."""
        return self.actor(observations).log_softmax(-1), self.critic(observations).squeeze(-1)


def cartpole_return(settings: CleanRL, last_episodes: int = 100) -> tuple[float, float]:
    """Train; returns the mean return of the last episodes and of the first 20."""
    torch.manual_seed(settings.seed)
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate, eps=1e-5)
    envs = gymnasium.vector.SyncVectorEnv(
        [lambda: gymnasium.make("CartPole-v1")] * settings.envs,
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
    )
    observation, _ = envs.reset(seed=settings.seed)
    running, finished = np.zeros(settings.envs), list[float]()
    updates = settings.steps // (settings.envs * settings.rollout)
    for update in range(updates):
        rate = scheduled(update, peak=settings.learning_rate, warmup=0, decay="linear", total=updates)
        set_learning_rate(optimizer, rate)
        batch = _Rollout.empty(settings)
        for t in range(settings.rollout):
            now = torch.from_numpy(observation).float()
            with torch.no_grad():
                logprobs, values = model(now)
            actions = torch.multinomial(logprobs.exp(), 1)  # (E, 1)
            observation, rewards, terminated, truncated, info = envs.step(actions.squeeze(1).numpy())
            batch.put(t, now, actions, logprobs.gather(1, actions), values, rewards, terminated | truncated)
            if truncated.any():  # truncated, not terminated: bootstrap from the critic
                final = np.stack([info["final_obs"][e] for e in truncated.nonzero()[0]])
                with torch.no_grad():
                    batch.rewards[truncated, t] += settings.gamma * model(torch.from_numpy(final).float())[1]
            running += rewards
            over = terminated | truncated
            finished += running[over].tolist()
            running[over] = 0
        with torch.no_grad():
            _, after = model(torch.from_numpy(observation).float())
        _learn(model, optimizer, batch, after, settings)
    envs.close()
    return float(np.mean(finished[-last_episodes:])), float(np.mean(finished[:20]))


@dataclass
class _Rollout:
    """E environments by T steps."""

    observations: Tensor
    actions: Tensor
    logprobs: Tensor
    values: Tensor
    rewards: Tensor
    ends: Tensor

    @classmethod
    def empty(cls, settings: CleanRL) -> _Rollout:
        shape = (settings.envs, settings.rollout)
        return cls(
            torch.zeros(*shape, 4), torch.zeros(shape, dtype=torch.int64), *(torch.zeros(shape) for _ in range(4))
        )

    def put(
        self,
        t: int,
        observations: Tensor,
        actions: Tensor,
        logprobs: Tensor,
        values: Tensor,
        rewards: np.ndarray,
        ends: np.ndarray,
    ) -> None:
        """Store one step of all environments."""
        self.observations[:, t], self.values[:, t] = observations, values
        self.actions[:, t], self.logprobs[:, t] = actions.squeeze(1), logprobs.squeeze(1)
        self.rewards[:, t], self.ends[:, t] = torch.from_numpy(rewards), torch.from_numpy(ends)


def _learn(
    model: ActorCritic, optimizer: torch.optim.Optimizer, batch: _Rollout, after: Tensor, settings: CleanRL
) -> None:
    advantages = _advantages(batch, after, settings).flatten()
    returns = advantages + batch.values.flatten()
    observations, actions = batch.observations.flatten(0, 1), batch.actions.flatten()
    for _ in range(settings.epochs):
        for chosen in torch.randperm(len(actions)).chunk(settings.minibatches):
            logprobs, values = model(observations[chosen])
            entropy = -(logprobs.exp() * logprobs).sum(-1)
            new = logprobs.gather(1, actions[chosen, None]).squeeze(1)
            policy_loss, _ = clipped_policy_loss(
                new - batch.logprobs.flatten()[chosen],
                whiten(advantages[chosen], torch.ones_like(chosen, dtype=torch.bool)),
                clip_low=settings.clip,
                clip_high=settings.clip,
            )
            value_loss = clipped_value_loss(values, batch.values.flatten()[chosen], returns[chosen], clip=settings.clip)
            loss = policy_loss + settings.value_coefficient * value_loss - settings.entropy_coefficient * entropy
            optimizer.zero_grad()
            loss.mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
            optimizer.step()


def _advantages(batch: _Rollout, after: Tensor, settings: CleanRL) -> Tensor:
    """Episodes cross the borders of a rollout: each part of an episode becomes a separate row."""
    result = torch.zeros_like(batch.values)
    for e in range(settings.envs):
        begin = 0
        for end in [*(batch.ends[e].nonzero().squeeze(1) + 1).tolist(), settings.rollout]:
            if end == begin:
                continue
            over = bool(batch.ends[e, end - 1])
            result[e, begin:end] = generalized_advantages(
                batch.rewards[e : e + 1, begin:end],
                batch.values[e : e + 1, begin:end],
                torch.ones(1, end - begin, dtype=torch.bool),
                gamma=settings.gamma,
                lam=settings.lam,
                bootstrap=torch.zeros(1) if over else after[e : e + 1],
            )
            begin = end
    return result


def _network(outputs: int, gain: float) -> nn.Sequential:
    layers = [nn.Linear(4, 64), nn.Linear(64, 64), nn.Linear(64, outputs)]
    for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])
