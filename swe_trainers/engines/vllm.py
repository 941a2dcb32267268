"""The API of vLLM, which `swe-serve` has too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from swe_trainers.engines.http import JsonClient
from swe_trainers.engines.served import Call, Completion, Generation, not_understood
from swe_trainers.errors import ConfigurationError

__all__ = ["VLLM"]


@dataclass(frozen=True)
class VLLM:
    """OpenAI's `/v1/completions` with vLLM's extensions: `return_token_ids`, `stop_token_ids`, `/collective_rpc`.

    Attributes:
        model: name of the model on the server.
    """

    model: str
    transports: ClassVar[frozenset[str]] = frozenset({"files", "nccl", "gloo"})
    restricts: ClassVar[bool] = True

    @classmethod
    def connect(cls, client: JsonClient, model: str | None) -> VLLM:
        """Use this model, or the first one that the server names."""
        if model is not None:
            return cls(model)
        answer = client.get("/v1/models")
        try:
            return cls(str(answer["data"][0]["id"]))
        except (KeyError, IndexError, TypeError) as error:
            raise ConfigurationError(f"{client.url}/v1/models: names no model. Try: engine.model") from error

    def generate(self, request: Generation) -> Call:
        return "/v1/completions", {
            **({} if request.allowed is None else {"allowed_token_ids": list(request.allowed)}),
            "model": self.model,
            "prompt": list(request.token_ids),
            "max_tokens": request.max_new_tokens,
            "stop_token_ids": sorted(request.stop_ids),
            "stop": list(request.stop_strings),
            "temperature": request.sampling.temperature,
            "top_k": request.sampling.top_k or -1,
            "top_p": request.sampling.top_p,
            "min_p": request.sampling.min_p,
            "seed": request.seed,
            "logprobs": 1,
            "return_token_ids": True,
            "ignore_eos": True,  # the chat format decides what ends an action, not the model's folder
            "skip_special_tokens": False,
            "include_stop_str_in_output": True,
        }

    def read(self, answer: Any) -> Completion:
        try:
            choice = answer["choices"][0]
            ids, logprobs = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs")
            return Completion.of(ids, logprobs, isinstance(choice.get("stop_reason"), str))
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise not_understood("/v1/completions", answer) from error

    def reload(self, folder: str) -> Sequence[Call]:
        del folder  # the server reads the folder that it was started with
        return ("/collective_rpc", {"method": "reload_weights"}), ("/reset_prefix_cache", {})
