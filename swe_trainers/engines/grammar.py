"""Actions of a given form: a regular expression, a JSON schema, a grammar, or calls of the tools on offer.

The library llguidance (extra `grammar`) computes which tokens may come next. They restrict sampling and the update in
the same way as legal actions: `Sample.allowed` names the set that each token was sampled from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import numpy as np

from swe_trainers.config import Configuration
from swe_trainers.engines.action_trie import TokenSet
from swe_trainers.errors import ConfigurationError, EngineError, install_hint
from swe_trainers.model.calls import with_blanks
from swe_trainers.model.tokenizers import HuggingFaceTokenizer, Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from transformers import PreTrainedTokenizerFast

    from swe_trainers.model.chat import ChatFormat

__all__ = ["Grammar", "GrammarState", "Grammars"]

_MOST_SETS = 4096


@dataclass(frozen=True)
class Grammar(Configuration):
    """The form of an action; exactly one of these.

    Attributes:
        regex: a regular expression that the whole action matches, in the syntax of Rust's crate `regex`.
        json_schema: the action is a JSON value of this schema, with at most one blank or line end between its parts.
        lark: a grammar in llguidance's dialect of Lark, whose rule `start` is the action.
        tools: "required": words, then one or more calls of the environment's tools, in the form of the chat template
            and with arguments of the tool's schema; "auto": words alone are an action too.
    """

    regex: str = ""
    json_schema: Mapping[str, Any] | None = None
    lark: str = ""
    tools: str = ""

    def __post_init__(self) -> None:
        given = [name for name, value in vars(self).items() if value not in ("", None)]
        if len(given) != 1:
            raise ConfigurationError(
                f"grammar: got {', '.join(given) or 'nothing'}, expected one of regex, json_schema, lark, tools"
            )
        if self.tools not in ("", "auto", "required"):
            raise ConfigurationError(f"grammar.tools: got {self.tools!r}, expected auto or required")

    @classmethod
    def of(cls, given: object) -> Grammar:
        """From a mapping such as `info["grammar"]`. Raises ConfigurationError: it has other keys or values."""
        if isinstance(given, cls):
            return given
        try:
            return cls(**given) if isinstance(given, Mapping) else cls(lark=str(given))
        except TypeError as error:
            raise ConfigurationError(f"grammar: {error}") from error

    def source(self, chat: ChatFormat, tools: Sequence[Mapping[str, Any]]) -> str:
        """What llguidance compiles.

        Raises:
            ConfigurationError: calls of tools are wanted, and there are none, or the chat format writes none.
        """
        from llguidance import LLMatcher

        if self.regex:
            return LLMatcher.grammar_from_regex(self.regex)
        if self.json_schema is not None:
            return LLMatcher.grammar_from_json_schema(with_blanks(self.json_schema))
        lark = chat.call_grammar(tools, required=self.tools == "required") if self.tools else self.lark
        return LLMatcher.grammar_from_lark(lark)


class Grammars:
    """Compiled grammars over the vocabulary of a chat format.

    Args:
        chat: whose tokenizer writes actions, and whose stop tokens end them.
    Raises:
        ConfigurationError: llguidance is not installed.
    """

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._compiled: dict[str, LLMatcher] = {}
        self._sets: dict[bytes, TokenSet] = {}
        try:
            self._vocabulary = _vocabulary(chat.tokenizer, chat.stop_ids)
        except ImportError as error:
            raise ConfigurationError(f"grammar: llguidance is not installed. {install_hint('grammar')}") from error

    def start(self, grammar: Grammar, tools: Sequence[Mapping[str, Any]] = ()) -> GrammarState:
        """The state before the first token of an action.

        Args:
            grammar: the form.
            tools: function schemas, for calls of tools.
        Raises:
            ConfigurationError: the grammar cannot be compiled.
        """
        from llguidance import LLMatcher

        source = grammar.source(self._chat, tools)
        if source not in self._compiled:
            matcher = LLMatcher(self._vocabulary, source)
            if matcher.is_error():
                raise ConfigurationError(f"grammar: {_one_line(matcher)}")
            self._compiled[source] = matcher
        return GrammarState(self._compiled[source].deep_copy(), self._chat.stop_ids, self._sets)


class GrammarState:
    """What has been written of an action, and which tokens may come next; each state is left once.

    Args:
        matcher: in this state.
        stop_ids: tokens that end an action.
        sets: the sets of tokens that were found so far, by their bits.
    """

    depth = 1  # how long an action can be is not known

    def __init__(self, matcher: LLMatcher, stop_ids: Collection[int], sets: dict[bytes, TokenSet]) -> None:
        self._matcher, self._stop_ids, self._sets = matcher, stop_ids, sets

    @cached_property
    def allowed(self) -> TokenSet:
        """The tokens that may be sampled here, ascending; empty where the action is complete.

        Raises:
            EngineError: nothing in the vocabulary goes on, or llguidance reached a limit.
        """
        bits = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise EngineError(f"grammar: {_one_line(self._matcher)}")
        if bits not in self._sets:
            if len(self._sets) >= _MOST_SETS:
                self._sets.clear()
            found = np.flatnonzero(np.unpackbits(np.frombuffer(bits, dtype=np.uint8), bitorder="little")).tolist()
            # Where only a stop token is left, the action is complete; its probability would be 1.
            self._sets[bits] = TokenSet(found if not {*found} <= {*self._stop_ids} else ())
        return self._sets[bits]

    def after(self, token: int) -> GrammarState | None:
        """The state after a token of `allowed`; None after a stop token."""
        if token in self._stop_ids:
            return None
        if not self._matcher.consume_token(token):
            raise EngineError(f"grammar: token {token} was sampled, which it does not allow")
        return GrammarState(self._matcher, self._stop_ids, self._sets)


def _one_line(matcher: LLMatcher) -> str:
    return " ".join(matcher.get_error().split("<backtrace>")[0].split())[:400]


def _vocabulary(tokenizer: Tokenizer, stop_ids: Collection[int]) -> LLTokenizer:
    """The bytes that each token writes, for llguidance."""
    from llguidance import LLTokenizer, TokenizerWrapper

    if isinstance(tokenizer, HuggingFaceTokenizer):
        from llguidance.hf import from_tokenizer

        inner = cast("PreTrainedTokenizerFast", tokenizer.inner)
        return from_tokenizer(inner, n_vocab=tokenizer.vocab_size, eos_token=sorted(stop_ids))
    if not isinstance(tokenizer, _Spells):
        raise ConfigurationError(f"grammar: {type(tokenizer).__name__} has no method token_bytes(token) -> bytes")
    return LLTokenizer(TokenizerWrapper(_Vocabulary(tokenizer, stop_ids)), eos_token=sorted(stop_ids))


@runtime_checkable
class _Spells(Tokenizer, Protocol):
    """A tokenizer whose tokens write the same bytes in any context."""

    def token_bytes(self, token: int) -> bytes:
        """What a token adds to a text, in UTF-8; empty for a special one."""
        ...


class _Vocabulary:
    """A tokenizer of this library in the form that llguidance takes."""

    bos_token_id = None

    def __init__(self, tokenizer: _Spells, stop_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = min(stop_ids)
        self.tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self.special_token_ids = [token for token, text in enumerate(self.tokens) if not text]
        # Two tokens without a text would be one for llguidance.
        self.tokens = [text or f"<|special {token}|>".encode() for token, text in enumerate(self.tokens)]

    def __call__(self, text: bytes | str) -> list[int]:
        """Ids of a text; llguidance only asks for them to find out whether the text has one way to be written."""
        try:
            return self._tokenizer.encode(text if isinstance(text, str) else text.decode())
        except ConfigurationError:  # a vocabulary of words that cannot write it
            return []
