"""The format of Llama 3: `{"name": …, "parameters": {…}}`, with or without `<|python_tag|>` before it."""

from __future__ import annotations

import re

from swegym_env.agent.actions import Action
from swegym_env.agent.formats.calls import call_format, call_from_json, dump_json, invalid_json, one_call
from swegym_env.agent.formats.scanning import after_reasoning, decode_json, skip_blank

__all__ = ["LLAMA3"]

_EXPECTED = '{"name": NAME, "parameters": {…}}'
_BEGIN = re.compile(r'(?:\[\s{0,9})?\{\s{0,9}"(?:name|type|function|parameters)"')


def _parse(text: str) -> Action:
    answer = after_reasoning(text).replace("<|python_tag|>", "")
    begun = _BEGIN.search(answer)
    if begun is None:
        return one_call([], _EXPECTED)
    start = begun.start()
    calls: list[Action] = []
    while answer.startswith(("{", "["), start):
        try:
            value, end = decode_json(answer, start)
        except ValueError as error:
            return invalid_json(error, _EXPECTED)
        calls += [call_from_json(each, _EXPECTED) for each in (value if isinstance(value, list) else [value])]
        start = skip_blank(answer, end)
        if answer.startswith(";", start):
            start = skip_blank(answer, start + 1)
    return one_call(calls, _EXPECTED)


def _in_template(template: str) -> bool:
    if "<|python_tag|>" in template:
        return True
    # Hermes models on Llama 3 have its headers, but their own way of writing calls.
    return "<|start_header_id|>" in template and '"parameters"' in template and "<tool_call>" not in template


LLAMA3 = call_format(
    "llama3",
    _parse,
    lambda name, arguments: dump_json({"name": name, "parameters": dict(arguments)}),
    f"Call exactly one function in each answer, written as {_EXPECTED}.",
    in_template=_in_template,
)
