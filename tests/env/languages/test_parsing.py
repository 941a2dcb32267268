"""Python's parser from several threads."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import pytest

from swegym_env.languages.python.parsing import parse

TEXT = "".join(f"def f{n}(a, b=({n}, [1, {{'x': a}}])):\n    return [g(x + {n}) for x in b if x]\n" for n in range(60))


@pytest.fixture
def busy_collector() -> Iterator[None]:
    """Garbage is collected all the time, by code that lets other threads run."""
    threshold, interval_s = gc.get_threshold(), sys.getswitchinterval()

    def callback(*_: object) -> None:
        sum(range(200))

    gc.callbacks.append(callback)
    gc.set_threshold(50)
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval_s)
    gc.set_threshold(*threshold)
    gc.callbacks.remove(callback)


@pytest.mark.usefixtures("busy_collector")
def test_threads_parse_at_the_same_time() -> None:
    errors: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(20):
                parse(TEXT)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
