"""An error names a setting once, whichever section raised it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swe_trainers.errors import ConfigurationError
from swe_trainers.run_config import run_config
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
