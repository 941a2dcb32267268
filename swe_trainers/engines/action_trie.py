"""What may be sampled next where only some actions are legal: a tree of their token ids.

`Legal` is the interface that engines use, which grammars (`grammar.py`) have too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from swe_trainers.errors import ConfigurationError

__all__ = ["ActionTrie", "Legal", "TokenSet", "check_depth"]


class TokenSet(tuple[int, ...]):
    """Token ids, ascending, whose hash is computed once: a set may be most of a vocabulary."""

    @cached_property
    def _hash(self) -> int:
        return super().__hash__()

    def __hash__(self) -> int:
        return self._hash


class Legal(Protocol):
    """What the policy has written of an action so far, and which tokens may come next."""

    @property
    def allowed(self) -> tuple[int, ...]:
        """The tokens that may be sampled here, ascending; empty where the action is complete."""
        ...

    @property
    def depth(self) -> int:
        """Tokens that must be sampled from here, so that any action can be written."""
        ...

    def after(self, token: int) -> Legal | None:
        """What is reached by a token of `allowed`; None after a stop token."""
        ...


@dataclass
class ActionTrie:
    """A node: what the policy has written of an action so far.

    An action that no longer one begins with is complete as soon as it is written; no stop token is sampled, whose
    probability would be 1. After an action with which longer ones begin, a stop token completes it.

    Attributes:
        children: the nodes after each token that may come next.
        ends: an action ends here.
        allowed: the tokens that may be sampled here, ascending: those of the children, and after an action with longer
            ones the stop tokens. Empty at a leaf.
        depth: tokens of the longest action, from here.
    """

    children: dict[int, ActionTrie] = field(default_factory=dict)
    ends: bool = False
    allowed: tuple[int, ...] = ()
    depth: int = 0

    def after(self, token: int) -> ActionTrie | None:
        """The node after a token of `allowed`; None after a stop token."""
        return self.children.get(token)

    @classmethod
    def of(cls, actions: Mapping[str, Collection[int]], stop_ids: Collection[int]) -> ActionTrie:
        """The tree of some actions.

        Args:
            actions: the token ids of each action, by its text.
            stop_ids: tokens that end an action.
        Raises:
            ConfigurationError: there is no action, one has no tokens, two have the same, or a stop token is in one.
        """
        if not actions:
            raise ConfigurationError("legal_actions: empty, and the episode has not ended")
        root, owners = cls(), dict[tuple[int, ...], str]()
        for text, ids in actions.items():
            key = tuple(ids)
            if not key or any(token in stop_ids for token in key):
                raise ConfigurationError(
                    f"legal_actions: {text!r} is written in tokens {list(key)}, which end an action"
                )
            if owners.setdefault(key, text) != text:
                raise ConfigurationError(f"legal_actions: {owners[key]!r} and {text!r} are written in the same tokens")
            node = root
            for token in key:
                node = node.children.setdefault(token, cls())
            node.ends = True
        _finish(root, tuple(stop_ids))
        return root

    @classmethod
    def of_tokens(cls, token_ids: Collection[int]) -> ActionTrie:
        """Actions of one token each."""
        return cls({token: cls() for token in token_ids}, allowed=tuple(sorted(set(token_ids))), depth=1)


def _finish(node: ActionTrie, stop_ids: tuple[int, ...]) -> None:
    for child in node.children.values():
        _finish(child, stop_ids)
    node.depth = max((1 + child.depth for child in node.children.values()), default=0)
    node.allowed = tuple(sorted({*node.children, *(stop_ids if node.ends and node.children else ())}))


def check_depth(legal: Legal, max_new_tokens: int) -> None:
    """Raises ConfigurationError if an action has more tokens than may be sampled."""
    if legal.depth > max_new_tokens:
        raise ConfigurationError(
            f"max_new_tokens: got {max_new_tokens}, but the longest legal action has {legal.depth} tokens"
        )
