"""How projects of C and C++ are set up: with the machine's compiler, by commands of the task or of this table.

The table has the repositories of SWE-bench Multilingual. Their commands build the same as the scripts of the rows, so
grading builds only what a patch changes. Test programs are built only in grading: if a patch cannot be built, no test
program of the base commit may exist, because it would pass instead. Programs that test scripts start (`redis-server`,
`jq`, `micropython`) may exist, because the hidden tests fail on those of the base commit.
"""

from __future__ import annotations

from collections.abc import Mapping

from swegym_env.languages.machine import MachineRecipe
from swegym_env.tasks.task import Task

__all__ = ["RECIPES", "find_recipe"]

_COMPILER = {"cc": "gcc", "make": "make"}
_CMAKE = {"c++": "g++", "make": "make", "cmake": "cmake"}
_AUTOTOOLS = {
    "autoconf": "autoconf",
    "autoreconf": "autoconf",
    "automake": "automake",
    "aclocal": "automake",
    "libtoolize": "libtool",
    "m4": "m4",
    "bison": "bison",
    "flex": "flex",
}
_REDIS = MachineRecipe(
    "a C compiler and Tcl",
    {**_COMPILER, "tclsh": "tcl"},
    packages=("libc6-dev",),
    commands=("make -j$(nproc)",),
)

RECIPES: Mapping[str, MachineRecipe] = {
    "fmtlib/fmt": MachineRecipe(
        "a C++ compiler and CMake",
        _CMAKE,
        commands=(
            "mkdir -p build && cmake -B build -S . && cmake --build build --parallel $(nproc) --target test-main",
        ),
    ),
    "jqlang/jq": MachineRecipe(
        "a C compiler, Autotools, Bison and Flex",
        _COMPILER,
        packages=("libc6-dev",),
        unpacked=_AUTOTOOLS,
        submodules=("modules/oniguruma",),
        commands=(
            "autoreconf -fi && ./configure --with-oniguruma=builtin --disable-valgrind",
            "touch src/parser.y src/lexer.l && make -j$(nproc)",
            "make -j$(nproc) check TESTS=",
        ),
    ),
    "micropython/micropython": MachineRecipe(
        "a C compiler and Python 3",
        {**_COMPILER, "python3": "python3", "pkg-config": "pkg-config"},
        packages=("libc6-dev", "libffi-dev"),
        submodules=("lib/berkeley-db-1.xx", "lib/mbedtls", "lib/micropython-lib"),
        commands=("make -j$(nproc) -C mpy-cross && make -j$(nproc) -C ports/unix VARIANT=standard",),
    ),
    "nlohmann/json": MachineRecipe(
        "a C++ compiler and CMake",
        _CMAKE,
        commands=(
            "mkdir -p build && cmake -B build -S . && cmake --build build --parallel $(nproc) --target test_main",
        ),
    ),
    "redis/redis": _REDIS,
    "valkey-io/valkey": _REDIS,
}
"""Repository → recipe."""


def find_recipe(task: Task) -> MachineRecipe | None:
    """The task's own `setup` commands, else the table's entry; for a shipped task, only the toolchain."""
    if task.setup or task.files:
        return MachineRecipe("a C compiler", _COMPILER, packages=("libc6-dev",), commands=task.setup)
    return RECIPES.get(task.repo)
