"""The API of SGLang."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from swe_trainers.engines.http import JsonClient
from swe_trainers.engines.served import Call, Completion, Generation, not_understood

__all__ = ["SGLang"]


@dataclass(frozen=True)
class SGLang:
    """SGLang's own `/generate` and `/update_weights_from_disk`."""

    transports: ClassVar[frozenset[str]] = frozenset({"files"})
    restricts: ClassVar[bool] = False

    @classmethod
    def connect(cls, client: JsonClient, model: str | None) -> SGLang:
        """A server of SGLang has one model."""
        del client, model
        return cls()

    def generate(self, request: Generation) -> Call:
        return "/generate", {
            "input_ids": list(request.token_ids),
            "return_logprob": True,
            "sampling_params": {
                "max_new_tokens": request.max_new_tokens,
                "stop_token_ids": sorted(request.stop_ids),
                "stop": list(request.stop_strings),
                "temperature": request.sampling.temperature,
                "top_k": request.sampling.top_k or -1,
                "top_p": request.sampling.top_p,
                "min_p": request.sampling.min_p,
                "sampling_seed": request.seed,
                "ignore_eos": True,
                "no_stop_trim": True,
                "skip_special_tokens": False,
            },
        }

    def read(self, answer: Any) -> Completion:
        try:
            meta = answer["meta_info"]
            pairs = meta.get("output_token_logprobs")
            ids = answer.get("output_ids") or (None if pairs is None else [pair[1] for pair in pairs])
            matched = (meta.get("finish_reason") or {}).get("matched")
            return Completion.of(ids, None if pairs is None else [pair[0] for pair in pairs], isinstance(matched, str))
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise not_understood("/generate", answer) from error

    def reload(self, folder: str) -> Sequence[Call]:
        # It drops its prefix cache with them; older servers ignore this field, and always drop it.
        return (("/update_weights_from_disk", {"model_path": folder, "flush_cache": True}),)
