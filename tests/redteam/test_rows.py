"""Attacks on rows of SWE-bench Verified, each with an honest twin, as patches in `rows/`.

They need the rows, clones and minutes each, so they are graded by hand: see docs/verdict_rules.md, "To add an attack".
"""

from __future__ import annotations

from pathlib import Path

import pytest

from swegym_env.repo.patches import parse_patch, refusal, touched_paths

_PATCHES = sorted(Path(__file__).with_name("rows").glob("*.diff"))


@pytest.mark.parametrize("path", _PATCHES, ids=lambda path: path.stem)
def test_an_attack_on_a_row_changes_the_product_and_has_a_twin(path: Path) -> None:
    instance, _, kind = path.stem.partition(".")
    twin = path.with_name(f"{instance}.twin.diff")
    assert kind.startswith(("attack", "twin"))
    text = path.read_text(encoding="utf-8")
    assert parse_patch(text) and not refusal(text)
    assert not any("test" in name for name in touched_paths(text) - {"src/_pytest/logging.py"})
    assert kind == "twin" or twin.read_text(encoding="utf-8") != text
