"""MkDocs calls this while it builds: pages that are read off the code, so that they cannot be out of date.

`reference/commands.md` holds what each command answers to `--help`, `reference/configuration/` every field of a run's
configuration with its type, its default and its line of the docstring, one page a section; `contributing.md` and
`security.md` lie in the root.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import os
import pkgutil
import re
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from swe_trainers.field_docs import field_docs, purpose, say_type

Main = Callable[[Sequence[str]], int]

_COMMANDS = """\
# Commands

What each command answers to `--help`. Exit codes: 0 on success; 1 where the answer is no; 2 where what was asked for is
wrong or is not available, in one line on standard error (`--debug` shows the traceback); 130 after Ctrl-C.
"""
_CONFIGURATION = """\
# Configuration

A run of `swe-train` is one YAML file. Any value can be given on the command line instead, as `--section.key value`. An
unknown key is an error that names the nearest match, and so is an option that would have no effect.
`swe-train --help SECTION` prints the same in a terminal.
"""
_TRAINER = """\
# trainer

`trainer.algorithm` chooses one of the [algorithms](algorithms.md), and with it what else there is. These are the
settings that several share.
"""
_ALGORITHMS = """\
# Settings of each algorithm

What each `trainer.algorithm` has beside the [shared settings](trainer.md), or sets otherwise. [Choosing an
algorithm](../../algorithms.md) says what they are for.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for place, text in (
        ("reference/commands.md", commands_page()),
        *((f"reference/configuration/{name}.md", text) for name, text in configuration_pages().items()),
        ("contributing.md", _from_the_root("CONTRIBUTING.md")),
        ("security.md", _from_the_root("SECURITY.md")),
    ):
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace four kinds of comments, and links to documents of the root by links to their pages.

    `<!-- program: PATH -->` becomes the program, which has a test of its own. `<!-- setups -->` becomes the table of
    the repositories that can be installed without an image, `<!-- real rows -->` the tables of the verdicts on their
    rows. `<!-- reference: MODULE:REGISTRY -->` becomes the reference of each module in a registry, `<!-- reference:
    MODULE -->` that of each class that the module exports; indented lines below are the options.
    """
    root = Path(__file__).parents[1]

    def program(found: re.Match[str]) -> str:
        return f'```python title="{found[1]}"\n{(root / found[1]).read_text(encoding="utf-8")}```'

    def reference(found: re.Match[str]) -> str:
        listed = pkgutil.resolve_name(found[1])
        if isinstance(listed, ModuleType):
            places = [f"{found[1]}.{name}" for name, value in vars(listed).items() if isinstance(value, type)]
        else:
            places = list(dict.fromkeys(place.partition(":")[0] for place in listed.values()))
        return "\n".join(f"::: {place}\n{found[2]}" for place in places)

    for name in ("CONTRIBUTING.md", "SECURITY.md"):  # as seen from docs/, where they are generated pages
        markdown = markdown.replace(f"](../{name}", f"]({name.lower()}")
    markdown = markdown.replace("<!-- setups -->", _setups())
    if "<!-- real rows -->" in markdown:
        markdown = markdown.replace("<!-- real rows -->", _real_rows(root))
        markdown = markdown.replace("<!-- real rows: lite -->", _real_rows_lite(root))
        for language in ("javascript", "c"):
            markdown = markdown.replace(f"<!-- real rows: {language} -->", _real_rows_multilingual(root, language))
    markdown = re.sub(r"^<!-- program: (\S+) -->$", program, markdown, flags=re.MULTILINE)
    return re.sub(r"^<!-- reference: (\S+) -->\n((?: {4}.*\n)*)", reference, markdown, flags=re.MULTILINE)


def on_post_page(output: str, **_: Any) -> str:
    """Name what the theme leaves without a name: the boxes behind menu and search."""
    for box, name in (("__drawer", "Menu"), ("__search", "Search")):
        output = output.replace(f'id="{box}" autocomplete="off"', f'id="{box}" aria-label="{name}" autocomplete="off"')
    return output


def _setups() -> str:
    """Repository, Python and versions of every entry of the table of set-up commands."""
    from swegym_env.languages.python.setup import SHIPPED_TABLE, read_table

    rows = ["| repository | Python: versions of the repository |", "|---|---|"]
    for repository, entries in sorted(read_table(SHIPPED_TABLE).items()):
        pythons: dict[str, list[str]] = {}
        for versions, recipe in entries:
            named = sorted(versions, key=lambda text: [int(part) for part in re.findall(r"\d+", text)])
            pythons.setdefault(recipe.python, []).append(
                f"{named[0]} to {named[-1]}" if len(named) > 1 else named[0] if named else "all others"
            )
        parts = [f"{python}: {', '.join(dict.fromkeys(versions))}" for python, versions in pythons.items()]
        whole = len(pythons) == 1 and parts[0].endswith("all others")
        rows.append(f"| {repository} | {f'{next(iter(pythons))}: all' if whole else '; '.join(parts)} |")
    return "\n".join(rows)


def _real_rows(root: Path) -> str:
    """The results of the campaign over SWE-bench Verified: by repository, as a curve over bits, and every miss."""
    found = _campaign(root, "verified")
    lines = _by_repository(found, ("gold", "empty", "rewrite"))
    curve = {name.rpartition(" ")[2]: share for name, share in found["ratios"].items() if name.startswith("bits/")}
    lines += [
        "",
        (
            "The proof is blind / controls / none. The set-up and the three verdicts of a row take so many seconds of "
            "processor time on average (of processor time, because other work ran beside the campaign). Layers are in "
            "GB; those that rows share count once. Blind expectations hold at least this many bits (share of the rows):"
        ),
        "",
        f"| bits | {' | '.join(curve)} |",
        f"|---|{'---|' * len(curve)}",
        f"| rows | {' | '.join(f'{share:.0%}' for share in curve.values())} |",
        "",
    ]
    costs = {
        row["metric"].rpartition("/")[2]: f"{row['median']:.1f} ({row['p10']:.1f} to {row['p90']:.1f})"
        for row in found["rows"]
        if row["case"] == "all" and row["metric"].startswith("runs_per_verdict")
    }
    lines += [
        (
            "A verdict on a rewrite, after the gold patch has been graded, costs as much as this many runs of the "
            f"tests (median, 10th to 90th percentile): {costs['rewrite']}; the first one on a task, which finds out "
            f"what can be compared and examined: {costs['gold']}."
        ),
        "",
    ]
    return "\n".join([*lines, *_misses(found)])


def _real_rows_lite(root: Path) -> str:
    """The results of the campaign over those rows of SWE-bench Lite that are not in Verified."""
    found = _campaign(root, "lite")
    return "\n".join([*_by_repository(found, ("gold", "empty", "rewrite")), "", *_misses(found)])


def _real_rows_multilingual(root: Path, language: str) -> str:
    """The results of the campaign over SWE-bench Multilingual in one language: by repository, and every miss."""
    found = _campaign(root, "multilingual")
    runs = [entry for entry in found["runs"] if entry["language"] == language]
    names = {entry["instance_id"] for entry in runs}
    missed = {name: miss for name, miss in found["not_reproduced"].items() if name in names}
    found |= {"runs": runs, "not_reproduced": missed}
    return "\n".join([*_by_repository(found, ("gold", "empty")), "", *_misses(found)])


def _campaign(root: Path, dataset: str) -> dict[str, Any]:
    text = (root / f"benchmarks/results/real_rows_{dataset}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def _by_repository(found: dict[str, Any], patches: tuple[str, ...]) -> list[str]:
    """The table of a campaign's rows by repository: verdicts, proofs, seconds and bytes."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for entry in found["runs"]:
        runs.setdefault(entry["repo"], []).append(entry)
    lines = [
        f"| repository | rows | {' resolved | '.join(patches)} resolved | proof | set-up | verdicts | layers |",
        f"|{'---|' * (6 + len(patches))}",
    ]
    for repo, entries in (*sorted(runs.items()), ("**all**", found["runs"])):
        resolved = []
        for patch in patches:
            graded = [entry["resolved"] for entry in entries if entry["patch"] == patch]
            resolved.append(f"{sum(graded)} of {len(graded)}")
        rows = len({entry["instance_id"] for entry in entries})
        proofs = [_proofs(entries).count(proof) for proof in ("blind", "controls", "none")]
        layers = {name: size for entry in entries for name, size in entry.get("layers", {}).items()}
        setup_s = [entry["setup_cpu_s"] for entry in entries if "setup_cpu_s" in entry]
        measured = len({entry["instance_id"] for entry in entries if "cpu_s" in entry})
        verdicts_s = sum(entry.get("cpu_s", 0.0) for entry in entries)
        lines.append(
            f"| {repo} | {rows} | {' | '.join(resolved)} | {' / '.join(map(str, proofs))} "
            f"| {sum(setup_s) / len(setup_s) if setup_s else 0:.0f} | {verdicts_s / measured if measured else 0:.0f} "
            f"| {sum(layers.values()) / 1e9:.2f} |"
        )
    return lines


def _misses(found: dict[str, Any]) -> list[str]:
    lines = ["Rows that do not reproduce, each with its cause:", ""] if found["not_reproduced"] else []
    for name, miss in found["not_reproduced"].items():
        lines.append(f"- `{name}`, {miss['patch']}: {(miss['cause'] or miss['reason'] or miss['at_fault'][0]).strip()}")
    return lines


def _proofs(entries: list[dict[str, Any]]) -> list[str]:
    """What proves the repair of each row: by the verdict on the rewrite, else by that on the gold patch."""
    proofs: dict[str, str] = {}
    for entry in sorted(entries, key=lambda entry: str(entry["patch"])):  # gold before rewrite
        if entry["resolved"] and entry["patch"] in ("gold", "rewrite"):
            proofs[entry["instance_id"]] = entry["proof"]
    return list(proofs.values())


def _from_the_root(name: str) -> str:
    """A document that lies beside the README, its links as seen from docs/."""
    return (Path(__file__).parents[1] / name).read_text(encoding="utf-8").replace("](docs/", "](")


def commands_page() -> str:
    """What every command says of itself."""
    parts = [_COMMANDS]
    for program, words, main in _commands():
        level = "##" if not words else "###"
        parts.append(f"{level} {' '.join((program, *words))}\n\n```text\n{_help(main, words)}\n```\n")
    return "\n".join(parts)


def _commands() -> Iterator[tuple[str, tuple[str, ...], Main]]:
    """Every program and command: its name, the words before `--help`, and the function that takes them."""
    from swe_trainers.cli import main as trainer
    from swe_trainers.cli import serve as serve_command
    from swegym_env.cli import main as environment

    for words in _subcommands(environment.build_parser()):
        yield "swegym", words, environment.main
    yield "swe-train", (), trainer.main
    for name in trainer._COMMANDS:
        yield "swe-train", (name,), trainer.main
    yield "swe-eval", (), trainer.main_eval
    yield "swe-eval", ("RUN",), trainer.main_eval
    yield "swe-eval", ("compare",), trainer.main_eval
    yield "swe-serve", (), serve_command.main


def _subcommands(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from _subcommands(below, (*words, name))


def _help(main: Main, words: Sequence[str]) -> str:
    output = io.StringIO()
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
            main([*words, "--help"])
    finally:
        os.environ.pop("COLUMNS") if columns is None else os.environ.update(COLUMNS=columns)
    return output.getvalue().rstrip()


def configuration_pages() -> dict[str, str]:
    """Every setting of `swe-train`: the name of a page to its text; one page a section, two for the trainer."""
    from swe_trainers.algorithms import algorithm_classes
    from swe_trainers.algorithms.algorithm import Algorithm
    from swe_trainers.algorithms.grpo import GroupRelative
    from swe_trainers.algorithms.policy_gradient import Clipped, PolicyGradient
    from swe_trainers.run_config import RunConfig

    pages = {}
    for name, kind in _sections(RunConfig).items():
        parts = [f"# {name}\n\n{purpose(kind)}\n\n{_table(kind, skip=_sections(kind), prefix=name)}"]
        for inner, section in _sections(kind).items():
            parts.append(f"## {name}.{inner}\n\n{purpose(section)}\n\n{_table(section, prefix=f'{name}.{inner}')}")
        pages[name] = "\n".join(parts)
    rows = [f"| [`{name}`]({name}.md) | {purpose(kind)} |" for name, kind in _sections(RunConfig).items()]
    rows.append("| [`trainer`](trainer.md), [its algorithms](algorithms.md) | How the policy is updated. |")
    listed = "\n".join(["| section | |", "|---|---|", *rows])
    pages["index"] = f"{_CONFIGURATION}\n{listed}\n\n## The run\n\n{_table(RunConfig, skip=_sections(RunConfig))}"
    shared = {
        "Every algorithm": Algorithm,
        "Every algorithm that plays episodes": PolicyGradient,
        "Every algorithm whose ratio is clipped": Clipped,
        "Every algorithm that compares groups": GroupRelative,
    }
    known: dict[str, Any] = {}
    parts = [_TRAINER]
    for what, kind in shared.items():
        parts.append(f"## {what}\n\n" + _table(kind, skip=known, prefix="trainer"))
        known |= _defaults(kind)
    pages["trainer"] = "\n".join(parts)
    parts = [_ALGORITHMS]
    for algorithm, kind in algorithm_classes().items():
        base = next(each for each in reversed(shared.values()) if issubclass(kind, each))
        same = {name: None for name, value in _defaults(base).items() if _defaults(kind)[name] == value}
        parts.append(f"## {algorithm}\n\n{purpose(kind)}\n\n{_table(kind, skip=same, prefix='trainer')}")
    pages["algorithms"] = "\n".join(parts)
    return pages


def _sections(kind: type) -> dict[str, type]:
    """The fields of a dataclass that are dataclasses themselves, the trainer's left out."""
    found = {}
    for name, hint in typing.get_type_hints(kind).items():
        for each in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(each) and isinstance(each, type) and name != "trainer":
                found[f"{name}[]" if typing.get_origin(hint) is tuple else name] = each
    return found


def _defaults(kind: type) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(kind)}


def _table(kind: type, *, skip: Any = (), prefix: str = "") -> str:
    described = field_docs(kind)
    hints = typing.get_type_hints(kind)
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for field in dataclasses.fields(kind):
        if field.name in skip or not field.init or (not prefix and field.name == "trainer"):
            continue
        key = f"{prefix}.{field.name}" if prefix else field.name
        text = described.get(field.name, "").replace("|", "\\|")
        rows.append(f"| `{key}` | {_type(hints[field.name])} | {_default(field)} | {text} |")
    if len(rows) == 2:
        return "Nothing more.\n"
    return '<div class="settings" markdown>\n\n' + "\n".join(rows) + "\n\n</div>\n"


def _type(hint: Any) -> str:
    return say_type(hint).replace("|", "\\|")


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "**required**" if field.default_factory is dataclasses.MISSING else "empty"
    value = field.default
    if value is None or isinstance(value, bool):
        return {None: "`null`", True: "`true`", False: "`false`"}[value]
    return "empty" if value == () else f"`{value}`"
