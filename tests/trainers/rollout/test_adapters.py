"""Gymnasium's own environments in words."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv

from swe_trainers.errors import ConfigurationError
from swe_trainers.model.tokenizers import WordTokenizer
from swe_trainers.rollout.adapters import AnyText, TextAdapter
from swe_trainers.rollout.environments import ContractError

COMPASS = ("left", "down", "right", "up")
CART_RANGE = [(-2.4, 2.4), (-3.0, 3.0), (-0.21, 0.21), (-3.0, 3.0)]


def frozen_lake(**options: Any) -> TextAdapter:
    return TextAdapter(gymnasium.make("FrozenLake-v1", is_slippery=False), actions=COMPASS, **options)


def test_discrete_actions_are_played_by_their_words() -> None:
    env = frozen_lake()
    assert env.reset(seed=0)[0] == "0"
    path = ["down", "down", "right", "right", " down\n", "right"]
    steps = [env.step(word) for word in path]
    assert [step[0] for step in steps] == ["4", "8", "9", "10", "14", "15"]
    assert steps[-1][1:4] == (1.0, True, False)


def test_unknown_word_costs_the_penalty_and_takes_no_step() -> None:
    env = frozen_lake(illegal_penalty=0.25)
    env.reset(seed=0)
    env.step("down")
    observation, reward, terminated, truncated, info = env.step("sideways")
    assert (observation, reward, terminated, truncated) == ("illegal 4", -0.25, False, False)
    assert info["action_error"] == "sideways"
    assert env.step("down")[0] == "8"


def test_fallback_action_replaces_an_unknown_word_and_is_reported() -> None:
    env = frozen_lake(illegal_penalty=0.5, fallback="down")
    env.reset(seed=0)
    observation, reward, _, _, info = env.step("")
    assert (observation, reward, info["action_error"]) == ("illegal 4", -0.5, "")


class Fixed(gymnasium.Env[Any, Any]):
    """Observes given things in turn; actions start at 5."""

    action_space = spaces.Discrete(2, start=5)

    def __init__(self, space: spaces.Space[Any], observations: list[Any]) -> None:
        self.observation_space, self.left, self.played = space, list(observations), []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.left.pop(0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.played.append(action)
        return self.left.pop(0), 0.0, not self.left, False, {}


class Spoken(Fixed):
    """Observes texts, of which it knows all words."""

    def vocabulary(self) -> list[str]:
        return ["a wall", "a door"]


def test_texts_stay_as_they_are_and_their_words_are_in_the_vocabulary() -> None:
    inner = Spoken(AnyText(), ["a wall", "a door  ahead"])
    env = TextAdapter(inner, actions=["go", "wait"])
    assert env.reset()[0] == "a wall"
    assert env.step("wait")[0] == "a door  ahead" and inner.played == [6]
    assert {"a wall", "a door", "go", "wait"} <= set(env.vocabulary())
    assert set(TextAdapter(Fixed(AnyText(), []), actions=["go", "wait"]).vocabulary()) == {"go", "wait", "illegal", " "}
    with pytest.raises(ConfigurationError, match="box_range has no effect on AnyText"):
        TextAdapter(inner, box_range=[(0, 1)])


@pytest.mark.parametrize(
    ("space", "options", "observation", "text"),
    [
        (spaces.Discrete(3, start=7), {}, np.int64(9), "9"),
        (spaces.MultiDiscrete([3, 20]), {}, np.array([2, 11]), "2 11"),
        (spaces.MultiBinary(3), {}, np.array([1, 0, 1], dtype=np.int8), "1 0 1"),
        (spaces.Tuple([spaces.Discrete(32), spaces.Discrete(2)]), {}, (21, 1), "21 1"),
        (spaces.Box(0, 9, (2,), np.int64), {}, np.array([4, 9]), "4 9"),
        (spaces.Box(-1, 1, (3,)), {"bins": 4}, np.array([-1.0, 0.1, 1.0], np.float32), "0 2 3"),
        (
            spaces.Box(-np.inf, np.inf, (2,)),
            {"bins": 2, "box_range": [(-1, 1), (0, 10)]},
            np.array([-5.0, 99.0]),
            "0 1",
        ),
    ],
)
def test_observations_are_written_as_integers(space: Any, options: Any, observation: Any, text: str) -> None:
    inner = Fixed(space, [observation, observation])
    env = TextAdapter(inner, **options)
    assert env.reset()[0] == text
    assert env.step("1")[0] == text
    assert inner.played == [6]
    assert set(text.split()) <= set(env.vocabulary())


def test_bins_are_those_of_numpy_at_edges_and_outside_too() -> None:
    edges = np.linspace(-2.4, 2.4, 9)[1:-1]
    near = np.concatenate([edges, np.nextafter(edges, -9), np.linspace(-3, 3, 101), [np.inf, -np.inf, np.nan]])
    numbers = [np.array([number]) for number in (*near, *near.astype(np.float32))]
    env = TextAdapter(Fixed(spaces.Box(-np.inf, np.inf, (1,)), numbers), bins=8, box_range=[(-2.4, 2.4)])
    assert [env.reset()[0] for _ in numbers] == [str(np.digitize(number[0], edges)) for number in numbers]


def test_integers_without_useful_bounds_need_a_range() -> None:
    space = spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (2,), np.int64)
    with pytest.raises(ConfigurationError, match=r"too many integers.*box_range"):
        TextAdapter(Fixed(space, []))
    env = TextAdapter(Fixed(space, [np.array([-7, 99])]), box_range=[(0, 10), (0, 10)], bins=2)
    assert env.reset()[0] == "0 1" and {"0", "1"} <= set(env.vocabulary())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("FrozenLake-v1", {}),
        ("CliffWalking-v1", {}),
        ("Taxi-v4", {}),
        ("Blackjack-v1", {}),
        ("CartPole-v1", {"box_range": CART_RANGE}),
    ],
)
def test_vocabulary_contains_every_word_of_observations_and_actions(name: str, options: dict[str, Any]) -> None:
    if name not in gymnasium.registry:
        name = name.replace("v4", "v3")  # Taxi's number changed with Gymnasium 1.3
    env = TextAdapter(gymnasium.make(name), **options)
    tokenizer = WordTokenizer.from_texts(env.vocabulary())
    rng = np.random.default_rng(0)
    for seed in range(5):
        observation, _ = env.reset(seed=seed)
        for step in itertools.count():
            assert tokenizer.decode(tokenizer.encode(observation)) == observation
            word = "nonsense" if step % 7 == 3 else env.actions[rng.integers(len(env.actions))]
            observation, _, terminated, truncated, _ = env.step(word)
            if terminated or truncated or step > 60:
                break
    env.close()


@pytest.mark.filterwarnings("ignore:.*different from the unwrapped version")
def test_adapter_passes_gymnasium_check_env() -> None:
    check_env(frozen_lake(), skip_render_check=True)
    text = AnyText()
    assert "\ud800 é\n" * 1000 in text
    assert 3 not in text
    assert text == AnyText()
    assert text != spaces.Text(256)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TextAdapter(gymnasium.make("FrozenLake-v1"), actions=("a", "b")), "4 actions"),
        (lambda: TextAdapter(gymnasium.make("FrozenLake-v1"), actions=("a", "b", "c", "a")), "4 actions"),
        (lambda: frozen_lake(fallback="sideways"), "'sideways' is not one of left"),
        (lambda: frozen_lake(box_range=[(0, 1)]), "no effect"),
        (lambda: TextAdapter(gymnasium.make("CartPole-v1")), r"Try: box_range=\[\(LOW, HIGH\), …\], 4 pairs"),
        (lambda: TextAdapter(gymnasium.make("CartPole-v1"), box_range=[(0, 1)]), "1 entries, the observation 4"),
        (lambda: TextAdapter(gymnasium.make("Pendulum-v1")), "expected Discrete"),
        (lambda: TextAdapter(Fixed(spaces.Dict({"a": spaces.Discrete(2)}), [])), "is not supported"),
    ],
)
def test_unsupported_spaces_are_rejected(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


class Returning(gymnasium.Env[Any, Any]):
    """Returns what it was given, whatever it is."""

    observation_space, action_space = spaces.Discrete(3), spaces.Discrete(2, start=5)

    def __init__(self, reset: Any = (0, {}), step: Any = (1, 0.5, False, False, {})) -> None:
        self.of_reset, self.of_step = reset, step

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.of_reset

    def step(self, action: int) -> Any:
        return self.of_step


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Returning(reset=0), r"reset returned int, expected \(observation, info\)"),
        (Returning(reset=(0, None)), "reset: info is NoneType, expected dict"),
        (Returning(reset=(None, {})), r"the observation is None, which is not of Discrete\(3\)"),
        (Returning(step=(1, 0.5, False, {})), "step returned 4 values, expected"),
        (Returning(step=(1, None, True, False, {})), "the reward is NoneType, expected a finite number"),
        (Returning(step=(1, np.array([0.5]), True, False, {})), "the reward is ndarray, expected a finite number"),
        (Returning(step=(1, 0.5, True, False, None)), "step: info is NoneType, expected dict"),
        (Returning(step=("right", 0.5, True, False, {})), "the observation is 'right', which is not of Discrete"),
    ],
)
def test_what_an_environment_returns_wrongly_is_named(env: Returning, message: str) -> None:
    def play(adapter: TextAdapter) -> None:
        adapter.reset()
        adapter.step("0")

    with pytest.raises(ContractError, match=message):
        play(TextAdapter(env))


@pytest.mark.parametrize("numbers", [[4], [5, 7], [-1], ["left"]])
def test_legal_actions_that_do_not_exist_are_an_error_and_not_other_actions(numbers: list[Any]) -> None:
    adapter = TextAdapter(Returning(reset=(0, {"legal_actions": numbers})))
    with pytest.raises(ConfigurationError, match="expected numbers of actions from 5 to 6"):
        adapter.reset()


def test_shared_memory_of_async_vector_env_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match="shared_memory=False") as caught:
        AsyncVectorEnv([frozen_lake, frozen_lake])
    assert "\n" not in str(caught.value) and "Try: AsyncVectorEnv(…, shared_memory=False)" in str(
        caught.value.__cause__
    )
    envs = AsyncVectorEnv([frozen_lake, frozen_lake], shared_memory=False)
    envs.reset(seed=0)
    assert tuple(envs.step(("down", "right"))[0]) == ("4", "1")
    envs.close()
