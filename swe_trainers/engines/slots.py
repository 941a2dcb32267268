"""Slots whose requests are answered by a server, each on a thread of its own and known by a ticket."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from swe_trainers.errors import EngineError

__all__ = ["RequestSlots", "Slot"]

_WAIT_S = 0.02  # how long `arrived` waits for an answer before environments are looked at again


@dataclass
class Slot:
    """One open episode.

    Attributes:
        ticket: of the unfinished request; None if there is none.
    """

    ticket: int | None = None


S = TypeVar("S", bound=Slot)
A = TypeVar("A")


class RequestSlots(Generic[S, A]):
    """What engines in front of a server have in common; see `SlotEngine`.

    Args:
        n_slots: episodes open at once, and the most requests in flight.
        make: an empty slot.
    """

    def __init__(self, n_slots: int, make: Callable[[], S]) -> None:
        self._n_slots, self._make = n_slots, make
        self._slots: dict[int, S] = {}
        self._answers: queue.SimpleQueue[tuple[int, int, A | Exception]] = queue.SimpleQueue()
        self._tickets = 0

    @property
    def n_slots(self) -> int:
        """How many episodes can be open at once."""
        return self._n_slots

    @property
    def busy(self) -> bool:
        """Whether some request is not finished."""
        return any(slot.ticket is not None for slot in self._slots.values())

    def open(self) -> int:
        """Take the first empty slot. Raises EngineError if there is none."""
        index = next((i for i in range(self._n_slots) if i not in self._slots), None)
        if index is None:
            raise EngineError(f"all {self._n_slots} slots are open; close one, or make the engine with more")
        self._slots[index] = self._make()
        return index

    def close(self, slot: int) -> None:
        """Give a slot back; the answer to an unfinished request is ignored. Raises EngineError if it is not open."""
        self.find(slot, idle=False)
        del self._slots[slot]

    def find(self, slot: int, *, idle: bool) -> S:
        """An open slot; `idle` for one without an unfinished request. Raises EngineError."""
        state = self._slots.get(slot)
        if state is None:
            raise EngineError(f"slot {slot} is not open")
        if idle and state.ticket is not None:
            raise EngineError(f"slot {slot} has an unfinished request")
        return state

    def request(self, slot: int, answer: Callable[[], A]) -> None:
        """Call a function on a thread; what it returns, or raises, is among what has `arrived`."""
        self._tickets += 1
        ticket = self._slots[slot].ticket = self._tickets

        def ask() -> None:
            found: A | Exception
            try:
                found = answer()
            except Exception as error:  # noqa: BLE001 - whoever takes the answer raises it
                found = error
            self._answers.put((slot, ticket, found))

        # A daemon: an answer that does not come must not keep the process from ending.
        threading.Thread(target=ask, name="generate", daemon=True).start()

    def arrived(self) -> Iterator[tuple[int, S, A | Exception]]:
        """Wait a moment for an answer; then all that are there, each with its slot, whose request is finished."""
        found = False
        while self.busy:
            try:
                index, ticket, answer = self._answers.get(block=not found, timeout=_WAIT_S)
            except queue.Empty:
                return
            slot = self._slots.get(index)
            if slot is None or slot.ticket != ticket:
                continue  # the slot was closed
            slot.ticket, found = None, True
            yield index, slot, answer
