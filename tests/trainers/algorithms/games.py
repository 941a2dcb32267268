"""A text environment that is learned in seconds, and a player with a tiny language model."""

from __future__ import annotations

import gymnasium
import numpy as np

from swe_trainers.algorithms.ppo import PPO
from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.engines.sampling import Sampling
from swe_trainers.model.chat import CompactChat
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.model.tokenizers import WordTokenizer
from swe_trainers.rollout.adapters import AnyText
from swe_trainers.rollout.play import play
from swe_trainers.rollout.settings import EpisodeStart, Limits

WORDS = ("a", "b", "c", "d")


class Echo(gymnasium.Env[str, str]):
    """Three turns, each with a reward of 1 for repeating the shown word. Without reading it the mean return is 3/4."""

    observation_space = AnyText()
    action_space = AnyText()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        return self._show(), {}

    def step(self, action):
        reward = float(action == self.shown)
        self.turn += 1
        return self._show(), reward, self.turn == 3, False, {}

    def _show(self):
        self.shown = WORDS[self.np_random.integers(len(WORDS))]
        return self.shown


class Player:
    """A tiny language model in a few copies of an environment, in lockstep, so that runs are bitwise repeatable."""

    def __init__(self, make=Echo, *, seed=0, parallel=8, max_new_tokens=1, words=WORDS):
        config = {
            "model_type": "llama",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
        }
        self.model = LanguageModel.from_config(config, WordTokenizer(words), seed=seed)
        self.envs = [make() for _ in range(parallel)]
        self.chat = CompactChat(self.model.tokenizer)
        self.engine = EmbeddedEngine(self.model, n_slots=parallel, max_tokens=48)
        self.limits = Limits(max_new_tokens=max_new_tokens)
        self.seed = seed

    def play(self, number, attempt=0, *, episodes=32, group_size=1):
        starts = [
            EpisodeStart(seed=1000 * number + 100_003 * attempt + i // group_size, group=i // group_size)
            for i in range(episodes)
        ]
        seed = 7919 * self.seed + number + 50_021 * attempt
        options = {"limits": self.limits, "sampling": Sampling(), "seed": seed, "lockstep": True}
        return play(self.engine, self.chat, self.envs, starts, **options)

    def mean_return(self, episodes=200):
        return float(np.mean([t.rewards.sum() for t in self.play(10**6, episodes=episodes)]))


ECHO_PPO = PPO(
    learning_rate=3e-3,
    adam_epsilon=1e-5,
    max_updates=40,
    episodes_per_update=32,
    epochs=2,
    minibatches=2,
    gamma=0.9,
    value_clip=None,
    entropy_coefficient=0.005,
)
