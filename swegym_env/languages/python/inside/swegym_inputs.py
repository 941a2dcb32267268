"""Equalities of two computed values, computed again from other inputs than those of the test.

A lineup appends this source to the test files whose copies need it (see `languages.python.lineup`). Runs on Python 3.5
and newer.
"""


def _differs_nowhere(may_raise, *equalities):
    """True if none of these functions finds a difference, or one raises another error and `may_raise`; else raises."""
    for equality in equalities:
        try:
            same = bool(equality())
        except AssertionError:
            same = False
        except Exception:  # noqa: BLE001 - whatever other inputs lead to
            same = may_raise
        if not same:
            raise AssertionError("one of them differs")
    return True


def _equals_somewhere(*equalities):
    """AssertionError if all of these functions find a difference; else True, also if one raises another error."""
    for equality in equalities:
        try:
            if equality():
                return True
        except AssertionError:
            continue
        except Exception:  # noqa: BLE001 - whatever other inputs lead to
            return True
    raise AssertionError("all of them differ")


def _other_input(value, step):
    """A value of the same builtin type, near `value`; objects of other types are returned unchanged."""
    kind = type(value)
    if kind in (int, float):
        return value + step
    if kind in (str, bytes):
        letters = value if kind is str else value.decode("latin-1")
        places = [place for place, letter in enumerate(letters) if letter.isalnum()]
        if not places:
            return value
        place = places[-1 - step % len(places)]
        if letters[place].isdigit():
            new = str((int(letters[place]) + 1 + step % 9) % 10)
        else:
            letter = "abcdefghijklmnopqrstuvwxyz"[(ord(letters[place].lower()) + step) % 26]
            new = letter.upper() if letters[place].isupper() else letter
        letters = letters[:place] + new + letters[place + 1 :]
        return letters if kind is str else letters.encode("latin-1")
    if kind in (list, tuple) and value:
        place = step % len(value)
        return kind(_other_input(item, step) if here == place else item for here, item in enumerate(value))
    return value
