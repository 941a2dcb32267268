"""The model and episodes of `update` and `generation`: a Qwen3 of about 1 B parameters with random weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from swe_trainers.model.language_model import LanguageModel
from swe_trainers.model.loading import hugging_face_config
from swe_trainers.model.tokenizers import WordTokenizer
from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["episodes", "policy", "shape"]


def shape(*, tiny: bool) -> dict[str, Any]:
    """The configuration of the model."""
    sizes = {"hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 20, "num_attention_heads": 16}
    if tiny:
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    heads = {"num_key_value_heads": sizes["num_attention_heads"] // 2, "head_dim": 16 if tiny else 128}
    return {"model_type": "qwen3", **sizes, **heads, "max_position_embeddings": 8192, "tie_word_embeddings": True}


def policy(device: str) -> LanguageModel:
    """The model in bfloat16 on a GPU; a tiny one in float32 on a CPU."""
    tiny = device == "cpu"
    words = WordTokenizer([f"w{number}" for number in range(100 if tiny else 151900)])
    config = hugging_face_config(shape(tiny=tiny), words)
    with torch.device(device):  # a CPU would draw the random weights for half a minute
        stock = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    model = LanguageModel(stock, words)
    return model.to(device) if tiny else model.to(device, torch.bfloat16)


def episodes(vocabulary: int, *, tiny: bool, shared: bool) -> list[Trajectory]:
    """Sixteen episodes of 2,048 tokens in four turns, in two groups; one token in five is an action token.

    Args:
        shared: the first half of the tokens is the same in all episodes of a group.
    """
    draw, length, n = np.random.default_rng(0), 40 if tiny else 2048, 4 if tiny else 16
    turn = np.arange(length) % (length // 4)
    acted = turn >= length // 4 - length // 20  # the last fifth of each turn
    made = []
    for number in range(n):
        rewards = np.zeros(length, np.float32)
        rewards[-1] = number % 2
        logprobs = np.full(length, -np.log(vocabulary), np.float32)
        ids = draw.integers(10, vocabulary, length)
        if shared and number % (n // 2):
            ids[: length // 2] = made[-1].token_ids[: length // 2]
        made.append(Trajectory(ids, acted, logprobs, rewards, True, False, group=number // (n // 2)))
    return made
