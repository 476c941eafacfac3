"""Cells from YAML: what is taken over, what is refused, and what is said about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.harness import ConfigError
from tests.experiments.harness.miniature import BASE, LAPLACE, Folder, folder_with


def with_(section: str, **values: Any) -> dict[str, Any]:
    return {**BASE, section: {**BASE[section], **values}}


def without(*keys: str) -> dict[str, Any]:
    return {key: value for key, value in BASE.items() if key not in keys}


# What is wrong, and what the message has to name beside the file.
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "key": ({**BASE, "trainig": {}}, "training"),
    "training key": (with_("training", learnin_rate=1), "learning_rate"),
    "data key": (with_("data", imagesize=28), "image_size"),
    "loss key": ({**BASE, "loss": {"margins": 1}}, "margin"),
    "splits key": (with_("data", splits={"tst": "test"}), "data.splits"),
    "out key": (with_("data", out=[{"nam": "mnist"}]), "data.out[0]"),
    "method option": ({**LAPLACE, "method": {"name": "laplace", "structur": "diag"}}, "structure"),
    "type": (with_("training", epochs="many"), "training.epochs"),
    "fraction": (with_("training", epochs=1.5), "training.epochs"),
    "word": (with_("training", optimizer="sdg"), "training.optimizer"),
    "value": (with_("training", learning_rate=-1), "learning_rate"),
    "loss value": ({**BASE, "loss": {"margin": -1}}, "margin"),
    "method value": ({**LAPLACE, "method": {"name": "laplace", "rank": 0}}, "rank"),
    "method type": ({**LAPLACE, "method": {"name": "laplace", "rank": "few"}}, "method.rank"),
    "method word": ({**LAPLACE, "method": {"name": "laplace", "structure": "round"}}, "structure"),
    "data set": (with_("data", train="fashion-mnst"), "'fashion-mnist'"),
    "out set": (with_("data", out=["mnst"]), "data.out[0].name"),
    "out twice": (with_("data", out=["mnist", "mnist"]), "out"),
    "network": (with_("network", name="fashon-mnist"), "'fashion-mnist'"),
    "method": ({**BASE, "method": "determinstic"}, "method.name"),
    "no method": (without("method"), "method"),
    "no data": (without("data"), "data"),
    "section": ({**BASE, "training": 3}, "training is 3"),
    "test trains": (with_("data", splits={"train": "test"}), "train"),
    "test chooses": (with_("data", splits={"validation": "all"}), "validation"),
    "weights": (with_("network", weights="/net.safetensors"), "weights"),
    "seeds": ({**BASE, "seeds": [1, 1]}, "seeds"),
    "ks": (with_("evaluation", ks=[]), "evaluation.ks"),
    "no base": ({**BASE, "method": "laplace"}, "base"),
    "needless base": ({"base": "mini/deterministic", "method": "hib"}, "inherit"),
    "unknown base": ({"base": "mini/determinstic", "method": "pfe"}, "'mini/determinstic'"),
    "other network": ({**LAPLACE, "network": {"dim": 4}}, "network.dim was 3 and is now 4"),
    "other images": ({**LAPLACE, "data": {"limit": 50}}, "data.limit was 60 and is now 50"),
    "itself": ({"inherit": "mini/wrong"}, "mini/wrong -> mini/wrong"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named_with_its_file(case: str, tmp_path: Path) -> None:
    content, expected = WRONG[case]
    folder = folder_with(tmp_path)
    path = folder.write("mini/wrong", {**content, "name": "mini/wrong"})
    with pytest.raises(ConfigError) as caught:
        folder.read()["mini/wrong"]
    assert expected in str(caught.value)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: mini/wrong\nname: mini/wrong\n", "'name' is there twice"),
        ("name: [", "cannot be read"),
        ("", "holds no mapping"),
        ("name: mini/other\nmethod: hib\n", "name is 'mini/other', but the file's place says 'mini/wrong'"),
        ("name: mini/wrong\nmethod: !!python/name:os.system\n", "cannot be read"),
    ],
)
def test_files_that_are_no_cells(text: str, expected: str, tmp_path: Path) -> None:
    folder = folder_with(tmp_path)
    (folder.cells / "mini" / "wrong.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=expected.replace("[", r"\[")):
        folder.read()["mini/wrong"]


def test_numbers_with_an_exponent_are_numbers(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("a", without("name"))
    path = folder.cells / "a.yaml"
    path.write_text(path.read_text().replace("weight_decay: 1.0e-05", "weight_decay: 1e-5"), encoding="utf-8")
    assert folder.read()["a"].training.weight_decay == 1e-5


def test_inheriting_takes_over_everything_but_the_name(tmp_path: Path) -> None:
    folder = folder_with(
        tmp_path,
        laplace={**LAPLACE, "title": "Laplace", "evaluation": {"samples": 9}},
        kron={"inherit": "mini/laplace", "method": {"structure": "kron"}},
        pfe={"inherit": "mini/laplace", "method": {"name": "pfe"}},
    )
    cells = folder.read()
    kron = cells.config("mini/kron")
    assert kron["base"] == "mini/deterministic"
    assert (kron["method"]["structure"], kron["method"]["prior"]) == ("kron", 1.0)
    assert kron["evaluation"]["samples"] == 9
    # Another method starts from its own defaults.
    assert "prior" not in cells.config("mini/pfe")["method"]
    assert cells.config("mini/pfe")["base_config"]["method"] == {"name": "deterministic"}


def test_members_of_ensembles_share_the_first_networks(tmp_path: Path) -> None:
    folder = folder_with(
        tmp_path, ensemble={"base": "mini/deterministic", "method": "ensemble", "members": 5}
    )
    cell = folder.read()["mini/ensemble"]
    assert [cell.base_seeds(seed) for seed in (0, 1, 2)] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9],
        [10, 11, 12, 13, 14],
    ]
