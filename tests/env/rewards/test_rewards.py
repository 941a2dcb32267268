"""Rewards and limits as wrappers, on real episodes."""

import math
from itertools import permutations

import gymnasium
import pytest

from swegym_env import wrappers
from swegym_env.env import Outcome, SWEBenchEnv
from swegym_env.errors import ConfigurationError, StorageError
from swegym_env.tasks.data import mini_edit
from swegym_env.tasks.datasets import load_tasks
from swegym_env.wrappers import (
    FormatReward,
    PatchSimilarityReward,
    PatchSizePenalty,
    ResolvedReward,
    RewardPart,
    ScoringFunction,
    ShapedReward,
    StepPenalty,
    TestProgressReward,
    TokenLimit,
    TurnLimit,
    WallTimeLimit,
)

TASK = mini_edit.generate(0)
SOURCE = next(iter(TASK.files))
GOLD = f"git apply - <<'END_OF_PATCH'\n{TASK.patch}END_OF_PATCH"
UNDO = f"git checkout -q {SOURCE}"
WRONG = "echo '# no change of meaning' >> " + SOURCE
BREAK = f"echo 'raise SystemExit' > {SOURCE}"


def _env(**arguments):
    return SWEBenchEnv(tasks=[TASK], **{"action_format": "raw", "prompt": "terse", **arguments})


def _steps(env, *actions):
    env.reset(seed=0)
    steps = [env.step(action) for action in actions]
    env.close()
    return steps


def _play(env, *actions):
    return [reward for _, reward, *_ in _steps(env, *actions)]


@pytest.mark.parametrize(("edit", "rewards"), [(GOLD, [0.0, 2.0]), (WRONG, [0.0, -0.5])])
def test_verdict_becomes_the_chosen_reward(edit, rewards):
    assert _play(ResolvedReward(_env(), success=2.0, failure=-0.5), edit, "submit") == rewards


def test_similarity_of_gold_other_and_empty_patch():
    def play(*actions):
        return _play(PatchSimilarityReward(_env(reward="none")), *actions)[-1]

    assert play(GOLD, "submit") == 1.0
    assert 0.0 < play(WRONG, "submit") < 1.0
    assert play("submit") == -1.0


@pytest.mark.parametrize("limits", [{"patch_bytes": 1000}, {}])  # refused; left out, as it has more than 16 MiB
def test_similarity_of_work_without_a_patch_is_that_of_no_patch(limits):
    env = PatchSimilarityReward(_env(reward="none", limits=limits))
    *_, (_, reward, _, _, info) = _steps(env, "truncate -s 17M large", "submit")
    assert info["patch"].startswith("# ") and reward == -1.0


def test_unresolved_work_earns_the_fraction_of_repaired_tests():
    """One test fails before the fix, so partial repair is seen on a task that needs two."""
    task = next(task for task in load_tasks("mini") if len(task.fail_to_pass) >= 2)
    env = ShapedReward(SWEBenchEnv(tasks=[task], action_format="raw"), factor=0.5, success=3.0, failure=-1.0)
    env.reset(seed=0)
    _, reward, _, _, info = env.step("submit")
    kept = info["pass_to_pass"][0] / info["pass_to_pass"][1]
    assert info["fail_to_pass"][0] == 0 and kept == 1.0
    assert reward == -1.0
    env.reset(seed=0)
    env.step(f"git apply - <<'END_OF_PATCH'\n{task.patch}END_OF_PATCH")
    assert env.step("submit")[1] == 3.0
    env.close()
    turn = type("Turn", (), {"terminated": True, "info": {**info, "fail_to_pass": (1, 2), "pass_to_pass": (3, 4)}})
    assert env.part(turn) == -1.0 + 0.5 * (1 / 2) * (3 / 4)


def test_shaping_factor_that_rewards_failure_is_rejected():
    with pytest.raises(ConfigurationError, match="factor"):
        ShapedReward(_env(), factor=1.5, success=1.0, failure=0.0)


def test_progress_reward_adds_repaired_and_subtracts_broken_tests():
    env = TestProgressReward(_env(reward="none"), weight=2.0, regression_cost=0.5)
    steps = _steps(env, "ls", GOLD, UNDO, GOLD, BREAK, "submit")
    repaired, broken = 1.0, -0.5  # all of FAIL_TO_PASS passes; all of PASS_TO_PASS is broken
    reached = [0.0, repaired, 0.0, repaired, broken, broken]
    assert [step[1] for step in steps] == [2.0 * (b - a) for a, b in zip([0.0, *reached], reached, strict=False)]
    assert steps[1][4]["tests"] == {"fail_to_pass": (1, 1), "pass_to_pass": (len(TASK.pass_to_pass),) * 2}
    assert steps[4][4]["tests"]["fail_to_pass"] == (0, 1)


def test_test_progress_takes_the_final_verdict_from_the_environment():
    steps = _steps(ResolvedReward(TestProgressReward(_env())), GOLD, "submit")
    assert [step[4]["reward"] for step in steps] == [
        {"test_progress": 1.0, "resolved": 0.0},
        {"test_progress": 0.0, "resolved": 1.0},
    ]


def test_patch_size_penalty_grows_up_to_its_limit():
    three_lines = f"printf '# a\\n# b\\n# c\\n' >> {SOURCE}"
    assert _play(PatchSizePenalty(_env(), per_line=0.25, free_lines=1, limit=1.0), three_lines, "submit") == [0.0, -0.5]
    assert _play(PatchSizePenalty(_env(), per_line=0.25, limit=0.5), three_lines, "submit") == [0.0, -0.5]
    assert _play(PatchSizePenalty(_env()), "submit") == [0.0]


def test_step_penalty_and_format_reward():
    env = StepPenalty(FormatReward(_env(), readable=0.5, malformed=-2.0), penalty=0.25)
    assert _play(env, "ls", "", "submit") == [0.25, -2.25, 0.25]


def _length_of_action(turn):
    return len(turn.action) if turn.task.instance_id == TASK.instance_id else -1


def test_custom_function_scores_each_step_or_the_end():
    assert _play(ScoringFunction(_env(), _length_of_action, when="step"), "ls -a", "submit") == [5.0, 6.0]
    assert _play(ScoringFunction(_env(), f"{__name__}:_length_of_action"), "ls -a", "submit") == [0.0, 6.0]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("no_such_module:f", "no_such_module"),
        ("json:nothing", "nothing"),
        ("json", "module:attribute"),
        (f"{__name__}:SOURCE", "expected a function, got"),
    ],
)
def test_missing_scoring_function_is_named(place, message):
    with pytest.raises(ConfigurationError, match=message):
        ScoringFunction(_env(), place)


@pytest.mark.parametrize("given", [math.nan, math.inf, None, "much"])
def test_score_that_is_not_finite_is_rejected(given):
    env = ScoringFunction(_env(), lambda turn: given, when="step", name="mine")
    env.reset(seed=0)
    with pytest.raises(ConfigurationError, match=r"'mine': .* finite .* turn 1"):
        env.step("ls")
    env.close()


def test_reward_does_not_depend_on_wrapper_order():
    """0.1 + 0.2 + 0.3 depends on the order of adding in float64; the parts' sum does not."""
    parts = [
        lambda env: ScoringFunction(env, lambda turn: 0.1, when="step", name="a"),
        lambda env: ScoringFunction(env, lambda turn: 0.2, when="step", name="b"),
        lambda env: ScoringFunction(env, lambda turn: 0.3, when="step", name="c"),
    ]
    found = set()
    for order in permutations(parts):
        env = _env(reward="none")
        for wrap in order:
            env = wrap(env)
        ((_, reward, _, _, info),) = _steps(env, "submit")
        assert info["reward"] == {"a": 0.1, "b": 0.2, "c": 0.3, "environment": 0.0}
        found.add(reward)
    assert found == {math.fsum((0.1, 0.2, 0.3))} and (0.1 + 0.2) + 0.3 != 0.1 + (0.2 + 0.3)


def test_outcome_part_replaces_the_environment_reward():
    assert _steps(StepPenalty(_env()), GOLD, "submit")[-1][4]["reward"] == {"environment": 1.0, "step": -0.01}
    assert _steps(StepPenalty(ResolvedReward(_env())), "submit")[-1][4]["reward"] == {"resolved": -1.0, "step": -0.01}


def test_two_parts_with_one_name_are_rejected():
    with pytest.raises(ConfigurationError, match="'step'"):
        StepPenalty(ResolvedReward(StepPenalty(_env())))


def test_invalid_episode_has_no_reward_parts():
    env = StepPenalty(ResolvedReward(_env(), failure=-1.0))
    env.reset(seed=0)
    env.unwrapped._sandbox.close()
    _, reward, _, truncated, info = env.step("submit")
    assert (reward, truncated, info["valid"], info["reward"]) == (0.0, True, False, {})
    env.close()


def test_episode_that_a_reward_made_invalid_has_the_keys_of_an_invalid_end():
    class Scores(RewardPart):
        def part(self, turn):
            raise StorageError("no space left for the scores")

    for action in ("ls", GOLD, "submit"):  # in an episode, and after its verdict
        env = Scores(_env(), name="scores")
        env.reset(seed=0)
        info = env.step(action)[4]
        reason = "scores: StorageError: no space left for the scores"
        expected = {"end_reason": "error", **vars(Outcome(valid=False, failure_reason=reason))}
        assert {key: info.get(key, "absent") for key in expected} == expected
        env.close()


def test_infrastructure_failure_inside_a_reward_makes_the_episode_invalid():
    class Scores(RewardPart):
        def part(self, turn):
            raise StorageError("no space left for the scores")

    env = StepPenalty(Scores(ResolvedReward(_env()), name="scores"))
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step(GOLD)
    assert (reward, terminated, truncated, info["valid"], info["reward"]) == (0.0, False, True, False, {})
    assert info["failure_reason"] == "scores: StorageError: no space left for the scores"
    assert info["end_reason"] == "error"
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("ls")
    env.close()


@pytest.mark.parametrize(
    "make",
    [
        lambda env, bad: ResolvedReward(env, success=bad),
        lambda env, bad: PatchSimilarityReward(env, malformed=bad),
        lambda env, bad: ShapedReward(env, failure=bad),
        lambda env, bad: PatchSizePenalty(env, per_line=bad),
        lambda env, bad: StepPenalty(env, penalty=bad),
        lambda env, bad: FormatReward(env, malformed=bad),
        lambda env, bad: TestProgressReward(env, weight=bad),
    ],
)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_reward_argument_that_is_not_finite_is_rejected(make, value):
    with pytest.raises(ConfigurationError, match="finite"):
        make(_env(), value)


def test_outcome_rewards_need_an_environment_that_grades():
    for wrap in (ResolvedReward, ShapedReward):
        with pytest.raises(ConfigurationError, match="reward='none'"):
            wrap(_env(reward="none"))


def test_turn_limit_announces_the_last_turn_and_grades():
    steps = _steps(ResolvedReward(TurnLimit(_env(max_turns=None), 3)), "ls", GOLD, "echo more")
    assert "last turn" not in steps[0][0] and steps[1][0].endswith("as it then stands.")
    observation, reward, terminated, truncated, info = steps[2]
    assert (reward, terminated, truncated, info["end_reason"]) == (1.0, True, False, "max_turns")
    assert observation == "more\n[exit code 0]\nNo turns are left."


def test_limit_of_one_turn_is_announced_in_the_prompt():
    env = TurnLimit(_env(), 1)
    assert "last turn" in env.reset(seed=0)[0]
    assert env.step("ls")[4]["end_reason"] == "max_turns"
    assert "last turn" in env.reset(seed=0)[0]
    env.close()


@pytest.mark.parametrize("count", [len, str.split, lambda text: {"input_ids": text.split(), "attention_mask": []}])
def test_tokens_are_counted_by_any_tokenizer_and_end_the_episode(count):
    def tokens(text):
        counted = count(text)
        return (
            counted if isinstance(counted, int) else len(counted["input_ids"] if isinstance(counted, dict) else counted)
        )

    played = [TASK.problem_statement, "echo one two", "one two\n[exit code 0]"]
    env = TokenLimit(ResolvedReward(_env()), sum(map(tokens, played)), count)
    observation, _ = env.reset(seed=0)
    assert "tokens are used up" not in observation
    observation, _, terminated, *_ = env.step("echo one two")
    assert "tokens are used up" in observation and not terminated
    _, reward, terminated, _, info = env.step(GOLD)
    assert (reward, terminated, info["end_reason"]) == (1.0, True, "tokens")
    env.close()


def test_submission_in_the_last_turn_ends_as_submitted():
    assert _steps(TurnLimit(_env(), 1), "submit")[0][4]["end_reason"] == "submitted"


def test_wall_time_limit_truncates_after_an_announced_turn():
    steps = _steps(ResolvedReward(WallTimeLimit(_env(), 0.2)), "sleep 0.25", "echo on")
    assert "time is used up" in steps[0][0]
    _, reward, terminated, truncated, info = steps[1]
    assert (reward, terminated, truncated, info["end_reason"]) == (0.0, False, True, "time")


def test_limits_are_checked():
    for turns in (0, 0.5, "3"):
        with pytest.raises(ConfigurationError, match="max_turns"):
            TurnLimit(_env(), turns)
    with pytest.raises(ConfigurationError, match="max_tokens"):
        TokenLimit(_env(), "5", len)
    for seconds in (math.nan, None):
        with pytest.raises(ConfigurationError, match="seconds"):
            WallTimeLimit(_env(), seconds)
    with pytest.raises(ConfigurationError, match="last_turn"):
        TurnLimit(gymnasium.make("CartPole-v1"), 3)
    env = TokenLimit(_env(), 5, lambda text: None)
    with pytest.raises(ConfigurationError, match="NoneType"):
        env.reset(seed=0)
    env.close()


def test_custom_reward_is_a_class_with_one_method():
    class Politeness(RewardPart):
        def part(self, turn):
            return float("please" in turn.action)

    assert _play(Politeness(_env(), name="politeness"), "echo please", "submit") == [1.0, 0.0]


def test_a_misspelled_wrapper_is_answered_with_the_right_name():
    with pytest.raises(AttributeError, match="no attribute 'PatchSimilarity'; did you mean PatchSimilarityReward"):
        _ = wrappers.PatchSimilarity
