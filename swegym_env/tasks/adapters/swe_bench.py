"""SWE-bench (full, Lite, Verified, Multilingual), and this package's own tasks, which add columns to the same schema.

`FAIL_TO_PASS` and `PASS_TO_PASS` may be lists or JSON texts. The 2026 release has `image`, `eval_script`, `log_parser`
and `eval_type`; rows of earlier releases depend on the table of set-up commands and on the names of official images.
Multimodal rows (`image_assets`) are JavaScript repositories: they load, and run in their image.
"""

from __future__ import annotations

import re

from swegym_env.tasks.adapters import Adapter
from swegym_env.tasks.rows import CheckedRow
from swegym_env.tasks.task import Task

__all__ = ["ADAPTER", "COLUMNS", "adapt", "as_docker", "instance_id_of", "repository_task"]

COLUMNS = frozenset({"instance_id", "repo", "base_commit", "patch", "problem_statement", "FAIL_TO_PASS"})

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}|[0-9a-f]{40}~1|[0-9a-f]{8}")
_INSTANCE_ID = re.compile(r"[^\s/\x00-\x1f\x7f]+")
_REPO = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")
_TEST_TIMEOUT_S = 1800.0  # as in the harness
_PLACE = re.compile(r"(/[\w.+-]+)+")
_EVAL_TYPES = ("pass_and_fail", "fail_only")
_IMAGE_COLUMNS = ("image", "docker_image", "image_name")
# The repositories of the splits `dev` and `test`: the harness publishes an image for each of their instances.
_PUBLISHED = frozenset(
    {
        "astropy/astropy", "django/django", "marshmallow-code/marshmallow", "matplotlib/matplotlib", "mwaskom/seaborn",
        "pallets/flask", "psf/requests", "pvlib/pvlib-python", "pydata/xarray", "pydicom/pydicom", "pylint-dev/astroid",
        "pylint-dev/pylint", "pytest-dev/pytest", "pyvista/pyvista", "scikit-learn/scikit-learn", "sphinx-doc/sphinx",
        "sqlfluff/sqlfluff", "sympy/sympy",
    }
)  # fmt: skip


def adapt(row: CheckedRow) -> Task:
    """The task of a row.

    If `image` is the name of a Docker image, as in the 2026 release, it becomes `official_image`, and the task runs on
    the host's system unless the user asks otherwise; "host", `docker://…`, `.sif`, `.def` and absolute paths are used
    unchanged.
    """
    image, official_image = _images(row)
    return repository_task(row, image=image, official_image=official_image)


def repository_task(row: CheckedRow, **values: object) -> Task:
    """The task of a row in the SWE-bench schema; `values` are the fields in which a dataset family differs."""
    instance_id = instance_id_of(row)
    files = row.files("files")
    place = Task.image_repository
    if row.text("image_repository"):
        place = row.matching("image_repository", _PLACE, "an absolute path")
    eval_type = row.text("eval_type") or "pass_and_fail"
    if eval_type not in _EVAL_TYPES:
        raise row.error("eval_type", " or ".join(map(repr, _EVAL_TYPES)))
    base_commit = row.text("base_commit")
    if base_commit or not files:
        base_commit = row.matching("base_commit", _COMMIT, "40 hex digits")
    fields: dict[str, object] = {
        "instance_id": instance_id,
        "repo": row.matching("repo", _REPO, "'owner/name'"),
        "base_commit": base_commit,
        "problem_statement": row.text("problem_statement", "the issue's text", required=True),
        "patch": row.text("patch", "the gold patch as a git diff", required=True),
        "test_patch": row.text("test_patch", "a git diff"),
        "fail_to_pass": row.texts("FAIL_TO_PASS", required=True),
        "pass_to_pass": row.texts("PASS_TO_PASS"),
        "eval_type": eval_type,
        "setup": row.texts("setup", what="commands"),
        "files": files,
        "image_repository": place,
        "test_timeout_s": row.seconds("test_timeout_s", Task.test_timeout_s if files else _TEST_TIMEOUT_S),
    }
    texts = (
        "version", "environment_setup_commit", "hints_text", "created_at", "eval_script", "test_command", "log_parser",
        "repository", "python", "base_patch",
    )  # fmt: skip
    fields |= {name: row.text(name) for name in texts}
    return Task(**(fields | values))  # type: ignore[arg-type]


def instance_id_of(row: CheckedRow) -> str:
    """The required `instance_id` of a row, which is also the name of a file."""
    return row.matching("instance_id", _INSTANCE_ID, "a name without blanks or slashes")


def as_docker(name: str) -> str:
    """The name of a Docker image as a URL; empty for none."""
    return name if not name or "://" in name else f"docker://{name}"


def _images(row: CheckedRow) -> tuple[str, str]:
    """The image to run in, and the official Docker image that the row names or that is published for it."""
    named = row.text(row.first(*_IMAGE_COLUMNS), "the name of an image").strip()
    official = row.text("official_image", "the name of an image").strip()
    if not named:
        return "host", as_docker(official or _published_image(row))
    if named == "host":
        return "host", as_docker(official)
    if named.startswith(("/", "~", "./", "../")) or named.endswith((".sif", ".def")) or "://" in named:
        return named, as_docker(official)
    return "host", as_docker(official or named)


def _published_image(row: CheckedRow) -> str:
    """The name of the published image of a row from before the column `image`."""
    if str(row.values.get("repo")) not in _PUBLISHED:
        return ""
    return f"swebench/sweb.eval.x86_64.{row.text('instance_id').lower().replace('__', '_1776_')}:latest"


ADAPTER = Adapter(COLUMNS, adapt)
