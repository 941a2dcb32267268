"""Tasks in Harbor's format: a folder with an instruction, a Dockerfile, tests and a solution.

`tasks` reads the folders, `dockerfile` and `image` make layers of `environment/Dockerfile` without Docker, `state`
grades the final state of a sandbox, and `env` is the environment.
"""

from __future__ import annotations
