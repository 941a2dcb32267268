"""What both packages write, each by its own code because neither imports the other, is one form."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from swe_trainers.evaluation import records
from swegym_env.recording import record


@dataclasses.dataclass(frozen=True)
class Told:
    """What an environment may tell in its `info`."""

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
        st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(KEYS, inner), st.builds(Told, inner)
    ),
)


@given(VALUES)
def test_an_evaluations_record_says_a_value_as_a_recorders_does(value: Any) -> None:
    said = json.dumps(records._plain(value), allow_nan=False)
    assert json.loads(said) == json.loads(record._json(value))
