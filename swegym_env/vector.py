"""`ThreadVectorEnv`: many environments on threads. Sandboxes are processes already, and text needs no shared memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from swegym_env.arguments import check_choice, check_whole
from swegym_env.errors import ConfigurationError

__all__ = ["ThreadVectorEnv", "make_vector"]


class ThreadVectorEnv(SyncVectorEnv):
    """Gymnasium's `SyncVectorEnv` with the calls of the sub-environments in parallel on threads.

    The calls run first, each environment on its own thread; the parent class then collects the results in order, so
    its semantics are unchanged. An error in one environment is raised after the calls of all have ended; the results of
    the others are dropped.

    Args:
        env_fns: make the environments.
        autoreset_mode: when an environment whose episode ended is reset: `NextStep`, at the next step; `SameStep`, in
            the same one; or `Disabled`, by `reset` alone.
    Raises:
        ConfigurationError: there is no such mode, or the number of actions or seeds is not that of the environments.
        gymnasium.error.ClosedEnvironmentError: it is closed.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env[str, str]]],
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    ) -> None:
        if not isinstance(autoreset_mode, AutoresetMode):
            check_choice("autoreset_mode", autoreset_mode, [mode.value for mode in AutoresetMode])
        self._threads = ThreadPoolExecutor(max_workers=len(env_fns), thread_name_prefix="swegym-vector")
        self._calls: list[Future[None]] = []
        self._buffered = [_BufferedEnv(make()) for make in env_fns]
        super().__init__([env.itself for env in self._buffered], autoreset_mode=autoreset_mode)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of `options["reset_mask"]`."""
        if isinstance(seed, int):
            seeds: Any = [seed + i for i in range(self.num_envs)]
        elif seed is None or (isinstance(seed, Sequence) and len(seed) == self.num_envs):
            seeds = seed
        else:
            raise ConfigurationError(f"seed: expected a number or a list of {self.num_envs}, got {seed!r}")
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, dtype=np.bool_))
        rest = {key: value for key, value in options.items() if key != "reset_mask"} if options else options
        each = [None] * self.num_envs if seeds is None else seeds
        self._run([partial(env.run_reset, each[i], rest) for i, env in enumerate(self._buffered) if mask[i]])
        return super().reset(seed=seeds, options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments; those that ended are reset as the autoreset mode says."""
        if len(actions) != self.num_envs:
            raise ConfigurationError(f"actions: expected {self.num_envs}, got {len(actions)}")
        resets_next = self.autoreset_mode == AutoresetMode.NEXT_STEP
        resets_now = self.autoreset_mode == AutoresetMode.SAME_STEP
        self._run(
            [
                partial(env.run_reset, None, None)
                if resets_next and ended
                else partial(env.run_step, action, reset_after=resets_now)
                for env, action, ended in zip(self._buffered, actions, self._autoreset_envs, strict=True)
            ]
        )
        return super().step(actions)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments and the threads."""
        super().close_extras(**kwargs)
        self._threads.shutdown()

    def _run(self, calls: Sequence[Callable[[], None]]) -> None:
        """Make the calls in parallel, and raise the first error when all have ended."""
        if self.closed:
            raise gymnasium.error.ClosedEnvironmentError("the environments are closed")
        wait(self._calls)  # an interrupt may have left some running
        for env in self._buffered:
            env.forget()
        self._calls = [self._threads.submit(call) for call in calls]
        wait(self._calls)
        for call in self._calls:
            call.result()


def make_vector(
    make: Callable[..., gymnasium.Env[str, str]],
    num_envs: int = 1,
    *,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    **arguments: Any,
) -> ThreadVectorEnv:
    """Environments of equal arguments on threads: what `gymnasium.make_vec(…, num_envs=…)` makes.

    Args:
        make: makes one environment of the arguments.
        num_envs: number of environments.
        autoreset_mode: see `ThreadVectorEnv`.
        arguments: of each environment.
    Raises:
        ConfigurationError: one of them is wrong.
    """
    check_whole("num_envs", num_envs, 1)
    return ThreadVectorEnv([partial(make, **arguments)] * num_envs, autoreset_mode=autoreset_mode)


class _BufferedEnv(gymnasium.Wrapper[str, str, str, str]):
    """Runs a call first, and returns its result when the vector environment makes the call."""

    def __init__(self, env: gymnasium.Env[str, str]) -> None:
        super().__init__(env)
        self._results: deque[Any] = deque()

    def itself(self) -> _BufferedEnv:
        return self

    def forget(self) -> None:
        """Drop results that the vector environment did not take, since another environment raised an error."""
        self._results.clear()

    def run_reset(self, seed: int | None, options: dict[str, Any] | None) -> None:
        self._results.append(self.env.reset(seed=seed, options=options))

    def run_step(self, action: str, *, reset_after: bool) -> None:
        result = self.env.step(action)
        self._results.append(result)
        if reset_after and (result[2] or result[3]):
            self._results.append(self.env.reset())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._results.popleft()

    def step(self, action: str) -> Any:
        return self._results.popleft()
