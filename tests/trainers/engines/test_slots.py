"""Slots with requests on threads: answers reach the slot that asked, whatever they are."""

from __future__ import annotations

import threading

import pytest

from swe_trainers.engines.slots import RequestSlots, Slot
from swe_trainers.errors import EngineError


def answers(slots: RequestSlots[Slot, str], n: int) -> dict[int, str | Exception]:
    found: dict[int, str | Exception] = {}
    while len(found) < n:
        found |= {index: answer for index, _, answer in slots.arrived()}
    return found


def test_an_answer_reaches_its_slot_and_an_unexpected_error_is_one_too() -> None:
    slots: RequestSlots[Slot, str] = RequestSlots(3, Slot)
    first, second, third = (slots.open() for _ in range(3))

    def broken() -> str:
        raise ValueError("no answer that anybody expected")

    slots.request(first, lambda: "one")
    slots.request(second, broken)
    assert slots.busy
    found = answers(slots, 2)
    assert found[first] == "one" and isinstance(found[second], ValueError) and third not in found
    assert not slots.busy and list(slots.arrived()) == []


def test_the_answer_to_a_closed_slot_is_ignored() -> None:
    slots: RequestSlots[Slot, str] = RequestSlots(1, Slot)
    held = threading.Event()
    slots.request(slots.open(), lambda: "old" if held.wait(20) else "")
    slots.close(0)
    assert not slots.busy and slots.open() == 0
    slots.request(0, lambda: "new" if held.set() is None else "")
    assert answers(slots, 1) == {0: "new"}


def test_slots_that_are_not_open_or_not_free_are_errors() -> None:
    slots: RequestSlots[Slot, str] = RequestSlots(1, Slot)
    for call in (lambda: slots.find(0, idle=False), lambda: slots.close(0)):
        with pytest.raises(EngineError, match="slot 0 is not open"):
            call()
    slots.open()
    with pytest.raises(EngineError, match="all 1 slots are open"):
        slots.open()
    held = threading.Event()
    slots.request(0, lambda: str(held.wait(20)))
    with pytest.raises(EngineError, match="slot 0 has an unfinished request"):
        slots.find(0, idle=True)
    held.set()
    assert answers(slots, 1) == {0: "True"}
