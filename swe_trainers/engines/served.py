"""Generation by a server: vLLM, SGLang, or `swe-serve`; token ids go in and come out."""

from __future__ import annotations

import math
import os
import queue
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from swe_trainers.engines.dialects import Answer, Call, Dialect
from swe_trainers.engines.http import JsonClient
from swe_trainers.engines.protocol import Sample, Throughput
from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import ConfigurationError, EngineError

__all__ = ["ServedEngine"]

_WAIT_S = 0.02  # how long a step waits for an answer before environments are looked after again


@dataclass
class _Slot:
    """One sequence, all of it; the server finds what it knows of it by its prefix."""

    token_ids: list[int] = field(default_factory=list)
    ticket: int | None = None  # of the unfinished request


class ServedEngine:
    """Slots whose requests are answered by a server, each on a thread of its own.

    A server draws with a generator of its own, seeded from the episode's stream; what it draws depends on the server's
    numerics, so runs are alike in distribution and not to the last bit.

    Args:
        client: speaks to the server.
        dialect: what the server understands.
        n_slots: episodes open at once, and the most requests in flight.
        max_tokens: the longest sequence; must not be more than the server's own.

    Attributes:
        version: of the server's weights.
        scored: whether the server gives log-probabilities; without them samples say 0, and serve measuring only.

    Raises:
        ConfigurationError: a size is not positive.
    """

    def __init__(self, client: JsonClient, dialect: Dialect, *, n_slots: int, max_tokens: int) -> None:
        if min(n_slots, max_tokens) < 1:
            raise ConfigurationError(f"n_slots {n_slots}, max_tokens {max_tokens}: must be positive")
        self.client = client
        self.version = 0
        self.scored = True
        self.throughput = Throughput()
        self._dialect, self._n_slots, self._max_tokens = dialect, n_slots, max_tokens
        self._slots: dict[int, _Slot] = {}
        self._answers: queue.SimpleQueue[tuple[int, int, Sample | EngineError]] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(n_slots, thread_name_prefix="generate")
        self._tickets = 0

    @property
    def n_slots(self) -> int:
        """How many episodes can be open at once."""
        return self._n_slots

    @property
    def max_tokens(self) -> int:
        """The longest sequence of a slot, sampled tokens included."""
        return self._max_tokens

    @property
    def busy(self) -> bool:
        """Whether some request is not finished."""
        return any(slot.ticket is not None for slot in self._slots.values())

    def open(self) -> int:
        """Take the first empty slot."""
        index = next((i for i in range(self._n_slots) if i not in self._slots), None)
        if index is None:
            raise EngineError(f"all {self._n_slots} slots are open; close one, or make the engine with more")
        self._slots[index] = _Slot()
        return index

    def fork(self, slot: int) -> int:
        """Open a slot that continues from where another one is."""
        parent = self._find(slot, idle=True)
        index = self.open()
        self._slots[index].token_ids = list(parent.token_ids)
        return index

    def rewind(self, slot: int, length: int) -> None:
        """Forget what follows the first `length` tokens of a slot."""
        state = self._find(slot, idle=True)
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
    ) -> None:
        """Append tokens to a slot and ask for an action after them; see `Engine.submit`.

        Raises:
            EngineError: the slot is not open, has an unfinished request, or would be full.
        """
        state = self._find(slot, idle=True)
        used = len(state.token_ids) + len(token_ids)
        if not 0 < used < self._max_tokens:
            raise EngineError(
                f"slot {slot}: {used} tokens, expected 1 to {self._max_tokens - 1}, so that one may follow"
            )
        if max_new_tokens < 1:
            raise EngineError(f"max_new_tokens must be positive, got {max_new_tokens}")
        state.token_ids.extend(int(i) for i in token_ids)
        limit = min(max_new_tokens, self._max_tokens - used)
        self._tickets += 1
        state.ticket = self._tickets
        call = self._dialect.generate(
            state.token_ids,
            max_new_tokens=limit,
            stop_ids=stop_ids,
            stop_strings=stop_strings,
            sampling=sampling,
            seed=int(random.integers(1 << 31)),
        )
        full = used + limit >= self._max_tokens and limit < max_new_tokens
        self._pool.submit(
            self._generate,
            slot,
            self._tickets,
            call,
            frozenset(stop_ids),
            sampling.temperature == 0 or not self.scored,
            full,
            self.version,
        )
        self.throughput.read_tokens += len(token_ids)

    def step(self) -> list[Sample]:
        """Wait a moment for the server; return what finished."""
        finished: list[Sample] = []
        while self.busy:
            try:
                slot, ticket, result = self._answers.get(block=not finished, timeout=_WAIT_S)
            except queue.Empty:
                break
            state = self._slots.get(slot)
            if state is None or state.ticket != ticket:
                continue  # closed meanwhile
            state.ticket = None
            if isinstance(result, EngineError):
                raise result
            state.token_ids.extend(result.token_ids)
            self.throughput.sampled_tokens += len(result.token_ids)
            finished.append(result)
        return finished

    def close(self, slot: int) -> None:
        """Give a slot back, its request dropped."""
        self._find(slot, idle=False)
        del self._slots[slot]

    def reload(self, folder: str | os.PathLike[str], version: int) -> None:
        """Have the server take the weights in a folder, and count all that it samples from now on as theirs.

        Args:
            folder: where they lie; the server must see the same path.
            version: of these weights.
        Raises:
            EngineError: a request is unfinished, or the server does not take them.
        """
        if self.busy:
            raise EngineError("weights cannot change while requests are unfinished")
        for path, body in self._dialect.reload(str(folder)):
            answer = self.client.post(path, body)
            if isinstance(answer, dict) and answer.get("success") is False:
                raise EngineError(f"{self.client.url}{path}: {answer.get('message', 'the server did not succeed')}")
        self.version = version

    def renew(self, version: int, send: Callable[[], None]) -> None:
        """As `reload`, of weights that do not come through a folder.

        Args:
            version: of these weights.
            send: has the server take them.
        Raises:
            EngineError: a request is unfinished, or the server does not take them.
        """
        if self.busy:
            raise EngineError("weights cannot change while requests are unfinished")
        send()
        self.client.post("/reset_prefix_cache", {})
        self.version = version

    def sample(
        self, token_ids: Sequence[int], n: int, *, sampling: Sampling, seed: int, client: JsonClient | None = None
    ) -> Answer:
        """One answer of exactly `n` tokens outside all slots: for probes, which nothing stops early.

        Args:
            token_ids: what they follow.
            n: how many.
            sampling, seed: how they are drawn.
            client: asks instead of the engine's own.
        """
        path, body = self._dialect.generate(
            token_ids, max_new_tokens=n, stop_ids=(), stop_strings=(), sampling=sampling, seed=seed
        )
        return self._dialect.read((client or self.client).post(path, body))

    def shutdown(self) -> None:
        """Let go of the threads; the server goes on."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _find(self, slot: int, *, idle: bool) -> _Slot:
        state = self._slots.get(slot)
        if state is None:
            raise EngineError(f"slot {slot} is not open")
        if idle and state.ticket is not None:
            raise EngineError(f"slot {slot} has an unfinished request")
        return state

    def _generate(
        self, slot: int, ticket: int, call: Call, stop_ids: frozenset[int], greedy: bool, full: bool, version: int
    ) -> None:
        try:
            answer = self._dialect.read(self.client.post(*call))
            result: Sample | EngineError = self._sample(slot, answer, stop_ids, greedy, full, version)
        except EngineError as error:
            result = error
        self._answers.put((slot, ticket, result))

    def _sample(
        self, slot: int, answer: Answer, stop_ids: frozenset[int], greedy: bool, full: bool, version: int
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
        # The most likely token is drawn from a single point, whatever the server calls its probability.
        drawn = (0.0,) * len(ids) if greedy else logprobs
        return Sample(slot, ids, drawn, end, (version,) * len(ids))
