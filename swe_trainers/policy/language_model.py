"""The policy: a causal language model of Hugging Face, a value head on its trunk, and the tokenizer it speaks with."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from swe_trainers.errors import CheckpointError, ConfigurationError, ShapeError
from swe_trainers.policy.attention import (
    AttentionBackend,
    LayerMasks,
    MaskPlan,
    SegmentLayout,
    register_segment_attention,
)
from swe_trainers.policy.fused import fuse_layers
from swe_trainers.policy.loading import hugging_face_config, load_causal_lm, no_progress_bars
from swe_trainers.policy.lora import LoRA, add_lora, lora_is_neutral, merged_weights, write_adapter
from swe_trainers.policy.sequence_parallel import SequenceGroup
from swe_trainers.policy.tokenizer import Tokenizer, load_tokenizer
from swe_trainers.policy.unadapted import Unadapted, Unembedding
from swe_trainers.policy.value_head import VALUE_HEAD_FILE, ValueHead

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

__all__ = ["VALUE_HEAD_FILE", "LanguageModel"]


class LanguageModel(nn.Module):
    """A causal language model whose hidden states are its face: the vocabulary projection is left to the kernels.

    Dropout is switched off in every mode: with it the probability ratio of the first policy-gradient epoch would not be
    1.

    Args:
        causal_lm: a Hugging Face causal language model; its logits must be `hidden @ weight.T + bias` and nothing more.
        tokenizer: what turns text into its ids.
        attention: the kernel that computes it.

    Attributes:
        lora: the adapters' shape, where there are any.
        sequence_group: processes that compute `trunk_hidden` together, each for its share of the columns; None for this
            one alone.

    Raises:
        ConfigurationError: the logits are scaled or capped, a layer type cannot be packed, or the tokenizer has more
            ids than the model has embeddings.
    """

    def __init__(
        self, causal_lm: PreTrainedModel, tokenizer: Tokenizer, *, attention: AttentionBackend = "auto"
    ) -> None:
        super().__init__()
        self.causal_lm = causal_lm
        self.tokenizer = tokenizer
        self.mask_plan = MaskPlan(causal_lm.config)
        self._attention: AttentionBackend = attention
        causal_lm.set_attn_implementation(register_segment_attention(attention))
        self.lora: LoRA | None = None
        self.sequence_group: SequenceGroup | None = None
        self.value_head = ValueHead(causal_lm.config.hidden_size, device=self.device)
        _switch_dropout_off(causal_lm)
        fuse_layers(causal_lm)
        rows = self.unembedding.weight.shape[0]
        if tokenizer.vocab_size > rows:
            raise ConfigurationError(
                f"the tokenizer has {tokenizer.vocab_size} ids, the model {rows} embeddings: not a pair"
            )
        if self.device.type != "meta":
            self._check_logits_are_linear()
            self._check_packing()

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
            config: a Hugging Face configuration, or its keys with `model_type` among them. The vocabulary's size and
                the stop token come from the tokenizer.
            tokenizer: what the model will speak with.
            seed: of the weights; the global random state is left as it was.
            attention: the kernel that computes it.

        Raises:
            ConfigurationError: no such model type, an unknown key, or sizes that do not fit each other.
        """
        from transformers import AutoModelForCausalLM

        if isinstance(config, Mapping):
            config = hugging_face_config(config, tokenizer)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                build: Any = AutoModelForCausalLM.from_config
                model = build(config, attn_implementation="sdpa", dtype=torch.float32)
            except (TypeError, ValueError) as error:
                raise ConfigurationError(f"{config.model_type}: {str(error).splitlines()[0]}") from error
        return cls(model, tokenizer, attention=attention)

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
        """Load a model from a folder or by its name on the hub.

        Args:
            source: a folder written by `save_pretrained`, by Hugging Face or by PEFT, or a name.
            dtype: of the trunk; the value head is always float32.
            tokenizer: instead of the one kept with the model.
            attention: the kernel that computes it.
            bits: hold the weights in so many, by bitsandbytes, on a GPU; they can then be read but not trained.

        Raises:
            ConfigurationError: there is no such model, or it cannot be read; or this machine has no way to hold weights
                in fewer bits.
        """
        folder = Path(source)
        if folder.is_absolute() and not folder.is_dir():
            raise ConfigurationError(f"{folder}: no such model folder")
        try:
            with no_progress_bars():
                model = load_causal_lm(source, dtype, bits)
        except (OSError, ValueError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ConfigurationError(
                f"{source}: not a model folder, and no model of that name can be loaded: {reason}"
            ) from error
        policy = cls(model, tokenizer or load_tokenizer(source), attention=attention)
        if (folder / VALUE_HEAD_FILE).is_file():
            policy.value_head.read(folder / VALUE_HEAD_FILE)
        return policy

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the model in Hugging Face's format, the value head beside it, and the tokenizer.

        Adapters are merged into the weights, and written alone too, into the folder `adapter`; where the weights are
        held in fewer bits, alone only.

        The files take their places once all of them are written: where one cannot be, those of a former model stay.

        Args:
            folder: made if absent. Readable by `from_pretrained` here and, without the value head, by `transformers`.
        Raises:
            CheckpointError: it cannot be written; nothing of it is left.
        """
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        folder = Path(folder)
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)  # what a death left
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
        """The vocabulary projection; its weight is the embedding's own where the two are tied."""
        layer: nn.Linear = self.causal_lm.get_output_embeddings()  # type: ignore[no-untyped-call]
        return Unembedding(layer.weight, getattr(layer, "bias", None))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.unembedding.weight.device

    @property
    def hidden_size(self) -> int:
        """D, the width of the hidden states."""
        return int(self.causal_lm.config.hidden_size)

    @property
    def max_positions(self) -> int | None:
        """The longest sequence that the positions allow, in tokens; None where the model sets no limit."""
        limit = getattr(self.causal_lm.config, "max_position_embeddings", None)
        return int(limit) if limit is not None else None

    @property
    def recomputes_activations(self) -> bool:
        """Whether gradient checkpointing is switched on."""
        return any(getattr(module, "gradient_checkpointing", False) for module in self.trunk.modules())

    def trunk_hidden(self, input_ids: Tensor, position_ids: Tensor, segment_ids: Tensor) -> Tensor:
        """Final, normed hidden states of a padded or packed batch; no token sees another sequence's.

        Args:
            input_ids: (B, T) int64.
            position_ids: (B, T) int64, counted from 0 within each sequence; any number on padding.
            segment_ids: (B, T) int, one number greater than 0 for the tokens of one sequence, which are contiguous; 0
                is padding.

        Returns:
            (B, T, D) in the trunk's dtype; finite but meaningless on padding. Of the columns that this process holds
            where a `sequence_group` divides them.

        Raises:
            ShapeError: the three disagree.
        """
        if not input_ids.shape == position_ids.shape == segment_ids.shape or input_ids.ndim != 2:
            shapes = [tuple(tensor.shape) for tensor in (input_ids, position_ids, segment_ids)]
            raise ShapeError(f"input_ids, position_ids and segment_ids must be (B, T) alike, got {shapes}")
        layout = SegmentLayout.of(segment_ids, always=self.mask_plan.windowed, group=self.sequence_group)
        if self.sequence_group is not None:
            input_ids, position_ids = (self.sequence_group.columns(ids) for ids in (input_ids, position_ids))
        if layout is not None:
            return self.run_trunk(input_ids, position_ids, self.mask_plan.placeholder(self.device), segments=layout)
        # Positions that run on through the padding: transformers would take a jump for a border, and make a mask.
        steps = torch.arange(input_ids.shape[1], device=input_ids.device)
        position_ids = position_ids[:, :1] + steps
        if self.max_positions is not None:
            position_ids = position_ids.clamp(max=self.max_positions - 1)
        return self.run_trunk(input_ids, position_ids, None)

    def forward(self, input_ids: Tensor, position_ids: Tensor, segment_ids: Tensor) -> Tensor:
        """The same as `trunk_hidden`, for wrappers that hook into `forward`."""
        return self.trunk_hidden(input_ids, position_ids, segment_ids)

    def run_trunk(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        masks: LayerMasks,
        *,
        cache: Any = None,
        segments: SegmentLayout | None = None,
    ) -> Tensor:
        """Run the trunk under masks made elsewhere, with a cache of keys and values or a packed layout; (B, T, D)."""
        output = self.trunk(
            input_ids=input_ids,
            position_ids=position_ids,
            attention_mask=masks,
            past_key_values=cache,
            use_cache=cache is not None,
            **({} if segments is None else {"segments": segments}),
        )
        hidden: Tensor = output.last_hidden_state
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Project hidden states (…, D) to logits (…, V): for generation; training goes through the kernels."""
        weight, bias = self.unembedding
        return nn.functional.linear(hidden, weight, bias)

    def values(self, hidden: Tensor) -> Tensor:
        """State values from hidden states.

        Args:
            hidden: (…, D). The entry at token t is the value of having read the tokens up to and with t.

        Returns:
            (…) float32.
        """
        values: Tensor = self.value_head(hidden.reshape(-1, hidden.shape[-1]))
        return values.view(hidden.shape[:-1])

    def add_lora(self, lora: LoRA, *, seed: int = 0) -> LanguageModel:
        """Train adapters and the value head from now on, and leave the weights as they are.

        Raises:
            ConfigurationError: there are adapters already, or no module has one of the names.
        """
        if self.lora is not None:
            raise ConfigurationError("lora: the model has adapters already")
        add_lora(self.causal_lm, lora, seed=seed)
        self.lora = lora
        return self

    def recompute_activations(self) -> LanguageModel:
        """Trade time for memory in training: each layer's activations are computed again in the backward pass."""
        new = getattr(self.causal_lm, "activation_checkpointing_enable", None)  # since transformers 5.20 or so
        (new or self.causal_lm.gradient_checkpointing_enable)({"use_reentrant": False})
        self.causal_lm.train()  # transformers does it in this mode only; with dropout off it changes nothing else
        return self

    def reference_copy(self) -> LanguageModel | Unadapted:
        """The policy as it is now, frozen, which later updates do not touch: no second copy where adapters are new."""
        if self.lora is not None and lora_is_neutral(self.causal_lm):
            return Unadapted(self)
        return self.copy().requires_grad_(False).eval()

    def copy(self) -> LanguageModel:
        """The same policy with weights of its own."""
        shared = {id(self.tokenizer): self.tokenizer}  # training does not change it, and it may hold native handles
        return copy.deepcopy(self, shared)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Taken up in another process, too, whose transformers must know its attention."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        register_segment_attention(self._attention)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """All weights; with adapters those alone, and the value head: the rest is where the model came from."""
        state: dict[str, Any] = super().state_dict(*args, **kwargs)
        return state if self.lora is None else {name: t for name, t in state.items() if _is_trained(name)}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Take up what `state_dict` gave.

        Raises:
            RuntimeError: it has other names or shapes.
        """
        if self.lora is not None and strict and set(state_dict) != set(self.state_dict()):
            raise RuntimeError("the state is not one of adapters like these")
        return super().load_state_dict(state_dict, strict=strict and self.lora is None, assign=assign)

    def checkpoint_weights(self) -> dict[str, Tensor]:
        """The weights as a checkpoint in Hugging Face's format names them: adapters merged, of tied tensors one."""
        state = self.causal_lm.state_dict() if self.lora is None else merged_weights(self.causal_lm)
        return {name: tensor for name, tensor in state.items() if name not in self._tied_names()}

    def load_checkpoint_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take up what `checkpoint_weights` gave, of a model without adapters.

        Raises:
            RuntimeError: a weight is missing, or is none of the model's, or of another shape.
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
    def _check_logits_are_linear(self) -> None:
        """Some families scale or cap their logits after the projection; the kernels would then be silently wrong."""
        training = self.causal_lm.training
        self.causal_lm.train(False)
        ids = torch.zeros((1, 2), dtype=torch.int64, device=self.device)
        theirs = self.causal_lm(input_ids=ids, use_cache=False).logits.float()
        ours = self.logits(self.run_trunk(ids, torch.arange(2, device=self.device)[None], None)).float()
        self.causal_lm.train(training)
        if not torch.allclose(theirs, ours, rtol=1e-2, atol=1e-3 + 1e-2 * float(ours.abs().max())):
            raise ConfigurationError(
                f"{self.causal_lm.config.model_type}: logits are not a plain projection of the hidden states (scaled "
                "or capped after it); such models cannot be trained here"
            )

    @torch.no_grad()
    def _check_packing(self) -> None:
        """A family that does not hand the layout on to its attention would let packed sequences see one another."""
        ids = torch.tensor([[0, 1, 2, 3], [1, 1, 2, 3]], device=self.device) % self.unembedding.weight.shape[0]
        positions = torch.tensor([[0, 1, 0, 1]] * 2, device=self.device)
        hidden = self.trunk_hidden(ids, positions, torch.tensor([[1, 1, 2, 2]] * 2, device=self.device))
        if not torch.equal(hidden[0, 2:], hidden[1, 2:]):
            raise ConfigurationError(
                f"{self.causal_lm.config.model_type}: packed sequences see one another; choose a Llama, Qwen2, Qwen3, "
                "Mistral or GPT-2 style model"
            )


def _is_trained(name: str) -> bool:
    return "lora_" in name or name.startswith("value_head.")


def _switch_dropout_off(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            # Newer families read this plain attribute where older ones have a Dropout module.
            setattr(module, "attention_dropout", 0.0)  # noqa: B010
