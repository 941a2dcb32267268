"""The log parsers and the grading of the optional package `swebench`, without the rest of it.

`import swebench` loads clients of Docker, Modal and GitHub, which the parsers and the grading do not need. They are
loaded here without the `__init__` of their packages, under the names by which they import each other. Afterwards these
names are removed from `sys.modules`, so an ordinary `import swebench` still loads all of it.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

__all__ = ["official_module", "official_parser", "official_parsers"]

_PACKAGES = ("swebench", "swebench.harness", "swebench.harness.test_spec")
_lock = threading.Lock()


@cache
def official_module(name: str) -> ModuleType | None:
    """A module of `swebench.harness` ("grading", "constants", "log_parsers"); None if swebench is not installed."""
    with _lock:
        spec = importlib.util.find_spec("swebench")
        if spec is None or spec.origin is None:
            return None
        before = {key: sys.modules.pop(key) for key in list(sys.modules) if _is_swebench(key)}
        try:
            sys.modules.update(_shells(Path(spec.origin).parent))
            return importlib.import_module(f"swebench.harness.{name}")
        finally:
            for key in [key for key in sys.modules if _is_swebench(key)]:
                del sys.modules[key]
            sys.modules.update(before)


def official_parsers() -> Mapping[str, str]:
    """Repository → name of the parser that the harness reads its logs with; empty if swebench is not installed."""
    module = official_module("log_parsers")
    return {repo: parser.__name__ for repo, parser in module.MAP_REPO_TO_PARSER.items()} if module else {}


def official_parser(name: str, *, repo: str = "", instance_id: str = "") -> Callable[[str], dict[str, str]] | None:
    """The harness's parser of that name; None if it has none, or is not installed.

    Args:
        repo: of the task.
        instance_id: of the task; one of the parsers depends on the number in it.
    """
    for language in ("python", "javascript", "java", "go", "rust", "c", "php", "ruby"):
        parser = getattr(official_module(f"log_parsers.{language}"), name, None)
        if callable(parser):
            return partial(_parse, parser, SimpleNamespace(repo=repo, instance_id=instance_id))
    return None


def _parse(parser: Callable[[str, object], dict[str, str]], spec: object, log: str) -> dict[str, str]:
    try:
        return dict(parser(log, spec))
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}  # some parsers fail on a log without any line for them; the harness then has no verdict


def _is_swebench(name: str) -> bool:
    return name == "swebench" or name.startswith("swebench.")


def _shells(root: Path) -> dict[str, ModuleType]:
    """Stand-ins for what those modules import besides each other: empty packages, and two names of other modules."""
    shells = {name: ModuleType(name) for name in (*_PACKAGES, "swebench.harness.test_spec.test_spec")}
    for name in _PACKAGES:
        shells[name].__path__ = [str(root.joinpath(*name.split(".")[1:]))]
    shells["swebench.harness.test_spec.test_spec"].__dict__["TestSpec"] = object  # an annotation only
    utils = ModuleType("swebench.harness.utils")
    utils.__dict__["ansi_escape"] = lambda text: re.sub(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])", "", text)
    return {**shells, "swebench.harness.utils": utils}
