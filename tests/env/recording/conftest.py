"""Records made by hand, for what a real episode would take long to show."""

import dataclasses

import pytest

from swegym_env.recording.record import Record, RecordedTurn
from swegym_env.tasks.data import mini_edit


@pytest.fixture
def made_record():
    """Makes a record of these turns; each is (action, observation, patch), or (…, reward, info)."""

    def make(turns, *, instance="made__record-1", prompt="Repair it.", ending=None, task=None):
        made = []
        for number, (action, observation, patch, *rest) in enumerate(turns):
            reward, info = (*rest, 0.0, {})[:2] if rest else (0.0, {})
            last = ending is not None and number == len(turns) - 1
            info = {"exit_code": 0, "action_error": None, **info, **(ending or {} if last else {})}
            made.append(RecordedTurn(action, observation, reward, last, False, patch, info, 0.25))
        task = dataclasses.replace(task or mini_edit.generate(0), instance_id=instance)
        meta = {
            "recorded_at": "2026-01-01T00:00:00+00:00",
            "task": dataclasses.asdict(task),
            "notes": {"model": "made"},
        }
        return Record(instance, prompt, "", [], made, meta)

    return make
