"""Environments that answer at once share a thread: fewer changes of threads, and the promises to slow ones hold."""

from __future__ import annotations

import threading
import time

import pytest

from swe_trainers.rollout import environments
from swe_trainers.rollout.environments import EnvPool, EnvThreads, Returned
from swe_trainers.rollout.settings import EpisodeStart, Limits
from tests.trainers.rollout.test_play import Closing, held, play


@pytest.fixture(autouse=True)
def _every_call_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine too; a call that keeps the thread for long still keeps it alone."""
    monkeypatch.setattr(environments, "_QUICK_S", 1e9)


def proven(n: int) -> EnvPool:
    """Environments after as many quick calls as it takes."""
    pool = EnvPool([Closing() for _ in range(n)])
    threads = EnvThreads(pool)
    for env in range(n):
        for _ in range(environments._QUICK_CALLS):
            threads.call(env, lambda env: None)
    returned(threads, n * environments._QUICK_CALLS)
    threads.close()
    return pool


def returned(threads: EnvThreads, n: int) -> list[Returned]:
    found: list[Returned] = []
    while len(found) < n:
        found += threads.returned(60)
    return found


def test_quick_environments_share_a_thread_from_an_episode_on_and_slow_ones_have_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(environments, "_PATIENCE_S", 60.0)
    pool = proven(3)
    pool.place(2).quick = 0
    threads, used = EnvThreads(pool), list[list[threading.Thread]]()
    for begins in (False, True, False):
        for env in range(3):
            threads.call(env, lambda env: threading.current_thread(), begins=begins)
        used.append([each.result for each in sorted(returned(threads, 3), key=lambda each: each.env)])
    threads.close()
    before, begun, later = used
    assert len({id(thread) for thread in before}) == 3 and threading.current_thread() not in before
    assert begun[0] is begun[1] and begun[2] is before[2] and begun[0] not in before
    assert later == begun


def test_calls_on_the_shared_thread_return_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "_PATIENCE_S", 60.0)
    threads = EnvThreads(proven(8))
    for env in range(8):
        threads.call(env, lambda env: time.sleep(0.001), begins=True)
    assert len(threads.returned(0)) == 8  # a batch of the engine is as large as it can be
    threads.close()


def test_call_that_keeps_the_shared_thread_keeps_it_alone() -> None:
    pool, hold = proven(4), threading.Event()
    threads = EnvThreads(pool)
    waiting = threads.call(0, lambda env: (hold.wait(60), threading.current_thread())[1], begins=True)
    others = [threads.call(env, lambda env: threading.current_thread(), begins=True) for env in (1, 2, 3)]
    found = returned(threads, 3)
    assert sorted(each.ticket for each in found) == others
    hold.set()
    (kept,) = returned(threads, 1)
    assert kept.ticket == waiting and kept.result not in [each.result for each in found]
    threads.call(0, lambda env: threading.current_thread())
    assert [each.result for each in returned(threads, 1)] == [kept.result]  # its episode goes on where it was
    threads.close()


def test_environments_that_wait_for_each_other_meet() -> None:
    threads, meeting = EnvThreads(proven(3)), threading.Barrier(3, timeout=60)
    for env in range(3):
        threads.call(env, lambda env: meeting.wait(), begins=True)
    assert [each.error for each in returned(threads, 3)] == [None] * 3
    threads.close()


def test_environment_that_hangs_on_the_shared_thread_costs_its_episode_and_is_never_used_again() -> None:
    pool = proven(3)
    with held() as hold:
        pool[0].before = lambda env: hold.wait(60) if env.turn == 1 else None  # type: ignore[attr-defined]
        starts = [EpisodeStart(seed) for seed in (3, 3, 3, 3, 3, 3)]
        played = play(pool, starts, limits=Limits(6, step_timeout_s=0.3))  # type: ignore[arg-type]
        assert [t.valid for t in played] == [False, True, True, True, True, True]
        assert played[0].failure_reason == "the environment did not respond to step for 0.3 s"
        assert pool.usable == [1, 2]
    assert pool[0].episodes == [3]  # type: ignore[attr-defined]


def test_exceptions_on_the_shared_thread_reach_the_caller() -> None:
    threads = EnvThreads(proven(2))
    threads.call(0, lambda env: {}["nothing"], begins=True)
    threads.call(1, lambda env: 1, begins=True)
    first, second = sorted(returned(threads, 2), key=lambda each: each.env)
    assert isinstance(first.error, KeyError) and second.result == 1
    threads.close()


def test_calls_that_were_not_sent_are_made_before_the_threads_end() -> None:
    threads, done = EnvThreads(proven(2)), list[int]()
    for env in range(2):
        threads.call(env, lambda env: done.append(1), begins=True)
    threads.close()
    assert done == [1, 1]


def test_waits_on_a_thread_of_its_own_make_no_environment_slow_but_waits_on_the_shared_thread_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a thread of its own a quick call waits for Python's lock while the model runs, which a sleep stands for."""
    monkeypatch.setattr(environments, "_QUICK_S", 0.01)
    monkeypatch.setattr(environments, "_PATIENCE_S", 60.0)
    pool = EnvPool([Closing()])
    threads, place = EnvThreads(pool), pool.place(0)
    for _ in range(10 * environments._QUICK_CALLS):
        threads.call(0, lambda env: time.sleep(0.015))
        threads.call(0, lambda env: None)
        returned(threads, 2)
    assert place.quick >= environments._QUICK_CALLS
    for number in range(2 * environments._QUICK_CALLS):
        threads.call(0, lambda env: time.sleep(0.015), begins=not number)
        returned(threads, 1)
    assert place.quick < 0
    threads.close()


def test_calls_that_compute_for_long_make_an_environment_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "_QUICK_S", 0.001)
    monkeypatch.setattr(environments, "_PATIENCE_S", 60.0)
    pool = proven(1)
    threads = EnvThreads(pool)

    def compute(env: object) -> None:
        began = time.thread_time()
        while time.thread_time() - began < 0.002:
            pass

    for _ in range(2 * environments._QUICK_CALLS):
        threads.call(0, compute)
    returned(threads, 2 * environments._QUICK_CALLS)
    assert pool.place(0).quick < 0
    threads.close()
