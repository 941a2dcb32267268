"""A small project as a git repository with a history, and its tests' requirements without a network."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.env.wheels import write_wheels

SOURCE = '''\
"""A shelf of books."""

LIMIT = 3  # books


class Shelf:
    """Holds books, oldest first."""

    def __init__(self, limit=LIMIT):
        self.limit = limit
        self.books = []

    def add(self, title, year):
        if not title:
            raise ValueError("a title is needed")
        if len(self.books) >= self.limit:
            self.books.pop(0)
        self.books.append((year, title))
        return len(self.books)

    def titles(self):
        return [title for _, title in sorted(self.books)]


def spans(years):
    if not years:
        return 0
    return max(years) - min(years) + 1


def century(year):
    return (year - 1) // 100 + 1
'''
FIRST = SOURCE.replace("    if not years:\n        return 0\n", "")
TESTS = """\
import os

import pytest

from shelf import Shelf, century, spans


def test_titles_are_in_order_of_their_years():
    shelf = Shelf()
    shelf.add("b", 2000)
    assert shelf.add("a", 1990) == 2
    assert shelf.titles() == ["a", "b"]


class TestLimit:
    def test_oldest_goes(self):
        shelf = Shelf(limit=2)
        for number, title in enumerate("abc"):
            shelf.add(title, 2000 + number)
        assert shelf.titles() == ["b", "c"]

    def test_needs_title(self):
        with pytest.raises(ValueError):
            Shelf().add("", 2000)


@pytest.mark.parametrize("year, expected", [(1900, 19), (1901, 20)], ids=["last of it", "first"])
def test_century(year, expected):
    assert century(year) == expected


def test_spans():
    assert spans([1990, 2000]) == 11


def test_seeds():
    assert os.environ.get("SEEN") is None
    os.environ["SEEN"] = "1"
"""
MORE = "from shelf import spans\n\n\ndef test_no_years():\n    assert spans([]) == 0\n"
UNSTABLE = "import os\n\n\ndef test_needs_the_other_file():\n    assert os.environ.get('SEEN')\n"


@pytest.fixture(scope="session")
def wheels(public_directory: Path) -> Path:
    return write_wheels(public_directory / "wheels")


@pytest.fixture(scope="session")
def project(public_directory: Path) -> Path:
    """A repository of two commits: the second fixes a bug and adds its test."""
    place = public_directory / "shelf"
    (place / "tests").mkdir(parents=True)
    git = ["git", "-C", str(place), "-c", "user.name=x", "-c", "user.email=x@x"]
    subprocess.run([*git, "init", "-q"], check=True)
    for message, files in (
        ("begin", {"shelf.py": FIRST, "tests/test_shelf.py": TESTS, "tests/test_zz.py": UNSTABLE, "README": "Shelf\n"}),
        ("mend", {"shelf.py": SOURCE, "tests/test_more.py": MORE}),
    ):
        for path, text in files.items():
            (place / path).write_text(text)
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-qm", message], check=True)
    return place
