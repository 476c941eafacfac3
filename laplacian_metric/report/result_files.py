"""Result files, `<results>/<cell>/seed<k>.json`: read and checked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from laplacian_metric.report.checked_json import CheckedFile, ResultFileError
from laplacian_metric.report.results import (
    Bin,
    Calibration,
    Cloud,
    Epoch,
    Extremes,
    Latent,
    Result,
    Roc,
    Score,
    Training,
)
from laplacian_metric.report.verification import read_verification

SCHEMA = 1


def read_results(folder: Path) -> list[Result]:
    """All result files below a folder, by cell and seed.

    Raises:
        ResultFileError: the folder has none, one cannot be read, or two are of the same cell and seed; the message
            names the file and says what to do.
    """
    if not folder.is_dir():
        raise ResultFileError(
            f"there is no folder {folder}: run the experiments first, or name another folder"
        )
    paths = sorted(folder.rglob("seed*.json"))
    if not paths:
        raise ResultFileError(f"{folder} holds no file <cell>/seed<k>.json: run the experiments first")
    results = [read_result(path) for path in paths]
    for path, result in zip(paths, results, strict=True):
        place = path.relative_to(folder).as_posix()
        if place != f"{result.cell}/seed{result.seed}.json":
            raise ResultFileError(
                f"{path} says that it is {result.cell}, seed {result.seed}, which belongs into "
                f"{result.cell}/seed{result.seed}.json: move it there or remove it"
            )
    return sorted(results, key=lambda result: (result.cell, result.seed))


def read_result(path: Path) -> Result:
    """One result file.

    Raises:
        ResultFileError: it is not whole, or not what such a file looks like.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        reason = f"{path} is not whole or no JSON ({error})"
        raise ResultFileError(f"{reason}: remove it and run its cell again") from error
    file = CheckedFile(path)
    top = file.mapping(content, "the file")
    schema = top.get("schema", SCHEMA)
    if schema != SCHEMA or isinstance(schema, bool):
        file.wrong(
            "schema", f"is {schema!r}, {SCHEMA} is known", "update this package, or run the cell again"
        )
    status = file.entry(top, "status")
    if status not in ("done", "failed"):
        file.wrong("status", f"is {status!r}, it must be 'done' or 'failed'")
    common: dict[str, Any] = {
        "cell": file.text(file.entry(top, "cell"), "cell"),
        "seed": file.whole(file.entry(top, "seed"), "seed"),
        "commit": file.text(top.get("commit") or "unknown", "commit"),
        "command": file.text(top.get("command") or "unknown", "command"),
        "config": file.mapping(top.get("config") or {}, "config"),
        "environment": file.mapping(top.get("environment") or {}, "environment"),
    }
    if status == "failed":
        return Result(**common, error=file.text(top.get("error") or "it does not say why", "error"))
    return Result(**common, **_numbers(file, top))


def _numbers(file: CheckedFile, top: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that a cell that is done has."""
    curves = file.mapping(file.entry(top, "curves") or {}, "curves")
    scores = file.mapping(file.entry(top, "scores"), "scores")
    extremes = file.mapping(top.get("extremes") or {}, "extremes")
    retrieval = file.mapping(file.entry(top, "retrieval"), "retrieval")
    if "test" not in retrieval:
        file.wrong("retrieval.test", "is missing")
    return {
        "seconds": file.numbers(top.get("seconds") or {}, "seconds"),
        "training": _training(file, file.entry(top, "training")),
        "retrieval": {
            name: file.numbers(values or {}, f"retrieval.{name}") for name, values in retrieval.items()
        },
        "scores": {name: _score(file, value, f"scores.{name}") for name, value in scores.items()},
        "calibration": _calibration(file, file.entry(top, "calibration")),
        "roc": {
            name: _roc(file, value, f"curves.roc.{name}")
            for name, value in file.mapping(curves.get("roc") or {}, "curves.roc").items()
        },
        "sparsification": {
            name: file.array(value, f"curves.sparsification.{name}", 1)
            for name, value in file.mapping(
                curves.get("sparsification") or {}, "curves.sparsification"
            ).items()
        },
        "extremes": {name: _extremes(file, value, f"extremes.{name}") for name, value in extremes.items()},
        "latent": _latent(file, file.entry(top, "latent")),
        "verification": read_verification(file, top.get("verification")),
    }


def _training(file: CheckedFile, value: object) -> Training | None:
    if value is None:
        return None
    training = file.mapping(value, "training")
    epochs = []
    for number, entry in enumerate(file.sequence(file.entry(training, "history", "training"), "history")):
        where = f"training.history[{number}]"
        row = file.mapping(entry, where)
        known = file.numbers({name: row[name] for name in row if name != "precision"}, where)
        precision = row.get("precision")
        epochs.append(
            Epoch(
                epoch=file.whole(file.entry(row, "epoch", where), f"{where}.epoch"),
                loss=known.get("loss", math.nan),
                validation={name: known[name] for name in known if name not in ("epoch", "loss", "seconds")},
                precision=None if precision is None else file.text(precision, f"{where}.precision"),
            )
        )
    best = training.get("best_epoch")
    return Training(tuple(epochs), None if best is None else file.whole(best, "training.best_epoch"))


def _score(file: CheckedFile, value: object, where: str) -> Score:
    entries = file.mapping(value, where)
    out = file.mapping(entries.get("out") or {}, f"{where}.out")
    plain = {name: entry for name, entry in entries.items() if name != "out"}
    return Score(
        file.numbers(plain, where),
        {name: file.numbers(entry, f"{where}.out.{name}") for name, entry in out.items()},
    )


def _calibration(file: CheckedFile, value: object) -> Calibration | None:
    if value is None:
        return None
    calibration = file.mapping(value, "calibration")
    bins = []
    for number, entry in enumerate(file.sequence(calibration.get("table") or [], "calibration.table")):
        where = f"calibration.table[{number}]"
        row = file.mapping(entry, where)
        low, high, confidence, accuracy = (
            file.number(file.entry(row, name, where), f"{where}.{name}")
            for name in ("low", "high", "confidence", "accuracy")
        )
        count = file.whole(file.entry(row, "count", where), f"{where}.count")
        bins.append(Bin(low, high, count, confidence, accuracy))
    return Calibration(file.number(file.entry(calibration, "ece", "calibration"), "ece"), tuple(bins))


def _roc(file: CheckedFile, value: object, where: str) -> Roc:
    curve = file.mapping(value, where)
    false, true = (
        file.array(file.entry(curve, f"{kind}_positive_rate", where), f"{where}.{kind}_positive_rate", 1)
        for kind in ("false", "true")
    )
    if len(false) != len(true):
        file.wrong(where, f"has {len(false)} false positive rates for {len(true)} true positive rates")
    return Roc(false, true)


def _extremes(file: CheckedFile, value: object, where: str) -> Extremes:
    entries = file.mapping(value, where)
    lowest, highest = (
        tuple(
            file.whole(index, f"{where}.{side}")
            for index in file.sequence(file.entry(entries, side, where), where)
        )
        for side in ("lowest", "highest")
    )
    return Extremes(lowest, highest)


def _latent(file: CheckedFile, value: object) -> Latent | None:
    if value is None:
        return None
    latent = file.mapping(value, "latent")
    out = file.mapping(latent.get("out") or {}, "latent.out")
    return Latent(
        _cloud(file, latent, "latent"),
        {
            name: _cloud(file, file.mapping(c, f"latent.out.{name}"), f"latent.out.{name}")
            for name, c in out.items()
        },
    )


def _cloud(file: CheckedFile, entries: Mapping[str, Any], where: str) -> Cloud:
    points = file.array(file.entry(entries, "points", where), f"{where}.points", 2)
    number, dim = points.shape
    covariances = kappa = labels = None
    if entries.get("covariances") is not None:
        covariances = file.array(entries["covariances"], f"{where}.covariances")
        if covariances.size != number * dim * dim or len(covariances) != number:
            file.wrong(f"{where}.covariances", f"has the shape {covariances.shape} for points {points.shape}")
        covariances = covariances.reshape(number, dim, dim)
    if entries.get("kappa") is not None:
        kappa = file.array(entries["kappa"], f"{where}.kappa", 1)
    if entries.get("labels") is not None:
        numbers = file.array(entries["labels"], f"{where}.labels", 1)
        if not np.isfinite(numbers).all():
            file.wrong(f"{where}.labels", "has an entry that is no number")
        labels = numbers.astype(np.int64)
    for name, values in (("kappa", kappa), ("labels", labels)):
        if values is not None and len(values) != number:
            file.wrong(f"{where}.{name}", f"has {len(values)} entries for {number} points")
    return Cloud(points, covariances, kappa, labels)
