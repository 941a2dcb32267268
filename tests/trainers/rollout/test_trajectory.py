from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from swe_trainers.errors import ConfigurationError
from swe_trainers.rollout.trajectory import Turn, read_trajectories, write_trajectories
from tests.trainers.learning.tiny import random_trajectories


def recorded():
    """Trajectories with everything that a record can hold, in numbers that have no short decimal form."""
    first, second = random_trajectories(2)
    turn = Turn(observation='naïve\n\tquote " and \u2028, \udc80', action="a", reward=1 / 3, start=1, end=2)
    noise = np.random.default_rng(0).normal(size=len(first.token_ids)).astype(np.float32)
    info = {"resolved": True, "nested": {"list": [1, None]}, "patch": "+a byte that is not UTF-8: \udcff\n"}
    return [
        dataclasses.replace(first, rollout_logprobs=noise, turns=(turn, turn), info=info, group=3, seed=5),
        dataclasses.replace(second, valid=False, failure_reason="the disk is full"),
    ]


def test_trajectories_round_trip_exactly(tmp_path):
    trajectories = recorded()
    write_trajectories(tmp_path / "deep" / "t.jsonl", trajectories)
    again = read_trajectories(tmp_path / "deep" / "t.jsonl")
    assert len(again) == 2
    for before, after in zip(trajectories, again, strict=True):
        for field in dataclasses.fields(before):
            mine, theirs = getattr(before, field.name), getattr(after, field.name)
            if isinstance(mine, np.ndarray):
                assert mine.dtype == theirs.dtype
                np.testing.assert_array_equal(mine, theirs)
            else:
                assert mine == theirs
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["t.jsonl"]


def test_invalid_line_is_named(tmp_path):
    path = tmp_path / "t.jsonl"
    write_trajectories(path, recorded())
    whole = path.read_text()
    first = json.loads(whole.split("\n")[0])
    damaged = [first | change for change in ({"allowed_sets": ["AAAA"]}, {"token_ids": [2**70]})]
    unknown = whole.split("\n")[0].replace('"seed"', '"sed"')
    for broken in ("{", "[]", '{"token_ids": [1]}', unknown, *map(json.dumps, damaged)):
        path.write_text(whole + broken + "\n")
        with pytest.raises(ConfigurationError, match=r"t\.jsonl, line 3: no trajectory") as caught:
            read_trajectories(path)
        assert "\n" not in str(caught.value)


def test_failed_write_keeps_the_previous_file(tmp_path):
    path = tmp_path / "t.jsonl"
    write_trajectories(path, recorded()[:1])
    before = path.read_bytes()
    unwritable = dataclasses.replace(recorded()[0], info={"object": object()})
    with pytest.raises(ConfigurationError, match="trajectories not written"):
        write_trajectories(path, [unwritable])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ConfigurationError, match="no trajectories can be read"):
        read_trajectories(tmp_path / "absent.jsonl")
