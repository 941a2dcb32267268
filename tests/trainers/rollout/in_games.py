"""MiniGrid, TextWorld and textarena, read and played in words: `scripts/test_adapter.sh games` runs this."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from swe_trainers.cli.main import main
from swe_trainers.errors import ConfigurationError
from swe_trainers.model.tokenizers import WordTokenizer
from swe_trainers.rollout.conformance import check_env
from swe_trainers.rollout.trajectory import read_trajectories


def made(name: str, **kwargs: Any) -> gymnasium.Env[str, str]:
    return gymnasium.make(name, disable_env_checker=True, **kwargs)


def broken_promises(name: str, **kwargs: Any) -> list[str]:
    found = check_env(lambda: made(name, **kwargs), max_steps=10)
    return [f"{each.promise}: {each.detail}" for each in found if each.kept is False]


@pytest.fixture(scope="module")
def coins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two games of four rooms: a chain of two, and a dead end beside each."""
    from swe_trainers.games.textworld import coin_collectors

    folder = tmp_path_factory.mktemp("coins")
    coin_collectors(folder, level=102, seeds=range(2))
    return folder


# --- MiniGrid


def view(rows: list[str], direction: int) -> str:
    """The description for an agent at ^, or holding a key at k; # is a wall, G the goal, L, C and O doors, ? unseen."""
    from swe_trainers.games.minigrid import _words

    cells = {
        " ": (1, 0, 0),
        "#": (2, 5, 0),
        "G": (8, 1, 0),
        "L": (4, 4, 2),
        "C": (4, 0, 1),
        "O": (4, 2, 0),
        "?": (0, 0, 0),
    }
    cells |= {"^": (1, 0, 0), "k": (5, 4, 0), "b": (6, 3, 0)}
    image = np.array([[cells[row[x]] for row in rows] for x in range(len(rows[0]))], dtype=np.uint8)
    return _words({"image": image, "direction": direction})


def test_the_view_names_walls_on_each_side_and_every_object_with_its_place() -> None:
    rows = ["?????", "##L##", "#  b#", "# C #", "# k #"]
    assert view(rows, 3).split("\n") == [
        "facing north",
        "wall 2 left",
        "wall 2 right",
        "closed red door 1 forward",
        "purple ball 1 right 2 forward",
        "locked yellow door 3 forward",
        "holding yellow key",
    ]


def test_a_wall_that_is_not_seen_is_not_named() -> None:
    assert view(["? ?", "? ?", "?^O"], 0) == "facing east\nopen blue door 1 right"


def test_doorkey_is_solved_by_what_the_words_say() -> None:
    """A player that reads nothing but the text picks up the key, opens the door and reaches the goal."""
    import swe_trainers.games.minigrid  # noqa: F401

    env = made("MiniGridText-v0", game="MiniGrid-DoorKey-5x5-v0")
    draw, solved = random.Random(0), 0
    for seed in range(20):
        text, info = env.reset(seed=seed)
        assert info["system_prompt"] == "use the key to open the door and then get to the goal"
        over = False
        while not over:
            text, reward, terminated, truncated, _ = env.step(next_action(text, draw))
            over = terminated or truncated
        solved += reward > 0
    assert solved == 20
    env.close()


def next_action(text: str, draw: random.Random) -> str:
    """A step towards the key, with it to the door, and through that to the goal; a random one where it is not seen."""
    lines = text.split("\n")
    holding, door_is_open = any(line.startswith("holding") for line in lines), "open yellow door" in text
    wanted = ["goal"] if door_is_open else ["goal", "door"] if holding else ["key"]
    things = [line for name in [*wanted, "door"] for line in lines if name in line and not line.startswith("holding")]
    if things and draw.random() < 0.8:
        what, place = things[0], things[0].split()[-4:]
        if what.endswith(("key 1 forward", "locked yellow door 1 forward")):
            return "pickup" if "key" in what else "toggle"
        if "forward" in place and "wall 1 forward" not in lines:
            return "forward"
        return "left" if "left" in place else "right"
    return draw.choice(["left", "right", "forward"])


def test_minigrids_words_are_in_its_vocabulary_and_it_keeps_its_promises() -> None:
    import swe_trainers.games.minigrid  # noqa: F401

    for game in ("MiniGrid-DoorKey-5x5-v0", "MiniGrid-GoToObject-6x6-N2-v0"):
        env = made("MiniGridText-v0", game=game)
        tokenizer, draw = WordTokenizer.from_texts(env.get_wrapper_attr("vocabulary")()), random.Random(1)
        for seed in range(5):
            text, info = env.reset(seed=seed)
            tokenizer.encode(info["system_prompt"])
            for _ in range(30):
                assert tokenizer.decode(tokenizer.encode(text)) == text
                text, *_ = env.step(draw.choice(info["legal_actions"]))
    assert broken_promises("MiniGridText-v0") == []


def test_only_minigrids_observations_are_put_in_its_words() -> None:
    from swe_trainers.games.minigrid import MiniGridWords

    with pytest.raises(ConfigurationError, match=r"observes Discrete\(16\), expected MiniGrid's dictionary"):
        MiniGridWords(gymnasium.make("FrozenLake-v1"))


# --- TextWorld


def coin_env(coins: Path, **options: Any) -> gymnasium.Env[str, str]:
    import swe_trainers.games.textworld  # noqa: F401

    return made("TextWorld-v0", games=str(coins), **options)


def test_a_coin_is_taken_through_the_commands_that_textworld_admits(coins: Path) -> None:
    env, draw = coin_env(coins, verbs=["go", "take"]), random.Random(0)
    rooms = set()
    for seed in range(6):
        text, info = env.reset(seed=seed)
        assert text.startswith("You are in the room") and "-=" not in text and ">" not in text
        assert info["system_prompt"].startswith("The objective is to take the coin")
        rooms.add(text)
        total, over = 0.0, False
        while not over:
            legal = info["legal_actions"]
            assert legal and all(each.startswith(("go ", "take coin")) for each in legal)
            assert {f"go {word}" for word in ("north", "east", "south", "west") if f"to the {word}" in text} <= set(
                legal
            )
            text, reward, over, _, info = env.step("take coin" if "take coin" in legal else draw.choice(legal))
            total += reward
        assert total == 1 and "You pick up the coin" in text
    assert len(rooms) == 2
    env.close()


THREADS = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from swe_trainers.games.textworld import TextWorld
envs = [TextWorld(sys.argv[1]) for _ in range(12)]
with ThreadPoolExecutor(len(envs)) as threads:
    print(json.dumps(list(threads.map(lambda pair: pair[1].reset(seed=pair[0])[0], enumerate(envs)))))
"""


def test_games_of_textworld_are_loaded_on_threads_as_alone(coins: Path) -> None:
    """In a process of its own: TextWorld keeps what it has parsed once."""
    ran = subprocess.run([sys.executable, "-c", THREADS, str(coins)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    env = coin_env(coins)
    assert json.loads(ran.stdout) == [env.reset(seed=seed)[0] for seed in range(12)]
    env.close()


def test_commands_to_textworlds_interpreter_are_refused_and_others_answered(coins: Path) -> None:
    env = coin_env(coins)
    before, _ = env.reset(seed=0)
    for command in ("quit", "QUIT\n", "restart", "save", "tw-extra-infos score"):
        text, reward, over, _, info = env.step(command)
        assert (text, reward, over) == ("That is a command to the interpreter, not to the game.", 0.0, False)
        assert info["action_error"] == command.strip().lower() and info["legal_actions"]
    assert env.step("look")[0] == before
    assert env.step("go up")[0] == "You can't go that way."
    env.close()


def test_textworlds_words_are_in_its_vocabulary_and_it_keeps_its_promises(coins: Path) -> None:
    env, draw = coin_env(coins, verbs=["go", "take"]), random.Random(2)
    tokenizer = WordTokenizer.from_texts(env.get_wrapper_attr("vocabulary")())
    for seed in range(4):
        text, info = env.reset(seed=seed)
        tokenizer.encode(info["system_prompt"])
        while "take coin" not in info["legal_actions"]:
            assert tokenizer.decode(tokenizer.encode(text)) == text
            text, _, _, _, info = env.step(draw.choice(info["legal_actions"]))
        tokenizer.encode(text)
    env.close()
    assert broken_promises("TextWorld-v0", games=str(coins)) == []


def test_games_that_are_not_there_are_an_error_that_says_how_to_make_some(
    coins: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["swe_trainers.games.textworld:TextWorld-v0", "--kwargs", f'{{"games": "{tmp_path}"}}']
    assert main(["check-env", *arguments]) == 2
    assert f"{tmp_path}: no game is there. Try: tw-make" in capsys.readouterr().err
    (alone := tmp_path / "alone.z8").write_bytes(next(coins.glob("*.z8")).read_bytes())
    with pytest.raises(ConfigurationError, match=r"alone.z8 is missing, or the .json beside it"):
        coin_env(alone)


# --- textarena


def arena(game: str, **options: Any) -> gymnasium.Env[str, str]:
    import swe_trainers.games.textarena  # noqa: F401

    return made("TextArena-v0", game=game, **options)


NUMBERS = [str(number) for number in range(1, 21)]


def test_halving_wins_guess_the_number() -> None:
    env = arena("GuessTheNumber-v0", actions=NUMBERS)
    for seed in range(20):
        text, info = env.reset(seed=seed)
        assert text == "" and "between 1 and 20" in info["system_prompt"] and info["legal_actions"] == NUMBERS
        low, high, over = 1, 20, False
        while not over:
            guess = (low + high) // 2
            text, reward, over, _, _ = env.step(str(guess))
            low, high = (guess + 1, high) if "higher" in text else (low, guess - 1)
        assert (reward, text) == (1.0, "Congratulations! You guessed the correct number.")


def test_what_textarena_states_are_the_legal_actions() -> None:
    env = arena("FrozenLake-v0")
    text, info = env.reset(seed=0)
    assert info["legal_actions"] == ["up", "down", "left", "right", "w", "a", "s", "d"] and "|  P  |" in text
    _, info = arena("FifteenPuzzle-v0").reset(seed=0)
    assert "up" not in info["legal_actions"] or len(info["legal_actions"]) in (2, 3, 4)
    legal = arena("2048-v0-ultra-easy").reset(seed=0)[1]["legal_actions"]
    assert legal == ["Up", "Down", "Left", "Right"]
    assert "legal_actions" not in arena("LightsOut-v0").reset(seed=0)[1]


def test_an_invalid_move_is_answered_and_the_second_in_a_row_loses() -> None:
    env = arena("GuessTheNumber-v0")
    env.reset(seed=0)
    text, reward, over, _, info = env.step("hello")
    assert "invalid move" in text and info["action_error"] == text and (reward, over) == (0.0, False)
    text, _, over, _, info = env.step("hello")
    assert over and info["action_error"] == "hello" and text.startswith("Invalid Move")


def test_a_game_draws_from_generators_of_its_own() -> None:
    """Bandits draw at every step; two at once, and the program's own draws between, change nothing."""
    buttons = ["red", "blue", "green", "yellow", "purple"]
    envs = [arena("Bandit-v0", actions=buttons) for _ in range(2)]

    def play(env: gymnasium.Env[str, str], between: Any) -> list[str]:
        texts = [env.reset(seed=3)[0]]
        for number in range(10):
            between()
            texts.append(env.step(buttons[number % 5])[0])
        return texts

    alone = play(envs[0], lambda: None)
    random.seed(7)
    state = random.getstate()
    assert play(envs[1], lambda: (envs[0].step("red"), None)) == alone
    assert random.getstate() == state
    assert len({text.split()[-1] for text in alone[1:]}) == 2  # rewards of 0 and of 1


def test_textarenas_words_are_in_its_vocabulary_and_it_keeps_its_promises() -> None:
    env = arena("GuessTheNumber-v0", actions=NUMBERS)
    tokenizer, draw = WordTokenizer.from_texts(env.get_wrapper_attr("vocabulary")()), random.Random(5)
    text, info = env.reset(seed=1000)
    tokenizer.encode(info["system_prompt"])
    over = False
    while not over:
        text, _, over, _, _ = env.step(draw.choice(NUMBERS))
        assert tokenizer.decode(tokenizer.encode(text)) == text
    for game in ("GuessTheNumber-v0", "FrozenLake-v0", "Bandit-v0"):
        assert broken_promises("TextArena-v0", game=game) == []


def test_games_that_textarena_has_not_got_and_games_for_two_are_errors() -> None:
    with pytest.raises(ConfigurationError, match=r"no 'GuessTheNumber'. Did you mean 'GuessTheNumber-v0'"):
        arena("GuessTheNumber")
    with pytest.raises(ConfigurationError, match="TicTacToe-v0: is not for one player"):
        arena("TicTacToe-v0").reset(seed=0)
    with pytest.raises(ConfigurationError, match="LightsOut-v0: states no actions"):
        arena("LightsOut-v0").get_wrapper_attr("vocabulary")()


@pytest.mark.parametrize("name", ["minigrid", "textworld_coins", "textarena"])
def test_the_examples_play_legal_actions_only(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    options = ["--trainer.max_updates", "1", "--trainer.episodes_per_update", "8", "--environment.max_turns", "6"]
    options += ["--environment.parallel", "8", "--evaluation.episodes", "2", "--save_batch_every", "1"]
    options += ["--output_dir", str(tmp_path / "run"), "--trainer.minibatches", "2"]
    if name == "textworld_coins":
        folder = request.getfixturevalue("coins")
        options += ["--environment.kwargs.games", str(folder), "--model.sentencepiece.vocab_size", "330"]
        options += ["--model.sentencepiece.corpus", str(folder / "texts.jsonl"), "--environment.max_new_tokens", "16"]
    assert main([f"examples/configs/{name}.yaml", "--quiet", *options]) == 0
    (path,) = (tmp_path / "run" / "batches").glob("*.jsonl")
    played = list(read_trajectories(path))
    assert len(played) == 8
    for episode in played:
        assert (
            "action_error" not in episode.info or name == "textarena"
        )  # which refuses a number that was guessed before
        assert all(episode.allowed[turn.start] >= 0 for turn in episode.turns)
