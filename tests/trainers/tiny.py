"""Small real models and tokenizers that the trainer's tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from swe_trainers.model.language_model import LanguageModel
from swe_trainers.model.tokenizers import Tokenizer, WordTokenizer

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "num_attention_heads": 2, "intermediate_size": 64},
    "qwen3": {"model_type": "qwen3", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
              "intermediate_size": 64},
    "gpt2": {"model_type": "gpt2", "n_head": 2, "n_positions": 256},
    "mistral-windowed": {
        "model_type": "mistral", "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 64,
        "sliding_window": 5,
    },
    "qwen2-half-windowed": {
        "model_type": "qwen2", "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 64,
        "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1,
    },
    "qwen3-experts": {
        "model_type": "qwen3_moe", "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    },
}  # fmt: skip

TINY = {
    "model_type": "llama", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "max_position_embeddings": 128,
}  # fmt: skip


def lake_run(folder: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    """A run of two short updates on the frozen lake, into `folder`/run; sections add to these or replace theirs."""
    config: dict[str, Any] = {
        "environment": {
            "id": "FrozenLake-v1", "adapter": "text", "parallel": 2, "max_turns": 4, "max_tokens": 96,
            "max_new_tokens": 2,
        },
        "model": {"architecture": TINY, "tokenizer": "words"},
        "trainer": {
            "algorithm": "ppo", "max_updates": 2, "episodes_per_update": 7, "epochs": 1, "minibatches": 2,
            "learning_rate": 0.01,
        },
        "output_dir": str(folder / "run"),
        "threads": 1,
    }  # fmt: skip
    for name, section in sections.items():
        config[name] = {**config.get(name, {}), **section}
    return config


def words(n: int = 40) -> WordTokenizer:
    return WordTokenizer([f"w{i}" for i in range(n)] + [" ", "\n"])


def tiny_model(
    family: str = "llama", tokenizer: Tokenizer | None = None, seed: int = 0, scale: float = 8.0, **config: Any
) -> LanguageModel:
    """Two layers, D 32, random weights, scaled up so that predictions are far from uniform and heed the context."""
    width = {"n_embd": 32, "n_layer": 2} if family == "gpt2" else {"hidden_size": 32, "num_hidden_layers": 2}
    model = LanguageModel.from_config({**FAMILIES[family], **width, **config}, tokenizer or words(), seed=seed)
    with torch.no_grad():
        for parameter in model.causal_lm.parameters():
            if parameter.ndim == 2:
                parameter.mul_(scale)
    return model.eval()


def full_logprobs(model: LanguageModel, ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """(T,) float32 log p(token t | tokens < t) by transformers' own pass over the whole sequence; 0 for the first."""
    with torch.no_grad():
        logits = model.causal_lm(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1].float() / temperature
    picked = logits.log_softmax(-1).gather(-1, torch.tensor(ids)[1:, None]).squeeze(-1)
    return torch.cat([torch.zeros(1), picked])
