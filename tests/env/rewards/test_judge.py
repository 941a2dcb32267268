"""The judge as a process reward, against a real HTTP server that speaks OpenAI's chat completions."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from swegym_env.env import SWEBenchEnv
from swegym_env.errors import ConfigurationError, InfrastructureError
from swegym_env.rewards.judge import boxed_score
from swegym_env.tasks.data import mini_edit
from swegym_env.wrappers import JudgeReward, ResolvedReward, ScoringFunction

TASK = mini_edit.generate(0)
GOLD = f"git apply - <<'END_OF_PATCH'\n{TASK.patch}END_OF_PATCH"


class Judge(ThreadingHTTPServer):
    """Answers with `answer(prompt, number of requests for this prompt so far)`; keeps the requests in `asked`."""

    daemon_threads = True

    def __init__(self, answer):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer, self.asked, self.lock = answer, [], threading.Lock()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body["messages"][0]["content"]
        with self.server.lock:
            before = sum(asked["messages"][0]["content"] == prompt for asked, *_ in self.server.asked)
            self.server.asked.append((body, self.path, self.headers.get("Authorization")))
        content = self.server.answer(prompt, before)
        if isinstance(content, bytes):  # what is no response of HTTP
            self.wfile.write(content)
            return
        status = content if isinstance(content, int) else 200
        payload = json.dumps({"choices": [{"message": {"content": content}}]} if status == 200 else {"error": "full"})
        self.send_response(status)
        self.end_headers()
        self.wfile.write(payload.encode())

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def judge():
    servers = []

    def serve(answer):
        server = Judge(answer)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return server

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def _env():
    return SWEBenchEnv(tasks=[TASK], action_format="raw", prompt="terse")


def _play(env, *actions):
    env.reset(seed=0)
    steps = [env.step(action) for action in actions]
    env.close()
    return steps


def test_reward_is_outcome_plus_coefficient_times_mean_score(judge):
    def answer(prompt, vote):
        if '<step number="1">' in prompt:
            return ("It helps. \\boxed{1}", "\\boxed{0.5}", "\\boxed{0}")[vote]  # mean 0.5
        return "Not sure \\boxed{0.3}, no: \\boxed{-1}"

    server = judge(answer)
    env = JudgeReward(ResolvedReward(_env()), server.url, "judge-7b", votes=3, coefficient=0.1, api_key="secret")
    steps = _play(env, GOLD, "ls", "submit")
    assert [step[1] for step in steps[:2]] == [0.0, 0.0]
    *_, reward, terminated, _, info = steps[2]
    assert terminated and info["judge"] == {"scores": (0.5, -1.0, -1.0), "votes": 9, "failed_votes": 0}
    assert reward == pytest.approx(1.0 + 0.1 * (0.5 - 1 - 1) / 3)
    assert info["reward"] == {"resolved": 1.0, "judge": pytest.approx(-0.05)}
    body, path, authorization = server.asked[0]
    assert (path, authorization, body["model"]) == ("/v1/chat/completions", "Bearer secret", "judge-7b")


def test_the_judge_sees_issue_history_step_and_result(judge):
    server = judge(lambda prompt, vote: "\\boxed{1}")
    _play(JudgeReward(_env(), server.url, "m", votes=1, history=1), "echo first", "echo second", "echo third", "submit")
    prompts = {body["messages"][0]["content"] for body, *_ in server.asked}
    third = next(prompt for prompt in prompts if '<step number="3">' in prompt)
    assert TASK.problem_statement in third
    history, _, step = third.partition('<step number="3">')
    assert "echo second\n[result]\nsecond\n[exit code 0]" in history and "echo first" not in history
    assert step.startswith("\necho third\n</step>\n\n<result>\nthird\n[exit code 0]")


def test_failed_votes_are_excluded(judge):
    cut_off = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n99\r\n{"
    answers = ["\\boxed{1}", 503, "I cannot say", "\\boxed{7}", "\\boxed{nan}", None, b"220 mail\r\n\r\n", cut_off]
    server = judge(lambda prompt, vote: answers[vote])
    *_, info = _play(JudgeReward(_env(), server.url, "m", votes=8, coefficient=2.0), "submit")[0]
    assert info["judge"] == {"scores": (1.0,), "votes": 8, "failed_votes": 7}
    assert info["reward"] == {"environment": 0.0, "judge": 2.0}


def test_step_without_votes_is_excluded_from_the_mean(judge):
    server = judge(lambda prompt, vote: 500 if '<step number="1">' in prompt else "\\boxed{-0.5}")
    *_, info = _play(JudgeReward(_env(), server.url, "m"), "ls", "submit")[-1]
    assert info["judge"]["scores"] == (None, -0.5) and info["reward"]["judge"] == -0.5


def test_episode_without_votes_is_invalid(judge):
    server = judge(lambda prompt, vote: 500)
    _, reward, terminated, truncated, info = _play(JudgeReward(_env(), server.url, "m"), "submit")[0]
    assert (reward, terminated, truncated, info["valid"]) == (0.0, False, True, False)
    assert "all 3 votes failed" in info["failure_reason"] and "HTTP 500" in info["failure_reason"]


def test_votes_are_awaited_only_at_the_end(judge):
    release = threading.Event()

    def answer(prompt, vote):
        assert release.wait(30)
        return "\\boxed{1}"

    server = judge(answer)
    env = JudgeReward(_env(), server.url, "m", votes=2)
    env.reset(seed=0)
    assert not env.step("ls")[2] and not env.step("ls")[2]  # no vote on these has been given yet
    release.set()
    assert env.step("submit")[4]["judge"]["scores"] == (1.0, 1.0, 1.0)
    env.close()


def test_votes_of_an_abandoned_episode_do_not_affect_the_next(judge):
    server = judge(lambda prompt, vote: "\\boxed{-1}" if "echo left" in prompt.partition("<step")[2] else "\\boxed{1}")
    env = JudgeReward(_env(), server.url, "m", votes=1)
    env.reset(seed=0)
    env.step("echo left")
    env.reset(seed=0)
    assert env.step("submit")[4]["judge"]["scores"] == (1.0,)
    env.close()


def test_custom_judge_prompt_is_used(judge, tmp_path):
    (tmp_path / "mine.j2").write_text("{{ issue | length }} {{ step.action }}")
    server = judge(lambda prompt, vote: "\\boxed{1}")
    _play(JudgeReward(_env(), server.url, "m", votes=1, prompt=tmp_path / "mine.j2"), "submit")
    assert server.asked[0][0]["messages"][0]["content"] == f"{len(TASK.problem_statement)} submit"


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("\\boxed{1}", 1.0),
        ("\\boxed{ -1 } then \\boxed{+0.25}.", 0.25),
        ("\\boxed{1} \\boxed{two}", None),
        ("boxed{1}", None),
        ("\\boxed{-1.01}", None),
        ("\\boxed{inf}", None),
        ("\\boxed{}", None),
        ("", None),
        ("\\boxed{" * 50_000, None),
    ],
)
def test_score_is_the_last_boxed_number(text, score):
    assert boxed_score(text) == score


@pytest.mark.parametrize(
    "arguments",
    [
        {"votes": 0},
        {"coefficient": float("nan")},
        {"url": "localhost:8000"},
        {"timeout_s": 0},
        {"prompt": "nowhere.j2"},
    ],
)
def test_arguments_are_checked(arguments):
    with pytest.raises(ConfigurationError):
        JudgeReward(**{"env": _env(), "url": "http://127.0.0.1:9/v1", "model": "m", **arguments})


def test_a_judge_votes_again_after_another_reward_has_failed(judge):
    server = judge(lambda prompt, vote: r"\boxed{1}")

    def fails_once(turn):
        if not failed:
            failed.append(turn)
            raise InfrastructureError("no connection")
        return 0.0

    failed = []
    env = ScoringFunction(JudgeReward(_env(), server.url, "m", votes=1), fails_once, name="remote")
    env.reset(seed=0)
    assert env.step("submit")[4]["failure_reason"] == "remote: InfrastructureError: no connection"
    env.reset(seed=0)
    assert env.step("submit")[4]["reward"] == {"environment": 0.0, "judge": 1.0, "remote": 0.0}
    env.close()


def test_a_score_is_found_in_time_linear_in_the_answer():
    def seconds(size):
        begun = time.process_time()
        assert boxed_score("\\boxed{" + " " * size) is None
        return time.process_time() - begun

    small, large = (min(seconds(size), seconds(size)) for size in (1 << 9, 1 << 11))
    assert large < 0.025 or large < 10 * small  # less is too short to measure
