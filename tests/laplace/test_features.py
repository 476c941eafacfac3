"""Features that are computed once: in memory, in files, and after interruptions."""

from __future__ import annotations

import gc
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from hessians import ContrastiveLoss
from laplacian_metric import LAM, NetworkLAM, data
from laplacian_metric.core import artifact
from laplacian_metric.core.artifact import ArtifactBusyError, ArtifactError
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace import features as module
from laplacian_metric.laplace.features import collect_features, load_features
from tests.manifests import rewrite, version

NUM, PIXELS, WIDTH = 23, 6, 4
IMAGES = torch.randn(NUM, PIXELS, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(NUM) % 3


class Counting(nn.Module):
    """A backbone that knows how many images went through it."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.layer = nn.Linear(PIXELS, WIDTH)
        self.noise = nn.Dropout(0.5)
        weight = torch.randn(WIDTH, PIXELS, generator=torch.Generator().manual_seed(seed))
        self.layer.weight.data.copy_(weight)
        self.layer.bias.data.zero_()
        self.images = 0

    def forward(self, x: Tensor) -> Tensor:
        self.images += len(x)
        return self.noise(self.layer(x))


def encoder(seed: int = 0) -> Encoder:
    network = Encoder(Counting(seed), nn.Linear(WIDTH, 2))
    network.head.weight.data.fill_(0.5)
    network.head.bias.data.zero_()
    return network.train()


def loader(batch_size: int = 5, labels: Tensor = LABELS, num: int = NUM) -> DataLoader[Any]:
    return DataLoader(TensorDataset(IMAGES[:num], labels[:num]), batch_size)


def expected(num: int = NUM) -> Tensor:
    layer = encoder().backbone.layer
    return (IMAGES[:num] @ layer.weight.T).detach()


def stopping(after: int, error: type[BaseException] = RuntimeError) -> Iterator[Any]:
    for number, batch in enumerate(loader()):
        if number == after:
            raise error("stopped")
        yield batch


def check(features: Dataset, num: int = NUM) -> None:
    torch.testing.assert_close(features.features, expected(num))
    assert torch.equal(features.labels, LABELS[:num])
    assert len(features) == num


def test_in_memory() -> None:
    one = encoder()
    features = collect_features(one, loader())
    check(features)
    assert features.folder is None
    assert not features.features.requires_grad
    assert one.backbone.images == NUM
    assert all(part.training for part in one.modules())
    check(collect_features(one, [(IMAGES, LABELS.tolist())]))
    assert collect_features(encoder().double(), [(IMAGES.double(), LABELS)]).features.dtype is torch.float64


def test_a_temporary_file_vanishes_with_the_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # The first batches are in memory before the limit is reached.
    features = collect_features(encoder(), loader(), memory_limit=11 * WIDTH * 4)
    assert features.folder.parent == tmp_path
    check(features)
    rows = features.features[3:]
    del features
    gc.collect()
    torch.testing.assert_close(rows, expected()[3:])
    del rows
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeError, match="stopped"):
        collect_features(encoder(), stopping(3), memory_limit=0)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "features"
    check(collect_features(encoder(), loader(), folder=folder))
    assert sorted(file.name for file in version(folder).iterdir()) == [
        "features.bin",
        "labels.bin",
        "manifest.json",
    ]
    assert not (folder / module.PARTIAL).exists()
    again = encoder()
    # Another batch size is the same order.
    check(collect_features(again, loader(batch_size=8), folder=folder))
    assert again.backbone.images == 8  # the first batch, to compare


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_pass_goes_on(tmp_path: Path, error: type[BaseException]) -> None:
    one = encoder()
    with pytest.raises(error, match="stopped"):
        collect_features(one, stopping(3, error), folder=tmp_path)
    assert all(part.training for part in one.modules())
    assert json.loads((tmp_path / module.PARTIAL / module.NOTE).read_text())["rows"] == 15
    again = encoder()
    check(collect_features(again, loader(), folder=tmp_path))
    assert again.backbone.images == NUM - 15 + 5  # the first batch is compared


def test_another_batch_size_after_an_interruption(tmp_path: Path) -> None:
    """What does not fill a batch any more is computed again, and the note never counts what is cut off."""
    with pytest.raises(RuntimeError):
        collect_features(encoder(), stopping(3), folder=tmp_path)
    again, notes = encoder(), []
    again.backbone.register_forward_hook(
        lambda *_: notes.append((tmp_path / module.PARTIAL / module.NOTE).read_text())
    )
    check(collect_features(again, loader(batch_size=6), folder=tmp_path))
    assert again.backbone.images == NUM - 12 + 6
    assert [json.loads(note)["rows"] for note in notes[:3]] == [15, 15, 12]


def test_rows_are_noted_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed loses what came after the last note only; half a row is cut off."""
    monkeypatch.setattr(module, "ROWS_BETWEEN_NOTES", 10)
    monkeypatch.setattr(module._Store, "__exit__", lambda self, *error: self._stack.close())
    with pytest.raises(RuntimeError):
        collect_features(encoder(), stopping(3), folder=tmp_path)
    with (tmp_path / module.PARTIAL / "features.bin").open("ab") as file:
        file.write(b"half")
    monkeypatch.undo()
    again = encoder()
    check(collect_features(again, loader(), folder=tmp_path))
    assert again.backbone.images == NUM - 10 + 5


@pytest.mark.parametrize("name", ["features.bin", "labels.bin"])
@pytest.mark.parametrize("interrupted", [True, False])
def test_files_that_lost_rows(
    tmp_path: Path, name: str, interrupted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def pass_once() -> Path:
        if not interrupted:
            collect_features(encoder(), loader(), folder=tmp_path)
            return version(tmp_path) / name
        (tmp_path / artifact.POINTER).unlink(missing_ok=True)
        with pytest.raises(RuntimeError, match="stopped"):
            collect_features(encoder(), stopping(3), folder=tmp_path)
        return tmp_path / module.PARTIAL / name

    for damage in (lambda path: os.truncate(path, 30), Path.unlink):
        damage(pass_once())
        again = encoder()
        with caplog.at_level(logging.WARNING):
            check(collect_features(again, loader(), folder=tmp_path))
        assert again.backbone.images == NUM
        assert "computed again" in caplog.text
        check(load_features(tmp_path))


@pytest.mark.parametrize(
    "changes",
    [{"dtype": "int8"}, {"dtype": None}, {"rows": -1}, {"rows": 10**12}, {"rows": ...}, {"files": {}}, {"width": 0}],
)  # fmt: skip
def test_manifests_that_are_wrong_are_not_believed(
    tmp_path: Path, changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    collect_features(encoder(), loader(), folder=tmp_path)
    rewrite(tmp_path, **changes)
    with pytest.raises(ArtifactError):
        load_features(tmp_path)
    with caplog.at_level(logging.WARNING):
        check(collect_features(encoder(), loader(), folder=tmp_path))
    assert "computed again" in caplog.text


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", "{", '{"fingerprint": 1}', '{"rows": "x"}', '{"rows": 1, "dtype": "load"}',
     '{"rows": -1, "dtype": "float32"}', '{"rows": 10000000, "dtype": "float32"}'],
)  # fmt: skip
def test_notes_that_are_wrong_are_not_believed(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RuntimeError, match="stopped"):
        collect_features(encoder(), stopping(3), folder=tmp_path)
    note = tmp_path / module.PARTIAL / module.NOTE
    identity = json.loads(note.read_text())
    if text.startswith('{"rows'):
        text = json.dumps({**identity, **json.loads(text)})
    note.write_text(text)
    with caplog.at_level(logging.WARNING):
        check(collect_features(encoder(), loader(), folder=tmp_path))
    assert "computed again" in caplog.text


def test_the_second_of_two_passes_is_told(tmp_path: Path) -> None:
    def both() -> Iterator[Any]:
        for number, batch in enumerate(loader()):
            if number == 1:
                with ThreadPoolExecutor() as pool, pytest.raises(ArtifactBusyError, match="partial"):
                    pool.submit(collect_features, encoder(), loader(2), folder=tmp_path).result()
            yield batch

    check(collect_features(encoder(), both(), folder=tmp_path))
    check(collect_features(encoder(), loader(), folder=tmp_path))


def test_what_is_mapped_stays_when_the_rows_are_computed_anew(tmp_path: Path) -> None:
    first = collect_features(encoder(), loader(), folder=tmp_path)
    collect_features(encoder(seed=1), loader(), folder=tmp_path)
    check(first)


def test_another_encoder_or_other_images(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    collect_features(encoder(seed=1), loader(), folder=tmp_path)
    with caplog.at_level(logging.WARNING):
        check(collect_features(encoder(), loader(), folder=tmp_path))
    assert "features of another encoder" in caplog.text
    with pytest.raises(
        ValueError, match=r"image 5 and those after it have other labels .* the loader's order changed"
    ):
        collect_features(encoder(), loader(labels=torch.cat([LABELS[:5], 7 + LABELS[5:]])), folder=tmp_path)
    check(collect_features(encoder(), loader(), folder=tmp_path))
    with pytest.raises(ValueError, match="the features of 23 images, and the loader has only 10"):
        collect_features(encoder(), loader(num=10), folder=tmp_path)
    with caplog.at_level(logging.WARNING):
        features = collect_features(encoder(), loader(labels=9 - LABELS), folder=tmp_path)
    assert "are not those of the earlier pass" in caplog.text
    assert torch.equal(features.labels, 9 - LABELS)


def test_other_images_with_the_same_labels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As where the images are prepared in another way."""
    collect_features(encoder(), loader(), folder=tmp_path)
    prepared = DataLoader(TensorDataset(2 * IMAGES, LABELS), 5)
    with caplog.at_level(logging.WARNING):
        features = collect_features(encoder(), prepared, folder=tmp_path)
    assert "the loader's features are not those of the earlier pass" in caplog.text
    torch.testing.assert_close(features.features, 2 * expected())
    tiny = DataLoader(TensorDataset(2 * IMAGES + 1e-6, LABELS), 5)
    again = encoder()
    collect_features(again, tiny, folder=tmp_path)
    assert again.backbone.images == 5


def test_more_images_than_before(tmp_path: Path) -> None:
    collect_features(encoder(), loader(num=10), folder=tmp_path)
    again = encoder()
    check(collect_features(again, loader(), folder=tmp_path))
    assert again.backbone.images == NUM - 10 + 5


def test_tuples_and_dictionaries() -> None:
    class Sum(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a + b

    summed = Encoder(Sum(), nn.Linear(PIXELS, 2))
    for inputs in ((IMAGES, IMAGES), {"a": IMAGES, "b": IMAGES}):
        features = collect_features(summed, [(inputs, LABELS)])
        torch.testing.assert_close(features.features, 2 * IMAGES)


BATCH = (IMAGES, LABELS)
NAN = IMAGES.clone()
NAN[4, 0] = torch.nan


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        ([IMAGES], TypeError, "batch 0 of the loader is a Tensor: a loader that yields"),
        ([BATCH, (IMAGES,)], TypeError, "batch 1 of the loader is a tuple of 1"),
        ([{"x": IMAGES}], TypeError, "batch 0 of the loader is a dict"),
        ([BATCH, (IMAGES, LABELS[:4])], ValueError, "batch 1 of the loader has 4 labels for 23 images"),
        (
            [(IMAGES, LABELS.float())],
            TypeError,
            "batch 0 of the loader: labels has dtype torch.float32, whole numbers",
        ),
        ([(IMAGES, LABELS[:, None])], TypeError, r"shape \(23, 1\), one label for each image"),
        (
            [(IMAGES, [None] * NUM)],
            TypeError,
            "batch 0 of the loader: labels has at 0 None, which is no label",
        ),
        ([(IMAGES, LABELS, LABELS)], TypeError, r"is a tuple of 3: .*for x, y, \*_ in loader"),
        ((IMAGES, LABELS), TypeError, r"two tensors are no loader: .*pass \[\(images, labels\)\]"),
        (
            TensorDataset(IMAGES, LABELS),
            TypeError,
            "a TensorDataset yields images and no batches: .*pass torch.utils",
        ),
        (0.5, TypeError, "a float is no loader: something that yields"),
        ([BATCH, (NAN, LABELS)], ValueError, "batch 1 of the loader has NaN .* the first is row 4"),
        ([((IMAGES * 255).to(torch.uint8), LABELS)], TypeError, "convert to floats in"),
        ([], ValueError, "the loader is empty"),
        ([BATCH, (IMAGES.double(), LABELS)], RuntimeError, "dtype"),
    ],
)
def test_refusals(batches: Any, error: type[Exception], message: str, tmp_path: Path) -> None:
    one = encoder()
    for folder in (None, tmp_path):
        with pytest.raises(error, match=message):
            collect_features(one, batches, folder=folder)
    assert all(part.training for part in one.modules())
    left = {file.name for file in tmp_path.iterdir()}
    assert left <= {module.PARTIAL}


@pytest.mark.parametrize("make", [list, np.array, tuple])
def test_labels_may_be_text_and_images_arrays(make: Any) -> None:
    names = ["ant", "bee", "cat", "dog"]
    text = [names[int(label) % 4] for label in LABELS]
    one = encoder()
    # Neither batch has all classes, and both number the same class alike.
    batches = [(IMAGES[:12].numpy(), make(text[:12])), (IMAGES[12:].numpy(), make(text[12:]))]
    features, numbers = collect_features(one, batches), collect_features(one, [(IMAGES, LABELS % 4)])
    torch.testing.assert_close(features.features, numbers.features)
    assert torch.equal(features.labels[:, None] == features.labels, numbers.labels[:, None] == numbers.labels)


def test_a_data_set_is_read_in_batches_as_a_loader_would() -> None:
    images = data.load("sample-mnist", "test").select(torch.arange(30))
    net = nn.Sequential(nn.Conv2d(1, 2, 5, stride=5), nn.Flatten(), nn.Linear(50, 3))
    one = Encoder.from_module(net.eval())
    features = collect_features(one, images)
    assert torch.equal(features.labels, images.labels)
    torch.testing.assert_close(features.features, one.features(images.floats()))
    assert (features.title, features.class_names, features.ids) == (
        images.title,
        images.class_names,
        images.ids,
    )
    with pytest.raises(TypeError, match="sample-mnist:test holds no features"):
        images.features  # noqa: B018
    lam = LAM(one, ContrastiveLoss(margin=0.7)).fit(images, check_mode=False)
    torch.testing.assert_close(lam.embed(images).kappa, lam.embed(images.floats()).kappa)
    deep = NetworkLAM(one, ContrastiveLoss(margin=0.7), layers=1).fit(images, check_mode=False)
    torch.testing.assert_close(deep.embed(images).kappa, deep.embed(images.floats()).kappa)
