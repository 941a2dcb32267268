"""An action format: the agent writes a shell session, and the first line after a prompt is its command."""

import re

from swegym_env.agent.actions import Action, ActionFormat, Command, Malformed, Submit


def parse(text: str) -> Action:
    """The action in an answer."""
    found = re.search(r"^\$ (.+)$", text, re.MULTILINE)
    if not found:
        return Malformed("No action found. Write one command after a prompt, as in: $ ls")
    return Submit() if found[1] == "submit" else Command(found[1])


PROMPT = ActionFormat("prompt", parse, "$ {}".format, "Write one command after a prompt, as in: $ ls")
