"""What is said about scores, beside the metrics and other libraries."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve
from torch import nn

from laplacian_metric import metrics
from laplacian_metric.data.labelled import LabelledInputs
from laplacian_metric.encoder import Encoder
from laplacian_metric.metrics.calibration import ranking_ece
from laplacian_metric.runs import provenance
from laplacian_metric.runs.results import failure, finite, is_disk_full
from laplacian_metric.runs.scores import curves, judged, roc, trivial_scores


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_a_score_is_judged_as_the_metrics_do() -> None:
    z, labels = nn.functional.normalize(drawn(60, 3)), torch.arange(60) % 6
    ranking = metrics.rank(z, labels, k=5, at_r=True)
    held = metrics.rank(nn.functional.normalize(drawn(30, 3, seed=1)), labels[:30], k=5)
    values = {
        "test": drawn(60, seed=2),
        "validation": drawn(30, seed=3),
        "corrupted": drawn(12, seed=4) + 1,
        "cropped": drawn(60, seed=5),
        "out/strangers": drawn(20, seed=6) + 2,
    }
    entropy = drawn(60, seed=7).abs()
    found = judged(values, ranking, held, entropy)
    whole = metrics.evaluate_ranking(
        ranking,
        values["test"],
        ood_uncertainty=values["out/strangers"],
        crop_uncertainty=values["cropped"],
        label_entropy=entropy,
        resamples=0,
    )
    for name in ("r_auroc", "ausc", "ausc_oracle", "ausc_random", "crop_test", "rank_correlation"):
        assert found[name] == pytest.approx(whole[name], rel=1e-12), name
    assert found["out"]["strangers"] == {
        "auroc": pytest.approx(whole["ood_auroc"]),
        "average_precision": pytest.approx(whole["ood_average_precision"]),
    }
    assert found["validation_r_auroc"] == metrics.evaluate_ranking(held, values["validation"])["r_auroc"]
    assert found["corrupted_auroc"] == metrics.ood_auroc(values["validation"], values["corrupted"])
    for k in (1, 5, 10):
        assert found[f"ece_at_{k}"] == (ranking_ece(ranking, values["test"], k) if ranking.k >= k else None)
    less = judged({key: values[key] for key in ("test", "validation")}, ranking, held)
    assert (less["corrupted_auroc"], less["crop_test"], less["rank_correlation"], less["out"]) == (
        None,
        None,
        None,
        {},
    )
    drawn_curves = curves(values, ranking)
    assert sum(drawn_curves["sparsification"]["own"]) / 100 == pytest.approx(whole["ausc"], abs=5e-3)
    assert list(drawn_curves["roc"]) == ["strangers"]


def test_the_curve_is_that_of_scikit_learn() -> None:
    inside, outside = (drawn(40) * 4).round(), (drawn(30, seed=1) * 4 + 2).round()
    found = roc(inside, outside)
    truth = torch.cat([torch.zeros(40), torch.ones(30)]).numpy()
    false, true, _ = roc_curve(truth, torch.cat([inside, outside]).numpy(), drop_intermediate=False)
    assert found["false_positive_rate"] == pytest.approx(false.tolist())
    assert found["true_positive_rate"] == pytest.approx(true.tolist())


def test_a_long_curve_keeps_its_shape_in_few_points() -> None:
    inside, outside = drawn(5000), drawn(3000, seed=1) + 1
    found = roc(inside, outside)
    false, true = (torch.tensor(found[key]) for key in ("false_positive_rate", "true_positive_rate"))
    assert len(false) <= 201
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)
    truth = torch.cat([torch.zeros(5000), torch.ones(3000)])
    area = roc_auc_score(truth.numpy(), torch.cat([inside, outside]).numpy())
    assert float(torch.trapezoid(true, false)) == pytest.approx(area, abs=1e-3)


def test_trivial_scores_go_by_batches_and_by_every_fifth_training_image() -> None:
    encoder = Encoder(nn.Sequential(nn.Linear(6, 5), nn.ReLU()), nn.Linear(5, 3))
    train, test = drawn(23, 6), drawn(11, 6, seed=1)
    sets = {"test": LabelledInputs(test, torch.arange(11), batch_size=4)}
    found = trivial_scores(encoder, sets, LabelledInputs(train, torch.arange(23), batch_size=4))
    with torch.no_grad():
        h, u = encoder.features(test), encoder.raw(test)
        reference = encoder(train[::5])
    assert torch.allclose(found["feature norm"]["test"], h.norm(dim=1))
    assert torch.allclose(found["embedding norm"]["test"], 1 / u.norm(dim=1))
    expected = torch.cdist(nn.functional.normalize(u), reference).amin(1)
    assert torch.allclose(found["nearest distance"]["test"].float(), expected, atol=1e-5)


# --- result files ---


def test_what_json_has_no_word_for_is_null() -> None:
    assert finite({"a": (1, float("inf")), 2: {"b": float("-inf")}}) == {"a": [1, None], "2": {"b": None}}


def test_failures_name_places_of_the_sources_and_no_folder() -> None:
    with pytest.raises(ValueError, match="labels has") as caught:
        LabelledInputs(torch.zeros(3, 2), torch.zeros(2, dtype=torch.long))
    said = failure(caught.value)
    assert said.startswith("ValueError: labels has 2 entries for 3 inputs (tests/runs/test_scores.py:")
    assert "laplacian_metric/data/labelled.py:" in said
    assert str(provenance.ROOT) not in said
    with pytest.raises(OSError, match=r"x\.bin") as missing:
        Path("/nowhere/at/all/x.bin").read_bytes()
    assert "/nowhere" not in failure(missing.value)
    assert "x.bin" in failure(missing.value)
    assert not is_disk_full(missing.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/opt/a/b.txt is gone", "b.txt is gone"),
        ("see figures/results/x.json", "see figures/results/x.json"),
        ("at /a/b/c: no", "at c: no"),
        ("ratio 1/2/3 of https://a.org/b/c", "ratio 1/2/3 of https://a.org/b/c"),
        (r"in C:\Users\me\net.pt", "in net.pt"),
        ("~/data/set is missing", "set is missing"),
    ],
)
def test_of_absolute_paths_the_last_part_is_left(text: str, expected: str) -> None:
    assert provenance.without_paths(text) == expected


def test_the_command_is_written_without_folders_of_the_machine() -> None:
    program = str(provenance.ROOT / "experiments" / "run.py")
    given = [program, "--cells", "fashion_mnist/*", "--data", "/somewhere/data", "--work", "../work"]
    expected = "python -m experiments.run --cells fashion_mnist/* --data data --work work"
    assert provenance.command(given) == expected
    assert provenance.command(["/usr/bin/pytest", "-q"]) == "pytest -q"


def test_outside_of_a_repository_the_commit_is_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    assert provenance.commit() == "unknown"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.commit() == "unknown"
