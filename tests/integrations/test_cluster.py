"""A corpus embedded part by part: what the parts are, what is in them, and that Ray resumes them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from hessians import ContrastiveLoss
from laplacian_metric import LAM, Encoder, Trust
from laplacian_metric.core.images import Preparation
from laplacian_metric.integrations.cluster import PartEmbedder, embed_corpus, parts_of
from laplacian_metric.laplace.model_folder import ModelFolder

pa = pytest.importorskip("pyarrow", reason="pyarrow reads and writes the parts")
parquet = pytest.importorskip("pyarrow.parquet")
close = torch.testing.assert_close
WIDTH, DIM = 6, 3


def features(num: int = 90) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(num) % 5
    centres = 2 * torch.randn(5, WIDTH, generator=generator)
    return centres[labels] + 0.5 * torch.randn(num, WIDTH, generator=generator), labels


def fitted(encoder: Encoder, h: Tensor, labels: Tensor) -> LAM:
    return LAM(encoder, ContrastiveLoss(0.9)).fit_features(h, labels, check_mode=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of features, with Trust."""
    torch.manual_seed(0)
    h, labels = features()
    lam = fitted(Encoder(nn.Identity(), nn.Linear(WIDTH, DIM)), h, labels)
    queries, query_labels = (rows[90:] for rows in features(150))
    query_labels[:30] = (query_labels[:30] + 1) % 5  # not all answers are right
    trust = Trust.fit((h, labels), (queries, query_labels), encoder=lam.encoder)
    return ModelFolder(lam, trust=trust).save(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Features in four row groups."""
    h, _ = features()
    ids = [f"item {row}" for row in range(len(h))]
    columns = {"id": ids, "features": h.tolist()}
    parquet.write_table(pa.table(columns), tmp_path / "corpus.parquet", row_group_size=25)
    return tmp_path / "corpus.parquet"


def rows_of(folder: Path) -> dict[str, Any]:
    tables = [parquet.read_table(path) for path in sorted(folder.glob("part-*.parquet"))]
    return pa.concat_tables(tables).to_pydict()


def worker(model: Path, out: Path, **settings: Any) -> PartEmbedder:
    out.mkdir(exist_ok=True)
    return PartEmbedder(
        {
            "model": str(model),
            "out": str(out),
            "batch_size": 10,
            "threads": 1,
            "skip_unreadable": False,
            "architecture": None,
            **settings,
        }
    )


def check_rows(rows: dict[str, Any], model: Path) -> None:
    """What the model says of all features at once."""
    opened, (h, _) = ModelFolder.load(model), features()
    assert rows["id"] == [f"item {row}" for row in range(len(h))]
    e = opened.lam.embed_features(h)
    close(torch.tensor(rows["mean"]), e.mean)
    close(torch.tensor(rows["kappa"]), e.kappa, rtol=1e-4, atol=0)
    np.testing.assert_allclose(rows["known"], opened.trust(h.numpy()).known, rtol=1e-5)


def test_parts_of_a_table(table: Path, model: Path, tmp_path: Path) -> None:
    parts = parts_of(table)
    assert [(part["group"], part["first"]) for part in parts] == [(0, 0), (1, 25), (2, 50), (3, 75)]
    embedder = worker(model, tmp_path / "out")
    counts = [embedder.embed_part(part) for part in parts]
    assert counts == [25, 25, 25, 15]
    check_rows(rows_of(tmp_path / "out"), model)
    written = parquet.read_schema(tmp_path / "out" / "part-00000.parquet").metadata
    assert written[b"fingerprint"].decode() == embedder.model.lam.fingerprint()
    assert embedder({"part": np.array([])})["rows"].size == 0


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Seven images in two folders, and a file that is none."""
    generator = np.random.default_rng(0)
    for number in range(7):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 255, (8 + number, 8, 3), dtype=np.uint8)).save(path)
    (tmp_path / "images" / "notes.txt").write_text("no image")
    return tmp_path / "images"


def pixels() -> nn.Module:
    return Encoder(nn.Sequential(nn.Flatten(), nn.Linear(48, WIDTH)), nn.Linear(WIDTH, DIM))


@pytest.fixture
def image_model(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    encoder = pixels()
    h, labels = features()
    return ModelFolder(fitted(encoder, h, labels), Preparation(image_size=4, channels=3)).save(
        tmp_path / "images-model"
    )


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_images_from_files_bytes_and_paths(images: Path, image_model: Path, tmp_path: Path) -> None:
    """The same rows, however the images come."""
    parts = parts_of(images, images_per_part=4)
    assert [len(part["images"]) for part in parts] == [4, 3]
    for part in parts:
        worker(image_model, tmp_path / "files", architecture=pixels).embed_part(part)
    rows = rows_of(tmp_path / "files")
    assert rows["id"] == ["a/0.png", "a/2.png", "a/4.png", "a/6.png", "b/1.png", "b/3.png", "b/5.png"]
    assert set(rows) == {"id", "mean", "kappa"}  # this model has no Trust
    paths = [images / name for name in rows["id"]]
    tables = {
        "image": pa.table({"image": [path.read_bytes() for path in paths]}),
        "path": pa.table({"id": rows["id"], "path": [f"images/{name}" for name in rows["id"]]}),
    }
    for name, columns in tables.items():
        parquet.write_table(columns, tmp_path / f"{name}.parquet")
        (part,) = parts_of(tmp_path / f"{name}.parquet")
        worker(image_model, tmp_path / name, architecture=pixels).embed_part(part)
        again = rows_of(tmp_path / name)
        assert again["id"] == (rows["id"] if name == "path" else [str(row) for row in range(7)])
        close(torch.tensor(again["mean"]), torch.tensor(rows["mean"]))
        close(torch.tensor(again["kappa"]), torch.tensor(rows["kappa"]), rtol=1e-4, atol=0)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_image_that_does_not_decode(images: Path, image_model: Path, tmp_path: Path) -> None:
    (images / "a" / "2.png").write_bytes(b"no pixels")
    (part,) = parts_of(images)
    with pytest.raises(ValueError, match=r"a/2\.png.*skip_unreadable=True"):
        worker(image_model, tmp_path / "out", architecture=pixels).embed_part(part)
    assert not list((tmp_path / "out").glob("part-*"))
    embedder = worker(image_model, tmp_path / "out", architecture=pixels, skip_unreadable=True)
    assert embedder.embed_part(part) == 6
    assert "a/2.png" not in rows_of(tmp_path / "out")["id"]
    written = parquet.read_schema(tmp_path / "out" / "part-00000.parquet").metadata
    assert written[b"unreadable"] == b'["a/2.png"]'


@pytest.fixture
def folders(tmp_path: Path, table: Path, model: Path) -> Path:
    """A folder with an empty one, a table without features, and parts of another corpus."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "part-00000.parquet").touch()
    parquet.write_table(pa.table({"id": ["a"], "vector": [[1.0]]}), tmp_path / "other.parquet")
    return tmp_path


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda at, model: parts_of(at / "nowhere"), FileNotFoundError, "nowhere"),
        (lambda at, model: parts_of(at / "empty"), ValueError, "empty"),
        (lambda at, model: parts_of(at / "other.parquet"), ValueError, "features"),
        (lambda at, model: parts_of(at / "corpus.parquet", 0), ValueError, "images_per_part"),
        (
            lambda at, model: embed_corpus(at / "corpus.parquet", model, at / "out", workers=0),
            ValueError,
            "workers",
        ),
        (lambda at, model: embed_corpus(at / "corpus.parquet", model, at / "foreign"), ValueError, "folder"),
    ],
)
def test_bad_inputs(call: Any, error: type[Exception], named: str, folders: Path, model: Path) -> None:
    pytest.importorskip("ray", reason="ray shares the work among the machines")
    with pytest.raises(error, match=named):
        call(folders, model)


# --- Ray ---


class Dying(nn.Module):
    """Features as they are; the first worker that sees a marked row is killed."""

    def __init__(self, marker: str) -> None:
        super().__init__()
        self.marker = marker

    def forward(self, h: Tensor) -> Tensor:
        if Path(self.marker).exists() and bool((h[:, 0] > 1e5).any()):
            Path(self.marker).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return h


@pytest.fixture
def cluster() -> Iterator[None]:
    """Ray on this machine, with two processors."""
    ray = pytest.importorskip("ray", reason="ray shares the work among the machines")
    pytest.importorskip("ray.data", reason="ray's data sets need pandas")
    root = str(Path(__file__).resolve().parents[2])
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 << 20,
        runtime_env={"env_vars": {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}},
    )
    yield
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_two_workers(cluster: None, table: Path, model: Path, tmp_path: Path) -> None:
    """All rows; a part that is gone is computed again, and no other; a killed worker is replaced."""
    out = tmp_path / "out"
    corpus = embed_corpus(table, model, out, progress=False)
    assert (corpus.parts, corpus.resumed, corpus.rows, corpus.unreadable) == (4, 0, 90, ())
    check_rows(rows_of(out), model)
    times = {path.name: path.stat().st_mtime_ns for path in out.glob("part-*")}
    (out / "part-00002.parquet").unlink()
    assert embed_corpus(table, model, out, progress=False).resumed == 3
    again = {path.name: path.stat().st_mtime_ns for path in out.glob("part-*")}
    assert {name for name in times if times[name] != again[name]} == {"part-00002.parquet"}
    assert embed_corpus(table, model, out, progress=False).resumed == 4
    with pytest.raises(ValueError, match="another corpus, of another model"):
        embed_corpus([table, table], model, out)

    h, labels = features()
    rows = h.clone()
    rows[60, 0] = 1e6
    parquet.write_table(pa.table({"features": rows.tolist()}), tmp_path / "marked.parquet", row_group_size=15)
    marker = tmp_path / "marker"
    marker.touch()

    def architecture() -> nn.Module:
        return Encoder(Dying(str(marker)), nn.Linear(WIDTH, DIM))

    network = architecture()
    own = ModelFolder(fitted(network, h, labels), Preparation()).save(tmp_path / "own")
    corpus = embed_corpus(
        tmp_path / "marked.parquet", own, tmp_path / "after", architecture=architecture, progress=False
    )
    assert not marker.exists()  # somebody was killed
    assert (corpus.parts, corpus.rows) == (6, 90)
    assert rows_of(tmp_path / "after")["id"] == [str(row) for row in range(90)]
