"""Generation by a server with token ids in and out: vLLM, SGLang, `swe-serve`.

What differs between servers is a `ServerAPI`, one file each (`vllm`, `sglang`), listed in `connect.SERVERS`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from swe_trainers.engines.action_trie import Legal, check_depth
from swe_trainers.engines.http import JsonClient
from swe_trainers.engines.protocol import Sample, Throughput
from swe_trainers.engines.sampling import Sampling
from swe_trainers.engines.slots import RequestSlots, Slot
from swe_trainers.errors import ConfigurationError, EngineError

__all__ = ["Call", "Completion", "Generation", "ServedEngine", "ServerAPI", "not_understood"]

Call = tuple[str, dict[str, Any]]
"""A path and the body to post there."""


@dataclass(frozen=True)
class Generation:
    """What a server is to generate.

    Attributes:
        token_ids: the prompt.
        max_new_tokens: at most so many tokens follow.
        sampling: how they are sampled.
        seed: of the server's random generator.
        stop_ids: tokens that end it; they are part of it.
        stop_strings: texts that end it.
        allowed: the tokens that may be sampled, where the server `restricts`; None for all.
    """

    token_ids: Sequence[int]
    max_new_tokens: int
    sampling: Sampling
    seed: int
    stop_ids: Collection[int] = ()
    stop_strings: Sequence[str] = ()
    allowed: Sequence[int] | None = None


@dataclass(frozen=True)
class Completion:
    """What a server generated.

    Attributes:
        token_ids: as sampled; None if the server does not report them.
        logprobs: of each of them; None if the server does not report them.
        by_string: a stop string ended it.
    """

    token_ids: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None
    by_string: bool

    @classmethod
    def of(cls, ids: Sequence[Any] | None, logprobs: Sequence[Any] | None, by_string: bool) -> Completion:
        """From values of a JSON response. Raises TypeError or ValueError."""
        return cls(
            None if ids is None else tuple(int(i) for i in ids),
            None if logprobs is None else tuple(float(x) for x in logprobs),
            by_string,
        )


class ServerAPI(Protocol):
    """Requests and responses of one kind of server.

    Attributes:
        transports: ways in which it takes new weights; see `Transport`.
        restricts: whether it samples a token from given ones only, and reports the log-probability under that.
    """

    transports: ClassVar[frozenset[str]]
    restricts: ClassVar[bool]

    @classmethod
    def connect(cls, client: JsonClient, model: str | None) -> ServerAPI:
        """The API of a server, for one of its models; None for its first. Raises `ConfigurationError`."""
        ...

    def generate(self, request: Generation) -> Call:
        """The path and the body that ask the server for it."""
        ...

    def read(self, answer: Any) -> Completion:
        """Read the response. Raises `EngineError` if it has another format."""
        ...

    def reload(self, folder: str) -> Sequence[Call]:
        """The requests to load the weights in a folder, and to drop caches of earlier ones."""
        ...


def not_understood(path: str, answer: Any) -> EngineError:
    """The error for a response with another format."""
    shape = sorted(answer) if isinstance(answer, Mapping) else type(answer).__name__
    return EngineError(f"{path}: the answer cannot be understood, it holds {shape}. Is engine.kind right?")


@dataclass
class _Slot(Slot):
    """One sequence; the whole of it is sent, and the server may have its prefix in a cache."""

    token_ids: list[int] = field(default_factory=list)


class ServedEngine(RequestSlots[_Slot, Sample]):
    """Slots whose requests are answered by a server, each on its own thread.

    A server has its own random generator, seeded from the episode's; what it samples depends on the server's numerics,
    so runs are equal in distribution, not bitwise.

    Args:
        client: of the server.
        api: of the server.
        n_slots: episodes open at once, and the most requests in flight.
        max_tokens: the longest sequence; must not be more than the server's own.

    Attributes:
        version: of the server's weights.
        scored: whether the server reports log-probabilities; without them they are 0 in samples, for evaluation only.

    Raises:
        ConfigurationError: a size is not positive.
    """

    def __init__(self, client: JsonClient, api: ServerAPI, *, n_slots: int, max_tokens: int) -> None:
        if min(n_slots, max_tokens) < 1:
            raise ConfigurationError(f"n_slots {n_slots}, max_tokens {max_tokens}: must be positive")
        super().__init__(n_slots, _Slot)
        self.client = client
        self.version = 0
        self.scored = True
        self.throughput = Throughput()
        self._api, self._max_tokens = api, max_tokens

    @property
    def max_tokens(self) -> int:
        """The longest sequence of a slot, sampled tokens included."""
        return self._max_tokens

    def fork(self, slot: int) -> int:
        """Open a slot that continues from where another one is."""
        parent = self.find(slot, idle=True)
        index = self.open()
        self._slots[index].token_ids = list(parent.token_ids)
        return index

    def rewind(self, slot: int, length: int) -> None:
        """Remove the tokens after the first `length` tokens of a slot."""
        state = self.find(slot, idle=True)
        if not 0 <= length <= len(state.token_ids):
            raise EngineError(f"slot {slot}: cannot rewind to {length} of {len(state.token_ids)} tokens")
        del state.token_ids[length:]

    def submit(
        self,
        slot: int,
        token_ids: Sequence[int],
        *,
        max_new_tokens: int,
        stop_ids: Collection[int],
        sampling: Sampling,
        random: np.random.Generator,
        stop_strings: Sequence[str] = (),
        legal: Legal | None = None,
    ) -> None:
        """Append tokens to a slot and ask for an action after them; see `Engine.submit`.

        Raises:
            EngineError: the slot is not open, has an unfinished request, or would be full.
            ConfigurationError: actions are to be sampled from legal ones only, and this kind of server cannot.
        """
        if legal is not None and not self._api.restricts:
            raise ConfigurationError(
                f"{self.client.url}: this kind of server samples free text, and the environment restricts actions to "
                "legal ones. Try: engine.kind embedded or vllm, or environment.adapter_kwargs {unconstrained: true}"
            )
        state = self.find(slot, idle=True)
        used = len(state.token_ids) + len(token_ids)
        if not 0 < used < self._max_tokens:
            raise EngineError(
                f"slot {slot}: {used} tokens, expected 1 to {self._max_tokens - 1}, so that one may follow"
            )
        if max_new_tokens < 1:
            raise EngineError(f"max_new_tokens must be positive, got {max_new_tokens}")
        state.token_ids.extend(int(i) for i in token_ids)
        limit = min(max_new_tokens, self._max_tokens - used)
        self.throughput.read_tokens += len(token_ids)
        seed, ends, version = int(random.integers(1 << 31)), frozenset(stop_ids), self.version
        if legal is not None:
            check_depth(legal, max_new_tokens)
            prompt, full = tuple(state.token_ids), limit < max_new_tokens
            self.request(slot, lambda: self._walk(slot, prompt, legal, limit, ends, sampling, seed, full, version))
            return
        call = self._api.generate(Generation(state.token_ids, limit, sampling, seed, stop_ids, stop_strings))
        full = used + limit >= self._max_tokens and limit < max_new_tokens
        greedy = sampling.temperature == 0 or not self.scored
        self.request(
            slot, lambda: self._sample(slot, self._api.read(self.client.post(*call)), ends, greedy, full, version)
        )

    def step(self) -> list[Sample]:
        """Wait a moment for the server; return what finished."""
        finished: list[Sample] = []
        for _, state, result in self.arrived():
            if isinstance(result, Exception):
                raise result
            state.token_ids.extend(result.token_ids)
            self.throughput.sampled_tokens += len(result.token_ids)
            finished.append(result)
        return finished

    def close(self, slot: int) -> None:
        """Give a slot back, its request dropped."""
        self.find(slot, idle=False)
        del self._slots[slot]

    def reload(self, folder: str | os.PathLike[str], version: int) -> None:
        """Make the server load the weights in a folder; all that it samples from now on has their version.

        Args:
            folder: the server must see the same path.
            version: of these weights.
        Raises:
            EngineError: a request is unfinished, or the server does not load them.
        """
        if self.busy:
            raise EngineError("weights cannot change while requests are unfinished")
        for path, body in self._api.reload(str(folder)):
            answer = self.client.post(path, body)
            if isinstance(answer, dict) and answer.get("success") is False:
                raise EngineError(f"{self.client.url}{path}: {answer.get('message', 'the server did not succeed')}")
        self.version = version

    def renew(self, version: int, send: Callable[[], None]) -> None:
        """As `reload`, for weights that are not read from a folder.

        Args:
            version: of these weights.
            send: makes the server load them.
        Raises:
            EngineError: a request is unfinished, or the server does not load them.
        """
        if self.busy:
            raise EngineError("weights cannot change while requests are unfinished")
        send()
        self.client.post("/reset_prefix_cache", {})
        self.version = version

    def sample(
        self, token_ids: Sequence[int], n: int, *, sampling: Sampling, seed: int, client: JsonClient | None = None
    ) -> Completion:
        """Sample exactly `n` tokens outside all slots, for probes.

        Args:
            token_ids: the prompt.
            n: how many.
            sampling, seed: how they are sampled.
            client: used instead of the engine's own.
        """
        path, body = self._api.generate(Generation(token_ids, n, sampling, seed))
        return self._api.read((client or self.client).post(path, body))

    def _walk(
        self,
        slot: int,
        prompt: tuple[int, ...],
        legal: Legal,
        limit: int,
        stop_ids: frozenset[int],
        sampling: Sampling,
        seed: int,
        full: bool,
        version: int,
    ) -> Sample:
        """An action among legal ones, in one request for each token: servers restrict all tokens of one alike."""
        ids, logprobs, allowed, node = list[int](), list[float](), list[tuple[int, ...]](), legal
        greedy = sampling.temperature == 0 or not self.scored
        end: Literal["stop", "complete", "length", "context"] = "context" if full else "length"
        while len(ids) < limit:
            path, body = self._api.generate(
                Generation([*prompt, *ids], 1, sampling, seed + len(ids), stop_ids, allowed=node.allowed)
            )
            answer = self._api.read(self.client.post(path, body))
            sample = self._sample(slot, answer, stop_ids, greedy, full, version)
            token = sample.token_ids[0]
            if len(sample.token_ids) > 1 or token not in node.allowed:
                raise EngineError(f"{self.client.url}: sampled {sample.token_ids}, not one of allowed_token_ids")
            ids.append(token)
            logprobs += sample.logprobs
            allowed.append(node.allowed)
            if token in stop_ids:
                end = "stop"
                break
            reached = node.after(token)
            assert reached is not None  # no stop token
            node = reached
            if not node.allowed:
                end = "complete"
                break
        return Sample(slot, tuple(ids), tuple(logprobs), end, (version,) * len(ids), tuple(allowed))

    def _sample(
        self, slot: int, answer: Completion, stop_ids: frozenset[int], greedy: bool, full: bool, version: int
    ) -> Sample:
        ids, logprobs = answer.token_ids, answer.logprobs
        if ids is not None and not self.scored:
            logprobs = (0.0,) * len(ids)
        if ids is None or logprobs is None or len(ids) != len(logprobs) or not ids:
            raise EngineError(
                f"{self.client.url}: got {len(ids or ())} token ids and {len(logprobs or ())} log-probabilities; "
                "expected as many, and at least one"
            )
        if not all(math.isfinite(x) for x in logprobs):
            raise EngineError(f"{self.client.url}: a sampled token has no finite log-probability")
        end: Literal["stop", "string", "length", "context"] = "context" if full else "length"
        if ids[-1] in stop_ids:
            end = "stop"
        elif answer.by_string:
            end = "string"
        # Greedy decoding samples from a single point, whatever probability the server reports.
        drawn = (0.0,) * len(ids) if greedy else logprobs
        return Sample(slot, ids, drawn, end, (version,) * len(ids))
