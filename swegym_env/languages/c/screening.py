"""Screening for C and C++: how closely a patch is examined, decided by what its added lines can do.

C code can access everything in its process through a pointer, so no list of names is complete. The lists contain ways
to end the process, to print, to read and to replace that the repair of a computation does not need. Tests that compare
with literals run blind in any case (see `languages.c.blind`); such code then finds no expected value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from swegym_env.languages.c.source import Token, closing, functions, is_transparent, tokens
from swegym_env.languages.changed import ChangedFile, MovedLines, kept_lines, read_source, unreadable
from swegym_env.repo.patches import parse_patch

__all__ = [
    "PROSE",
    "added_means",
    "depths",
    "is_only_read",
    "system_header",
]

_FORGING = re.compile(
    r"""\b(_*exit|_Exit|quick_exit|abort|atexit|at_quick_exit|on_exit|raise|t?g?kill|signal|sigaction|sigqueue|alarm|setitimer
        |_*(sig)?(long|set)jmp|v?fork|clone3?|exec[lv]p?e?|execveat|f?execve|posix_spawnp?|system|popen|pthread_\w+|thrd_create
        |terminate|unexpected|set_terminate
        |syscall|dlopen|dlv?sym|dladdr|dl_iterate_phdr|mprotect|ptrace|prctl|process_vm_\w+|setrlimit
        |v?f?d?printf|puts|fputs|f?putc|putchar|perror|fwrite|writev?|pwritev?|send(to|msg|file)?|splice
        |dup[23]?|freopen|fclose|close|setv?buf|stdout|stderr|cout|cerr|clog|print|println
        |setenv|putenv|unsetenv|environ
        |_*attribute_*|_*asm_*|_*builtin_\w+|_*declspec|_Pragma|_*weak\w*|ifunc|alloca|register|volatile|setcontext|makecontext
        )\b"""
    r"|\[\[|__(FILE|LINE|func|FUNCTION|BASE_FILE|INCLUDE_LEVEL|COUNTER)__|%:|\?\?|\\u|\#\#",
    re.VERBOSE,
)
_READING = re.compile(
    r"""\b(f?open(at|64)?|fdopen|creat|ifstream|fstream|filebuf|FILE|fread|f?getc|fgets|getline|f?scanf|p?readv?|mmap|mremap
        |opendir|readdir|scandir|glob|nftw|ftw|readlink(at)?|realpath|getenv|secure_getenv|getauxval|argv|__libc_argv
        |program_invocation\w*|backtrace\w*|syscall|_*asm_*|process_vm_\w+|ptrace|dl_iterate_phdr|dladdr|dlv?sym|popen|system
        |exec[lv]p?e?|execve|posix_spawnp?|v?fork|alloca|__executable_start|etext|edata|_*builtin_\w+|data_start
        )\b""",
    re.VERBOSE,
)
_PLACES = re.compile(
    r"/proc|/dev/|/sys/|\.(incbin|include)|#\s*(embed|include\s*[\"<][^\">]*(\.\.|/tests?/|\.(?!h)\w+[\">]|^/))"
)
# Suspicious pointers: the address of a variable as another type, an index below an array, a fixed address.
_POINTING = re.compile(
    r"\(\s*(?:const\s+|volatile\s+|unsigned\s+|signed\s+|struct\s+)*\w+\s*\*+\s*\)\s*(?:&|\(?\s*(?:0x|\d)|\w*main\b)"
    r"|\[\s*-|\bu?intptr_t\b|\bptrdiff_t\b|reinterpret_cast"
)
# Functions with another result for each call: their results pass a condition of two computed values.
_CHANGING = re.compile(
    r"\b((s?rand(om)?(_r)?|[dejlmnps]rand48(_r)?|initstate|arc4random\w*|getrandom|clock(_gettime)?|gettimeofday|ftime|times?"
    r"|timespec_get|getrusage|sbrk|mallinfo2?|malloc_usable_size)\s*\(|errno\s*(\+\+|--|[-+*/%&|^]=)|(\+\+|--)\s*errno)"
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_TEXT = re.compile(r"\"(?:[^\"\\]|\\.)*\"")
# A name in lower case that is neither called nor a member.
_VARIABLE = re.compile(r"(?<![\w.>])(?!(?:return|if|else|for|while|switch|case|goto|sizeof|do)\b)[a-z_]\w*\b(?!\s*\()")
_DIRECTIVE = re.compile(r"^\s*(?:#|%:)\s*(?P<word>\w+)\s*(?P<rest>.*)")
_DIRECTIVES = frozenset(  # other words after "#" belong to another language, or do not compile
    _WORD.findall("define undef include include_next import pragma line ident sccs embed warning assert unassert")
)
_INCLUDE = re.compile(r"[<\"](?P<path>[\w./+-]+)[>\"]")
_STANDARD = re.compile(r"<[a-z_]+>")  # a header of the standard library of C++
_MACRO = re.compile(r"[A-Z][A-Z0-9_]*")
# Macros of test frameworks and of the system, and words that a constant may consist of.
_JUDGING_MACRO = re.compile(
    r"_*(TEST|CHECK|ASSERT|EXPECT|REQUIRE|RUN|EXIT|NULL|EOF|NDEBUG|MUNIT|UNITY|GREATEST|UTEST|DOCTEST)"
)
_TYPES = frozenset(
    _WORD.findall(
        """
        sizeof char short int long unsigned signed float double const struct size_t ssize_t bool true false void
        int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t nullptr static_cast u U l L ul UL ull ULL
        """
    )
)
_STATEMENTS = frozenset(
    _WORD.findall(
        """
        if for while switch return sizeof catch do else alignof decltype case goto default throw new delete defined
        static_assert _Static_assert and or not noexcept requires co_return co_await co_yield
        """
    )
)
_DIGRAPHS = re.compile(r"<%|%>|<:(?!:)|(?<!:):>")
# Operators that decide what tests compare, or that can replace a value.
_OPERATORS = frozenset(("==", "!=", "<", ">", "<=", ">=", "<=>", "!", "&", ",", "&&", "||"))
_COMMENT = re.compile(r"//.*|/\*.*?\*/", re.DOTALL)
_TEST_PATH = re.compile(
    r"(?i)(^|/)(tests?|testing|check|unit)/|(^|[/_-])(tests?|check|unity|munit|greatest)([_-]\w+)?\.\w+$"
)
_SOURCES = (".c", ".cc", ".cpp", ".cxx", ".c++")
_HEADERS = (".h", ".hh", ".hpp", ".hxx", ".inl")
PROSE = (".md", ".rst", ".txt", ".html", ".json", ".yml", ".yaml", ".xml", ".svg", ".1", ".3")
_LONG_LINE, _REPOSITORY = 2000, 1 << 25
# Functions of the standard library: tests and their framework would call code with these names instead.
_LIBRARY = frozenset(
    _WORD.findall(
        """
        strcmp strncmp strcasecmp strncasecmp stricmp strcoll strxfrm strverscmp memcmp bcmp timingsafe_bcmp strlen
        strnlen strstr strcasestr strnstr memmem strchr strrchr strchrnul memchr memrchr rawmemchr strspn strcspn
        strpbrk strtok strtok_r strsep index rindex ffs memcpy memmove mempcpy memccpy memset explicit_bzero bzero
        bcopy strcpy strncpy stpcpy stpncpy strlcpy strlcat strcat strncat strdup strndup strerror strerror_r
        strsignal wcscmp wcsncmp wcslen wcsstr wcschr wcscpy wcsdup wcscoll wmemcmp wmemcpy wmemset mbstowcs
        wcstombs mbrtowc wcrtomb mblen strtol strtoul strtoll strtoull strtof strtod strtold strtoimax strtoumax
        atoi atol atoll atof abs labs llabs imaxabs div ldiv lldiv fabs fabsf fabsl isnan isinf isfinite floor ceil
        round trunc rint sqrt pow fmod exp log sin cos tan fmin fmax frexp ldexp modf nan hypot isalpha isdigit
        isalnum isspace isupper islower ispunct isprint iscntrl isgraph isxdigit isblank tolower toupper isascii
        malloc free calloc realloc reallocarray posix_memalign aligned_alloc memalign valloc malloc_usable_size
        qsort qsort_r bsearch lsearch lfind hsearch tsearch tfind printf fprintf dprintf sprintf snprintf asprintf
        vprintf vfprintf vdprintf vsprintf vsnprintf vasprintf scanf fscanf sscanf puts fputs putc fputc putchar
        putc_unlocked fputs_unlocked fwrite fwrite_unlocked fread getc fgetc getchar fgets gets getline getdelim
        ungetc fopen fdopen freopen fclose fflush fseek fseeko ftell ftello rewind fgetpos fsetpos feof ferror
        clearerr fileno setbuf setvbuf setlinebuf perror remove rename tmpfile tmpnam mkstemp mkdtemp open_memstream
        fmemopen popen pclose open openat creat close read write pread pwrite readv writev lseek dup dup2 dup3 pipe
        pipe2 fcntl ioctl stat fstat lstat access unlink rmdir mkdir chdir getcwd opendir readdir closedir realpath
        readlink symlink link isatty exit _exit _Exit quick_exit abort atexit at_quick_exit on_exit assert raise
        kill signal sigaction sigprocmask sigsuspend setjmp longjmp sigsetjmp siglongjmp alarm setitimer fork vfork
        clone execl execlp execle execv execvp execvpe execve system wait waitpid wait3 wait4 posix_spawn
        posix_spawnp getpid getppid gettid getuid geteuid getenv setenv unsetenv putenv secure_getenv getopt
        getopt_long mmap munmap mprotect mremap brk sbrk sysconf getpagesize time clock difftime mktime gmtime
        gmtime_r localtime localtime_r asctime ctime strftime strptime gettimeofday clock_gettime nanosleep sleep
        usleep timegm tzset rand srand random srandom rand_r drand48 getrandom setlocale localeconv pthread_create
        pthread_join pthread_mutex_lock pthread_mutex_unlock pthread_self pthread_once dlopen dlsym dlclose regcomp
        regexec regfree fnmatch glob iconv select poll socket connect bind send recv syscall main _start _init _fini
        setUp tearDown suiteSetUp suiteTearDown stdin stdout stderr errno environ
        """
    )
)
_SYSTEM_HEADERS = frozenset(
    (
        *(
            "assert",
            "complex",
            "ctype",
            "errno",
            "fenv",
            "float",
            "inttypes",
            "iso646",
            "limits",
            "locale",
            "math",
            "setjmp",
        ),
        *("signal", "stdalign", "stdarg", "stdatomic", "stdbool", "stddef", "stdint", "stdio", "stdlib", "stdnoreturn"),
        *("string", "strings", "tgmath", "threads", "time", "uchar", "wchar", "wctype", "unistd", "fcntl", "features"),
        *("sys/types", "sys/stat", "sys/wait", "sys/time", "sys/cdefs", "bits/types", "pthread", "dirent", "endian"),
        *("check", "cmocka", "criterion", "unity", "gtest", "gmock", "doctest", "catch", "catch2", "munit", "CUnit"),
    )
)
_CPP_HEADERS = frozenset(
    ("cassert", "cstdio", "cstdlib", "cstring", "string", "iostream", "vector", "map", "algorithm")
)


def system_header(path: str) -> bool:
    """Whether a file of this name would be included instead of a header of the system or of a test framework."""
    parts = path.split("/")
    plain = path.removesuffix(".h").removesuffix(".hpp")
    last = parts[-1].removesuffix(".h").removesuffix(".hpp")
    return (parts[-1] != last and (last in _SYSTEM_HEADERS or "/".join(plain.split("/")[-2:]) in _SYSTEM_HEADERS)) or (
        "." not in parts[-1] and parts[-1] in _CPP_HEADERS
    )


def added_means(patch: str, base: Path) -> tuple[frozenset[str], frozenset[str]]:
    """The means of forgery that a patch adds, and those to read what the tests expect, as texts."""
    forging: set[str] = set()
    reading: set[str] = set()
    for section in parse_patch(patch):
        if "GIT binary" in section.text or "\nnew mode" in section.header or "mode 120000" in section.header:
            forging.add(unreadable("binary, link or mode", section.text))
        text = ChangedFile.of(section, base)
        if section.new_path is None:
            continue
        if text is None:
            forging.add(unreadable("a hunk that does not fit", section.text))
            continue
        renamed, has_arguments = _renamed(text), re.search(r"\bargv\b", text.before) is not None
        moved = MovedLines(
            (line for _, line in _code_with_texts("\n".join(text.removed))),
            (line for number, line in _code_with_texts(text.after) if number in renamed),
        )
        own = frozenset(token.text for token, has_body in _declarators(text.before) if has_body)
        for number, line, code in _added_lines(text):
            if len(line) > _LONG_LINE or line.endswith("\\"):
                forging.add(unreadable("a long or continued line", line))
                line, code = line[:_LONG_LINE], code[:_LONG_LINE]
            if number in renamed or moved.take((code.strip(), *_TEXT.findall(line))):
                continue
            for pattern in (_FORGING, _POINTING, _CHANGING, _DIGRAPHS):
                forging |= {match[0] for match in pattern.finditer(code) if match[0] not in own}
            # A text may name a file, but the words in it do not read it.
            reading |= {match[0] for match in _READING.finditer(code) if match[0] != "argv" or not has_arguments}
            reading |= {match[0] for match in _PLACES.finditer(line)} if code.strip() else set()
            forging |= _by_directive(line, text.path, base)
        if not text.path.endswith(PROSE):
            forging |= _defined(text, base) | _state(text)
    return frozenset(forging), frozenset(reading)


def _renamed(text: ChangedFile) -> set[int]:
    """The numbers of added lines that their function already had as often, ignoring the names of variables."""
    if not text.before:
        return set()
    return kept_lines(_named_lines(text.before), _named_lines(text.after), text.added)


def _named_lines(source: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Number of each line in a function → the function and the line, without the names of variables."""
    lines = dict(_code_with_texts(source))
    for function in functions(source):
        first, last = (source.count("\n", 0, at) for at in (function.begin, function.end))
        for number in range(first + 1, last + 2):
            code, *texts = lines[number]
            code = _VARIABLE.sub(lambda name: name[0] if _is_means(name[0]) else "_", code)
            yield number, (function.name, code, *texts)


def _code_with_texts(source: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Number of each line → its code, without comments, and its texts."""
    for number, (line, code) in enumerate(zip(source.split("\n"), _code(source).split("\n"), strict=True), 1):
        yield number, (code.strip(), *_TEXT.findall(line))


def _is_means(name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in (_FORGING, _READING))


def _added_lines(text: ChangedFile) -> Iterator[tuple[int, str, str]]:
    """The added lines: number, text, and code (without comments and the contents of texts)."""
    lines = zip(text.after.split("\n"), _code(text.after).split("\n"), strict=True)
    for number, (line, code) in enumerate(lines, 1):
        if number in text.added:
            yield number, line, code


def _code(source: str) -> str:
    """The source without comments and the contents of texts; line numbers stay the same."""
    parts: list[str] = []
    at = 0
    for token in tokens(source):
        parts.append(re.sub(r"[^\n]", " ", source[at : token.start]))
        parts.append(
            '""' + "\n" * token.text.count("\n")
            if token.kind in ("text", "raw")
            else _COMMENT.sub(lambda comment: re.sub(r"[^\n]", " ", comment[0]), token.text)
        )
        at = token.end
    parts.append(re.sub(r"[^\n]", " ", source[at:]))
    return "".join(parts)


def _declarators(source: str) -> Iterator[tuple[Token, bool]]:
    """The names that a file declares as functions or as pointers to them, and whether a body follows.

    Only tokens are used, at any depth: conditional compilation can open a bracket that is never closed.
    """
    stream = tokens(source)
    for at, token in enumerate(stream):
        if token.kind != "name" or token.text in _STATEMENTS or at + 1 >= len(stream):
            continue
        first, last = at, at
        while first and last + 1 < len(stream) and stream[first - 1].text == "(" and stream[last + 1].text == ")":
            first, last = first - 1, last + 1  # (strcmp)(…)
        if first == at and at > 1 and stream[at - 1].text == "*" and stream[at - 2].text == "(":
            if stream[at + 1].text in (")", "["):  # (*strcmp)(…)
                yield token, False
            continue
        if (
            last + 1 >= len(stream)
            or stream[last + 1].text != "("
            or (first and stream[first - 1].text in (".", "->", "::"))
        ):
            continue
        close = closing(stream, last + 1)
        following = stream[close + 1] if 0 < close < len(stream) - 1 else None
        if following is None or following.kind == "directive":
            has_body = False
        else:  # also K&R style, and attributes
            has_body = following.text == "{" or (following.kind == "name" and not _MACRO.fullmatch(following.text))
        begin = first
        while begin and (stream[begin - 1].kind == "name" or stream[begin - 1].text in ("*", "&", '"C"')):
            begin -= 1
        head = [one.text for one in stream[begin:first]]
        bounded = not begin or stream[begin - 1].text in (";", "{", "}") or stream[begin - 1].kind == "directive"
        is_type = bool(head) and head[0] not in _STATEMENTS and _WORD.fullmatch(head[0]) is not None
        if has_body or (bounded and is_type):
            yield token, has_body


def _defined(text: ChangedFile, base: Path) -> set[str]:
    """Names in the patch whose code would replace that of the library or of the tests."""
    known = {token.text for token, _ in _declarators(text.before)}
    found: set[str] = set()
    for token, _ in _declarators(text.after):
        name = token.text
        if not text.is_added(token.start) or name in known:
            continue
        if name in _LIBRARY or re.match(r"_[_A-Z]", name):
            found.add(f"defines {name}")
        elif not _is_private(text, token) and _belongs_to_tests(name, text.path, base):
            found.add(f"declares {name}, which the tests use")
    stream = tokens(text.after)
    for at, token in enumerate(stream[:-1]):
        if (
            token.text == "extern"
            and stream[at + 1].kind == "name"
            and text.path.endswith(_SOURCES)
            and text.is_added(token.start)
        ):
            found.add("extern")
        if token.text == "operator" and text.is_added(token.start):
            after = stream[at + 1]
            if after.text in _OPERATORS or after.kind in ("name", "text"):
                found.add(f"operator {after.text}")
        if (
            token.text == "namespace"
            and stream[at + 1].text in ("std", "testing", "doctest", "Catch")
            and text.is_added(token.start)
        ):
            found.add(f"namespace {stream[at + 1].text}")
    return found


def _is_private(text: ChangedFile, token: Token) -> bool:
    """Whether a function is private to its file, and the file has no tests."""
    begin = max(text.after.rfind(sign, 0, token.start) for sign in ";}{")
    return text.path.endswith(_SOURCES) and re.search(r"\bstatic\b", text.after[begin + 1 : token.start]) is not None


def _state(text: ChangedFile) -> set[str]:
    """Variables that outlive a call: code that counts its calls can pass any condition of two computed values.

    Each is named by the function or else the file that contains it, so what the gold patch keeps in a place is harmless
    only there.
    """
    stream = [token for token in tokens(text.after) if token.kind != "directive"]
    depth, known = depths(text.after), functions(text.after)
    found: set[str] = set()
    at = 0
    while at < len(stream):
        token = stream[at]
        is_static = token.kind == "name" and token.text in ("static", "thread_local", "_Thread_local", "__thread")
        begins = not at or stream[at - 1].text in (";", "}", "{", ":")
        if not (is_static or (begins and depth[token.start] == 0 and token.kind == "name")):
            at += 1
            continue
        end = at
        while end < len(stream) and stream[end].text not in (";", "=", "{", "[", "(", ","):
            end += 1
        declared = stream[at:end]
        if end < len(stream) and any(text.is_added(one.start) for one in (*declared, stream[end])):
            words = [one.text for one in declared]
            names = [one.text for one in declared if one.kind == "name"]
            is_pointer = stream[end].text == "(" and end + 1 < len(stream) and stream[end + 1].text == "*"
            is_function = stream[end].text == "(" and not is_pointer
            is_type = (
                not is_static
                and names
                and names[0] in ("typedef", "extern", "using", "struct", "union", "enum", "class")
            )
            is_type = is_type and (stream[end].text in ("{", ";", "(") or names[0] in ("typedef", "extern", "using"))
            is_type = is_type and not (names[0] in ("struct", "union", "enum", "class") and len(names) > 2)
            last = max((place for place, word in enumerate(words) if word in ("*", "&")), default=-1)
            constant = "constexpr" in words or "const" in words[last + 1 :]
            constant = constant or ("const" in words and stream[end].text == "[" and is_only_read(names[-1], stream))
            others = set(words) & {
                "template",
                "namespace",
                "friend",
                "public",
                "private",
                "protected",
                "final",
                ":",
                "<",
            }
            if len(names) > 1 and not (is_function or is_type or constant or others):
                place = next((one.name for one in known if one.begin <= token.start < one.end), text.path)
                found.add(f"a variable that outlives a call, in {place}")
        at = max(at + 1, end)
    return found


def is_only_read(name: str, stream: Sequence[Token]) -> bool:
    """Whether an array is never written: each use of it is an index, or its size."""
    uses = [at for at, token in enumerate(stream) if token.kind == "name" and token.text == name]
    for at in uses[1:]:
        before = [token.text for token in stream[max(0, at - 2) : at]]
        if "sizeof" in before:
            continue
        close = closing(stream, at + 1) if stream[at + 1].text == "[" else -1
        after = stream[close + 1].text if 0 < close < len(stream) - 1 else "="
        if (
            close < 0
            or before[-1:] in (["&"], ["++"], ["--"])
            or after in ("++", "--", "[")
            or after[-1:] == "=" != after[:1]
        ):
            return False
        if after == "=":
            return False
    return True


def depths(source: str) -> dict[int, int]:
    """Offset of each token → depth of braces; the smallest one of all branches of conditional compilation."""
    depth, found = 0, {}
    branches: list[list[int]] = []  # depth at the condition, then at the end of each branch
    stream = tokens(source)
    for at, token in enumerate(stream):
        if token.kind == "directive":
            word = (token.text.lstrip("#").split() or [""])[0]
            if word.startswith("if"):
                branches.append([depth])
            elif word.startswith("el") and branches:
                branches[-1].append(depth)
                depth = branches[-1][0]
                if word == "else":
                    branches[-1][0] = 1 << 30  # no branch is left out
            elif word == "endif" and branches:
                depth = min(*branches.pop(), depth)
        elif token.text == "}":
            depth = max(0, depth - 1)
        found[token.start] = depth
        if token.text == "{" and not is_transparent(stream, at):
            depth += 1
    return found


def _belongs_to_tests(name: str, path: str, base: Path) -> bool:
    """Whether test files contain this name and product files do not."""
    if not name or not base.is_dir():
        return False
    tests, product = _words_of_files(str(base))
    return name in tests and name not in product


@lru_cache(maxsize=16)
def _words_of_files(base: str) -> tuple[frozenset[str], frozenset[str]]:
    """The words of the test files of a repository, and of its other sources of C."""
    found: tuple[set[str], set[str]] = (set(), set())
    total = 0
    for directory, folders, names in os.walk(base):
        folders[:] = sorted(folder for folder in folders if folder != ".git")
        for name in sorted(names):
            path = Path(directory, name)
            if total > _REPOSITORY or not name.endswith((*_SOURCES, *_HEADERS)):
                continue
            text = read_source(path) or ""
            total += len(text)
            relative = os.path.relpath(path, base)
            found[0 if _TEST_PATH.search(relative) else 1].update(_WORD.findall(text))
    return frozenset(found[0]), frozenset(found[1])


def _by_directive(text: str, path: str, base: Path) -> set[str]:
    """What a preprocessor line could do other than define a constant or include a plain header."""
    match = _DIRECTIVE.match(text)
    if match is None:
        return set()
    word, rest = match["word"], match["rest"]
    if word == "include":
        include = _INCLUDE.match(rest)
        plain = include is not None and ".." not in include["path"] and include["path"][0] != "/"
        return (
            set()
            if plain and include is not None and (include["path"].endswith((".h", ".hpp")) or _STANDARD.match(rest))
            else {f"#{word} {rest}"}
        )
    if word in ("ifndef", "ifdef", "if", "else", "endif", "elif", "error") or word not in _DIRECTIVES:
        return set()
    if word == "line" and re.fullmatch(r"\d+\s+\"[\w./-]+\"", rest):  # of generated code
        return set()
    constant = re.fullmatch(r"([A-Z][A-Z0-9_]*)(\s+\(?-?[\w.\"' <+*()/-]*\)?)?(?:\s*(/\*|//).*)?", rest)
    if word == "define" and constant and not _JUDGING_MACRO.match(rest):
        names = [token.text for token in tokens(constant[2] or "") if token.kind == "name" and token.text not in _TYPES]
        names = [name for name in names if not _MACRO.fullmatch(name)]
        if not names and not _belongs_to_tests(constant[1], path, base):
            return set()
    return {f"#{word} {rest}"}
