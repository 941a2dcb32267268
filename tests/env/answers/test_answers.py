"""The task types with one answer: answers, grading, and the contract that they share with `SWEBench-v0`."""

import contextlib
import time

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import swegym_env  # noqa: F401 - registers the environments
from swegym_env.agent.search_replace import Block, write_blocks
from swegym_env.answers.answer import MalformedAnswerError
from swegym_env.answers.file_repair import FileRepair, FileRepairEnv
from swegym_env.answers.kodcode import KodCodeEnv
from swegym_env.answers.vulnerability import VulnerabilityDetectionEnv
from swegym_env.env import SWEBenchEnv
from swegym_env.errors import ConfigurationError, UnknownTaskError
from swegym_env.recording.record import read_record
from swegym_env.tasks.datasets import load_examples
from swegym_env.vector import ThreadVectorEnv
from swegym_env.wrappers import PatchSimilarityReward, RecordTrajectory, ResolvedReward, StepPenalty, TurnLimit

IDS = ("FileRepair-v0", "KodCode-v0", "VulnerabilityDetection-v0")
REPAIR = load_examples(FileRepair, "file-repair-mini")[0]


def _repair(example=REPAIR):
    """A block that replaces the whole file by its solution."""
    return write_blocks([Block(example.path, example.source, example.solution)])


def _code(text):
    return f"<think>I could write ```python\nwrong\n``` here.</think>\nIt is:\n\n```python\n{text}\n```\n"


@pytest.mark.filterwarnings("ignore:.*not within the:UserWarning")
@pytest.mark.parametrize("name", IDS)
def test_the_environment_passes_the_gymnasium_checker(name):
    env = gymnasium.make(name)
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("form", ["{}", "```python\n{}\n```", "<answer>{}</answer>", f"{REPAIR.path}\n{{}}"])
def test_an_answer_with_half_of_a_surrogate_pair_is_wrong(name, form):
    block = "<<<<<<< SEARCH\n=======\nx = '\ud83d'\n>>>>>>> REPLACE" if REPAIR.path in form else "x = '\ud83d'"
    env = gymnasium.make(name)
    env.reset(options={"instance_id": REPAIR.instance_id} if name == IDS[0] else None, seed=0)
    _, reward, terminated, _, info = env.step(form.format(block))
    assert (reward, terminated, info["valid"], info["resolved"]) == (0.0, True, True, False)
    env.close()


@pytest.mark.parametrize("name", ["SWEBenchLite-v0", "SWEBenchVerified-v0", "SWEGym-v0"])
def test_named_datasets_are_swe_bench_env_with_another_dataset(name):
    spec = gymnasium.spec(name)
    assert "/" in spec.kwargs["dataset"] and spec.entry_point == gymnasium.spec("SWEBench-v0").entry_point
    env = gymnasium.make(name, dataset="mini-edit", split="train")
    assert isinstance(env.unwrapped, SWEBenchEnv)
    assert env.reset(seed=0)[1]["instance_id"].startswith("mini-edit__train-")
    env.close()


@pytest.mark.parametrize("name", IDS)
def test_shipped_examples_are_selected_by_the_seed(name):
    env = gymnasium.make(name)
    first = env.reset(seed=4)
    assert first[1]["instance_id"] == env.reset(seed=4)[1]["instance_id"]
    assert len({env.reset()[1]["instance_id"] for _ in range(10)}) > 2
    assert first[0] and first[1]["system_prompt"]
    with pytest.raises(UnknownTaskError):
        env.reset(options={"instance_id": "nothing"})
    env.close()


def test_search_replace_blocks_are_graded_by_the_tests():
    env = FileRepairEnv()
    observation, _ = env.reset(options={"instance_id": REPAIR.instance_id})
    assert REPAIR.problem_statement in observation and REPAIR.source.strip() in observation
    assert "\n\n</" not in observation, "the prompt must not add a blank line to the file"
    observation, reward, terminated, truncated, info = env.step(_repair())
    assert (observation, reward, terminated, truncated) == ("Right.", 1.0, True, False)
    assert info["resolved"] and info["end_reason"] == "submitted" and info["patch"] == REPAIR.patch(REPAIR.solution)
    assert info["fail_to_pass"][0] == info["fail_to_pass"][1] > 0 and info["failed_tests"] == ()
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("again")
    env.close()


def test_feedback_on_a_wrong_repair_names_the_failing_tests():
    env = FileRepairEnv(max_turns=2)
    env.reset(options={"instance_id": REPAIR.instance_id})
    line = REPAIR.source.strip().splitlines()[0]
    change = write_blocks([Block(REPAIR.path, line + "\n", line + "  # looked at\n")])
    observation, reward, terminated, _, info = env.step(change)
    assert (reward, terminated) == (0.0, False) and info["patch"] and "resolved" not in info
    assert "These tests do not pass" in observation
    assert env.step(_repair())[1:3] == (1.0, True)
    env.close()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("I do not know.", "No search/replace block"),
        ("<<<<<<< SEARCH\nno such line at all\n=======\nx\n>>>>>>> REPLACE", "not in the file"),
        ("other.py\n<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE", "only the file"),
        ("<<<<<<< SEARCH\nx\n=======\ny\n", "REPLACE"),
        ("<<<<<<< SEARCH\n=======\ny\n>>>>>>> REPLACE", "blank"),
        ("\0\ud800", "No search/replace block"),
    ],
)
def test_a_malformed_repair_is_an_action_error_with_similarity_reward_minus_one(answer, message):
    env = PatchSimilarityReward(FileRepairEnv(reward="none", max_turns=2))
    env.reset(options={"instance_id": REPAIR.instance_id})
    observation, reward, terminated, _, info = env.step(answer)
    assert message in observation and observation == info["action_error"] and not terminated and reward == 0.0
    _, reward, terminated, _, info = env.step(answer)
    assert (reward, terminated, info["end_reason"]) == (-1.0, True, "max_turns")
    env.close()


def test_the_gold_repair_has_similarity_one():
    env = PatchSimilarityReward(FileRepairEnv(reward="none"))
    env.reset(options={"instance_id": REPAIR.instance_id})
    assert env.step(_repair())[1] == 1.0
    env.close()


def test_a_repair_without_tests_is_compared_with_the_solution():
    example = FileRepair(
        "one", "It subtracts.", "a.py", "def f(a, b):\n    return a - b\n", "def f(a, b):\n    return a + b\n"
    )
    for replacement, reward in (("    return (a + b)  # sum\n", 1.0), ("    return b + a\n", 0.0)):
        env = FileRepairEnv(examples=[example])
        env.reset(seed=0)
        _, got, _, _, info = env.step(write_blocks([Block("a.py", "    return a - b\n", replacement)]))
        assert got == reward and info["fail_to_pass"] is None
        env.close()


def test_a_function_is_graded_over_several_turns():
    env = KodCodeEnv(max_turns=3)
    env.reset(seed=1)
    observation, _, terminated, _, info = env.step("```python\nraise SystemExit\n```")
    assert not terminated and "These tests do not pass" in observation and info["action_error"] is None
    observation, _, terminated, _, info = env.step("no code")
    assert not terminated and "```python" in info["action_error"]
    _, reward, terminated, _, info = env.step(_code(env.example.solution))
    assert (reward, terminated, info["resolved"], info["end_reason"]) == (1.0, True, True, "submitted")
    env.close()


def test_every_shipped_vulnerability_is_solved_by_its_label_only():
    env = VulnerabilityDetectionEnv()
    for example in load_examples(type(env.example), "vulnerabilities-mini"):
        for answer, reward in (("vulnerable", example.vulnerable), ("safe", not example.vulnerable)):
            env.reset(options={"instance_id": example.instance_id})
            _, got, terminated, _, info = env.step(f"I think so.\n<answer>{answer}</answer>")
            assert (got, terminated, info["resolved"]) == (float(reward), True, reward)
    env.close()


@pytest.mark.parametrize(
    ("text", "vulnerable"),
    [
        ("<answer> Vulnerable </answer>", True),
        ("<answer>safe</answer> no: <answer>vulnerable</answer>", True),
        ("so \\boxed{yes}", True),
        ("Safe.", False),
        ("<think><answer>vulnerable</answer></think><answer>not vulnerable</answer>", False),
        ("It may be vulnerable", None),
        ("", None),
        ("<answer>" * 20_000, None),
    ],
)
def test_a_binary_answer_is_parsed(text, vulnerable):
    env = VulnerabilityDetectionEnv(max_turns=2)
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step(text)
    if vulnerable is None:
        assert info["action_error"] and not terminated
    else:
        assert terminated and reward == float(vulnerable == env.example.vulnerable)
    env.close()


def test_rewards_limits_and_recordings_work_with_answers(tmp_path):
    env = RecordTrajectory(StepPenalty(ResolvedReward(TurnLimit(KodCodeEnv(max_turns=5), 2))), tmp_path)
    env.reset(seed=0)
    observation, *_ = env.step("nothing")
    assert "last turn" in observation
    _, reward, terminated, _, info = env.step("nothing again")
    assert (reward, terminated, info["end_reason"]) == (-1.01, True, "max_turns")
    assert read_record(env.last_record).task() == env.get_wrapper_attr("task")
    env.close()


@pytest.mark.parametrize("name", IDS)
def test_make_vec_uses_threads(name):
    envs = gymnasium.make_vec(name, num_envs=2)
    assert isinstance(envs, ThreadVectorEnv)
    observations, _ = envs.reset(seed=0)
    assert len(observations) == 2
    assert envs.step(("?", "?"))[2].all()
    envs.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FileRepairEnv(reward="resolve"), "reward"),
        (lambda: KodCodeEnv(max_turns=0), "max_turns"),
        (lambda: KodCodeEnv(sandbox="docker"), "docker"),
        (lambda: VulnerabilityDetectionEnv(examples=[]), "no task"),
        (lambda: KodCodeEnv(render_mode="rgb"), "render_mode"),
        (lambda: gymnasium.make_vec("KodCode-v0", num_envs=0), "num_envs"),
    ],
)
def test_a_wrong_argument_is_named(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize(
    ("name", "begin", "piece"),
    [
        ("KodCode-v0", "", "```python\n"),
        ("KodCode-v0", "", "```\nx\n````\n"),
        ("VulnerabilityDetection-v0", "<answer>", " "),
        ("VulnerabilityDetection-v0", "", "<answer>"),
        ("VulnerabilityDetection-v0", "\\boxed{", " "),
        ("VulnerabilityDetection-v0", "", "\\boxed{ "),
        ("FileRepair-v0", "", "a.py\n<<<<<<< SEARCH\n"),
    ],
)
def test_an_answer_is_read_in_time_linear_in_its_length(name, begin, piece):
    env = gymnasium.make(name, reward="none") if name != IDS[2] else gymnasium.make(name)
    example = env.unwrapped._examples[0]

    def seconds(size):
        begun = time.process_time()
        with contextlib.suppress(MalformedAnswerError):
            env.unwrapped.judge(example, begin + piece * (size // len(piece)))
        return time.process_time() - begun

    small, large = (min(seconds(size), seconds(size)) for size in (1 << 12, 1 << 14))
    assert large < 0.025 or large < 10 * small  # 16 times if it were quadratic; less is too short to measure
    env.close()


@pytest.mark.parametrize("ticks", ["```", "````"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_block_of_code_may_have_longer_fences_and_the_line_ends_of_windows(ticks, end):
    env = KodCodeEnv()
    env.reset(seed=0)
    answer = f"So:\n{ticks}python\n{env.example.solution}\n{ticks}\nThat is it."
    assert env.step(answer.replace("\n", end))[1] == 1.0
    env.close()
