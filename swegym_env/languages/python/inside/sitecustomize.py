"""Imported at the start of every Python in a certified task's sandbox: reorders tests, and keeps processors busy.

`SWEGYM_ORDER` is "reversed", or a text that seeds a random order. `SWEGYM_LOAD` is the number of processes that keep a
processor busy until this one ends. Without these variables nothing happens. Runs on Python 3.6 and newer.
"""

import hashlib
import os


def reordered(items, key):
    """The items in the order of `SWEGYM_ORDER`; `key` returns a text for each item."""
    order = os.environ["SWEGYM_ORDER"]
    if order == "reversed":
        return list(reversed(items))
    return sorted(items, key=lambda item: hashlib.sha256((order + key(item)).encode("utf-8", "replace")).digest())


def reorder_unittest():
    import unittest

    class ReorderedSuite(unittest.TestSuite):
        def __init__(self, tests=()):
            super().__init__(reordered(list(tests), str))

    unittest.TestLoader.suiteClass = ReorderedSuite


def keep_busy(count):
    """Start detached busy processes that end with this process."""
    own_entry = f"/proc/{os.getpid()}"
    for _ in range(count):
        child = os.fork()
        if child == 0:
            if os.fork() == 0:
                null = os.open(os.devnull, os.O_RDWR)
                for descriptor in (0, 1, 2):
                    os.dup2(null, descriptor)
                os.setsid()
                while os.path.exists(own_entry):
                    sum(range(100000))
            os._exit(0)
        os.waitpid(child, 0)


if os.environ.get("SWEGYM_ORDER"):
    reorder_unittest()
if os.environ.get("SWEGYM_LOAD"):
    keep_busy(int(os.environ.pop("SWEGYM_LOAD")))
