"""The page of the service in a browser: vectors, images by a form and by drag and drop, refusals and mistakes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from hessians import ContrastiveLoss
from laplacian_metric.core.array_gallery import ArrayGallery
from laplacian_metric.core.images import Preparation
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.model_folder import ModelFolder
from laplacian_metric.laplace.posthoc import LAM
from laplacian_metric.serve import Index, Service
from laplacian_metric.serve.queries import Inputs
from laplacian_metric.trust import Trust
from tests.browser import chromium
from tests.serve.running import client_of, running

pytest.importorskip("fastapi", reason="FastAPI is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")

SIZE = 4


class Lengths:
    """A sentence encoder of sixteen numbers."""

    def encode(self, sentences: list[str], convert_to_tensor: bool) -> torch.Tensor:
        del convert_to_tensor
        codes = [[ord(letter) % 97 for letter in f"{sentence:<48}"] for sentence in sentences]
        return torch.tensor(codes, dtype=torch.float32)


def pictures(count: int, seed: int) -> tuple[torch.Tensor, list[str]]:
    """Return images (N, 3, 4, 4), uint8, bright in one half, and the name of the half."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 120, (count, 3, SIZE, SIZE), generator=generator, dtype=torch.uint8)
    halves = ["left" if row % 2 else "right" for row in range(count)]
    for image, half in zip(images, halves, strict=True):
        columns = slice(0, 2) if half == "left" else slice(2, 4)
        image[:, :, columns] += 90
    return images, halves


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    """A service over an index of images, with the model that embedded them."""
    encoder = Encoder(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 6))
    preparation = Preparation(image_size=SIZE, channels=3)
    (gallery, names), (validation, validation_names) = pictures(120, 0), pictures(100, 1)
    h, valid_h = (encoder.features(preparation.batch(images)).numpy() for images in (gallery, validation))
    lam = LAM(encoder, ContrastiveLoss())
    codes = torch.tensor([name == "left" for name in names]).long()
    lam.fit_features(torch.from_numpy(h), codes, check_mode=False)
    ids = [f"<b>{row}" for row in range(120)]
    z = lam.embed_features(torch.from_numpy(h)).point.numpy()
    wrong = ["left" if row % 9 == 0 else name for row, name in enumerate(validation_names)]
    galleries = [ArrayGallery(rows, names, ids) for rows in (z, h)]
    trust = Trust.fit(galleries[0], (valid_h, wrong), features=galleries[1], encoder=encoder)
    folder = tmp_path_factory.mktemp("browser") / "index"
    Index(trust, encoder.fingerprint()).save(folder)
    from laplacian_metric.encoder.libraries import SentenceBackbone

    return Service(folder, Inputs(ModelFolder(lam, preparation), SentenceBackbone(Lengths())))


@pytest.fixture(scope="module")
def address(service: Service) -> Iterator[str]:
    with running(service) as place:
        yield place


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def page(driver: Any, address: str) -> Iterator[Any]:
    """The page, opened anew; at the end nothing may have been reported or asked for elsewhere."""
    driver.get_log("browser")
    driver.get_log("performance")
    driver.get(f"{address}/")
    wait(driver, "return document.querySelector('#about').textContent.includes('120 items')")
    yield driver
    entries = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    urls = [
        entry["params"]["request"]["url"]
        for entry in entries
        if entry["method"] == "Network.requestWillBeSent"
    ]
    elsewhere = [url for url in urls if url.startswith(("http", "ws")) and not url.startswith(address)]
    assert elsewhere == []


def wait(driver: Any, script: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(driver, 20).until(lambda opened: opened.execute_script(script))


def one(driver: Any, selector: str) -> Any:
    return driver.find_element("css selector", selector)


def searched(driver: Any) -> str:
    """Press the button; return what is said in the end."""
    one(driver, "button").click()
    wait(
        driver, "return !document.querySelector('#answer').hidden || !document.querySelector('#error').hidden"
    )
    return str(one(driver, "main").text)


def file_of(folder: Path, row: int) -> Path:
    images, _ = pictures(4, 2)
    path = folder / f"picture {row}.png"
    Image.fromarray(images[row].permute(1, 2, 0).numpy()).save(path)
    return path


def test_an_image_is_searched_for_by_the_form(page: Any, tmp_path: Path) -> None:
    one(page, "#file").send_keys(str(file_of(tmp_path, 1)))
    said = searched(page)
    assert one(page, "#verdict").text == "left"
    assert "probability 0." in said
    assert len(page.find_elements("css selector", "#items tr")) == 5
    assert one(page, "#items td").text.startswith("<b>")  # text, and no markup


def test_an_image_is_dropped_onto_the_page(page: Any, tmp_path: Path) -> None:
    content = list(file_of(tmp_path, 0).read_bytes())
    page.execute_script(
        """
        const file = new File([new Uint8Array(arguments[0])], "dropped.png", {type: "image/png"});
        const transfer = new DataTransfer();
        transfer.items.add(file);
        const drop = document.querySelector("#drop");
        for (const name of ["dragenter", "dragover", "drop"]) {
          drop.dispatchEvent(new DragEvent(name, {dataTransfer: transfer, bubbles: true, cancelable: true}));
        }
        """,
        content,
    )
    assert one(page, "#name").text == "dropped.png"
    searched(page)
    assert one(page, "#verdict").text == "right"


def test_vectors_texts_refusals_and_mistakes(page: Any) -> None:
    one(page, "#vector").send_keys("1, 2, 3")
    assert "48" in searched(page)
    one(page, "#vector").clear()
    one(page, "#vector").send_keys("1, 2, many")
    assert "not a number" in searched(page)
    one(page, "#vector").clear()
    assert "choose an image" in searched(page)
    one(page, "#vector").send_keys(" ".join(["-1"] * 48))
    said = searched(page)
    assert one(page, "#verdict").text == "unlike anything seen"
    assert "Against it" in said
    one(page, "#vector").clear()
    one(page, "#text").send_keys("some words")
    assert "probability" in searched(page)


def test_images_are_embedded_as_the_model_does(service: Service, tmp_path: Path) -> None:
    client = client_of(service)
    content = file_of(tmp_path, 1).read_bytes()
    answer = client.post("/query/image?k=2", content=content).json()
    images, _ = pictures(4, 2)
    pixels = np.asarray(images[1], dtype=np.float32).reshape(1, -1) / 255
    expected = client.post("/query/vector", json={"vector": pixels[0].tolist(), "k": 2}).json()
    assert [one["id"] for one in answer["neighbours"]] == [one["id"] for one in expected["neighbours"]]
    assert answer["probability"] == pytest.approx(expected["probability"], abs=1e-4)
    broken = client.post("/query/image", content=content[:40])
    assert (broken.status_code, "decode" in broken.json()["detail"]) == (422, True)
    assert client.get("/health").json()["takes"] == ["vector", "image", "text"]


def test_a_model_of_other_items_is_refused(service: Service) -> None:
    other = Encoder(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 6))
    features = torch.randn(40, 48)
    lam = LAM(other, ContrastiveLoss()).fit_features(features, torch.arange(40) % 4, check_mode=False)
    with pytest.raises(ValueError, match="model"):
        Service(service.folder, Inputs(ModelFolder(lam, Preparation(image_size=SIZE, channels=3))))
