"""Search/replace blocks: read, write and apply them.

    path/to/file.py
    <<<<<<< SEARCH
    lines as they are
    =======
    lines as they shall be
    >>>>>>> REPLACE

Pure functions on the standard library alone. The tool `edit` brings a copy of this file into the sandbox and runs it
with the Python that is there, so it must work on Python 3.6 and import nothing else.
"""

# ruff: noqa: B905, RUF100, UP006, UP035 - Python 3.6

import difflib
import re
from collections import Counter
from typing import Callable, Iterator, List, NamedTuple, Pattern, Tuple

__all__ = ["Block", "BlockError", "Change", "nearest_lines", "numbered", "read_blocks", "replace_once", "write_blocks"]

_SEARCH = re.compile(r"<{5,9} ?SEARCH>?[ \t]*\r?$")
_MIDDLE = re.compile(r"={5,9}[ \t]*\r?$")
_REPLACE = re.compile(r">{5,9} ?REPLACE[ \t]*\r?$")
_PATH = re.compile(r"[^\s<>|\"']+$")
_PART_OF_PATH = re.compile(r"/|\.\w")
_BARE_NAMES = ("Makefile", "Dockerfile", "LICENSE", "README", "Gemfile", "Rakefile")
_CONTEXT = 3  # lines shown around the nearest match
_COMPARED_LINES = 20000  # longer texts are not searched for similar lines
_LONGEST_LINE = 1000  # characters of a line that are shown
_NUMBERED = re.compile(r" *\d+\t")  # as `numbered` and the tool `view` begin a line


class Block(NamedTuple):
    """In the file `path`, replace `search` by `replace`; an empty `search` creates the file. Both are whole lines."""

    path: str
    search: str
    replace: str


class Change(NamedTuple):
    """A text after a replacement.

    Attributes:
        text: the whole new text.
        line: number of the first line of the replacement, from 1.
        lines: how many lines it has.
        note: how the place was found if not exactly; else empty.
    """

    text: str
    line: int
    lines: int
    note: str


class BlockError(ValueError):
    """Blocks that cannot be read or applied; the message tells the agent why, and what the file contains instead."""


def read_blocks(text: str) -> List[Block]:
    """All blocks in `text`, in order; an empty list if there is none.

    The path is on the line before the block, or before its code fence; a block directly after another one may omit it.

    Raises:
        BlockError: a block is not closed, has no middle, or no path before it.
    """
    blocks = []  # type: List[Block]
    path = ""
    before = ""  # the last line outside of blocks, which may be the path
    lines = iter(enumerate(text.split("\n"), 1))
    for number, line in lines:
        if not _SEARCH.match(line):
            if line.strip() and not line.lstrip().startswith("```"):
                before = line
            continue
        path = _as_path(before) or path
        before = ""
        if not path:
            raise BlockError(f"the block at line {number} has no file: write its path on the line before")
        search, closed = _until(lines, _MIDDLE, _REPLACE)
        if not closed:
            raise BlockError(f"the block at line {number} ({path}) has no line =======")
        replace, closed = _until(lines, _REPLACE, _SEARCH)
        if not closed:
            raise BlockError(f"the block at line {number} ({path}) has no line >>>>>>> REPLACE")
        blocks.append(Block(path, search, replace))
    return blocks


def write_blocks(blocks: List[Block]) -> str:
    """Text that `read_blocks` reads back, if no line of a block looks like a marker."""
    form = "{0.path}\n<<<<<<< SEARCH\n{0.search}=======\n{0.replace}>>>>>>> REPLACE\n"
    return "\n".join(form.format(block) for block in blocks)


def replace_once(text: str, search: str, replace: str, *, whole_lines: bool = False) -> Change:
    """Replace the one occurrence of `search` in `text`.

    Tries the exact text; then whole lines that differ in trailing white space; then lines that differ in indentation,
    by which the replacement is shifted.

    Args:
        whole_lines: the exact text must begin at the beginning of a line too, as that of a block does.

    Raises:
        BlockError: no such place, or several, which may overlap.
    """
    if not search.strip():
        raise BlockError("the text to search for is blank: give whole lines of the file")
    start = "\n" if whole_lines else ""
    within, sought = start + text, start + search  # a position is the same in `text` and in `within`
    places = []  # type: List[int]
    at = within.find(sought)
    while at >= 0:
        places.append(at)
        at = within.find(sought, at + 1)
    if len(places) == 1:
        at = places[0]
        return _changed(text[:at], replace, text[at + len(search) :], "")
    if places:
        numbers = sorted({text.count("\n", 0, at) + 1 for at in places[:100]})
        more = ", …" if len(numbers) > 5 or len(places) > 100 else ""
        raise BlockError(
            "the text to search for occurs {} times (at lines {}{}): add lines around it until it is unique".format(
                len(places), ", ".join(map(str, numbers[:5])), more
            )
        )
    lines, wanted = text.split("\n"), search.strip("\n").split("\n")
    for key, note in ((str.rstrip, "blanks at line ends differed"), (str.strip, "indentation differed")):
        found = _windows(lines, wanted, key)
        if len(found) > 1:
            raise BlockError(
                "the text to search for is not in the file exactly, and {} times where {} (at lines {}): copy the "
                "lines as they are".format(len(found), note, ", ".join(str(at + 1) for at in found[:5]))
            )
        if found:
            return _replace_lines(lines, found[0], wanted, replace, note)
    without_numbers = "\n".join(_NUMBERED.sub("", line, 1) for line in wanted)
    if all(_NUMBERED.match(line) for line in wanted) and without_numbers in text:
        raise BlockError(
            "the text to search for begins its lines with line numbers, which are not in the file: leave them out"
        )
    if re.search(r"\\[nt]", search) and search.replace("\\n", "\n").replace("\\t", "\t") in text:
        raise BlockError(
            r"the text to search for has \n or \t as two characters where the file has a line break or a tab: "
            "write the line break or the tab itself"
        )
    raise BlockError(
        "the text to search for{} is not in the file.{}".format(
            ", which has to be whole lines," if whole_lines else "", nearest_lines(lines, wanted)
        )
    )


def numbered(lines: List[str], start: int, end: int, marked: int = 0) -> Iterator[str]:
    """`lines[start:end]` with their numbers, the line numbered `marked` behind ">"; long lines are cut.

    Bounds outside of the lines are moved to their ends. The empty string after the last line break is not a line.
    """
    count = len(lines) - (lines[-1:] == [""])
    for number, line in enumerate(lines[max(0, start) : min(count, end)], max(0, start) + 1):
        left = len(line) - _LONGEST_LINE
        shown = f"{line[:_LONGEST_LINE]} [... {left} more characters]" if left > 0 else line
        yield "{}{:5}\t{}".format(">" if number == marked else " ", number, shown)


def nearest_lines(lines: List[str], wanted: List[str]) -> str:
    """The part of `lines` most similar to `wanted`, with line numbers, as the end of a message."""
    if len(lines) > _COMPARED_LINES:
        return " (The file is too long to look for what is nearest.)"
    size = min(len(wanted), len(lines))
    keys, sought = [line.strip() for line in lines], Counter(line.strip() for line in wanted if line.strip())
    best, at = _most_shared(keys, sought, size)
    if not best:
        first = next((line.strip() for line in wanted if line.strip()), "")
        close = difflib.get_close_matches(first, [key for key in keys if key], n=1, cutoff=0.5)
        if not close:
            return " Nothing in it is similar."
        at, size = keys.index(close[0]), 1
    start = max(0, at - _CONTEXT)
    shown = "\n".join(numbered(lines, start, min(at + size + _CONTEXT, start + 60)))
    return f" The nearest lines are\n{shown}"


def _most_shared(keys: List[str], sought: "Counter[str]", size: int) -> Tuple[int, int]:
    """The largest number of `sought` lines within any `size` lines, and its position; the first one of equals."""
    have = Counter()  # type: Counter[str]
    shared = best = at = 0
    for number, key in enumerate(keys):
        if number >= size and keys[number - size] in sought:
            gone = keys[number - size]
            shared -= have[gone] <= sought[gone]
            have[gone] -= 1
        if key in sought:
            have[key] += 1
            shared += have[key] <= sought[key]
        if shared > best:
            best, at = shared, max(0, number - size + 1)
    return best, at


def _windows(lines: List[str], wanted: List[str], key: Callable[[str], str]) -> List[int]:
    have, sought = [key(line) for line in lines], [key(line) for line in wanted]
    last = len(have) - len(sought)
    return [at for at in range(last + 1) if have[at] == sought[0] and have[at : at + len(sought)] == sought]


def _replace_lines(lines: List[str], at: int, wanted: List[str], replace: str, note: str) -> Change:
    """Replace the lines that match `wanted` by `replace`, with their indentation and line ends."""
    there = lines[at : at + len(wanted)]
    ending = "\r" if there[0].endswith("\r") else ""
    old, new = next(
        ((_indent(mine), _indent(theirs)) for mine, theirs in zip(wanted, there) if theirs.strip()), ("", "")
    )
    fresh = replace.strip("\n").split("\n") if replace.strip("\n") else []
    fresh = [_shift(line.rstrip("\r"), old, new) + ending for line in fresh]
    return Change("\n".join(lines[:at] + fresh + lines[at + len(wanted) :]), at + 1, len(fresh), note)


def _shift(line: str, old: str, new: str) -> str:
    if not line.strip() or old == new:
        return line
    if line.startswith(old):
        return new + line[len(old) :]
    # Less indented than the first line sought: by as much less.
    return new[: max(0, len(new) - len(old) + len(_indent(line)))] + line.lstrip()


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _changed(before: str, middle: str, after: str, note: str) -> Change:
    return Change(before + middle + after, before.count("\n") + 1, middle.rstrip("\n").count("\n") + 1, note)


def _until(lines: Iterator[Tuple[int, str]], end: Pattern[str], wrong: Pattern[str]) -> Tuple[str, bool]:
    """The lines before one that matches `end`, and whether there is one before `wrong` and the end of the text."""
    taken = []  # type: List[str]
    for _, line in lines:
        if end.match(line):
            return "".join(text + "\n" for text in taken), True
        if wrong.match(line):
            break
        taken.append(line)
    return "", False


def _as_path(line: str) -> str:
    """The path that a line names, plain or as heading, in backquotes, bold or with a colon; else empty."""
    text = line.strip().strip("#*` \t").rstrip(":").strip("*` \t")
    for prefix in ("File:", "file:", "Path:", "path:"):
        if text.startswith(prefix):
            text = text[len(prefix) :].strip("*` \t")
    return text if (_PATH.match(text) and _PART_OF_PATH.search(text)) or text in _BARE_NAMES else ""
