"""Requests to a chat server and the parsing of its responses."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import pytest

from swe_trainers.engines.chat import ChatEngine
from swe_trainers.engines.http import JsonClient, Pace
from swe_trainers.engines.protocol import Sample
from swe_trainers.errors import ConfigurationError, EngineError
from swe_trainers.evaluation.usage import Prices, Usage, read_prices, usage_of
from swe_trainers.rollout.trajectory import Turn
from tests.trainers.evaluation.scripted import Script, say, serving
from tests.trainers.learning.tiny import trajectory

TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]


class Talk:
    """One conversation with an endpoint."""

    def __init__(self, url, system="", tools=(), *, tries=8, pace=None, **options):
        client = JsonClient(url, tries=tries, pause_s=0.001, pace=pace, option="--base-url")
        self.engine = ChatEngine(client, "m", n_slots=1, tries=tries, **options)
        self.slot, self.system, self.tools = self.engine.open(), system, tools

    def ask(self, observation: str) -> Sample:
        self.engine.ask(self.slot, observation, system=self.system, tools=self.tools)
        samples: list[Sample] = []
        while self.engine.busy:
            samples += self.engine.step()
        (sample,) = samples
        if sample.failure is not None:
            raise sample.failure
        return sample


def _call(name: str, arguments: object, **more: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def test_whole_conversation_is_sent_with_each_request():
    with serving(lambda body: say(f"answer {len(body['messages'])}")) as served:
        talk = Talk(served.url, "Be brief.", TOOLS, request={"temperature": 0.5})
        assert [talk.ask("one").text, talk.ask("two \udcff").text] == ["answer 2", "answer 4"]
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


def test_native_tool_calls_become_json_actions_and_tool_messages():
    calls = [_call("bash", '{"command": "ls"}', id="a"), _call("submit", {}, id="b")]
    with serving(lambda body: say(None, tool_calls=calls) if len(body["messages"]) == 1 else say("done")) as served:
        talk = Talk(served.url, tools=TOOLS, native_calls=True)
        action = json.loads(talk.ask("begin").text)
        assert [call["function"] for call in action["tool_calls"]] == [
            {"name": "bash", "arguments": '{"command": "ls"}'},
            {"name": "submit", "arguments": "{}"},
        ]
        assert talk.ask("both").text == "done"
        assert served.asked[0]["tools"] == TOOLS
        messages = served.asked[1]["messages"]
        assert messages[1] == action
        assert messages[2:] == [{"role": "tool", "tool_call_id": name, "content": "both"} for name in "ab"]


def test_messages_of_an_agent_program_take_the_place_of_the_conversation_and_offer_their_tools():
    call = _call("bash", '{"command": "ls"}', id="a")
    with serving(lambda body: say("ok", tool_calls=[call] if "tools" in body else [])) as served:
        talk = Talk(served.url, "never sent", TOOLS)
        sent = [{"role": "system", "content": "s"}, {"role": "user", "content": "go"}]
        texts = []
        for messages, tools in ((sent, TOOLS), ([{"role": "user", "content": "a title"}], [])):
            talk.engine.ask(talk.slot, "not this", system="nor this", tools=tools, messages=messages)
            samples: list[Sample] = []
            while talk.engine.busy:
                samples += talk.engine.step()
            texts += [sample.text for sample in samples]
        assert json.loads(texts[0]) == {"role": "assistant", "content": "ok", "tool_calls": [call]}
        assert texts[1] == "ok"
        assert served.asked == [
            {"model": "m", "messages": sent, "tools": TOOLS},
            {"model": "m", "messages": [{"role": "user", "content": "a title"}]},
        ]


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
def test_answer_without_text_is_an_empty_action(message):
    with serving(lambda _: {"choices": [{"message": message}]}) as served:
        talk = Talk(served.url, tools=TOOLS, native_calls=True)
        answer = talk.ask("one")
        assert answer.text == "" and "prompt_tokens" not in answer.notes
        usage = _used(answer, Prices(1.0, 5.0))
        assert (usage.requests, usage.unknown, usage.cost) == (1, 1, None)
        talk.ask("two")
        assert served.asked[1]["messages"][1]["content"] == "(no text)"


def test_text_parts_are_joined_and_reasoning_is_kept():
    response = say([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], reasoning="because")
    with serving(lambda _: response) as served:
        answer = Talk(served.url).ask("x")
    assert answer.text == "ab" and (answer.notes["finish_reason"], answer.notes["reasoning"]) == ("stop", "because")


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
def test_context_overflow_is_distinguished_from_failure(status, text):
    with serving(lambda _: (status, text)) as served:
        answer = Talk(served.url).ask("x")
    assert answer.end == "context" and str(status) in answer.notes["no_room"]


@pytest.mark.parametrize(
    ("found", "kind", "expected"),
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
def test_error_responses_are_classified(found, kind, expected):
    with serving(lambda _: found) as served:
        with pytest.raises(kind, match=expected) as raised:
            Talk(served.url, tries=2).ask("x")
        assert "\n" not in str(raised.value)


def test_error_with_status_200_is_retried():
    replies = iter([{"error": "upstream"}, 429, 500, say("fine")])
    with serving(lambda _: next(replies)) as served:
        assert Talk(served.url).ask("x").text == "fine"


def _used(answer: Sample, prices: Prices | None) -> Usage:
    """The usage of an episode of one turn."""
    turn = Turn("x", answer.text, 0.0, 0, 0, answer.notes)
    return usage_of(dataclasses.replace(trajectory([], [], []), turns=(turn,)), prices, 0.0)


def _usage(script: Script, prices: Prices | None = None) -> Usage:
    with serving(script) as served:
        return _used(Talk(served.url).ask("x"), prices)


def test_usage_and_cost_are_counted():
    answer = say("x", read=1000, wrote=10, cached=400)
    found = _usage(lambda _: answer, Prices(input=1.0, output=5.0, cached_input=0.25))
    assert (found.prompt_tokens, found.completion_tokens, found.cached_tokens) == (1000, 10, 400)
    assert found.cost == pytest.approx((600 * 1.0 + 400 * 0.25 + 10 * 5.0) / 1e6)
    assert _usage(lambda _: answer, Prices(1.0, 5.0)).cost == pytest.approx((1000 * 1.0 + 10 * 5.0) / 1e6)
    assert _usage(lambda _: answer).cost is None
    answer["usage"]["cost"] = 0.0123  # some servers say what they charge
    assert _usage(lambda _: answer, Prices(1.0, 5.0)).cost == 0.0123


def test_rate_limit_applies_to_all_conversations():
    with serving(lambda _: say("x")) as served:
        pace = Pace(per_minute=1200)
        began = time.monotonic()
        for _ in range(5):
            Talk(served.url, pace=pace).ask("x")
        assert time.monotonic() - began >= 4 * 0.05 - 0.01


def test_price_table_is_read_and_checked(tmp_path: Path):
    table = tmp_path / "prices.yaml"
    table.write_text("m-1: {input: 1.25, output: 10, cached_input: 0.125}\nm-2: {input: 1, outptu: 2}\nm-3: 5\n")
    assert read_prices(table, "m-1") == Prices(1.25, 10.0, 0.125)
    for model, expected in (("m-4", "no model 'm-4'"), ("m-2", "outptu: no such setting"), ("m-3", "got 5")):
        with pytest.raises(ConfigurationError, match=expected):
            read_prices(table, model)
    table.write_text("m-1: {input: -1, output: 10}")
    with pytest.raises(ConfigurationError, match=r"input: got -1\.0"):
        read_prices(table, "m-1")
