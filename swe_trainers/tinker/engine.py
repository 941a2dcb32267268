"""Actions sampled by a server of Tinker's API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import tinker

from swe_trainers.engines.connect import Generation
from swe_trainers.engines.http import JsonClient
from swe_trainers.engines.sampling import Sampling
from swe_trainers.engines.served import Call, Completion, ServedEngine
from swe_trainers.engines.served import Generation as Request
from swe_trainers.errors import ConfigurationError, EngineError

__all__ = ["FAILURES", "TinkerGeneration", "failed"]

FAILURES = (tinker.TinkerError, ValueError, RuntimeError)
"""What the client raises."""


class _Sampling:
    """Requests of a served engine, answered by the client's sampling."""

    transports: ClassVar[frozenset[str]] = frozenset()
    restricts: ClassVar[bool] = False

    def __init__(self, url: str) -> None:
        self.url = url
        self.sampler: tinker.SamplingClient | None = None

    @classmethod
    def connect(cls, client: JsonClient, model: str | None) -> _Sampling:
        raise EngineError(f"{client.url}: Tinker's API is reached by its own client, not for {model}")

    def generate(self, request: Request) -> Call:
        if request.sampling.min_p:
            raise ConfigurationError("rollout.min_p: not in Tinker's API")
        params = tinker.SamplingParams(
            max_tokens=request.max_new_tokens,
            temperature=request.sampling.temperature,
            top_k=request.sampling.top_k or -1,
            top_p=request.sampling.top_p,
            seed=request.seed,
            stop=list(request.stop_strings) if request.stop_strings else sorted(request.stop_ids),
        )
        return "asample", {"prompt": list(request.token_ids), "params": params, "stop_ids": frozenset(request.stop_ids)}

    def post(self, _: str, body: dict[str, Any]) -> Any:
        assert self.sampler is not None
        prompt = tinker.ModelInput.from_ints(body["prompt"])
        try:
            (sequence,) = self.sampler.sample(prompt, 1, body["params"]).result().sequences
        except FAILURES as error:
            raise failed("no sample", error) from error
        return sequence, body["stop_ids"]

    def read(self, answer: Any) -> Completion:
        sequence, stop_ids = answer
        by_string = sequence.stop_reason == "stop" and sequence.tokens[-1] not in stop_ids
        return Completion.of(sequence.tokens, sequence.logprobs, by_string)

    def reload(self, folder: str) -> Sequence[Call]:
        raise EngineError(f"{folder}: a server of Tinker's API takes no weights")


class TinkerGeneration(Generation):
    """Samples with the weights of a model in training on a server.

    Args:
        client: gives the client of the model as it is now.
        n_slots: episodes open at once.
        max_tokens: the longest sequence.
    """

    def __init__(self, client: Callable[[], tinker.TrainingClient], n_slots: int, max_tokens: int) -> None:
        self._client, self._number, self._requests = client, -1, _Sampling("Tinker's API")
        posts: Any = self._requests
        super().__init__(ServedEngine(posts, self._requests, n_slots=n_slots, max_tokens=max_tokens))

    def prepare(self, number: int, sampling: Sampling) -> None:
        """Sample from the weights as they are now, if there was an update."""
        del sampling
        if number != self._number:
            try:
                self._requests.sampler = self._client().save_weights_and_get_sampling_client().result()
            except FAILURES as error:
                raise failed("the weights cannot be sampled from", error) from error
            self._number = number


def failed(what: str, error: Exception) -> EngineError:
    """The error for one of `FAILURES`."""
    return EngineError(f"Tinker's API: {what}: {' '.join(str(error).split()) or type(error).__name__}")
