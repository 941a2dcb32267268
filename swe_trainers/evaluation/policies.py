"""What is evaluated: a model behind a chat endpoint, or one in a folder, of `save_pretrained` or of `swe-train`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from swe_trainers.config import build, read_config
from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.engines.protocol import Engine, MessageEngine
from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import ConfigurationError
from swe_trainers.evaluation.usage import Prices
from swe_trainers.model.chat import ChatFormat, TemplateChat, chat_format
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.rollout.settings import EpisodeSettings, Limits
from swe_trainers.run_config import ModelConfig, RolloutConfig, of_trained_weights

__all__ = ["Policy", "open_folder"]

_MAX_TOKENS = 32_768
"""Default limit of a conversation, if the model accepts more: its cache must fit into memory."""


@dataclass(frozen=True)
class Policy:
    """A model that can be evaluated.

    Attributes:
        engine: with a slot for each parallel episode.
        chat: turns conversations into tokens; None if the engine takes messages.
        settings: how its episodes are played.
        prices: of its tokens.
        template: its chat template, from which an environment may choose the action format.
    """

    engine: Engine | MessageEngine
    chat: ChatFormat | None = None
    settings: EpisodeSettings = EpisodeSettings(Limits(1), grade_when_full=True)
    prices: Prices | None = None
    template: str | None = None

    def playing_as(self, rollout: RolloutConfig) -> Policy:
        """The same policy, which reads and may write what a run's `rollout` says."""
        settings = replace(
            self.settings,
            limits=replace(self.settings.limits, stop_strings=rollout.stop_strings),
            history=rollout.history,
            constrained=rollout.constrained,
            grammar=rollout.grammar,
        )
        return replace(self, settings=settings)


def open_folder(
    folder: Path,
    *,
    dtype: str | None,
    device: str | None,
    threads: int | None,
    n_parallel: int,
    temperature: float,
    max_new_tokens: int,
    max_tokens: int | None,
    chat: str | None = None,
) -> Policy:
    """Load a model.

    Args:
        folder: of the model, or of a run, whose `model` is loaded with the settings in its `config.yaml`.
        dtype: of the weights; None: the run's, else bfloat16 on a GPU and float32 elsewhere.
        device: None: the run's, else a GPU if there is one.
        threads: of PyTorch; None for its default.
        n_parallel: episodes at once.
        temperature: of sampling.
        max_new_tokens: of one answer.
        max_tokens: of a conversation; None: the model's limit, at most `_MAX_TOKENS`.
        chat: as in `ModelConfig`; None: the run's, else by the tokenizer.
    Raises:
        ConfigurationError: there is no such model, or it cannot be loaded like this.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    config = _configuration(folder, dtype, device, chat)
    weights_dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.dtype]
    model = LanguageModel.from_pretrained(str(config.path), dtype=weights_dtype, attention=config.attention)
    model.float32_logits = config.float32_logits
    try:
        model = model.to(config.device).eval()
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA raises an AssertionError
        raise ConfigurationError(f"--device {config.device}: {str(error).splitlines()[0]}") from error
    if max_tokens is not None and model.max_positions is not None and max_tokens > model.max_positions:
        raise ConfigurationError(f"--max-tokens {max_tokens}: the model has {model.max_positions} positions")
    chat_of_model = chat_format(model.tokenizer, config.chat)
    template = chat_of_model.tokenizer.inner.chat_template if isinstance(chat_of_model, TemplateChat) else None
    limit = max_tokens or min(model.max_positions or _MAX_TOKENS, _MAX_TOKENS)
    return Policy(
        EmbeddedEngine(model, n_slots=n_parallel, max_tokens=limit),
        chat_of_model,
        EpisodeSettings(Limits(max_new_tokens), Sampling(temperature=temperature), grade_when_full=True),
        template=template if isinstance(template, str) else None,
    )


def _configuration(folder: Path, dtype: str | None, device: str | None, chat: str | None) -> ModelConfig:
    """The model's folder, dtype and device."""
    section = None
    if (folder / "model").is_dir():
        folder = folder / "model"
        written = folder.parent / "config.yaml"
        section = read_config(written).get("model") if written.is_file() else None
    settings = of_trained_weights(section if isinstance(section, dict) else {}, folder)
    chosen = {"dtype": dtype, "device": device, "chat": chat}
    settings |= {key: value for key, value in chosen.items() if value is not None}
    if settings.get("device", "auto") == "auto":
        settings["device"] = "cuda" if torch.cuda.is_available() else "cpu"
    if "dtype" not in settings:
        settings["dtype"] = "float32" if settings["device"] == "cpu" else "bfloat16"
    if settings["dtype"] == "float32":
        settings.pop("float32_logits", None)  # it has no effect there
    return build(ModelConfig, settings, f"--model {folder}")
