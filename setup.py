"""What pyproject.toml cannot say: the agent tool bundles of the folder `tools/` ship as `swegym_env/shipped_tools`."""

from pathlib import Path

from setuptools import find_packages, setup

packages = find_packages(include=["swegym_env*", "swe_trainers*"])
folders = {}
if Path("tools").is_dir():
    packages.append("swegym_env.shipped_tools")
    folders["swegym_env.shipped_tools"] = "tools"

# The module by which verifiers finds our environment.
setup(packages=packages, package_dir=folders, py_modules=["swegym_verifiers"])
