"""Trees of episodes: one environment plays all branches, one after the other, each from the state of its fork."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from swe_trainers.errors import RolloutError
from swe_trainers.rollout.episode import Episode
from swe_trainers.rollout.settings import Branching
from swe_trainers.rollout.trajectory import Fork

__all__ = ["Node", "Tree"]


@dataclass
class Node:
    """A fork that has been reached.

    Attributes:
        episode: a copy as it was at the fork, ready for an action.
        remaining: branches that have not been played.
        reached_at: `time.monotonic()` when it was reached.
        state: of the environment; None until it is saved.
    """

    episode: Episode
    remaining: int
    reached_at: float
    state: _EnvState | None = None


@dataclass
class Tree:
    """The forks between the start and the branch that is being played.

    Attributes:
        branching: where forks are.
        nodes: the forks, from the start on.
        leaf: number of the branch that is being played.
        unneeded: snapshots that no branch will return to; whoever plays the tree discards them.
    """

    branching: Branching
    nodes: list[Node] = field(default_factory=list)
    leaf: int = 0
    unneeded: list[Any] = field(default_factory=list)
    _n_nodes: int = 0

    def reach(self, episode: Episode) -> None:
        """Add a fork if the episode has come to one."""
        if self.branching.forks_before(len(episode.turns)):
            episode.forks.append(Fork(len(episode.turns), self._n_nodes))
            self._n_nodes += 1
            self.nodes.append(Node(episode.copy(), self.branching.branching - 1, time.monotonic()))

    def backtrack(self) -> Node | None:
        """The last fork with a branch left, which is then taken; None if the tree is finished."""
        while self.nodes and not self.nodes[-1].remaining:
            self._drop()
        if not self.nodes:
            return None
        self.leaf += 1
        self.nodes[-1].remaining -= 1
        return self.nodes[-1]

    def close(self) -> None:
        """Play no other branch: all snapshots are unneeded."""
        while self.nodes:
            self._drop()

    def save(self, env: gymnasium.Env[str, str]) -> None:
        """Save the environment's state for a fork that has just been reached; on the environment's thread."""
        if self.nodes and self.nodes[-1].state is None:
            self.nodes[-1].state = _EnvState.of(env)

    def restore(self, env: gymnasium.Env[str, str], node: Node) -> None:
        """Return an environment to a fork; on the environment's thread.

        Raises:
            RolloutError: it has no snapshots, and repeating the same actions led to another state.
        """
        if node.state is not None and node.state.snapshot is not None:
            node.state.restore(env)
            return
        episode, start = node.episode, node.episode.start
        if start.seed is None:
            raise RolloutError(
                "an episode without a seed cannot be repeated, and the environment has no snapshots. Try: seeds, or "
                "snapshot() and restore() in the environment"
            )
        observation, _ = env.reset(seed=start.seed, options=None if start.options is None else dict(start.options))
        for number in range(len(episode.turns) + 1):
            recorded = episode.turns[number].observation if number < len(episode.turns) else episode.observation
            if observation != recorded:
                raise RolloutError(
                    f"seed {start.seed}: when its actions are repeated, the environment returns {observation[:80]!r} "
                    f"before turn {number}, where it returned {recorded[:80]!r} before. Trees need environments that "
                    "are determined by their seed, or have snapshot() and restore()"
                )
            if number < len(episode.turns):
                observation, *_ = env.step(episode.turns[number].action)

    def _drop(self) -> None:
        state = self.nodes.pop().state
        if state is not None and hasattr(state.snapshot, "discard"):
            self.unneeded.append(state.snapshot)


@dataclass(frozen=True)
class _EnvState:
    """A snapshot of an environment and the attributes of its wrappers.

    Attributes:
        snapshot: None if the environment has no `snapshot` and `restore`.
        wrappers: the attributes of each wrapper, the outermost first.
    """

    snapshot: Any
    wrappers: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(cls, env: gymnasium.Env[Any, Any]) -> _EnvState:
        inner: Any = env.unwrapped
        if not (hasattr(inner, "snapshot") and hasattr(inner, "restore")):
            return cls(None)
        return cls(inner.snapshot(), tuple(_attributes(vars(wrapper), env) for wrapper in _wrappers(env)))

    def restore(self, env: gymnasium.Env[Any, Any]) -> None:
        inner: Any = env.unwrapped
        inner.restore(self.snapshot)
        for wrapper, attributes in zip(_wrappers(env), self.wrappers, strict=True):
            vars(wrapper).update(_attributes(attributes, env))


def _wrappers(env: gymnasium.Env[Any, Any]) -> list[gymnasium.Env[Any, Any]]:
    found: list[gymnasium.Env[Any, Any]] = []
    while isinstance(env, gymnasium.Wrapper):
        found.append(env)
        env = env.env
    return found


def _attributes(attributes: Mapping[str, Any], env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Copies of a wrapper's attributes; references to environments of the chain stay references."""
    chain = [*_wrappers(env), env.unwrapped]
    return copy.deepcopy(dict(attributes), {id(link): link for link in chain})
