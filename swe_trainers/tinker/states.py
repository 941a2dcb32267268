"""Weights that clients of Tinker's API saved, and their requests to sample from some of them."""

from __future__ import annotations

import re
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
from tinker.proto import tinker_public_pb2 as messages

from swe_trainers.engines import protocol
from swe_trainers.engines.serving import Job
from swe_trainers.errors import ConfigurationError
from swe_trainers.tinker.requests import Sample

__all__ = ["States", "samples_message", "sampling_jobs"]

_NAME = re.compile(r"[\w-][\w.-]{0,99}")
_ENDS = {True: messages.STOP_REASON_STOP, False: messages.STOP_REASON_LENGTH}
_NOT_COMPUTED = (
    "prompt_logprobs", "topk_prompt_logprobs", "topk_sample_logprobs", "target_prompt_logprobs", "prompt_alt_tokens_k",
)  # fmt: skip


class States:
    """Files of saved weights.

    Args:
        folder: where they are; None for a folder that `close` removes.

    Attributes:
        folder: where they are.
        samplers: the file that each sampling session samples from; None for the model as it is in its own folder.
    """

    def __init__(self, folder: str | Path | None) -> None:
        self._own = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="swe-serve-") if folder is None else folder)
        self.samplers: dict[str, Path | None] = {}

    def close(self) -> None:
        """Remove what is not to stay."""
        if self._own:
            shutil.rmtree(self.folder, ignore_errors=True)

    def file_of(self, path: str, kind: str = "sampler_weights", *, new: bool | None = False) -> Path:
        """The file of weights.

        Args:
            path: `tinker://RUN/KIND/NAME`.
            kind: `weights`, with their optimizer, or `sampler_weights`.
            new: whether they are to be written; None where they may be there already.
        Raises:
            ConfigurationError: it is no such path, it is taken, or there are no such weights.
        """
        run, *rest = path.removeprefix("tinker://").replace(":", "-").split("/")
        if len(rest) != 2 or rest[0] != kind or not all(_NAME.fullmatch(part) for part in (run, rest[1])):
            raise ConfigurationError(f"path: got {path!r}, expected tinker://RUN/{kind}/NAME")
        place = self.folder / run / kind / f"{rest[1]}.pt"
        if new is not None and new == place.exists():
            raise ConfigurationError(f"{path}: {'is taken' if new else 'there are no such weights'}")
        return place

    def place_of(self, sampler: str) -> Path | None:
        """The file that a sampling session samples from. Raises ConfigurationError: there is no such session."""
        if sampler not in self.samplers:
            raise ConfigurationError(f"sampling session {sampler!r}: there is none")
        return self.samplers[sampler]


def sampling_jobs(body: Sample, end_id: int, max_tokens: int) -> list[Job]:
    """What a request to sample asks of the engine, one job a sample.

    Args:
        body: of the request.
        end_id: ends a sample where the request names no other ends, or only texts.
        max_tokens: of a sample, where the request says nothing.
    Raises:
        ConfigurationError: it asks for more than samples with their log-probabilities, or a value is out of its range.
    """
    if refused := [name for name in _NOT_COMPUTED if (body.model_extra or {}).get(name)]:
        raise ConfigurationError(f"{', '.join(refused)}: not computed here. Try: forward of a training client")
    prompt, params = tuple(i for chunk in body.prompt.chunks for i in chunk.tokens), body.sampling_params
    stops = [params.stop] if isinstance(params.stop, str) else params.stop or []
    texts = tuple(each for each in stops if isinstance(each, str))
    if not all(texts):
        raise ConfigurationError("sampling_params.stop: an empty text would end every sample at once")
    ends = frozenset(each for each in stops if isinstance(each, int))
    if params.stop is None or texts:
        ends |= {end_id}
    seed = secrets.randbits(62) if params.seed is None else params.seed
    most, sampling = params.max_tokens or max_tokens, params.sampling
    return [Job(Future(), prompt, most, ends, texts, sampling, seed + i) for i in range(body.num_samples or 1)]


def samples_message(samples: Sequence[protocol.Sample]) -> bytes:
    """The answer to such a request."""
    answer = messages.SampleResponse()
    for sample in samples:
        answer.sequences.add(
            stop_reason=_ENDS[sample.end in ("stop", "string")],
            tokens=np.asarray(sample.token_ids, np.int32).tobytes(),
            logprobs=np.asarray(sample.logprobs, np.float32).tobytes(),
        )
    return bytes(answer.SerializeToString())
