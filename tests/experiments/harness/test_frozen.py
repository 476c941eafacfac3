"""A frozen backbone: its features are computed once, and every method of the cell goes by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.harness import ConfigError, cell_fitting
from experiments.harness import image_sets as sets_module
from experiments.harness.work import Work
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.heads import whitening_head
from tests.experiments.harness.miniature import BASE, LAPLACE, Folder, folder_with

FROZEN: dict[str, Any] = {**BASE, "network": {"name": "fashion-mnist", "dim": 3, "frozen": True}}
CELLS: dict[str, Any] = {
    "deterministic": FROZEN,
    "laplace": LAPLACE,
    "online": {"inherit": "mini/deterministic", "method": "online-laplace"},
    "pfe": {"base": "mini/deterministic", "method": "pfe"},
    "ensemble": {"base": "mini/deterministic", "method": "ensemble"},
    "wide": {"inherit": "mini/deterministic", "network": {"dim": 6}},
    "dropout": {"inherit": "mini/deterministic", "method": {"name": "mc-dropout", "samples": 4}},
}


def place_of(folder: Folder) -> cell_fitting.Place:
    return cell_fitting.Place(folder.read(), Work(folder.work), None, progress=False)


def fitted(folder: Folder, name: str, seed: int = 0) -> cell_fitting.Fitted:
    place = place_of(folder)
    with place.work.locked(name, seed):
        return cell_fitting.fit(place, place.cells[name], seed)


def test_all_methods_go_by_features_that_are_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[str] = []
    original = sets_module.collect_features

    def counted(*arguments: Any, folder: Path, **options: Any) -> Any:
        computed.append(folder.name)
        return original(*arguments, folder=folder, **options)

    monkeypatch.setattr(sets_module, "collect_features", counted)
    folder = folder_with(tmp_path, **CELLS)
    summary = folder.run(seeds=[0, 1])
    assert summary.ok, summary.failed
    assert len(summary.done) == 2 * len(CELLS)
    assert sorted(computed) == ["corrupted", "out-digits", "test", "train", "validation"]
    # They are gone with the last run that needed them.
    assert not list(folder.work.rglob("features.bin"))
    numbers = [folder.result("mini/deterministic", seed)["retrieval"]["test"] for seed in (0, 1)]
    assert numbers[0] != numbers[1]
    assert folder.result("mini/laplace")["retrieval"] == folder.result("mini/deterministic")["retrieval"]


def test_the_backbone_stays_and_the_head_is_trained(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, deterministic=FROZEN)
    folder.run(keep_features=True)
    backbone = Encoder.from_name("fashion-mnist", dim=3, seed=cell_fitting.FROZEN_SEED).eval()
    cell = fitted(folder, "mini/deterministic")
    images = place_of(folder).images(folder.read()["mini/deterministic"])
    for name in ("train", "test", "out/digits"):
        with torch.no_grad():
            expected = backbone.features(images[name].inputs)
        inputs = cell.sets[name].inputs
        assert isinstance(inputs, torch.Tensor)
        assert torch.allclose(inputs, expected, atol=1e-6)
    assert cell.encoder is not None
    assert isinstance(cell.encoder.backbone, torch.nn.Identity)
    initial = cell_fitting._initial(place_of(folder), folder.read()["mini/deterministic"], 0, cell.sets)
    assert not torch.equal(cell.encoder.head.weight, initial.head.weight)


@pytest.mark.parametrize("head", ["identity", "whitening"])
def test_an_untrained_head_is_what_it_is_called(head: str, tmp_path: Path) -> None:
    network = {"name": "torchvision:resnet18", "dim": 512 if head == "identity" else 5}
    network |= {"frozen": True, "head": head}
    data = {**BASE["data"], "image_size": 32, "channels": 3}
    cell = {**BASE, "data": data, "network": network, "training": {"epochs": 0}}
    folder = folder_with(tmp_path, deterministic=cell)
    folder.run(keep_features=True)
    result = folder.result("mini/deterministic")
    assert result["status"] == "done", result["error"]
    assert result["training"] == {"history": [], "best_epoch": 0}
    fitted_cell = fitted(folder, "mini/deterministic")
    assert fitted_cell.encoder is not None
    train = fitted_cell.sets["train"].inputs
    assert isinstance(train, torch.Tensor)
    expected = train if head == "identity" else whitening_head(train, 5)(train)
    with torch.no_grad():
        assert torch.allclose(fitted_cell.encoder.raw(train), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("network", "data", "expected"),
    [
        ({"frozen": True}, {"augment": "crop-flip"}, "there is nothing to augment: leave out one of them"),
        ({"head": "whitening"}, {}, "set frozen to true, or leave head out"),
        ({"frozen": True, "head": "unity"}, {}, "network.head is 'unity'"),
    ],
)
def test_what_does_not_go_together_is_refused(
    network: dict[str, Any], data: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    cell = {**BASE, "network": {**BASE["network"], **network}, "data": {**BASE["data"], **data}}
    with pytest.raises(ConfigError) as caught:
        folder_with(tmp_path, deterministic=cell).read()["mini/deterministic"]
    assert expected in str(caught.value)


def test_an_identity_has_as_many_dimensions_as_there_are_features(tmp_path: Path) -> None:
    cell = {**FROZEN, "network": {**FROZEN["network"], "head": "identity"}}
    folder = folder_with(tmp_path, deterministic=cell)
    assert not folder.run().ok
    assert (
        "keeps all 9216 features, but dim is 3: leave dim out" in folder.result("mini/deterministic")["error"]
    )


def test_what_builds_on_a_frozen_network_has_to_be_frozen_too(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, deterministic=FROZEN, wrong={**LAPLACE, "network": {"frozen": False}})
    with pytest.raises(ConfigError, match=r"network\.frozen was True and is now False"):
        folder.read()["mini/wrong"]


def test_missing_weights_are_missing_data(tmp_path: Path) -> None:
    cell = {**FROZEN, "network": {**FROZEN["network"], "weights": "weights/none.safetensors"}}
    folder = folder_with(tmp_path, deterministic=cell)
    summary = folder.run(data_dir=tmp_path)
    said = summary.without_data["mini/deterministic, seed 0"]
    assert "weights/none.safetensors" in said
    assert "put the weights of fashion-mnist there" in said
    assert folder.states()[("mini/deterministic", 0)] == "to do"
