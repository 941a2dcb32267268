"""How projects of JavaScript and TypeScript are set up: Node.js, and packages from the npm registry.

The table has the repositories of SWE-bench Multilingual, with the versions of Node.js with which its lists were made.
The rows have the commands of their tests. Install scripts of packages are run only if they are needed, because they
download browsers and binaries from other sites.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from swegym_env.errors import LayerError
from swegym_env.languages import Installation, Recipe, Toolchain
from swegym_env.languages.debian import SYSTEM_PATH, missing_programs
from swegym_env.languages.javascript.node import NODE, VERSIONS, node_layer, why_no_node
from swegym_env.languages.machine import MachineRecipe
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task

__all__ = ["RECIPES", "NodeRecipe", "find_recipe"]


@dataclass(frozen=True)
class NodeRecipe:
    """How one repository is installed.

    Attributes:
        node: major version of Node.js.
        commands: bash commands in `/testbed` that install it.
        managers: package managers besides npm, "pnpm@9.15.9".
        programs: programs of the machine that the tests call → the Debian package of each.
        env: variables of the commands and of every sandbox of the task.
    """

    node: str
    commands: tuple[str, ...]
    managers: tuple[str, ...] = ()
    programs: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    def toolchain(self) -> Toolchain:
        """See `Recipe.toolchain`; nothing is fetched."""
        name = f"Node.js {VERSIONS[self.node][0]} from the npm registry"
        if self.programs:
            name += f" and {', '.join(sorted(self.programs))}"
        if missing := missing_programs(self.programs):
            wanted = " ".join(sorted(missing.values()))
            return Toolchain(name, f"this machine lacks {wanted} below /usr. Try: apt-get install {wanted}")
        return Toolchain(name, why_no_node())

    def tests_of(self, task: Task) -> str:
        """The rows have the commands of their tests."""
        return ""

    def installation(self, task: Task, store: LayerStore) -> Installation:
        """Plan the installation. Raises LayerError: Node.js cannot be had, or the machine lacks a program."""
        if task.image != "host":
            return Installation((), dict(self.env), (), self.commands, (repr(self.commands),))
        if problem := self.toolchain().problem:
            raise LayerError(f"{task.instance_id}: {problem}")
        layer = node_layer(self.node, self.managers, store)
        env = {"PATH": f"{NODE}/bin:{SYSTEM_PATH}", **self.env}
        return Installation((layer,), env, (), self.commands, (layer.name, repr(self.commands)))


_NPM_CI = "npm ci --ignore-scripts"
# The program that /usr/bin/chromium starts; it reads files of /etc.
_KARMA = {"CHROME_BIN": "/usr/lib/chromium/chromium"}
# Some lock files lack packages, which `npm ci` refuses; `wd` and old versions of esbuild are completed by their
# scripts.
_PREACT = (
    "npm install --ignore-scripts",
    "for each in wd esbuild; do if [ -d node_modules/$each ]; then npm rebuild $each || exit 1; fi; done",
)
_PREACT_NODE = {
    **dict.fromkeys(("2757", "2896", "2927", "3010", "3062"), "16"),
    **dict.fromkeys(("3345", "3454", "3562", "3567", "3689"), "18"),
    "": "20",
}
# Their lock files name versions that are no longer in the registry, for tests of decorators that no row lists.
_BABEL = (
    "sed -i '/\"babel-plugin-polyfill-es-shims\":/d' packages/babel-plugin-proposal-decorators/package.json",
    "make bootstrap",
)
# Scripts of `sharp` and Playwright download binaries. The tests of the rows import the built dependencies of the core,
# and no other builds. Yarn's limit of 30 seconds for each package is too short on a busy machine.
_DOCUSAURUS = (
    "yarn install --frozen-lockfile --ignore-scripts --network-timeout 600000",
    "NX_DAEMON=false yarn lerna run build --scope @docusaurus/core --include-dependencies",
)

RECIPES: Mapping[str, Mapping[str, NodeRecipe]] = {
    "axios/axios": {
        "": NodeRecipe("20", (_NPM_CI,)),
        # The gold patch adds a package that its tests import.
        "5316": NodeRecipe("20", (_NPM_CI, "npm install --ignore-scripts --no-save formdata-node@5.0.0")),
    },
    "babel/babel": {
        "": NodeRecipe("20", ("make bootstrap",), managers=("@yarnpkg/cli-dist@3.8.7",)),
        **dict.fromkeys(("13928", "15649", "16130"), NodeRecipe("20", _BABEL, managers=("@yarnpkg/cli-dist@3.8.7",))),
    },
    "facebook/docusaurus": {"": NodeRecipe("20", _DOCUSAURUS, managers=("yarn@1.22.22",))},
    "immutable-js/immutable-js": {"": NodeRecipe("20", (_NPM_CI,), programs={"jq": "jq"})},
    "mrdoob/three.js": {"": NodeRecipe("20", (_NPM_CI,))},
    "preactjs/preact": {
        version: NodeRecipe(node, _PREACT, programs={"chromium": "chromium"}, env=_KARMA)
        for version, node in _PREACT_NODE.items()
    },
    "vuejs/core": {
        "": NodeRecipe("20", ("pnpm install --frozen-lockfile --ignore-scripts",), managers=("pnpm@9.15.9",))
    },
}
"""Repository → version ("": any other) → recipe."""


def find_recipe(task: Task) -> Recipe | None:
    """The task's own `setup` commands, for the machine's Node.js; else the table's entry; None if there is neither."""
    if task.setup or task.files:
        return MachineRecipe("Node.js", {"node": "nodejs"}, commands=task.setup)
    versions = RECIPES.get(task.repo, {})
    return versions.get(task.version) or versions.get("")
