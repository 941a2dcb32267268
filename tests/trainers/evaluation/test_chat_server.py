"""What is said to a chat server, and what is made of its answers."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from swe_trainers.errors import ConfigurationError, EngineError
from swe_trainers.evaluation.chat_server import ChatServer
from swe_trainers.evaluation.conversation import NoRoomError
from swe_trainers.evaluation.prices import Prices, read_prices
from tests.trainers.evaluation.scripted import Script, say, serving

TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]


def _call(name: str, arguments: object, **more: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def test_a_conversation_is_sent_whole_and_the_answer_is_the_text():
    with serving(lambda body: say(f"answer {len(body['messages'])}")) as served:
        talk = ChatServer(served.url, "m", request={"temperature": 0.5}).open("Be brief.", TOOLS, 0)
        assert [talk.act("one").action, talk.act("two \udcff").action] == ["answer 2", "answer 4"]
        assert served.asked[1] == {
            "model": "m",
            "temperature": 0.5,
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "one"},
                {"role": "assistant", "content": "answer 2"},
                {"role": "user", "content": "two \ufffd"},  # no half of a character leaves the house
            ],
        }


def test_native_calls_go_to_the_environment_as_json_and_back_as_messages_of_tools():
    calls = [_call("bash", '{"command": "ls"}', id="a"), _call("submit", {}, id="b")]
    with serving(lambda body: say(None, tool_calls=calls) if len(body["messages"]) == 1 else say("done")) as served:
        talk = ChatServer(served.url, "m", native_calls=True).open("", TOOLS, 0)
        action = json.loads(talk.act("begin").action)
        assert [call["function"] for call in action["tool_calls"]] == [
            {"name": "bash", "arguments": '{"command": "ls"}'},
            {"name": "submit", "arguments": "{}"},
        ]
        assert talk.act("both").action == "done"
        assert served.asked[0]["tools"] == TOOLS
        said = served.asked[1]["messages"]
        assert said[1] == action
        assert said[2:] == [{"role": "tool", "tool_call_id": name, "content": "both"} for name in "ab"]


@pytest.mark.parametrize(
    "message",
    [
        {"content": None},
        {"content": "", "reasoning_content": "let me think"},
        {"tool_calls": "nonsense"},
        {"tool_calls": [{"id": 1}, None, 7]},
        {"content": 5},
        {"content": [{"type": "image"}, "x"]},
    ],
)
def test_an_answer_without_text_is_the_agents_mistake_and_can_be_sent_back(message):
    with serving(lambda _: {"choices": [{"message": message}]}) as served:
        talk = ChatServer(served.url, "m", native_calls=True).open("", TOOLS, 0)
        answer = talk.act("one")
        assert answer.action == "" and answer.usage.unknown == 1 and answer.usage.cost is None
        talk.act("two")
        assert served.asked[1]["messages"][1]["content"] == "(no text)"


def test_parts_of_text_are_one_text_and_reasoning_is_kept():
    said = say([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], reasoning="because")
    with serving(lambda _: said) as served:
        answer = ChatServer(served.url, "m").open("", [], 0).act("x")
    assert answer.action == "ab" and answer.notes == {"finish_reason": "stop", "reasoning": "because"}


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens"),
        (400, {"error": {"code": "context_length_exceeded", "message": "too long"}}),
        (400, "prompt is too long: 210000 tokens > 200000 maximum"),
        (413, "the input is too long for this model"),
        (400, "slot 0: 128 tokens leave no room for a new one"),
        (400, "the request exceeds the available context size (4096 tokens)"),
        (422, "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: too many tokens"),
    ],
)
def test_a_conversation_that_does_not_fit_is_told_from_a_failure(status, text):
    with serving(lambda _: (status, text)) as served, pytest.raises(NoRoomError):
        ChatServer(served.url, "m").open("", [], 0).act("x")


@pytest.mark.parametrize(
    ("found", "kind", "told"),
    [
        ((401, "no"), ConfigurationError, "--api-key-env"),
        ((404, "no"), ConfigurationError, "model 'm'"),
        ((400, "temperature: expected 1"), EngineError, "400: temperature: expected 1"),
        ((500, "down"), EngineError, "500: down"),
        ((200, {"error": {"message": "upstream died"}}), EngineError, "upstream died"),
        ((200, "<html>"), EngineError, "no JSON"),
        (None, EngineError, "no answer after 2 tries"),
    ],
)
def test_what_a_server_may_do_instead_of_answering(found, kind, told):
    with serving(lambda _: found) as served:
        with pytest.raises(kind, match=told) as raised:
            ChatServer(served.url, "m", tries=2, pause_s=0.001).open("", [], 0).act("x")
        assert "\n" not in str(raised.value) and type(raised.value) is not NoRoomError


def test_a_failure_in_the_shape_of_an_answer_is_asked_again():
    replies = iter([{"error": "upstream"}, 429, 500, say("fine")])
    with serving(lambda _: next(replies)) as served:
        assert ChatServer(served.url, "m", pause_s=0.001).open("", [], 0).act("x").action == "fine"


def _usage(script: Script, prices: Prices | None = None) -> object:
    with serving(script) as served:
        return ChatServer(served.url, "m", prices=prices).open("", [], 0).act("x").usage


def test_tokens_and_what_they_cost():
    answer = say("x", read=1000, wrote=10, cached=400)
    found = _usage(lambda _: answer, Prices(input=1.0, output=5.0, cached_input=0.25))
    assert (found.prompt_tokens, found.completion_tokens, found.cached_tokens) == (1000, 10, 400)
    assert found.cost == pytest.approx((600 * 1.0 + 400 * 0.25 + 10 * 5.0) / 1e6)
    assert _usage(lambda _: answer, Prices(1.0, 5.0)).cost == pytest.approx((1000 * 1.0 + 10 * 5.0) / 1e6)
    assert _usage(lambda _: answer).cost is None
    answer["usage"]["cost"] = 0.0123  # some servers say what they charge
    assert _usage(lambda _: answer, Prices(1.0, 5.0)).cost == 0.0123


def test_a_rate_is_kept_by_all_conversations():
    from swe_trainers.engines.http import Pace

    with serving(lambda _: say("x")) as served:
        server = ChatServer(served.url, "m", pace=Pace(per_minute=1200))
        began = time.monotonic()
        for _ in range(5):
            server.open("", [], 0).act("x")
        assert time.monotonic() - began >= 4 * 0.05 - 0.01


def test_a_table_of_prices(tmp_path: Path):
    table = tmp_path / "prices.yaml"
    table.write_text("m-1: {input: 1.25, output: 10, cached_input: 0.125}\nm-2: {input: 1, outptu: 2}\nm-3: 5\n")
    assert read_prices(table, "m-1") == Prices(1.25, 10.0, 0.125)
    for model, told in (("m-4", "no model 'm-4'"), ("m-2", "outptu: no such setting"), ("m-3", "got 5")):
        with pytest.raises(ConfigurationError, match=told):
            read_prices(table, model)
    table.write_text("m-1: {input: -1, output: 10}")
    with pytest.raises(ConfigurationError, match=r"input: got -1\.0"):
        read_prices(table, "m-1")
