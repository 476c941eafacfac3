"""Graphs of a LAM against the LAM: torch.export's, and ONNX's as onnxruntime runs it."""

from __future__ import annotations

import errno
import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hessians import ContrastiveLoss
from laplacian_metric import Trust, vmf
from laplacian_metric.data import load
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.encoder_posterior import EncoderChangedError
from laplacian_metric.laplace.export import ExportableLAM, export_onnx, export_program
from laplacian_metric.laplace.layer import DiagonalCurvature, Structure
from laplacian_metric.laplace.posthoc import LAM, NotFittedError
from tests.pages import run_page
from tests.vmf.tables import rows

Run = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
close = torch.testing.assert_close


def onnx_run(lam: LAM, folder: Path, example: Tensor) -> Run:
    """What onnxruntime makes of the exported file."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    export_onnx(lam, folder / "lam.onnx", example)
    session = runtime.InferenceSession(folder / "lam.onnx", providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        point, mean, kappa = session.run(["point", "mean", "kappa"], {"images": images.numpy()})
        return torch.from_numpy(point), torch.from_numpy(mean), torch.from_numpy(kappa)

    return run


def program_run(lam: LAM, example: Tensor) -> Run:
    run: Run = export_program(lam, example).module()
    return run


def same(run: Run, lam: LAM, images: Tensor, rtol: float = 1e-5) -> None:
    """Directions to 1e-5, kappa to ``rtol``."""
    with torch.no_grad():
        point, mean, kappa = run(images)
    e = lam.embed(images)
    assert (point.dtype, mean.dtype, kappa.dtype) == (e.point.dtype, e.mean.dtype, e.kappa.dtype)
    close(point, e.point, rtol=0, atol=1e-5)
    close(mean, e.mean, rtol=0, atol=1e-5)
    close(kappa, e.kappa, rtol=rtol, atol=0)


# --- the network of FashionMNIST, on images ---


@pytest.fixture(scope="module")
def images() -> Tensor:
    return load("sample-fashion-mnist", "test").floats()[:100]


@pytest.fixture(scope="module")
def fashion(images: Tensor) -> LAM:
    encoder = Encoder.from_name("fashion-mnist", seed=0).eval()
    with torch.no_grad():
        features = encoder.features(images)
    labels = load("sample-fashion-mnist", "test").labels[:100]
    return LAM(encoder, ContrastiveLoss()).fit_features(features, labels, check_mode=False)


def concentrated(lam: LAM, images: Tensor, kappa: float) -> LAM:
    """The same LAM with the prior precision at which the median concentration is about ``kappa``."""
    lam.n_effective = 1e-6  # what is left is the prior
    low, high = -12.0, 20.0
    for _ in range(25):
        middle = (low + high) / 2
        lam.prior_precision = 10.0**middle
        low, high = (middle, high) if float(lam.embed(images[:9]).kappa.median()) < kappa else (low, middle)
    return lam


@pytest.mark.parametrize("kappa", [1.0, 1e4])
def test_the_program_embeds_as_the_lam_does(fashion: LAM, images: Tensor, kappa: float) -> None:
    lam = concentrated(fashion, images, kappa)
    assert float(lam.embed(images[:9]).kappa.median()) == pytest.approx(kappa, rel=0.1)
    run = program_run(lam, images[:1])
    for count in (1, 2, 7):
        same(run, lam, images[:count])


@pytest.mark.parametrize("kappa", [pytest.param(1e-2, marks=pytest.mark.slow), 1e6])
def test_onnx_embeds_as_the_lam_does(fashion: LAM, images: Tensor, kappa: float, tmp_path: Path) -> None:
    lam = concentrated(fashion, images, kappa)
    run = onnx_run(lam, tmp_path, images[:3])
    for count in (1, 2, 7):
        same(run, lam, images[:count], rtol=1e-4)


# --- any mean and any variance, through one graph ---


def adjustable(dim: int) -> LAM:
    """A LAM whose inputs (N, 2 Z) are the means and the standard deviations of u."""
    weight = torch.cat([torch.eye(dim), torch.zeros(dim, dim)], dim=1)
    head = nn.Linear(2 * dim, dim, bias=False)
    head.weight.data.copy_(weight)
    lam = LAM(Encoder(nn.Identity(), head), ContrastiveLoss(), n_effective=1.0, prior_precision=1.0)
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(20, 2 * dim, generator=generator)
    lam.fit_features(features, torch.arange(20) % 4, check_mode=False)
    certain = torch.cat([torch.ones(dim, dim), 1 - torch.eye(dim)], dim=1)  # a variance of 1e-30
    lam.fitted = replace(lam.fitted, curvature=DiagonalCurvature(1e30 * certain))
    return lam


@pytest.fixture(scope="module")
def any_gaussian(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    lam, example = adjustable(3), torch.ones(2, 6)
    return {
        "program": program_run(lam, example),
        "onnx": onnx_run(lam, tmp_path_factory.mktemp("any"), example),
    }


@pytest.mark.parametrize("kind", ["program", "onnx"])
def test_every_concentration_from_a_hundredth_to_a_million(any_gaussian: dict[str, Run], kind: str) -> None:
    """20,000 random Gaussians, a good part of them far from isotropic; single variances up to 1e8 times others."""
    generator = torch.Generator().manual_seed(1)
    mean = torch.randn(20_000, 3, generator=generator)
    scale = 10 ** torch.empty(20_000, 1).uniform_(-7, 6, generator=generator)
    each = 10 ** torch.empty(20_000, 3).uniform_(-4, 4, generator=generator)
    each[:10_000] = 1
    root = (scale * each).sqrt()
    _, direction, kappa = any_gaussian[kind](torch.cat([mean, root], dim=1))
    expected = vmf.projected_normal(mean, root.square())
    chosen = (expected.kappa >= 1e-2) & (expected.kappa <= 1e6)
    assert int(chosen.sum()) > 10_000
    close(kappa[chosen], expected.kappa[chosen], rtol=1e-4, atol=0)
    # The direction of a mean that is nearly 0 is known to fewer digits.
    has_direction = chosen & (expected.length > 0.1)
    close(direction[has_direction], expected.mean[has_direction], rtol=0, atol=1e-5)
    assert kappa.isfinite().all()


@pytest.mark.parametrize("kind", ["program", "onnx"])
def test_the_table_with_forty_digits(any_gaussian: dict[str, Run], kind: str) -> None:
    """kappa = R (Z - 1 + V)/V of mpmath's R and V."""
    table = [row for row in rows("projected.json") if len(row["mean"]) == 3 and row["name"] != "dominated"]
    assert len(table) > 3
    for row in table:
        mean, root = torch.tensor([row["mean"]]), torch.tensor([row["variance"]]).sqrt()
        length, spread = float(row["length"]), float(row["spread"])
        expected = length * (2 + spread) / spread
        if 1e-2 <= expected <= 1e6:
            kappa = any_gaussian[kind](torch.cat([mean, root], dim=1).float())[2]
            assert float(kappa) == pytest.approx(expected, rel=1e-4), row["name"]


@pytest.mark.parametrize("kind", ["program", "onnx"])
def test_an_embedding_that_is_zero_gives_the_first_axis_and_no_concentration(
    any_gaussian: dict[str, Run], kind: str
) -> None:
    inputs = torch.tensor([[0.0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0], [0, 2, 0, 0.1, 0.1, 0.1]])
    point, mean, kappa = any_gaussian[kind](inputs)
    assert point.tolist() == [[1, 0, 0], [1, 0, 0], [0, 1, 0]]
    assert mean[:2].tolist() == [[1, 0, 0], [1, 0, 0]]
    assert kappa[:2].tolist() == [0, 0]
    assert kappa[2] > 100


@pytest.mark.parametrize("kind", ["program", "onnx"])
def test_one_bad_image_stays_alone_and_none_is_fine(any_gaussian: dict[str, Run], kind: str) -> None:
    good = torch.tensor([[1.0, 2, 3, 0.1, 0.1, 0.1]])
    bad = torch.full((1, 6), math.nan)
    point, mean, kappa = any_gaussian[kind](torch.cat([bad, good]))
    assert kappa[0].isnan()
    for got, alone in zip((point, mean, kappa), any_gaussian[kind](good), strict=True):
        close(got[1:], alone)
    empty = any_gaussian[kind](good[:0])
    assert [tuple(part.shape) for part in empty] == [(0, 3), (0, 3), (0,)]


# --- heads and encoders ---


def small(
    bias: bool = True, dtype: torch.dtype = torch.float32, training: bool = False, **options: object
) -> LAM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Tanh())
        encoder = Encoder(backbone, nn.Linear(8, 4, bias=bias)).to(dtype).eval()
    with torch.no_grad():
        features = encoder.features(inputs(40, dtype))
    encoder.train(training)
    lam = LAM(encoder, **{"loss": ContrastiveLoss(), **options})  # type: ignore[arg-type]
    return lam.fit_features(features, torch.arange(40) % 4, check_mode=False)


def inputs(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype)


UNNORMALISED = ContrastiveLoss(distance="euclidean", normalize=False)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("bias", "options"),
    [(True, {}), (False, {}), (True, {"loss": UNNORMALISED, "approximation": "positive"})],
)
def test_with_and_without_a_random_bias_and_in_any_mode(
    bias: bool, options: dict[str, object], training: bool
) -> None:
    """The graph is that of the evaluation mode; the encoder stays in its own."""
    lam = small(bias, training=training, **options)
    same(program_run(lam, inputs(3)), lam, inputs(5))
    assert all(module.training == training for module in lam.encoder.modules())
    assert ExportableLAM(lam).training == training


def test_the_module_itself_embeds_as_the_lam_does() -> None:
    lam = small(dtype=torch.float64)
    same(ExportableLAM(lam), lam, inputs(5, torch.float64), rtol=1e-12)


def test_with_its_features_a_graph_and_numpy_answer_as_trust_does(tmp_path: Path) -> None:
    """onnxruntime gives the features, a saved Trust the answers: the same as through the encoder."""
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    lam = small()
    images = torch.randn(400, *inputs(1).shape[1:], generator=torch.Generator().manual_seed(0))
    h = lam.encoder.features(images).detach()
    labels = (h[:, 0] + 0.5 * h[:, 1] > h[:, 0].median()).long()
    trust = Trust.fit((h[:200], labels[:200]), (h[200:], labels[200:]), encoder=lam.encoder)
    trust.save(tmp_path / "trust")
    export_onnx(lam, tmp_path / "lam.onnx", images[:2], features=True)
    session = runtime.InferenceSession(tmp_path / "lam.onnx", providers=["CPUExecutionProvider"])
    queries = torch.randn(20, *images.shape[1:], generator=torch.Generator().manual_seed(1))
    *_, exported = session.run(None, {"images": queries.numpy()})
    torch.testing.assert_close(
        torch.from_numpy(exported), lam.encoder.features(queries), rtol=1e-4, atol=1e-4
    )
    answer, expected = Trust.load(tmp_path / "trust")(exported), trust(lam.encoder.features(queries).detach())
    assert answer.nearest.tolist() == expected.nearest.tolist()
    np.testing.assert_allclose(answer.probability, expected.probability, atol=1e-3)


@pytest.mark.slow
def test_double_precision(tmp_path: Path) -> None:
    lam = small(dtype=torch.float64)
    same(program_run(lam, inputs(2, torch.float64)), lam, inputs(5, torch.float64), rtol=1e-12)
    same(onnx_run(lam, tmp_path, inputs(2, torch.float64)), lam, inputs(5, torch.float64), rtol=1e-6)


def test_a_program_is_saved_and_keeps_the_posterior_that_it_was_made_of(tmp_path: Path) -> None:
    lam = small()
    torch.export.save(export_program(lam, inputs(2)), tmp_path / "lam.pt2")
    same(torch.export.load(tmp_path / "lam.pt2").module(), lam, inputs(5))
    module, before = ExportableLAM(lam), lam.embed(inputs(5)).kappa
    lam.prior_precision = 1e4
    assert not torch.equal(lam.embed(inputs(5)).kappa, before)
    close(module(inputs(5))[2], before)


# --- the file ---


def test_a_full_disk_leaves_the_old_file_and_the_new_one_tells_what_it_is(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = pytest.importorskip("onnx")
    lam, path = small(), tmp_path / "lam.onnx"
    path.write_bytes(b"old")
    programs: list[object] = []
    convert = torch.onnx.export

    def once(*args: object, **options: object) -> object:
        if not programs:
            programs.append(convert(*args, **options))  # type: ignore[arg-type]
        return programs[0]

    def full_disk(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch.onnx, "export", once)
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full_disk)
        with pytest.raises(OSError, match="No space left"):
            export_onnx(lam, path, inputs(1))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    export_onnx(lam, str(path), inputs(1))
    assert list(tmp_path.iterdir()) == [path]
    _check_file(onnx, path, lam, root)


def _check_file(onnx: Any, path: Path, lam: LAM, root: Path) -> None:
    """Names, the free number of images, which encoder it is of, and no folder of this machine."""
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    shapes = {
        value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert shapes == {"images": ["batch", 6], "point": ["batch", 4], "mean": ["batch", 4], "kappa": ["batch"]}
    assert lam.encoder.fingerprint() in {entry.value for entry in model.metadata_props}
    assert str(root).encode() not in path.read_bytes()


# --- refusals ---


def changed() -> LAM:
    lam = small()
    with torch.no_grad():
        lam.encoder.head.weight.add_(1)
    return lam


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        *(
            (lambda kind=kind: ExportableLAM(small(structure=kind)), ValueError, "structure")
            for kind in Structure
            if kind is not Structure.DIAGONAL
        ),
        (lambda: export_program(LAM(small().encoder, ContrastiveLoss()), inputs(2)), NotFittedError, "fit"),
        (lambda: export_program(changed(), inputs(2)), EncoderChangedError, "fit"),
        (lambda: export_program(small(), inputs(0)), ValueError, "example_images"),
        (lambda: export_program(small(), [inputs(2)]), TypeError, "example_images"),
        (lambda: export_program(small(), (inputs(2),)), TypeError, "example_images"),
    ],
)
def test_bad_inputs(call: Callable[[], object], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        call()


@pytest.mark.parametrize(
    ("missing", "error"), [("onnx", ImportError), ("onnxscript", ImportError), ("", ValueError)]
)
def test_what_onnx_cannot_write(
    missing: str, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its packages, and beyond the size of its files."""
    pytest.importorskip("onnxscript")
    monkeypatch.setattr("laplacian_metric.laplace.export.ONNX_LIMIT", 100)
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(error, match="export"):
        export_onnx(small(), tmp_path / "lam.onnx", inputs(1))
    assert list(tmp_path.iterdir()) == []


def test_the_code_on_the_page_runs(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: Tensor
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    monkeypatch.setattr(tempfile, "mkdtemp", lambda: str(tmp_path))
    names: dict[str, Any] = run_page(root / "docs" / "saving_and_exporting.md")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lam", "lam.onnx"]
    session = runtime.InferenceSession(tmp_path / "lam.onnx", providers=["CPUExecutionProvider"])
    (kappa,) = session.run(["kappa"], {"images": images[:7].numpy()})
    close(torch.from_numpy(kappa), names["lam"].embed(images[:7]).kappa, rtol=1e-4, atol=0)
