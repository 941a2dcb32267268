"""From the model's section of a configuration to a model, its tokenizer and its form of conversations."""

from __future__ import annotations

import gymnasium
import torch

from swe_trainers.engines.connect import on_device
from swe_trainers.errors import ConfigurationError
from swe_trainers.policy.chat import ChatFormat, CompactChat, TemplateChat
from swe_trainers.policy.corpus import tokenizer_of
from swe_trainers.policy.language_model import LanguageModel
from swe_trainers.policy.tokenizer import HuggingFaceTokenizer, Tokenizer, load_tokenizer
from swe_trainers.policy.word_tokenizer import WordTokenizer
from swe_trainers.run_config import ModelConfig

__all__ = ["make_chat", "make_model", "make_tokenizer"]


def make_model(config: ModelConfig, env: gymnasium.Env[str, str], *, seed: int, training: bool = True) -> LanguageModel:
    """A model by path, or of random weights.

    Args:
        config: the model's section.
        env: whose adapter's words belong to a vocabulary of words.
        seed: of random weights.
        training: with adapters and recomputed activations, as configured.
    Raises:
        ConfigurationError: it cannot be had.
    """
    tokenizer = make_tokenizer(config, env)
    make_chat(config, tokenizer)  # a template that cannot be trained with is told before weights are loaded
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.dtype]
    if config.path is not None:
        model = LanguageModel.from_pretrained(
            config.path, dtype=dtype, tokenizer=tokenizer, attention=config.attention, bits=config.bits
        )
    else:
        model = LanguageModel.from_config(config.architecture, tokenizer, seed=seed, attention=config.attention)
        model = model.to(dtype)
    device = ("cuda" if torch.cuda.is_available() else "cpu") if config.device == "auto" else config.device
    model = on_device(model, device, "model.device")
    if training and config.lora is not None:
        model.add_lora(config.lora, seed=seed)
    return model.recompute_activations() if training and config.recompute_activations else model


def make_tokenizer(config: ModelConfig, env: gymnasium.Env[str, str] | None) -> Tokenizer:
    """What a model speaks with.

    Args:
        config: the model's section.
        env: whose adapter's words belong to a vocabulary of words.
    Raises:
        ConfigurationError: it cannot be had.
    """
    if config.tokenizer == "words":
        texts = list(config.words)
        texts += env.get_wrapper_attr("vocabulary")() if env and env.has_wrapper_attr("vocabulary") else []
        return WordTokenizer.from_texts(texts)
    if config.sentencepiece is not None:
        return tokenizer_of(config.sentencepiece)
    source = config.tokenizer or config.path
    assert source is not None
    return load_tokenizer(source)


def make_chat(config: ModelConfig, tokenizer: Tokenizer) -> ChatFormat:
    """How conversations become tokens for this model."""
    template = isinstance(tokenizer, HuggingFaceTokenizer) if config.chat is None else config.chat == "template"
    if not template:
        return CompactChat(tokenizer)
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        raise ConfigurationError("model.chat: template needs a Hugging Face tokenizer. Try: compact")
    return TemplateChat(tokenizer)
