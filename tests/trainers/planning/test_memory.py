"""The estimate of `planning.memory` against the memory of real updates of small models on the CPU."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from swe_trainers.model.language_model import LanguageModel
from swe_trainers.model.tokenizers import WordTokenizer
from swe_trainers.planning.architecture import architecture_of
from swe_trainers.planning.memory import estimate_memory
from swe_trainers.rollout.trajectory import Trajectory, Turn
from swe_trainers.run_config import RunConfig, run_config
from tests.trainers.planning.peak import Peak

WORDS = 3900
TOKENS, PROMPT = 512, 8
WIDE = {"model_type": "qwen3", "hidden_size": 256, "num_hidden_layers": 3, "intermediate_size": 1024,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}  # fmt: skip
DEEP = {"model_type": "llama", "hidden_size": 128, "num_hidden_layers": 8, "intermediate_size": 256,
        "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32}  # fmt: skip


def configured(architecture: dict[str, Any], trainer: dict[str, Any], **model: Any) -> RunConfig:
    return run_config(
        {
            "environment": {"id": "Any-v0", "parallel": 1, "max_tokens": TOKENS},
            "engine": {"kind": "vllm", "url": "http://nowhere", "weights": "/nowhere"},  # no cache in this process
            "model": {"architecture": architecture, "tokenizer": "words", "words": ["a"], **model},
            "trainer": {"episodes_per_update": 4, "minibatches": 1, "epochs": 1, "microbatch_tokens": 1024, **trainer},
        }
    )


def measured(config: RunConfig) -> int:
    """Peak bytes of two updates, each with one micro-batch of episodes of action tokens after a short prompt."""
    tokenizer = WordTokenizer([f"w{i}" for i in range(WORDS)])
    model = LanguageModel.from_config(config.model.architecture, tokenizer, seed=0)
    model = model.to({"float32": torch.float32, "bfloat16": torch.bfloat16}[config.model.dtype])
    if config.model.lora is not None:
        model.add_lora(config.model.lora)
    if config.model.recompute_activations:
        model.recompute_activations()
    random = np.random.default_rng(0)
    episodes = []
    for number in range(config.trainer.microbatch_tokens // TOKENS):
        actions = np.zeros(TOKENS, dtype=bool)
        actions[PROMPT:] = True
        rewards = np.zeros(TOKENS, dtype=np.float32)
        rewards[-1] = number % 2
        logprobs = np.where(actions, -8, 0).astype(np.float32)
        ids = random.integers(0, WORDS, TOKENS)
        turns = (Turn("read", "act", float(number % 2), PROMPT, TOKENS),)
        episodes.append(Trajectory(ids, actions, logprobs, rewards, True, False, turns=turns, group=number // 2))
    with Peak(itertools.chain(model.parameters(), model.buffers())) as peak:
        learner = config.trainer.start(model)
        for _ in range(2):
            config.trainer.update(learner, episodes)
    return peak.bytes


@pytest.mark.parametrize(
    ("architecture", "trainer", "model"),
    [
        (WIDE, {}, {}),
        (WIDE, {"microbatch_tokens": TOKENS}, {"dtype": "bfloat16"}),  # slow on a CPU
        (WIDE, {}, {"recompute_activations": True}),
        (WIDE, {}, {"lora": {"rank": 8}}),
        (DEEP, {"kl_coefficient": 0.01}, {}),
        (DEEP, {"critic": "separate"}, {"recompute_activations": True}),
    ],
    ids=["plain", "bfloat16", "recomputed", "lora", "reference", "critic"],
)
def test_the_estimate_is_within_a_third_of_the_measured_peak(architecture, trainer, model):
    config = configured(architecture, {"algorithm": "ppo", **trainer}, **model)
    shape = architecture_of(None, config.model.architecture, vocabulary=WORDS + 5)
    estimate = estimate_memory(config, shape, cuda=False).peak
    taken = measured(config)
    assert 0.75 <= estimate / taken <= 4 / 3, f"{estimate / 2**20:.1f} MiB estimated, {taken / 2**20:.1f} MiB taken"
