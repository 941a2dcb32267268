"""The reference that costs nothing: a model with its adapters switched off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from swe_trainers.policy.lora import without_lora
from swe_trainers.policy.sequence_parallel import SequenceGroup

if TYPE_CHECKING:
    from swe_trainers.policy.language_model import LanguageModel

__all__ = ["Unadapted", "Unembedding"]


class Unembedding(NamedTuple):
    """The projection from hidden states to logits: `weight` (V, D) and `bias` (V,) or None."""

    weight: Tensor
    bias: Tensor | None


class Unadapted:
    """A model with its adapters switched off, as the reference of the same model with them; it has no weights to learn.

    Args:
        model: with adapters.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model

    def trunk_hidden(self, input_ids: Tensor, position_ids: Tensor, segment_ids: Tensor) -> Tensor:
        """As `LanguageModel.trunk_hidden`, before anything was learnt."""
        with without_lora(self._model.causal_lm):
            return self._model.trunk_hidden(input_ids, position_ids, segment_ids)

    @property
    def sequence_group(self) -> SequenceGroup | None:
        """The model's."""
        return self._model.sequence_group

    @property
    def unembedding(self) -> Unembedding:
        """The model's own: adapters leave it alone."""
        return self._model.unembedding

    def values(self, hidden: Tensor) -> Tensor:
        """The value head that is being trained: a reference is asked for none."""
        return self._model.values(hidden)

    def parameters(self) -> Iterator[nn.Parameter]:
        """The weights that it computes with."""
        return self._model.parameters()

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the weights are where the model came from."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take up nothing.

        Raises:
            RuntimeError: there is something: the state is another kind of reference's.
        """
        if state_dict:
            raise RuntimeError("the reference has weights of its own, here it is the model without its adapters")
