"""A policy whose weights are on a server of Tinker's API; episodes, advantages and losses are computed here.

```python
policy = TinkerPolicy("http://127.0.0.1:8000", "Qwen3-0.6B", rank=16)
Trainer(policy, "FrozenLake-v1", GRPO(learning_rate=1e-4)).train()
```

Every loss that is a function of the log-probabilities of actions has its exact gradient there: one pass gets the
log-probabilities, the loss is differentiated by them here, and a second pass with the server's loss `cross_entropy`
takes the derivatives as its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import tinker
import torch
from torch import Tensor

from swe_trainers.algorithms.algorithm import Algorithm
from swe_trainers.algorithms.policy_gradient import PolicyGradient
from swe_trainers.engines.connect import Generation
from swe_trainers.errors import ConfigurationError, TrainerError
from swe_trainers.learning.batch import Rows
from swe_trainers.learning.learner import Learner
from swe_trainers.model.chat import ChatFormat, chat_format
from swe_trainers.model.tokenizers import Tokenizer, load_tokenizer
from swe_trainers.tinker.engine import FAILURES, TinkerGeneration, failed

__all__ = ["TinkerPolicy"]

Samples = Sequence[tuple[Any, Any]]
"""Token ids (T,) of each sample of some rows, and their places in the flattened rows (T,)."""


class TinkerPolicy:
    """A model in training on a server; see `learning.forward.HostedPolicy`.

    Of the distributions only the probabilities of given tokens are known here: `entropy` in metrics is the estimate
    −log p of the sampled tokens.

    Args:
        url: of the server; None takes `$TINKER_BASE_URL`.
        base_model: its name on the server.
        api_key: of the server, which begins with `tml-`; None takes `$TINKER_API_KEY`.
        rank: of the adapters; `swe-serve` trains all weights with rank 0.
        seed: of the adapters.
        tokenizer: None loads the one that the server names, from a folder or the Hugging Face Hub.

    Attributes:
        client: the client of the model in training.

    Raises:
        EngineError: the server does not answer, or has no such model.
    """

    def __init__(
        self,
        url: str | None,
        base_model: str,
        *,
        api_key: str | None = None,
        rank: int = 16,
        seed: int = 0,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        try:
            self._service = tinker.ServiceClient(base_url=url, api_key=api_key)
            begun = self._service.create_lora_training_client(base_model=base_model, rank=rank, seed=seed)
            self.client: tinker.TrainingClient = begun.result()
        except FAILURES as error:
            raise failed("no model", error) from error
        self.tokenizer = tokenizer or load_tokenizer(self.client.get_info().model_data.tokenizer_id or base_model)
        self._place = torch.nn.Parameter(torch.zeros(()), requires_grad=False)
        self._saved = 0

    def close(self) -> None:
        """End the session: the server drops the model."""
        self._service.close("success").result()

    def chat_format(self) -> ChatFormat:
        """The chat format of the model's tokenizer."""
        return chat_format(self.tokenizer)

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """One that is not trained, on the device where losses are computed."""
        yield self._place

    def state_dict(self) -> dict[str, Any]:
        """The path of weights and optimizer, which the server saves. Raises EngineError."""
        self._saved += 1
        try:
            return {"path": self.client.save_state(f"state-{self._saved}", overwrite=True).result().path}
        except FAILURES as error:
            raise failed("the state was not saved", error) from error

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on with what `state_dict` saved, as a new model of the server. Raises EngineError."""
        try:
            begun = self._service.create_training_client_from_state_with_optimizer(state_dict["path"])
            self.client = begun.result()
        except FAILURES as error:
            raise failed(f"{state_dict['path']}: not loaded", error) from error

    def save_pretrained(self, folder: str | Path) -> None:
        """Refused: the weights are on the server."""
        raise TrainerError(f"{folder}: the weights are on the server. Try: policy.client.save_state(NAME)")

    def learner(self, algorithm: Algorithm, *, seed: int = 0) -> Learner:
        """A learner at its start.

        Raises:
            ConfigurationError: the algorithm needs more than log-probabilities at temperature 1.
        """
        names = ("entropy_coefficient", "gradient_noise_every", "needs_reference", "needs_critic", "needs_values")
        needed = [name for name in (*names, "may_stop_early") if getattr(algorithm, name, False)]
        needed += ["moments"] if algorithm.moments != "float32" else []
        if not isinstance(algorithm, PolicyGradient) or needed or algorithm.temperature != 1:
            raise ConfigurationError(
                f"{type(algorithm).__name__}: not on a server of Tinker's API: {', '.join(needed) or 'temperature'}. "
                "Try: the REINFORCE or GRPO family without reference, entropy bonus and stop_kl, at temperature 1"
            )
        steps: Any = _Steps(self, algorithm)
        model: Any = self
        return Learner(model, steps, torch.Generator().manual_seed(seed))

    def generation(self, n_slots: int, max_tokens: int) -> Generation:
        """What samples with the weights as they are after each update."""
        return TinkerGeneration(lambda: self.client, n_slots, max_tokens)

    def action_logprobs(self, rows: Rows, temperature: float | Tensor) -> Tensor:
        """Log-probabilities of the action tokens of some rows, (A,) float32, differentiable.

        Raises:
            ConfigurationError: tokens were sampled at another temperature than 1, or among allowed ones.
            EngineError: the server does not answer, or refuses.
        """
        if rows.allowed is not None or isinstance(temperature, Tensor) or temperature != 1:
            raise ConfigurationError("Tinker's API: passes are at temperature 1, over the whole vocabulary")
        ids, inside = rows.input_ids.flatten().numpy(), (rows.segment_ids > 0).flatten().numpy()
        number = ((rows.position_ids == 0).flatten().numpy() & inside).cumsum()  # the sample of each place, from 1
        places = [np.flatnonzero(inside & (number == n)) for n in range(1, int(number.max()) + 1)]
        found: Tensor = _Logprobs.apply(
            self._place.detach().clone().requires_grad_(), self, rows, [(ids[at], at) for at in places]
        )  # type: ignore[no-untyped-call]
        return found

    def run_pass(self, samples: Samples, weights: Sequence[Any], *, backward: bool) -> list[Any]:
        """A pass with the loss `cross_entropy`: log-probabilities of all tokens but each sample's first.

        Raises:
            EngineError: the server does not answer, or refuses.
        """
        data = [
            tinker.Datum(
                model_input=tinker.ModelInput.from_ints(ids[:-1].tolist()),
                loss_fn_inputs={
                    "target_tokens": tinker.TensorData(data=ids[1:], dtype="int64"),
                    "weights": tinker.TensorData(data=weight, dtype="float32"),
                },
            )
            for (ids, _), weight in zip(samples, weights, strict=True)
        ]
        run = self.client.forward_backward if backward else self.client.forward
        try:
            return [output["logprobs"].to_numpy() for output in run(data, "cross_entropy").result().loss_fn_outputs]
        except FAILURES as error:
            raise failed("a pass failed", error) from error


class _Logprobs(torch.autograd.Function):
    """Log-probabilities of actions by a pass of the server; their derivatives go back by another."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, policy: TinkerPolicy, rows: Rows, samples: Samples) -> Tensor:
        del anchor  # it requires gradients, and with it the result
        ctx.policy, ctx.rows, ctx.samples = policy, rows, samples
        found = np.zeros(rows.input_ids.numel(), np.float32)
        nothing = [np.zeros(len(ids) - 1, np.float32) for ids, _ in samples]
        for (_, at), logprobs in zip(samples, policy.run_pass(samples, nothing, backward=False), strict=True):
            found[at[1:]] = logprobs
        return torch.from_numpy(found)[rows.places]

    @staticmethod
    def backward(ctx: Any, slopes: Tensor) -> tuple[None, None, None, None]:
        spread = torch.zeros(ctx.rows.input_ids.numel()).index_put((ctx.rows.places,), -slopes).numpy()
        ctx.policy.run_pass(ctx.samples, [spread[at[1:]] for _, at in ctx.samples], backward=True)
        return None, None, None, None


class _Steps:
    """The server's AdamW as an optimizer of ours; see `learning.update.Steps`."""

    def __init__(self, policy: TinkerPolicy, algorithm: Algorithm) -> None:
        self._policy, self._algorithm = policy, algorithm
        self.param_groups: list[dict[str, Any]] = [{"params": [], "lr": algorithm.learning_rate}]

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        """Nothing: a step leaves no gradients, and every pass backwards is followed by one."""

    def microbatch(self, *, last: bool) -> AbstractContextManager[Callable[[Tensor], None]]:
        del last
        return nullcontext(Tensor.backward)

    def clipped_step(self, max_norm: float) -> float:
        params = tinker.AdamParams(
            learning_rate=self.param_groups[0]["lr"],
            beta1=0.9,
            beta2=0.999,
            eps=self._algorithm.adam_epsilon,
            weight_decay=self._algorithm.weight_decay,
            grad_clip_norm=max_norm,
        )
        try:
            metrics = self._policy.client.optim_step(params).result().metrics or {}
        except FAILURES as error:
            raise failed("no step was taken", error) from error
        reported = (value for name, value in metrics.items() if "grad_norm" in name)
        return next(reported, 0.0)  # 0: the server reports none

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the policy's state has it."""
        return {"state": {}, "param_groups": []}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing: the policy's state had it."""
