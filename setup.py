"""What pyproject.toml cannot say: the agent tool bundles of the folder `tools/` ship as `swegym_env/shipped_tools`."""

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

packages = find_packages(include=["swegym_env*", "swe_trainers*"])
folders = {}
if Path("tools").is_dir():
    packages.append("swegym_env.shipped_tools")
    folders["swegym_env.shipped_tools"] = "tools"


class BuildOfSourcesAlone(build_py):
    """Without what an earlier build left in `build/`: a wheel would have modules that are no longer in the sources."""

    def run(self) -> None:
        if not self.editable_mode:
            for package in ("swegym_env", "swe_trainers"):
                shutil.rmtree(Path(self.build_lib, package), ignore_errors=True)
        super().run()


# The programs, and the module by which verifiers finds our environment.
setup(
    packages=packages,
    package_dir=folders,
    py_modules=["swegym_commands", "swegym_verifiers"],
    cmdclass={"build_py": BuildOfSourcesAlone},
)
