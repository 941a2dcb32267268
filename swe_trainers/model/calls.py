"""Calls of tools in a policy's text, in the form in which its chat template writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swe_trainers.errors import ConfigurationError

__all__ = ["CallFormat", "with_blanks"]

_NAME, _KEY, _VALUE, _CONTENT = "XNAMEX", "XKEYX", "XVALUEX", "XCONTENTX"
_DECODER = json.JSONDecoder(strict=False)  # models write line breaks into strings
_Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class CallFormat:
    """How a chat template writes a call, found from one that it renders.

    Attributes:
        kind: `object` a JSON object that holds the name and the arguments; `named` the name, then the arguments as a
            JSON object; `marked` the name, then every argument between marks.
        opening: the text before a call. closing: the text after it. Both without blanks at their ends.
        keys: of an object, the names of its two entries.
        marks: of the others, the text between name and arguments; of `marked` also the texts before an argument's name,
            between name and value, and after the value.
        listed: the objects are entries of one JSON list.
    """

    kind: str
    opening: str
    closing: str
    keys: tuple[str, str] = ("name", "arguments")
    marks: tuple[str, ...] = ()
    listed: bool = False

    @classmethod
    def of(cls, render: Callable[[_Messages, _Messages], str], end: str) -> CallFormat | None:
        """The format of a template; None if it writes no calls, or in a form that is not known here.

        Args:
            render: messages and tools to text; whatever it raises is raised.
            end: the text of the token that ends an action.
        """
        parameters = {"type": "object", "properties": {_KEY: {"type": "string"}}}
        tools = [{"type": "function", "function": {"name": _NAME, "description": "", "parameters": parameters}}]
        call = {"id": "callabcde", "type": "function", "function": {"name": _NAME, "arguments": {_KEY: _VALUE}}}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "XUSERX"},
            {"role": "assistant", "content": _CONTENT, "tool_calls": [call]},
        ]
        _, found, text = render(messages, tools).rpartition(_CONTENT)
        text = text.split(end)[0]
        if not found or min(text.find(mark) for mark in (_NAME, _KEY, _VALUE)) < 0:
            return None
        for at in (match.start() for match in re.finditer(r"\{", text)):
            try:
                value, length = _DECODER.raw_decode(text[at:])
            except ValueError:
                continue
            opening, closing = text[:at].strip(), text[at + length :].strip()
            if value == {_KEY: _VALUE} and _NAME in opening:
                before, _, between = opening.partition(_NAME)
                return cls("named", before.strip(), closing, marks=(between.strip(),))
            if isinstance(value, dict) and (keys := _keys(value)) is not None:
                if listed := opening.endswith("[") and closing.startswith("]"):
                    opening, closing = opening[:-1].strip(), closing[1:].strip()
                return cls("object", opening, closing, keys, listed=listed)
        before, _, rest = text.partition(_NAME)
        between, _, rest = rest.partition(_KEY)
        separator, _, rest = rest.partition(_VALUE)
        after_name, newline, mark = between.rpartition("\n")
        if not newline or not mark.strip() or "\n" not in rest.strip("\n"):
            return None
        after_value, _, closing = rest.lstrip("\n").partition("\n")
        return cls(
            "marked",
            before.strip(),
            closing.strip(),
            marks=(after_name.strip(), mark.strip(), separator.strip(), after_value.strip()),
        )

    def read(self, text: str, tools: _Messages) -> tuple[str, list[dict[str, Any]]]:
        """The words before the first call, and all calls, each `{"name", "arguments"}` with JSON as text.

        A text of which a part cannot be read as calls has none: whoever gets it says what is wrong.

        Args:
            text: of a whole answer.
            tools: function schemas, in the form of chat completions; a call of anything else is none.
        """
        schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
        at = text.find(self.opening) if self.opening else len(text) - len(text.lstrip())
        words, rest, calls = text[: max(at, 0)], text[max(at, 0) :].strip(), list[dict[str, Any]]()
        try:
            while at >= 0 and rest:
                found, rest = self._next(rest, schemas)
                calls += found
        except (ValueError, KeyError, TypeError, RecursionError):
            return text, []
        if not calls or any(call["name"] not in schemas for call in calls):
            return text, []
        return words, calls

    def grammar(self, tools: _Messages, *, required: bool, special: Collection[str] = ()) -> str:
        """Answers that `read` reads as calls of these tools, in llguidance's dialect of Lark.

        Words come first, as many as there are; then calls. An argument is a JSON value of its schema, or, where the
        format writes arguments between marks, any text without the mark after it.

        Args:
            tools: function schemas, in the form of chat completions.
            required: whether there must be a call; else words alone are an answer too.
            special: the texts of tokens that stand for no bytes.
        Raises:
            ConfigurationError: there are no tools, or the format has no mark before a call.
        """
        if not tools:
            raise ConfigurationError("grammar.tools: the environment has no tools")
        if not self.opening:
            raise ConfigurationError(
                "grammar.tools: the chat template writes calls without a mark before them. Try: grammar.json_schema"
            )

        def literal(text: str) -> str:
            pieces = re.split("(" + "|".join(map(re.escape, special)) + ")", text) if special else [text]
            return " ".join(p if p in special else json.dumps(p) for p in pieces if p) or '""'

        rules = ["BLANK: /[ \\n]?/"]
        for number, tool in enumerate(tools):
            name, schema = tool["function"]["name"], tool["function"].get("parameters") or {"type": "object"}
            if self.kind == "object":
                properties = dict(zip(self.keys, ({"const": name}, schema), strict=True))
                value = {"type": "object", "properties": properties, "required": [*self.keys]}
                body = f"%json {json.dumps(with_blanks(value | {'additionalProperties': False}))}"
            elif self.kind == "named":
                body = f"{literal(name)} BLANK {literal(self.marks[0])} BLANK %json {json.dumps(with_blanks(schema))}"
            else:
                after_name, before_key, separator, _ = self.marks
                keys = " | ".join(map(literal, schema.get("properties") or {}))
                pairs = f"({literal(before_key)} ({keys}) {literal(separator)} /\\n/ value BLANK)*" if keys else ""
                body = f"{literal(name)} {literal(after_name)} BLANK {pairs}"
            rules.append(f"call_{number}: {body}")
        call = "(" + " | ".join(f"call_{number}" for number in range(len(tools))) + ")"
        if self.listed:
            call = f'"[" BLANK {call} ("," BLANK {call})* BLANK "]"'
        call = f"BLANK {call} BLANK {literal(self.closing)}"
        again = "" if self.listed else f" (BLANK {literal(self.opening)} {call})*"
        rules.append(f"start: words {call}{again}" + ("" if required else " | ALONE"))
        if self.kind == "marked":
            rules += [
                "value[lazy]: UNTIL_VALUE_ENDS",
                f"UNTIL_VALUE_ENDS: /(?s:.*)/ {literal(chr(10) + self.marks[3])}",
            ]
        if any(text in self.opening for text in special):
            rules += [f"words: ANY {literal(self.opening)}", "ANY: /(?s:.*)/", "ALONE: /(?s:.*)/"]
        else:
            rules += ["words: until_call", "until_call[lazy]: UNTIL_CALL"]
            rules += [f"UNTIL_CALL: /(?s:.*)/ {literal(self.opening)}"]
            rules += [f"ALONE: /(?s:.*)/ & ~(/(?s:.*)/ {literal(self.opening)} /(?s:.*)/)"]
        return "\n".join(rules)

    def _next(self, text: str, schemas: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str]:
        """The calls at the beginning of a text, and what is after them. Raises ValueError."""
        text = _after(text, self.opening)
        if self.kind == "object":
            value, length = _DECODER.raw_decode(text)
            values = value if self.listed and isinstance(value, list) else [value]
            name, arguments = self.keys
            calls = [_call(each[name], each.get(arguments, {})) for each in values]
            return calls, _after(text[length:].strip(), self.closing)
        if self.kind == "named":
            between = self.marks[0]
            end = text.index(between) if between else text.index("{")
            name, text = text[:end].strip(), text[end + len(between) :].lstrip()
            value, length = _DECODER.raw_decode(text)
            return [_call(name, value)], _after(text[length:].strip(), self.closing)
        after_name, before_key, separator, after_value = self.marks
        end = text.index(after_name)
        name, text = text[:end].strip(), text[end + len(after_name) :].lstrip()
        given: dict[str, Any] = {}
        properties = schemas.get(name, {}).get("properties") or {}
        while text.startswith(before_key):
            key, _, text = text[len(before_key) :].partition(separator)
            end = text.index(after_value)
            given[key.strip()] = _typed(text[:end].removeprefix("\n").removesuffix("\n"), properties.get(key.strip()))
            text = text[end + len(after_value) :].lstrip()
        return [_call(name, given)], _after(text, self.closing)


def with_blanks(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON schema for llguidance that allows one blank between tokens: of any number a policy may find no end."""
    return {**schema, "x-guidance": {"whitespace_pattern": r"[ \n]?"}}


def _keys(value: Mapping[str, Any]) -> tuple[str, str] | None:
    name = next((key for key, each in value.items() if each == _NAME), None)
    arguments = next((key for key, each in value.items() if each == {_KEY: _VALUE}), None)
    return None if name is None or arguments is None else (name, arguments)


def _after(text: str, mark: str) -> str:
    if not text.startswith(mark):
        raise ValueError(f"no {mark!r}")
    return text[len(mark) :].strip()


def _call(name: Any, arguments: Any) -> dict[str, Any]:
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ValueError("no name, or no arguments")  # noqa: TRY004 - the policy's text is wrong, no caller is
    return {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}


def _typed(text: str, schema: Any) -> Any:
    """A value that was written as plain text, as its schema has it."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind in (None, "string"):
        return text
    try:
        return json.loads(text if kind != "boolean" else text.strip().lower())
    except ValueError:
        return text
