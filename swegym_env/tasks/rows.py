"""`CheckedRow`: a row of a dataset whose fields are checked when they are read."""

from __future__ import annotations

import ast
import datetime
import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from swegym_env.errors import TaskFormatError

__all__ = ["CheckedRow", "clip"]

_SHOWN = 60
_TRUE = (True, "1", "true", "yes", "vulnerable", "bad", "unsafe")
_FALSE = (False, "0", "false", "no", "safe", "good", "fixed", "not vulnerable", "non-vulnerable", "benign")


class CheckedRow:
    """One row of a dataset. Its methods read and check fields; an error names the row and the field."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.place = where
        name = values.get("instance_id")
        self.where = f"{where} (instance {clip(name)})" if isinstance(name, str) and name else where

    def error(self, column: str, expected: str) -> TaskFormatError:
        """The error that `column` is missing, or is not `expected`."""
        if column not in self.values:
            return TaskFormatError(f"{self.where}: field {column!r}: missing, expected {expected}")
        return TaskFormatError(
            f"{self.where}: field {column!r}: expected {expected}, got {clip(repr(self.values[column]))}"
        )

    def text(self, column: str, expected: str = "a text", *, required: bool = False) -> str:
        """The text in `column`; dates as ISO 8601. Empty if there is none and it is not `required`."""
        value = self.values.get(column)
        if isinstance(value, datetime.date):
            value = value.isoformat()
        if value is None and not required:
            return ""
        if not isinstance(value, str) or (required and not value.strip()):
            raise self.error(column, expected)
        self.check_text(column, value)
        return value

    def check_text(self, column: str, value: str) -> None:
        """Raise if `value` contains characters that cannot be written to a file or pipe."""
        # JSON can express lone surrogates.
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            writable = False
        else:
            writable = "\x00" not in value
        if not writable:
            raise self.error(column, "a text without NUL characters or lone surrogates")

    def matching(self, column: str, pattern: re.Pattern[str], expected: str) -> str:
        """The required text in `column`, which must match all of `pattern`."""
        value = self.text(column, expected, required=True)
        if not pattern.fullmatch(value):
            raise self.error(column, expected)
        return value

    def texts(self, column: str, *, required: bool = False, what: str = "names") -> tuple[str, ...]:
        """A list of texts, or one written as JSON, as in SWE-bench; `what` the texts are, for the error."""
        expected = f"a {'non-empty ' if required else ''}list of {what}, or one written as JSON"
        value = self.values.get(column)
        if isinstance(value, str):
            try:
                value = json.loads(value or "[]")
            except (ValueError, RecursionError):
                raise self.error(column, expected) from None
        if value is None and not required:
            return ()
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) and item for item in value):
            raise self.error(column, expected)
        if required and not value:
            raise self.error(column, expected)
        for item in value:
            self.check_text(column, item)
        return tuple(value)

    def literal_texts(self, column: str, *, required: bool = False) -> tuple[str, ...]:
        """As `texts`; the list may also be written as a Python literal, as datasets made by pandas have it."""
        value = self.values.get(column)
        if isinstance(value, str) and value.lstrip().startswith("["):
            try:
                value = ast.literal_eval(value)
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                return self.texts(column, required=required)  # JSON, or an error
        return CheckedRow({**self.values, column: value}, self.place).texts(column, required=required)

    def seconds(self, column: str, default: float) -> float:
        """A positive number."""
        value = self.values.get(column)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.error(column, "a positive number of seconds")
        return float(value)

    def first(self, *columns: str) -> str:
        """The first of `columns` with a value in this row; the first of all if none has one."""
        return next((column for column in columns if self.values.get(column) is not None), columns[0])

    def label(self, column: str) -> bool:
        """A boolean, as datasets write it: true, 1, "1" or "vulnerable"."""
        value = self.values.get(column)
        if isinstance(value, str):
            value = value.strip().lower()
        if isinstance(value, float | int | str):
            if value in _TRUE:
                return True
            if value in _FALSE:
                return False
        raise self.error(column, "true or false, 1 or 0, 'vulnerable' or 'safe'")

    def name(self, *columns: str, text: str) -> str:
        """An instance id from the first of `columns` with a value, else from the digest of `text`."""
        value = self.values.get(self.first(*columns))
        if value is None or value == "":
            return hashlib.sha256(text.encode()).hexdigest()[:12]
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self.error(self.first(*columns), "a name or a number")
        return re.sub(r"[\s/\x00-\x1f\x7f]+", "__", str(value).strip())

    def parsed(self, column: str, expected: str = "a mapping, or one written as JSON") -> Mapping[str, Any]:
        """A mapping, or one written as JSON; empty if the row has none."""
        value = self.values.get(column)
        if isinstance(value, str):
            try:
                value = json.loads(value or "{}")
            except (ValueError, RecursionError):
                raise self.error(column, expected) from None
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.error(column, expected)
        return value

    def check_path(self, column: str, path: object) -> None:
        """Raise if `path` is not a path inside the repository and outside of .git."""
        pure = PurePosixPath(path) if isinstance(path, str) else PurePosixPath()
        inside = not pure.is_absolute() and path == str(pure) != "." and not {"..", ".git"} & set(pure.parts)
        if not isinstance(path, str) or not inside:
            raise self.error(column, f"paths inside the repository and outside .git, not {clip(repr(path))},")
        self.check_text(column, path)

    def files(self, column: str) -> dict[str, str]:
        """A mapping from path to text, or one written as JSON."""
        expected = "a mapping from path to text, or one written as JSON"
        # A column of mappings in a parquet file has the keys of all rows, and null where a row lacks one.
        value = {path: text for path, text in self.parsed(column, expected).items() if text is not None}
        if not all(isinstance(text, str) for text in value.values()):
            raise self.error(column, expected)
        for path, text in value.items():
            self.check_path(column, path)
            self.check_text(column, text)
        return value


def clip(text: Any) -> str:
    """`text` shortened to one line, for an error message."""
    shown = str(text).encode("utf-8", "backslashreplace").decode("utf-8")
    shown = " ".join(shown.split())
    return shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + "…"
