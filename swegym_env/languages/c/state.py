"""Whether a patch in C or C++ keeps state between calls, with which it could return what a test passed earlier.

Variables are only one way: freed memory and the stack keep their content, library functions remember their last
arguments (`strtok`, `textdomain`, `chdir`), and functions of the product may do the same. So everything counts that is
not known to keep nothing: a new call of a function, a store into something that its function does not declare, a
variable without an initial value. The only consequence for such a patch is a run beside twins (`languages.c.twins`).
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from swegym_env.languages.c.screening import PROSE, depths, is_only_read
from swegym_env.languages.c.source import Function, Token, closing, functions, literal, tokens
from swegym_env.languages.changed import ChangedFile
from swegym_env.repo.patches import parse_patch

__all__ = ["keeps_state"]

_WORD = re.compile(r"[A-Za-z_]\w*")
# Library functions that keep nothing, and write only to their arguments.
_PLAIN = frozenset(
    _WORD.findall(
        """
        strlen strnlen strcmp strncmp strcasecmp strncasecmp memcmp strchr strrchr strstr strpbrk strspn strcspn memchr
        memcpy memmove memset strcpy strncpy strcat strncat stpcpy strtol strtoul strtoll strtoull strtod strtof atoi
        atol atoll atof abs labs llabs fabs floor ceil round trunc sqrt pow fmod exp log log2 log10 sin cos tan fmin
        fmax isnan isinf isfinite isalpha isdigit isalnum isspace isupper islower ispunct isprint iscntrl isgraph
        isxdigit isblank tolower toupper snprintf vsnprintf sprintf va_start va_end va_arg va_copy assert offsetof
        defined static_assert _Static_assert move forward swap min max size begin end get to_string string static_cast
        """
    )
)
# Functions that keep something; they count even if the product already calls them.
_KEEPING = frozenset(
    _WORD.findall(
        """
        malloc calloc realloc reallocarray aligned_alloc memalign posix_memalign valloc alloca free strdup strndup
        asprintf vasprintf strtok strerror setlocale textdomain bindtextdomain gettext hcreate hsearch tsearch chdir
        getcwd umask signal setenv putenv getenv optind optarg errno global xalloc iword pword
        """
    )
)
_STATEMENTS = frozenset(
    _WORD.findall(
        """
        if for while switch return sizeof catch do else alignof decltype case goto default throw new delete typedef
        using namespace template public private protected operator not and or
        """
    )
)
_STORES = frozenset(("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=", "++", "--"))
_LASTING = frozenset(("static", "thread_local", "_Thread_local", "__thread", "mutable"))


def keeps_state(patch: str, base: Path, gold: str = "") -> bool:
    """See `Language.keeps_state`.

    Lines of the gold patch are harmless in their function. Its ways to keep something are not, because it may keep its
    arguments.
    """
    free = frozenset(line for text in _changed(gold, base) if text is not None for line in _added_lines(text))
    return any(text is None or any(_found_in(text, free)) for text in _changed(patch, base))


def _changed(patch: str, base: Path) -> Iterator[ChangedFile | None]:
    for section in parse_patch(patch):
        if section.new_path is not None and not section.new_path.endswith(PROSE):
            yield ChangedFile.of(section, base)


def _added_lines(text: ChangedFile) -> Iterator[tuple[str, str]]:
    """The added lines of a file, each with its function."""
    lines = text.after.split("\n")
    spans = _spans(text)
    for number in text.added:
        yield _function_at(number, spans), "".join(lines[number - 1].split())


def _spans(text: ChangedFile) -> list[tuple[int, int, str]]:
    """The lines of each function, and its name."""
    count = text.after.count
    return [(count("\n", 0, one.begin) + 1, count("\n", 0, one.end) + 1, one.name) for one in functions(text.after)]


def _function_at(number: int, spans: Sequence[tuple[int, int, str]]) -> str:
    return next((name for first, last, name in spans if first <= number <= last), "")


def _found_in(text: ChangedFile, free: Collection[tuple[str, str]] = ()) -> Iterator[Token]:
    """The ways to keep something in an added line, without those given."""
    lines, spans = text.after.split("\n"), _spans(text)
    others = frozenset(
        number for number in text.added if (_function_at(number, spans), "".join(lines[number - 1].split())) not in free
    )
    text = replace(text, added=others)
    yield from (token for token in tokens(text.after) if token.kind == "directive" and _is_code(token, text))
    stream = [token for token in tokens(text.after) if token.kind != "directive"]
    added = {at for at, token in enumerate(stream) if text.is_added(token.start)}
    known = functions(text.after)
    is_inside = _inside(stream, known)
    yield from (stream[at] for at in _outside(stream, added, is_inside, text))
    variables = frozenset(_variables(stream, is_inside, text))
    called = {one.name: frozenset(token.text for token in one.body) for one in functions(text.before)}
    starts = [token.start for token in stream]
    forgetting: dict[str, bool] = {}

    def forgets(name: str) -> bool:
        """Whether a function of the file keeps nothing, in any call."""
        if name not in forgetting:
            forgetting[name] = False  # for recursive functions
            bodies = [one for one in known if one.name == name]
            forgetting[name] = bool(bodies) and not any(any(kept_in(one, None)) for one in bodies)
        return name in _PLAIN or forgetting[name]

    def kept_in(function: Function, added: set[int] | None) -> Iterator[Token]:
        """The ways in which a function, or some of its tokens, keep something."""
        first, last = bisect_left(starts, function.begin), bisect_left(starts, function.end)
        part = stream[first:last]
        before = called.get(function.name, frozenset()) - _KEEPING if added is not None else frozenset()
        for at in range(1, len(part)):
            if added is not None and first + at not in added:
                continue
            if part[at].text in _LASTING and not _is_constant(part, at, is_inside=True):
                yield part[at]
            elif part[at].kind == "name":
                is_call = at + 1 < len(part) and part[at + 1].text == "(" and part[at].text not in _STATEMENTS
                is_call = is_call and part[at - 1].text not in (".", "->") and part[at].text not in _KEEPING
                if is_call:
                    if part[at].text not in before and not forgets(part[at].text):
                        yield part[at]
                elif _keeps(part, at, variables):
                    yield part[at]

    for at in added:
        if not is_inside[at] and stream[at].text in _LASTING and not _is_constant(stream, at, is_inside=False):
            yield stream[at]
    for function in known:
        yield from kept_in(function, added)


def _inside(stream: Sequence[Token], known: Sequence[Function]) -> list[bool]:
    """Whether each token stands in a function."""
    spans = sorted((one.begin, one.end) for one in known)
    begins = [begin for begin, _ in spans]
    places = [bisect_right(begins, token.start) - 1 for token in stream]
    return [place >= 0 and token.start < spans[place][1] for token, place in zip(stream, places, strict=True)]


def _variables(stream: Sequence[Token], is_inside: Sequence[bool], text: ChangedFile) -> Iterator[str]:
    """The variables of a file that outlive a call and are writable."""
    for first in _outside(stream, set(range(len(stream))), is_inside, text):
        yield from _names_from(stream, first)
    for at, token in enumerate(stream):
        if is_inside[at] and token.text in _LASTING and not _is_constant(stream, at, is_inside=True):
            yield from _names_from(stream, at)


def _names_from(stream: Sequence[Token], at: int) -> Iterator[str]:
    """The names that a declaration introduces."""
    while at + 1 < len(stream) and stream[at].text != ";":
        if stream[at].text in ("(", "[", "{"):
            at = closing(stream, at) + 1 or len(stream)
            continue
        if stream[at].kind == "name" and stream[at + 1].text in ("=", ";", ",", "[", "{"):
            yield stream[at].text
        at += 1


def _keeps(part: Sequence[Token], at: int, variables: Collection[str]) -> bool:
    """Whether a name in a function, which is not called, refers to something that outlives a call.

    Args:
        part: the tokens of the function.
        variables: of the file.
    """
    name, before = part[at].text, part[at - 1].text
    after = part[at + 1].text if at + 1 < len(part) else ""
    if name in _KEEPING or (name == "new" and "[" in [one.text for one in part[at : at + 6]]):
        return True
    if before in (".", "->") or name in _STATEMENTS:
        return False
    is_whole = before == "&" or after not in ("[", ".", "->")
    if (name in variables and is_whole) or _is_stored(part, at):
        return not _is_local(name, part)
    return _is_without_value(part, at)


def _is_code(token: Token, text: ChangedFile) -> bool:
    """Whether a directive of an added line defines more than a constant."""
    words = token.text.lstrip("# \t").split(None, 1)
    is_added = text.is_added(token.start) and words[:1] == ["define"]
    return is_added and (re.match(r"\w+\(", words[-1]) is not None or any(sign in token.text for sign in "{;="))


def _is_constant(stream: Sequence[Token], at: int, *, is_inside: bool) -> bool:
    """Whether the declaration here is of a function, or of something that is not writable.

    Args:
        is_inside: whether it is in a function, where no other function is declared.
    """
    end = at
    while end < len(stream) and stream[end].text not in (";", "=", "{", "(", "["):
        end += 1
    if end + 1 < len(stream) and stream[end].text == "(" and not is_inside:
        return stream[end + 1].text != "*"
    return _cannot_be_written(stream, at, end)


def _cannot_be_written(stream: Sequence[Token], at: int, end: int) -> bool:
    """Whether a declaration is of a constant without pointers to writable data.

    Args:
        at, end: where it begins, and where its name ends.
    """
    words = [one.text for one in stream[at:end]]
    last = end
    while last < len(stream) and stream[last].text != ";":
        last = closing(stream, last) + 1 or len(stream) if stream[last].text in ("(", "[", "{") else last + 1
    value = [one.text for one in stream[end:last]]
    makes = any(pair == (")", "{") for pair in pairwise(value)) or "new" in value
    if makes or not {"const", "constexpr"} & {*words}:
        return False
    first = words.index("*") if "*" in words else len(words)
    if first < len(words) and words[-2:-1] == ["*"]:
        return "const" in words[:first] and value[:1] == ["["] and is_only_read(words[-1], stream)
    return "const" in words[:first] or "constexpr" in words[:first]


def _outside(
    stream: Sequence[Token], added: Collection[int], is_inside: Sequence[bool], text: ChangedFile
) -> Iterator[int]:
    """The declarations of variables in added lines outside of functions."""
    depth = depths(text.after)
    begin = 0
    for at, token in enumerate(stream):
        if is_inside[at]:
            begin = at + 1
            continue
        if token.text != ";" or depth.get(token.start, 0):
            continue
        start, begin = begin, at + 1
        part = stream[start : at + 1]
        if len(part) < 2 or not any(place in added for place in range(start, at + 1)):
            continue
        words = [one.text for one in part]
        first = next((place for place, word in enumerate(words) if word in ("=", "(", "{", "[")), len(words) - 1)
        is_value = any(literal((one,)) is not None for one in part[first:])
        is_prototype = words[first] == "(" and "=" not in words and not is_value and words[first + 1] != "*"
        until = words[: words.index("{")] if "{" in words else words
        is_type = words[0] in ("struct", "union", "enum", "class") and words[-2] == "}" and "=" not in until
        is_type |= words[0] in ("typedef", "using") or (words[0] == "extern" and "=" not in words) or len(words) == 2
        is_forward = words[0] in ("struct", "class", "union", "enum") and len(words) == 3
        if not (is_prototype or is_type or is_forward or _cannot_be_written(stream, start, start + first)):
            yield start


def _is_stored(stream: Sequence[Token], at: int) -> bool:
    """Whether a value is stored into the variable or its content, or a pointer to it is created."""
    before = stream[at - 1].text if at else ""
    end = at + 1
    while end + 1 < len(stream) and stream[end].text in ("[", ".", "->"):
        end = closing(stream, end) + 1 if stream[end].text == "[" else end + 2
    follows = stream[end].text if 0 < end < len(stream) else ""
    return before in ("++", "--") or follows in _STORES


def _is_local(name: str, stream: Sequence[Token]) -> bool:
    """Whether a function declares the variable, or has it as a parameter."""
    for at, token in enumerate(stream):
        if token.text != name or not at:
            continue
        before = stream[at - 1]
        if before.kind == "name" and before.text not in ("return", "else", "goto", "case", "do", *_STATEMENTS):
            return True
        if before.text in ("*", "&", ">", "&&") and at > 1 and stream[at - 2].kind == "name":
            return True
        if before.text in ("*", ",") and _begins_with_type(stream, at):
            return True
    return False


def _begins_with_type(stream: Sequence[Token], at: int) -> bool:
    """Whether the statement at this place declares variables."""
    begin, depth = at, 0
    while begin and (depth or stream[begin - 1].text not in (";", "{", "}", "(")):
        begin -= 1
        depth += (stream[begin].text in (")", "}", "]")) - (stream[begin].text in ("(", "{", "["))
    return stream[begin].kind == "name" and (stream[begin + 1].kind == "name" or stream[begin + 1].text == "*")


def _is_without_value(stream: Sequence[Token], at: int) -> bool:
    """Whether a local variable is declared here and used before a value is assigned to it."""
    declares = stream[at - 1].kind == "name" or stream[at - 1].text in ("*", ",")
    if not declares or stream[at - 1].text in _STATEMENTS or not _begins_with_type(stream, at):
        return False
    end = at + 1
    is_array = stream[end].text == "["
    while end < len(stream) and stream[end].text == "[":
        end = closing(stream, end) + 1 or len(stream)
    if end >= len(stream) or stream[end].text not in (";", ","):
        return False
    if is_array:
        return True
    later = next(
        (place for place in range(end, len(stream) - 1) if stream[place].text == stream[at].text),
        -1,
    )
    return later > 0 and stream[later + 1].text != "="
