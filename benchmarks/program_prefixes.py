"""Which requests of real agents continue token for token what the policy has read and written.

Each agent plays a scripted policy, whose answers are drawn by the seed of the episode: calls, words alone, mistakes.
They are tokens of a byte-level tokenizer with a chat template, and are read, and matched with what the agent writes
again, by the code that plays episodes for training.

A request is one that continues if, after all messages of the longest earlier request that it begins with (equal as
JSON), it has a message of the assistant: this looks only at what the agent sent. It is kept if no token of what was
read and written is encoded again. All other requests began a sample, and are counted by cause, see
`rollout.conversations`.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from benchmarks.records import Row, row
from swe_trainers.model.chat import TemplateChat
from swe_trainers.model.tokenizers import HuggingFaceTokenizer
from swe_trainers.rollout.conversations import Conversations
from swegym_env.programs.env import SWEAgentEnv
from swegym_env.programs.spec import load_agent

__all__ = ["ANSWERS", "prefix"]

_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for call in m.tool_calls or [] %}"
    '\n<tool_call>\n{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_FINISH = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_COMMANDS = ("ls", "git  status --short", 'grep -rn "def " --include=*.py . | head -5', "cat missing.txt", "python3 -V")
_MOST_TURNS = 8


@dataclass(frozen=True)
class Answers:
    """What a scripted policy answers an agent.

    Attributes:
        draw: an answer.
        last: makes the agent end.
        short: the answers of a short episode.
    """

    draw: Callable[[random.Random], str]
    last: str
    short: Sequence[str]


def _call(name: str, rng: random.Random | None = None, **arguments: Any) -> str:
    separators = (",", ":") if rng is not None and rng.random() < 0.5 else (", ", ": ")
    words = "" if rng is None else rng.choice(("", "I look.\n", "<think>What is there?</think>\n\nI look. \n"))
    text = json.dumps({"name": name, "arguments": arguments}, separators=separators)
    return f"{words}<tool_call>\n{text}\n</tool_call>"


def _mini(rng: random.Random) -> str:
    if rng.random() < 0.05:
        return "I think about it in words alone."
    return _call("bash", rng, command=rng.choice(_COMMANDS))


def _qwen(rng: random.Random) -> str:
    if rng.random() < 0.3:
        return _call("list_directory", rng, path=rng.choice(("/workspace", "/", "/tmp")))
    command = rng.choice(_COMMANDS)
    return _call("run_shell_command", rng, command=command, description="I look.", is_background=False)


def _smol(rng: random.Random) -> str:
    if rng.random() < 0.1:
        return "Thought: I forget the code."
    code = rng.choice(
        ("print(6 * 7)", "import os\nprint(sorted(os.listdir('.')))", "x = 1 / 0", "for n in range(3):\n    print(n)")
    )
    return f"Thought: I look.\n<code>\n{code}\n</code>"


def _aider(rng: random.Random) -> str:
    edit = "{}\n```python\n<<<<<<< SEARCH\n{}\n=======\nx = 2\n>>>>>>> REPLACE\n```\n"
    name = rng.choice(("setup.py", "README.md", "notes.py"))
    return rng.choice(
        (f"I have to see {name}.", "I repair it.\n\n" + edit.format(name, "no such line"), "I know no more.")
    )


ANSWERS: Mapping[str, Answers] = {
    "mini-swe-agent": Answers(
        _mini, _call("bash", command=_FINISH), (_call("bash", command="ls"), _call("bash", command=_FINISH))
    ),
    "smolagents": Answers(
        _smol,
        "<code>\nfinal_answer('done')\n</code>",
        ("<code>\nprint(6 * 7)\n</code>", "<code>\nfinal_answer('done')\n</code>"),
    ),
    "aider": Answers(_aider, "I know no more.", ("I have to see README.md.", "I know no more.")),
    "qwen-code": Answers(_qwen, "There is nothing more to do.", ("There is nothing more to do.",)),
}


def _tokenizer() -> HuggingFaceTokenizer:
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator([], trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False))
    special = ["<|im_start|>"]
    return HuggingFaceTokenizer(
        PreTrainedTokenizerFast(
            tokenizer_object=inner, eos_token="<|im_end|>", additional_special_tokens=special, chat_template=_TEMPLATE
        )
    )


@dataclass
class _Counts:
    requests: int
    continuing: int
    kept: int
    causes: Counter[str]  # of continuing requests that were not kept: "break: CAUSE"; of the others: "begun: CAUSE"
    turn_ms: list[float]


def _episode(env: SWEAgentEnv, chat: TemplateChat, answers: Answers, seed: int) -> _Counts:
    """Play one episode, as `rollout.play` does."""
    rng, counts = random.Random(seed), _Counts(0, 0, 0, Counter(), [])
    conversations, token_ids, start = Conversations(chat), list[int](), 0
    earlier: list[list[Mapping[str, Any]]] = []
    _, info = env.reset(seed=seed)
    turns = rng.randint(2, _MOST_TURNS)
    for turn in range(3 * _MOST_TURNS):
        placed, sent = conversations.place(info, token_ids), info["request"]["messages"]
        longest = max((len(one) for one in earlier if len(sent) > len(one) and sent[: len(one)] == one), default=0)
        continues = longest > 0 and sent[longest]["role"] == "assistant"
        earlier.append(sent)
        counts.requests += 1
        counts.continuing += continues
        if placed.cause not in ("", "return"):
            counts.causes[f"{'break' if continues else 'begun'}: {placed.cause}"] += 1
        counts.kept += continues and placed.cause in ("", "return")
        start = len(token_ids) if placed.cause else start
        token_ids += placed.ids
        text = answers.draw(rng) if turn < turns else answers.last
        ids = [*chat.tokenizer.encode(text), chat.end_id]
        answer = chat.answer(ids, conversations.tools, number=turn)
        action = json.dumps(answer, ensure_ascii=False) if answer.get("tool_calls") else chat.action_text(ids)
        token_ids += ids
        conversations.answered(answer, ids, closed=True, start=start, end=len(token_ids))
        began = time.thread_time()
        *_, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            break
        counts.turn_ms.append(1000 * (time.thread_time() - began))
    return counts


def prefix(agent: str, number: int, parallel: int) -> list[Row]:
    """Record episodes of an agent, and count."""

    def play(worker: int) -> list[_Counts]:
        chat = TemplateChat(_tokenizer())
        env = SWEAgentEnv("mini", agent=load_agent(agent), reward="none", max_turns=None, pool=0)
        try:
            return [_episode(env, chat, ANSWERS[agent], seed) for seed in range(worker, number, parallel)]
        finally:
            env.close()

    with ThreadPoolExecutor(parallel) as threads:
        episodes = [each for some in threads.map(play, range(parallel)) for each in some]
    causes: Counter[str] = sum((each.causes for each in episodes), Counter())
    continuing = sum(each.continuing for each in episodes)
    counted = {
        "requests": sum(each.requests for each in episodes),
        "requests that continue": continuing,
        "kept token for token": sum(each.kept for each in episodes),
        **dict(sorted(causes.items())),
    }
    case = f"{number} episodes of {agent}"
    rows = [row(case, metric, "", [value]) for metric, value in counted.items()]
    if continuing:
        rows.append(row(case, "share kept", "%", [100 * counted["kept token for token"] / continuing]))
    turn_ms = [value for each in episodes for value in each.turn_ms]
    return [*rows, row(case, "processor of a turn, of this package", "ms", turn_ms)]
