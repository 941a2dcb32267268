"""A model in a folder, Hugging Face's or what `swe-train` left, made ready to answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from swe_trainers.config import build, read_config
from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import ConfigurationError
from swe_trainers.evaluation.local import LocalModel
from swe_trainers.policy.chat import CompactChat, TemplateChat
from swe_trainers.policy.language_model import LanguageModel
from swe_trainers.policy.tokenizer import HuggingFaceTokenizer
from swe_trainers.run_config import ModelConfig

__all__ = ["open_folder"]

_MOST_TOKENS = 32_768
"""Of a conversation, where nobody says how many and the model would take more: its cache must fit."""
_KEPT = ("chat", "dtype", "device", "attention")
"""What a run's own configuration says of how its model is used."""


def open_folder(
    folder: Path,
    *,
    dtype: str | None,
    device: str | None,
    threads: int | None,
    temperature: float,
    max_new_tokens: int,
    max_tokens: int | None,
) -> tuple[Callable[[int], LocalModel], str | None]:
    """Load a model.

    Args:
        folder: of the model, or of a run whose `model` is taken, with what its `config.yaml` says of it.
        dtype: of the weights; None: the run's, else bfloat16 on a GPU and float32 elsewhere.
        device: None: the run's, else a GPU where there is one.
        threads: of PyTorch; None for its own choice.
        temperature: of sampling.
        max_new_tokens: of one answer.
        max_tokens: of a conversation; None: what the model takes, `_MOST_TOKENS` at most.
    Returns:
        What makes the model that answers, given how many conversations there are at a time; and its chat template,
        None where it has none.
    Raises:
        ConfigurationError: there is no such model, or it cannot be used so.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    config = _configuration(folder, dtype, device)
    model = _loaded(config)
    if max_tokens is not None and model.max_positions is not None and max_tokens > model.max_positions:
        raise ConfigurationError(f"--max-tokens {max_tokens}: the model takes {model.max_positions}")
    room = max_tokens or min(model.max_positions or _MOST_TOKENS, _MOST_TOKENS)
    chat = _chat(config, model)
    template = None
    if isinstance(chat, TemplateChat) and isinstance(model.tokenizer, HuggingFaceTokenizer):
        template = model.tokenizer.inner.chat_template

    def ready(n_parallel: int) -> LocalModel:
        engine = EmbeddedEngine(model, n_slots=n_parallel, max_tokens=room)
        return LocalModel(engine, chat, sampling=Sampling(temperature=temperature), max_new_tokens=max_new_tokens)

    return ready, template if isinstance(template, str) else None


def _configuration(folder: Path, dtype: str | None, device: str | None) -> ModelConfig:
    """Where the weights are, and how they are used."""
    settings: dict[str, object] = {}
    if (folder / "model").is_dir():
        folder = folder / "model"
        written = folder.parent / "config.yaml"
        section = read_config(written).get("model") if written.is_file() else None
        if isinstance(section, dict):
            settings = {key: value for key, value in section.items() if key in _KEPT}
    chosen = {"dtype": dtype, "device": device}
    settings |= {key: value for key, value in chosen.items() if value is not None}
    if settings.get("device", "auto") == "auto":
        settings["device"] = "cuda" if torch.cuda.is_available() else "cpu"
    if "dtype" not in settings:
        settings["dtype"] = "float32" if settings["device"] == "cpu" else "bfloat16"
    return build(ModelConfig, settings | {"path": str(folder.absolute())}, f"--model {folder}")


def _loaded(config: ModelConfig) -> LanguageModel:
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.dtype]
    model = LanguageModel.from_pretrained(str(config.path), dtype=dtype, attention=config.attention)
    try:
        return model.to(config.device).eval()
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA raises an AssertionError
        raise ConfigurationError(f"--device {config.device}: {str(error).splitlines()[0]}") from error


def _chat(config: ModelConfig, model: LanguageModel) -> CompactChat | TemplateChat:
    tokenizer = model.tokenizer
    template = isinstance(tokenizer, HuggingFaceTokenizer) and bool(tokenizer.inner.chat_template)
    if config.chat == "compact" or not template:
        return CompactChat(tokenizer)
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    return TemplateChat(tokenizer)
