"""How alike two patches are, by hand and by property."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swegym_env.judging.similarity import similarity, split_patch

from .conftest import GOLD


def test_sections_are_found_in_both_forms() -> None:
    assert split_patch("chatter\n" + GOLD + GOLD) == (GOLD, GOLD)
    plain = GOLD.split("\n", 1)[1]
    assert split_patch(plain) == (plain,)
    assert split_patch("") == split_patch("nothing here") == ()


def test_similarity_by_hand() -> None:
    assert similarity(GOLD, GOLD) == similarity("", "") == 1.0
    assert similarity("", GOLD) == similarity(GOLD, "") == 0.0
    moved = GOLD.replace("@@ -1,5 +1,5 @@", "@@ -7,5 +9,5 @@ def x():")
    assert similarity(moved, GOLD) == 1.0  # positions do not count
    near, far = GOLD.replace("a + b", "a * b"), GOLD.replace("return a + b", "raise NotImplementedError")
    assert 0 < similarity(far, GOLD) < similarity(near, GOLD) < 1
    # Another file besides the right one: the mean of 1 and 0.
    assert similarity(GOLD + GOLD.replace("calc/add.py", "calc/other.py"), GOLD) == pytest.approx(0.5)
    # Two hunks of 4 characters that share 2 of them ("@@\n" and one line each): difflib's 2 · M / T.
    a, b = ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n" + text for text in ("+ab\n", "+ac\n"))
    assert similarity(a, b) == pytest.approx(2 * 6 / 14)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=300), st.text(max_size=300))
def test_similarity_takes_anything_and_is_a_share(one: str, other: str) -> None:
    assert 0.0 <= similarity(one, other) <= 1.0
    patch = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n"
    assert 0.0 <= similarity(patch + one, patch + other) <= 1.0
