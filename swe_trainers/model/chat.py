"""Conversations as token ids: sampled tokens are kept as they are, and only new text is encoded."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from swe_trainers.errors import ConfigurationError, TemplateError
from swe_trainers.model.calls import CallFormat
from swe_trainers.model.tokenizers import HuggingFaceTokenizer, Tokenizer

__all__ = ["ChatFormat", "CompactChat", "TemplateChat", "chat_format"]

_Tools = Sequence[Mapping[str, Any]]
_Messages = Sequence[Mapping[str, Any]]
_ROLES = {"developer": "system", "function": "tool"}
_THOUGHT_ENDS = "</think>"


class ChatFormat(Protocol):
    """Turns an episode into growing sequences of ids.

    An episode is observations and actions (`start`, `observe`, `action_text`), or the messages of chat completions
    (`conversation`, `follow`, `answer`), which have roles, calls of tools, and their results.
    """

    @property
    def tokenizer(self) -> Tokenizer:
        """Which the format writes with."""
        ...

    @property
    def end_id(self) -> int:
        """The token that the format writes at the end of an action."""
        ...

    @property
    def stop_ids(self) -> frozenset[int]:
        """The tokens at which sampling stops, including `end_id`."""
        ...

    def start(self, observation: str, *, system: str | None = None, tools: _Tools | None = None) -> list[int]:
        """Ids of the prompt, including the header of the policy's first action."""
        ...

    def observe(self, observation: str, *, closed: bool) -> list[int]:
        """Ids that follow an action: its end token, the observation, the next header.

        Args:
            observation: the environment's observation.
            closed: whether the policy sampled a stop token itself; the end token is then not repeated.
        """
        ...

    def conversation(self, messages: _Messages, tools: _Tools, sampled: Mapping[int, Sequence[int]]) -> list[int]:
        """Ids of a whole conversation, including the header of the next answer.

        Args:
            messages: in the form of chat completions.
            tools: function schemas.
            sampled: of the messages that the policy wrote, by their number: the ids as sampled, without a stop token.
        """
        ...

    def follow(self, messages: _Messages, tools: _Tools, *, answer: Mapping[str, Any], closed: bool) -> list[int]:
        """Ids that follow an answer: its end token, the messages, the next header.

        Args:
            messages: after the answer; at least one.
            tools: function schemas.
            answer: the result of `answer`.
            closed: as in `observe`.
        """
        ...

    def answer(self, token_ids: Sequence[int], tools: _Tools, *, number: int) -> dict[str, Any]:
        """The message of an answer: `role`, `content` and, where it calls some of the tools, `tool_calls`.

        Args:
            token_ids: as sampled.
            tools: function schemas.
            number: of the answer in its episode, for the ids of calls.
        """
        ...

    def call_grammar(self, tools: _Tools, *, required: bool) -> str:
        """The grammar of an answer that calls tools, in llguidance's dialect of Lark.

        Args:
            tools: function schemas.
            required: whether there must be a call.
        Raises:
            ConfigurationError: there are no tools, or the format writes no calls, or in a form without a grammar.
        """
        ...

    def action_text(self, token_ids: Sequence[int]) -> str:
        """The text of an action for the environment, without stop and other special tokens."""
        ...

    def action_ids(self, text: str) -> list[int]:
        """Ids of an action as a policy writes it, without a stop token.

        Raises:
            ConfigurationError: the tokenizer cannot write it.
        """
        ...


class CompactChat:
    """`<|user|>observation<|end|><|assistant|>action<|end|>…`, for models trained from scratch.

    Tools are not described: a model trained on one action format does not need that.

    Args:
        tokenizer: must have the tokens of `SPECIAL_TOKENS`.
        system: write the environment's system prompt before the first observation. In a single environment a small
            model learns nothing from it, and its tokens cost time.

    Raises:
        ConfigurationError: the tokenizer lacks one of the tokens.
    """

    def __init__(self, tokenizer: Tokenizer, *, system: bool = False) -> None:
        self.tokenizer = tokenizer
        self._with_system = system
        self._system = tokenizer.special_id("<|system|>")
        self._user = tokenizer.special_id("<|user|>")
        self._assistant = tokenizer.special_id("<|assistant|>")
        self._end = tokenizer.special_id("<|end|>")

    @property
    def end_id(self) -> int:
        """`<|end|>`."""
        return self._end

    @property
    def stop_ids(self) -> frozenset[int]:
        """`<|end|>` alone."""
        return frozenset({self._end})

    def start(self, observation: str, *, system: str | None = None, tools: _Tools | None = None) -> list[int]:
        """Ids of the prompt, including the header of the policy's first action."""
        head = [self._system, *self.tokenizer.encode(system), self._end] if system and self._with_system else []
        return head + self._turn(observation)

    def observe(self, observation: str, *, closed: bool) -> list[int]:
        """Ids that follow an action: its end token unless sampled, the observation, the next header."""
        return ([] if closed else [self._end]) + self._turn(observation)

    def conversation(self, messages: _Messages, tools: _Tools, sampled: Mapping[int, Sequence[int]]) -> list[int]:
        """Ids of a whole conversation, including the header of the next answer."""
        del tools
        ids: list[int] = []
        for number, message in enumerate(messages):
            if number in sampled:
                ids += [self._assistant, *sampled[number], self._end]
            else:
                ids += self._message(message)
        return [*ids, self._assistant]

    def follow(self, messages: _Messages, tools: _Tools, *, answer: Mapping[str, Any], closed: bool) -> list[int]:
        """Ids that follow an answer: its end token unless sampled, the messages, the next header."""
        del tools, answer
        ids = [] if closed else [self._end]
        return [*ids, *(i for message in messages for i in self._message(message)), self._assistant]

    def answer(self, token_ids: Sequence[int], tools: _Tools, *, number: int) -> dict[str, Any]:
        """The message of an answer: text alone. What it calls, the environment reads in its own action format."""
        del tools, number
        return {"role": "assistant", "content": self.action_text(token_ids)}

    def call_grammar(self, tools: _Tools, *, required: bool) -> str:
        """Raises ConfigurationError: this format writes no calls; the environment reads its own action format."""
        del tools, required
        raise ConfigurationError(
            "grammar.tools: the chat format of a model from scratch has no calls. Try: grammar.regex or grammar.lark"
        )

    def action_text(self, token_ids: Sequence[int]) -> str:
        """The text of an action for the environment."""
        return self.tokenizer.decode(token_ids)

    def action_ids(self, text: str) -> list[int]:
        """Ids of an action as a policy writes it; see `ChatFormat.action_ids`."""
        return _action_ids(self.tokenizer, text)

    def _message(self, message: Mapping[str, Any]) -> list[int]:
        role, text = _ROLES.get(message["role"], message["role"]), str(message.get("content") or "")
        if role == "system":
            return [self._system, *self.tokenizer.encode(text), self._end] if self._with_system else []
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        text = "\n".join([*([text] if text or not calls else []), *(f"{c['name']}({c['arguments']})" for c in calls)])
        header = self._assistant if role == "assistant" else self._user
        return [header, *self.tokenizer.encode(text), self._end]

    def _turn(self, observation: str) -> list[int]:
        return [self._user, *self.tokenizer.encode(observation), self._end, self._assistant]


def _action_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    ids = tokenizer.encode(text)
    if (written := tokenizer.decode(ids)).strip() != text.strip():
        raise ConfigurationError(f"the action {text!r} cannot be written by this tokenizer, which makes it {written!r}")
    return ids


# Placeholders for the texts of a conversation when the template is rendered; letters only, so that no template trims or
# escapes them.
_SYSTEM, _OBSERVATIONS, _ACTIONS = (
    "XSYSTEMX",
    ("XOBSERVATIONAX", "XOBSERVATIONBX", "XOBSERVATIONCX"),
    ("XACTIONAX", "XACTIONBX"),
)


class TemplateChat:
    """A Hugging Face tokenizer's own chat template.

    The template is rendered with placeholders. Its own text is encoded with special tokens, observations without: text
    that looks like a special token stays text. What the template writes between two turns is found once, by comparing a
    conversation with the same conversation after one more turn.

    Args:
        tokenizer: with a chat template.
        template_options: variables of the template, e.g. `enable_thinking=False`.

    Raises:
        TemplateError: there is no template, it fails, or a longer conversation does not start with the shorter one.
    """

    def __init__(self, tokenizer: HuggingFaceTokenizer, **template_options: Any) -> None:
        self.tokenizer = tokenizer
        self._options = template_options
        if not tokenizer.inner.chat_template:
            raise TemplateError(
                f"{tokenizer.inner.name_or_path or 'the tokenizer'} has no chat template. "
                "Try: an instruction-tuned model, or a chat_template in its tokenizer_config.json"
            )
        self._between = self._find_between(None, None)
        self._closing, self._opening = self._split_at_end_of_action()
        self._end = str(self.tokenizer.inner.convert_ids_to_tokens(self._closing))
        self.tokenizer.reserve(self._delimiters())
        self._calls: CallFormat | None = None
        self._calls_are_known = False

    @property
    def end_id(self) -> int:
        """The token that the template writes after an action."""
        return self._closing

    @property
    def stop_ids(self) -> frozenset[int]:
        """The template's end of an action, and the tokenizer's end of a text, which base models write instead."""
        return frozenset({self._closing, self.tokenizer.end_id})

    def start(self, observation: str, *, system: str | None = None, tools: _Tools | None = None) -> list[int]:
        """Ids of the prompt, including the header of the policy's first action."""
        tools = tools or None
        if tools is not None or system is not None:
            grown = self._find_between(_SYSTEM if system is not None else None, tools)
            if grown != self._between:
                raise TemplateError(
                    f"the chat template writes {_quote(grown)} between two turns when there are tools or a system "
                    f"prompt, and {_quote(self._between)} without; it must be the same"
                )
        text = self._render(1, _SYSTEM if system is not None else None, tools)
        return self._encode(text, {_OBSERVATIONS[0]: observation, _SYSTEM: system or ""})

    def observe(self, observation: str, *, closed: bool) -> list[int]:
        """Ids that follow an action: its end token unless sampled, the observation, the next header."""
        ids = [] if closed else [self._closing]
        return ids + self._encode(self._opening, {_OBSERVATIONS[1]: observation})

    def conversation(self, messages: _Messages, tools: _Tools, sampled: Mapping[int, Sequence[int]]) -> list[int]:
        """Ids of a whole conversation, including the header of the next answer."""
        marked = _Marked()
        return self._encode_marked(
            self._rendered([marked.message(m, sampled.get(i)) for i, m in enumerate(messages)], tools), marked
        )

    def follow(self, messages: _Messages, tools: _Tools, *, answer: Mapping[str, Any], closed: bool) -> list[int]:
        """Ids that follow an answer: its end token unless sampled, the messages, the next header.

        The template is rendered with an answer in the place of the policy's, which calls the same tools; what it writes
        after the end of that is encoded.
        """
        marked, mark = _Marked(), _ACTIONS[0]
        turn: dict[str, Any] = {"role": "assistant", "content": _ACTIONS[0]}
        if calls := answer.get("tool_calls"):
            mark = _ACTIONS[1]
            turn["tool_calls"] = [
                {**call, "function": {"name": call["function"]["name"], "arguments": {"argument": mark}}}
                for call in calls
            ]
        head = [{"role": "user", "content": _OBSERVATIONS[0]}, turn]
        text = self._rendered([*head, *(marked.message(message, None) for message in messages)], tools)
        at = text.find(self._end, max(text.rfind(mark), 0))
        if mark not in text or at < 0:
            raise TemplateError(f"the chat template does not write {self._end!r} after an answer: {_quote(text)}")
        ids = [] if closed else [self._closing]
        return ids + self._encode_marked(text[at + len(self._end) :], marked)

    def answer(self, token_ids: Sequence[int], tools: _Tools, *, number: int) -> dict[str, Any]:
        """The message of an answer; calls of the tools are read in the template's own form."""
        text = self.action_text(token_ids)
        form = self._call_format() if tools else None
        if form is None:
            return {"role": "assistant", "content": text}
        ids = [int(i) for i in token_ids if i not in self.stop_ids]
        written = str(self.tokenizer.inner.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
        thoughts, thought, answer = written.rpartition(_THOUGHT_ENDS)
        words, calls = form.read(answer, tools)
        if not calls:
            return {"role": "assistant", "content": text}
        message: dict[str, Any] = {"role": "assistant", "content": words.strip()}
        if thought:
            message["reasoning_content"] = thoughts.strip().removeprefix("<think>").strip()
        message["tool_calls"] = [
            {"id": f"c{number:05d}{index:03d}", "type": "function", "function": call}
            for index, call in enumerate(calls)
        ]
        return message

    def call_grammar(self, tools: _Tools, *, required: bool) -> str:
        """The grammar of an answer that calls tools in the form of the template; see `ChatFormat.call_grammar`."""
        calls = self._call_format()
        if calls is None:
            raise ConfigurationError("grammar.tools: the chat template writes no calls of tools in a known form")
        added = self.tokenizer.inner.added_tokens_decoder.values()
        return calls.grammar(tools, required=required, special={str(token) for token in added if token.special})

    def action_text(self, token_ids: Sequence[int]) -> str:
        """The text of an action for the environment."""
        stopped = bool(token_ids) and token_ids[-1] in self.stop_ids  # which may not be marked as special
        return self.tokenizer.decode(token_ids[:-1] if stopped else token_ids)

    def action_ids(self, text: str) -> list[int]:
        """Ids of an action as a policy writes it; see `ChatFormat.action_ids`."""
        return _action_ids(self.tokenizer, text)

    def _delimiters(self) -> set[int]:
        """The tokens that begin and end turns, with what else the template writes around them."""
        ids: set[int] = set()
        for system in (None, _SYSTEM):
            text = self._render(2, system, None)
            for content in (*_OBSERVATIONS, *_ACTIONS, _SYSTEM):
                text = text.replace(content, " ")
            ids.update(self.tokenizer.encode_scaffold(text))
        return ids

    def _call_format(self) -> CallFormat | None:
        if not self._calls_are_known:
            try:
                self._calls = CallFormat.of(lambda m, tools: self._rendered(m, tools, header=False), self._end)
            except TemplateError:
                self._calls = None  # it knows no calls
            self._calls_are_known = True
        return self._calls

    def _encode_marked(self, text: str, marked: _Marked) -> list[int]:
        """Encode the template's text, and what stands for each mark in it separately."""
        ids, at = list[int](), 0
        for found in marked.pattern.finditer(text):
            if found.start() > at:
                ids += self.tokenizer.encode_scaffold(text[at : found.start()])
            content = marked.contents[found[0]]
            if isinstance(content, str):
                around = text[found.start() - 1 : found.start()] + text[found.end() : found.end() + 1]
                if found[0] in marked.arguments and around == '""':  # in JSON; elsewhere the template writes it plain
                    content = json.dumps(content, ensure_ascii=False)[1:-1]
                ids += self.tokenizer.encode(content)
            else:
                ids += content
            at = found.end()
        return ids + (self.tokenizer.encode_scaffold(text[at:]) if at < len(text) else [])

    def _rendered(self, messages: _Messages, tools: _Tools, *, header: bool = True) -> str:
        """The template's text; a role `system`, or messages of one role in a row, that it refuses are joined."""
        from jinja2 import TemplateError as JinjaError

        failure: Exception | None = None
        for given in (messages, _joined(messages), _joined(_without_system(messages))):
            try:
                return str(
                    self.tokenizer.inner.apply_chat_template(
                        [dict(message) for message in given],
                        tools=[dict(tool) for tool in tools] or None,
                        add_generation_prompt=header,
                        tokenize=False,
                        **self._options,
                    )
                )
            except (JinjaError, TypeError, ValueError) as error:
                failure = failure or error
        roles = ", ".join(str(message["role"]) for message in messages[:8])
        raise TemplateError(f"the chat template fails on messages of the roles {roles}: {failure}") from failure

    def _render(self, turns: int, system: str | None, tools: _Tools | None) -> str:
        messages: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]
        for turn in range(turns):
            messages.append({"role": "user", "content": _OBSERVATIONS[turn]})
            if turn < turns - 1:
                messages.append({"role": "assistant", "content": _ACTIONS[turn]})
        return self._rendered(messages, tools or ())

    def _find_between(self, system: str | None, tools: _Tools | None) -> str:
        """The text from the end of an action to the start of the next; it must be the same after every turn."""
        one, two, three = (self._render(turns, system, tools) for turns in (1, 2, 3))
        first = _growth(one, two, _ACTIONS[0])
        second = _growth(two, three, _ACTIONS[1])
        if first.count(_OBSERVATIONS[1]) != 1:
            raise TemplateError(
                f"the chat template writes an observation {first.count(_OBSERVATIONS[1])} times: {_quote(first)}"
            )
        if first.replace(_OBSERVATIONS[1], "") != second.replace(_OBSERVATIONS[2], ""):
            raise TemplateError(
                f"the chat template writes {_quote(first)} after the first action and {_quote(second)} after the second"
            )
        return first

    def _split_at_end_of_action(self) -> tuple[int, str]:
        """Split the text between two turns into the token that ends an action and the rest."""
        head = self._between.split(_OBSERVATIONS[1])[0]
        ids = self.tokenizer.encode_scaffold(head)
        special = set(self.tokenizer.inner.all_special_ids) | set(self.tokenizer.inner.added_tokens_decoder)
        if not ids or ids[0] not in special:
            raise TemplateError(
                f"the chat template ends an action with {_quote(head)}, which is not a single special token: a "
                "sampled action would have no end"
            )
        end = str(self.tokenizer.inner.convert_ids_to_tokens(ids[0]))
        if not self._between.startswith(end):
            raise TemplateError(
                f"the chat template ends an action with {_quote(head)}, but its token {end!r} is not at the start"
            )
        return ids[0], self._between[len(end) :]

    def _encode(self, text: str, contents: Mapping[str, str]) -> list[int]:
        """Encode the template's text and the contents separately, so that contents cannot forge special tokens."""
        ids: list[int] = []
        while text:
            at, name = min(((text.find(name), name) for name in contents if name in text), default=(len(text), ""))
            if at:
                ids += self.tokenizer.encode_scaffold(text[:at])
            if name:
                ids += self.tokenizer.encode(contents[name])
            text = text[at + len(name) :]
        return ids


class _Marked:
    """Messages with marks in the place of all that is not the template's own.

    Attributes:
        contents: the text, or the ids, that each mark stands for.
        arguments: the marks of texts in the arguments of calls.
    """

    pattern = re.compile("XMARK[A-J]+X")

    def __init__(self) -> None:
        self.contents: dict[str, str | Sequence[int]] = {}
        self.arguments: set[str] = set()

    def message(self, message: Mapping[str, Any], sampled: Sequence[int] | None) -> dict[str, Any]:
        """A message for the template; with `sampled`, ids take the place of all that it says."""
        role = _ROLES.get(message["role"], message["role"])
        if sampled is not None:
            return {"role": role, "content": self._mark(list(sampled))}
        # A template asks whether there is a content; None is written as such by some of them.
        found: dict[str, Any] = {"role": role, "content": self._text(message.get("content") or "")}
        if message.get("reasoning_content"):
            found["reasoning_content"] = self._text(message["reasoning_content"])
        if message.get("tool_calls"):
            found["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": self._argument(_decoded(call["function"]))}}
                for call in message["tool_calls"]
            ]
        return found | {key: message[key] for key in ("tool_call_id", "name") if message.get(key)}

    def _text(self, text: Any) -> str:
        return self._mark(str(text)) if text else ""

    def _argument(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._argument(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._argument(each) for each in value]
        if isinstance(value, str) and value:
            mark = self._mark(value)
            self.arguments.add(mark)
            return mark
        return value

    def _mark(self, content: str | Sequence[int]) -> str:
        mark = f"XMARK{str(len(self.contents)).translate(_LETTERS)}X"
        self.contents[mark] = content
        return mark


def _joined(messages: _Messages) -> list[dict[str, Any]]:
    """The messages, those of a user that follow each other as one."""
    found: list[dict[str, Any]] = []
    for message in messages:
        if found and message["role"] == found[-1]["role"] == "user":
            found[-1]["content"] = f"{found[-1]['content']}\n\n{message['content']}"
        else:
            found.append(dict(message))
    return found


def _without_system(messages: _Messages) -> list[dict[str, Any]]:
    """The messages, with those of the system as the user's: Gemma's documentation asks for it."""
    return [{**message, "role": "user"} if message["role"] == "system" else dict(message) for message in messages]


_LETTERS = str.maketrans("0123456789", "ABCDEFGHIJ")


def _decoded(function: Mapping[str, Any]) -> Any:
    """The arguments of a call as templates expect them; what is no JSON object stays text."""
    arguments = function.get("arguments") or {}
    try:
        return json.loads(arguments, strict=False) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return arguments


def _growth(before: str, after: str, action: str) -> str:
    """The text that a longer rendering adds after the action; raises unless the shorter one is its prefix."""
    kept = before + action
    if after.startswith(kept):
        return after[len(kept) :]
    at = next((i for i, (a, b) in enumerate(zip(kept, after, strict=False)) if a != b), min(len(kept), len(after)))
    raise TemplateError(
        f"the chat template does not keep the prefix: after one more turn {_quote(kept[at:])} becomes "
        f"{_quote(after[at:])}; tokens sampled in the shorter conversation could not be trained on in the longer one. "
        "Try: a chat_template.jinja that writes an answer right after the generation prompt, and keeps all earlier ones"
    )


def _quote(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "…")


def chat_format(tokenizer: Tokenizer, kind: Literal["compact", "template"] | None = None) -> ChatFormat:
    """The chat format of a tokenizer.

    Args:
        tokenizer: of the model.
        kind: "template" for the tokenizer's chat template, "compact" for `CompactChat`; None for the template of a
            Hugging Face tokenizer, and `CompactChat` for one made here.
    Raises:
        TemplateError: there is no chat template, or it cannot be used for training; see `TemplateChat`.
        ConfigurationError: the tokenizer lacks the special tokens of `CompactChat`, or can have no chat template.
    """
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        if kind == "template":
            raise ConfigurationError("model.chat: template needs a Hugging Face tokenizer. Try: compact")
        return CompactChat(tokenizer)
    return CompactChat(tokenizer) if kind == "compact" else TemplateChat(tokenizer)
