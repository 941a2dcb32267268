"""What generation servers understand: the requests and answers of vLLM's completions and of SGLang's `/generate`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import EngineError

__all__ = ["Answer", "Call", "Completions", "Dialect", "SGLang"]

Call = tuple[str, dict[str, Any]]
"""A path and the body to post there."""


@dataclass(frozen=True)
class Answer:
    """What a server generated.

    Attributes:
        token_ids: as sampled; None where the server does not say.
        logprobs: of each of them; None where the server does not say.
        by_string: a stop string ended it.
    """

    token_ids: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None
    by_string: bool


class Dialect(Protocol):
    """How to ask one kind of server."""

    def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_new_tokens: int,
        stop_ids: Collection[int],
        stop_strings: Sequence[str],
        sampling: Sampling,
        seed: int,
    ) -> Call:
        """Ask for tokens after these."""
        ...

    def read(self, answer: Any) -> Answer:
        """Understand what came back. Raises `EngineError` where it cannot be understood."""
        ...

    def reload(self, folder: str) -> Sequence[Call]:
        """Take the weights in the folder, and forget what was computed with others."""
        ...


@dataclass(frozen=True)
class Completions:
    """OpenAI's `/v1/completions` with vLLM's extensions: `return_token_ids`, `stop_token_ids`, `/collective_rpc`.

    Attributes:
        model: the name that the server knows its model by.
    """

    model: str

    def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_new_tokens: int,
        stop_ids: Collection[int],
        stop_strings: Sequence[str],
        sampling: Sampling,
        seed: int,
    ) -> Call:
        return "/v1/completions", {
            "model": self.model,
            "prompt": list(token_ids),
            "max_tokens": max_new_tokens,
            "stop_token_ids": sorted(stop_ids),
            "stop": list(stop_strings),
            "temperature": sampling.temperature,
            "top_k": sampling.top_k or -1,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "seed": seed,
            "logprobs": 1,
            "return_token_ids": True,
            "ignore_eos": True,  # what ends an action is the chat format's to say, not the model folder's
            "skip_special_tokens": False,
            "include_stop_str_in_output": True,
        }

    def read(self, answer: Any) -> Answer:
        try:
            choice = answer["choices"][0]
            ids, said = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs")
            return _answer(ids, said, isinstance(choice.get("stop_reason"), str))
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise _not_understood("/v1/completions", answer) from error

    def reload(self, folder: str) -> Sequence[Call]:
        del folder  # the server reads the folder that it was started with
        return ("/collective_rpc", {"method": "reload_weights"}), ("/reset_prefix_cache", {})


@dataclass(frozen=True)
class SGLang:
    """SGLang's own `/generate` and `/update_weights_from_disk`."""

    def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_new_tokens: int,
        stop_ids: Collection[int],
        stop_strings: Sequence[str],
        sampling: Sampling,
        seed: int,
    ) -> Call:
        return "/generate", {
            "input_ids": list(token_ids),
            "return_logprob": True,
            "sampling_params": {
                "max_new_tokens": max_new_tokens,
                "stop_token_ids": sorted(stop_ids),
                "stop": list(stop_strings),
                "temperature": sampling.temperature,
                "top_k": sampling.top_k or -1,
                "top_p": sampling.top_p,
                "min_p": sampling.min_p,
                "sampling_seed": seed,
                "ignore_eos": True,
                "no_stop_trim": True,
                "skip_special_tokens": False,
            },
        }

    def read(self, answer: Any) -> Answer:
        try:
            meta = answer["meta_info"]
            pairs = meta.get("output_token_logprobs")
            ids = answer.get("output_ids") or (None if pairs is None else [pair[1] for pair in pairs])
            matched = (meta.get("finish_reason") or {}).get("matched")
            return _answer(ids, None if pairs is None else [pair[0] for pair in pairs], isinstance(matched, str))
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise _not_understood("/generate", answer) from error

    def reload(self, folder: str) -> Sequence[Call]:
        # It drops its prefix cache with them; older servers know no such field, and always drop it.
        return (("/update_weights_from_disk", {"model_path": folder, "flush_cache": True}),)


def _answer(ids: Sequence[Any] | None, logprobs: Sequence[Any] | None, by_string: bool) -> Answer:
    return Answer(
        None if ids is None else tuple(int(i) for i in ids),
        None if logprobs is None else tuple(float(x) for x in logprobs),
        by_string,
    )


def _not_understood(path: str, answer: Any) -> EngineError:
    shape = sorted(answer) if isinstance(answer, Mapping) else type(answer).__name__
    return EngineError(f"{path}: the answer cannot be understood, it holds {shape}. Is engine.kind right?")
