"""The format of search/replace blocks. An answer without a block is a command, as in `execute`."""

from __future__ import annotations

from swegym_env.agent.actions import Action, ActionFormat, Edits, Malformed, not_text
from swegym_env.agent.formats.scanning import THOUGHT_ENDS, Openings, delimited, find_opening
from swegym_env.agent.formats.shell import EXECUTE
from swegym_env.agent.search_replace import BlockError, read_blocks

__all__ = ["SEARCH_REPLACE"]

_MARK = "<<<<<<< SEARCH"


def _parse(text: str) -> Action:
    first = Openings(text, _MARK, ">>>>>>> REPLACE").next() if _MARK in text else -1
    if first < 0:
        if delimited(text, "<execute>", "</execute>"):
            return EXECUTE.parse(text)
        return Malformed(
            "No action found. Write search/replace blocks, each after the path of its file, or one command as "
            "<execute>COMMAND</execute>, or <execute>submit</execute> to hand in your work. Nothing was done."
        )
    # The path of the file is before the mark: everything after the last thought may matter.
    begun = [at + len(end) for end in THOUGHT_ENDS if (at := text.rfind(end, 0, first)) >= 0]
    answer = text[max(begun, default=0) :]
    if fault := not_text(answer):
        return Malformed(f"The answer holds {fault}, which no file of text does. Nothing was changed.")
    try:
        blocks = read_blocks(answer)
    except BlockError as error:
        return Malformed(f"The search/replace blocks cannot be read: {error}. Nothing was changed.")
    if not blocks:
        return Malformed(f"A line that reads {_MARK} must begin a block, and stand alone. Nothing was changed.")
    return Edits(tuple(blocks))


SEARCH_REPLACE = ActionFormat(
    "search_replace",
    _parse,
    EXECUTE.write,
    "Change files by search/replace blocks, as many as you like in one answer, each after a line with the path of its "
    "file:\n\n"
    "path/to/file.py\n<<<<<<< SEARCH\nlines as they are\n=======\nlines as they shall be\n>>>>>>> REPLACE\n\n"
    "The lines to search for must be in the file exactly once. An empty SEARCH makes a new file. An answer without a "
    "block is one command, written as <execute>COMMAND</execute>.",
    find=lambda text: find_opening(text, _MARK),
)
