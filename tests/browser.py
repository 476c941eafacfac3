"""Chromium for tests of pages.

It needs Chromium, its driver and selenium. Where one of them is missing these tests are skipped, unless
LAPLACIAN_METRIC_BROWSER_REQUIRED=1 asks for them; then they fail.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DRIVERS = ("chromedriver", "chromium.chromedriver")


def missing(reason: str) -> NoReturn:
    if os.environ.get("LAPLACIAN_METRIC_BROWSER_REQUIRED", "0") not in ("", "0"):
        pytest.fail(f"LAPLACIAN_METRIC_BROWSER_REQUIRED asks for a browser, but {reason}")
    pytest.skip(reason)


def installed_path(names: tuple[str, ...]) -> str | None:
    return next((path for name in names if (path := shutil.which(name))), None)


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """Start Chromium without a window; both paths are given, so that selenium looks for nothing in the network."""
    browser, program = installed_path(BROWSERS), installed_path(DRIVERS)
    if browser is None:
        missing(f"none of {', '.join(BROWSERS)} is installed")
    if program is None:
        missing(f"none of {', '.join(DRIVERS)} is installed")
    try:
        from selenium import webdriver
    except ImportError:
        missing("selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    arguments = [
        "--headless=new",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
    ]
    arguments += ["--no-first-run", f"--user-data-dir={profile}"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        arguments.append("--no-sandbox")  # Chromium refuses to run as root with it
    for argument in arguments:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    try:
        started = webdriver.Chrome(options=options, service=webdriver.ChromeService(program))
    except Exception as error:
        missing(f"the browser does not start: {str(error).splitlines()[0]}")
    try:
        yield started
    finally:
        started.quit()
