"""pytest as wheels and as source files, from what is installed here: sandboxes with pytest need no network."""

from __future__ import annotations

import importlib.util
import zipfile
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

NEEDED = ("pytest", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup", "tomli", "typing_extensions")


def write_wheels(directory: Path) -> Path:
    """Write them into `directory` and return it; those that are not installed are needed by no Python here."""
    directory.mkdir(exist_ok=True)
    for name in NEEDED:
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        wheel = directory / f"{found.metadata['Name'].replace('-', '_')}-{found.version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for file in found.files or ():
                if ".." not in file.parts and not file.name.endswith((".pyc", ".so")):
                    archive.write(found.locate_file(file), str(file))
    directory.chmod(0o755)
    return directory


_SOURCES = {
    "_pytest": "**/*.py",
    "pytest": "*.py",
    "pluggy": "*.py",
    "iniconfig": "*.py",
    "packaging": "**/*.py",
    "pygments": "*.py",
    "pygments.formatters": "*.py",
    "pygments.lexers": "[_dp]*.py",
    "pygments.styles": "[_d]*.py",
    "pygments.filters": "*.py",
    "exceptiongroup": "*.py",
    "tomli": "*.py",
    "py": "py.py",
}


def pytest_files(place: str) -> dict[str, str]:
    """Path → text of the pytest that runs this, in the directory `place`: for images without pytest."""
    found: dict[str, str] = {}
    for package, pattern in _SOURCES.items():
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            continue  # two of them serve old Pythons only
        root = Path(spec.origin).parent
        for path in root.glob(pattern):
            folder = "" if path.stem == package else f"{package.replace('.', '/')}/"
            name = f"{place}/{folder}{path.relative_to(root)}"
            found[name] = path.read_text(encoding="utf-8")
    number = version("pluggy")  # pluggy reads it from its own metadata
    found[f"{place}/pluggy-{number}.dist-info/METADATA"] = f"Name: pluggy\nVersion: {number}\n"
    return found
