"""Task types with one answer instead of work in a sandbox: `FileRepair-v0`, `KodCode-v0`, `VulnerabilityDetection-v0`.

file_repair.py       one broken file, repaired by search/replace blocks     row, adapter, environment
kodcode.py           one function to write or to debug                      row, adapter, environment
humaneval_pack.py    another dataset family of such functions               adapter
vulnerability.py     whether code can be attacked: a binary answer          row, adapter, environment
answer.py            `AnswerEnv`, which they share
one_file.py          the examples and environments whose answer is one file that tests grade
python_tests.py      how a dataset's module of Python tests is run
"""

from __future__ import annotations

__all__: list[str] = []
