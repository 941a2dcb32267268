"""Decoys of what a condition looks up: several of them at once, any of which satisfies it.

A lineup appends this source to the test files whose copies need it (see `languages.python.lineup`). Runs on Python 3.5
and newer.
"""


def _any_holds(*conditions):
    """True if one of these functions returns something true; else AssertionError, from the last error of one."""
    last = None
    for condition in conditions:
        try:
            if condition():
                return True
        except Exception as error:  # noqa: BLE001 - a condition that fails does not hold, as in the test itself
            last = error
    raise AssertionError("none of the conditions holds") from last
