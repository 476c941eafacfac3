"""The page of a report in a browser: it fits the window, labels stay text, and nothing leaves the page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from laplacian_metric.report.run_report import run_report
from tests.browser import chromium
from tests.report.reading import HOSTILE
from tests.report.runs import evaluated


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium without a window, on a page whose labels and names all try to break out."""
    run = evaluated(80)
    hostile = replace(
        run,
        title=HOSTILE,
        class_names=[f"{HOSTILE} {k}" for k in range(3)],
        queries=replace(run.queries, names=[f"{row}{HOSTILE.replace('/', '')}" for row in range(80)]),
        ood={HOSTILE: run.ood["digits"]},
        scores={},
    )
    page = tmp_path_factory.mktemp("page") / "report.html"
    page.write_text(run_report(hostile, resamples=10).html(), encoding="utf-8")
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        started.get_log("performance")
        started.get(page.as_uri())
        yield started


def test_nothing_is_asked_for_or_run(driver: Any) -> None:
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    urls = [
        one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"
    ]
    assert [url for url in urls if not url.startswith(("data:", "chrome:"))] == [driver.current_url]
    assert driver.get_log("browser") == []
    assert (
        driver.execute_script("return document.querySelectorAll('script, [onerror], img[src=x]').length") == 0
    )
    assert HOSTILE in driver.title
    assert HOSTILE in driver.find_element("css selector", ".card .name").text
    broken = "return [...document.images].filter(image => !image.naturalWidth).length"
    assert driver.execute_script(broken) == 0


@pytest.mark.parametrize("width", [360, 1100])
def test_nothing_is_wider_than_the_window(driver: Any, width: int) -> None:
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
