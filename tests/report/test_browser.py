"""The page of a report in a browser: what the script adds, by mouse and by keyboard, and that nothing leaves the page.

Needs Chromium, its driver and selenium. Where one of them is missing these tests are skipped, unless
LAPLACIAN_METRIC_BROWSER_REQUIRED=1 asks for them; then they fail.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from laplacian_metric.report.run_report import run_report
from tests.browser import chromium
from tests.report.reading import HOSTILE
from tests.experiments.tables.runs import evaluated


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium without a window."""
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def html() -> str:
    """A page whose labels and names all try to break out."""
    run = evaluated(80)
    hostile = replace(
        run,
        title=HOSTILE,
        class_names=[f"{HOSTILE} {k}" for k in range(3)],
        file_names=[f"{row}{HOSTILE.replace('/', '')}" for row in range(80)],
        ood={HOSTILE: run.ood["digits"]},
        scores={},
    )
    return run_report(hostile, resamples=10).html()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, html: str) -> Path:
    place = tmp_path_factory.mktemp("page")
    (place / "report.html").write_text(html, encoding="utf-8")
    # What a browser without scripts shows.
    bare = re.sub("<script>.*?</script>", "", html, flags=re.DOTALL)
    (place / "bare.html").write_text(bare, encoding="utf-8")
    return place


@pytest.fixture
def page(driver: Any, folder: Path) -> Iterator[Any]:
    """The page, opened anew; at the end nothing may have been reported, asked for or run."""
    size(driver, 1100, 900)
    driver.get_log("browser")
    driver.get_log("performance")
    address = (folder / "report.html").as_uri()
    driver.get(address)
    yield driver
    assert driver.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    urls = [
        entry["params"]["request"]["url"]
        for entry in messages
        if entry["method"] == "Network.requestWillBeSent"
    ]
    assert [url for url in urls if not url.startswith("data:")] == [address]
    assert driver.execute_script("return document.querySelectorAll('[onerror], img[src=x]').length") == 0


def size(driver: Any, width: int, height: int) -> None:
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def one(driver: Any, selector: str) -> Any:
    return driver.find_element("css selector", selector)


def every(driver: Any, selector: str) -> list[Any]:
    return list(driver.find_elements("css selector", selector))


def press(driver: Any, *names: str) -> None:
    """Press keys one after the other, wherever the focus is."""
    from selenium.webdriver.common.keys import Keys

    for name in names:
        driver.switch_to.active_element.send_keys(getattr(Keys, name))


def focused(driver: Any) -> str:
    return str(driver.execute_script("return document.activeElement.textContent"))


def test_the_slider_changes_what_is_shown(page: Any) -> None:
    rows = json.loads(one(page, ".refusal script[type]").get_attribute("textContent"))["rows"]
    slider = one(page, ".control input")
    assert slider.is_displayed()
    mark = one(page, ".mark")

    def shown() -> list[str]:
        return [reading.text for reading in every(page, ".readings dd")]

    assert shown() == rows[20]["texts"]
    page.execute_script("arguments[0].focus()", slider)
    press(page, "ARROW_RIGHT")
    assert shown() == rows[21]["texts"]
    assert one(page, ".asked").text == "21 %"
    press(page, "END")
    assert shown() == rows[99]["texts"]
    assert shown() != rows[20]["texts"]
    assert float(mark.get_attribute("cx")) == rows[99]["x"]
    assert float(mark.get_attribute("cy")) == rows[99]["y"]
    assert slider.get_attribute("aria-valuetext") == f"99 %: {rows[99]['said']}"
    press(page, "HOME")
    assert shown() == rows[0]["texts"]


def test_the_slider_moves_by_mouse(page: Any) -> None:
    from selenium.webdriver import ActionChains

    slider = one(page, ".control input")
    before = one(page, ".readings dd").text
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", slider)
    ActionChains(page).move_to_element_with_offset(slider, slider.size["width"] // 3, 0).click().perform()
    assert 70 < int(slider.get_attribute("value")) < 95
    assert one(page, ".readings dd").text != before


def test_the_gallery_opens_and_closes_by_keyboard(page: Any) -> None:
    cards = every(page, ".gallery:first-of-type .card")
    button = cards[1].find_element("css selector", ".enlarge")
    assert button.accessible_name == "Larger view of " + cards[1].find_element("css selector", ".name").text
    page.execute_script("arguments[0].focus()", button)
    press(page, "ENTER")
    dialog = one(page, "dialog[open]")
    assert dialog.is_displayed()
    assert dialog.accessible_name == "Larger view: Least certain"
    assert focused(page) == "Close"
    assert one(page, "dialog[open] .place").text == "2 of 12"
    content = "dialog[open] .content"
    assert cards[1].find_element("css selector", ".body").get_attribute("textContent") == one(
        page, content
    ).get_attribute("textContent")
    assert one(page, f"{content} img").size["width"] > 2 * one(page, ".card img").size["width"]
    press(page, "ARROW_RIGHT", "ARROW_RIGHT")
    assert one(page, "dialog[open] .place").text == "4 of 12"
    press(page, "ARROW_LEFT", "ARROW_LEFT", "ARROW_LEFT", "ARROW_LEFT")
    assert one(page, "dialog[open] .place").text == "12 of 12"
    press(page, "ESCAPE")
    assert every(page, "dialog[open]") == []
    last = cards[11].find_element("css selector", ".enlarge")
    assert page.switch_to.active_element == last  # the focus is at the image that was shown last
    press(page, "SPACE", "ENTER")  # opens, and closes by the button that has the focus
    assert every(page, "dialog[open]") == []


def test_the_gallery_opens_and_closes_by_mouse(page: Any) -> None:
    picture = every(page, ".card .query img")[2]
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", picture)
    picture.click()
    assert one(page, "dialog[open] .place").text == "3 of 12"
    buttons = {button.text: button for button in every(page, "dialog[open] .bar button")}
    buttons["Next"].click()
    assert one(page, "dialog[open] .place").text == "4 of 12"
    buttons["Previous"].click()
    buttons["Close"].click()
    assert every(page, "dialog[open]") == []


def test_the_keyboard_moves_over_the_map(page: Any) -> None:
    points = json.loads(one(page, ".scatter script[type]").get_attribute("textContent"))["points"]
    svg, ring = one(page, ".plane svg"), one(page, ".ring")

    def at() -> int:
        place = [float(ring.get_attribute(name)) for name in ("cx", "cy")]
        here = [n for n, point in enumerate(points) if [point["x"], point["y"]] == place]
        lines = [line.text for line in every(page, ".shown p")]
        (number,) = [n for n in here if points[n]["lines"] == lines]
        return number

    page.execute_script("arguments[0].focus()", svg)
    assert at() == 0
    assert one(page, ".shown img").get_attribute("src") == points[0]["image"]
    press(page, "PAGE_DOWN")
    assert at() == 1
    press(page, "END")
    assert at() == len(points) - 1
    press(page, "HOME")
    for key, axis, sign in (("ARROW_RIGHT", "x", 1), ("ARROW_LEFT", "x", -1), ("ARROW_UP", "y", -1)):
        before = points[at()]
        press(page, key)
        after = points[at()]
        assert sign * (after[axis] - before[axis]) >= 0
    assert svg.get_attribute("role") == "application"


def test_the_map_shows_what_is_pointed_at(page: Any) -> None:
    from selenium.webdriver import ActionChains

    points = json.loads(one(page, ".scatter script[type]").get_attribute("textContent"))["points"]
    svg = one(page, ".plane svg")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", svg)
    box = page.execute_script(
        "const b = arguments[0].getBoundingClientRect(); return [b.width, b.height]", svg
    )
    for point in points[:: len(points) // 4]:
        across = round((point["x"] / 760 - 0.5) * box[0])
        down = round((point["y"] / 560 - 0.5) * box[1])
        ActionChains(page).move_to_element_with_offset(svg, across, down).perform()
        near = [
            other["lines"]
            for other in points
            if abs(other["x"] - point["x"]) < 4 and abs(other["y"] - point["y"]) < 4
        ]
        assert [line.text for line in every(page, ".shown p")] in near


def test_labels_stay_text(page: Any) -> None:
    from selenium.common.exceptions import NoAlertPresentException

    page.execute_script("arguments[0].focus()", one(page, ".plane svg"))
    assert HOSTILE in one(page, ".shown .name").text
    every(page, ".enlarge")[0].click()
    assert HOSTILE in one(page, "dialog[open] .name").text
    assert HOSTILE in page.title
    with pytest.raises(NoAlertPresentException):
        page.switch_to.alert.accept()


@pytest.mark.parametrize("width", [360, 1100])
def test_nothing_is_wider_than_the_window(page: Any, width: int) -> None:
    size(page, width, 800)
    wide = page.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width
    every(page, ".enlarge")[0].click()
    box = page.execute_script(
        "const b = document.querySelector('dialog[open]').getBoundingClientRect(); return [b.left, b.right]"
    )
    assert 0 <= box[0] < box[1] <= width


def test_the_focus_can_be_seen(page: Any) -> None:
    for _ in range(3):
        press(page, "TAB")
        style = page.execute_script(
            "const s = getComputedStyle(document.activeElement); return [s.outlineStyle, s.outlineWidth]"
        )
        assert style == ["solid", "3px"]


def test_without_scripts_everything_is_there(driver: Any, folder: Path) -> None:
    driver.get((folder / "bare.html").as_uri())
    assert len(every(driver, ".card")) > 12
    assert all(card.is_displayed() for card in every(driver, ".card")[:3])
    assert not any(button.is_displayed() for button in every(driver, ".enlarge"))
    assert not one(driver, ".control").is_displayed()
    assert one(driver, ".curve svg").is_displayed()
    rows = every(driver, ".refusal tbody tr")
    assert len(rows) == 10
    assert all(row.is_displayed() for row in rows)
    assert driver.execute_script("return document.querySelectorAll('.plane path title').length") == 100


def test_the_policy_refuses_other_scripts(page: Any) -> None:
    ran = page.execute_script(
        "try { document.body.innerHTML += '<p>x</p>'; return 'yes'; } catch (error) { return error.name; }"
    )
    assert ran == "TypeError"
    assert [entry["level"] for entry in page.get_log("browser")] == ["SEVERE"]
