"""A sandbox back end: namespaces, and a line in a journal for every sandbox that is opened.

A back end of a cloud or of another virtual machine implements `swegym_env.sandbox.backends.Backend` and
`swegym_env.sandbox.Sandbox` itself, instead of deriving from one of this machine.
"""

import json
import os
from pathlib import Path

from swegym_env.sandbox import SandboxSpec
from swegym_env.sandbox.local import LocalSandbox
from swegym_env.sandbox.namespace import NamespaceBackend


class JournalBackend(NamespaceBackend):
    """Opens sandboxes of namespaces, and writes down what they are made of, to the file $ACME_JOURNAL."""

    def open(self, spec: SandboxSpec) -> LocalSandbox:
        """A sandbox that is not started yet."""
        if journal := os.environ.get("ACME_JOURNAL"):
            with Path(journal).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"image": spec.image, "layers": len(spec.layers)}) + "\n")
        return super().open(spec)
