"""An agent program in a real sandbox as the trainer's environment: tokens are kept, however the program writes."""

from __future__ import annotations

import json
import shlex

import pytest

from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.forward import take_snapshot
from swe_trainers.model.chat import ChatFormat, CompactChat, TemplateChat
from swe_trainers.rollout.conversations import Conversations
from swe_trainers.rollout.play import play
from swe_trainers.rollout.settings import EpisodeStart, Limits
from swegym_env.programs.env import SWEAgentEnv
from swegym_env.programs.spec import AgentSpec
from tests.trainers.rollout.test_conversations import TOKENIZERS, tokenizer
from tests.trainers.tiny import tiny_model

PROGRAM = """
import json, os, subprocess, urllib.request
tools = [{"type": "function", "function": {"name": "bash", "description": "Runs a command.",
          "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}}]
def ask(messages, tools=tools):
    body = json.dumps({"model": "m", "messages": messages, **({"tools": tools} if tools else {})}).encode()
    address = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]
messages = [{"role": "system", "content": "Repair it."}, {"role": "user", "content": "Begin."}]
for turn in range(4):
    answer = ask(messages)
    calls = answer.get("tool_calls") or []
    again = {"role": "assistant", "content": (answer["content"] or "").strip()}
    if calls:
        again["tool_calls"] = [{"id": c["id"], "type": "function", "function": {"name": c["function"]["name"],
            "arguments": json.dumps(json.loads(c["function"]["arguments"]), indent=3)}} for c in calls]
    messages.append(again)
    for call in calls:
        command = json.loads(call["function"]["arguments"])["command"]
        output = subprocess.run(command, shell=True, capture_output=True, text=True).stdout
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})
    if not calls:
        messages.append({"role": "user", "content": "Call bash."})
    if turn == 1:
        ask([{"role": "user", "content": "A title for this."}], [])
"""
SPEC = AgentSpec(command=f"exec python3 -c {shlex.quote(PROGRAM)}", name="rewriter")
CALL = (
    '<think>which?</think> I look. \n<tool_call>\n{"name": "bash",  "arguments": {"command":"echo \\"<|im_end|>\\""}}'
    "\n</tool_call>\n"
)


def test_calls_go_to_the_program_and_every_continued_request_keeps_the_tokens() -> None:
    tok = TOKENIZERS["hermes"]
    chat = TemplateChat(tok)
    env = SWEAgentEnv("mini", agent=SPEC, pool=0)
    try:
        _, info = env.reset(seed=0)
        conversations, ids, causes, starts = Conversations(chat), list[int](), [], [0]
        for number in range(5):
            placed = conversations.place(info, ids)
            causes.append(placed.cause)
            if placed.cause:
                starts.append(len(ids))
            ids += placed.ids
            sampled = [*tok.encode(CALL if info["tools"] else "A title"), tok.end_id]
            answer = chat.answer(sampled, conversations.tools, number=number)
            assert bool(answer.get("tool_calls")) == bool(info["tools"])
            ids += sampled
            conversations.answered(answer, sampled, closed=True, start=starts[-1], end=len(ids))
            *_, ended, _, info = env.step(json.dumps(answer) if info["tools"] else "A title")
        assert ended and info["end_reason"] == "submitted"
    finally:
        env.close()
    assert causes == ["first", "", "conversation", "return", ""]
    text = tok.inner.decode(ids[starts[-1] :])
    assert text.count(CALL) == 4  # as sampled, thoughts and blanks too
    assert text.count("<|im_start|>tool\n<|im_end|>\n<|im_end|>") == 3  # what the command printed forges no end
    assert ids[starts[-1] :].count(tok.end_id) == 3 + 4 + 3


@pytest.mark.parametrize("chat_of", [CompactChat, TemplateChat])
def test_played_in_a_sandbox_the_trainer_computes_what_the_engine_sampled_with(chat_of: type) -> None:
    form = "hermes"
    tok = tokenizer(form)
    if chat_of is CompactChat:
        from swe_trainers.model.tokenizers import train_sentencepiece

        tok = train_sentencepiece(["Repair it. Begin. Call bash.\n"] * 3, 300)  # type: ignore[assignment]
    model = tiny_model("qwen3", tok, seed=4, max_position_embeddings=4096)
    chat: ChatFormat = chat_of(tok)
    engine = EmbeddedEngine(model, n_slots=1, max_tokens=3000)
    env = SWEAgentEnv("mini", agent=SPEC, pool=0)
    try:
        (episode,) = play(engine, chat, [env], [EpisodeStart(0)], limits=Limits(8, 3000))
    finally:
        env.close()
    assert episode.valid, episode.failure_reason
    assert episode.sample_causes == ("first", "conversation", "return") and len(episode.turns) == 5
    batch = Batch.of([episode])
    found = take_snapshot(model, batch, microbatch_tokens=4096, temperature=1.0, pack=True).settle()
    assert float((found.logprobs - batch.rollout_logprobs)[batch.action_mask].abs().max()) < 1e-5
