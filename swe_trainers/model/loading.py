"""Weights and configurations of Hugging Face models from folders, names and mappings."""

from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from swe_trainers.config import similar
from swe_trainers.errors import ConfigurationError, install_hint
from swe_trainers.model.hub import loadable, reason_of
from swe_trainers.model.lora import read_adapter
from swe_trainers.model.tokenizers import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

__all__ = ["hugging_face_config", "load_causal_lm", "no_progress_bars"]


def load_causal_lm(source: str | Path, dtype: torch.dtype, bits: Literal[4, 8] | None) -> PreTrainedModel:
    """Load weights from a folder or the hub; adapters in PEFT's format, there or in `adapter`, are merged into them.

    Raises:
        ConfigurationError: there is no such model, its files do not fit each other, or adapters name no base model.
    """
    options: dict[str, Any] = {"dtype": dtype}
    if bits is not None:
        options |= _quantised(bits, dtype)
    folder = Path(source)
    if not (folder / "config.json").is_file() and (folder / "adapter" / "adapter_config.json").is_file():
        folder /= "adapter"  # of a model in few bits, whose own weights are not written
    named = folder / "adapter_config.json"
    if not named.is_file() or (folder / "config.json").is_file():
        return _trainable(_load(str(source), options), bits)
    base = json.loads(named.read_text(encoding="utf-8")).get("base_model_name_or_path")
    if not base:
        raise ConfigurationError(f"{folder}: adapter_config.json names no base model")
    return read_adapter(_trainable(_load(base, options), bits), folder)


def _load(source: str, options: dict[str, Any]) -> PreTrainedModel:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoModelForCausalLM

    place = loadable(source)
    try:
        loading: Any = AutoModelForCausalLM.from_pretrained(place, output_loading_info=True, **options)
    except (AttributeError, KeyError, TypeError, StrictDataclassError) as error:
        raise ConfigurationError(f"{Path(place, 'config.json')}: {reason_of(error)}") from error
    model: PreTrainedModel = loading[0]
    if (missing := sorted(loading[1]["missing_keys"])) and "quantization_config" not in options:
        more = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise ConfigurationError(f"{source}: its weights lack {missing[0]}{more}, which its config.json asks for")
    model.config.name_or_path = source  # which `place` may be the cache of
    return model


def _trainable(model: PreTrainedModel, bits: int | None) -> PreTrainedModel:
    """Keep bitsandbytes from packing 4-bit weights at the first evaluation on a CPU with AVX512-BF16.

    No gradient passes through the packed ones.
    """
    if bits == 4:
        from bitsandbytes.nn.modules import Linear4bit

        for module in model.modules():
            if isinstance(module, Linear4bit):
                module.support_avx512bf16_for_cpu = False
    return model


def _quantised(bits: Literal[4, 8], dtype: torch.dtype) -> dict[str, Any]:
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigurationError(f"bits: {bits}-bit weights need bitsandbytes. {install_hint('gpu')}")
    from transformers import BitsAndBytesConfig

    build: Any = BitsAndBytesConfig
    config = build(
        load_in_4bit=bits == 4,
        load_in_8bit=bits == 8,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=dtype,
        bnb_4bit_use_double_quant=True,
    )
    gpu = torch.cuda.is_available()
    if (
        not gpu
    ):  # on a CPU each product of 8 bits would log that it rounds its inputs, and importing, which kernel it lacks
        for name in ("autograd._functions", "backends.cpu.ops"):
            logging.getLogger(f"bitsandbytes.{name}").setLevel(logging.ERROR)
    return {"quantization_config": config, "device_map": {"": torch.cuda.current_device() if gpu else "cpu"}}


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Disable transformers' progress bars of single files in the block."""
    from transformers.utils import logging as logs

    shown = logs.is_progress_bar_enabled()
    logs.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logs.enable_progress_bar()  # type: ignore[no-untyped-call]


def hugging_face_config(config: Mapping[str, Any], tokenizer: Tokenizer) -> PreTrainedConfig:
    """Build a configuration from a mapping.

    Raises:
        ConfigurationError: an unknown model type or key, or values that do not fit each other.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    keys = dict(config)
    model_type = keys.pop("model_type", None)
    if not isinstance(model_type, str):
        raise ConfigurationError("the model's configuration has no model_type. Try: llama, qwen3 or gpt2")
    try:
        default = AutoConfig.for_model(model_type)
    except ValueError as error:
        raise ConfigurationError(f"model_type {model_type!r}: transformers has no such model") from error
    known = sorted({*default.to_dict(), *default.attribute_map})
    for key in keys:
        if key not in known:
            raise ConfigurationError(f"{model_type} has no setting {key!r}{similar(key, known)}")
    keys.setdefault("vocab_size", tokenizer.vocab_size)
    ends = {"bos_token_id": None, "pad_token_id": None, "eos_token_id": tokenizer.end_id}
    try:
        built: PreTrainedConfig = AutoConfig.for_model(model_type, **{**ends, **keys})
    except (TypeError, ValueError, StrictDataclassError) as error:
        raise ConfigurationError(f"{model_type}: {reason_of(error)}") from error
    return built
