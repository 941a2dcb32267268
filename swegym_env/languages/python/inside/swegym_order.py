"""A pytest plugin: puts the modules, and the tests in each module, in the order of `SWEGYM_ORDER`."""

import pytest
from sitecustomize import reordered


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    modules = {}
    for item in items:
        modules.setdefault(item.nodeid.split("::")[0], []).append(item)
    items[:] = [
        item
        for module in reordered(list(modules), str)
        for item in reordered(modules[module], lambda item: item.nodeid)
    ]
