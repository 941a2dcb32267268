"""The protocols: what is read, what is refused, and answers that clients can read, in streams too.

`test_real_agents.py` has the official clients read the same answers.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from swegym_env.programs.protocols import PROTOCOLS, Answered, read_request
from swegym_env.programs.protocols.model import Answer, ModelRequest
from swegym_env.sandbox.api import ProgramRequest

USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
TOOL = {"type": "function", "function": {"name": "bash", "description": "runs", "parameters": SCHEMA}}


def ask(path: str, body: Any, method: str = "POST", **headers: str) -> ModelRequest | Answered:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_request(ProgramRequest(1, method, path, headers, content))


def read(path: str, body: Any) -> ModelRequest:
    request = ask(path, body)
    assert isinstance(request, ModelRequest), request
    return request


def events(data: bytes) -> list[dict[str, Any]]:
    parts = [part.partition("data: ")[2] for part in data.decode().split("\n\n") if part]
    return [json.loads(part) for part in parts if part != "[DONE]"]


def test_the_three_protocols_say_the_same() -> None:
    expected = [
        {"role": "system", "content": "be good"},
        USER,
        {"role": "assistant", "content": "I look", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "a b"},
        {"role": "user", "content": "go on"},
    ]
    chat = read("/v1/chat/completions", {"messages": expected, "tools": [TOOL]})
    responses = read(
        "/v1/responses",
        {
            "instructions": "be good",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"type": "reasoning", "id": "r", "summary": []},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look"}]},
                {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": '{"command": "ls"}'},
                {"type": "function_call_output", "call_id": "c1", "output": "a b"},
                {"role": "user", "content": "go on"},
            ],
            "tools": [{"type": "function", "name": "bash", "description": "runs", "parameters": SCHEMA}],
        },
    )
    use = {"type": "tool_use", "id": "c1", "name": "bash", "input": {"command": "ls"}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "a b"}]}
    messages = read(
        "/v1/messages",
        {
            "system": [{"type": "text", "text": "be good"}],
            "messages": [
                USER,
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "…"}, *_texts("I look"), use]},
                {"role": "user", "content": [result, *_texts("go on")]},
            ],
            "tools": [{"name": "bash", "description": "runs", "input_schema": SCHEMA}],
        },
    )
    for request in (chat, responses, messages):
        assert list(request.messages) == expected
        assert list(request.tools) == [TOOL]


def _texts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/chat/completions", {"messages": [USER], "n": 2}, "n="),
        ("/v1/chat/completions", {"messages": []}, "messages"),
        ("/v1/chat/completions", {"messages": "hi"}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "robot", "content": "x"}]}, "role"),
        ("/v1/chat/completions", {"messages": [USER], "functions": [{"name": "f"}]}, "functions"),
        ("/v1/chat/completions", {"messages": [USER], "modalities": ["text", "audio"]}, "modalities"),
        ("/v1/chat/completions", {"messages": [USER], "tools": [{"type": "custom"}]}, "custom"),
        ("/v1/chat/completions", {"messages": [USER], "stop": 3}, "stop"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
        ("/v1/chat/completions", {"messages": [{"role": "assistant", "tool_calls": [{"id": 1}]}]}, "tool_calls"),
        ("/v1/responses", {"input": "x", "previous_response_id": "r"}, "previous_response_id"),
        ("/v1/responses", {"input": "x", "tools": [{"type": "web_search"}]}, "web_search"),
        ("/v1/responses", {"input": [{"type": "item_reference"}]}, "item_reference"),
        ("/v1/messages", {"messages": [{"role": "system", "content": "x"}]}, "role"),
        ("/v1/messages", {"messages": [USER], "tools": [{"type": "bash_20250124", "name": "bash"}]}, "bash_20250124"),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "image"),
        ("/v1/chat/completions", [], "object"),
        ("/v1/chat/completions", b"[" * 100_000, "JSON"),
        ("/v1/chat/completions", b"\xff", "JSON"),
    ],
)
def test_what_cannot_be_given_is_refused_in_the_protocols_own_form(path: str, body: Any, named: str) -> None:
    refused = ask(path, body)
    assert isinstance(refused, Answered) and refused.status == 400
    error = json.loads(refused.body)
    assert error.get("type") == ("error" if path == "/v1/messages" else None)
    assert error["error"]["type"] == "invalid_request_error" and named in error["error"]["message"]


def test_addresses_and_methods() -> None:
    assert isinstance(ask("/chat/completions?x=1", {"messages": [USER]}), ModelRequest)
    for path, status in (("/v1/embeddings", 404), ("/v1/completions", 404), ("/", 404)):
        refused = ask(path, {})
        assert isinstance(refused, Answered) and refused.status == status
    unknown = ask("/v1/complete", {}, **{"anthropic-version": "2023-06-01"})
    assert isinstance(unknown, Answered) and json.loads(unknown.body)["type"] == "error"
    wrong = ask("/v1/messages", {}, "GET")
    assert isinstance(wrong, Answered) and wrong.status == 405
    one = ask("/v1/models/anything", b"", "GET")
    assert isinstance(one, Answered) and json.loads(one.body)["id"] == "anything"
    counted = ask("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "x" * 400}]})
    assert isinstance(counted, Answered) and json.loads(counted.body) == {"input_tokens": 100}


ANSWER = Answer(
    "I look at it. " * 50, (CALL, {**CALL, "id": "c2"}), "thoughts", usage={"prompt_tokens": 7, "completion_tokens": 5}
)


def test_chat_completions_are_the_same_in_a_stream() -> None:
    body = {"messages": [USER], "model": "any"}
    plain, kind = PROTOCOLS["chat"].write(read("/v1/chat/completions", body), ANSWER, 3)
    response = json.loads(plain)
    assert kind == "application/json" and response["model"] == "any" and response["object"] == "chat.completion"
    (choice,) = response["choices"]
    assert choice["finish_reason"] == "tool_calls" and choice["message"] == ANSWER.message
    assert response["usage"] == {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    request = read("/v1/chat/completions", body | {"stream": True, "stream_options": {"include_usage": True}})
    stream, kind = PROTOCOLS["chat"].write(request, ANSWER, 3)
    assert kind == "text/event-stream" and stream.endswith(b"data: [DONE]\n\n")
    *chunks, last = events(stream)
    assert last["choices"] == [] and last["usage"] == response["usage"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == ANSWER.content
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "thoughts"
    calls: dict[int, dict[str, str]] = {}
    for call in (call for delta in deltas for call in delta.get("tool_calls", ())):
        found = calls.setdefault(call["index"], {"id": call.get("id", ""), "name": "", "arguments": ""})
        found["name"] += call["function"].get("name", "")
        found["arguments"] += call["function"]["arguments"]
    assert calls == {n: {"id": f"c{n + 1}", **CALL["function"]} for n in range(2)}  # type: ignore[dict-item]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_log_probabilities_are_given_where_they_are_asked_for_and_known() -> None:
    known = Answer("x", logprobs={"content": [{"token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": []}]})
    for asked, answer, expected in ((True, known, known.logprobs), (False, known, None), (True, Answer("x"), None)):
        request = read("/v1/chat/completions", {"messages": [USER], "logprobs": asked})
        body, _ = PROTOCOLS["chat"].write(request, answer, 1)
        assert json.loads(body)["choices"][0]["logprobs"] == expected


def test_messages_are_the_same_in_a_stream() -> None:
    plain, _ = PROTOCOLS["messages"].write(read("/v1/messages", {"messages": [USER]}), ANSWER, 3)
    response = json.loads(plain)
    use = {"type": "tool_use", "name": "bash", "input": {"command": "ls"}}
    assert response["content"] == [
        {"type": "thinking", "thinking": "thoughts", "signature": ""},
        {"type": "text", "text": ANSWER.content},
        {**use, "id": "c1"},
        {**use, "id": "c2"},
    ]
    assert response["stop_reason"] == "tool_use" and response["usage"] == {"input_tokens": 7, "output_tokens": 5}
    stream, _ = PROTOCOLS["messages"].write(read("/v1/messages", {"messages": [USER], "stream": True}), ANSWER, 3)
    blocks: dict[int, dict[str, Any]] = {}
    written: dict[int, str] = {}
    for event in events(stream):
        if event["type"] == "content_block_start":
            blocks[event["index"]], written[event["index"]] = event["content_block"], ""
        elif event["type"] == "content_block_delta":
            written[event["index"]] += next(value for key, value in event["delta"].items() if key != "type")
    for index, block in blocks.items():
        key = {"tool_use": "input", "thinking": "thinking", "text": "text"}[block["type"]]
        block[key] = json.loads(written[index]) if key == "input" else written[index]
    assert list(blocks.values()) == response["content"]
    assert [event["type"] for event in events(stream)][-2:] == ["message_delta", "message_stop"]


def test_an_answer_that_stopped_says_where() -> None:
    request = read("/v1/messages", {"messages": [USER], "stop_sequences": ["END"]})
    assert request.stop == ("END",)
    body, _ = PROTOCOLS["messages"].write(request, Answer("x", stopped_at="END"), 1)
    assert (json.loads(body)["stop_reason"], json.loads(body)["stop_sequence"]) == ("stop_sequence", "END")


def test_responses_are_the_same_in_a_stream() -> None:
    plain, _ = PROTOCOLS["responses"].write(read("/v1/responses", {"input": "hi"}), ANSWER, 3)
    output = json.loads(plain)["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert output[1]["content"][0]["text"] == ANSWER.content and output[3]["call_id"] == "c2"
    stream, _ = PROTOCOLS["responses"].write(read("/v1/responses", {"input": "hi", "stream": True}), ANSWER, 3)
    seen = events(stream)
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))
    assert seen[-1]["type"] == "response.completed" and seen[-1]["response"]["output"] == output
    text = "".join(event["delta"] for event in seen if event["type"] == "response.output_text.delta")
    assert text == ANSWER.content
    assert [event["item"] for event in seen if event["type"] == "response.output_item.done"] == output


def test_what_could_not_be_written_again_is_refused() -> None:
    """Each of these would raise an error, or take much memory, where the request is placed, recorded or answered."""
    deep = "[" * 65 + "]" * 65
    for path, body in (
        ("/v1/chat/completions", '{"messages": [{"role": "user"}], "temperature": NaN}'),
        ("/v1/chat/completions", '{"messages": [{"role": "user"}], "temperature": 1e999}'),
        ("/v1/chat/completions", '{"messages": [{"role": "user"}], "modalities": 5}'),
        ("/v1/chat/completions", '{"messages": [{"role": "user"}], "x": ' + deep + "}"),
        ("/v1/chat/completions", '{"messages": [{"role": "user"}], "n": 1%s}' % ("0" * 5000)),
        ("/v1/chat/completions", json.dumps({"messages": [USER] * 10_001})),
        ("/v1/chat/completions", json.dumps({"messages": [USER], "tools": [TOOL] * 10_001})),
        ("/v1/chat/completions", json.dumps({"messages": [USER], "stop": ["x"] * 65})),
        ("/v1/chat/completions", '{"messages": [{"role": "user"}], "x": [%s{}]}' % ("{}," * (1 << 18))),
        ("/v1/messages/count_tokens", '{"messages": [{"role": "user", "content": "x"}], "x": ' + deep + "}"),
    ):
        refused = ask(path, body.encode())
        assert isinstance(refused, Answered) and refused.status == 400, body[:100]
        assert b"error" in refused.body and len(refused.body) < 1000
    assert isinstance(ask("/v1/chat/completions", json.dumps({"messages": [USER]}).encode("utf-16")), Answered)


def test_half_of_a_surrogate_pair_becomes_the_replacement_character() -> None:
    text = '{"messages": [{"role": "user", "content": "é \\ud800" },'
    text += '{"role": "user", "content": "\\\\ud800 \\ud83d\\ude00"}]}'
    request = read("/v1/chat/completions", text.encode())
    assert [message["content"] for message in request.messages] == ["é \ufffd", "\\ud800 \U0001f600"]
    assert json.dumps(request.body, ensure_ascii=False).encode()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_what_an_answer_repeats_of_its_request_is_bounded(path: str) -> None:
    long = "x" * (1 << 20)
    body = {"model": long, "stream": True, "messages": [USER], "input": "hi", "metadata": {"long": long}}
    request = read(path, {**body, "instructions": long, "tool_choice": long} if path == "/v1/responses" else body)
    written, _ = PROTOCOLS[request.protocol].write(request, Answer("y" * 10_000), 1)
    assert len(written) < 1 << 20
