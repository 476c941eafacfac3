"""Folders with a posterior: what is written, what is refused, and what would be uploaded."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from hessians import ContrastiveLoss
from hessians.pair_loss import PairLoss
from laplacian_metric import LAM, Encoder, Trust, metrics
from laplacian_metric.core.artifact import ArtifactError
from laplacian_metric.integrations import hub
from laplacian_metric.integrations.hub import check_folder, load_folder, load_trust, push, save_folder
from laplacian_metric.laplace.encoder_posterior import EncoderChangedError
from laplacian_metric.laplace.posthoc import NotFittedError
from tests.manifests import content, rewrite, version


def fitted(loss: PairLoss | None = None, **options: Any) -> LAM:
    torch.manual_seed(0)
    encoder = Encoder(nn.Identity(), nn.Linear(4, 3))
    labels = torch.arange(40) % 4
    features = torch.eye(4)[labels] + 0.1 * torch.randn(40, 4)
    return LAM(encoder, loss or ContrastiveLoss(), **options).fit_features(features, labels, check_mode=False)


@pytest.mark.parametrize("structure", ["diag", "kron", "full", "lowrank"])
def test_what_is_loaded_is_what_was_saved(structure: str, tmp_path: Path) -> None:
    lam = fitted(structure=structure, temperature=2.0, rank=3)
    lam.optimize_prior_precision()
    folder = save_folder(lam, tmp_path / "a" / "posterior", encoder_reference="owner/model")
    again = load_folder(folder, lam.encoder)
    assert again.fingerprint() == lam.fingerprint() == check_folder(folder)["fingerprint"]
    x = torch.randn(5, 4)
    torch.testing.assert_close(again.embed(x).kappa, lam.embed(x).kappa, rtol=0, atol=0)


def test_the_configuration_and_the_card(tmp_path: Path) -> None:
    lam = fitted(prior_precision=2.5)
    numbers = {"recall@1": 0.91234, "R-AUROC": float("nan"), "a|b\nc": None}
    about = {"encoder_reference": "owner/model", "licence": "cc-by-4.0", "title": "A posterior"}
    folder = save_folder(lam, tmp_path / "mine", metrics=numbers, **about)
    config = content(folder)
    assert config["metrics"] == {"recall@1": 0.91234, "R-AUROC": None, "a|b\nc": None}
    assert config["encoder"]["fingerprint"] == lam.encoder.fingerprint()
    text = (folder / "README.md").read_text(encoding="utf-8")
    card = yaml.safe_load(text.split("---\n")[1])
    assert (card["library_name"], card["license"], card["base_model"]) == (
        "laplacian_metric", "cc-by-4.0", "owner/model",
    )  # fmt: skip
    assert "| a\\|b c |" in text


@pytest.mark.parametrize("with_trust", [False, True])
def test_the_card_s_code_loads_what_is_there(tmp_path: Path, with_trust: bool) -> None:
    lam = fitted()
    trust = calibrated(lam) if with_trust else None
    reference = "our own ``` network\n# not a heading"
    folder = save_folder(lam, tmp_path / "mine", trust=trust, encoder_reference=reference)
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "\n# not a heading" not in text
    names: dict[str, Any] = {"encoder": lam.encoder, "folder": folder, "inputs": rows(5, 3)[0]}
    for part in text.split("```python\n")[1:]:
        code = part.split("```")[0].replace("encoder = ...", "pass")
        exec(compile(code, "README.md", "exec"), names)
    assert names["embedding"].kappa.shape == (5,)
    if trust is not None:
        np.testing.assert_array_equal(names["answer"].probability, trust(rows(5, 3)[0]).probability)
        assert f"{trust.calibration_error.value:.3f}" in text


def test_defaults_come_from_what_is_known(tmp_path: Path) -> None:
    lam = LAM(Encoder.from_name("fashion-mnist", seed=0), ContrastiveLoss())
    lam.fit([(torch.randn(8, 1, 28, 28), torch.arange(8) % 2)], check_mode=False)
    z = torch.nn.functional.normalize(torch.randn(20, 3), dim=1)
    evaluation = metrics.evaluate(z, torch.arange(20) % 3, torch.rand(20), resamples=0)
    config = check_folder(save_folder(lam, tmp_path / "from-name", metrics=evaluation))
    assert config["encoder_reference"] == 'Encoder.from_name("fashion-mnist")'
    assert config["metrics"]["recall@1"] == evaluation.values["recall@1"]


class Scaled(ContrastiveLoss):
    """A loss that is not the library's."""


def rows(number: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(number) % 4
    noise = torch.randn(number, 4, generator=torch.Generator().manual_seed(seed))
    return torch.eye(4)[labels] + 0.4 * noise, labels


def calibrated(lam: LAM, seed: int = 0) -> Trust:
    return Trust.fit(rows(120, seed), rows(100, seed + 1), encoder=lam.encoder)


def test_a_trust_is_stored_beside_the_posterior(tmp_path: Path) -> None:
    lam = fitted()
    trust = calibrated(lam)
    folder = save_folder(lam, tmp_path / "mine", trust=trust)
    assert load_folder(folder, lam.encoder).fingerprint() == lam.fingerprint()
    h = rows(50, 2)[0]
    expected, answers = trust(h), [load_trust(folder)(h), Trust.load(version(folder) / "trust")(h)]
    for answer in answers:
        np.testing.assert_array_equal(answer.probability, expected.probability)
        np.testing.assert_array_equal(answer.labels, expected.labels)


def test_a_posterior_is_replaced_with_its_trust_and_only_if_that_is_asked_for(tmp_path: Path) -> None:
    lam = fitted()
    first, second = calibrated(lam), calibrated(lam, 5)
    folder = save_folder(lam, tmp_path / "mine", trust=first)
    (folder / "notes.txt").write_text("kept", encoding="utf-8")
    for options in ({"trust": second}, {"overwrite": True}):
        with pytest.raises(FileExistsError, match=r"overwrite|trust"):
            save_folder(lam, folder, **options)
    assert load_trust(folder).calibration_error == first.calibration_error
    other = fitted(temperature=3.0)
    save_folder(other, folder, trust=second, overwrite=True)
    save_folder(other, folder, trust=load_trust(folder), overwrite=True)
    assert load_trust(folder).calibration_error == second.calibration_error
    assert load_folder(folder, other.encoder).temperature == 3.0
    assert (folder / "notes.txt").read_text(encoding="utf-8") == "kept"


def test_a_loss_that_is_not_the_library_s_is_passed(tmp_path: Path) -> None:
    lam = fitted(Scaled(margin=0.5))
    folder = save_folder(lam, tmp_path / "mine")
    assert "load_folder(folder, encoder, loss)" in (folder / "README.md").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="Scaled"):
        load_folder(folder, lam.encoder)
    assert load_folder(folder, lam.encoder, Scaled(margin=0.5)).fingerprint() == lam.fingerprint()


def test_a_card_of_something_else_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Mine", encoding="utf-8")
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match="README"):
            save_folder(fitted(), tmp_path, overwrite=overwrite)
    assert files(tmp_path) == {tmp_path / "README.md": b"# Mine"}


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def changed() -> LAM:
    lam = fitted(temperature=3.0)
    with torch.no_grad():
        lam.encoder.head.weight.add_(1)
    return lam


OTHER = Encoder(nn.Identity(), nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (
            lambda lam, at: save_folder(lam, at / "b", trust=calibrated(LAM(OTHER, lam.loss))),
            ValueError,
            "head",
        ),
        (lambda lam, at: save_folder(changed(), at, overwrite=True), EncoderChangedError, "encoder"),
        (lambda lam, at: save_folder(LAM(lam.encoder, lam.loss), at / "b"), NotFittedError, "fit"),
        (
            lambda lam, at: save_folder(lam, at, metrics={"recall": "high"}, overwrite=True),
            TypeError,
            "metrics",
        ),
        (lambda lam, at: save_folder(lam, at / "README.md"), FileExistsError, "README"),
        (lambda lam, at: load_trust(at), FileNotFoundError, "trust"),
        (lambda lam, at: load_folder(at / "nothing", lam.encoder), FileNotFoundError, "nothing"),
        (lambda lam, at: load_folder(at, OTHER), ValueError, "encoder"),
    ],
)
def test_bad_inputs_leave_what_was_there(
    call: Any, error: type[Exception], named: str, tmp_path: Path
) -> None:
    lam = fitted()
    folder = save_folder(lam, tmp_path / "mine")
    before = files(tmp_path)
    with pytest.raises(error, match=named):
        call(lam, folder)
    assert files(tmp_path) == before


def test_folders_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    lam = fitted()
    folder = save_folder(lam, tmp_path / "mine")
    before = content(folder)
    for changes in (
        {"files": {}},
        {"metrics": {"recall@1": "high"}},
        {"fingerprint": None},
        {"loss": ...},
        {"more": 1},
    ):
        rewrite(folder, **changes)
        with pytest.raises(ArtifactError):
            load_folder(folder, lam.encoder)
        rewrite(folder, **{**dict.fromkeys(changes, ...), **before})
    assert load_folder(folder, lam.encoder).fingerprint() == lam.fingerprint()


class Recorder:
    """Stands in for HfApi, and keeps the calls."""

    calls: list[tuple[str, dict[str, Any]]]

    def __init__(self, token: str | None = None) -> None:
        self.calls.append(("HfApi", {"token": token}))

    def create_repo(self, repo_id: str, **options: Any) -> None:
        self.calls.append(("create_repo", {"repo_id": repo_id, **options}))

    def upload_folder(self, **options: Any) -> Any:
        self.calls.append(("upload_folder", options))
        return SimpleNamespace(commit_url=f"commit of {options['repo_id']}")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    Recorder.calls = []
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(HfApi=Recorder))
    return Recorder.calls


def test_the_current_version_and_the_card_are_uploaded(
    tmp_path: Path, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    folder = save_folder(fitted(), tmp_path / "mine")
    assert push(folder, "owner/mine", "a token", private=True, message="First") == "commit of owner/mine"
    (_, repository), (_, created), (_, uploaded) = calls
    assert [name for name, _ in calls] == ["HfApi", "create_repo", "upload_folder"]
    assert repository == {"token": "a token"}
    assert created == {"repo_id": "owner/mine", "repo_type": "model", "private": True, "exist_ok": True}
    assert uploaded == {
        "repo_id": "owner/mine",
        "folder_path": str(folder),
        "repo_type": "model",
        "commit_message": "First",
        "allow_patterns": ["README.md", "CURRENT", f"{version(folder).name}/*"],
        "delete_patterns": [hub.VERSIONS],
    }


def test_nothing_is_uploaded_of_a_folder_that_is_not_whole(
    tmp_path: Path, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    folder = save_folder(fitted(), tmp_path / "mine")
    card = (folder / "README.md").read_bytes()
    (folder / "README.md").unlink()
    with pytest.raises(FileNotFoundError, match="README"):
        push(folder, "owner/mine")
    (folder / "README.md").write_bytes(card)
    payload = version(folder) / hub.POSTERIOR
    for path in (payload, *payload.rglob("*.safetensors")):
        if path.is_file():
            path.write_bytes(b"")
    with pytest.raises(ArtifactError, match="posterior"):
        push(folder, "owner/mine")
    assert calls == []


def test_the_calls_are_those_that_the_library_takes(tmp_path: Path) -> None:
    library = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    created = inspect.signature(library.HfApi.create_repo)
    created.bind(None, "owner/mine", repo_type="model", private=None, exist_ok=True)
    inspect.signature(library.HfApi.upload_folder).bind(
        None,
        repo_id="",
        folder_path="",
        repo_type="model",
        commit_message="",
        allow_patterns=[],
        delete_patterns=[],
    )
    inspect.signature(library.HfApi).bind(token=None)
    lam = fitted()
    folder = save_folder(lam, tmp_path / "mine", trust=calibrated(lam))
    name = version(folder).name
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    others = [".lock", "notes.txt", "more/README.md"]
    patterns = ["README.md", "CURRENT", f"{name}/*"]
    uploaded = set(library.utils.filter_repo_objects([*files, *others], allow_patterns=patterns))
    assert {file for file in files if not file.startswith(".")} <= uploaded
    assert not uploaded & set(others)
    old = [f"{'0a' * 8}/manifest.json", f"{'0a' * 8}/trust/CURRENT", "README.md", "notes.txt"]
    assert list(library.utils.filter_repo_objects(old, allow_patterns=[hub.VERSIONS])) == old[:2]


def test_without_the_library_only_pushing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    folder = save_folder(fitted(), tmp_path / "mine")
    with pytest.raises(ImportError, match=r"laplacian-metric\[hub\]"):
        push(folder, "owner/mine")
