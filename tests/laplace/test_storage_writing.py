"""Saving a LAM: whole or not at all."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from laplacian_metric.laplace.posthoc import LAM, NotFittedError
from laplacian_metric.laplace.storage import describe
from tests.laplace.stored_lam import EUCLIDEAN, a_lam, an_encoder


def test_without_a_fit_there_is_nothing_to_save(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError, match="call fit"):
        LAM(an_encoder(), EUCLIDEAN).save(tmp_path / "lam")
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_are_none_are_not_saved(tmp_path: Path) -> None:
    lam = a_lam()
    fitted = lam.fitted
    assert fitted is not None
    lam.fitted = replace(fitted, gradient=fitted.gradient * float("nan"))
    with pytest.raises(ValueError, match="gradient has 27 NaN or infinite entries: fit again"):
        lam.save(tmp_path / "lam")
    lam.fitted = fitted
    fitted.curvature.tensors()["diagonal"][0, 0] = float("inf")
    with pytest.raises(ValueError, match=r"curvature\.diagonal has 1 NaN or infinite entries: fit again"):
        lam.save(tmp_path / "lam")
    lam = a_lam()
    lam.fitted = replace(
        fitted, curvature=lam.posterior and a_lam().fitted.curvature, loss_value=float("inf")
    )  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"fit.loss_value is inf"):
        lam.save(tmp_path / "lam")
    assert list(tmp_path.iterdir()) == []


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("target", ["laplacian_metric.core.tensor_file.bytes_of", "os.fsync"])
def test_a_full_disk_leaves_the_old_file(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lam"
    a_lam().save(path)
    before = path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(target, full_disk)
        for name in ("lam", "new"):
            with pytest.raises(OSError, match="No space left"):
                a_lam(temperature=2.0).save(tmp_path / name)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    a_lam(temperature=2.0).save(path)
    assert describe(path)["settings"]["temperature"] == 2.0


def test_a_file_system_that_takes_no_more_leaves_the_old_file(root: Path, tmp_path: Path) -> None:
    """For real: the process may write no file beyond 600 bytes."""
    path = tmp_path / "lam"
    a_lam().save(path)
    before = path.read_bytes()
    assert len(before) > 1000
    code = (
        "import resource, sys\n"
        "from tests.laplace.stored_lam import a_lam\n"
        "lam = a_lam(temperature=2.0)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))\n"
        "try:\n    lam.save(sys.argv[1])\n"
        "except Exception as error:\n    sys.exit(f'refused: {type(error).__name__}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], cwd=root, capture_output=True, text=True, check=False
    )
    assert "refused: " in done.stderr
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 600


def test_without_safetensors_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lam = a_lam()
    lam.save(tmp_path / "lam")
    for name in ("safetensors", "safetensors.torch"):
        monkeypatch.setitem(sys.modules, name, None)
    for use in (describe, lambda path: LAM.load(path, lam.encoder)):
        with pytest.raises(ImportError, match="pip install safetensors"):
            use(tmp_path / "lam")
