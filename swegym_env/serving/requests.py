"""The requests of the API, validated by pydantic.

The bounds here are those of the format; what a server allows is in `ceilings`. A path at which the host does something
(`AbsolutePath`) has no "..", and paths of files inside are resolved by the kernel with the sandbox's root as root.
Text may contain lone surrogates: bytes that are not UTF-8, in commands and patches, are sent as `surrogateescape`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema

__all__ = [
    "Changes",
    "Create",
    "Destroy",
    "Diff",
    "Discard",
    "Endpoint",
    "Evaluate",
    "Exec",
    "Fork",
    "Limits",
    "Pull",
    "Read",
    "Renew",
    "Restore",
    "Snapshot",
    "Write",
]

_DAY_S = 86_400.0
_MOST_BYTES = 1 << 40
_MOST_FILES = 4096


def _bytes_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("expected text")  # noqa: TRY004 - pydantic reports ValueError
    value.encode("utf-8", "surrogateescape")
    return value


def _inside(path: str) -> str:
    if ".." in path.split("/"):
        raise ValueError("expected a path without '..'")
    return path


Text = Annotated[str, PlainValidator(_bytes_text), WithJsonSchema({"type": "string"})]
Word = Annotated[str, Field(max_length=4096, pattern=r"^[^\x00]*$")]
Name = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
AbsolutePath = Annotated[str, Field(max_length=4096, pattern=r"^/[^\x00]*$"), AfterValidator(_inside)]
Seconds = Annotated[float, Field(gt=0, le=_DAY_S, allow_inf_nan=False)]
Size = Annotated[int, Field(gt=0, le=_MOST_BYTES)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class Limits(_Message):
    """See `sandbox.api.Limits`."""

    turn_timeout_s: Seconds = 60.0
    cpu_s: Seconds | None = None
    memory_bytes: Annotated[int, Field(ge=1 << 24, le=_MOST_BYTES)] = 4 << 30
    cpus: Annotated[float, Field(gt=0, le=1 << 16)] = 4.0
    processes: Annotated[int, Field(ge=16, le=1 << 20)] = 512
    descriptors: Annotated[int, Field(ge=64, le=1 << 16)] = 4096
    file_size_bytes: Size = 2 << 30
    disk_bytes: Annotated[int, Field(ge=1 << 20, le=_MOST_BYTES)] = 4 << 30
    inodes: Annotated[int, Field(ge=1024, le=1 << 30)] = 500_000
    output_bytes: Annotated[int, Field(ge=1, le=64 << 20)] = 1 << 20
    patch_files: Annotated[int, Field(ge=1, le=1 << 20)] = 200_000
    patch_bytes: Annotated[int, Field(ge=1, le=1 << 28)] = 64 << 20
    patch_depth: Annotated[int, Field(ge=1, le=4096)] = 1000
    patch_cpu_s: Annotated[float, Field(gt=0, le=60)] = 10.0


class BundleFile(_Message):
    """One file of a tool bundle: its content in base64, and whether it is executable."""

    content: str
    runs: bool = False


class PackedBundle(_Message):
    """A tool bundle, see `agent.tools`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]{0,63}$")]
    files: Annotated[dict[Word, BundleFile], Field(max_length=_MOST_FILES)]


class Create(_Message):
    """Start a container for a task, prepared by the server, or for an image alone.

    Attributes:
        task: a row of a dataset, see `tasks.rows`; it determines image, directory and path.
        bundles: tools for the agent.
        turn_timeout_s: of a command; a variable for the tools.
        deterministic: see `languages.determinism`.
        port: of the container's loopback, whose requests `/container/endpoint` answers.
    """

    task: dict[str, Any] | None = None
    bundles: Annotated[list[PackedBundle], Field(max_length=32)] = []
    turn_timeout_s: Seconds = 60.0
    deterministic: bool = False
    image: Word = "host"
    workdir: AbsolutePath = "/testbed"
    env: Annotated[Mapping[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")], Word], Field(max_length=256)] = {}
    path: Annotated[list[AbsolutePath], Field(max_length=32)] = []
    port: Annotated[int, Field(ge=1024, le=65535)] | None = None
    limits: Limits = Limits()


class _OfContainer(_Message):
    container: Name


class Exec(_OfContainer):
    """Run one command in the container's shell; `diff`: return the patch too."""

    command: Text
    timeout_s: Seconds | None = None
    output_limit_bytes: Annotated[int, Field(ge=1, le=64 << 20)] | None = None
    diff: bool = False


class Diff(_OfContainer):
    """The patch of the repository; `fresh`: read every changed file again."""

    fresh: bool = False


class EndpointAnswer(_Message):
    """The answer to a request of a program inside; `body` in base64."""

    number: Annotated[int, Field(ge=0)]
    status: Annotated[int, Field(ge=200, le=599)]
    body: str
    content_type: Annotated[str, Field(max_length=200, pattern=r"^[ -~]*$")]


class Endpoint(_OfContainer):
    """Answer a program inside, and wait for its next request, see `sandbox.api.Endpoint`; `diff`: the patch too."""

    answer: EndpointAnswer | None = None
    wait: bool = True
    timeout_s: Annotated[float, Field(ge=0, le=_DAY_S, allow_inf_nan=False)] = 0.0
    diff: bool = False


class Evaluate(_Message):
    """Grade a patch in a fresh sandbox: for a task's row, or for a container's task and (by default) its patch."""

    container: Name | None = None
    task: dict[str, Any] | None = None
    patch: Text | None = None
    policy: Literal["strict", "official"] = "strict"
    timeout_s: Seconds | None = None
    max_forgery_chance: Annotated[float, Field(gt=0, lt=1)] | None = None


class Read(_OfContainer):
    """Read a file; the content is returned in base64."""

    path: Word


class Write(_OfContainer):
    """Write a file; `content` in base64."""

    path: Word
    content: str
    mode: Annotated[int, Field(ge=0, le=0o777)] = 0o644


class Changes(_OfContainer):
    """The paths under `root` that the episode changed."""

    root: AbsolutePath


class Snapshot(_OfContainer):
    """Take a snapshot of the container."""


class Restore(_OfContainer):
    """Return to a snapshot."""

    snapshot: Name


class Fork(_OfContainer):
    """Start another container in the same state."""


class Interrupt(_OfContainer):
    """End everything that runs in the container."""


class Destroy(_OfContainer):
    """End a container."""


class Discard(_Message):
    """Free a snapshot."""

    snapshot: Name


class Renew(_Message):
    """Renew the leases of containers."""

    containers: Annotated[list[Name], Field(max_length=10_000)]


class Pull(_Message):
    """Pull an image ahead of its use."""

    image: Word
