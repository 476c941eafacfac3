"""Saved indexes: the same afterwards, mapped, whole or not there, and refused where a byte is another."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laplacian_metric.core import artifact
from laplacian_metric.core.artifact import ArtifactError
from laplacian_metric.retrieval import calibrations as calibrations_module
from laplacian_metric.retrieval import storage
from laplacian_metric.retrieval.abstention import choose_threshold
from laplacian_metric.retrieval.calibrations import Calibrations
from laplacian_metric.retrieval.credible import CredibleCaps
from laplacian_metric.retrieval.drift import DriftMonitor
from laplacian_metric.retrieval.gallery import HNSW, IVF
from laplacian_metric.retrieval.index import Index
from laplacian_metric.retrieval.items import Items
from laplacian_metric.retrieval.matching import MatchProbability
from laplacian_metric.retrieval.storage import DamagedIndexError, IndexManifest, load, save
from tests.manifests import redigest, rewrite
from tests.retrieval.clusters import clusters

KINDS = ["flat", IVF(nlist=5, nprobe=3, seed=4), HNSW(links=8, search_depth=20)]
MATCHING = MatchProbability(0.5, -1.0, 100, 40, 0.3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An index of ten items with a variance."""
    items, _ = clusters(10, 4, variance=True)
    save(Index(items, [f"ä{i}" for i in range(10)]), tmp_path / "index")
    return tmp_path / "index"


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("kind", KINDS, ids=["flat", "ivf", "hnsw"])
def test_an_index_is_the_same_afterwards(tmp_path: Path, kind: Any, text: bool, mmap: bool) -> None:
    items, _ = clusters(80, 6, variance=text)
    items = Items.cat(
        [items[:79], Items(items.mean[79:], [np.inf], [np.inf], items[79:].variance, items.source)]
    )
    ids = [f"Bild {i} ✓" for i in range(80)] if text else np.arange(80) * -(10**12)
    index = Index(items, ids, kind=kind)
    index.calibrations = Calibrations(matching=MATCHING, withdrawn=("threshold",))
    save(index, tmp_path / "index")
    again = load(tmp_path / "index", mmap=mmap)
    for name in ("mean", "kappa", "uncertainty", "variance"):
        one, other = getattr(index.items, name), getattr(again.items, name)
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype
            assert not other.flags.writeable
    np.testing.assert_array_equal(index.ids, again.ids)
    assert (again.source, again.kind, again.calibrations) == (index.source, index.kind, index.calibrations)
    queries, _ = clusters(7, 6, seed=1)
    for order in ("cosine", "expected distance", "match probability"):
        one, other = (each.query(queries, 5, order=order) for each in (index, again))  # type: ignore[arg-type]
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.probability, other.probability)
    # and it goes on as the first would
    gone = index.ids[:3]
    for each in (index, again):
        each.remove(gone)
        each.add(clusters(1, 6, seed=3, variance=text)[0], ["new"] if text else [7])
        assert len(each) == 78
    np.testing.assert_array_equal(index.query(queries, 5).ids, again.query(queries, 5).ids)


def is_mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
        array = array.base
    return isinstance(array, np.memmap)


def test_arrays_stay_in_their_files(folder: Path) -> None:
    mapped, read = load(folder), load(folder, mmap=False)
    assert is_mapped(mapped.items.mean)
    assert is_mapped(mapped.items[5:9].mean)
    assert not is_mapped(read.items.mean)


def test_what_is_mapped_takes_no_memory_of_its_own(tmp_path: Path, root: Path) -> None:
    """Two new processes load and ask, one of them from mapped files; neither imports torch."""
    if not Path("/proc/self/status").exists():
        pytest.skip("/proc is missing")
    items, _ = clusters(40_000, 128)
    save(Index(items), tmp_path / "index")
    code = """
import sys
from laplacian_metric.retrieval.storage import load
index = load(sys.argv[1], mmap=sys.argv[2] == "mapped")
index.query_ids([5], 3)
assert "torch" not in sys.modules
with open("/proc/self/status") as status:
    print(dict(line.split(":", 1) for line in status)["RssAnon"].split()[0])
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    taken = {}
    for way in ("mapped", "read"):
        run = [sys.executable, "-c", code, str(tmp_path / "index"), way]
        done = subprocess.run(run, cwd=root, env=environment, check=True, capture_output=True, text=True)
        taken[way] = int(done.stdout) * 1024
    assert taken["read"] - taken["mapped"] > 0.8 * items.mean.nbytes


def test_the_folder_holds_what_it_says(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert names == {"manifest.json", "mean.npy", "kappa.npy", "uncertainty.npy", "ids.npy", "variance.npy"}
    manifest = artifact.read_manifest(folder, IndexManifest)
    assert (manifest.count, manifest.dim, manifest.variance) == (10, 4, True)
    for name, entry in manifest.files.items():
        content = (folder / name).read_bytes()
        assert len(content) == entry.bytes
        done = subprocess.run(["sha256sum", folder / name], capture_output=True, text=True, check=True)
        assert done.stdout.split()[0] == entry.sha256
        np.load(folder / name, allow_pickle=False)
    assert [path.name for path in folder.parent.iterdir()] == ["index"]


def test_calibrations_are_stored_whatever_they_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All four go through their own to_dict and from_dict."""

    class Stored:
        dim = 4

        def __init__(self, values: dict[str, Any]) -> None:
            self.values = values

        def to_dict(self) -> dict[str, Any]:
            return self.values

    index = load(folder)
    names = calibrations_module.NAMES
    index.calibrations = Calibrations(**{name: Stored({"is": name, "inf": None}) for name in names})
    save(index, folder, overwrite=True)
    monkeypatch.setattr(calibrations_module, "_read", lambda name, stored: (name, stored))
    again = load(folder).calibrations
    assert [getattr(again, name) for name in names] == [(name, {"is": name, "inf": None}) for name in names]
    index.calibrations = Calibrations(matching=Stored({"is": float("nan")}))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="JSON"):
        save(index, folder, overwrite=True)
    assert load(folder).calibrations.has("drift")


# --- whole or not there ---


def test_a_folder_is_not_written_over(folder: Path) -> None:
    index = load(folder)
    before = (folder / "manifest.json").read_bytes()
    with pytest.raises(FileExistsError, match="overwrite=True"):
        save(index, folder)
    assert (folder / "manifest.json").read_bytes() == before
    save(index.without(rows=[0]), folder, overwrite=True)
    assert len(load(folder)) == 9
    # The old index is mapped from files that are gone, and still there.
    assert index.query(index.items[:1], 1).rows.tolist() == [[0]]
    assert [path.name for path in folder.parent.iterdir()] == ["index"]


@pytest.mark.parametrize("content", ["something", "manifest"])
def test_another_folder_is_left_alone(tmp_path: Path, content: str) -> None:
    other = tmp_path / "photos"
    other.mkdir()
    if content == "something":
        (other / "holiday.jpg").write_bytes(b"x")
    else:
        (other / "manifest.json").write_text('{"name": "a browser\'s extension"}', encoding="utf-8")
    names = sorted(path.name for path in other.iterdir())
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match="photos is there already and holds no index"):
            save(Index(clusters(3)[0]), other, overwrite=overwrite)
    assert sorted(path.name for path in other.iterdir()) == names
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(FileExistsError, match="is a file"):
        save(Index(clusters(3)[0]), tmp_path / "file", overwrite=True)


def test_a_search_structure_that_cannot_be_written_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(Index(clusters(40)[0], kind="hnsw"), tmp_path / "index")

    class Full:
        @staticmethod
        def write_index(built: Any, path: str) -> None:
            raise RuntimeError("Error in fclose: No space left on device")

    monkeypatch.setattr(storage, "faiss", Full)
    with pytest.raises(ArtifactWriteError, match="No space left"):
        save(Index(clusters(50)[0], kind="hnsw"), tmp_path / "index", overwrite=True)
    monkeypatch.undo()
    assert len(load(tmp_path / "index")) == 40
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


# --- what is refused ---


def flip(path: Path, place: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


@pytest.mark.parametrize(
    "name", ["mean.npy", "kappa.npy", "uncertainty.npy", "ids.npy", "variance.npy", "index.faiss"]
)
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip, "was altered after it was written"),
        (lambda path: flip(path, 0), "was altered after it was written"),
        (cut, "bytes, .* were written"),
        (grow, "bytes, .* were written"),
        (Path.unlink, "lacks"),
    ],
)
def test_damage_is_found_before_anything_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, damage: Callable[[Path], None], message: str
) -> None:
    save(Index(clusters(40, 4, variance=True)[0], kind=IVF(nlist=2)), tmp_path / "index")
    damage(tmp_path / "index" / name)

    def parse(*_: Any, **__: Any) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr(np, "load", parse)
    monkeypatch.setattr(storage, "faiss", parse)
    for mmap in (True, False):
        with pytest.raises(DamagedIndexError, match=message) as caught:
            load(tmp_path / "index", mmap=mmap)
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"count": 11}, "not the array"),
        ({"variance": False}, r"variance.npy, .* are needed"),
        ({"source": ""}, "source"),
        ({"kind": {}}, "index.faiss"),
        ({"kind": {"name": "flat", "more": 1}}, "the kind or the calibrations"),
        ({"kind": {"name": "other"}}, "index.faiss"),
        ({"kind": None}, "kind"),
        ({"calibrations": {}}, "the kind or the calibrations"),
        ({"calibrations": []}, "calibrations"),
        ({"calibrations": {**{name: {} for name in calibrations_module.NAMES}, "withdrawn": []}}, "the calibrations"),
        ({"calibrations": {**dict.fromkeys(calibrations_module.NAMES, 1), "withdrawn": []}}, "the calibrations"),
        ({"more": 1}, "more"),
    ],
)  # fmt: skip
def test_manifests_of_something_else_are_refused(folder: Path, changes: dict[str, Any], named: str) -> None:
    rewrite(folder / "manifest.json", **changes)
    with pytest.raises(DamagedIndexError, match=named):
        load(folder)


def test_arrays_of_something_else_are_refused(folder: Path) -> None:
    """Right digests do not make a wrong array right."""
    for name, array in (
        ("mean.npy", np.eye(10, 4)),
        ("mean.npy", np.asfortranarray(np.eye(10, 4, dtype=np.float32))),
        ("kappa.npy", np.ones((10, 1), dtype=np.float32)),
        ("ids.npy", np.ones(10)),
        ("ids.npy", np.array([{}] * 10)),
    ):
        other = folder.with_name("other")
        shutil.copytree(folder, other)
        np.save(other / name, array, allow_pickle=True)
        redigest(other / "manifest.json", name)
        for mmap in (True, False):
            with pytest.raises(DamagedIndexError, match=f"{name} in .* (is not the array|holds objects)"):
                load(other, mmap=mmap)
        shutil.rmtree(other)


def test_a_newer_format_is_refused(folder: Path) -> None:
    rewrite(folder / "manifest.json", version=2)
    with pytest.raises(ArtifactError, match=r"format 2, .* update"):
        load(folder)


FUZZ = """
import sys
import numpy as np
from pathlib import Path
from laplacian_metric.retrieval.storage import DamagedIndexError, load
from tests.manifests import redigest
from tests.retrieval.clusters import clusters
folder, number = Path(sys.argv[1]), int(sys.argv[2])
whole, generator = (folder / "index.faiss").read_bytes(), np.random.default_rng(0)
refused = 0
for _ in range(number):
    content = bytearray(whole)
    start = generator.integers(0, 200 if generator.random() < 0.7 else len(whole) - 8)
    content[start : start + 8] = generator.bytes(8)
    (folder / "index.faiss").write_bytes(content)
    redigest(folder / "manifest.json", "index.faiss")
    try:
        load(folder)
    except DamagedIndexError:
        refused += 1
print(refused)
"""


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_a_search_structure_with_other_bytes_is_refused_or_read(
    tmp_path: Path, root: Path, kind: str, long_form: bool
) -> None:
    """With digests made right; lengths that the file does not have are refused before anything is allocated."""
    save(Index(clusters(100, 8)[0], kind=kind), tmp_path / "index")
    run = [sys.executable, "-c", FUZZ, str(tmp_path / "index"), "1000" if long_form else "60"]
    done = subprocess.run(run, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10


def test_reading_a_search_structure_tells_its_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(Index(clusters(40)[0], kind="hnsw"), tmp_path / "index")
    with caplog.at_level(logging.INFO, "laplacian_metric.retrieval"):
        load(tmp_path / "index")
    assert "reading the hnsw index of index: it takes" in caplog.text


def test_promises_are_kept_by_a_stored_index(tmp_path: Path) -> None:
    """All four calibrations for real: made on some queries, stored, and the same answers to others afterwards."""
    items, item_labels = clusters(400, 8, spread=0.15)
    queries, labels = clusters(600, 8, seed=1, spread=0.15)
    index = Index(items)
    wrong = item_labels[index.query(queries, 1).rows[:, 0]] != labels
    angle = index.angle_to_right(queries, labels, item_labels)
    threshold = choose_threshold(
        queries.uncertainty, wrong, alpha=0.2, generator=np.random.default_rng(0)
    )  # fmt: skip
    index.calibrations = Calibrations(
        threshold=threshold,
        credible=CredibleCaps.calibrate(angle, queries.kappa, 8, level=0.9),
        matching=MATCHING,
        drift=DriftMonitor(queries.kappa),
    )
    save(index, tmp_path / "index")
    again = load(tmp_path / "index")
    assert (again.threshold, again.credible, again.matching) == (index.threshold, index.credible, MATCHING)
    assert again.drift is not None
    assert index.drift is not None
    assert again.drift.to_dict() == index.drift.to_dict()
    others, own = clusters(300, 8, seed=2, spread=0.15)
    one, other = (each.query(others, 3, abstain=True) for each in (index, again))
    np.testing.assert_array_equal(one.ids, other.ids)
    np.testing.assert_array_equal(one.answered, other.answered)
    np.testing.assert_array_equal(one.answered, threshold.answers(others.uncertainty))
    sets = again.credible_sets(others)
    np.testing.assert_array_equal(sets.rows, index.credible_sets(others).rows)
    covered = [
        label in item_labels[sets.rows[slice(*sets.offsets[q : q + 2])]] for q, label in enumerate(own)
    ]
    angle = again.angle_to_right(others, own, item_labels)
    inside = again.credible.contains(angle, others.kappa)  # type: ignore[union-attr]
    # A coverage of 0.9 but for the chance of 600 and 300 draws, and the nearest item beside it.
    assert 0.84 < inside.mean() < 0.96
    assert (np.array(covered) >= inside).all()
    alone = sets.sizes == 1
    assert (np.array(covered)[~alone] == inside[~alone]).all()


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_lists_and_links_that_lead_to_no_item_are_refused(kind: str, tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    mean = np.tile(np.eye(4, dtype=np.float32), (50, 1)) + np.linspace(0, 0.1, 800, dtype=np.float32).reshape(
        200, 4
    )
    mean /= np.linalg.norm(mean, axis=1, keepdims=True)
    index = Index(Items(mean, np.ones(200), np.ones(200), None, source="a4f0"), kind=kind)
    if kind == "ivf":
        size = index.built.invlists.list_size(0)
        rows = faiss.rev_swig_ptr(index.built.invlists.get_ids(0), size)
    else:
        rows = faiss.rev_swig_ptr(index.built.hnsw.neighbors.data(), index.built.hnsw.neighbors.size())
    rows[0] = 10**6  # in FAISS' own memory
    save(index, tmp_path / "index")
    with pytest.raises(DamagedIndexError, match=r"does not lead to each item once|out of range"):
        load(tmp_path / "index")
