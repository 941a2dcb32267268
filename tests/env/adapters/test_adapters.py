"""The adapters whose peers need other versions of packages than ours, each tested in an environment of its peer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import ROOT

SCRIPT = ROOT / "scripts/test_adapter.sh"
INSTALLED = Path(sys.prefix) / "adapters"
ADAPTERS = [  # with the Python that the peer needs; Harbor's may be another one than ours
    "games",
    "openenv",
    *(["inspect", "nemo_gym", "tinker", "verifiers"] if sys.version_info >= (3, 11) else []),
    *(["harbor"] if sys.version_info >= (3, 12) or (INSTALLED / "harbor/.made").exists() else []),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_peer_works_with_our_adapter(adapter: str) -> None:
    if not (INSTALLED / adapter / ".made").exists():
        pytest.skip(f"the peer is not installed. Try: scripts/test_adapter.sh {adapter} --make")
    ran = subprocess.run([SCRIPT, adapter], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
