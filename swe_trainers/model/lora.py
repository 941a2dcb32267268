"""Low-rank adapters (Hu et al. 2022, arXiv:2106.09685) by PEFT: they are trained while the weights are frozen."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from swe_trainers.config import Configuration
from swe_trainers.errors import ConfigurationError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["LoRA", "add_lora", "lora_is_neutral", "merged_weights", "read_adapter", "without_lora", "write_adapter"]


@dataclass(frozen=True)
class LoRA(Configuration):
    """Settings of low-rank adapters (LoRA).

    Attributes:
        rank: rank of the product of two matrices that is added to a weight.
        alpha: the product is multiplied by alpha / rank.
        targets: names of the adapted modules, e.g. `q_proj`; empty: every linear layer except the unembedding.
    """

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigurationError(f"rank: got {self.rank}, expected at least 1")
        if not self.alpha > 0:
            raise ConfigurationError(f"alpha: got {self.alpha}, expected a positive number")


def add_lora(model: PreTrainedModel, lora: LoRA, *, seed: int) -> None:
    """Add adapters to a model, in place, and freeze the other weights; new adapters do not change its outputs.

    Adapters are float32 whatever the model's dtype is: their updates are too small for lower precision.

    Args:
        model: the model.
        lora: settings of the adapters.
        seed: of their first factor; the global random state does not change.
    Raises:
        ConfigurationError: no module has one of the names.
    """
    model.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            _inject(_config(model, lora), model)
        except ValueError as error:
            raise ConfigurationError(f"lora.targets: {str(error).splitlines()[0]}") from error
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
            parameter.requires_grad_(True)


@contextmanager
def without_lora(model: nn.Module) -> Iterator[None]:
    """Disable the adapters in the block."""
    layers: list[Any] = [module for module in model.modules() if _is_adapted(module)]
    for layer in layers:
        layer._disable_adapters = True  # noqa: SLF001 - `enable_adapters` changes requires_grad as well
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False  # noqa: SLF001


def lora_is_neutral(model: nn.Module) -> bool:
    """Whether the adapters do not change the outputs: none was trained yet."""
    return not any(bool(p.any()) for name, p in model.named_parameters() if "lora_B" in name)


def merged_weights(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of the equivalent model without adapters."""
    merged = {
        name.replace(".base_layer", ""): tensor for name, tensor in model.state_dict().items() if "lora_" not in name
    }
    for name, layer in model.named_modules():
        if _is_adapted(layer):
            # Each stacked weight of experts is adapted by a layer of its own, one inside the other.
            key = f"{name.replace('.base_layer', '')}.{getattr(layer, 'parameter_name', 'weight')}"
            weight = merged[key]
            with torch.no_grad():
                merged[key] = (weight.float() + layer.get_delta_weight("default").float()).to(weight.dtype)
    return merged


def write_adapter(model: PreTrainedModel, lora: LoRA, folder: Path) -> None:
    """Write the adapters in PEFT's format, with the name of their base model."""
    from safetensors.torch import save_file

    folder.mkdir()
    config = _config(model, lora)
    config.base_model_name_or_path = str(model.config.name_or_path)
    config.save_pretrained(str(folder))
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if "lora_" in name}
    named = {f"base_model.model.{name.replace('.default.', '.')}": tensor for name, tensor in weights.items()}
    save_file(named, folder / "adapter_model.safetensors")


def read_adapter(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Merge adapters in PEFT's format into their base model, in place.

    Raises:
        ConfigurationError: they do not fit this model.
    """
    from peft import LoraConfig
    from safetensors.torch import load_file

    _inject(LoraConfig.from_pretrained(str(folder)), model)
    weights = {}
    for name, tensor in load_file(folder / "adapter_model.safetensors").items():
        module, _, factor = name.removeprefix("base_model.model.").rpartition(".lora_")  # A.weight or B.weight
        weights[f"{module}.lora_{factor.replace('.', '.default.')}"] = tensor
    unmatched = {name for name in model.state_dict() if "lora_" in name} ^ weights.keys()
    if unmatched:
        raise ConfigurationError(f"{folder}: these adapters do not fit the model: {min(unmatched)}")
    model.load_state_dict(weights, strict=False)
    adapted: list[tuple[str, Any]] = [(name, layer) for name, layer in model.named_modules() if _is_adapted(layer)]
    for _, layer in adapted:
        layer.merge()
    for name, layer in adapted:
        parent, _, child = name.rpartition(".")
        if child != "base_layer":  # one inside another goes with it
            setattr(model.get_submodule(parent), child, layer.get_base_layer())
    return model


def _inject(config: Any, model: PreTrainedModel) -> None:
    from peft import inject_adapter_in_model

    with warnings.catch_warnings():
        # PEFT looks for the ranks that it gives to weights of experts among the names of modules alone.
        warnings.filterwarnings("ignore", "The following (rank|alpha)_pattern keys", RuntimeWarning)
        inject_adapter_in_model(config, model)


def _config(model: PreTrainedModel, lora: LoRA) -> Any:
    from peft import LoraConfig
    from transformers.pytorch_utils import Conv1D

    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]
        target_modules=list(lora.targets) or "all-linear",
        lora_dropout=0.0,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
        task_type="CAUSAL_LM",
    )


def _is_adapted(module: Any) -> bool:
    return hasattr(module, "get_base_layer") and hasattr(module, "get_delta_weight")
