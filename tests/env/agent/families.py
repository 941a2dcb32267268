# ruff: noqa: ISC004, E501 - what models write is not broken anywhere else
"""What models of each family write, and pieces of their chat templates: taken from their model cards and templates."""

from swegym_env.agent.actions import Call, Command, Edits, Submit
from swegym_env.agent.search_replace import Block

LS = Command("ls -la")
VIEW = Call("view", {"path": "a.py", "start": 3})
VIEW_AS_TEXT = Call("view", {"path": "a.py", "start": "3"})

# (format, what the model wrote, what it means)
WRITTEN = [
    ("execute", "<execute>ls -la", LS),  # a stop sequence was cut off
    ("bash", "First:\n```bash\nls -la\n```\nDone.", LS),
    ("bash", "````sh\nls -la\n````", LS),
    ("bash", "```python\nprint(1)\n```\n```bash\nls -la\n```", LS),
    ("bash", "````bash\ncat <<E\n```\nE\n````", Command("cat <<E\n```\nE")),
    ("hermes", 'Look:\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls -la"}}\n</tool_call>', LS),
    ("hermes", '<tool_call>{"name": "view", "arguments": {"path": "a.py", "start": 3}}', VIEW),
    (
        "hermes",
        '<tool_call>{"name": "view", "arguments": "{\\"path\\": \\"a.py\\", \\"start\\": 3}"}</tool_call>',
        VIEW,
    ),
    ("hermes", '<tool_call>{"name": "submit", "arguments": {}}</tool_call>', Submit()),
    ("hermes", '<tool_call>{"name": "submit"}</tool_call>', Submit()),
    ("llama3", '<|python_tag|>{"name": "view", "parameters": {"path": "a.py", "start": 3}}<|eom_id|>', VIEW),
    ("llama3", '{"type": "function", "name": "bash", "parameters": {"command": "ls -la"}}', LS),
    ("llama3", 'In {braces} I call {"name": "bash", "parameters": {"command": "ls -la"}}', LS),
    ("mistral", '[TOOL_CALLS] [{"name": "view", "arguments": {"path": "a.py", "start": 3}, "id": "abc"}]</s>', VIEW),
    ("mistral", '[TOOL_CALLS]view[ARGS]{"path": "a.py", "start": 3}', VIEW),
    ("mistral", '[THINK]hm[/THINK]I look.[TOOL_CALLS]bash[CALL_ID]Xy12[ARGS]{"command": "ls -la"}', LS),
    (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>view\n```json\n"
        '{"path": "a.py", "start": 3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>',
        VIEW,
    ),
    (
        "deepseek",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>bash<｜tool▁sep｜>{"command": "ls -la"}<｜tool▁call▁end｜>',
        LS,
    ),
    (
        "deepseek",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="view">\n'
        '<｜DSML｜parameter name="path" string="true">a.py</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="start" string="false">3</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        VIEW,
    ),
    (
        "glm",
        "<think>a</think>\n<tool_call>view\n<arg_key>path</arg_key>\n<arg_value>a.py</arg_value>\n"
        "<arg_key>start</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        VIEW_AS_TEXT,
    ),
    ("glm", "<tool_call>bash<arg_key>command</arg_key><arg_value>ls -la</arg_value></tool_call>", LS),
    ("glm", "<tool_call>\nsubmit\n</tool_call>", Submit()),
    (
        "xml",
        "I look.\n<tool_call>\n<function=view>\n<parameter=path>\na.py\n</parameter>\n"
        "<parameter=start>\n3\n</parameter>\n</function>\n</tool_call>",
        VIEW_AS_TEXT,
    ),
    ("xml", "<function=bash>\n<parameter=command>ls -la</parameter>\n</function>", LS),
    ("xml", "<function=submit>\n</function>", Submit()),
    (
        "openai",
        '{"role": "assistant", "content": null, "tool_calls": [{"id": "call_1", "type": "function", "function": '
        '{"name": "view", "arguments": "{\\"path\\": \\"a.py\\", \\"start\\": 3}"}}]}',
        VIEW,
    ),
    ("openai", '{"function_call": {"name": "bash", "arguments": "{\\"command\\": \\"ls -la\\"}"}}', LS),
    ("openai", '[{"type": "function", "function": {"name": "submit", "arguments": ""}}]', Submit()),
    (
        "search_replace",
        "The bound is off.\n\n### src/a.py\n```python\n<<<<<<< SEARCH\nx = 1\n=======\nx = 2\n>>>>>>> REPLACE\n```\n",
        Edits((Block("src/a.py", "x = 1\n", "x = 2\n"),)),
    ),
    (
        "search_replace",
        "**`a.py`**:\n<<<<<<< SEARCH\na\n=======\n>>>>>>> REPLACE\nand then\n<<<<<<< SEARCH\nb\n=======\nc\n>>>>>>> REPLACE",
        Edits((Block("a.py", "a\n", ""), Block("a.py", "b\n", "c\n"))),
    ),
    ("search_replace", "<execute>ls -la</execute>", LS),
    ("auto", "<tool_call>\n<function=submit>\n</function>\n</tool_call>", Submit()),
    ("auto", "<tool_call>\nsubmit\n</tool_call>", Submit()),
    ("auto", "submit", Submit()),
    (
        "auto",
        '<tool_call>{"name": "bash", "arguments": {"command": "grep \'<function=\' <execute> ```"}}</tool_call>',
        Command("grep '<function=' <execute> ```"),
    ),
]

# (a piece of a chat template, the format that it writes calls in)
TEMPLATES = [
    ("{%- if tools %}<tools>…</tools> return a json object within <tool_call></tool_call> XML tags", "hermes"),
    ("<tool_call>\\n<function=example_function_name>\\n<parameter=example_parameter_1>", "xml"),
    ("<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>", "glm"),
    ('{{ "<|start_header_id|>ipython<|end_header_id|>" }} {"name": fn, "parameters": {…}} {"parameters": ', "llama3"),
    ("{{- '<|python_tag|>' + tool_call.name }}", "llama3"),
    ("{{ '[TOOL_CALLS] [' + tool_calls | tojson + ']' }}[AVAILABLE_TOOLS]", "mistral"),
    ("{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>'}}", "deepseek"),
    ("{% for message in messages %}{{'<|im_start|>' + message['role']}}{% endfor %}", "auto"),
    ("", "auto"),
]

# fmt: off
# What actions are made of: a fuzzer that knows them comes further.
MARKS = [
    *("<execute>", "</execute>", "<think>", "</think>", "[THINK]", "[/THINK]", "```bash\n", "\n```", "````sh\n", "\n"),
    *("<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>", ">", "name", '"name"'),
    *(
        '{"name": "a", "arguments": ',
        '{"function": ',
        '"arguments"',
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        '"',
        "null",
        "1e999",
    ),
    *(
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "<|python_tag|>",
    ),
    *("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "function", '<｜DSML｜invoke name="a">'),
    *('<｜DSML｜parameter name="b" string="false">', "</｜DSML｜parameter>", "<<<<<<< SEARCH\n", "=======\n", "a.py\n"),
    *(">>>>>>> REPLACE\n", '{"tool_calls": ', "submit", "bash", '{"command": "ls"}', "\\ud800", "NaN"),
]
