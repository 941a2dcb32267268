"""A thread for each environment, so that slow ones hold up neither the engine nor one another."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import gymnasium

from swe_trainers.errors import TrainerError

__all__ = ["Answer", "EnvThreads", "is_infrastructure_failure"]

# An environment that raises one of these has a bug, or was asked for what it does not have: nothing that another try
# would cure.
_PROGRAMMING_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, NotImplementedError,
    SyntaxError, TypeError, ValueError, TrainerError, gymnasium.error.Error,
)  # fmt: skip

# An environment that did not answer in time is still at work when the next episodes are asked for: whoever uses it next
# waits until it is done.
_in_use: WeakKeyDictionary[gymnasium.Env[Any, Any], threading.Lock] = WeakKeyDictionary()
_in_use_guard = threading.Lock()


@dataclass(frozen=True)
class Answer:
    """What an environment's thread brings back.

    Attributes:
        env: its number.
        ticket: what `ask` returned; 0 where nobody asked, and `wake` was called.
        result: of the call. error: what it raised instead.
    """

    env: int
    ticket: int
    result: Any
    error: Exception | None


class EnvThreads:
    """Threads that call environments, each environment on its own; begun by the first call.

    Args:
        envs: each is used by one thread at a time, whoever else calls it through this class.
    """

    def __init__(self, envs: Sequence[gymnasium.Env[str, str]]) -> None:
        self.answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._calls: list[queue.SimpleQueue[tuple[int, Callable[[], Any]] | None]] = [queue.SimpleQueue() for _ in envs]
        # Daemons: one that never comes back must not keep the process from ending.
        self._threads = [
            threading.Thread(target=self._serve, args=(number, _lock_of(env)), name=f"env-{number}", daemon=True)
            for number, env in enumerate(envs)
        ]
        self._n_asked = 0

    def ask(self, env: int, call: Callable[[], Any]) -> int:
        """Have an environment's thread call something; the number that its `Answer` will carry."""
        if not self._n_asked:
            for thread in self._threads:
                thread.start()
        self._n_asked += 1
        self._calls[env].put((self._n_asked, call))
        return self._n_asked

    def wake(self) -> None:
        """Have whoever waits for an answer look up: there is other news."""
        self.answers.put(Answer(-1, 0, None, None))

    def close(self, timeout_s: float | None = None, *, abandon: Collection[int] = ()) -> None:
        """End the threads, waiting for calls that are under way.

        Args:
            timeout_s: at most so long for each; None for as long as it takes.
            abandon: environments that are not waited for.
        """
        for calls in self._calls:
            calls.put(None)
        for number, thread in enumerate(self._threads):
            if self._n_asked and number not in abandon:
                thread.join(timeout_s)

    def _serve(self, env: int, lock: threading.Lock) -> None:
        while (task := self._calls[env].get()) is not None:
            ticket, call = task
            with lock:
                try:
                    answer = Answer(env, ticket, call(), None)
                except Exception as error:  # noqa: BLE001 - the one place: who reads it tells failures from bugs
                    answer = Answer(env, ticket, None, error)
            self.answers.put(answer)


def is_infrastructure_failure(error: Exception) -> bool:
    """Whether what an environment raised is the machine's failure (an invalid episode) and no bug (the run must stop).

    Bugs are the errors that Python raises for them, and Gymnasium's own. An environment whose exceptions are called
    `ConfigurationError` was asked for something that it does not have: not the machine's failure either.
    """
    named = {cls.__name__ for cls in type(error).__mro__}
    return not isinstance(error, _PROGRAMMING_ERRORS) and "ConfigurationError" not in named


def _lock_of(env: gymnasium.Env[Any, Any]) -> threading.Lock:
    with _in_use_guard:
        return _in_use.setdefault(env, threading.Lock())
