"""MiniGrid in words: `swe_trainers.games.minigrid:MiniGridText-v0`.

The mission is `info["system_prompt"]`. The observation says where the agent looks, and what it sees from there, one
thing a line: the nearest wall on each side, then every object, as BabyAI-Text does (Carta et al. 2023).

    facing east
    wall 1 left
    wall 3 forward
    green goal 2 right 2 forward
    holding yellow key
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from swe_trainers.errors import ConfigurationError, install_hint
from swe_trainers.rollout.adapters import AnyText, TextAdapter

__all__ = ["MiniGridWords", "make"]

_COLORS = ("red", "green", "blue", "purple", "yellow", "grey")
_OBJECTS = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent")
_DOORS = ("open", "closed", "locked")
_DIRECTIONS = ("east", "south", "west", "north")
_NOT_LISTED = ("unseen", "empty", "wall", "floor", "agent")
_SIDES = (("left", -1, 0), ("right", 1, 0), ("forward", 0, -1))


class MiniGridWords(gymnasium.Wrapper[str, int, Any, int], gymnasium.utils.RecordConstructorArgs):
    """Writes what a MiniGrid environment observes as words.

    Args:
        env: whose observation has an `image` of the agent's view, its `direction` and the `mission`.

    Raises:
        ConfigurationError: it observes something else.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)
        space = env.observation_space
        if not isinstance(space, spaces.Dict) or not {"image", "direction", "mission"} <= set(space):
            raise ConfigurationError(f"MiniGridWords: the environment observes {space}, expected MiniGrid's dictionary")
        self._mission: Any = space["mission"]
        self._size = max(space["image"].shape or (0,))
        self.observation_space = AnyText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode; `info["system_prompt"]` is the mission."""
        inner: gymnasium.Env[Any, int] = self.env
        seen, info = inner.reset(seed=seed, options=options)
        return _words(seen), {**info, "system_prompt": seen["mission"]}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an action by its number."""
        inner: gymnasium.Env[Any, int] = self.env
        seen, reward, terminated, truncated, info = inner.step(action)
        return _words(seen), float(reward), terminated, truncated, info

    def vocabulary(self) -> list[str]:
        """Every word of observations and missions."""
        space = self._mission
        placed = space.ordered_placeholders or []
        missions = [space.mission_func(*(words[0] for words in placed)), *(word for words in placed for word in words)]
        views = [*_COLORS, *_OBJECTS, *_DOORS, *_DIRECTIONS, *(name for name, *_ in _SIDES), "facing", "holding"]
        return [*views, *map(str, range(1, self._size)), *missions, "\n", " "]


def make(game: str = "MiniGrid-Empty-5x5-v0", **kwargs: Any) -> gymnasium.Env[str, str]:
    """A MiniGrid environment that is read and played in words.

    Args:
        game: its id.
        **kwargs: for `gymnasium.make`.

    Raises:
        ConfigurationError: MiniGrid is not installed.
    """
    try:
        import minigrid  # noqa: F401 - registers its environments
        from minigrid.core.actions import Actions
    except ImportError as error:
        raise ConfigurationError(f"MiniGrid is not installed. {install_hint('games')}") from error
    env = gymnasium.make(game, disable_env_checker=True, **kwargs)
    return TextAdapter(MiniGridWords(env), actions=[action.name for action in Actions])


def _words(seen: dict[str, Any]) -> str:
    """What is seen from the middle of the view's last row, where the agent stands and holds what it carries."""
    image: NDArray[np.uint8] = seen["image"]
    width, height, _ = image.shape
    x, y = width // 2, height - 1
    lines = [f"facing {_DIRECTIONS[int(seen['direction'])]}"]
    for side, dx, dy in _SIDES:
        for steps in range(1, max(width, height)):
            column, row = x + dx * steps, y + dy * steps
            if not (0 <= column < width and row >= 0) or _OBJECTS[image[column, row, 0]] == "unseen":
                break
            if _OBJECTS[image[column, row, 0]] == "wall":
                lines.append(f"wall {steps} {side}")
                break
    for row in range(y, -1, -1):  # the nearest first
        for column in range(width):
            thing = _thing(image[column, row])
            if thing and (column, row) != (x, y):
                lines.append(f"{thing} {_place(column - x, y - row)}")
    held = _thing(image[x, y])
    return "\n".join([*lines, *([f"holding {held}"] if held else [])])


def _thing(cell: NDArray[np.uint8]) -> str:
    """An object, its colour and state; empty for what is not listed."""
    name, color, state = _OBJECTS[cell[0]], _COLORS[cell[1]], int(cell[2])
    if name in _NOT_LISTED:
        return ""
    return f"{_DOORS[state]} {color} door" if name == "door" else f"{color} {name}"


def _place(right: int, forward: int) -> str:
    sides = [f"{abs(right)} {'right' if right > 0 else 'left'}"] if right else []
    return " ".join([*sides, *([f"{forward} forward"] if forward else [])])


if "MiniGridText-v0" not in gymnasium.registry:
    gymnasium.register("MiniGridText-v0", entry_point=f"{__name__}:make")
