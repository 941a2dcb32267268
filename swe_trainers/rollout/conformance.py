"""Conformance checks: whether an environment meets the requirements of the trainer."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium import spaces

from swe_trainers.errors import ConfigurationError
from swe_trainers.rollout.conversations import checked_messages

__all__ = ["Finding", "check_env", "made_within"]

_DEFAULT_STEPS, _MOST_STEPS = 20, 100
_POLL_S = 0.05
_SHOWN = 30  # characters on either side of a difference
_ANY_TEXT = "swe_trainers.AnyText(), which contains every text"
_STRANGE = ("", " ", "\n\n", "\x00", "naïve — 你好 🐍", "x" * 20_000, "<|end|></s><tool_call>{")


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        promise: what is checked.
        kept: whether it holds; None if the environment does not offer it, and need not.
        detail: what was observed.
    """

    promise: str
    kept: bool | None
    detail: str = ""


class _BrokenError(Exception):
    """A failed check, with what was observed."""


class _Watched(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that records the running call, and since when it runs."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.call = ""
        self.since_s = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.watched(f"reset(seed={seed})", lambda: self.env.reset(seed=seed, options=options))

    def step(self, action: Any) -> Any:
        return self.watched(f"step({_short(action)})", lambda: self.env.step(action))

    def close(self) -> None:
        self.watched("close()", self.env.close)

    def watched(self, call: str, make: Callable[[], Any]) -> Any:
        """Call a method of the environment that the wrapper does not have."""
        self.since_s, self.call = time.monotonic(), call
        try:
            return make()
        finally:
            self.call = ""

    def overdue(self, timeout_s: float) -> str:
        """The call that takes longer than this; empty if there is none."""
        call = self.call
        return call if call and time.monotonic() - self.since_s > timeout_s else ""


def made_within(make: Callable[[], gymnasium.Env[Any, Any]], timeout_s: float) -> gymnasium.Env[Any, Any]:
    """Make an environment on a thread of its own.

    Raises:
        ConfigurationError: it is not made in time; and any exception that making it raises.
    """
    made: list[gymnasium.Env[Any, Any]] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            made.append(make())
        except Exception as error:  # noqa: BLE001 - raised on the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True, name="check-env-make")
    thread.start()
    thread.join(timeout_s)
    if errors:
        raise errors[0]
    if not made:
        raise ConfigurationError(f"the environment was not made within {timeout_s:g} s")
    return made[0]


def check_env(
    make: Callable[[], gymnasium.Env[Any, Any]],
    *,
    actions: Sequence[str] | None = None,
    max_steps: int | None = None,
    seed: int = 0,
    timeout_s: float = 60.0,
    on_finding: Callable[[Finding], None] | None = None,
) -> list[Finding]:
    """Check the requirements of the trainer.

    Args:
        make: creates the environment; it is called a few times, and the environments are closed.
        actions: used in turn; suitable ones reach more of the environment. None: those of the current
            `info["legal_actions"]`; without such a list the words of its `TextAdapter`, the legal actions at reset,
            "help", or samples of the action space.
        max_steps: of an episode. None: the environment's own `max_episode_steps`, 100 at most; else 20.
        seed: of the first episode.
        timeout_s: for one call, such as `reset` or `step`. One that takes longer fails its check and ends the checks:
            its thread cannot be stopped.
        on_finding: called with each finding as soon as it is known.
    Returns:
        One finding per check, in order.
    """
    found: list[Finding] = []
    envs: list[_Watched] = []

    def attempt(promise: str, check: Callable[[], str | None]) -> bool:
        """Run a check; returns whether the checks can go on. A check returns what it observed; None if not offered."""
        finding, ended = _tried(promise, check, envs, timeout_s)
        found.append(finding)
        if on_finding is not None:
            on_finding(finding)
        return ended

    def fresh() -> _Watched:
        envs.append(_Watched(made_within(make, timeout_s)))
        return envs[-1]

    words: list[str] = []

    def first() -> str:
        env = fresh()
        detail, info = _resets(env, seed)
        words.extend(_words(env, info, seed))
        return detail

    going = True
    try:
        going = attempt("it can be made, and reset to a text and a dictionary", first)
        if going and found[-1].kept:
            env = envs[0]
            spec = env.spec
            limit = spec.max_episode_steps if spec is not None else None
            steps = max_steps or min(limit or _DEFAULT_STEPS, _MOST_STEPS)
            played = _Actions(tuple(actions or words), listed=actions is None)
            checks: list[tuple[str, Callable[[], str | None]]] = [
                ("its spaces are texts, and contain what it says", lambda: _spaces(env, seed, played, steps)),
                ("info has what it may have, in the right types", lambda: _info(env, seed)),
                (
                    "an agent program's requests have the form of chat completions",
                    lambda: _asks(env, seed, played, steps),
                ),
                (
                    "a step gives a text, a finite reward, two truth values and a dictionary",
                    lambda: _steps(env, seed, played, steps, limit),
                ),
                ("strange actions are answered, not raised", lambda: _strange(env, seed)),
                (
                    "the same seed and actions give the same episode",
                    lambda: _repeats(env, fresh(), seed, played, steps),
                ),
                ("other seeds give other episodes", lambda: _varies(env, seed)),
                ("it goes back to a snapshot", lambda: _goes_back(env, seed, played)),
                ("two of them play at once, on threads", lambda: _together([env, fresh()], seed, played)),
            ]
            going = all(attempt(promise, check) for promise, check in checks)
    finally:
        if going:  # a call that does not return may keep `close` from returning too
            attempt("it can be closed", lambda: _closes(envs))
    return found


def _tried(
    promise: str, check: Callable[[], str | None], envs: Sequence[_Watched], timeout_s: float
) -> tuple[Finding, bool]:
    """The finding of one check, and whether the check ended."""
    found: list[Finding] = []

    def run() -> None:
        try:
            seen = check()
            found.append(Finding(promise, None if seen is None else True, seen or "not offered, and not needed"))
        except _BrokenError as broken:
            found.append(Finding(promise, False, str(broken)))
        except Exception as error:  # noqa: BLE001 - whatever the environment raises is the finding
            found.append(Finding(promise, False, f"{type(error).__name__}: {error}".splitlines()[0]))

    thread = threading.Thread(target=run, daemon=True, name="check-env")
    thread.start()
    while thread.is_alive():
        thread.join(_POLL_S)
        overdue = next(filter(None, (env.overdue(timeout_s) for env in envs)), "")
        if overdue and thread.is_alive():
            return Finding(
                promise, False, f"{overdue} did not return within {timeout_s:g} s; nothing more is checked"
            ), False
    return found[0], True


@dataclass(frozen=True)
class _Actions:
    """The actions that are played.

    Attributes:
        words: in turn.
        listed: use the list in `info["legal_actions"]` instead, in turn.
    """

    words: tuple[str, ...]
    listed: bool

    def choose(self, number: int, info: Mapping[str, Any]) -> str:
        """The action of a step, from 0, after this info."""
        legal = info.get("legal_actions")
        if self.listed and _are_texts(legal):
            assert isinstance(legal, list | tuple)
            return str(legal[number % len(legal)])
        return self.words[number % len(self.words)]


def _words(env: _Watched, info: Mapping[str, Any], seed: int) -> Sequence[str]:
    """Words that are meaningful in the environment, as far as it lists any."""
    offered: Any = env.get_wrapper_attr("actions") if env.has_wrapper_attr("actions") else None
    if not _are_texts(offered):
        offered = info.get("legal_actions")
    if _are_texts(offered):
        return tuple(offered)
    space = env.action_space
    if not isinstance(space, spaces.Text) or space.contains("help"):
        return ("help",)
    space.seed(seed)
    return tuple(space.sample() for _ in range(4))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(each, str) for each in value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 2 * _SHOWN else f"{text[: 2 * _SHOWN]}…"


def _need(condition: bool, detail: str) -> None:
    if not condition:
        raise _BrokenError(detail)


def _resets(env: gymnasium.Env[Any, Any], seed: int) -> tuple[str, Mapping[str, Any]]:
    result: Any = env.reset(seed=seed)
    _need(isinstance(result, tuple) and len(result) == 2, f"reset returned {type(result).__name__}, expected a pair")
    observation, info = result
    _need(isinstance(observation, str), f"the observation is {type(observation).__name__}. Try: --adapter text")
    _need(isinstance(info, dict), f"info is {type(info).__name__}")
    return f"{len(observation)} characters", info


def _spaces(env: gymnasium.Env[Any, Any], seed: int, actions: _Actions, max_steps: int) -> str:
    for name, space in (("observation_space", env.observation_space), ("action_space", env.action_space)):
        _need(isinstance(space, spaces.Text), f"{name} is {space}, expected a Text space. Try: {_ANY_TEXT}")
    seen, taken = _played(env, seed, actions, max_steps)
    for number, (observation, *_) in enumerate(seen):
        _need(
            env.observation_space.contains(observation),
            f"the observation {f'of step {number}' if number else 'of reset'} is not in observation_space: "
            f"{_why_outside(env.observation_space, observation)}. Try: {_ANY_TEXT}",
        )
    for action in dict.fromkeys(taken):
        _need(
            env.action_space.contains(action),
            f"the action {_short(action)} is not in action_space: {_why_outside(env.action_space, action)}. "
            f"Try: {_ANY_TEXT}",
        )
    return str(env.observation_space)


def _why_outside(space: spaces.Space[Any], text: Any) -> str:
    if not isinstance(space, spaces.Text) or not isinstance(text, str):
        return f"it is {_short(text)}"
    if not space.min_length <= len(text) <= space.max_length:
        return f"it has {len(text)} characters, and the space {space.min_length} to {space.max_length}"
    others = sorted(set(text) - set(space.characters))
    return (
        f"it has {', '.join(map(repr, others[:5]))}, and the space only the characters {_short(space.characters)} "
        "(Gymnasium's Text has letters and digits alone, unless it is given a charset)"
    )


def _info(env: gymnasium.Env[Any, Any], seed: int) -> str | None:
    _, info = env.reset(seed=seed)
    kinds = {"system_prompt": str, "tools": list, "valid": bool, "failure_reason": str}
    there = [key for key in kinds if info.get(key) is not None]
    for key in there:
        _need(isinstance(info[key], (kinds[key], tuple) if key == "tools" else kinds[key]),
              f"info[{key!r}] is {type(info[key]).__name__}, expected {kinds[key].__name__}")  # fmt: skip
    return ", ".join(there) or None


def _asks(env: gymnasium.Env[Any, Any], seed: int, actions: _Actions, max_steps: int) -> str | None:
    """Whether each step that does not end the episode has `info["messages"]`, if the reset has it."""
    _, info = env.reset(seed=seed)
    if info.get("messages") is None:
        return None
    requests = 0
    for number in range(max_steps + 1):
        _need(info.get("messages") is not None, f"step {number}: no info['messages'], which reset has")
        try:
            checked_messages(info)
        except ConfigurationError as error:
            raise _BrokenError(f"{f'step {number}' if number else 'reset'}: {error}") from error
        requests += 1
        if number == max_steps:
            break
        _, _, terminated, truncated, info = env.step(actions.choose(number, info))
        if terminated or truncated:
            break
    return f"{requests} requests"


_Seen = tuple[str, float, bool, bool]
"""The result of a step: observation, reward, terminated, truncated."""


def _play(env: gymnasium.Env[Any, Any], seed: int, actions: _Actions, max_steps: int) -> list[_Seen]:
    return _played(env, seed, actions, max_steps)[0]


def _played(
    env: gymnasium.Env[Any, Any], seed: int, actions: _Actions, max_steps: int
) -> tuple[list[_Seen], list[str]]:
    """The results of the steps of an episode, and the actions that were taken."""
    observation, info = env.reset(seed=seed)
    seen, taken = [(str(observation), 0.0, False, False)], list[str]()
    for number in range(max_steps):
        taken.append(actions.choose(number, info))
        observation, reward, terminated, truncated, info = env.step(taken[-1])
        seen.append((observation, float(reward), bool(terminated), bool(truncated)))
        if terminated or truncated:
            break
    return seen, taken


def _steps(env: gymnasium.Env[Any, Any], seed: int, actions: _Actions, max_steps: int, limit: int | None) -> str:
    _, info = env.reset(seed=seed)
    taken: list[str] = []
    refused = 0
    for number in range(max_steps):
        taken.append(actions.choose(number, info))
        result: Any = env.step(taken[-1])
        _need(isinstance(result, tuple) and len(result) == 5, f"step {number} did not return five things")
        observation, reward, terminated, truncated, info = result
        _need(isinstance(observation, str), f"step {number}: the observation is {type(observation).__name__}")
        _need(math.isfinite(float(reward)), f"step {number}: the reward is {reward}")
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            _need(type(value).__name__ in ("bool", "bool_"), f"step {number}: {name} is {type(value).__name__}")
        _need(isinstance(info, dict), f"step {number}: info is {type(info).__name__}")
        refused += info.get("action_error") is not None
        if terminated or truncated:
            return f"ended after {number + 1} steps; actions {_first(taken)}" + _refusals(refused, number + 1)
    end = f"it ends after {limit}" if limit else "where it does not end by itself, give the trainer a max_turns"
    return f"no end in {max_steps} steps, {end}; actions {_first(taken)}" + _refusals(refused, max_steps)


def _first(actions: Sequence[str]) -> str:
    """The distinct actions of an episode, as many as fit into a line."""
    return _short(", ".join(dict.fromkeys(actions)))


def _refusals(refused: int, steps: int) -> str:
    return f"; {refused} of {steps} were answered by info['action_error']" if refused else ""


def _strange(env: gymnasium.Env[Any, Any], seed: int) -> str:
    for action in _STRANGE:
        env.reset(seed=seed)
        try:
            observation, *_ = env.step(action)
        except Exception as error:
            raise _BrokenError(f"{action[:20]!r} raised {type(error).__name__}: {error}") from error
        _need(isinstance(observation, str), f"{action[:20]!r} was answered by {type(observation).__name__}")
    return f"{len(_STRANGE)} of them"


def _repeats(
    env: gymnasium.Env[Any, Any], other: gymnasium.Env[Any, Any], seed: int, actions: _Actions, max_steps: int
) -> str:
    first = _play(env, seed, actions, max_steps)
    for name, again in (("again", env), ("in another instance", other)):
        second = _play(again, seed, actions, max_steps)
        for number, (one, other_one) in enumerate(zip(first, second, strict=False)):
            if one != other_one:
                where = f"at step {number}" if number else "at reset"
                raise _BrokenError(f"{name} it differs {where}: {_difference(one, other_one)}")
        _need(len(first) == len(second), f"{name} it has {len(second) - 1} steps and not {len(first) - 1}")
    return f"{len(first) - 1} steps, three times"


def _difference(one: tuple[str, float, bool, bool], other: tuple[str, float, bool, bool]) -> str:
    """The difference of two results of a step."""
    names = ("the observation", "the reward", "terminated", "truncated")
    name, a, b = next(each for each in zip(names, one, other, strict=True) if each[1] != each[2])
    if isinstance(a, str) and isinstance(b, str):
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        part = slice(max(0, at - _SHOWN), at + _SHOWN)
        return f"{name} has {a[part]!r}, then {b[part]!r}"
    return f"{name} is {a}, then {b}"


def _varies(env: gymnasium.Env[Any, Any], seed: int) -> str | None:
    observations = {str(env.reset(seed=seed + i)[0]) for i in range(8)}
    return f"{len(observations)} first observations from 8 seeds" if len(observations) > 1 else None


def _goes_back(env: _Watched, seed: int, actions: _Actions) -> str | None:
    inner: Any = env.unwrapped
    if not (hasattr(inner, "snapshot") and hasattr(inner, "restore")):
        return None
    _, info = env.reset(seed=seed)
    action = actions.choose(0, info)
    snapshot = env.watched("snapshot()", inner.snapshot)
    observations = [env.step(action)[0]]
    env.watched("restore(…)", lambda: inner.restore(snapshot))
    observations.append(env.step(action)[0])
    if hasattr(snapshot, "discard"):
        env.watched("the snapshot's discard()", snapshot.discard)
    _need(
        observations[0] == observations[1],
        f"the same action returns {observations[0][:60]!r}, and after restore() {observations[1][:60]!r}",
    )
    return "the same action returns the same observation"


def _together(envs: Sequence[gymnasium.Env[Any, Any]], seed: int, actions: _Actions) -> str:
    alone = [_play(env, seed + i, actions, 3) for i, env in enumerate(envs)]
    results: dict[int, Any] = {}

    def play(number: int) -> None:
        try:
            results[number] = _play(envs[number], seed + number, actions, 3)
        except Exception as error:  # noqa: BLE001 - raised on the caller's thread
            results[number] = error

    threads = [threading.Thread(target=play, args=(i,)) for i in range(len(envs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, expected in enumerate(alone):
        got = results[number]
        _need(not isinstance(got, Exception), f"{type(got).__name__}: {got}")
        _need(got == expected, f"environment {number} behaves differently than alone")
    return "as alone"


def _closes(envs: Sequence[gymnasium.Env[Any, Any]]) -> str:
    for env in envs:
        env.close()
    return f"{len(envs)} closed"
