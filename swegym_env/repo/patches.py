"""Patches as text: read, reversed, compared and written.

Patches are parsed here and not by `unidiff`: the paths that a patch touches decide which parts of it are graded, so the
parser has to see every file that `git apply` would write. `unidiff` 1.0 does not decode quoted names, takes no paths
from `rename` lines, and raises where a hunk is shorter than its header says. `tests/env/repo/test_patches.py` shows
this, and compares the two parsers on the diffs that git prints.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from swegym_env.errors import TaskFormatError

__all__ = [
    "FilePatch",
    "LineEdit",
    "added_lines",
    "apply_edits",
    "apply_hunks",
    "count_changed_lines",
    "git_diff",
    "parse_patch",
    "refusal",
    "refused_patch",
    "reverse_patch",
    "runnable_test_files",
    "similarity",
    "touched_paths",
    "without_sections",
]

_HUNK = re.compile(r"@@ -(?P<old>\d{1,9}(?:,\d{1,9})?) \+(?P<new>\d{1,9}(?:,\d{1,9})?) @@(?P<rest>.*)", re.DOTALL)
_COUNTS = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@")
_HEADER_PATH = re.compile(r"(?:---|\+\+\+) (?:[abciw]/)?(\S.*?)(?:\t.*)?$|(?:rename|copy) (?:from|to) (.+)$")
_GIT_HEADER = re.compile(
    r'"a/(?P<quoted>(?:[^"\\]|\\.)*)" "b/(?P<quoted_b>(?:[^"\\]|\\.)*)"$|a/(?P<plain>.*) b/(?P<plain_b>.*)$'
)
_KNOWN_CHARS = 1 << 16  # of a patch whose sections are kept
_DATA_FILES = (".json", ".png", ".csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")


@dataclass(frozen=True)
class FilePatch:
    """The section of a patch that changes one file.

    Attributes:
        header: the lines before the first hunk.
        body: the hunks, or the binary data, up to the next section.
    """

    header: str
    body: str

    @property
    def text(self) -> str:
        """The section as it stands in the patch."""
        return self.header + self.body

    @cached_property
    def paths(self) -> frozenset[str]:
        """Every path that the header names as changed, created, removed, or as either end of a rename or copy.

        The patch may be hostile: a header that can be read in several ways gives all of them.
        """
        lines = self.header.split("\n")
        found = {_unquoted(match[1] or match[2]) for line in lines if (match := _HEADER_PATH.match(line))}
        return frozenset(found - {"/dev/null"} | self._git_names())

    @property
    def new_path(self) -> str | None:
        """The path of the file after the patch; None where the patch deletes it."""
        if re.search(r"^(\+\+\+ /dev/null|deleted file mode)", self.header, re.MULTILINE):
            return None
        names = self._git_names() or self.paths
        renamed = re.search(r"^(?:\+\+\+ (?:b/)?|(?:rename|copy) to )([^\n\t]+)", self.header, re.MULTILINE)
        return _unquoted(renamed[1]) if renamed and len(names) != 1 else min(names, default=None)

    def _git_names(self) -> set[str]:
        """The names in the line `diff --git a/… b/…`: two equal halves, as git divides it, else every reading of it."""
        line, _, _ = self.header.partition("\n")
        if not line.startswith("diff --git "):
            return set()
        names = line.removeprefix("diff --git ")
        half = (len(names) - 1) // 2
        one, other = names[:half], names[half + 1 :]
        if one.lstrip('"')[1:] == other.lstrip('"')[1:]:
            return {_unquoted(one)[0 if one.startswith('"') else 2 :]}
        match = _GIT_HEADER.match(names)
        readings = match.groupdict().values() if match else ()
        return {_unquoted(f'"a/{name}"') for name in readings if name is not None}


def parse_patch(patch: str) -> tuple[FilePatch, ...]:
    """The sections of a git or plain unified diff, as `git apply` divides it; text before the first is dropped.

    A section begins with `diff --git`, or with `---` and `+++` lines that belong neither to such a section's header nor
    to a hunk, by the counts in the hunk's header. Takes time linear in the patch, and any text at all.
    """
    return _known_sections(patch) if len(patch) <= _KNOWN_CHARS else _sections(patch)


def _sections(patch: str) -> tuple[FilePatch, ...]:
    starts: list[int] = []
    bodies: list[int] = []  # where the body of each section starts
    old = new = 0  # lines that the current hunk still needs
    following, end = 0, len(patch)
    while following < end:  # no list of lines: a hostile patch may have millions
        at, following = following, patch.find("\n", following) + 1 or end
        if (old or new) and patch[at] in " -+\\\r\n":
            old = max(0, old - (patch[at] not in "+\\"))
            new = max(0, new - (patch[at] not in "-\\"))
            continue
        old = new = 0
        in_header = len(bodies) < len(starts)
        is_plain = patch.startswith("--- ", at) and patch.startswith("+++ ", following)
        if patch.startswith("diff --git ", at) or (is_plain and not in_header):
            bodies += [at] * in_header
            starts.append(at)
        elif starts and patch.startswith(("@@ ", "GIT binary patch", "Binary files "), at):
            bodies += [at] * in_header
            if hunk := _HUNK.match(patch, at, following):
                old, new = (int((hunk[side] + ",1").split(",")[1]) for side in ("old", "new"))
    ends = [*starts[1:], end]
    bodies += [end] * (len(starts) - len(bodies))
    return tuple(
        FilePatch(patch[start:body], patch[body:stop]) for start, body, stop in zip(starts, bodies, ends, strict=False)
    )


_known_sections = lru_cache(maxsize=128)(_sections)  # grading asks some ten times for those of one patch

_REFUSED = "# refused: "


def refused_patch(reason: str) -> str:
    """What stands in place of a patch that is not made because of the agent's files: one line, and no section."""
    return f"{_REFUSED}{' '.join(reason.split())}\n"


def refusal(patch: str) -> str:
    """Why there is no patch, where `patch` is a refused one or cannot be the bytes of any; else empty."""
    if patch.startswith(_REFUSED):
        return patch.removeprefix(_REFUSED).strip()
    try:
        patch.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return "it holds half of a surrogate pair, which no file does"
    return ""


def apply_hunks(text: str, body: str) -> tuple[str, set[int], set[int]] | None:
    """Apply the hunks of a section to a text, by the counts in their headers.

    Returns:
        The text, and the line numbers (from 1) of the lines added in it and of those removed from the text before;
        None if the hunks do not fit at their line numbers.
    """
    before, after = text.split("\n"), []
    added: set[int] = set()
    removed: set[int] = set()
    position = old = new = 0
    for line in body.removesuffix("\n").split("\n"):
        if not old and not new and line[:1] in ("", "\\"):
            continue
        if not old and not new:
            hunk = _COUNTS.match(line)
            begin = max(int(hunk[1]) - (hunk[2] != "0"), 0) if hunk else -1
            if hunk is None or not position <= begin <= len(before):
                return None
            after += before[position:begin]
            position, old, new = begin, int(hunk[2] or 1), int(hunk[3] or 1)
        elif line[:1] == "+":
            after.append(line[1:])
            added.add(len(after))
            new -= 1
        elif line[:1] in ("-", " ", ""):
            if position >= len(before) or before[position] != line[1:]:
                return None
            position += 1
            old -= 1
            if line[:1] == "-":
                removed.add(position)
            else:
                after.append(line[1:])
                new -= 1
        elif line[:1] != "\\":
            return None
        if old < 0 or new < 0:
            return None
    return None if old or new else ("\n".join([*after, *before[position:]]), added, removed)


def touched_paths(patch: str) -> frozenset[str]:
    """Every path that a patch names, see `FilePatch.paths`."""
    return frozenset().union(*(part.paths for part in parse_patch(patch)))


def added_lines(patch: str) -> dict[str, frozenset[int]]:
    """Path → line numbers, in the patched file, of the lines that a patch adds."""
    found: dict[str, frozenset[int]] = {}
    for part in parse_patch(patch):
        number, lines = 0, set()
        for line in part.body.split("\n"):
            if hunk := _HUNK.match(line):
                number = int(hunk["new"].partition(",")[0])
            elif number and line.startswith("+"):
                lines.add(number)
                number += 1
            elif number and not line.startswith(("-", "\\")):
                number += 1
        found |= dict.fromkeys(part.paths, frozenset(lines))
    return found


def count_changed_lines(patch: str) -> tuple[int, int]:
    """The number of lines that a patch adds, and that it removes."""
    bodies = [part.body for part in parse_patch(patch) if part.body.startswith("@@ ")]
    return sum(body.count("\n+") for body in bodies), sum(body.count("\n-") for body in bodies)


def without_sections(patch: str, is_suspect: Callable[[str], bool]) -> tuple[str, ...]:
    """The patch without its suspect sections, and without those of them that add files; see `Language.without_means`.

    Args:
        is_suspect: of the text of a section.
    Returns:
        The smaller part first; empty parts are left out, and the whole patch.
    """
    sections = parse_patch(patch)
    suspect = [is_suspect(section.text) for section in sections]
    added = ["\nnew file mode " in section.header for section in sections]
    parts = (
        "".join(section.text for section, bad in zip(sections, suspect, strict=True) if not bad),
        "".join(section.text for section, bad, new in zip(sections, suspect, added, strict=True) if not (bad and new)),
    )
    return tuple(dict.fromkeys(part for part in parts if part and part != patch))


def runnable_test_files(test_patch: str) -> list[str]:
    """The files of a test patch that a test runner can be given: those that exist after it and hold no data."""
    paths = {part.new_path for part in parse_patch(test_patch)}
    return sorted(path for path in paths if path is not None and not path.endswith(_DATA_FILES))


def _unquoted(name: str) -> str:
    """Undo git's C-style quoting of unusual names."""
    if name.startswith('"') and name.endswith('"') and len(name) > 1:
        name = re.sub(r"^[abciw]/", "", name[1:-1])
    if "\\" not in name:
        return name
    raw = re.sub(
        rb'\\([0-7]{3}|[abfnrtv"\\])',
        lambda match: (
            bytes([int(match[1], 8)])
            if match[1].isdigit()
            else b'\a\b\f\n\r\t\v"\\'[b'abfnrtv"\\'.index(match[1]) :][:1]
        ),
        name.encode("utf-8", "surrogateescape"),
    )
    return raw.decode("utf-8", "surrogateescape")


def reverse_patch(patch: str) -> str:
    """The patch that undoes `patch`, as `git diff -R` would show it.

    Raises:
        TaskFormatError: it holds binary data, which cannot be turned round.
    """
    if "\nGIT binary patch" in patch or "\nBinary files " in patch:
        raise TaskFormatError("field 'patch': expected a patch of text, got binary data, which cannot be reversed")
    return "".join(_reverse_header(part.header) + _reverse_hunks(part.body) for part in parse_patch(patch))


_OPPOSITE = {
    "--- ": "+++ ",
    "old mode ": "new mode ",
    "rename from ": "rename to ",
    "new file mode ": "deleted file mode ",
}
_OPPOSITE |= {new: old for old, new in _OPPOSITE.items()}


def _reverse_header(header: str) -> str:
    """Swap old and new in the lines before the first hunk, and keep the order that git gives these lines."""
    lines = header.split("\n")
    values = {prefix: line[len(prefix) :] for line in lines for prefix in _OPPOSITE if line.startswith(prefix)}
    result = []
    for line in lines:
        prefix = next((prefix for prefix in _OPPOSITE if line.startswith(prefix)), "")
        paths = re.match(r'diff --git ("?)a/(.*)\1 ("?)b/(.*)\3$', line)
        index = re.match(r"index (\w+)\.\.(\w+)(.*)", line)
        if paths:
            line = f"diff --git {paths[3]}a/{paths[4]}{paths[3]} {paths[1]}b/{paths[2]}{paths[1]}"
        elif index:
            line = f"index {index[2]}..{index[1]}{index[3]}"
        elif prefix in ("new file mode ", "deleted file mode "):
            line = _OPPOSITE[prefix] + values[prefix]
        elif prefix:
            other = values[_OPPOSITE[prefix]]
            line = prefix + re.sub(r'^("?)([ab])/', lambda name: f"{name[1]}{'ba'[name[2] == 'b']}/", other)
        result.append(line)
    return "\n".join(result)


def _reverse_hunks(body: str) -> str:
    """Swap removed and added lines; in each run of changes the removed lines still come first."""
    result: list[str] = []
    removed: list[str] = []
    added: list[str] = []
    target = result
    for line in body.split("\n"):
        if line[:1] == "\\":  # "No newline at end of file" belongs to the line before it
            target.append(line)
        elif line[:1] in ("-", "+"):
            target = added if line[0] == "-" else removed
            target.append(("+" if line[0] == "-" else "-") + line[1:])
        else:
            result += removed + added
            removed, added, target = [], [], result
            hunk = _HUNK.match(line)
            result.append(f"@@ -{hunk['new']} +{hunk['old']} @@{hunk['rest']}" if hunk else line)
    return "\n".join(result + removed + added)


# difflib takes quadratic time: 0.2 s for this many characters. Longer hunks are compared by lines, and those with more
# lines than this by how often each line occurs.
_SIMILARITY_CHARS = 4_000
_SIMILARITY_LINES = 2_000


def similarity(patch: str, gold: str) -> float:
    """How near `patch` is to `gold`: 1 for the same changes, 0 for none in common (SWE-RL, Wei et al. 2025).

    The hunks of each file, without their positions, are compared by `difflib.SequenceMatcher`, and the ratios are
    averaged over all files that either patch changes. Hunks over 4,000 characters are compared by lines.
    """
    ours, theirs = _hunks(patch), _hunks(gold)
    files = ours.keys() | theirs.keys()
    if not files:
        return 1.0
    return sum(_ratio(ours[name], theirs[name]) for name in files & ours.keys() & theirs.keys()) / len(files)


def _hunks(patch: str) -> dict[str, str]:
    """Path → hunks without positions; of a section without hunks its header without hashes."""
    return {
        part.new_path or min(part.paths, default=""): re.sub(r"^@@ .*\n?", "@@\n", part.body, flags=re.MULTILINE)
        or re.sub(r"^(diff|index) .*\n?", "", part.header, flags=re.MULTILINE)
        for part in parse_patch(patch)
    }


def _ratio(ours: str, theirs: str) -> float:
    if ours == theirs:
        return 1.0
    if max(len(ours), len(theirs)) <= _SIMILARITY_CHARS:
        return difflib.SequenceMatcher(None, ours, theirs, autojunk=False).ratio()
    our_lines, their_lines = ours.splitlines(), theirs.splitlines()
    lines = difflib.SequenceMatcher(None, our_lines, their_lines, autojunk=False)
    return lines.ratio() if max(len(our_lines), len(their_lines)) <= _SIMILARITY_LINES else lines.quick_ratio()


@dataclass(frozen=True)
class LineEdit:
    """Lines `start` up to `stop` (0-based, `stop` excluded) become `lines`, each of which ends with a newline."""

    start: int
    stop: int
    lines: tuple[str, ...]

    def trimmed(self, base: Sequence[str]) -> LineEdit:
        """The same edit without the lines at either end that it leaves as they are."""
        old, new = list(base[self.start : self.stop]), list(self.lines)
        start, stop = self.start, self.stop
        while old and new and old[0] == new[0]:
            del old[0], new[0]
            start += 1
        while old and new and old[-1] == new[-1]:
            del old[-1], new[-1]
            stop -= 1
        return LineEdit(start, stop, tuple(new))


def apply_edits(base: Sequence[str], edits: Sequence[LineEdit]) -> list[str]:
    """The lines of `base` after `edits`, which are in order and do not overlap.

    Raises:
        ValueError: the edits overlap, are out of order, or reach past the end.
    """
    result: list[str] = []
    done = 0
    for edit in edits:
        if not done <= edit.start <= edit.stop <= len(base):
            raise ValueError(f"{edit} is out of order or past the end of {len(base)} lines (done up to {done})")
        result += base[done : edit.start]
        result += edit.lines
        done = edit.stop
    return result + list(base[done:])


def git_diff(path: str, base: Sequence[str], edits: Sequence[LineEdit], *, context: int = 3) -> str:
    """The git diff of `path` from `base` to `apply_edits(base, edits)`.

    Args:
        path: relative to the repository, with `/`.
        base: the file's lines, each with its newline.
        edits: in order, not overlapping.
        context: unchanged lines shown around a change.

    Returns:
        Text that `git apply` takes; empty where the edits change nothing.
    """
    edits = [trimmed for edit in edits if (trimmed := edit.trimmed(base)).start < trimmed.stop or trimmed.lines]
    if not edits:
        return ""
    groups: list[list[LineEdit]] = []
    for edit in edits:
        if groups and edit.start - groups[-1][-1].stop <= 2 * context:
            groups[-1].append(edit)
        else:
            groups.append([edit])
    parts = [f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"]
    grown = 0  # lines that earlier hunks have added, less those they have removed
    for group in groups:
        parts.append(_hunk(base, group, context, grown))
        grown += sum(len(edit.lines) - (edit.stop - edit.start) for edit in group)
    return "".join(parts)


def _hunk(base: Sequence[str], group: Sequence[LineEdit], context: int, grown: int) -> str:
    first = max(0, group[0].start - context)
    last = min(len(base), group[-1].stop + context)
    body: list[str] = []
    done = first
    for edit in group:
        body += [" " + line for line in base[done : edit.start]]
        body += ["-" + line for line in base[edit.start : edit.stop]]
        body += ["+" + line for line in edit.lines]
        done = edit.stop
    body += [" " + line for line in base[done:last]]
    old_count = last - first
    new_count = sum(1 for line in body if line[0] != "-")
    # Git counts lines from 1, and names the line before where a side of the hunk is empty.
    old_start = first + 1 if old_count else first
    new_start = first + grown + 1 if new_count else first + grown
    return f"@@ -{old_start},{old_count} +{new_start},{new_count} @@\n" + "".join(body)
