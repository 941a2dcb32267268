"""Stable-Baselines3's PPO in games that it can play too, at equal environment steps, as RL Baselines3 Zoo sets it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

__all__ = ["PEERS", "peer_return"]

PEERS = {"minigrid_empty": "MiniGrid-Empty-5x5-v0", "minigrid_doorkey": "MiniGrid-DoorKey-5x5-v0"}
"""Tasks of `benchmarks.learning_tasks`, and the same game with numbers."""

_ZOO: dict[str, Any] = {
    "n_steps": 128,
    "batch_size": 64,
    "n_epochs": 10,
    "gae_lambda": 0.95,
    "gamma": 0.99,
    "learning_rate": 2.5e-4,
}
"""`ppo.yml` of RL Baselines3 Zoo for MiniGrid: eight environments, normalised, `FlatObsWrapper`, no entropy bonus."""
_ENVS = 8


def peer_return(task: str, steps: int, seed: int, episodes: int = 200) -> float:
    """The mean return of sampled actions after training.

    Args:
        task: of `PEERS`.
        steps: of the environment, in training.
        seed: of the training; what is measured begins at seed 1,000,000.
        episodes: to measure.
    """
    from minigrid.wrappers import FlatObsWrapper
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    def make() -> gymnasium.Env[Any, Any]:
        env: gymnasium.Env[Any, Any] = FlatObsWrapper(gymnasium.make(PEERS[task]))
        return env

    envs = VecNormalize(make_vec_env(make, n_envs=_ENVS, seed=seed))
    model = PPO("MlpPolicy", envs, seed=seed, device="cpu", **_ZOO)
    model.learn(steps)
    env, returns = make(), []
    for number in range(episodes):
        seen, _ = env.reset(seed=1_000_000 + number)
        total, over = 0.0, False
        while not over:
            action, _ = model.predict(envs.normalize_obs(seen), deterministic=False)
            seen, reward, terminated, truncated, _ = env.step(int(action))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    env.close()
    envs.close()
    return float(np.mean(returns))
