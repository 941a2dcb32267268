"""The sizes of a model without its weights, from its configuration or, if that is not available, from its name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from swe_trainers.errors import ConfigurationError
from swe_trainers.model.fused import fuse_layers
from swe_trainers.model.hub import reason_of

__all__ = ["Architecture", "architecture_of", "find_config", "weights_are_here"]

Source = Literal["the configuration", "a local folder", "the hub's cache", "the hub", "the size in the name"]

_SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)([bm])(?![a-z])", re.IGNORECASE)
_HUB_TIMEOUT_S = 3.0
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


@dataclass(frozen=True)
class Architecture:
    """The sizes on which memory depends.

    Attributes:
        source: where they come from.
        exact: counted from the model's configuration, not estimated from its name.
        parameters: all, tied ones once.
        embedding_parameters: of the embedding and the vocabulary projection, which have no adapters.
        layers: of the trunk.
        hidden, intermediate: widths of the hidden states and inside a feed-forward layer.
        query_width, kv_width: number of heads times head size, of queries and of keys (or values).
        vocabulary: rows of the embedding.
        linear_layers: (name, inputs, outputs) of each linear layer except the projection: those that can have adapters.
        heads, positions: attention heads, and the longest context; None where they are not known.
        fused: its norms and rotations are those of `model.fused`, which keep less for the backward pass.
    """

    source: Source
    exact: bool
    parameters: int
    embedding_parameters: int
    layers: int
    hidden: int
    intermediate: int
    query_width: int
    kv_width: int
    vocabulary: int
    linear_layers: tuple[tuple[str, int, int], ...]
    fused: bool
    heads: int | None = None
    positions: int | None = None

    def adapter_parameters(self, rank: int, targets: Sequence[str]) -> int:
        """Parameters of low-rank adapters on the layers with these names; no names: on every linear layer."""
        return sum(
            rank * (inputs + outputs)
            for name, inputs, outputs in self.linear_layers
            if not targets or name.rsplit(".", 1)[-1] in targets
        )


def architecture_of(path: str | None, keys: Mapping[str, Any], *, vocabulary: int | None = None) -> Architecture | None:
    """The sizes of a configured model, without its weights.

    Args:
        path: a folder, or a name on the hub, whose `config.json` is downloaded if possible; None for random weights.
        keys: the configuration of a model with random weights.
        vocabulary: size of that model's tokenizer; None if it is not known yet.
    Returns:
        The sizes; None if neither a configuration nor a size in the name is available.
    Raises:
        ConfigurationError: the configuration is not that of a model.
    """
    if path is None:
        return _counted({**({"vocab_size": vocabulary} if vocabulary else {}), **keys}, "the configuration")
    found = find_config(path)
    return _estimated(path) if isinstance(found, str) else _counted(*found)


def find_config(path: str) -> tuple[dict[str, Any], Source] | str:
    """A model's `config.json` from its folder, the hub's cache or the hub; otherwise the reason why there is none."""
    folder = Path(path)
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        base = _read(folder / "adapter_config.json").get("base_model_name_or_path")
        return find_config(base) if base else f"{folder}: adapter_config.json names no base model"
    if (folder / "config.json").is_file():
        return _read(folder / "config.json"), "a local folder"
    if folder.is_dir():
        return f"{folder}: no model there: it has no config.json"
    if folder.is_absolute() or path.count("/") > 1:
        return f"{folder}: no such model folder"
    return _from_hub(path)


def _from_hub(name: str) -> tuple[dict[str, Any], Source] | str:
    """One request: without a connection the hub's own client tries six times, which takes half a minute."""
    from huggingface_hub import constants, get_token, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, "config.json")
        if isinstance(cached, str):
            return _read(Path(cached)), "the hub's cache"
        if constants.HF_HUB_OFFLINE:
            return f"{name}: not in the hub's cache, and HF_HUB_OFFLINE is set"
        token = get_token()
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        request = Request(hf_hub_url(name, "config.json"), headers=headers)
        with urlopen(request, timeout=_HUB_TIMEOUT_S) as response:
            content: dict[str, Any] = json.load(response)
    except HFValidationError:
        return f"{name}: neither a folder nor a valid name of a model on the hub"
    except HTTPError as error:
        return f"{name}: no such folder, and the hub responds with {error.code} (not a model, or no access)"
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return f"{name}: no such folder, not in the hub's cache, and no connection to the hub: {reason}"
    return content, "the hub"


def weights_are_here(path: str) -> bool:
    """Whether a model's weights are on this machine."""
    folder = Path(path)
    if folder.is_dir():
        return any((folder / name).is_file() for name in (*_WEIGHTS, "adapter_model.safetensors"))
    if folder.is_absolute() or path.count("/") > 1:
        return False
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return any(isinstance(try_to_load_from_cache(path, name), str) for name in _WEIGHTS)
    except HFValidationError:
        return False


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path}: expected a JSON object")
    return content


def _counted(keys: Mapping[str, Any], source: Source) -> Architecture:
    """Count the parameters of a model that is built on the meta device."""
    import torch
    from huggingface_hub.errors import StrictDataclassError
    from torch import nn
    from transformers import AutoConfig, AutoModelForCausalLM

    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))  # defaults may lie beyond a small vocabulary
    given = {name: value for name, value in keys.items() if name not in ("model_type", "quantization_config", *ends)}
    try:
        config = AutoConfig.for_model(keys.get("model_type", ""), **ends, **given)
        with torch.device("meta"):
            build: Any = AutoModelForCausalLM.from_config
            model: nn.Module = build(config)
    except (ImportError, KeyError, RuntimeError, TypeError, ValueError, StrictDataclassError) as error:
        raise ConfigurationError(f"model {keys.get('model_type')!r}: {reason_of(error)}") from error
    heads = getattr(config, "num_attention_heads", None)
    if heads is None:
        raise ConfigurationError(
            f"model {keys.get('model_type')!r}: it has no attention heads, and only transformers can be trained"
        )
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    projection: Any = model.get_output_embeddings()  # type: ignore[operator]
    embedding: Any = model.get_input_embeddings()  # type: ignore[operator]
    linear = [
        (name, layer.weight.shape[1], layer.weight.shape[0])
        for name, layer in model.named_modules()
        if layer is not projection and (isinstance(layer, nn.Linear) or type(layer).__name__ == "Conv1D")
    ]
    intermediate = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    experts = getattr(config, "num_experts_per_tok", None)
    if experts:
        intermediate = experts * (getattr(config, "moe_intermediate_size", None) or intermediate)
    return Architecture(
        source=source,
        exact=True,
        parameters=sum(p.numel() for p in model.parameters()),
        embedding_parameters=sum({id(p): p.numel() for p in (embedding.weight, projection.weight)}.values()),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        intermediate=int(intermediate),
        query_width=heads * size,
        kv_width=(getattr(config, "num_key_value_heads", None) or heads) * size,
        vocabulary=config.vocab_size,
        linear_layers=tuple(linear),
        fused=fuse_layers(model),
        heads=heads,
        positions=getattr(config, "max_position_embeddings", None),
    )


def _estimated(name: str) -> Architecture | None:
    """Typical sizes of a dense model by the size in its name, e.g. `Qwen/Qwen3-14B`; within about a third."""
    found = _SIZE.search(name.rsplit("/", 1)[-1])
    if found is None:
        return None
    parameters = int(float(found[1]) * {"b": 1e9, "m": 1e6}[found[2].lower()])
    vocabulary, kv_width = 152_000, 1024
    # Layers of 12 D² parameters; the width is a hundred times the depth.
    hidden = max(64, round((parameters * 100 / 12) ** (1 / 3) / 64) * 64)
    layers = max(1, round(hidden / 100))
    intermediate = 3 * hidden
    linear = [
        (f"layers.{i}.{name}", inputs, outputs)
        for i in range(layers)
        for name, inputs, outputs in (
            ("self_attn.q_proj", hidden, hidden),
            ("self_attn.k_proj", hidden, kv_width),
            ("self_attn.v_proj", hidden, kv_width),
            ("self_attn.o_proj", hidden, hidden),
            ("mlp.gate_proj", hidden, intermediate),
            ("mlp.up_proj", hidden, intermediate),
            ("mlp.down_proj", intermediate, hidden),
        )
    ]
    return Architecture(
        source="the size in the name",
        exact=False,
        parameters=parameters,
        embedding_parameters=min(parameters // 2, 2 * vocabulary * hidden),
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        query_width=hidden,
        kv_width=min(kv_width, hidden),
        vocabulary=vocabulary,
        linear_layers=tuple(linear),
        fused=False,
    )
