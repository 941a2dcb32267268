"""Stable-Baselines3's PPO in games that it can play too, at equal environment steps, as RL Baselines3 Zoo sets it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from benchmarks.learning_tasks import TASKS
from swe_trainers.config import named

__all__ = ["PEERS", "peer_return"]

_ENVS = 8
_DEFAULTS: dict[str, Any] = {"n_steps": 2048 // _ENVS}
"""Of Stable-Baselines3, which plays 2,048 steps an update; for the games that the Zoo has no settings for."""
_MINIGRID: dict[str, Any] = {
    "n_steps": 128,
    "batch_size": 64,
    "n_epochs": 10,
    "gae_lambda": 0.95,
    "gamma": 0.99,
    "learning_rate": 2.5e-4,
}
_CARTPOLE: dict[str, Any] = {
    "n_steps": 32,
    "batch_size": 256,
    "n_epochs": 20,
    "gae_lambda": 0.8,
    "gamma": 0.98,
    "learning_rate": lambda left: 1e-3 * left,
    "clip_range": lambda left: 0.2 * left,
}


@dataclass(frozen=True)
class Peer:
    """A game as Stable-Baselines3 plays it: in numbers, with eight environments and no entropy bonus.

    Attributes:
        game: its identifier in Gymnasium.
        settings: for `stable_baselines3.PPO`.
        observe: the wrapper that makes an observation a vector, as `module:name`; "" where none is needed.
        normalised: observations and rewards, by `VecNormalize`.
        kwargs: for the game.
    """

    game: str
    settings: dict[str, Any] = field(default_factory=lambda: _DEFAULTS)
    observe: str = ""
    normalised: bool = False
    kwargs: dict[str, Any] = field(default_factory=dict)


_FLAT = "minigrid.wrappers:FlatObsWrapper"
PEERS = {
    "frozen_lake": Peer("FrozenLake-v1", kwargs={"is_slippery": False}),
    "cliff_walking": Peer("CliffWalking-v1"),
    "cartpole": Peer("CartPole-v1", _CARTPOLE),
    "taxi_legal": Peer("Taxi-v4"),
    "blackjack": Peer("Blackjack-v1", observe="gymnasium.wrappers:FlattenObservation"),
    "minigrid_empty": Peer("MiniGrid-Empty-5x5-v0", _MINIGRID, _FLAT, normalised=True),
    "minigrid_doorkey": Peer("MiniGrid-DoorKey-5x5-v0", _MINIGRID, _FLAT, normalised=True),
}
"""Tasks of `benchmarks.learning_tasks`, and the same games in numbers."""


def peer_return(task: str, steps: int, seed: int) -> float:
    """The mean return after training.

    Measured as the task measures ours: as many episodes and turns, and sampled actions unless its temperature is 0.
    Rewards are clipped in training where the task clips ours.

    Args:
        task: of `PEERS`.
        steps: of the environment, in training.
        seed: of the training; what is measured begins at seed 1,000,000.
    """
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    ours, peer = TASKS[task], PEERS[task]
    observe = named(peer.observe, "wrapper") if peer.observe else None  # importing it registers the package's games

    def make(training: bool = True) -> gymnasium.Env[Any, Any]:
        env: gymnasium.Env[Any, Any] = gymnasium.make(
            peer.game, max_episode_steps=ours.environment.get("max_turns"), **peer.kwargs
        )
        for wrapper in ours.environment.get("training_wrappers", []) if training else []:
            env = named(wrapper["name"], "wrapper")(env, **wrapper["kwargs"])
        return observe(env) if observe else env

    envs = make_vec_env(make, n_envs=_ENVS, seed=seed)
    normalised = VecNormalize(envs) if peer.normalised else None
    model = PPO("MlpPolicy", normalised or envs, seed=seed, device="cpu", **peer.settings)
    model.learn(steps)
    env, returns = make(training=False), []
    for number in range(ours.evaluation["episodes"]):
        seen, _ = env.reset(seed=1_000_000 + number)
        total, over = 0.0, False
        while not over:
            shown = normalised.normalize_obs(seen) if normalised else seen
            action, _ = model.predict(shown, deterministic=ours.evaluation.get("temperature") == 0)
            seen, reward, terminated, truncated, _ = env.step(int(action))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    env.close()
    envs.close()
    return float(np.mean(returns))
