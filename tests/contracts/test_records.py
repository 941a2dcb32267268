"""Both packages write records in the same format, each with its own code because neither imports the other."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swe_trainers.evaluation import records
from swegym_env.recording import record


@dataclasses.dataclass(frozen=True)
class InfoValue:
    """A value of a class of its own, which an environment may put into `info`."""

    value: Any


KEYS = st.one_of(st.text(), st.integers(), st.none(), st.tuples(st.integers(), st.text()))
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.just(Path("place")),
    st.frozensets(st.integers()),
    st.floats(width=32).map(np.float32),
    st.lists(st.integers(0, 9)).map(np.array),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(KEYS, inner), st.builds(InfoValue, inner)
    ),
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(VALUES)
def test_evaluation_and_recorder_serialise_values_equally(value: Any) -> None:
    encoded = json.dumps(records._plain(value), allow_nan=False)
    assert json.loads(encoded) == json.loads(record._json(value))
