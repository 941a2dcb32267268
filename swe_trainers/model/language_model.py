"""The policy: a Hugging Face causal language model with a value head and its tokenizer."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from swe_trainers.errors import CheckpointError, ConfigurationError, ShapeError
from swe_trainers.kernels.linear import wide_logits
from swe_trainers.model.attention import (
    AttentionBackend,
    LayerMasks,
    MaskPlan,
    SegmentLayout,
    register_segment_attention,
    takes_prefixes,
)
from swe_trainers.model.chat import ChatFormat, chat_format
from swe_trainers.model.fused import cache_argument, fuse_layers, hidden_at, is_known_trunk
from swe_trainers.model.hub import reason_of
from swe_trainers.model.loading import hugging_face_config, load_causal_lm, no_progress_bars
from swe_trainers.model.lora import LoRA, add_lora, lora_is_neutral, merged_weights, without_lora, write_adapter
from swe_trainers.model.sequence_parallel import SequenceGroup
from swe_trainers.model.tokenizers import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

__all__ = ["VALUE_HEAD_FILE", "AdapterFreeReference", "LanguageModel", "Unembedding", "ValueHead"]

_MOST_ROUNDING = 0.2
"""Differences of logits above this are no rounding of bfloat16 in deep models; wrong attention is far above it."""

VALUE_HEAD_FILE = "value_head.safetensors"
"""The value head's file in a model folder."""


class Unembedding(NamedTuple):
    """The projection from hidden states to logits: `weight` (V, D) and `bias` (V,) or None."""

    weight: Tensor
    bias: Tensor | None


class ValueHead(nn.Module):
    """A linear layer from hidden states to state values, computed in float32 whatever the trunk's dtype is.

    The initial weights are zero: the first values have no bias, and the global random state is not used.

    Args:
        width: D of the hidden states.
        device: of the weights.
    """

    def __init__(self, width: int, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, width, device=device))
        self.bias = nn.Parameter(torch.zeros(1, device=device))

    def forward(self, hidden: Tensor) -> Tensor:
        """(N, D) to (N, 1) float32 (float64 from float64); not a view, on which FSDP's hooks could be lost."""
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        return nn.functional.linear(hidden.to(dtype), self.weight.to(dtype), self.bias.to(dtype))

    def read(self, path: Path) -> None:
        """Load the weights from a file.

        Raises:
            CheckpointError: it cannot be read, or they have another shape.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            weights = load_file(path)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from error
        expected = {name: tuple(tensor.shape) for name, tensor in self.state_dict().items()}
        got = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        if got != expected:
            raise CheckpointError(f"{path}: holds {got}, expected {expected}")
        self.load_state_dict(weights)


class LanguageModel(nn.Module):
    """A causal language model that returns hidden states; `swe_trainers.kernels` computes log-probabilities from them.

    Dropout is always off: otherwise the probability ratio of the first policy-gradient epoch would not be 1.

    Example:
        >>> model = LanguageModel.from_pretrained("Qwen/Qwen3-0.6B", dtype=torch.bfloat16)
        >>> hidden = model.trunk_hidden(input_ids, position_ids, segment_ids)  # (B, T, D)
        >>> logprobs, entropy = token_logprobs(hidden[:, :-1], model.unembedding.weight, input_ids[:, 1:])

    Args:
        causal_lm: a Hugging Face causal language model; its logits must be exactly `hidden @ weight.T + bias`.
        tokenizer: of the model.
        attention: the attention kernel.

    Attributes:
        lora: the settings of the adapters; None without adapters.
        sequence_group: the processes that compute `trunk_hidden` together, each for a part of the columns; None for
            this process alone.
        float32_logits: keep the logits of a bfloat16 model unrounded, in generation and in training.

    Raises:
        ConfigurationError: the logits are scaled or capped, attention is no plain causal one, a layer type cannot be
            packed, the layers do not fill a cache, the tokenizer has more ids than the model has embeddings, or
            PyTorch's default device is not the CPU.
    """

    def __init__(
        self, causal_lm: PreTrainedModel, tokenizer: Tokenizer, *, attention: AttentionBackend = "auto"
    ) -> None:
        super().__init__()
        self.causal_lm = causal_lm
        self.tokenizer = tokenizer
        self.mask_plan = MaskPlan(causal_lm.config)
        self._attention: AttentionBackend = attention
        with _few_layers(self.trunk):
            own_logits = _sample_logits(causal_lm)
        causal_lm.set_attn_implementation(register_segment_attention(attention))
        self.lora: LoRA | None = None
        self.sequence_group: SequenceGroup | None = None
        self.float32_logits = False
        self.value_head = ValueHead(causal_lm.config.hidden_size, device=self.device)
        _switch_dropout_off(causal_lm)
        fuse_layers(causal_lm)
        rows = self.unembedding.weight.shape[0]
        if tokenizer.vocab_size > rows:
            raise ConfigurationError(
                f"the tokenizer has {tokenizer.vocab_size} ids, the model {rows} embeddings: not a pair"
            )
        if self.device.type != "meta":
            if torch.get_default_device().type != "cpu":
                raise ConfigurationError(
                    f"PyTorch's default device is {torch.get_default_device()}: batches are made on the CPU and moved "
                    "where the model is. Try: without torch.set_default_device; model.device chooses"
                )
            with _few_layers(self.trunk):
                self._check_logits()
                self._check_attention(own_logits)
                self._check_packing()
                self._check_cache()

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any] | PreTrainedConfig,
        tokenizer: Tokenizer,
        *,
        seed: int = 0,
        attention: AttentionBackend = "auto",
    ) -> LanguageModel:
        """Build a model with random weights.

        Args:
            config: a Hugging Face configuration, or its keys including `model_type`. The vocabulary's size and the
                stop token come from the tokenizer.
            tokenizer: of the model.
            seed: of the weights; the global random state does not change.
            attention: the attention kernel.

        Raises:
            ConfigurationError: an unknown model type, an unknown key, or sizes that do not fit each other.
        """
        from transformers import AutoModelForCausalLM

        if isinstance(config, Mapping):
            config = hugging_face_config(config, tokenizer)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                build: Any = AutoModelForCausalLM.from_config
                model = build(config, dtype=torch.float32)
            except (KeyError, RuntimeError, TypeError, ValueError) as error:
                raise ConfigurationError(f"{config.model_type}: {reason_of(error)}") from error
        return cls(model, tokenizer, attention=attention)

    def initialise_head(self, gain: float, *, seed: int = 0) -> None:
        """Start the vocabulary projection as an orthogonal matrix times a gain (Saxe et al. 2014).

        Args:
            gain: with a small one all tokens are nearly equally likely at first.
            seed: of the matrix; the global random state does not change.

        Raises:
            ConfigurationError: the projection's weight is the embedding's, which would change too.
        """
        weight, bias = self.unembedding
        if weight is self.causal_lm.get_input_embeddings().weight:
            raise ConfigurationError("head_gain: the embedding has the same weight. Try: tie_word_embeddings false")
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            nn.init.orthogonal_(weight, gain)
            if bias is not None:
                bias.zero_()

    @classmethod
    def load(cls, source: str | Path, **options: Any) -> LanguageModel:
        """Load a model with its tokenizer and chat format, on a GPU where there is one.

        Args:
            source: a folder, or a name on the hub.
            options: as of `from_pretrained`; the default `dtype` is bfloat16 on a GPU and float32 elsewhere.
        Raises:
            ConfigurationError: as `from_pretrained`, or its tokenizer has no chat format to train with.
        """
        gpu = torch.cuda.is_available()
        model = cls.from_pretrained(source, **{"dtype": torch.bfloat16 if gpu else torch.float32, **options})
        model.chat_format()  # refused before anything is trained
        return model.to("cuda") if gpu and options.get("bits") is None else model

    def chat_format(self) -> ChatFormat:
        """The chat format of the model's tokenizer."""
        return chat_format(self.tokenizer)

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        *,
        dtype: torch.dtype = torch.float32,
        tokenizer: Tokenizer | None = None,
        attention: AttentionBackend = "auto",
        bits: Literal[4, 8] | None = None,
    ) -> LanguageModel:
        """Load a model from a folder or, by name, from the Hugging Face Hub.

        Args:
            source: a folder written by `save_pretrained`, by Hugging Face or by PEFT, or a name.
            dtype: of the trunk; the value head is always float32.
            tokenizer: replaces the tokenizer stored with the model.
            attention: the attention kernel.
            bits: quantise the weights to 4 or 8 bits by bitsandbytes; only adapters can then be trained.

        Raises:
            ConfigurationError: there is no such model, it cannot be read, or this machine cannot quantise weights.
        """
        from safetensors import SafetensorError

        folder = Path(source)
        if folder.is_absolute() and not folder.is_dir():
            raise ConfigurationError(f"{folder}: no such model folder")
        try:
            with no_progress_bars():
                model = load_causal_lm(source, dtype, bits)
        except ConfigurationError:
            raise
        except SafetensorError as error:
            raise ConfigurationError(f"{source}: its weights cannot be read: {error}") from error
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise ConfigurationError(f"{source}: its weights do not fit its config.json: {reason_of(error)}") from error
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"{source}: not a model folder, and no model with that name can be loaded: {reason_of(error)}"
            ) from error
        policy = cls(model, tokenizer or load_tokenizer(source), attention=attention)
        if (folder / VALUE_HEAD_FILE).is_file():
            policy.value_head.read(folder / VALUE_HEAD_FILE)
        return policy

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the model in Hugging Face's format, with the value head and the tokenizer.

        Adapters are merged into the weights and also written separately to the folder `adapter`; with quantised
        weights only separately.

        All files are written before the first one is replaced: if writing fails, an earlier model stays intact.

        Args:
            folder: created if absent. Readable by `from_pretrained` and, without the value head, by `transformers`.
        Raises:
            CheckpointError: the model cannot be written; no partial files are left.
        """
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        folder = Path(folder)
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)  # left by an interrupted save
        try:
            partial.mkdir(parents=True)
            with no_progress_bars():
                self._save_weights(partial)
            save_file(self.value_head.state_dict(), partial / VALUE_HEAD_FILE)
            self.tokenizer.save(partial)
            folder.mkdir(exist_ok=True)
            for file in partial.iterdir():
                if file.is_dir():
                    shutil.rmtree(folder / file.name, ignore_errors=True)
                file.replace(folder / file.name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{folder}: the model was not written: {str(error).splitlines()[0]}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    @property
    def trunk(self) -> nn.Module:
        """The model without its vocabulary projection."""
        trunk: nn.Module = self.causal_lm.base_model
        return trunk

    @property
    def unembedding(self) -> Unembedding:
        """The vocabulary projection; its weight is the embedding's weight if the two are tied."""
        layer: nn.Linear = self.causal_lm.get_output_embeddings()  # type: ignore[no-untyped-call]
        return Unembedding(layer.weight, getattr(layer, "bias", None))

    @property
    def soft_cap(self) -> float | None:
        """Logits are cap · tanh(projection / cap), as in Gemma 2; None: not capped."""
        cap = getattr(self.causal_lm.config, "final_logit_softcapping", None)
        return None if cap is None else float(cap)

    @property
    def logit_scale(self) -> float:
        """Factor of the logits: `logit_scale` of Cohere, the inverse of Granite's `logits_scaling`; 1 elsewhere."""
        config = self.causal_lm.config
        factor, divisor = (getattr(config, name, None) for name in ("logit_scale", "logits_scaling"))
        return float(1.0 if factor is None else factor) / float(1.0 if divisor is None else divisor)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.unembedding.weight.device

    @property
    def hidden_size(self) -> int:
        """D, the width of the hidden states."""
        return int(self.causal_lm.config.hidden_size)

    @property
    def max_positions(self) -> int | None:
        """The longest sequence in tokens; None if the model sets no limit."""
        limit = getattr(self.causal_lm.config, "max_position_embeddings", None)
        return int(limit) if limit is not None else None

    @property
    def shares_prefixes(self) -> bool:
        """Whether `trunk_hidden` takes layouts in which sequences share a beginning: not every kernel can."""
        return takes_prefixes(self._attention, self.device)

    @property
    def recomputes_activations(self) -> bool:
        """Whether gradient checkpointing is on."""
        return any(getattr(module, "gradient_checkpointing", False) for module in self.trunk.modules())

    def trunk_hidden(
        self, input_ids: Tensor, position_ids: Tensor, segment_ids: Tensor, layout: SegmentLayout | None = None
    ) -> Tensor:
        """Final, normed hidden states of a padded or packed batch; tokens attend only within their own sequence.

        Args:
            input_ids: (B, T) int64.
            position_ids: (B, T) int64, counted from 0 within each sequence; any number on padding.
            segment_ids: (B, T) int, the same number greater than 0 for all tokens of one sequence, which are
                contiguous; 0 is padding. Read only without a `layout`.
            layout: where the sequences are; needed if some share a beginning, and spares a GPU a wait.

        Returns:
            (B, T, D) in the trunk's dtype; finite but meaningless on padding. With a `sequence_group`, only the columns
            of this process.

        Raises:
            ShapeError: the shapes disagree.
        """
        if not input_ids.shape == position_ids.shape == segment_ids.shape or input_ids.ndim != 2:
            shapes = [tuple(tensor.shape) for tensor in (input_ids, position_ids, segment_ids)]
            raise ShapeError(f"input_ids, position_ids and segment_ids must be (B, T) alike, got {shapes}")
        layout = SegmentLayout.of(segment_ids) if layout is None else layout
        if self.sequence_group is not None:
            layout = layout.divided(self.sequence_group)
            input_ids, position_ids = (self.sequence_group.columns(ids) for ids in (input_ids, position_ids))
        return self.run_trunk(input_ids, position_ids, self.mask_plan.placeholder(self.device), segments=layout)

    @property
    def computes_states_at(self) -> bool:
        """Whether `hidden_at` can be called: a known family, whole rows in this process, and nothing wrapped."""
        wrapped = "trunk_hidden" in vars(self)  # such as by FSDP
        return not (wrapped or self.sequence_group or self.recomputes_activations) and is_known_trunk(self.trunk)

    def hidden_at(
        self, input_ids: Tensor, position_ids: Tensor, segment_ids: Tensor, layout: SegmentLayout, places: Tensor
    ) -> Tensor:
        """`trunk_hidden` of some tokens, where `computes_states_at`: the last layer computes little for the others.

        Args:
            input_ids, position_ids, segment_ids, layout: as of `trunk_hidden`; segment ids are not read.
            places: (N,) int64, indices in the flattened batch (B·T).

        Returns:
            (N, D).
        """
        del segment_ids
        return hidden_at(self, input_ids, position_ids, places, layout)

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, segment_ids: Tensor, layout: SegmentLayout | None = None
    ) -> Tensor:
        """`trunk_hidden`, for wrappers that hook into `forward`."""
        return self.trunk_hidden(input_ids, position_ids, segment_ids, layout)

    def run_trunk(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        masks: LayerMasks,
        *,
        cache: Any = None,
        segments: SegmentLayout | None = None,
    ) -> Tensor:
        """Run the trunk with given masks and a cache of keys and values, or with a packed layout; returns (B, T, D)."""
        output = self.trunk(
            input_ids=input_ids,
            position_ids=position_ids,
            attention_mask=masks,
            use_cache=cache is not None,
            **{cache_argument(self.trunk): cache},
            **({} if segments is None else {"segments": segments}),
        )
        hidden: Tensor = output.last_hidden_state
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Project hidden states (…, D) to logits (…, V), for generation; training uses the kernels instead."""
        weight, bias = self.unembedding
        if self.float32_logits and hidden.dtype in (torch.bfloat16, torch.float16):
            logits = wide_logits(hidden.reshape(-1, hidden.shape[-1]), weight, bias).view(*hidden.shape[:-1], -1)
        else:
            logits = nn.functional.linear(hidden, weight, bias)
        if self.soft_cap is not None:
            logits = self.soft_cap * torch.tanh(logits / self.soft_cap)
        return logits if self.logit_scale == 1.0 else logits * self.logit_scale

    def values(self, hidden: Tensor) -> Tensor:
        """State values from hidden states.

        Args:
            hidden: (…, D). The entry at token t gives the value of the state after tokens 0 to t.

        Returns:
            (…) float32.
        """
        values: Tensor = self.value_head(hidden.reshape(-1, hidden.shape[-1]))
        return values.view(hidden.shape[:-1])

    def add_lora(self, lora: LoRA, *, seed: int = 0) -> LanguageModel:
        """Add adapters, freeze the weights, and train the adapters and the value head.

        Raises:
            ConfigurationError: the model has adapters already, or no module has one of the names.
        """
        if self.lora is not None:
            raise ConfigurationError("lora: the model has adapters already")
        add_lora(self.causal_lm, lora, seed=seed)
        self.lora = lora
        return self

    def recompute_activations(self) -> LanguageModel:
        """Turn gradient checkpointing on: each layer's activations are recomputed in the backward pass."""
        new = getattr(self.causal_lm, "activation_checkpointing_enable", None)  # since transformers 5.20 or so
        (new or self.causal_lm.gradient_checkpointing_enable)({"use_reentrant": False})
        self.causal_lm.train()  # without dropout the mode only matters for recomputing
        return self

    def reference_copy(self) -> LanguageModel | AdapterFreeReference:
        """The current policy, frozen, as a reference; with new adapters it shares the model's own weights."""
        if self.lora is not None and lora_is_neutral(self.causal_lm):
            return AdapterFreeReference(self)
        return self.copy().requires_grad_(False).eval()

    def copy(self) -> LanguageModel:
        """A copy with its own weights and the same tokenizer."""
        shared = {id(self.tokenizer): self.tokenizer}  # training does not change it, and native handles do not copy
        return copy.deepcopy(self, shared)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpickle, in a process whose transformers may not know the attention yet."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        register_segment_attention(self._attention)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """All weights; with adapters only those and the value head, since the rest does not change."""
        state: dict[str, Any] = super().state_dict(*args, **kwargs)
        return state if self.lora is None else {name: t for name, t in state.items() if _is_trained(name)}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a `state_dict`.

        Raises:
            RuntimeError: names or shapes differ.
        """
        if self.lora is not None and strict and set(state_dict) != set(self.state_dict()):
            raise RuntimeError("the state does not belong to these adapters")
        return super().load_state_dict(state_dict, strict=strict and self.lora is None, assign=assign)

    def checkpoint_weights(self) -> dict[str, Tensor]:
        """The weights under the names of a Hugging Face checkpoint: adapters merged, tied tensors once."""
        state = self.causal_lm.state_dict() if self.lora is None else merged_weights(self.causal_lm)
        return {name: tensor for name, tensor in state.items() if name not in self._tied_names()}

    def load_checkpoint_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Load `checkpoint_weights` into a model without adapters.

        Raises:
            RuntimeError: a weight is missing, unknown or has another shape.
        """
        missing, unknown = self.causal_lm.load_state_dict(dict(weights), strict=False)
        if wrong := sorted({*missing, *unknown} - self._tied_names()):
            raise RuntimeError(f"{wrong[0]}: missing, or not a weight of this model ({len(wrong)} in all)")

    def _tied_names(self) -> set[str]:
        return set(self.causal_lm.all_tied_weights_keys)

    def _save_weights(self, folder: Path) -> None:
        quantised = getattr(self.causal_lm, "is_quantized", False)
        if self.lora is None:
            self.causal_lm.save_pretrained(str(folder))
            return
        write_adapter(self.causal_lm, self.lora, folder / "adapter")
        if not quantised:
            self.causal_lm.save_pretrained(str(folder), state_dict=merged_weights(self.causal_lm))

    @torch.no_grad()
    def _check_logits(self) -> None:
        """Refuse families whose logits are computed otherwise: the kernels would be silently wrong."""
        if getattr(self.causal_lm.config, "attn_logit_softcapping", None) is not None:
            raise ConfigurationError(
                f"{self.causal_lm.config.model_type}: attn_logit_softcapping is set, and attention scores are not "
                "capped here. Try: a Llama, Qwen2, Qwen3, Mistral or GPT-2 style model"
            )
        training = self.causal_lm.training
        self.causal_lm.train(False)
        ids = torch.zeros((1, 2), dtype=torch.int64, device=self.device)
        theirs = self.causal_lm(input_ids=ids, use_cache=False).logits.float()
        ours = self.logits(self.run_trunk(ids, torch.arange(2, device=self.device)[None], None)).float()
        self.causal_lm.train(training)
        if not torch.allclose(theirs, ours, rtol=1e-2, atol=1e-3 + 1e-2 * float(ours.abs().max())):
            raise ConfigurationError(
                f"{self.causal_lm.config.model_type}: logits are not the projection of the hidden states, capped "
                "by final_logit_softcapping and scaled by logit_scale or logits_scaling. Try: a Llama, Qwen2, Qwen3, "
                "Mistral or GPT-2 style model"
            )

    @torch.no_grad()
    def _check_attention(self, theirs: Tensor) -> None:
        """Refuse families whose attention is another than causal softmax attention, which would be silently wrong.

        Args:
            theirs: `_sample_logits` by the family's own attention.
        """
        ids = _sample_ids(self.causal_lm)
        ours = self.logits(
            self.trunk_hidden(ids, torch.arange(ids.shape[1], device=self.device)[None], torch.ones_like(ids))
        )
        theirs, ours = (logits - logits.mean(-1, keepdim=True) for logits in (theirs, ours.float()))
        if (theirs - ours).norm() > _MOST_ROUNDING * theirs.norm():
            raise ConfigurationError(
                f"{self.causal_lm.config.model_type}: its attention is not plain causal attention, the only one that "
                "is computed here. Try: a Llama, Qwen2, Qwen3, Mistral or GPT-2 style model"
            )

    @torch.no_grad()
    def _check_packing(self) -> None:
        """Refuse families that do not pass the layout to their attention: packed sequences would see each other."""
        ids = torch.tensor([[0, 1, 2, 3], [1, 1, 2, 3]], device=self.device) % self.unembedding.weight.shape[0]
        positions = torch.tensor([[0, 1, 0, 1]] * 2, device=self.device)
        hidden = self.trunk_hidden(ids, positions, torch.tensor([[1, 1, 2, 2]] * 2, device=self.device))
        if not torch.equal(hidden[0, 2:], hidden[1, 2:]):
            raise ConfigurationError(
                f"{self.causal_lm.config.model_type}: packed sequences see each other. Try: a Llama, Qwen2, Qwen3, "
                "Mistral or GPT-2 style model"
            )

    @torch.no_grad()
    def _check_cache(self) -> None:
        """Refuse families that do not fill the cache that they are given: every token would be generated alone."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self.causal_lm.config)
        ids = torch.zeros((1, 2), dtype=torch.int64, device=self.device)
        self.run_trunk(ids, torch.arange(2, device=self.device)[None], None, cache=cache)
        if cache.get_seq_length() != 2:
            raise ConfigurationError(
                f"{self.causal_lm.config.model_type}: its layers do not store keys and values in the cache that they "
                "are given. Try: a Llama, Qwen2, Qwen3, Mistral or GPT-2 style model, or the version of transformers "
                "in constraints.txt"
            )


@contextmanager
def _few_layers(trunk: nn.Module) -> Iterator[None]:
    """Leave a trunk as many of its first layers as hold one of each kind: enough to see how it is computed."""
    config: Any = trunk.config
    lists = [
        (name, child)
        for name, child in trunk.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == getattr(config, "num_hidden_layers", None)
    ]
    if len(lists) != 1:  # the layers are not known
        yield
        return
    ((name, layers),) = lists
    types = getattr(config, "layer_types", None) or [None] * len(layers)
    kinds = [(kind, *map(type, layer.modules())) for kind, layer in zip(types, layers, strict=True)]
    setattr(trunk, name, layers[: max(map(kinds.index, kinds)) + 1])
    try:
        yield
    finally:
        setattr(trunk, name, layers)


def _sample_ids(causal_lm: PreTrainedModel) -> Tensor:
    """(1, 8) int64, some tokens of a model."""
    weight: Tensor = causal_lm.get_output_embeddings().weight  # type: ignore[no-untyped-call]
    return torch.arange(8, device=weight.device)[None] % weight.shape[0]


@torch.no_grad()
def _sample_logits(causal_lm: PreTrainedModel) -> Tensor:
    """(1, 8, V) float32, logits of `_sample_ids` by the attention that the model has at present."""
    ids, training = _sample_ids(causal_lm), causal_lm.training
    if ids.device.type == "meta":
        return ids.float()
    causal_lm.train(False)
    logits: Tensor = causal_lm(input_ids=ids, use_cache=False).logits.float()
    causal_lm.train(training)
    return logits


def _is_trained(name: str) -> bool:
    return "lora_" in name or name.startswith("value_head.")


def _switch_dropout_off(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            # Newer families read this attribute; older ones have a Dropout module.
            setattr(module, "attention_dropout", 0.0)  # noqa: B010


class AdapterFreeReference:
    """The reference policy of a model with adapters: the same model with its adapters disabled, without a copy.

    Args:
        model: with adapters.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model

    def trunk_hidden(
        self, input_ids: Tensor, position_ids: Tensor, segment_ids: Tensor, layout: SegmentLayout | None = None
    ) -> Tensor:
        """`LanguageModel.trunk_hidden` without the adapters."""
        with without_lora(self._model.causal_lm):
            return self._model.trunk_hidden(input_ids, position_ids, segment_ids, layout)

    @property
    def sequence_group(self) -> SequenceGroup | None:
        """The model's."""
        return self._model.sequence_group

    @property
    def shares_prefixes(self) -> bool:
        """The model's."""
        return self._model.shares_prefixes

    @property
    def float32_logits(self) -> bool:
        """The model's."""
        return self._model.float32_logits

    @property
    def soft_cap(self) -> float | None:
        """The model's."""
        return self._model.soft_cap

    @property
    def logit_scale(self) -> float:
        """The model's."""
        return self._model.logit_scale

    @property
    def unembedding(self) -> Unembedding:
        """The model's: it has no adapters."""
        return self._model.unembedding

    def values(self, hidden: Tensor) -> Tensor:
        """The model's value head; a reference's values are not used."""
        return self._model.values(hidden)

    def parameters(self) -> Iterator[nn.Parameter]:
        """The model's weights."""
        return self._model.parameters()

    def state_dict(self) -> dict[str, Any]:
        """Empty: the weights are the model's."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Check that a state is empty.

        Raises:
            RuntimeError: it has weights, so it belongs to a reference that is a copy.
        """
        if state_dict:
            raise RuntimeError("the saved reference has its own weights; this one is the model without its adapters")
