"""Counts the places of a source that do not parse, by the grammars of tree-sitter in a folder.

syntax.py FOLDER SUFFIX, with {"old": text or null, "new": text} in JSON on standard input; prints JSON: "old" and
"new", how many places of each do not parse, and "line" and "fault" of the first one of the new text. It runs in the
interpreter that the folder names, since the packages are compiled for one.
"""

import importlib
import json
import os
import sys


def main():
    folder, suffix = sys.argv[1:]
    sys.path.insert(0, folder)
    import tree_sitter

    with open(os.path.join(folder, "grammars.json"), encoding="utf-8") as file:
        names = [name.split(":") for name in json.load(file)[suffix]]
    given = json.load(sys.stdin)
    # A header is of C or of C++: it is sound where one of the grammars finds nothing.
    best = None
    for package, function in names:
        language = tree_sitter.Language(getattr(importlib.import_module(package), function)())
        parser = tree_sitter.Parser(language)
        new = faults(parser, given["new"])
        old = faults(parser, given["old"]) if given["old"] is not None else []
        if best is None or (len(new), len(old)) < (len(best[0]), len(best[1])):
            best = new, old
    new, old = best
    first = new[0] if new else None
    answer = {"old": len(old), "new": len(new), "line": first and first[0], "fault": first and first[1]}
    print(json.dumps(answer))


def faults(parser, text):
    """(line, what is wrong) of each place, in order."""
    content = text.encode("utf-8", "surrogateescape")
    found, left = [], [parser.parse(content).root_node]
    while left:
        node = left.pop()
        if node.is_missing:
            found.append((node.start_point[0] + 1, f"{node.type} is missing"))
        elif node.is_error:
            words = content[node.start_byte : node.end_byte].decode("utf-8", "replace").split()
            shown = " ".join(words)
            found.append((node.start_point[0] + 1, f"unexpected {shown if len(shown) < 60 else shown[:60] + '…'}"))
        left.extend(child for child in reversed(node.children) if child.has_error or child.is_missing)
    return found


main()
