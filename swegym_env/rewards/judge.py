r"""`JudgeReward`: a process reward. A language model, the judge, scores each step while the episode goes on.

Each step is sent to the judge `votes` times, on threads, over any OpenAI-compatible endpoint; the score of a vote is
the number in its last `\boxed{…}`. A vote that fails (no answer, no score, a score outside [-1, 1]) is excluded. At the
end of the episode the wrapper waits for open votes; the part is `coefficient` times the mean over the steps of the mean
of their votes.
"""

from __future__ import annotations

import json
import math
import re
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any

import gymnasium

from swegym_env.agent.observations import shorten
from swegym_env.errors import ConfigurationError, InfrastructureError
from swegym_env.paths import expand
from swegym_env.rewards.part import RewardPart, Turn, check_finite

__all__ = ["JudgeError", "JudgeReward", "boxed_score"]

_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_RESPONSE_BYTES = 4 << 20
_TEMPLATE = Path(__file__).with_name("judge.j2")


class JudgeError(InfrastructureError):
    """All votes of an episode failed: the judge cannot be reached, or its answers have no scores."""


class JudgeReward(RewardPart):
    r"""At the end of an episode, adds `coefficient` times the mean score of its steps, in [-1, 1].

    `info["judge"]` then has `scores` (the mean of each step, None if all its votes failed), `votes` and `failed_votes`.
    If all votes fail, the episode is invalid. A truncated episode is not scored.

    Args:
        url: of the API, such as `http://host:8000/v1`.
        model: its name at the endpoint.
        votes: number of votes per step.
        coefficient: factor of the mean score.
        api_key: sent as bearer token; None: none.
        temperature: of the votes; at 0 they are all equal.
        max_tokens: maximum length of an answer.
        timeout_s: timeout of one vote in seconds.
        history: number of earlier steps that the judge sees.
        text_limit: maximum number of characters that the judge sees of an action, an observation or the issue.
        prompt: path of a Jinja2 template with the variables `issue`, `history` and `step`; None: the shipped one.
        concurrency: maximum number of parallel votes.

    Raises:
        ConfigurationError: an argument is out of range, or `prompt` cannot be read.
    """

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        url: str,
        model: str,
        *,
        votes: int = 3,
        coefficient: float = 1.0,
        api_key: str | None = None,
        temperature: float = 1.0,
        max_tokens: int = 1024,
        timeout_s: float = 120.0,
        history: int = 8,
        text_limit: int = 4_000,
        prompt: str | Path | None = None,
        concurrency: int = 16,
    ) -> None:
        import jinja2
        from jinja2.sandbox import SandboxedEnvironment

        (self._coefficient,) = check_finite(coefficient=coefficient)
        if min(votes, concurrency, max_tokens) < 1 or history < 0 or text_limit < 100 or timeout_s <= 0:
            raise ConfigurationError(
                "JudgeReward: expected at least 1 vote, max_tokens and concurrency, 100 characters, timeout_s above 0, "
                f"got votes={votes}, max_tokens={max_tokens}, concurrency={concurrency}, history={history}, "
                f"text_limit={text_limit}, timeout_s={timeout_s}"
            )
        if not url.startswith(("http://", "https://")):
            raise ConfigurationError(f"JudgeReward: expected a URL such as http://host:8000/v1, got {url!r}")
        super().__init__(env, name="judge")
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {api_key}"} if api_key else {}
        )
        self._request = {"model": model, "temperature": temperature, "max_tokens": max_tokens}
        self._votes, self._timeout_s, self._text_limit = votes, timeout_s, text_limit
        path = expand(prompt) if prompt is not None else _TEMPLATE
        try:
            jinja = SandboxedEnvironment(undefined=jinja2.StrictUndefined, trim_blocks=True)
            self._template = jinja.from_string(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, jinja2.TemplateError) as error:
            raise ConfigurationError(f"prompt of the judge {str(path)!r}: {type(error).__name__}: {error}") from error
        self._prompt = ""
        self._history: deque[dict[str, Any]] = deque(maxlen=history)
        self._open_votes: list[list[Future[float]]] = []
        self._concurrency = concurrency
        self._pool: ThreadPoolExecutor | None = None  # from the first vote to `close`

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Reset the environment; open votes of an abandoned episode are cancelled."""
        self._cancel_votes()
        self._history.clear()
        observation, info = super().reset(seed=seed, options=options)
        self._prompt = observation
        return observation, info

    def part(self, turn: Turn) -> float:
        """Request the votes for this step; at the end of the episode, return the result of all votes."""
        step = {
            "number": turn.number,
            "action": shorten(turn.action, self._text_limit)[0],
            "observation": shorten(turn.observation, self._text_limit)[0],
        }
        issue = shorten(getattr(turn.task, "problem_statement", self._prompt), self._text_limit)[0]
        prompt = self._template.render(issue=issue, history=list(self._history), step=step)
        self._history.append(step)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max_workers=self._concurrency, thread_name_prefix="swegym-judge")
        self._open_votes.append([self._pool.submit(self._vote, prompt) for _ in range(self._votes)])
        if not turn.ended:
            return 0.0
        if turn.truncated:
            self._cancel_votes()
            return 0.0
        return self._coefficient * self._mean_score(turn.info)

    def close(self) -> None:
        """Close the environment and end the threads; a later `reset` begins an episode as usual."""
        self._cancel_votes()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
        super().close()

    def _mean_score(self, info: dict[str, Any]) -> float:
        scores: list[float | None] = []
        failures: list[BaseException] = []
        for votes in self._open_votes:
            errors = [vote.exception() for vote in votes]
            given = [vote.result() for vote, error in zip(votes, errors, strict=True) if error is None]
            failures += [error for error in errors if error is not None]
            scores.append(math.fsum(given) / len(given) if given else None)
        self._open_votes = []
        for error in failures:
            if not isinstance(error, _FailedVoteError):
                raise error
        known = [score for score in scores if score is not None]
        info["judge"] = {"scores": tuple(scores), "votes": self._votes * len(scores), "failed_votes": len(failures)}
        if not known:
            raise JudgeError(f"{self._url}: all {len(failures)} votes failed, the last one: {failures[-1]}")
        return math.fsum(known) / len(known)

    def _vote(self, prompt: str) -> float:
        body = {**self._request, "messages": [{"role": "user", "content": prompt}]}
        request = urllib.request.Request(self._url, data=json.dumps(body).encode(), headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as response:
                answer = json.loads(response.read(_RESPONSE_BYTES))
            text = answer["choices"][0]["message"]["content"]
        except urllib.error.HTTPError as error:
            with error:
                body_text = error.read(_RESPONSE_BYTES).decode("utf-8", "replace")
            raise _FailedVoteError(f"HTTP {error.code} {error.reason}: {shorten(body_text, 200)[0]}") from None
        except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
            raise _FailedVoteError(f"{type(error).__name__}: {error}") from error
        score = boxed_score(text if isinstance(text, str) else "")
        if score is None:
            raise _FailedVoteError(f"no score in [-1, 1] in the answer {shorten(str(text), 200)[0]!r}")
        return score

    def _cancel_votes(self) -> None:
        for votes in self._open_votes:
            for vote in votes:
                vote.cancel()
        self._open_votes = []


class _FailedVoteError(Exception):
    """One vote failed and is excluded; the message says why."""


def boxed_score(text: str) -> float | None:
    r"""The number in the last `\boxed{…}` of an answer; None if there is none in [-1, 1]."""
    found: Sequence[str] = _BOXED.findall(text)
    try:
        score = float(found[-1]) if found else math.nan
    except ValueError:
        return None
    return score if -1.0 <= score <= 1.0 else None
