"""A model in this process: one engine, whose slots keep each conversation's cache from turn to turn."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.engines.protocol import Sample
from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import TrainerError
from swe_trainers.evaluation.conversation import Answer, Conversation, NoRoomError, Usage
from swe_trainers.policy.chat import ChatFormat

__all__ = ["LocalModel"]


@dataclass
class _Request:
    """An action that is wanted; without a slot, in a new one."""

    slot: int | None
    token_ids: Sequence[int]
    random: np.random.Generator
    sample: Sample | None = None
    refusal: TrainerError | None = None

    def is_open(self) -> bool:
        return self.sample is None and self.refusal is None


class LocalModel:
    """Answers from an embedded engine, token in and token out: what was sampled is never encoded again.

    The threads that wait for answers step the engine themselves, one at a time, for all: what ends the engine ends
    those who ask, and there is no thread to look after.

    Args:
        engine: with as many slots as there are conversations at a time.
        chat: how conversations become tokens.
        sampling: how tokens are drawn.
        max_new_tokens: of one action.
        stop_strings: an action ends where it has written one of them.
    """

    def __init__(
        self,
        engine: EmbeddedEngine,
        chat: ChatFormat,
        *,
        sampling: Sampling,
        max_new_tokens: int,
        stop_strings: Sequence[str] = (),
    ) -> None:
        self.engine, self.chat, self._max_new_tokens = engine, chat, max_new_tokens
        self._sampling, self._stop_strings = sampling, tuple(stop_strings)
        self._wanted: queue.SimpleQueue[_Request | int] = queue.SimpleQueue()
        self._running: dict[int, _Request] = {}
        self._changed = threading.Condition()
        self._stepped = False

    def open(self, system: str, tools: Sequence[Mapping[str, Any]], seed: int) -> Conversation:
        """Begin an episode."""
        return _Tokens(self, system or None, tools or None, np.random.default_rng(seed))

    def close(self) -> None:
        """Nothing runs between requests."""

    def ask(self, slot: int | None, token_ids: Sequence[int], random: np.random.Generator) -> Sample:
        """Append tokens to a slot, and sample an action after them.

        Raises:
            TrainerError: the engine refused.
        """
        request = _Request(slot, token_ids, random)
        self._wanted.put(request)
        while request.is_open():
            with self._changed:
                self._changed.wait_for(lambda: not (request.is_open() and self._stepped))
                if not request.is_open():
                    break
                self._stepped = True
            try:
                while request.is_open():
                    self._step()
            finally:
                with self._changed:
                    self._stepped = False
                    self._changed.notify_all()
        if request.refusal is not None:
            raise request.refusal
        assert request.sample is not None
        return request.sample

    def release(self, slot: int) -> None:
        """Give a slot back."""
        self._wanted.put(slot)

    def _step(self) -> None:
        """Take in what is wanted, and advance all requests a little."""
        while not self._wanted.empty():
            wanted = self._wanted.get()
            if isinstance(wanted, int):
                self.engine.close(wanted)
            else:
                self._begin(wanted)
        for sample in self.engine.step():
            self._running.pop(sample.slot).sample = sample
            with self._changed:
                self._changed.notify_all()

    def _begin(self, request: _Request) -> None:
        slot = self.engine.open() if request.slot is None else request.slot
        try:
            self.engine.submit(
                slot,
                request.token_ids,
                max_new_tokens=self._max_new_tokens,
                stop_ids=self.chat.stop_ids,
                sampling=self._sampling,
                random=request.random,
                stop_strings=self._stop_strings,
            )
        except TrainerError as error:
            if request.slot is None:
                self.engine.close(slot)
            request.refusal = error
            with self._changed:
                self._changed.notify_all()
        else:
            self._running[slot] = request


@dataclass
class _Tokens:
    """One episode's tokens: the engine keeps what it has read."""

    model: LocalModel
    system: str | None
    tools: Sequence[Mapping[str, Any]] | None
    random: np.random.Generator
    slot: int | None = None
    length: int = 0
    ended: bool = False

    def act(self, observation: str) -> Answer:
        chat = self.model.chat
        if self.slot is None:
            ids = chat.start(observation, system=self.system, tools=self.tools)
        else:
            ids = chat.observe(observation, closed=self.ended)
        # The engine wants room for one token after what it reads.
        if self.length + len(ids) >= self.model.engine.max_tokens:
            held = self.model.engine.max_tokens
            raise NoRoomError(f"the conversation has {self.length + len(ids)} tokens, and the model takes {held}")
        began = time.monotonic()
        sample = self.model.ask(self.slot, ids, self.random)
        read = self.length + len(ids)
        usage = Usage(1, read, len(sample.token_ids), self.length, 0, None, time.monotonic() - began)
        self.slot, self.length = sample.slot, read + len(sample.token_ids)
        self.ended = sample.end == "stop"
        return Answer(chat.action_text(sample.token_ids), usage, {"finish_reason": sample.end})

    def close(self) -> None:
        if self.slot is not None:
            self.model.release(self.slot)
            self.slot = None
