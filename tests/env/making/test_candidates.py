"""Candidates: their order depends on the seed alone, and they break what tests reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from swegym_env.errors import ConfigurationError
from swegym_env.making.candidates import REVERT, Candidate, candidates
from swegym_env.making.repository import MadeRepository
from swegym_env.making.sources import Source, read_source


@pytest.fixture(scope="module")
def shelf(project: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Source, MadeRepository]:
    source = read_source(str(project))
    return source, MadeRepository(tmp_path_factory.mktemp("made") / "repository.git", source.files)


def found(
    shelf: tuple[Source, MadeRepository], lines: range, *, seed: int = 0, kinds: tuple[str, ...] = ()
) -> list[Candidate]:
    return list(candidates(*shelf, {"shelf.py": lines, "tests/test_shelf.py": lines}, seed=seed, kinds=kinds))


def test_equal_seeds_give_the_same_sequence_and_others_another(shelf: tuple[Source, MadeRepository]) -> None:
    first, again, other = (found(shelf, range(1, 40), seed=seed) for seed in (0, 0, 1))
    assert [one.key for one in first] == [one.key for one in again]
    assert [one.key for one in first] != [one.key for one in other]
    assert {one.key for one in first} == {one.key for one in other} and len({one.key for one in first}) == len(first)


def test_reverted_commits_come_first_and_kinds_take_turns(shelf: tuple[Source, MadeRepository]) -> None:
    kinds = [one.kind for one in found(shelf, range(1, 40))]
    assert kinds[0] == REVERT
    turn = kinds[: len(set(kinds))]
    assert sorted(turn) == sorted(set(kinds))


def test_only_reached_lines_of_source_files_are_broken(shelf: tuple[Source, MadeRepository]) -> None:
    some = found(shelf, range(28, 32), kinds=("off-by-one", "dropped-term"))
    assert some
    for one in some:
        assert set(one.files) == {"shelf.py"} and one.lines["shelf.py"] & set(range(28, 32))


def test_an_unknown_kind_is_refused(shelf: tuple[Source, MadeRepository]) -> None:
    with pytest.raises(ConfigurationError, match="no kind of mistake 'typo'; there are wrong-operator"):
        found(shelf, range(1), kinds=("typo",))
