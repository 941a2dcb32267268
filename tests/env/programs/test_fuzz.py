"""Whatever a program sends, and whatever the policy answers, is read, answered or refused: nothing is raised."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from swegym_env.agent.formats import action_format
from swegym_env.programs.answers import read_answer
from swegym_env.programs.conversations import Conversations, messages_text
from swegym_env.programs.protocols import PROTOCOLS, Answered, read_request
from swegym_env.programs.protocols.model import ModelRequest
from swegym_env.sandbox.api import ProgramRequest

WORDS = (
    "messages", "role", "content", "type", "text", "tool_calls", "function", "name", "arguments", "tools", "parameters",
    "stop", "stream", "stream_options", "include_usage", "logprobs", "n", "modalities", "input", "instructions",
    "system",
    "call_id", "output", "tool_use", "tool_result", "tool_use_id", "input_schema", "stop_sequences", "model",
    "user", "assistant", "tool", "input_text", "output_text", "function_call", "function_call_output", "message",
    "reasoning",
    "id", "properties", "usage", "prompt_tokens", "reasoning_content", "bash", "custom", "thinking", "max_tokens",
)  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS) | st.text(max_size=5)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=6),
    max_leaves=30,
)
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}


def mended(body: dict[str, Any], value: Any, role: Any) -> list[dict[str, Any]]:
    """Bodies that are a request but for one place."""
    messages = [{"role": "user", "content": "x"}, {"role": role, "content": value, "tool_calls": value}]
    return [
        body,
        {**body, "messages": messages, "input": messages},
        {**body, "messages": messages[:1], "input": "x"},
        {"messages": messages[:1], "tools": value, "input": [{"type": role, "name": value, "output": value}]},
    ]


@pytest.mark.parametrize("path", [f"/v1{protocol.path}" for protocol in PROTOCOLS.values()])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(body=st.dictionaries(st.sampled_from(WORDS), VALUES, max_size=8), value=VALUES, role=st.sampled_from(WORDS))
@example(body={"modalities": 5}, value=None, role="user")
@example(body={}, value="\ud800", role="assistant")
def test_requests_never_raise(path: str, body: dict[str, Any], value: Any, role: str) -> None:
    for each in mended(body, value, role):
        found = read_request(ProgramRequest(1, "POST", path, {}, json.dumps(each).encode()))
        if isinstance(found, Answered):
            assert found.status == 400 and json.loads(found.body)["error"]["message"]
            continue
        conversations = Conversations()
        messages_text(conversations.place(found).new)
        for action in ("words", json.dumps({"role": "assistant", **body}), "<execute>ls</execute>"):
            answer = read_answer(action, found, action_format("auto"), 1)
            conversations.answered(answer.message)
            response, kind = PROTOCOLS[found.protocol].write(found, answer, 1)
            assert response and kind in ("application/json", "text/event-stream")


@pytest.mark.parametrize("depth", [200, 900, 5000])
def test_what_is_nested_deeply_is_refused_or_words(depth: int) -> None:
    nested = '{"a":' * depth + "1" + "}" * depth
    body = f'{{"messages": [{{"role": "user", "content": "x"}}], "tools": [{nested}]}}'
    refused = read_request(ProgramRequest(1, "POST", "/v1/chat/completions", {}, body.encode()))
    assert isinstance(refused, Answered) and refused.status == 400
    request = ModelRequest("chat", [{"role": "user", "content": "x"}], [TOOL], {})
    call = f'{{"role": "assistant", "tool_calls": [{{"function": {{"name": "bash", "arguments": {nested}}}}}]}}'
    assert read_answer(call, request, action_format("auto"), 1).tool_calls == ()
