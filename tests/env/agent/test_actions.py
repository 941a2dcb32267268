"""Actions are read from text, and no text makes a format raise."""

import time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from swegym_env.agent.actions import Action, ActionFormat, Call, Command, Edits, Malformed, Submit
from swegym_env.agent.formats import ACTION_FORMATS, action_format, format_of_template, register_format
from swegym_env.agent.search_replace import Block, write_blocks
from swegym_env.errors import ConfigurationError
from tests.env.agent.families import MARKS, TEMPLATES, WRITTEN

_COMMANDS = st.text(
    st.characters(blacklist_characters="<>`\0", blacklist_categories=("Cs",)), min_size=1, max_size=200
).filter(lambda text: text.strip() and text.strip() != "submit" and text == text.strip("\n") and "\r" not in text)
_ANY = st.text(st.characters())  # halves of surrogate pairs included
_MARKED = st.lists(st.sampled_from(MARKS) | _ANY, max_size=20).map("".join)
_NAMES = st.from_regex(r"[a-z_][a-z_0-9]{0,12}", fullmatch=True).filter(lambda name: name not in ("bash", "submit"))
_TEXTS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=100)
_VALUES = _TEXTS | st.integers(-(2**53), 2**53) | st.booleans() | st.lists(_TEXTS, max_size=3)
_CALLING = sorted(name for name in ACTION_FORMATS if action_format(name).write_call)


@pytest.mark.parametrize("name", sorted(ACTION_FORMATS))
@given(text=_ANY | _MARKED)
def test_every_text_parses_to_an_action_or_a_message(name, text):
    action = action_format(name).parse(text)
    assert isinstance(action, Action)
    assert not isinstance(action, Malformed) or action.message
    if isinstance(action, Command):
        assert action.text.encode()


@pytest.mark.parametrize("name", sorted(ACTION_FORMATS))
@given(command=_COMMANDS)
def test_written_commands_parse_to_the_same_command(name, command):
    assert action_format(name).parse(action_format(name).write(command)) == Command(command)


@pytest.mark.parametrize("name", _CALLING)
@given(tool=_NAMES, arguments=st.dictionaries(_NAMES, _VALUES, max_size=4))
def test_written_calls_parse_to_the_same_call(name, tool, arguments):
    chosen = action_format(name)
    if name in ("xml", "glm"):  # they have no types but text; the tool knows better
        arguments = {key: str(value) for key, value in arguments.items()}
        assume(not any("</" in value for value in arguments.values()))
    assert chosen.parse(chosen.write_call(tool, arguments)) == Call(tool, arguments)


@pytest.mark.parametrize("name", _CALLING)
@given(tool=_NAMES, path=_NAMES)
def test_auto_parses_calls_of_every_family(name, tool, path):
    if name == "llama3":
        assume(tool != "tool_calls" and path != "tool_calls")
    written = action_format(name).write_call(tool, {"path": path})
    assert action_format("auto").parse(f"<think>which {written} now?</think>\n{written}") == Call(tool, {"path": path})


@pytest.mark.parametrize("name", ["xml", "glm"])
def test_value_that_contains_its_closing_tag_cannot_be_written(name):
    with pytest.raises(ValueError, match="holds a tag"):
        action_format(name).write_call("edit", {"new": "</parameter></arg_value>"})


@pytest.mark.parametrize("name", sorted(ACTION_FORMATS))
def test_submit_is_a_submission_in_every_format(name):
    assert action_format(name).parse(action_format(name).write("submit")) == Submit()


@pytest.mark.parametrize(("name", "text", "expected"), WRITTEN)
def test_typical_model_outputs_are_parsed(name, text, expected):
    assert action_format(name).parse(text) == expected


def test_prose_around_a_command_is_ignored():
    text = "I look at the files first.\n<execute>\nls -la\n</execute>\nThen I decide."
    assert action_format("execute").parse(text) == Command("ls -la")


def test_commands_within_reasoning_are_ignored():
    text = "<think>maybe <execute>rm -rf .</execute></think><execute>ls</execute>"
    assert action_format("execute").parse(text) == Command("ls")
    assert action_format("auto").parse(text) == Command("ls")


def test_unclosed_reasoning_contains_no_action():
    assert isinstance(action_format("auto").parse("<think>perhaps <execute>ls</execute>"), Malformed)


def test_reasoning_opened_by_the_prompt_is_ignored():
    text = "I could <execute>rm -rf .</execute> but rather not.\n</think>\n\n"
    assert action_format("auto").parse(text + "<execute>ls</execute>") == Command("ls")
    assert action_format("raw").parse(text + "ls") == Command("ls")
    assert action_format("hermes").parse(text + action_format("hermes").write("ls")) == Command("ls")


def test_reasoning_tags_within_an_action_are_text():
    command = "grep -n '<think>' a.py > b\ncat <<'E' > c\nfoo</think>\nE"
    assert action_format("execute").parse(f"<execute>{command}</execute>") == Command(command)
    assert action_format("bash").parse(f"```bash\n{command}\n```") == Command(command)
    assert action_format("raw").parse(command) == Command(command)
    assert action_format("hermes").parse(action_format("hermes").write(command)) == Command(command)


def test_two_commands_in_one_answer_are_rejected():
    answer = action_format("execute").parse("<execute>ls</execute> <execute>pwd</execute>")
    assert isinstance(answer, Malformed)
    assert "2" in answer.message
    for name in _CALLING:
        chosen = action_format(name)
        answer = chosen.parse(chosen.write("ls") + "\n" + chosen.write("pwd"))
        assert isinstance(answer, Malformed) or name == "openai", name  # a message is one, whatever follows it


@pytest.mark.parametrize("name", ["bash", "execute", "raw"])
def test_an_answer_may_have_the_line_ends_of_windows(name):
    written = action_format(name).write("cd lib\nls")
    assert action_format(name).parse(written.replace("\n", "\r\n") + "\r\n") == Command("cd lib\nls")
    kept = "printf 'a\r\n' > x\nls"  # only some of its lines end so
    assert action_format(name).parse(action_format(name).write(kept)) == Command(kept)


def test_nul_character_is_rejected():
    assert isinstance(action_format("raw").parse("echo \0"), Malformed)
    assert isinstance(
        action_format("hermes").parse(action_format("hermes").write_call("view", {"path": "\0"})), Malformed
    )


def test_lone_surrogate_is_rejected():
    assert isinstance(action_format("raw").parse("echo \ud800"), Malformed)
    text = '<tool_call>{"name": "view", "arguments": {"path": "\\ud800"}}</tool_call>'
    assert isinstance(action_format("hermes").parse(text), Malformed)


def test_json_error_shows_its_position():
    answer = action_format("hermes").parse('<tool_call>{"name": "view", "arguments": {"path": oops}}</tool_call>')
    assert "oops" in answer.message and "Expecting value" in answer.message


@pytest.mark.parametrize("name", _CALLING)
def test_deeply_nested_json_does_not_raise(name):
    chosen = action_format(name)
    written = chosen.write_call("view", {"path": "HERE"})
    assert isinstance(chosen.parse(written.replace('"HERE"', "[" * 100_000)), Malformed | Call)


def test_unknown_format_error_lists_the_known_ones():
    with pytest.raises(ConfigurationError, match="execute"):
        action_format("excute")


@pytest.mark.parametrize(("template", "name"), TEMPLATES)
def test_auto_selects_the_format_of_the_chat_template(template, name):
    assert format_of_template(template) == name
    assert action_format("auto", chat_template=template).name == name
    assert action_format("raw", chat_template=template).name == "raw"


OWN = ActionFormat("shout", lambda text: Command(text.lower()), str.upper, "Shout.")


def test_custom_format_is_imported_or_registered(monkeypatch):
    assert action_format(f"{__name__}:OWN") is OWN
    assert action_format(OWN) is OWN
    monkeypatch.delitem(ACTION_FORMATS, "shout", raising=False)
    register_format(OWN)
    register_format(OWN)
    assert action_format("shout").parse("LS") == Command("ls")
    with pytest.raises(ConfigurationError, match="already"):
        register_format(ActionFormat("shout", OWN.parse, OWN.write, "Whisper."))
    monkeypatch.delitem(ACTION_FORMATS, "shout")


@pytest.mark.parametrize("place", ["no_such_module:OWN", f"{__name__}:NOTHING", f"{__name__}:TEMPLATES", ":", "a:"])
def test_format_that_cannot_be_imported_is_reported(place):
    with pytest.raises(ConfigurationError, match="action format"):
        action_format(place)


_LINES = st.lists(_NAMES, max_size=3).map(lambda lines: "".join(f"{line}\n" for line in lines))
_BLOCKS = st.builds(Block, path=st.sampled_from(["a.py", "src/b.py"]), search=_LINES, replace=_LINES)


@settings(max_examples=40)
@given(st.lists(_BLOCKS, min_size=1, max_size=3))
def test_written_blocks_parse_to_the_same_blocks(blocks):
    text = write_blocks(blocks)
    assert action_format("search_replace").parse(text) == Edits(tuple(blocks))
    assert action_format("auto").parse("I repair it.\n\n" + text) == Edits(tuple(blocks))


def test_json_strings_may_contain_line_breaks():
    text = '<tool_call>{"name": "bash", "arguments": {"command": "ls\npwd"}}</tool_call>'
    assert action_format("hermes").parse(text) == Command("ls\npwd")


_STUFFING = [
    *(
        "<execute>",
        "</execute>",
        "<think>",
        "</think>",
        "<think></think>",
        "```bash\n",
        "```",
        "`",
        "```bash\n```\n",
        "\n",
    ),
    *(
        "<tool_call>",
        "<tool_call>{",
        '{"name":',
        "{",
        "[",
        '"',
        "\\",
        "<function=",
        "<function=a>",
        "<parameter=a>",
        " ",
    ),
    *(
        "<arg_key>",
        "<arg_key>a</arg_key>",
        "[TOOL_CALLS]",
        "[TOOL_CALLS]a[ARGS]",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
    ),
    *(
        "<｜DSML｜invoke",
        '<｜DSML｜invoke name="a">',
        "<<<<<<< SEARCH\n",
        "a.py\n<<<<<<< SEARCH\n=======\n>>>>>>> REPLACE\n",
    ),
    *("[THINK]", "a", '{"tool_calls":[', "<tool_call>a\n", "<tool_call>{}</tool_call>", "[{", "[{} ", "1", "=======\n"),
]


@pytest.mark.parametrize("name", sorted(ACTION_FORMATS))
def test_parsing_time_is_linear(name):
    """A piece is repeated over 128 KiB; for four times the text a quadratic parser takes 16 times as long."""
    parse = action_format(name).parse

    def seconds(text):
        begun = time.process_time()
        parse(text)
        return time.process_time() - begun

    for piece in _STUFFING:
        for begin, end in (("", ""), ("<think>", "</think>\n<execute>ls</execute>")):
            small, large = (begin + piece * (size // len(piece)) + end for size in (1 << 15, 1 << 17))
            took = seconds(large)
            if took > 0.025:  # less is too short to measure
                assert min(took, seconds(large)) < 4 * 2.5 * max(seconds(small), seconds(small), 0.002), (piece, begin)
