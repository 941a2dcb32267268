"""Bundles are read, sets made of them, and calls become commands that mean what was called."""

import ast
import contextlib
import shlex
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from swegym_env.agent.actions import Call, Command, Edits, Malformed, Submit
from swegym_env.agent.formats import action_format
from swegym_env.agent.search_replace import Block
from swegym_env.agent.tools import (
    TOOL_SETS,
    Argument,
    Tool,
    load_bundle,
    shell_command,
    shipped_bundles,
    tool_set,
    tools_for,
)
from swegym_env.errors import ConfigurationError

ROOT = Path(__file__).parents[3]
_TEXTS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=50)
TOOL = Tool(
    "count",
    "Counts.",
    (
        Argument("paths", "array", "Files.", required=True, place="position"),
        Argument("min_size", "integer", "Least size."),
        Argument("ratio", "number", "A ratio."),
        Argument("blank", "boolean", "Blank ones too."),
        Argument("kind", "string", "Which.", choices=("lines", "words")),
        Argument("body", "string", "Text.", place="input"),
    ),
)


def _bundle(folder: Path, config: object, *, program: str = "#!/bin/sh\necho $#\n") -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "count").write_text(program)
    (folder / "config.yaml").write_text(config if isinstance(config, str) else yaml.safe_dump(config))
    return folder


def _config(**changes: object) -> dict[str, object]:
    tool = {"description": "Counts.", "arguments": [{"name": "path", "description": "A file."}]}
    return {"description": "Counting.", "tools": {"count": {**tool, **changes}}}


def test_call_becomes_a_shell_command():
    assert (
        shell_command(TOOL, {"paths": ["a.py", "b c"], "min_size": 3, "blank": True})
        == "count a.py 'b c' --min-size=3 --blank"
    )
    assert shell_command(TOOL, {"paths": ["-x"], "blank": False, "kind": "words"}) == "count --kind=words -- -x"
    assert shell_command(TOOL, {"paths": [], "body": "it's\n"}) == "printf %s 'it'\"'\"'s\n' | count"
    assert shell_command(TOOL, {"paths": ["a"], "ratio": None}) == "count a"


def test_text_is_converted_to_the_type_of_the_argument():
    given_as_text = {"paths": '["a", "b"]', "min_size": "3", "ratio": "0.5", "blank": "True", "kind": "lines"}
    assert shell_command(TOOL, given_as_text) == "count a b --min-size=3 --ratio=0.5 --blank --kind=lines"
    assert shell_command(TOOL, {"paths": "only.py", "min_size": 3.0}) == "count only.py --min-size=3"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "'paths' is missing: Files"),
        ({"paths": ["a"], "min_sise": 3}, "did you mean min_size"),
        ({"paths": ["a"], "min_size": "ten"}, "min_size: expected an integer, got 'ten'"),
        ({"paths": ["a"], "min_size": 2.5}, "expected an integer"),
        ({"paths": ["a"], "min_size": True}, "expected an integer"),
        ({"paths": ["a"], "ratio": "nan"}, "expected a number"),
        ({"paths": ["a"], "blank": "perhaps"}, "expected a boolean"),
        ({"paths": {"a": 1}}, "expected a list of strings"),
        ({"paths": [["a"]]}, "expected a list of strings"),
        ({"paths": ["a\0"]}, "a NUL character"),
        ({"paths": ["a"], "kind": "bytes"}, "expected one of lines, words"),
        ({"paths": ["a"], "kind": ["lines"]}, "expected a string"),
        ({"paths": ["a" * 200_000]}, "too long"),
    ],
)
def test_invalid_argument_error_says_what_is_expected(arguments, message):
    with pytest.raises(ValueError) as raised:
        shell_command(TOOL, arguments)
    assert message in str(raised.value)


@given(paths=st.lists(_TEXTS, max_size=3), kind=st.none() | st.just("words"), body=_TEXTS)
def test_shell_receives_arguments_unchanged(paths, kind, body):
    command = shell_command(TOOL, {"paths": paths, "kind": kind, "body": body})
    words = shlex.split(command)
    assert words[:4] == ["printf", "%s", body, "|"]
    rest = [word for word in words[5:] if word not in ("--kind=words", "--")]
    assert rest == [path for path in paths if path not in ("--kind=words", "--")]


@given(st.dictionaries(st.sampled_from([each.name for each in TOOL.arguments]) | _TEXTS, st.from_type(object) | _TEXTS))
def test_invalid_arguments_raise_only_value_errors(arguments):
    with contextlib.suppress(ValueError):
        assert shell_command(TOOL, arguments).split()[-1]


def test_calls_resolve_to_a_command_or_a_message():
    tools = tool_set("default")
    assert tools.resolve(Call("view", {"path": "a.py", "start": "3"})) == Command("/opt/swegym/bin/view a.py 3")
    assert tools.resolve(Command("ls | wc")) == Command("ls | wc")
    assert tools.resolve(Submit()) == Submit()
    unknown = tools.resolve(Call("vieww", {}))
    assert isinstance(unknown, Malformed) and "Did you mean view? There are: bash, search, view" in unknown.message
    wrong = tools.resolve(Call("view", {"file": "a"}))
    assert isinstance(wrong, Malformed) and "view(path: string, start?: integer" in wrong.message
    assert isinstance(tool_set("bash").resolve(Edits((Block("a", "b\n", "c\n"),))), Malformed)


def test_search_replace_blocks_are_applied_by_the_edit_tool():
    tools = tools_for(action_format("search_replace"), ("bash",))
    command = tools.resolve(Edits((Block("a b.py", "x\n", "y\n"),))).text
    words = shlex.split(command)
    assert words[2] == "a b.py\n<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE\n"
    assert words[3:] == ["|", "/opt/swegym/bin/edit", "apply"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("view a.py 1 2", ["view", "a.py", "1", "2"]),
        ("view $(id); rm -rf /", ["view", "$(id);", "rm", "-rf", "/"]),
        ("edit replace a --old='x\ny' --new=z", ["edit", "replace", "a", "--old=x\ny", "--new=z"]),
        ("edit replace a --old='c << x\ny' --new=z", ["edit", "replace", "a", "--old=c << x\ny", "--new=z"]),
    ],
)
def test_without_shell_arguments_are_not_expanded(text, words):
    command = tool_set("rewrite-only").resolve(Command(text))
    assert shlex.split(command.text) == [f"/opt/swegym/bin/{words[0]}", *words[1:]]


def test_without_shell_a_heredoc_is_standard_input():
    command = tool_set("rewrite-only").resolve(Command("edit create a.py <<'EOF'\n$x\n\nEOF"))
    assert shlex.split(command.text)[2:] == ["$x\n\n", "|", "/opt/swegym/bin/edit", "create", "a.py"]
    command = tool_set("rewrite-only").resolve(Command('edit create "it\'s << b" <<EOF\nx << y\nEOF'))
    assert shlex.split(command.text)[2:] == ["x << y\n", "|", "/opt/swegym/bin/edit", "create", "it's << b"]


@pytest.mark.parametrize(
    "text", ["ls", "cat a.py", "view 'a", "edit create a <<EOF\nx", "edit apply <<E\nx\nE\nrm x", "''"]
)
def test_without_shell_other_commands_get_a_message(text):
    answer = tool_set("rewrite-only").resolve(Command(text))
    assert isinstance(answer, Malformed) and "Nothing was run." in answer.message


def test_tool_sets_consist_of_names_and_paths(tmp_path):
    own = _bundle(tmp_path / "mine", _config())
    tools = tool_set(("bash", "view", own))
    assert tools.shell and [tool.name for tool in tools.functions] == ["bash", "view", "count", "submit"]
    assert not tool_set("rewrite-only").shell
    assert tool_set("bash").bundles == ()
    for name in TOOL_SETS:
        assert [schema["function"]["name"] for schema in tool_set(name).schemas][-1] == "submit"


@pytest.mark.parametrize(
    ("chosen", "message"), [((), "at least one"), ("nothing", "no tool bundle 'nothing': give edit")]
)
def test_invalid_tool_set_is_reported(chosen, message):
    with pytest.raises(ConfigurationError, match=message):
        tool_set(chosen)


def test_two_tools_with_one_name_are_rejected(tmp_path):
    first, second = _bundle(tmp_path / "one", _config()), _bundle(tmp_path / "two", _config())
    with pytest.raises(ConfigurationError, match="both have 'count'"):
        tool_set((str(first), str(second)))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("tools: [", "cannot be read"),
        ("- a", "expected keys and values, got list"),
        ({"tools": {}}, "expected at least one tool"),
        ({"tool": {}}, "unknown key 'tool'; did you mean tools"),
        (_config(descriptoin="x"), "did you mean description"),
        (_config(description=""), "description: expected text"),
        (_config(arguments={"a": 1}), "arguments: expected a list"),
        (_config(arguments=[{"name": "a b", "description": "x"}]), "name: expected a word"),
        (_config(arguments=[{"name": "a", "description": "x", "type": "int"}]), "expected one of string, integer"),
        (_config(arguments=[{"name": "a", "description": "x", "place": "stdin"}]), "expected one of option, position"),
        (_config(arguments=[{"name": "a", "description": "x", "place": "input", "type": "array"}]), "cannot be passed"),
        (_config(arguments=[{"name": "a", "description": "x"}] * 2), "expected different names"),
        (_config(example={"file": "a"}), "unknown key 'file'"),
        ({"tools": {"bash": {"description": "x"}}}, "that is not bash"),
        ({"tools": {"other": {"description": "x"}}}, "there is no program"),
    ],
)
def test_malformed_bundle_is_reported_with_file_and_key(tmp_path, config, message):
    folder = _bundle(tmp_path / "mine", config)
    with pytest.raises(ConfigurationError) as raised:
        load_bundle(folder)
    assert message in str(raised.value) and str(folder / "config.yaml") in str(raised.value)


def test_bundle_digest_depends_on_its_content(tmp_path):
    folder = _bundle(tmp_path / "mine", _config())
    before = load_bundle(folder).digest
    assert load_bundle(folder).digest == before
    (folder / "bin" / "count").chmod(0o755)
    after = load_bundle(folder).digest
    assert after != before
    (folder / "bin" / "count").write_text("#!/bin/sh\necho 0\n")
    assert load_bundle(folder).digest not in (before, after)


def test_shipped_tools_are_valid_python_36():
    programs = [path for folder in shipped_bundles().values() for path in folder.rglob("*") if path.is_file()]
    sources = [
        path for path in programs if path.suffix == ".py" or path.read_bytes().startswith(b"#!/usr/bin/env python")
    ]
    assert {"syntax.py", "search_replace.py", "driver.py", "pdb"} <= {path.name for path in sources}
    for path in sources:
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 6))


def test_schemas_have_the_form_of_chat_templates():
    edit = next(schema for schema in tool_set("default").schemas if schema["function"]["name"] == "edit")
    parameters = edit["function"]["parameters"]
    assert parameters["required"] == ["command"]
    assert parameters["properties"]["command"]["enum"] == ["replace", "insert", "create", "apply", "undo"]
    assert parameters["properties"]["all"]["type"] == "boolean"
