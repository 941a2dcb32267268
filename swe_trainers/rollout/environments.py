"""Text environments: made by id, called on threads, replaced if they hang, and checked against their contract.

An environment has a thread of its own, so that a slow one delays nothing else. Environments whose calls return at once
share a thread, because switching threads would cost more than their calls; if a call blocks that thread, the others
move to a new one. An environment that does not answer in time is never used again, and neither is its thread.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, overload
from weakref import WeakKeyDictionary, WeakSet

import gymnasium
import numpy as np

from swe_trainers.errors import ConfigurationError, RolloutError, TrainerError
from swe_trainers.registry import search_path_hint

__all__ = [
    "ContractError",
    "EnvPool",
    "EnvThreads",
    "Failure",
    "Returned",
    "checked_reset",
    "checked_step",
    "ends_the_run",
    "make_text_env",
    "reset_parts",
    "step_parts",
]

Env = gymnasium.Env[str, str]

_CLOSE_TIMEOUT_S = 60.0
_QUICK_S = 0.00025
"""A call that takes less time is quick."""
_QUICK_CALLS = 16
"""An environment shares a thread once it has had this many more quick calls than slow ones, which count four times."""
_PATIENCE_S = 0.05
"""A call that blocks the shared thread for longer keeps the thread for its environment alone."""
_TRACEBACK_CHARACTERS = 8000
_GREATEST = float(np.finfo(np.float32).max)
"""The largest reward: trajectories hold them as float32."""

_in_use: WeakKeyDictionary[Env, threading.Lock] = WeakKeyDictionary()
_abandoned: WeakSet[Env] = WeakSet()
_guard = threading.Lock()  # protects both


def make_text_env(
    name: str,
    arguments: Mapping[str, Any],
    wrap: Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]] = lambda env: env,
    *,
    hint: str,
) -> gymnasium.Env[str, str]:
    """Make an environment with text observations and actions.

    Args:
        name: Gymnasium id; `module:Id` imports the module first.
        arguments: for `gymnasium.make`.
        wrap: adds wrappers.
        hint: what the error suggests if the observation space is not text.
    Raises:
        ConfigurationError: no such environment or wrapper, arguments that it does not accept, or no text space.
    """
    try:
        env = wrap(gymnasium.make(name, disable_env_checker=True, **arguments))
    except ConfigurationError:
        raise
    except (gymnasium.error.Error, ImportError, LookupError, OSError, TypeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        place = search_path_hint(name.rpartition(":")[0]) if isinstance(error, ImportError) else ""
        raise ConfigurationError(f"environment {name}: {reason}{place}") from error
    if not isinstance(env.observation_space, gymnasium.spaces.Text):
        raise ConfigurationError(f"environment {name} observes {env.observation_space}. Try: {hint}")
    return env


class ContractError(RolloutError):
    """An environment violated its contract; the message says how."""


@dataclass(frozen=True)
class Failure:
    """Why an episode is invalid, an environment was not closed, or a snapshot not discarded.

    Attributes:
        reason: in one line.
        traceback: of what the environment raised; "" if it raised nothing.
    """

    reason: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure for an exception that an environment raised."""
        if isinstance(error, ContractError):
            return cls(str(error))
        try:
            text = " ".join(str(error).split())
        except Exception as second:  # noqa: BLE001 - an exception that cannot be written is a failure as any other
            text = f"(its text is not available: {type(second).__name__})"
        formatted = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return cls(f"{type(error).__name__}: {text}"[:500], formatted[-_TRACEBACK_CHARACTERS:])


@dataclass(eq=False)
class _Place:
    """One place of a pool, and the environment in it; only the holder of the lock uses it.

    Attributes:
        env: None until the first call makes it.
        quick: quick calls minus slow ones, which count four times; bounded.
    """

    env: Env | None
    lock: threading.Lock = field(default_factory=threading.Lock)
    abandoned: bool = False
    closed: bool = False
    quick: int = 0

    def took(self, seconds: float, *, waited: bool = False) -> None:
        """Count a call with this duration.

        Args:
            waited: it may have waited for Python's lock while other threads ran, so that its duration says little.
        """
        slow = 0 if waited else -4
        change = 1 if seconds < _QUICK_S else slow if seconds < _PATIENCE_S else -4 * _QUICK_CALLS
        self.quick = min(max(self.quick + change, -4 * _QUICK_CALLS), 2 * _QUICK_CALLS)

    def close(self) -> None:
        """Close the environment, once. Raises what `close` of the environment raises."""
        with self.lock:
            if self.env is not None and not self.closed:
                self.closed = True
                self.env.close()


class EnvPool(Sequence[Env]):
    """Text environments; one that hangs is abandoned, and replaced by a new one.

    Args:
        envs: the environments; each is used by one thread at a time, also by other pools.
        make: makes another one, on the thread that calls it; without it the place of one that hangs stays empty.
        size: number of environments in total; missing ones are made at their first call.

    Attributes:
        failures: to close an environment, or to discard a snapshot of one.
    """

    def __init__(self, envs: Iterable[Env], make: Callable[[], Env] | None = None, *, size: int = 0) -> None:
        self._make = make
        self._places = [_Place(env, _lock_of(env), env in _abandoned) for env in envs]
        self._places += [_Place(None) for _ in range(size - len(self._places))]
        self.failures: list[Failure] = []

    @classmethod
    def of(cls, envs: Sequence[Env]) -> EnvPool:
        """A pool of these environments; a pool is returned as it is."""
        return envs if isinstance(envs, EnvPool) else cls(envs)

    @property
    def replaces(self) -> bool:
        """Whether it makes environments, and therefore closes them too."""
        return self._make is not None

    @property
    def usable(self) -> list[int]:
        """The numbers of the environments that can be called."""
        return [number for number, place in enumerate(self._places) if not place.abandoned]

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, number: int) -> Env: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Env]: ...
    def __getitem__(self, number: int | slice) -> Env | Sequence[Env]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        return self.made(self._places[number])

    def place(self, number: int) -> _Place:
        """The current place with this number."""
        return self._places[number]

    def made(self, place: _Place) -> Env:
        """The environment of a place, made if it does not exist yet. Raises what making it raises."""
        if place.env is None:
            assert self._make is not None
            place.env = self._make()
        return place.env

    def abandon(self, number: int) -> None:
        """Never use an environment again; its place is free for a new one if the pool can make one."""
        place = self._places[number]
        place.abandoned = True
        if place.env is not None:
            with _guard:
                _abandoned.add(place.env)
        if self._make is not None:
            self._places[number] = _Place(None)

    def close_abandoned(self, place: _Place) -> None:
        """Close an abandoned environment whose call has returned after all; on its thread."""
        if self._make is not None:
            self._close(place)

    def discard(self, snapshot: Any, _env: Env) -> None:
        """Free a snapshot of an environment, on its thread. A failure affects no episode; each is recorded once."""
        try:
            snapshot.discard()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the episodes go on
            failure = _failed("a snapshot was not discarded", error)
            if failure.reason not in {each.reason for each in self.failures}:
                self.failures.append(failure)

    def _close(self, place: _Place) -> None:
        try:
            place.close()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the other environments are closed
            self.failures.append(_failed("an environment was not closed", error))

    def close(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Close all environments, each on a thread of its own; one that hangs is left behind. Failures are recorded.

        Args:
            timeout_s: of all together.
        """
        places = [place for place in self._places if place.env is not None and not place.closed]
        threads = [
            threading.Thread(target=self._close, args=(place,), name="env-close", daemon=True) for place in places
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + timeout_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        waiting = sum(thread.is_alive() for thread in threads)
        self.failures += [
            Failure(f"an environment was not closed: it was still running after {timeout_s:g} s")
        ] * waiting


class Returned(NamedTuple):
    """The result of a call to an environment.

    Attributes:
        env: number of the environment.
        ticket: as returned by `call`; 0 for `wake`.
        result: what the call returned. error: what it raised instead.
        at: `time.monotonic()` when it returned.
    """

    env: int
    ticket: int
    result: Any
    error: BaseException | None
    at: float


class EnvThreads:
    """The threads of some environments; each starts with the first call.

    Within an episode an environment is called on one thread, unless it shares a thread that another one blocks.

    Args:
        pool: each environment is used by one thread at a time, also by other instances of this class.
    """

    def __init__(self, pool: EnvPool) -> None:
        self._pool = pool
        self._results = _Results(deque(), queue.SimpleQueue())
        self._own: dict[int, _EnvThread] = {}
        self._shared: _EnvThread | None = None
        self._kept: list[_EnvThread] = []  # formerly shared threads, each blocked by a call that was abandoned
        self._sharing: dict[int, _Place] = {}  # environments whose episode is played on the shared thread
        self._unsent: list[_Task] = []  # for the shared thread
        self._quick: set[int] = set()  # tickets of calls on the shared thread
        self._n_calls = 0

    def call(self, env: int, function: Callable[[Env], Any], *, begins: bool = False) -> int:
        """Call a function with an environment, on its thread; returns the ticket of its `Returned`.

        Args:
            begins: an episode begins; only then may the thread change.
        """
        place = self._pool.place(env)
        if begins:
            if place.quick >= _QUICK_CALLS:
                self._sharing[env] = place
            else:
                self._sharing.pop(env, None)
        self._n_calls += 1
        task = self._n_calls, env, place, function
        if self._sharing.get(env) is place:
            self._unsent.append(task)
            return self._n_calls
        thread = self._own.get(env)
        if thread is None or thread.place is not place:  # another user of the pool may have abandoned it
            if thread is not None:
                thread.end()
            thread = self._own[env] = _EnvThread(self._pool, self._results, f"env-{env}", place)
        thread.send([task])
        return self._n_calls

    def send(self) -> None:
        """Start the queued calls of the shared thread together; `returned` does this too."""
        if self._unsent:
            if self._shared is None:
                self._shared = _EnvThread(self._pool, self._results, "envs")
            self._quick.update(ticket for ticket, *_ in self._unsent)
            self._shared.send(self._unsent)
            self._unsent = []

    def returned(self, timeout_s: float | None) -> list[Returned]:
        """Take the calls that have returned, in the order in which they did.

        Args:
            timeout_s: how long to wait for the first; None for ever. Calls on the shared thread are waited for in any
                case, but no longer than a quick call can take.
        Returns:
            Empty after the timeout.
        """
        self.send()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        found: list[Returned] = []
        while True:
            while self._results.done:
                found.append(self._results.done.popleft())
                self._quick.discard(found[-1].ticket)
            if self._quick:
                self._relieve()
            if self._quick:
                left_s: float | None = _PATIENCE_S
            elif found:
                return found
            else:
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return found
            with contextlib.suppress(queue.Empty):
                self._results.notices.get(timeout=left_s)

    def wake(self) -> None:
        """Make a waiting `returned` return, although no call has finished."""
        self._results.done.append(Returned(-1, 0, None, None, time.monotonic()))
        self._results.notices.put(None)

    def abandon(self, env: int) -> None:
        """Use neither this environment nor its thread again; the thread closes it if it ever returns."""
        place = self._pool.place(env)
        self._pool.abandon(env)
        thread = self._own.get(env)
        if thread is not None and thread.place is place and self._sharing.get(env) is not place:
            self._own.pop(env).end()

    def close(self, timeout_s: float | None = None) -> None:
        """End the threads; waits for running calls.

        Args:
            timeout_s: of all together; environments whose calls have not returned by then are abandoned. None for no
                limit.
        """
        self.send()
        threads = [*self._own.values(), *self._kept, *([self._shared] if self._shared else [])]
        for thread in threads:
            thread.end()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            running = thread.running
            if thread.is_alive() and running is not None and self._pool.place(running.env) is running.place:
                self._pool.abandon(running.env)
        self._own, self._shared, self._kept = {}, None, []

    def _relieve(self) -> None:
        """Leave the shared thread to the environment that blocks it, and move the others to a new one."""
        thread = self._shared
        running = None if thread is None else thread.running
        if thread is None or running is None or time.monotonic() - running.since < _PATIENCE_S:
            return
        self._shared = _EnvThread(self._pool, self._results, "envs")
        self._shared.send(thread.taken_back())
        self._quick.discard(running.ticket)
        self._sharing.pop(running.env, None)
        running.place.took(_PATIENCE_S)
        if self._pool.place(running.env) is running.place:
            former = self._own.get(running.env)
            if former is not None:
                former.end()
            self._own[running.env], thread.place = thread, running.place
        else:  # it was abandoned
            self._kept.append(thread)
            thread.end()


_Task: TypeAlias = tuple[int, int, _Place, Callable[[Env], Any]]
"""A call: its ticket, the number and the place of the environment, and the function."""


class _Results(NamedTuple):
    """Finished calls of several threads.

    Attributes:
        done: in the order in which they finished.
        notices: an item whenever a reader should look into `done`.
    """

    done: deque[Returned]
    notices: queue.SimpleQueue[None]


class _Running(NamedTuple):
    """A call that has not returned."""

    ticket: int
    env: int
    place: _Place
    since: float


class _EnvThread(threading.Thread):
    """A thread of one environment or of several. A daemon, since a call that never returns must not block the exit.

    Args:
        pool: of the environments.
        results: where finished calls go, with a notice when no task is left.
        name: of the thread.
        place: of its only environment; None for a shared thread.

    Attributes:
        running: the current call; None between calls.
    """

    def __init__(self, pool: EnvPool, results: _Results, name: str, place: _Place | None = None) -> None:
        super().__init__(name=name, daemon=True)
        self.place = place
        self.running: _Running | None = None
        self._pool, self._results = pool, results
        self._tasks: deque[_Task] = deque()
        self._goes_on: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.start()

    def send(self, tasks: Iterable[_Task]) -> None:
        """Run these after those that were sent before."""
        self._tasks.extend(tasks)
        self._goes_on.put(True)

    def taken_back(self) -> list[_Task]:
        """Tasks that were sent and have not begun; this thread will not run them."""
        return list(iter(self._next, None))

    def end(self) -> None:
        """End after the tasks that were sent."""
        self._goes_on.put(False)

    def run(self) -> None:
        while self._goes_on.get():
            while (task := self._next()) is not None:
                self._run(*task)
            self._results.notices.put(None)
        if self.place is not None and self.place.abandoned:
            self._pool.close_abandoned(self.place)

    def _next(self) -> _Task | None:
        try:
            return self._tasks.popleft()
        except IndexError:  # a check before would not suffice: another thread takes from it too
            return None

    def _run(self, ticket: int, env: int, place: _Place, function: Callable[[Env], Any]) -> None:
        result, error = None, None
        self.running = _Running(ticket, env, place, time.monotonic())
        # On a thread of its own it competes with the player for Python's lock; for the shared one the player waits.
        competes = self.place is not None
        with place.lock:
            began, worked = time.monotonic(), time.thread_time() if competes else 0.0
            try:
                result = function(self._pool.made(place))
            except BaseException as caught:  # noqa: BLE001 - the one place; `SystemExit` would end the thread unseen
                error = caught
            ended = time.monotonic()
            place.took(ended - began, waited=competes and time.thread_time() - worked < _QUICK_S)
        self.running = None
        self._results.done.append(Returned(env, ticket, result, error, ended))
        if place is not self.place and place.abandoned:
            self._pool.close_abandoned(place)


def ends_the_run(error: BaseException) -> bool:
    """Whether an exception that reaches the player ends the run, instead of making one episode invalid.

    These are the trainer's own errors, and any whose class is named `ConfigurationError`: the environment was asked for
    something that it does not have, and the next episode would ask again. Every other exception of an environment is a
    failure of one episode; the run ends if too many of them fail.
    """
    if isinstance(error, ContractError):
        return False
    return isinstance(error, TrainerError) or "ConfigurationError" in {kind.__name__ for kind in type(error).__mro__}


def checked_reset(result: Any) -> tuple[str, Mapping[str, Any]]:
    """The observation and the info that `reset` returned. Raises ContractError if it returned something else."""
    observation, info = reset_parts(result)
    return _checked_text("reset", observation), info


def checked_step(result: Any) -> tuple[str, float, bool, bool, Mapping[str, Any]]:
    """The result of `step`, if it is a text, a number that is finite as float32, two truth values and an info.

    Raises:
        ContractError: it is not; the message says which part.
    """
    observation, reward, terminated, truncated, info = step_parts(result)
    return _checked_text("step", observation), reward, terminated, truncated, info


def reset_parts(result: Any) -> tuple[Any, Mapping[str, Any]]:
    """As `checked_reset`, with any observation."""
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise ContractError(f"reset returned {_shape(result)}, expected (observation, info)")
    return result[0], _checked_info("reset", result[1])


def step_parts(result: Any) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
    """As `checked_step`, with any observation."""
    if not isinstance(result, (tuple, list)) or len(result) != 5:
        raise ContractError(
            f"step returned {_shape(result)}, expected (observation, reward, terminated, truncated, info)"
        )
    observation, reward, terminated, truncated, info = result
    return (
        observation,
        _checked_number("step: the reward", reward),
        _checked_truth("step: terminated", terminated),
        _checked_truth("step: truncated", truncated),
        _checked_info("step", info),
    )


def _failed(what: str, error: BaseException) -> Failure:
    failure = Failure.of(error)
    return Failure(f"{what}: {failure.reason}", failure.traceback)


def _shape(value: Any) -> str:
    return f"{len(value)} values" if isinstance(value, (tuple, list)) else type(value).__name__


def _checked_text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ContractError(
            f"{where}: the observation is {type(value).__name__}, expected str; an environment with numbers can be "
            "wrapped in TextAdapter"
        )
    return value


def _checked_number(what: str, value: Any) -> float:
    if type(value) is float and abs(value) <= _GREATEST:  # nearly always; the rest takes as long as a step of a game
        return value
    number = None
    no_number = isinstance(value, (str, bytes, bytearray, memoryview, complex, np.complexfloating))
    if not no_number and getattr(value, "shape", ()) == ():  # NumPy's scalars, and arrays without a dimension
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = None
    if number is None:
        raise ContractError(f"{what} is {type(value).__name__}, expected a finite number")
    if not abs(number) <= _GREATEST:
        raise ContractError(f"{what} is {number}, expected a finite number of float32")
    return number


def _checked_truth(what: str, value: Any) -> bool:
    if value is True or value is False:
        return value
    plain = value.item() if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0 else value
    if isinstance(plain, int) and plain in (0, 1):
        return bool(plain)
    raise ContractError(f"{what} is {type(value).__name__}, expected bool")


def _checked_info(where: str, info: Any) -> Mapping[str, Any]:
    if not isinstance(info, (dict, Mapping)):  # dict first, because `Mapping` looks for its subclasses
        raise ContractError(f"{where}: info is {type(info).__name__}, expected dict")
    if not isinstance(info.get("system_prompt"), (str, type(None))):
        raise ContractError(f"{where}: info['system_prompt'] is {type(info['system_prompt']).__name__}, expected str")
    tools = info.get("tools")
    if tools is not None and not (isinstance(tools, (list, tuple)) and all(isinstance(t, Mapping) for t in tools)):
        raise ContractError(f"{where}: info['tools'] is {type(tools).__name__}, expected a list of function schemas")
    if info.get("valid") is not None:
        _checked_truth(f"{where}: info['valid']", info["valid"])
    parts = info.get("reward")
    if parts is not None and isinstance(parts, Mapping):
        for name, value in parts.items():
            _checked_number(f"{where}: info['reward'][{str(name)[:40]!r}]", value)
    return info


def _lock_of(env: Env) -> threading.Lock:
    with _guard:
        return _in_use.setdefault(env, threading.Lock())
