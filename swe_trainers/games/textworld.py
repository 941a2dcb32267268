"""TextWorld's games: `swe_trainers.games.textworld:TextWorld-v0`.

Each episode plays one of some games, chosen by the seed. What can be done at each moment is in `info["legal_actions"]`,
which `rollout.constrained` samples from. `tw-make` makes games. Those of the coin collector are made by

    python -m swe_trainers.games.textworld FOLDER --level 105 --games 50

with FOLDER/texts.jsonl: what is read and written in them, which a tokenizer can be trained on.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import Any

import gymnasium

from swe_trainers.errors import ConfigurationError, install_hint
from swe_trainers.files import write_whole
from swe_trainers.rollout.adapters import AnyText

__all__ = ["TextWorld", "coin_collectors"]

_META = ("quit", "q", "restart", "restore", "save", "script", "transcript", "undo", "verify", "version")
"""Commands to the interpreter rather than to the game: some ask for a file, or end it."""
_LONGEST = 160  # characters of a command; the interpreter takes no more than 200
_STEPS = 25  # of an episode for texts.jsonl
_REPLIES = (
    "You can't go that way. That's not a verb I recognise. You can't see any such thing. I beg your pardon? "
    "I didn't understand that sentence. I only understood you as far as wanting to. You pick up from the ground. "
    "You are carrying: nothing. Taken. Dropped. You drop on the ground. Your score has just gone up by one point. "
    "That was a rhetorical question. There is on the floor. "
    "That is a command to the interpreter, not to the game."
)
_parsing = threading.Lock()
"""Held while a game is made or loaded: TextWorld's parser keeps its state in module variables."""


class TextWorld(gymnasium.Env[str, str]):
    """Plays TextWorld games.

    The observation is the room's description at reset, then what the game answers. The reward is by how much the score
    rose.

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
        self._loaded, self._score = "", 0
        self._game: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start the game that follows from the seed."""
        super().reset(seed=seed)
        path = self._games[int(self.np_random.integers(len(self._games)))]
        if path != self._loaded:
            self.close()
            asked = self._textworld.EnvInfos(admissible_commands=True, objective=True, score=True)
            with _parsing, _quiet():
                self._game, self._loaded = self._textworld.start(path, asked), path
        state = self._game.reset()
        self._score = state.score
        prompt = {"system_prompt": _text(state.objective)} if self._objective else {}
        opening = state.feedback
        first_room = opening.find("-=")  # before it are a title of 20 lines and the objective
        return _text(opening[max(0, first_room) :]), {**self._info(state), **prompt}

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
        state, score, done = self._game.step(command)
        reward, self._score = float(score - self._score), score
        return _text(state.feedback), reward, bool(done), False, self._info(state)

    def close(self) -> None:
        """End the game's interpreter."""
        if self._game is not None:
            self._game.close()
            self._loaded, self._game = "", None

    def vocabulary(self) -> list[str]:
        """Words of the games' descriptions and commands, and common answers.

        An answer may have others: a model of words needs `model.words`, so that it reads those as unknown.
        """
        texts = {_REPLIES, "\n", " "}
        for path in self._games:
            with _parsing:
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
        folder: for the games, and for `texts.jsonl`: what is read and written in an episode of each.
        level: 1 to 100 is as many rooms in a row; 101 to 200 has a dead end beside each of 1 to 100, 201 to 300 two.
        seeds: a game each.

    Raises:
        ConfigurationError: TextWorld is not installed, or it has no such level.
    """
    textworld = _textworld()
    from textworld.challenges.tw_coin_collector import coin_collector

    if not 1 <= level <= 300:
        raise ConfigurationError(f"level: got {level}, expected 1 to 300")
    folder.mkdir(parents=True, exist_ok=True)
    texts, paths = folder / "texts.jsonl", [folder / f"coin-{level}-{seed}.z8" for seed in seeds]
    missing = [(seed, path) for seed, path in zip(seeds, paths, strict=True) if not path.exists()]
    for seed, path in missing:
        options = textworld.GameOptions()
        options.seeds, options.path = seed, str(path.with_name(f".{path.name}"))
        options.grammar.theme, options.grammar.only_last_action = "basic", True
        options.force_recompile = True
        with _parsing, _quiet():
            made = Path(textworld.generator.compile_game(coin_collector.make({"level": level}, options), options))
        made.with_suffix(".ni").unlink(missing_ok=True)
        made.with_suffix(".json").replace(path.with_suffix(".json"))
        made.replace(path)
    if missing or not texts.exists():
        lines = [json.dumps({"text": text}) for game in _files(str(folder)) for text in _episode(game)]
        write_whole(texts, "\n".join(lines) + "\n")


def _episode(path: str) -> Iterator[str]:
    """The observations and commands of an episode of random commands that move or take something."""
    env, draw = TextWorld([path], verbs=("go", "take")), random.Random(0)
    observation, info = env.reset(seed=0)
    yield observation
    for _ in range(_STEPS):
        command = draw.choice(info["legal_actions"])
        observation, _, over, _, info = env.step(command)
        yield from (command, observation)
        if over:
            break
    env.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m swe_trainers.games.textworld`."""
    parser = argparse.ArgumentParser(description="Make games of TextWorld's coin collector.")
    parser.add_argument("folder", type=Path, help="for the games")
    parser.add_argument("--level", type=int, default=105, help="1 to 300; 101 to 200 have a dead end beside each room")
    parser.add_argument("--games", type=int, default=50, help="how many")
    parser.add_argument("--first-seed", type=int, default=0, help="of the first; other seeds are other games")
    options = parser.parse_args(arguments)
    try:
        seeds = range(options.first_seed, options.first_seed + options.games)
        coin_collectors(options.folder, level=options.level, seeds=seeds)
    except ConfigurationError as error:
        parser.error(str(error))


def _textworld() -> Any:
    try:
        import textworld
        import textworld.generator
    except ImportError as error:
        raise ConfigurationError(f"TextWorld is not installed. {install_hint('games')}") from error
    return textworld


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Jericho's warning that it does not know a game by name, which no game of TextWorld's is."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is not fully supported")
        yield


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
    return "".join(c for c in line if " " <= c <= "~").lower()[:_LONGEST].strip()


def _text(answer: str) -> str:
    """An answer without titles, the prompt and the status line after it, and without empty lines."""
    lines = re.split(r"\n?>\s*-=|\s*\*\*\* The End \*\*\*|\n>", answer)[0].splitlines()
    return "\n".join(line.strip() for line in lines if line.strip() and not line.startswith("-="))


if "TextWorld-v0" not in gymnasium.registry:
    gymnasium.register("TextWorld-v0", entry_point=f"{__name__}:TextWorld")

if __name__ == "__main__":
    main()
