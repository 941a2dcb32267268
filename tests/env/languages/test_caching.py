"""Parsed sources are cached for one patch, or for one task; what is found in a small patch for its next verdict too."""

from __future__ import annotations

from swegym_env.languages.caching import cached_for_patch, cached_for_patches, cached_for_task, patch_cache


def test_a_result_is_kept_for_one_patch_alone() -> None:
    asked: list[tuple[int, int]] = []

    @cached_for_patch(lambda first, *, second: 0)
    def total(first: int, *, second: int) -> int:
        asked.append((first, second))
        return first + second

    with patch_cache():
        assert [total(1, second=2), total(1, second=2), total(2, second=2)] == [3, 3, 4]
        with patch_cache():  # a part of the patch is a patch of its own
            assert total(1, second=2) == 3
        assert total(1, second=2) == 3
    assert asked == [(1, 2), (2, 2), (1, 2)]
    total(1, second=2)
    total(1, second=2)
    assert len(asked) == 5, "outside of a verdict nothing is kept"


def test_a_patch_of_many_files_is_not_kept_whole() -> None:
    asked: list[int] = []

    @cached_for_patch(lambda number: 0)
    def double(number: int) -> int:
        asked.append(number)
        return 2 * number

    with patch_cache():
        for _ in range(2):
            assert [double(number) for number in range(100)] == [2 * number for number in range(100)]
    assert 100 < len(asked) < 200


def test_small_files_of_a_task_are_kept_for_all_patches_and_large_ones_not() -> None:
    asked: list[str] = []

    @cached_for_task(len)
    def upper(text: str) -> str:
        asked.append(text)
        return text.upper()

    large = "a" * 100_000
    for _ in range(2):
        with patch_cache():
            assert (upper("small"), upper(large)) == ("SMALL", large.upper())
    assert asked == ["small", large, large]


def test_what_was_found_in_a_small_patch_is_known_when_it_comes_again() -> None:
    asked: list[str] = []

    @cached_for_patches(len)
    def lines(patch: str) -> int:
        asked.append(patch)
        return patch.count("\n")

    large = "\n" * 100_000
    for _ in range(2):
        with patch_cache():
            assert (lines("+\n"), lines(large)) == (1, 100_000)
    assert asked == ["+\n", large, large]
