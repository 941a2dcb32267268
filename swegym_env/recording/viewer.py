"""Recorded episodes as one HTML page that needs no server and no network.

The content of episodes never becomes markup: it is embedded as JSON without any `<`, and the page's script inserts it
as text. In addition, the page's content security policy allows only that script, and no loading of anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from swegym_env.recording.record import Record, RecordedTurn
from swegym_env.repo.patches import count_changed_lines

__all__ = ["render_page"]

_PAGE = Path(__file__).parent / "page"
_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def render_page(records: Iterable[Record], *, title: str = "Episodes") -> str:
    """The page as text. The content of episodes is escaped to ASCII, which also covers lone surrogates.

    Args:
        records: in the order of the list on the page.
        title: of the page.
    """
    data = json.dumps({"title": title, "episodes": [_episode(record) for record in records]}, ensure_ascii=True)
    for character, escape in _ESCAPED.items():
        data = data.replace(character, escape)
    script = (_PAGE / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = (_PAGE / "page.html").read_text(encoding="utf-8")
    parts = {"@SCRIPT_HASH@": digest, "@STYLE@": (_PAGE / "page.css").read_text(encoding="utf-8"), "@SCRIPT@": script}
    for mark, part in parts.items():
        page = page.replace(mark, part)
    return page.replace("@DATA@", data)  # last: marks within the data are not replaced


def _episode(record: Record) -> dict[str, Any]:
    task = record.meta.get("task") or {}
    ending = record.ending
    judge = _known(ending, "judge", _is_object) or {}
    return {
        "instance": record.instance_id,
        "place": record.place.name if record.place else record.instance_id,
        "recordedAt": record.meta.get("recorded_at") or "",
        "repo": task.get("repo") or "",
        "prompt": record.prompt,
        "systemPrompt": record.system_prompt,
        "endReason": _known(ending, "end_reason", _is_text) or "abandoned",
        "valid": ending.get("valid", True),
        "finished": record.finished,
        "resolved": ending.get("resolved"),
        "failureReason": _known(ending, "failure_reason", _is_text) or "",
        "failToPass": _known(ending, "fail_to_pass", _is_count),
        "passToPass": _known(ending, "pass_to_pass", _is_count),
        "failedTests": _known(ending, "failed_tests", _is_list),
        "judge": _known(judge, "scores", lambda scores: _is_list(scores) and all(map(_is_number, scores))),
        "failToPassNames": task.get("fail_to_pass") or [],
        "passToPassNames": task.get("pass_to_pass") or [],
        "goldPatch": task.get("patch") or "",
        "environment": record.meta.get("environment"),
        "seed": record.meta.get("seed"),
        "format": ((record.meta.get("environment") or {}).get("arguments") or {}).get("action_format") or "",
        "notes": record.meta.get("notes") or {},
        "turns": list(_turns(record.turns)),
    }


def _known(info: Mapping[str, Any], name: str, is_known: Callable[[Any], bool]) -> Any:
    """`info[name]` if it has the type that this package writes, else None: other environments may use the name too."""
    found = info.get(name)
    return found if is_known(found) else None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, (int, float))


def _is_count(value: Any) -> bool:
    """Whether a value is a pair: how many tests passed, and how many there are."""
    return _is_list(value) and len(value) == 2


def _turns(turns: Iterable[RecordedTurn]) -> Iterable[dict[str, Any]]:
    before = ""
    for turn in turns:
        yield {
            "action": turn.action,
            "observation": turn.observation,
            "reward": turn.reward if math.isfinite(turn.reward) else None,
            "parts": _known(
                turn.info, "reward", lambda parts: _is_object(parts) and all(map(_is_number, parts.values()))
            ),
            "exitCode": turn.info.get("exit_code"),
            "error": turn.info.get("action_error"),
            "tests": _known(
                turn.info, "tests", lambda tests: _is_object(tests) and all(map(_is_count, tests.values()))
            ),
            "seconds": round(turn.seconds, 4),
            "patch": _change(before, turn.patch),
            "stat": list(count_changed_lines(turn.patch)) if turn.patch != before else None,
        }
        before = turn.patch


def _change(before: str, after: str) -> list[Any] | None:
    """The change from `before` to `after`: what is kept at head and tail, and the text between; None if there is none.

    What is kept is counted in UTF-16 code units, as the page's script counts characters.

    A diff grows a little with each turn; whole diffs would make the page grow with the square of the turns.
    """
    if before == after:
        return None
    shorter = min(len(before), len(after))
    head = next((n for n in range(shorter) if before[n] != after[n]), shorter)
    rest = shorter - head
    tail = next((n for n in range(rest) if before[-1 - n] != after[-1 - n]), rest)
    kept = (before[:head], before[len(before) - tail :])
    return [*(len(text.encode("utf-16-le", "surrogatepass")) // 2 for text in kept), after[head : len(after) - tail]]
