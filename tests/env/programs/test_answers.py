"""From an action to an answer, and which conversation a request continues."""

from __future__ import annotations

import json
from typing import Any

import pytest

from swegym_env.agent.formats import action_format
from swegym_env.programs.answers import read_answer
from swegym_env.programs.conversations import Conversations
from swegym_env.programs.protocols import PROTOCOLS
from swegym_env.programs.protocols.model import Answer, ModelRequest

TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": {key: {"type": kind}}}},
    }
    for name, key, kind in (("bash", "command", "string"), ("wait", "seconds", "integer"))
]


def request(*messages: Any, tools: Any = TOOLS, stop: tuple[str, ...] = ()) -> ModelRequest:
    return ModelRequest("chat", messages, tools, {}, stop=stop)


@pytest.mark.parametrize(
    ("form", "action", "content", "call"),
    [
        ("hermes", 'Look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>', "Look.", "ls"),
        ("auto", 'Look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>', "Look.", "ls"),
        ("xml", "Look.\n<function=bash><parameter=command>\nls\n</parameter></function>", "Look.", "ls"),
        ("auto", "Look.\n<execute>ls</execute>", "Look.", "ls"),
        ("bash", "Look.\n```bash\nls\n```", "Look.", "ls"),
        ("auto", "I have no idea.", "I have no idea.", None),
        ("hermes", '<tool_call>{"name": "rm", "arguments": {}}</tool_call>', None, None),
        ("hermes", "<tool_call>{broken</tool_call>", None, None),
    ],
)
def test_calls_in_the_format_of_a_model_become_calls(form: str, action: str, content: str, call: str | None) -> None:
    answer = read_answer(action, request(), action_format(form), 4)
    assert answer.content == (action if content is None else content)
    if call is None:
        assert answer.tool_calls == ()
    else:
        (made,) = answer.tool_calls
        assert made == {
            "id": "call_4_0",
            "type": "function",
            "function": {"name": "bash", "arguments": json.dumps({"command": call})},
        }


def test_values_have_the_types_of_the_tool() -> None:
    action = "<function=wait><parameter=seconds>3</parameter></function>"
    (call,) = read_answer(action, request(), action_format("xml"), 1).tool_calls
    assert json.loads(call["function"]["arguments"]) == {"seconds": 3}


def test_thoughts_before_a_call_are_reasoning() -> None:
    action = "<think>hm</think>Look.\n<execute>ls</execute>"
    answer = read_answer(action, request(), action_format("auto"), 1)
    assert (answer.reasoning, answer.content, len(answer.tool_calls)) == ("hm", "Look.", 1)


def test_without_tools_a_text_is_a_text() -> None:
    action = "<execute>ls</execute>"
    assert read_answer(action, request(tools=()), action_format("auto"), 1).message == {
        "role": "assistant",
        "content": action,
    }


def test_a_message_is_taken_as_it_is() -> None:
    call = {"id": "mine", "type": "function", "function": {"name": "anything", "arguments": '{"a":1}'}}
    message = {"role": "assistant", "content": "words", "tool_calls": [call, {"broken": 1}], "reasoning_content": "why"}
    more = {"logprobs": {"content": []}, "usage": {"prompt_tokens": 9}}
    answer = read_answer(json.dumps(message | more), request(), action_format("auto"), 1)
    assert answer.message == {**message, "tool_calls": [call]}
    assert answer.logprobs == {"content": []} and answer.tokens(request())[0] == 9
    other = json.dumps({"role": "user", "content": "x"})
    assert read_answer(other, request(), action_format("auto"), 1).content == other


def test_an_answer_ends_at_the_first_stop() -> None:
    answer = read_answer("one END two STOP", request(tools=(), stop=("STOP", "END")), action_format("auto"), 1)
    assert (answer.content, answer.stopped_at) == ("one ", "END")


def message(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def call(arguments: str, identity: str = "a") -> dict[str, Any]:
    return {"tool_calls": [{"id": identity, "type": "function", "function": {"name": "f", "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("answered", "sent", "continues"),
    [
        (message("assistant", "yes"), message("assistant", " yes\n"), True),
        (message("assistant", "<think>why</think>yes"), message("assistant", "yes"), True),
        (
            message("assistant", "", **call('{"a": 1, "b": 2}')),
            message("assistant", "", **call('{"b":2,"a":1}', "b")),
            True,
        ),
        (message("assistant", "yes", reasoning_content="why"), message("assistant", "yes"), True),
        (message("assistant", "yes"), message("assistant", "no"), False),
        (message("assistant", "yes"), message("user", "yes"), False),
        (message("assistant", "", **call('{"a": 1}')), message("assistant", "", **call('{"a": 2}')), False),
        (message("assistant", "x", **call("{}")), message("assistant", "x"), False),
    ],
)
def test_answers_are_compared_by_meaning(answered: Any, sent: Any, continues: bool) -> None:
    conversations = Conversations()
    first = [message("system", "be good"), message("user", "hi")]
    assert not conversations.place(request(*first)).continues
    conversations.answered(answered)
    placed = conversations.place(request(*first, sent, message("user", "more")))
    assert placed.continues is continues and placed.conversation == (0 if continues else 1)
    assert [each["content"] for each in placed.new] == (
        ["more"] if continues else ["be good", "hi", sent["content"], "more"]
    )


def test_an_agent_may_put_back_the_text_at_which_an_answer_stopped() -> None:
    conversations = Conversations()
    first = message("user", "hi")
    conversations.place(request(first, stop=("</code>", "STOP")))
    conversations.answered(message("assistant", "<code>1"))
    other = [first, message("assistant", "<code>1</end>"), message("user", "more")]
    same = [first, message("assistant", "<code>1</code>"), message("user", "more")]
    assert conversations.place(request(*same)).continues
    conversations.answered(message("assistant", "2"))
    assert (
        conversations.place(request(*same, message("assistant", "2"), message("user", "on"))).new[0]["content"] == "on"
    )
    assert not conversations.place(request(*other)).continues


def test_other_tools_make_another_conversation() -> None:
    conversations = Conversations()
    conversations.place(request(message("user", "hi")))
    conversations.answered(message("assistant", "yes"))
    history = message("user", "hi"), message("assistant", "yes"), message("user", "more")
    assert not conversations.place(request(*history, tools=())).continues


def test_the_longest_conversation_goes_on() -> None:
    """Of two branches that a request could continue, it is the one with more messages."""
    conversations = Conversations()
    history = [message("user", "hi")]
    for number in range(3):
        placed = conversations.place(request(*history))
        assert (placed.conversation, placed.continues) == (0, number > 0)
        answer = message("assistant", f"answer {number}")
        conversations.answered(answer)
        history += [answer, message("user", f"more {number}")]
    assert conversations.place(request(*history[:3])).conversation == 1
    conversations.answered(message("assistant", "another"))
    assert conversations.place(request(*history)).conversation == 0


def test_actions_and_messages_of_any_depth_are_read() -> None:
    """At some depth JSON can be read and not be written again: neither a policy nor a program may find it."""
    for depth in (10, *range(300, 1010), 10_000):
        deep = "[" * depth + "]" * depth
        call = f'"name": "bash", "arguments": {{"command": {deep}}}'
        message = f'{{"role": "assistant", "tool_calls": [{{"function": {{{call}}}}}]}}'
        calls = f"<tool_call>{{{call}}}</tool_call>"
        for action in (message, calls):
            answer = read_answer(action, request({"role": "user", "content": "x"}), action_format("hermes"), 1)
            assert answer.content == ("" if depth == 10 and action == message else action)
            PROTOCOLS["messages"].write(request(), answer, 1)
        text = {"id": "1", "type": "function", "function": {"name": "bash", "arguments": deep}}
        PROTOCOLS["messages"].write(request(), Answer("", (text,)), 1)
        asked = request({"role": "assistant", "content": "", "tool_calls": [text]})
        assert Conversations().place(asked).conversation == 0
