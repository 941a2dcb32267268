"""Find actions in prose, in time linear in the text: regular expressions that search for a distant end are not linear.

Reasoning is skipped: `<think>…</think>` before or between actions, and everything up to a `</think>` whose beginning
was in the prompt (chat templates of reasoning models write it there). Within an action these tags are ordinary text.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["THOUGHT_ENDS", "Openings", "after_reasoning", "decode_json", "delimited", "find_opening", "skip_blank"]

_THOUGHTS = {"<think>": "</think>", "<thinking>": "</thinking>", "[THINK]": "[/THINK]"}
THOUGHT_ENDS = tuple(_THOUGHTS.values())
_DECODER = json.JSONDecoder(strict=False)  # models write line breaks within strings
_BLANK = " \t\r\n"


class Openings:
    """The positions at which actions open in a text, outside of thoughts. Each tag is searched only once.

    Args:
        opening: begins an action.
        closing: ends an action; used to recognise a `</think>` inside of one.
    Attributes:
        at: where the search continues; the caller sets it to the end of the action just found.
    """

    def __init__(self, text: str, opening: str, closing: str = "") -> None:
        self._text = text
        self._opening = opening
        self._known = dict.fromkeys((opening, *_THOUGHTS), -2)  # -2: not searched for yet, -1: none is left
        self.at = _after_begun_thought(text, opening, closing)

    def next(self) -> int:
        """The position after the next opening, to which `at` is moved; -1 if there is none."""
        while (start := self._find(self._opening)) >= 0:
            thoughts = [(found, tag) for tag in _THOUGHTS if 0 <= (found := self._find(tag)) < start]
            if not thoughts:
                self.at = start + len(self._opening)
                return self.at
            begun, tag = min(thoughts)
            ended = self._text.find(_THOUGHTS[tag], begun)
            if ended < 0:
                return -1  # a thought that does not end contains no action
            self.at = ended + len(_THOUGHTS[tag])
        return -1

    def _find(self, string: str) -> int:
        known = self._known[string]
        if known == -2 or 0 <= known < self.at:
            known = self._known[string] = self._text.find(string, self.at)
        return known


def find_opening(text: str, *openings: str) -> int:
    """The position of the first of `openings` outside of thoughts; -1 if there is none."""
    found = [Openings(text, opening).next() - len(opening) for opening in openings]
    return min((at for at in found if at >= 0), default=-1)


def delimited(text: str, opening: str, closing: str) -> list[str]:
    """The text between each `opening` and the next `closing`, or the end of the text if it is missing."""
    bodies: list[str] = []
    actions = Openings(text, opening, closing)
    while (start := actions.next()) >= 0:
        end = text.find(closing, start)
        bodies.append(text[start:] if end < 0 else text[start:end])
        actions.at = len(text) if end < 0 else end + len(closing)
    return bodies


def after_reasoning(text: str) -> str:
    """The text without reasoning at its beginning: for formats in which the whole rest is the action."""
    at = skip_blank(text, _after_begun_thought(text, "", ""))
    while (tag := next((tag for tag in _THOUGHTS if text.startswith(tag, at)), None)) is not None:
        ended = text.find(_THOUGHTS[tag], at)
        at = len(text) if ended < 0 else skip_blank(text, ended + len(_THOUGHTS[tag]))
    return text[at:] if at > skip_blank(text, 0) else text


def decode_json(text: str, at: int) -> tuple[Any, int]:
    """The JSON value that begins at `at`, and the position after it.

    Raises:
        ValueError: it is not JSON, or nested too deeply; the message says where and why.
    """
    try:
        value, end = _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        near = text[max(at, error.pos - 20) : error.pos + 20]
        raise ValueError(f"{error.msg} at character {error.pos - at} of it, near {near!r}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value, end


def skip_blank(text: str, at: int) -> int:
    """The first position from `at` on without white space."""
    while at < len(text) and text[at] in _BLANK:
        at += 1
    return at


def _after_begun_thought(text: str, opening: str, closing: str) -> int:
    """The position after a `</think>` that ends a line, has no `<think>` before it, and is in no action; else 0."""
    end = text.find("</think>")
    if end < 0 or text.find("<think>", 0, end) >= 0:
        return 0
    after = end + len("</think>")
    if text[after : after + 1] not in ("", "\n", "\r"):
        return 0
    if opening and text.rfind(opening, 0, end) > text.rfind(closing or opening, 0, end):
        return 0
    if not opening and text[text.rfind("\n", 0, end) + 1 : end].strip():
        return 0  # if the whole answer is the action, the tag counts only on a line by itself
    return after
