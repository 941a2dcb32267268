"""The tasks of `benchmarks.learning`, their algorithms, and their demonstrations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.text_games import random_action
from swe_trainers.algorithms.grpo import GroupRelative
from swe_trainers.config import read_config
from swe_trainers.experiment import make_env, make_model, make_rollouts
from swe_trainers.model.chat import chat_format
from swe_trainers.rollout.demonstrations import Demonstration, demonstrated
from swe_trainers.rollout.rollouts import LocalWorkers
from swe_trainers.rollout.trajectory import Trajectory, write_trajectories
from swe_trainers.run_config import RunConfig, run_config
from swe_trainers.trainer import Trainer

__all__ = [
    "ALGORITHMS",
    "ANCHORED",
    "OFFLINE",
    "SMALL_TASKS",
    "TASKS",
    "Config",
    "Task",
    "configuration",
    "random_return",
    "record_expert",
    "record_played",
    "task_of",
]

Config = dict[str, Any]

_EXAMPLES = Path(__file__).parents[1] / "examples" / "configs"


MODEL: Config = {
    "architecture": {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
    },
    "tokenizer": "words",
}
LOOK_DIFFERENT = {**MODEL, "architecture": {**MODEL["architecture"], "initializer_range": 0.2}}
# With two heads, half of the seeds took long until one head attended to the relevant word.
_FOUR = {**MODEL["architecture"], "num_attention_heads": 4, "num_key_value_heads": 4}
FOUR_HEADS = {**MODEL, "architecture": {**_FOUR, "initializer_range": 0.1}}
FOUR_HEADS_APART = {**MODEL, "architecture": {**_FOUR, "initializer_range": 0.2}}
_TWO_LAYERS = {**_FOUR, "num_hidden_layers": 2}
TWO_LAYERS_APART = {**MODEL, "architecture": {**_TWO_LAYERS, "initializer_range": 0.1}}
_NARROW = {"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 64}
UNTIL_LEARNT = {"episodes": 200, "every": 20, "success_above": 0.99, "stop_at_success": 0.95}


@dataclass(frozen=True)
class Task:
    """An environment and the return to reach.

    Attributes:
        environment: the section of the configuration.
        bar: the return that every seed must reach.
        updates: of 64 episodes.
        model: the section of the configuration.
        trainer: settings for every algorithm.
        evaluation: the section of the configuration.
        rollout: the section of the configuration.
        package: that the extra `games` brings, which the environment is from; "" for none.
    """

    environment: Config
    bar: float
    updates: int
    model: Config
    trainer: Config
    evaluation: Config = field(default_factory=lambda: {"episodes": 200})
    rollout: Config = field(default_factory=dict)
    package: str = ""


def _game(name: str, *, max_tokens: int, max_new_tokens: int = 1) -> Config:
    return {
        "id": f"benchmarks.text_games:{name}-v0",
        "parallel": 32,
        "max_tokens": max_tokens,
        "max_new_tokens": max_new_tokens,
    }


TASKS = {
    "copy": Task(_game("Copy", max_tokens=24, max_new_tokens=4), 0.8, 240, FOUR_HEADS, {}, UNTIL_LEARNT),
    "parity": Task(_game("Parity", max_tokens=24), 0.9, 120, FOUR_HEADS, {}, UNTIL_LEARNT),
    "guess": Task(_game("Guess", max_tokens=40), 0.8, 160, FOUR_HEADS, {}, UNTIL_LEARNT),
    "frozen_lake": Task(
        {
            "id": "FrozenLake-v1",
            "kwargs": {"is_slippery": False},
            "adapter": "text",
            "adapter_kwargs": {"actions": ["left", "down", "right", "up"]},
            "parallel": 32,
            "max_turns": 30,
            "max_tokens": 160,
            "max_new_tokens": 1,
        },
        0.9,
        60,
        MODEL,
        {"gamma": 0.98, "learning_rate": 1e-3, "entropy_coefficient": 0.01},
    ),
    "cartpole": Task(
        {
            "id": "CartPole-v1",
            "adapter": "text",
            "adapter_kwargs": {
                "actions": ["left", "right"],
                "bins": 6,
                "box_range": [[-2.4, 2.4], [-2.0, 2.0], [-0.2, 0.2], [-2.0, 2.0]],
            },
            "parallel": 32,
            "max_turns": 60,
            "max_tokens": 64,
            "max_new_tokens": 1,
        },
        50.0,
        80,
        FOUR_HEADS_APART,
        {
            "gamma": 0.98,
            "reward_scale": 0.1,
            "episodes_per_update": 32,
            "epochs": 4,  # with two epochs of four minibatches, four of five seeds fell in some episodes at the end
            "minibatches": 8,
            "warmup_updates": 5,
            "entropy_coefficient": 0.01,
            "entropy_decay": "linear",
        },
        rollout={"history": "last"},
    ),
    "taxi": Task(
        {
            **_game("TextTaxi", max_tokens=500),
            "max_turns": 40,
        },
        -60.0,  # avoiding illegal actions gives −40; delivering passengers takes far more episodes
        120,
        LOOK_DIFFERENT,
        {
            "learning_rate": 2e-3,
            "decay": "linear",
            "episodes_per_update": 32,
            "minibatches": 4,
            "reward_scale": 0.1,
            "gamma": 0.98,
            "entropy_coefficient": 0.01,
        },
    ),
    "coin_collector": Task(
        {**_game("CoinCollector", max_tokens=360, max_new_tokens=3), "max_turns": 14},
        0.9,
        120,
        TWO_LAYERS_APART,
        {"learning_rate": 1e-3, "minibatches": 4, "gamma": 0.99, "entropy_coefficient": 0.01},
        {"episodes": 300},
        {"constrained": True},
    ),
    "higher_lower": Task(
        _game("HigherLower", max_tokens=800),
        0.6,
        160,
        TWO_LAYERS_APART,
        {"learning_rate": 1e-3, "minibatches": 4, "gamma": 0.95, "entropy_coefficient": 0.01},
        {"episodes": 200},
        {"constrained": True},
    ),
    "blackjack": Task(  # examples/configs/blackjack.yaml
        {
            "id": "Blackjack-v1",
            "adapter": "text",
            "adapter_kwargs": {"actions": ["stick", "hit"]},
            "parallel": 256,
            "max_turns": 20,
            "max_tokens": 16,
            "max_new_tokens": 1,
        },
        -0.07,
        100,
        {**LOOK_DIFFERENT, "architecture": {**LOOK_DIFFERENT["architecture"], **_NARROW}},
        {
            "decay": "linear",
            "episodes_per_update": 1024,
            "epochs": 1,
            "minibatches": 4,
            "lam": 1.0,
            "entropy_coefficient": 0.1,
            "entropy_decay": "linear",
        },
        {"episodes": 20_000, "temperature": 0},
        {"history": "last"},
    ),
}


def _example(name: str, bar: float, package: str = "") -> Task:
    """A task that is a file of examples/configs."""
    values = read_config(_EXAMPLES / f"{name}.yaml")
    trainer = {key: value for key, value in values["trainer"].items() if key != "algorithm"}
    return Task(
        values["environment"],
        bar,
        trainer.pop("max_updates"),
        values["model"],
        trainer,
        values["evaluation"],
        values["rollout"],
        package,
    )


_DOORKEY = _example("minigrid", 0.9, "minigrid")
TASKS |= {
    "cliff_walking": _example("cliff_walking", -30.0),
    "taxi_legal": _example("taxi", 6.0),
    "minigrid_empty": replace(
        _DOORKEY, environment={**_DOORKEY.environment, "kwargs": {"game": "MiniGrid-Empty-5x5-v0"}}, updates=30
    ),
    "minigrid_doorkey": _DOORKEY,
    "textworld_coins": _example("textworld_coins", 0.9, "textworld"),
    "textarena_guess": _example("textarena", 0.95, "textarena"),
}

_TAXI_GROUPS = _example("taxi_grpo", 0.0)
_VARIANTS = {("taxi_legal", name): _TAXI_GROUPS for name in ("grpo", "rloo")}
"""Tasks for which an algorithm has settings of its own, all in the example."""


def task_of(name: str, algorithm: str) -> Task:
    """The task as an algorithm plays it."""
    return _VARIANTS.get((name, algorithm), TASKS[name])


COMMON: Config = {
    "learning_rate": 2e-3,
    "decay": "linear",
    "adam_epsilon": 1e-5,
    "episodes_per_update": 64,
    "entropy_coefficient": 0.1,
}
ALGORITHMS: dict[str, Config] = {
    "ppo": {"algorithm": "ppo", "value_clip": None},
    "ppo-separate": {"algorithm": "ppo", "critic": "separate", "value_clip": None},
    "grpo": {"algorithm": "grpo", "kl_coefficient": 1e-3},
    "dr_grpo": {"algorithm": "dr_grpo", "entropy_coefficient": 0.03},
    "dapo": {"algorithm": "dapo"},
    "gspo": {"algorithm": "gspo", "clip_low": 0.2, "clip_high": 0.2},
    "rloo": {"algorithm": "rloo"},
    "reinforce": {"algorithm": "reinforce", "entropy_coefficient": 0.03},
    "reinforce++": {"algorithm": "reinforce_plus_plus"},
    "reinforce++-baseline": {"algorithm": "reinforce_plus_plus", "group_size": 8},
    # leaves of 16 trees; for one-turn episodes, of their four branches
    "monte_carlo_tree": {"algorithm": "monte_carlo_tree", "branching": 4, "max_depth": 2, "episodes_per_update": 256},
    "cloning": {"algorithm": "cloning", "epochs": 40},
    "reward_model": {"algorithm": "reward_model", "kind": "pairwise", "minibatch_episodes": 64, "learning_rate": 2e-3},
}
SMALL_TASKS = ("copy", "parity", "guess")


ANCHORED: dict[str, tuple[Config, Config]] = {
    "copy": ({"epochs": 6}, {"kl_coefficient": 1.0, "entropy_coefficient": 0.0, "learning_rate": 1e-3})
}
"""Tasks in which PPO against a reward model begins at a clone of the episodes that the model knows, and stays near it:
changes to the training of the reward model, and to PPO's.

From random weights PPO finds answers to `copy` that the reward model has never met and likes best of all. Its scores
differ by about 5, so a small KL coefficient leads there too: with 0.05 two of five seeds learn, with 0.3 four, with 1
five."""

OFFLINE = ("cloning", "reward_model")
"""Algorithms that learn from recorded episodes."""

GAMMA = ("ppo", "reinforce", "reinforce_plus_plus")
"""Algorithms that know a discount."""


def configuration(
    task_name: str, algorithm_name: str, seed: int, directory: Path, *, changes: Config | None = None
) -> RunConfig:
    """The configuration for `swe-train`; `changes` apply to the trainer's section."""
    task, algorithm = task_of(task_name, algorithm_name), ALGORITHMS[algorithm_name]
    if (task_name, algorithm_name) in _VARIANTS:
        algorithm = {"algorithm": algorithm["algorithm"]}
    online = algorithm_name not in OFFLINE
    trainer = {**COMMON, "max_updates": task.updates, **task.trainer, **algorithm} if online else {**algorithm}
    known = {"critic", "value_clip", "whiten_advantages", "lam"}  # by PPO alone
    if algorithm["algorithm"] != "ppo":
        trainer = {key: value for key, value in trainer.items() if key not in known}
    if "gamma" in trainer and (algorithm["algorithm"] not in GAMMA or "group_size" in algorithm):
        del trainer["gamma"]
    if algorithm["algorithm"] == "reinforce":  # one optimizer step per update instead of four
        trainer["max_updates"] *= 2
    trainer |= changes or {}
    return run_config(
        {
            "environment": task.environment,
            "model": task.model,
            "trainer": trainer,
            "evaluation": task.evaluation if online else {"episodes": 200},
            "rollout": task.rollout,
            "output_dir": str(directory),
            "seed": seed,
            "threads": 1,
            "checkpoint_every": 50,
        }
        | ({} if online else {"demonstrations": str(directory / "recorded.jsonl")})
    )


@cache
def random_return(task: str, episodes: int = 400) -> float:
    """The mean return of random legal actions, with the same limits."""
    environment = configuration(task, "ppo", 0, Path("unused")).environment
    env, random, returns = make_env(environment), np.random.default_rng(0), []
    for seed in range(episodes):
        _, info = env.reset(seed=seed)
        total, over, turns = 0.0, False, 0
        while not over:
            _, reward, terminated, truncated, info = env.step(random_action(env, random, info))
            total, turns = total + float(reward), turns + 1
            over = terminated or truncated or turns == environment.max_turns
        returns.append(total)
    env.close()
    return float(np.mean(returns))


def record_expert(task: str, seed: int, path: Path, episodes: int = 512) -> None:
    """Episodes of an expert."""
    config = configuration(task, "ppo", seed, path.parent)
    env = make_env(config.environment)
    tokenizer = make_model(config.model, env, seed=0).tokenizer
    chat, shown = chat_format(tokenizer, config.model.chat), list[Trajectory]()
    for number in range(episodes):
        observation, _ = env.reset(seed=1_000_000 + number)
        observations, actions, over = [observation], list[str](), False
        while not over:
            actions.append(EXPERTS[task](observations, actions))
            observation, _, terminated, truncated, _ = env.step(actions[-1])
            over = terminated or truncated
            observations.append(observation)
        shown.append(demonstrated(Demonstration(observations[:-1], actions), chat, tokenizer))
    write_trajectories(path, shown)


def record_played(task: str, seed: int, path: Path, updates: int = 60) -> None:
    """Episodes of another model during GRPO, in groups from the same start: bad and good ones."""
    config = configuration(task, "grpo", seed, path.parent)
    settings, played = config.trainer, list[Trajectory]()
    assert isinstance(settings, GroupRelative)
    envs = [make_env(config.environment) for _ in range(config.environment.parallel)]
    model = make_model(config.model, envs[0], seed=seed + 1000)
    limits = config.environment
    workers = LocalWorkers.embedded(
        model,
        chat_format(model.tokenizer, config.model.chat),
        envs,
        max_tokens=limits.max_tokens,
        lockstep=limits.lockstep,
    )
    rollouts = make_rollouts(workers, limits, config.rollout, seed + 1000)

    def keep(trainer: Trainer, metrics: dict[str, Any]) -> None:
        offset = len(trainer.episodes) * (int(trainer.learner.updates) - 1)
        played.extend(replace(t, group=t.group + offset) for t in trainer.episodes)

    Trainer(model, rollouts, settings, callbacks=[keep], seed=seed).train(updates)
    write_trajectories(path, played)


def _halving(observations: Sequence[str], actions: Sequence[str]) -> str:
    low, high = 1, 3
    for guess, answer in zip(actions, observations[1:], strict=True):
        low, high = (int(guess) + 1, high) if answer == "higher" else (low, int(guess) - 1)
    return str((low + high) // 2)


EXPERTS: dict[str, Callable[[Sequence[str], Sequence[str]], str]] = {
    "copy": lambda observations, actions: observations[-1],
    "parity": lambda observations, actions: ("even", "odd")[int(observations[-1]) % 2],
    "guess": _halving,
}
