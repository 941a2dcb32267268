"""HTML pages from Jinja2 templates: one file each, complete without a server or a network."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from typing import Any

__all__ = ["render_html"]


def render_html(package: str, template: str, script: str, **values: Any) -> str:
    """Render a template of a package.

    The template escapes every value. In addition it gets `script`, the text of the page's only script, and
    `script_hash` for its content security policy, which allows no other script and no request. `{% include %}` and
    `{% import %}` find the other templates of the package and of `swe_trainers.report`.

    Args:
        package: that holds the template and the script.
        template: its file name.
        script: the script's file name.
        values: the template's variables.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    # Lone surrogates, which JSON can carry, are not valid in a file of UTF-8.
    code = (resources.files(package) / script).read_text(encoding="utf-8").strip()
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name, "") for name in (package, "swe_trainers.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    page = environment.get_template(template).render(**values, script=code, script_hash=digest)
    return page.encode("utf-8", "replace").decode()
