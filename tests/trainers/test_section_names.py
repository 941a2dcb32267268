"""An error names a setting once, whichever section raised it, and a misspelled one suggests the right one."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import ConfigurationError
from swe_trainers.evaluation.usage import Prices
from swe_trainers.rollout.settings import Branching, EpisodeSettings, Limits
from swe_trainers.run_config import EvaluationConfig, RunConfig, run_config
from tests.trainers.tiny import lake_run


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"engine": {"kind": "vllm"}}, "engine.url: kind vllm needs"),
        ({"engine": {"url": "http://x:1"}}, "engine: its other settings have no effect"),
        ({"scale": {"fsdp": True, "sequence_parallel": 0}}, "scale.sequence_parallel: got 0"),
        ({"scale": {"fsdp": True, "accelerate": "ddp"}}, "scale.accelerate: cannot be combined with fsdp"),
        ({"environment": {"parallel": 0}}, "environment.parallel: got 0"),
        ({"engine": {"kind": "vllm", "url": "http://localhost:80000"}}, "engine.url: got 'http://localhost:80000'"),
        ({"reward": {}}, "reward.model: exactly one of model and judge"),
    ],
)
def test_setting_is_named_once(tmp_path: Path, sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        run_config(lake_run(tmp_path, **sections))
    assert str(raised.value).startswith(message)


def _sections(hint: Any) -> Iterator[type[Any]]:
    """All dataclasses of a configuration that has this type."""
    if dataclasses.is_dataclass(hint):
        yield typing.cast(type[Any], hint)
        for each in typing.get_type_hints(hint).values():
            yield from _sections(each)
    for each in typing.get_args(hint):
        yield from _sections(each)


SECTIONS = sorted({*_sections(RunConfig)}, key=lambda each: each.__name__)


@pytest.mark.parametrize("section", [*SECTIONS, Branching, EpisodeSettings, Limits, Prices, Sampling])
def test_a_misspelled_setting_in_python_is_answered_with_the_right_one(section: type[Any]) -> None:
    name = max((field.name for field in dataclasses.fields(section)), key=len)
    with pytest.raises(ConfigurationError) as raised:
        section(**{f"{name}x": 1})
    assert str(raised.value) == f"{name}x: {section.__name__} has no such setting. Did you mean {name!r}?"


def test_all_sections_are_checked_and_a_name_without_a_similar_one_lists_what_there_is() -> None:
    assert {EvaluationConfig, RunConfig} < {*SECTIONS} and len(SECTIONS) >= 16
    with pytest.raises(
        ConfigurationError, match=r"zzz: EvaluationConfig has no such setting\. There are: episodes, every"
    ):
        EvaluationConfig(zzz=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="episode: EvaluationConfig has no such setting"):
        dataclasses.replace(EvaluationConfig(), episode=3)  # type: ignore[call-arg]
