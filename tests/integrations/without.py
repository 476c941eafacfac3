"""Modules of integrations as they are where a library is not installed."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest


def module_without(name: str, *missing: str) -> ModuleType:
    """A fresh copy of laplacian_metric.integrations.<name>, made while these modules cannot be imported."""
    spec = importlib.util.find_spec(f"laplacian_metric.integrations.{name}")
    copied = importlib.util.spec_from_file_location(f"copy_of_{name}", spec.origin)
    module = importlib.util.module_from_spec(copied)
    with pytest.MonkeyPatch.context() as patch:
        for one in missing:
            patch.setitem(sys.modules, one, None)
        patch.setitem(sys.modules, copied.name, module)  # data classes look their module up
        copied.loader.exec_module(module)
    return module
