"""Names that stand in tables of a repository, and how many of them a text holds."""

from __future__ import annotations

import pytest

from swegym_env.grading.tables import Tables, count_names, is_name

_FILES = {
    "a tuple": b"NAMES = ('euro', 'yen', 'pound', 'franc')\n",
    "lines of a list": b"NAMES = [\n    'euro',  # the first one\n    'yen',\n    'pound',\n    'franc',\n]\n",
    "keys": b"RATES = {'euro': 1, 'yen': 162.5, 'pound': 0.85, 'franc': f(2)}\n",
    "members": b"class Coin(Enum):\n    EURO = 'euro'\n    YEN = 'yen'\n    POUND = 'pound'\n    FRANC = 'franc'\n",
    "an array of another language": b'const names = ["euro", "yen", "pound", "franc"];\n',
}


@pytest.mark.parametrize("name", _FILES)
def test_the_other_names_of_a_table_are_companions(name: str) -> None:
    tables, contents = Tables(["yen", "dollar"]), [b"x = 1\n", _FILES[name]]
    assert list(tables.reading(contents)) == contents
    assert tables.companions() == {"yen": {"euro", "pound", "franc"}, "dollar": frozenset()}


def test_a_file_that_nobody_has_taken_is_not_read() -> None:
    tables = Tables(["yen"])
    reading = tables.reading([b"x = 1\n", _FILES["a tuple"]])
    assert next(reading) == b"x = 1\n"
    assert tables.companions() == {"yen": frozenset()}
    assert list(reading) == [_FILES["a tuple"]]
    assert tables.companions() == {"yen": {"euro", "pound", "franc"}}


def test_texts_that_stand_apart_are_no_table() -> None:
    content = b"def f(x):\n    if x == 'yen':\n        return g('euro') + 'pound'\n    raise ValueError('franc')\n"
    tables = Tables(["yen"])
    assert list(tables.reading([content])) == [content]
    assert tables.companions() == {"yen": frozenset()}


def test_names_are_counted_as_words_in_the_texts_of_a_value() -> None:
    names = ("euro", "yen", "pound")
    assert count_names(names, "1 euro is 162 yen") == 2
    assert count_names(names, ["euros", ("pound", 3)]) == 1
    assert count_names((), "euro") == 0


def test_a_name_is_one_word() -> None:
    assert is_name("row_47") and is_name("a.b-c")
    assert not any(map(is_name, ("a row", "47", "ab", 47, "")))
