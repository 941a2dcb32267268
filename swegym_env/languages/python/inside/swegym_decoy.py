"""Decoys of computed values: another value of the same type, near the value, which a repair does not compute.

A lineup appends this source to the test files whose copies need it (see `languages.python.lineup`). The other value is
created without any code of its class, so the class cannot notice it. All parts of the value are changed, each by a
different amount, because a class may compare by any of its attributes. Runs on Python 3.5 and newer.
"""


def _other_value(value, step, is_derived):  # noqa: C901, PLR0915 - one name alone in the files of tests
    """A value of the type of `value`, or of a new subclass of it; if impossible, an object that nothing else equals."""
    import datetime
    import enum

    known = {}
    steps = [step]
    moments = (datetime.date, datetime.timedelta)
    scalars = (int, float, complex, str, bytes)
    containers = (list, tuple, set, frozenset, dict)

    def is_standard(kind):
        return kind.__module__ in ("datetime", "decimal", "fractions") or kind.__module__.partition(".")[0] == "numpy"

    def next_step():
        amount = steps[0]
        steps[0] += 1 if amount > 0 else -1
        return amount

    def scalar(base, one):
        amount = next_step()
        if base in (str, bytes):
            plain = base.__getitem__(one, slice(None))
            letters = "abcdefghijklmnopqrstuvwxyz"
            letter = letters[amount % 26] if base is str else letters[amount % 26].encode()
            end = plain[-1:]
            if end.isdigit():
                letter = str((int(end) + 1 + amount % 9) % 10) if base is str else str((int(end) + 1) % 10).encode()
            return plain[:-1] + letter if plain and end != letter else plain + letter
        if base is int:
            return int.__add__(one, amount)
        moved = base.__add__(one, amount / 4)
        return moved if moved != base.__add__(one, 0) else base(0.5)

    def made(kind, base, content):
        if kind is base:
            return content
        new = base.__new__(kind, content) if base in (int, float, complex, str, bytes, tuple, frozenset) else None
        if new is None:
            new = base.__new__(kind)
            base.update(new, content) if base in (dict, set) else base.extend(new, content)
        return new

    def attributes(one):
        kind = type(one)
        held = {}
        try:
            held.update(object.__getattribute__(one, "__dict__"))
        except AttributeError:
            pass
        for base in type.mro(kind):
            slots = type.__getattribute__(base, "__dict__").get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                try:
                    held[name] = object.__getattribute__(one, name)
                except AttributeError:
                    pass
        return held

    def other(one, depth):
        kind = type(one)
        if id(one) in known:
            return known[id(one)]
        if depth > 3 or len(known) > 200:
            return one
        if kind is bool:
            return not one
        if issubclass(kind, enum.Enum):
            return next(
                (each for each in type.__getattribute__(kind, "_member_map_").values() if each is not one), None
            )
        for base in scalars:
            if issubclass(kind, base):
                return made(kind, base, scalar(base, one))
        if is_standard(kind):
            return one + (datetime.timedelta(next_step()) if issubclass(kind, moments) else next_step())
        for base in containers:
            if issubclass(kind, base):
                if base is dict:
                    changed = {key: other(item, depth + 1) for key, item in dict.items(one)} or {"a": next_step()}
                else:
                    changed = base([other(item, depth + 1) for item in base.__iter__(one)] or [next_step()])
                    if base in (set, frozenset) and len(changed) > 1:
                        changed = base(list(base.__iter__(changed))[1:])
                return made(kind, base, changed)
        held = attributes(one)
        if not held or issubclass(kind, type) or kind.__module__ in ("builtins", "functools", "types", "_io"):
            return object()
        new = known[id(one)] = object.__new__(kind)
        for name, item in held.items():
            object.__setattr__(new, name, other(item, depth + 1))
        return new

    try:
        found = other(value, 0)
        kind = type(found)
        plain = type(kind) is type and not any("__init_subclass__" in vars(base) for base in type.mro(kind)[:-1])
        if is_derived and plain and kind not in (bool, object, type(None)) and not is_standard(kind):
            derived = type(kind.__name__, (kind,), {})
            for base in scalars + containers:
                if issubclass(kind, base):
                    return made(derived, base, found)
            object.__setattr__(found, "__class__", derived)
    except Exception:  # noqa: BLE001 - whatever a class does that cannot be made so
        return object()
    return found
