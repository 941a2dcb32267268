"""Bugs that are injected into C and JavaScript: which, where, and nothing where no code runs; tests by name."""

from __future__ import annotations

import pytest

from swegym_env.languages import LANGUAGES, all_languages
from swegym_env.making.code import spliced

LANGUAGE = dict(zip(LANGUAGES, all_languages(), strict=True))


def bugs(path: str, source: str) -> dict[str, set[str]]:
    """Kind → the sources that its bugs make."""
    language = LANGUAGE["c" if path.endswith((".c", ".h", ".cpp")) else "javascript"]
    found: dict[str, set[str]] = {}
    for bug in language.injected_bugs(path, source.encode()):
        found.setdefault(bug.kind, set()).add(spliced(source.encode(), bug.splices).decode())
    return found


@pytest.mark.parametrize(
    ("path", "source", "kind", "made"),
    [
        ("a.c", "int f(int a) { return a < 9; }", "wrong-boundary", {"int f(int a) { return a <= 9; }"}),
        ("a.c", "int f(int a) { return a < 9; }", "off-by-one", {"int f(int a) { return a < 10; }"}),
        ("a.c", "void f(int *a) { a[0] = 010; }", "off-by-one", {"void f(int *a) { a[1] = 010; }"}),
        ("a.c", "void f(int a) { g(a, 1); }", "swapped-arguments", {"void f(int a) { g(1, a); }"}),
        ("a.c", "void f(void)\n{\n    g();\n    h();\n}\n", "lost-update",
         {"void f(void)\n{\n    h();\n}\n", "void f(void)\n{\n    g();\n}\n"}),
        ("a.c", "void f(int a) { if (a) g(); }", "lost-update", {"void f(int a) { if (a) ; }"}),
        ("a.c", "int f(int a)\n{\n    if (!a)\n        return 1;\n    return 2;\n}\n", "dropped-guard",
         {"int f(int a)\n{\n    return 2;\n}\n"}),
        ("a.c", "void f(void) { for (;;) { switch (1) { case 1: break; } break; } }", "wrong-jump",
         {"void f(void) { for (;;) { switch (1) { case 1: break; } continue; } }"}),
        ("a.cpp", "bool f(bool a, bool b) { return a && b; }", "wrong-connective",
         {"bool f(bool a, bool b) { return (a || b); }"}),
        ("a.js", "const f = (a, b) => a === b", "inverted-condition", {"const f = (a, b) => a !== b"}),
        ("a.js", "const f = a => a ? 1 : 2", "swapped-branches", {"const f = a => a ? (2) : (1)"}),
        ("a.js", "const f = a => 'x' + a", "wrong-operator", set()),
        ("a.js", "const f = a => a.min(1)", "confused-name", {"const f = a => a.max(1)"}),
        ("a.ts", "function f(a: number): number { return g(a); }", "removed-return",
         {"function f(a: number): number { g(a); }"}),
        ("a.c", "int f(int a) { return g(a); }", "removed-return", set()),
        ("a.c", "#define TOP(a) ((a) < 9)\n#if X < 2\n#endif\nenum { A = 1 < 2 };\n", "wrong-boundary", set()),
        ("a.c", "#ifndef A_H\n#define A_H\nstatic int f(int a) { return a < 9; }\n#endif\n", "wrong-boundary",
         {"#ifndef A_H\n#define A_H\nstatic int f(int a) { return a <= 9; }\n#endif\n"}),
    ],
)  # fmt: skip
def test_a_bug_changes_what_its_kind_says(path: str, source: str, kind: str, made: set[str]) -> None:
    assert bugs(path, source).get(kind, set()) == made


def test_a_bug_names_its_function() -> None:
    source = b"static char *\nname(int a) { return a < 1; }\nint top = 1 < 2;\n"
    assert [bug.function for bug in LANGUAGE["c"].injected_bugs("a.c", source) if bug.kind == "wrong-boundary"] == [
        "name", "",
    ]  # fmt: skip
    source = (
        b"var o = {}; o.get = function (a) { return a < 1 }; const f = a => a < 1; class C { m(a) { return a < 1 } }"
    )
    found = [
        bug.function for bug in LANGUAGE["javascript"].injected_bugs("a.js", source) if bug.kind == "wrong-boundary"
    ]
    assert found == ["o.get", "f", "m"]


def test_tests_of_c_are_found_and_removed_with_their_calls() -> None:
    first, second = (f"static void\ntest_{name}(void)\n{{\n    CHECK({name});\n}}\n\n" for name in ("a", "b"))
    end = "int main(void)\n{\n    RUN(test_a);\n    RUN(test_b);\n    return 0;\n}\n"
    c = LANGUAGE["c"]
    assert c.find_test("t.c", (first + second + end).encode(), "test_b") == second.rstrip()
    left = c.without_tests("t.c", (first + second + end).encode(), ["test_b"]).decode()
    assert left == first + end.replace("    RUN(test_b);\n", "")
    used = (first + second + end).replace("RUN(test_b)", "if (test_b) RUN(test_b)")
    assert c.without_tests("t.c", used.encode(), ["test_b"]).decode() == used


def test_tests_of_javascript_are_found_and_removed() -> None:
    one, two = "  it('one', () => {\n    a()\n  })\n\n", "  it('two', () => {\n    b()\n  })\n"
    source = f"describe('all', () => {{\n{one}{two}}})\n"
    javascript = LANGUAGE["javascript"]
    assert javascript.find_test("t.js", source.encode(), "all > one") == "it('one', () => {\n  a()\n})"
    assert javascript.without_tests("t.js", source.encode(), ["all > one"]).decode() == source.replace(one, "")
    assert javascript.without_tests("t.js", source.encode(), ["other > one"]).decode() == source
