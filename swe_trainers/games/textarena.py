"""The games for one player of textarena: `swe_trainers.games.textarena:TextArena-v0`."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np

from swe_trainers.config import nearest
from swe_trainers.errors import ConfigurationError, install_hint
from swe_trainers.rollout.adapters import AnyText

__all__ = ["TextArena"]

_STATED = re.compile(r"(?:Available|Valid) (?:Moves|Actions|moves|actions):[ \t]*(.+)")
_VOCABULARY_EPISODES = 50
_MOST_STEPS = 200
_drawing = threading.RLock()
"""Held while a game is called: the games draw from the generators of the modules `random` and `numpy.random`."""


class TextArena(gymnasium.Env[str, str]):
    """Plays one of textarena's games for one player.

    The rules are `info["system_prompt"]`. The observation is what the game says since the last action, and at the end
    why it is over. The reward is the game's own, at its end. An invalid move is answered, with `info["action_error"]`;
    the second one in a row loses most games.

    Args:
        game: its id in textarena, such as `GuessTheNumber-v0`.
        actions: `info["legal_actions"]`; by default what the game states after `Available Moves:` and the like, if it
            does.
        rules: give the rules.
        **kwargs: for the game.

    Raises:
        ConfigurationError: textarena or a game's data are not installed, or there is no such game.
    """

    observation_space = AnyText()
    action_space = AnyText()

    def __init__(
        self, game: str = "GuessTheNumber-v0", *, actions: Sequence[str] = (), rules: bool = True, **kwargs: Any
    ) -> None:
        try:
            import textarena
        except ImportError as error:
            raise ConfigurationError(f"textarena is not installed. {install_hint('games')}") from error
        registered = textarena.envs.registration.ENV_REGISTRY
        if f"{game}-raw" not in registered:
            known = [name.removesuffix("-raw") for name in registered if name.endswith("-raw")]
            raise ConfigurationError(f"game: textarena has no {game!r}{nearest(game, known)}")
        try:
            self._game = textarena.make(f"{game}-raw", **kwargs)
        except LookupError as error:
            raise ConfigurationError(
                f"{game}: needs data of NLTK, which it could not download. Try: "
                "python -m nltk.downloader words averaged_perceptron_tagger_eng"
            ) from error
        self._kinds = textarena.ObservationType
        self._name, self._rules = game, rules
        self._actions = self._legal = [str(action) for action in actions]
        self._generators: tuple[Any, Any] = random.Random(0).getstate(), np.random.RandomState(0).get_state()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start a game, which follows from the seed."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(2**31))
        self._legal = self._actions
        with self._drawing():
            np.random.seed(drawn)  # noqa: NPY002 - what the games draw from
            try:
                self._game.reset(num_players=1, seed=drawn)
            except AssertionError as error:
                raise ConfigurationError(f"{self._name}: is not for one player: {error}") from error
            text, info = self._shown()
        rules = info.pop("rules", "")
        return text, {**info, **({"system_prompt": rules} if self._rules else {})}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an action; brackets around it are added where it has none."""
        word = action.strip()
        with self._drawing():
            done, _ = self._game.step(word if "[" in word or "]" in word else f"[{word}]")
            text, info = self._shown()
            info.pop("rules", "")
            if not done:
                return text, 0.0, False, False, info
            rewards, ends = self._game.close()
        end = ends[0]
        if end.get("invalid_move"):
            info["action_error"] = word
        return "\n".join(filter(None, (text, str(end.get("reason", ""))))), float(rewards[0]), True, False, info

    def vocabulary(self) -> list[str]:
        """Words of actions, and of observations in fifty episodes of random actions.

        There may be others: a model of words needs `model.words`, so that it reads those as unknown.

        Raises:
            ConfigurationError: the game states no actions, and none are given.
        """
        draw, texts = random.Random(0), {"\n", " ", *self._actions}
        for seed in range(_VOCABULARY_EPISODES):
            observation, info = self.reset(seed=seed)
            texts |= {observation, info.get("system_prompt", "")}
            for _ in range(_MOST_STEPS):
                legal = info.get("legal_actions")
                if not legal:
                    raise ConfigurationError(f"{self._name}: states no actions. Try: kwargs.actions")
                observation, _, over, _, info = self.step(draw.choice(legal))
                texts |= {observation, *legal}
                if over:
                    break
        return sorted(texts)

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """Let the game draw from generators of its own."""
        with _drawing:
            others = random.getstate(), np.random.get_state()  # noqa: NPY002
            _set(*self._generators)
            try:
                yield
            finally:
                self._generators = random.getstate(), np.random.get_state()  # noqa: NPY002
                _set(*others)

    def _shown(self) -> tuple[str, dict[str, Any]]:
        """The game's new messages as one text, and `info`, with the rules if the game has sent them."""
        _, messages = self._game.get_observation()
        texts = [text for _, text, kind in messages if kind not in (self._kinds.PROMPT, self._kinds.PLAYER_ACTION)]
        rules = "\n".join(text for _, text, kind in messages if kind == self._kinds.PROMPT)
        info: dict[str, Any] = {"rules": rules.strip()} if rules else {}
        refused = [text for _, text, kind in messages if kind == self._kinds.GAME_ADMIN]
        if refused:
            info["action_error"] = refused[-1]
        stated = [line for text in (rules, *texts) for line in _STATED.findall(text)]
        if stated and not self._actions:
            self._legal = _listed(stated[-1])
        if self._legal:
            info["legal_actions"] = self._legal
        return "\n".join(text.strip("\n") for text in texts), info


def _listed(line: str) -> list[str]:
    """The actions of a line such as `[up], [down]` or `up, down`."""
    bracketed = re.findall(r"\[([^\]]+)\]", line)
    return bracketed or [word.strip(" .'\"") for word in line.split(",")]


def _set(state: Any, numpy_state: Any) -> None:
    random.setstate(state)
    np.random.set_state(numpy_state)  # noqa: NPY002


if "TextArena-v0" not in gymnasium.registry:
    gymnasium.register("TextArena-v0", entry_point=f"{__name__}:TextArena")
