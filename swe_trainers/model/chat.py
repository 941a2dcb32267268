"""Conversations as token ids: sampled tokens are kept as they are, and only new text is encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from swe_trainers.errors import ConfigurationError, TemplateError
from swe_trainers.model.tokenizers import HuggingFaceTokenizer, Tokenizer

__all__ = ["ChatFormat", "CompactChat", "TemplateChat", "chat_format"]

_Tools = Sequence[Mapping[str, Any]]


class ChatFormat(Protocol):
    """Turns an episode into one growing sequence of ids."""

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
        self._tokenizer = tokenizer
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
        head = [self._system, *self._tokenizer.encode(system), self._end] if system and self._with_system else []
        return head + self._turn(observation)

    def observe(self, observation: str, *, closed: bool) -> list[int]:
        """Ids that follow an action: its end token unless sampled, the observation, the next header."""
        return ([] if closed else [self._end]) + self._turn(observation)

    def action_text(self, token_ids: Sequence[int]) -> str:
        """The text of an action for the environment."""
        return self._tokenizer.decode(token_ids)

    def action_ids(self, text: str) -> list[int]:
        """Ids of an action as a policy writes it; see `ChatFormat.action_ids`."""
        return _action_ids(self._tokenizer, text)

    def _turn(self, observation: str) -> list[int]:
        return [self._user, *self._tokenizer.encode(observation), self._end, self._assistant]


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
        self._tokenizer = tokenizer
        self._options = template_options
        if not tokenizer.inner.chat_template:
            raise TemplateError(
                f"{tokenizer.inner.name_or_path or 'the tokenizer'} has no chat template. "
                "Try: an instruction-tuned model, or a chat_template in its tokenizer_config.json"
            )
        self._between = self._find_between(None, None)
        self._closing, self._opening = self._split_at_end_of_action()

    @property
    def end_id(self) -> int:
        """The token that the template writes after an action."""
        return self._closing

    @property
    def stop_ids(self) -> frozenset[int]:
        """The template's end of an action, and the tokenizer's end of a text, which base models write instead."""
        return frozenset({self._closing, self._tokenizer.end_id})

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

    def action_text(self, token_ids: Sequence[int]) -> str:
        """The text of an action for the environment."""
        return self._tokenizer.decode(token_ids)

    def action_ids(self, text: str) -> list[int]:
        """Ids of an action as a policy writes it; see `ChatFormat.action_ids`."""
        return _action_ids(self._tokenizer, text)

    def _render(self, turns: int, system: str | None, tools: _Tools | None) -> str:
        messages: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]
        for turn in range(turns):
            messages.append({"role": "user", "content": _OBSERVATIONS[turn]})
            if turn < turns - 1:
                messages.append({"role": "assistant", "content": _ACTIONS[turn]})
        from jinja2 import TemplateError as JinjaError

        try:
            text = self._tokenizer.inner.apply_chat_template(
                messages,
                tools=[dict(tool) for tool in tools] if tools else None,
                add_generation_prompt=True,
                tokenize=False,
                **self._options,
            )
        except (JinjaError, TypeError, ValueError) as error:
            raise TemplateError(f"the chat template fails on a conversation of {turns} turns: {error}") from error
        return str(text)

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
        ids = self._tokenizer.encode_scaffold(head)
        special = set(self._tokenizer.inner.all_special_ids) | set(self._tokenizer.inner.added_tokens_decoder)
        if not ids or ids[0] not in special:
            raise TemplateError(
                f"the chat template ends an action with {_quote(head)}, which is not a single special token: a "
                "sampled action would have no end"
            )
        end = str(self._tokenizer.inner.convert_ids_to_tokens(ids[0]))
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
                ids += self._tokenizer.encode_scaffold(text[:at])
            if name:
                ids += self._tokenizer.encode(contents[name])
            text = text[at + len(name) :]
        return ids


def _growth(before: str, after: str, action: str) -> str:
    """The text that a longer rendering adds after the action; raises unless the shorter one is its prefix."""
    kept = before + action
    if after.startswith(kept):
        return after[len(kept) :]
    at = next((i for i, (a, b) in enumerate(zip(kept, after, strict=False)) if a != b), min(len(kept), len(after)))
    raise TemplateError(
        f"the chat template does not keep the prefix: after one more turn {_quote(kept[at:])} becomes "
        f"{_quote(after[at:])}; tokens sampled in the shorter conversation could not be trained on in the longer one"
    )


def _quote(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "…")


def chat_format(tokenizer: Tokenizer) -> ChatFormat:
    """The chat format of a tokenizer: its own template where it has one, else `CompactChat`."""
    if isinstance(tokenizer, HuggingFaceTokenizer) and tokenizer.inner.chat_template:
        return TemplateChat(tokenizer)
    return CompactChat(tokenizer)
