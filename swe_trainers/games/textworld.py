"""TextWorld's games: `swe_trainers.games.textworld:TextWorld-v0`.

`tw-make` makes the games, and so does `coin_collectors`. Each episode plays one of them, chosen by the seed. What can be done
at each moment is in `info["legal_actions"]`, which `rollout.constrained` samples from.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from glob import glob
from pathlib import Path
from typing import Any

import gymnasium

from swe_trainers.errors import ConfigurationError
from swe_trainers.rollout.adapters import AnyText

__all__ = ["TextWorld", "coin_collectors"]

_META = ("quit", "q", "restart", "restore", "save", "script", "transcript", "undo", "verify", "version")
"""Commands to the interpreter rather than to the game: some ask for a file, or end it."""
_REPLIES = (
    "You can't go that way. That's not a verb I recognise. You can't see any such thing. I beg your pardon? "
    "I didn't understand that sentence. I only understood you as far as wanting to. You pick up from the ground. "
    "You are carrying: nothing. Taken. Dropped. You drop on the ground. Your score has just gone up by one point. "
    "That was a rhetorical question. "
    "That is a command to the interpreter, not to the game."
)
_making = threading.Lock()  # TextWorld's generator keeps its grammar in module variables


class TextWorld(gymnasium.Env[str, str]):
    """Plays TextWorld games.

    The observation is the room's description at reset, then what the game answers. The reward is what the score rose by.

    Args:
        games: files that end in `.z8`, each with its `.json` beside it: a folder, a pattern, or a list of files.
        objective: what the game asks for is `info["system_prompt"]`.
        verbs: `info["legal_actions"]` lists the commands alone that begin with one of these; None lists all.

    Raises:
        ConfigurationError: TextWorld is not installed, or there are no games.
    """

    observation_space = AnyText()
    action_space = AnyText()

    def __init__(
        self, games: str | Sequence[str], *, objective: bool = True, verbs: Sequence[str] | None = None
    ) -> None:
        self._textworld = _textworld()
        self._games = _files(games)
        self._objective, self._verbs = objective, verbs
        self._loaded, self._game = "", None
        self._score = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start the game that follows from the seed."""
        super().reset(seed=seed)
        path = self._games[int(self.np_random.integers(len(self._games)))]
        if path != self._loaded:
            self.close()
            asked = self._textworld.EnvInfos(admissible_commands=True, description=True, objective=True, score=True)
            self._game, self._loaded = self._textworld.start(path, asked), path
        state = self._game.reset()  # type: ignore[attr-defined]
        self._score = state.score
        prompt = {"system_prompt": _text(state.objective)} if self._objective else {}
        return _text(state.description), {**self._info(state), **prompt}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Enter a command: its first line, without what is not printable ASCII."""
        command = _command(action)
        if command.startswith("tw-") or (command.split() or [""])[0] in _META:
            return (
                "That is a command to the interpreter, not to the game.",
                0.0,
                False,
                False,
                {"legal_actions": self._legal, "action_error": command},
            )
        state, score, done = self._game.step(command)  # type: ignore[attr-defined]
        reward, self._score = float(score - self._score), score
        return _text(state.feedback), reward, bool(done), False, self._info(state)

    def close(self) -> None:
        """End the game's interpreter."""
        if self._game is not None:
            self._game.close()
            self._loaded, self._game = "", None

    def vocabulary(self) -> list[str]:
        """Words of the games' descriptions and commands, and common answers. An answer may have others: a model of words
        needs `model.words`, so that it reads those as unknown.
        """
        texts = {_REPLIES, "\n", " "}
        for path in self._games:
            game = self._textworld.Game.load(str(Path(path).with_suffix(".json")))
            texts.update(game.possible_commands, game.verbs, game.entity_names, [game.objective])
            texts.update(f"{info.desc} {info.name}" for info in game.infos.values())
        return sorted(texts)

    def _info(self, state: Any) -> dict[str, Any]:
        commands = sorted(state.admissible_commands)
        self._legal = [each for each in commands if self._verbs is None or each.startswith(tuple(self._verbs))]
        return {"legal_actions": self._legal}


def coin_collectors(folder: Path, *, level: int = 105, seeds: Sequence[int] = range(50)) -> None:
    """Make games of TextWorld's coin collector (Yuan et al. 2018), those that are missing; about two seconds each.

    Args:
        folder: for the games.
        level: 1 to 100 is as many rooms in a row; 101 to 200 has dead ends beside 1 to 100 rooms, 201 to 300 two a room.
        seeds: a game each.

    Raises:
        ConfigurationError: TextWorld is not installed, or it has no such level.
    """
    textworld = _textworld()
    from textworld.challenges.tw_coin_collector import coin_collector

    if not 1 <= level <= 300:
        raise ConfigurationError(f"level: got {level}, expected 1 to 300")
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        path = folder / f"coin-{level}-{seed}.z8"
        if path.exists():
            continue
        options = textworld.GameOptions()
        options.seeds, options.path = seed, str(path.with_name(f".{path.name}"))
        options.grammar.theme, options.grammar.only_last_action = "basic", True
        options.force_recompile = True
        with _making:
            made = Path(textworld.generator.compile_game(coin_collector.make({"level": level}, options), options))
        made.with_suffix(".ni").unlink(missing_ok=True)
        made.with_suffix(".json").replace(path.with_suffix(".json"))
        made.replace(path)


def _textworld() -> Any:
    try:
        import textworld
        import textworld.generator
    except ImportError as error:
        raise ConfigurationError("TextWorld is not installed. Try: pip install 'swegym-env[games]'") from error
    return textworld


def _files(games: str | Sequence[str]) -> list[str]:
    if isinstance(games, str):
        found = sorted(glob(str(Path(games).expanduser() / "*.z8") if Path(games).expanduser().is_dir() else games))
    else:
        found = [str(game) for game in games]
    missing = [path for path in found if not (Path(path).is_file() and Path(path).with_suffix(".json").is_file())]
    if missing or not found:
        what = f"{missing[0]} is missing, or the .json beside it" if missing else f"{games}: no game is there"
        raise ConfigurationError(f"games: {what}. Try: tw-make tw-coin_collector --level 5 --output games/1.z8")
    return found


def _command(action: str) -> str:
    line = next(iter(action.strip().splitlines()), "")
    return "".join(c for c in line if " " <= c <= "~").strip().lower()[:200]


def _text(answer: str) -> str:
    """An answer without titles, the prompt and the status line after it, and without empty lines."""
    lines = re.split(r"\n?>\s*-=|\s*\*\*\* The End \*\*\*|\n>", answer)[0].splitlines()
    return "\n".join(line.strip() for line in lines if line.strip() and not line.startswith("-="))


if "TextWorld-v0" not in gymnasium.registry:
    gymnasium.register("TextWorld-v0", entry_point=TextWorld)
