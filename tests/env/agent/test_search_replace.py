"""Search/replace: exact first, then tolerant, and what is nearest where nothing fits."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swegym_env.agent.search_replace import Block, BlockError, nearest_lines, read_blocks, replace_once

TEXT = "def f(a):\n    return a\n\n\ndef g(b):\n    if b:\n        return 1\n    return 2\n"
_LINES = st.lists(st.text("ab \t=<>", max_size=6), max_size=12)


def test_exact_match_is_replaced():
    made = replace_once(TEXT, "return a", "return a + 1")
    assert (made.text, made.line, made.lines, made.note) == (TEXT.replace("return a", "return a + 1"), 2, 1, "")


def test_trailing_white_space_may_differ():
    made = replace_once("one  \ntwo\t\n", "one\ntwo\n", "three\n")
    assert made.text == "three\n" and made.note == "blanks at line ends differed"


def test_indentation_may_differ_and_the_replacement_is_shifted():
    made = replace_once(TEXT, "if b:\n    return 1\n", "if not b:\n    return 3\nelse:\n    pass\n")
    assert made.text.endswith("    if not b:\n        return 3\n    else:\n        pass\n    return 2\n")
    assert made.note == "indentation differed"


def test_last_line_without_newline_matches():
    assert replace_once("a\nb", "b\n", "c\n").text == "a\nc"


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ("return", "occurs 3 times (at lines 2, 7, 8)"),
        ("  \n", "is blank"),
        ("def f(a, c):\n    return a\n", "     2\t    return a"),
        ("def gee(b):", "     5\tdef g(b):"),
        ("zzzzzz", "Nothing in it is similar."),
    ],
)
def test_missing_or_ambiguous_match_is_reported(search, message):
    with pytest.raises(BlockError) as raised:
        replace_once(TEXT, search, "x")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("text", "search", "whole_lines"),
    [("aaa\n", "aa", False), ("x\ny\nx\ny\nx\n", "x\ny\nx\n", False), ("x\ny\nx\ny\nx\n", "x\ny\nx\n", True)],
)
def test_places_that_overlap_are_several(text, search, whole_lines):
    with pytest.raises(BlockError, match="occurs 2 times"):
        replace_once(text, search, "z\n", whole_lines=whole_lines)


def test_whole_lines_do_not_match_the_end_of_a_line():
    text = "if a:\n    if b:\n        return 1\n    return 1\ntotal = 1\n"
    made = replace_once(text, "    return 1\n", "    return 2\n", whole_lines=True)
    assert made.text == text.replace("\n    return 1\n", "\n    return 2\n") and made.note == ""
    made = replace_once("    return 1\n", "return 1\n", "a = 1\nreturn a\n", whole_lines=True)
    assert made.text == "    a = 1\n    return a\n" and made.note == "indentation differed"
    with pytest.raises(BlockError, match="is not in the file"):
        replace_once(text, "otal = 1\n", "x = 1\n", whole_lines=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE", "has no file"),
        ("a.py\n<<<<<<< SEARCH\na\n>>>>>>> REPLACE", "has no line ======="),
        ("a.py\n<<<<<<< SEARCH\na\n=======\nb", "has no line >>>>>>> REPLACE"),
        ("a.py\n<<<<<<< SEARCH\na\n=======\nb\n<<<<<<< SEARCH\n", "has no line >>>>>>> REPLACE"),
        ("Here is it\n<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE", "has no file"),
    ],
)
def test_incomplete_block_is_reported(text, message):
    with pytest.raises(BlockError, match=message):
        read_blocks(text)


@pytest.mark.parametrize(
    "line", ["a/b.py", "### a/b.py", "`a/b.py`", "**a/b.py**:", "File: a/b.py", "a/b.py\n```python"]
)
def test_path_may_have_markdown_around_it(line):
    assert read_blocks(f"{line}\n<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE") == [Block("a/b.py", "x\n", "y\n")]


def test_a_line_before_a_block_is_read_in_linear_time():
    def seconds(size):
        begun = time.process_time()
        with pytest.raises(BlockError, match="has no file"):
            read_blocks("a/" * size + " b\n<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE")
        return time.process_time() - begun

    small, large = (min(seconds(size), seconds(size)) for size in (1 << 10, 1 << 12))
    assert large < 0.025 or large < 10 * small  # 16 times if it were quadratic; less is too short to measure


@given(lines=_LINES, at=st.integers(0, 11), size=st.integers(1, 4), new=_LINES)
def test_replacement_changes_nothing_else(lines, at, size, new):
    text = "".join(f"{line}\n" for line in lines)
    search = "".join(f"{line}\n" for line in lines[at : at + size])
    replace = "".join(f"{line}\n" for line in new)
    if not search.strip() or text.find(search) < text.rfind(search):  # several places, which may overlap
        with pytest.raises(BlockError):
            replace_once(text, search, replace)
        return
    made = replace_once(text, search, replace)
    assert made.text.count("\n") == text.count("\n") - search.count("\n") + replace.count("\n")
    assert text.partition(search)[0] + replace + text.partition(search)[2] == made.text


@given(lines=_LINES, wanted=_LINES.filter(bool))
def test_nearest_lines_are_lines_of_the_file(lines, wanted):
    output = nearest_lines(lines, wanted)
    for line in output.split("\n")[1:]:
        number, _, shown = line.partition("\t")
        assert lines[int(number) - 1] == shown
