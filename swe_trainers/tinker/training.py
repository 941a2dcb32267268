"""One model in training for a client of Tinker's API: passes with its loss functions, optimizer steps, saved states."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tinker.proto import tinker_public_pb2 as messages
from torch import Tensor

from swe_trainers.errors import ConfigurationError, TrainerError
from swe_trainers.files import replacing
from swe_trainers.kernels import token_logprobs
from swe_trainers.learning.forward import logit_options
from swe_trainers.learning.learner import adamw
from swe_trainers.learning.losses import clipped_policy_loss, score_function_loss
from swe_trainers.learning.update import take_step
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.model.lora import LoRA

__all__ = ["LOSSES", "TrainingRun"]

_DTYPES = {messages.DTYPE_FLOAT32: np.float32, messages.DTYPE_INT64: np.int64, messages.DTYPE_INT32: np.int32}
Inputs = Mapping[str, Tensor]
Config = Mapping[str, float]


def _cross_entropy(logprobs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    del config
    return score_function_loss(logprobs, inputs["weights"])


def _importance_sampling(logprobs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    del config
    return -inputs["advantages"] * (logprobs - inputs["logprobs"]).exp()


def _ppo(logprobs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    low, high = config.get("clip_low_threshold", 0.8), config.get("clip_high_threshold", 1.2)
    ratio = logprobs - inputs["logprobs"]
    return clipped_policy_loss(ratio, inputs["advantages"], clip_low=1 - low, clip_high=high - 1)[0]


def _cispo(logprobs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    low, high = config.get("clip_low_threshold", 0.0), config.get("clip_high_threshold", 4.0)
    ratio = (logprobs.detach() - inputs["logprobs"]).exp().clamp(low, high)
    return score_function_loss(logprobs, ratio * inputs["advantages"])


LOSSES: dict[str, tuple[Callable[[Tensor, Inputs, Config], Tensor], tuple[str, ...], frozenset[str]]] = {
    "cross_entropy": (_cross_entropy, ("weights",), frozenset()),
    "importance_sampling": (_importance_sampling, ("logprobs", "advantages"), frozenset()),
    "ppo": (_ppo, ("logprobs", "advantages"), frozenset({"clip_low_threshold", "clip_high_threshold"})),
    "cispo": (_cispo, ("logprobs", "advantages"), frozenset({"clip_low_threshold", "clip_high_threshold"})),
}
"""Loss functions of the API, each the sum over all tokens: the loss a token, the inputs it reads, and its settings."""


class TrainingRun:
    """A copy of a model with its gradients and its optimizer; one thread uses it.

    Args:
        folder: of the model.
        rank: of the adapters; 0 trains all weights.
        seed: of the adapters.
        microbatch_tokens: entries of one forward pass, padding counted.
    """

    def __init__(self, folder: Path, *, rank: int, seed: int, microbatch_tokens: int) -> None:
        self.rank = rank
        self.model = LanguageModel.from_pretrained(folder)
        if rank:
            self.model.add_lora(LoRA(rank=rank), seed=seed)
        self._microbatch_tokens = microbatch_tokens
        self._optimizer = adamw(self.model, learning_rate=1.0)

    def forward_backward(self, request: messages.ForwardBackwardRequest) -> bytes:
        """Log-probabilities of the target tokens, and unless `forward_only` the gradients of the loss are added.

        Raises:
            ConfigurationError: the loss is not known, or its inputs are incomplete or of other lengths.
        """
        config = {name: value.number for name, value in request.loss_fn_config_v2.items()}
        if request.loss_fn not in LOSSES:
            raise ConfigurationError(f"loss_fn: got {request.loss_fn!r}, expected one of {', '.join(LOSSES)}")
        loss, names, settings = LOSSES[request.loss_fn]
        if unknown := sorted(set(config) - settings):
            raise ConfigurationError(f"loss_fn_config: {unknown[0]} has no effect on {request.loss_fn}")
        data = [self._datum(number, datum, names) for number, datum in enumerate(request.data)]
        total, found = 0.0, dict[int, NDArray[np.float32]]()
        for part in self._parts([len(ids) for ids, _ in data]):
            with torch.set_grad_enabled(not request.forward_only):
                logprobs = self._logprobs([data[i][0] for i in part], [data[i][1]["target_tokens"] for i in part])
                inputs = {name: torch.cat([data[i][1][name] for i in part]) for name in names}
                summed = loss(logprobs, inputs, config).sum()
            if not request.forward_only:
                summed.backward()  # type: ignore[no-untyped-call]
            total += float(summed.detach())
            ends = np.cumsum([len(data[i][0]) for i in part])[:-1]
            found |= dict(zip(part, np.split(logprobs.detach().numpy(), ends), strict=True))
        answer = messages.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", metrics={"loss:sum": total})
        flat = [found[i].astype(np.float32) for i in range(len(data))]
        record = answer.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(data))
        field = record.fields["logprobs"]
        field.data = b"".join(each.tobytes() for each in flat)
        field.offsets = np.cumsum([0, *(each.nbytes for each in flat)]).astype(np.int64).tobytes()
        field.dtype = messages.DTYPE_FLOAT32
        return bytes(answer.SerializeToString())

    def _datum(self, number: int, datum: messages.Datum, names: tuple[str, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        """Token ids (T,) and inputs (T,) of a datum."""
        ids = list[int]()
        for chunk in datum.model_input:
            if not chunk.HasField("encoded_text"):
                raise ConfigurationError(f"data {number}: only tokens of text are read here")
            ids += np.frombuffer(chunk.encoded_text.tokens, np.int32).tolist()
        inputs = dict[str, Tensor]()
        for name in ("target_tokens", *names):
            if name not in datum.loss_fn_inputs:
                raise ConfigurationError(f"data {number}: {name} is missing")
            given = datum.loss_fn_inputs[name]
            array = np.frombuffer(given.dense, _DTYPES[given.dtype])
            if given.HasField("sparse_csr") or array.shape != (len(ids),):
                raise ConfigurationError(f"data {number}: {name}: expected a dense vector of {len(ids)} numbers")
            inputs[name] = torch.from_numpy(array.astype(np.int64 if name == "target_tokens" else np.float32))
        vocabulary = self.model.tokenizer.vocab_size
        read = torch.tensor(ids, dtype=torch.int64)
        for tokens in (read, inputs["target_tokens"]):
            if not len(tokens) or not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary:
                raise ConfigurationError(f"data {number}: expected at least one token, each below {vocabulary}")
        return read, inputs

    def _parts(self, lengths: list[int]) -> list[list[int]]:
        """Micro-batches, longest first."""
        parts: list[list[int]] = []
        for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
            if not parts or (len(parts[-1]) + 1) * lengths[parts[-1][0]] > self._microbatch_tokens:
                parts.append([])
            parts[-1].append(i)
        return parts

    def _logprobs(self, ids: list[Tensor], targets: list[Tensor]) -> Tensor:
        """(A,) float32 of the targets of all places, end to end."""
        model, device = self.model, self.model.device
        padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)  # (B, T)
        inside = torch.arange(padded.shape[1]) < torch.tensor([[len(each)] for each in ids])
        places = torch.arange(padded.shape[1]).expand_as(padded).contiguous()
        hidden = model.trunk_hidden(padded.to(device), places.to(device), inside.long().to(device))
        weight, bias = model.unembedding
        states, wanted = hidden[inside.to(device)], torch.cat(targets).to(device)
        return token_logprobs(states, weight, wanted, bias=bias, **logit_options(model))[0].cpu()

    def optim_step(
        self,
        *,
        learning_rate: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        grad_clip_norm: float,
    ) -> dict[str, float]:
        """One step of AdamW with the gradients added up so far, which are 0 then; only matrices decay.

        Raises:
            TrainerError: the gradient is not finite; no step was taken.
        """
        for group in self._optimizer.param_groups:
            decay = weight_decay if group["params"][0].ndim >= 2 else 0.0
            group.update(lr=learning_rate, betas=(beta1, beta2), eps=eps, weight_decay=decay)
        try:
            norm = take_step(self.model, self._optimizer, grad_clip_norm if grad_clip_norm > 0 else math.inf)
        finally:
            self._optimizer.zero_grad(set_to_none=True)
        return {"grad_norm": norm}

    def save(self, place: Path) -> None:
        """Write weights and optimizer."""
        self._write(
            place, {"rank": self.rank, "model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}
        )

    def save_for_sampler(self, place: Path) -> None:
        """Write the weights under the names of a checkpoint, adapters merged."""
        self._write(place, self.model.checkpoint_weights())

    def _write(self, place: Path, state: dict[str, Any]) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(place) as partial:
            torch.save(state, partial)

    def load(self, state: Mapping[str, Any], *, optimizer: bool) -> None:
        """Load what `save` wrote; without `optimizer`, the optimizer starts with a new state.

        Raises:
            TrainerError: the saved state is that of another model.
        """
        try:
            self.model.load_state_dict(state["model"])
            self._optimizer = adamw(self.model, learning_rate=1.0)
            if optimizer:
                self._optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError) as error:
            raise TrainerError(f"the saved weights do not fit: {str(error).splitlines()[0]}") from error
