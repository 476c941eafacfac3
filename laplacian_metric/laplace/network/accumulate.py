"""The curvature of several layers, summed over the batches of a loader; an interrupted sum is taken up again."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hessians import Pairs, ggn_diagonal
from hessians.capture import Inputs, trace, unaltered
from hessians.checks import CurvatureWarning
from hessians.loss_summary import LossSummary, summarise, trained_gradient
from hessians.model_checks import check_modules
from hessians.network import Method
from hessians.pair_loss import PairLoss
from hessians.pairs import Population
from laplacian_metric.core.batch import Loader, read, to_device
from laplacian_metric.core.parallel import check_agreement, reducer, together
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.fit import bias_is_known
from laplacian_metric.laplace.layer import DiagonalCurvature
from laplacian_metric.laplace.network.layers import Groups, RawNetwork, choose
from laplacian_metric.laplace.network.linearised import Tracer
from laplacian_metric.laplace.network.posterior import NetworkFitted
from laplacian_metric.laplace.network.state import BatchDigest, StateFile, Sums
from laplacian_metric.laplace.options import NetworkOptions
from laplacian_metric.laplace.storage import LossEntry
from laplacian_metric.laplace.torch_backend.batches import Counts, check_loader, with_fixed_batches

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task:
    """What is to be accumulated.

    Attributes:
        encoder: in evaluation mode while it runs.
        network: the encoder without its norm.
        loss, options: as for `NetworkLAM`.
        method, probes, generator: of ``hessians.ggn_diagonal``.
        progress: whether to show bars; None asks the terminal.
    """

    encoder: Encoder
    network: RawNetwork
    loss: PairLoss
    options: NetworkOptions
    method: Method
    probes: int
    generator: torch.Generator | None
    progress: bool | None

    def fixed(self) -> list[str]:
        """Parameters that the data say nothing of."""
        return [] if bias_is_known(self.loss, self.options.approximation) else ["head.bias"]

    def describe(self, groups: Groups) -> str:
        """What sums belong together."""
        names = [name for parameters in groups.values() for name in parameters]
        return f"{LossEntry.of(self.loss)} {self.options.approximation.value} {self.method.value} {' '.join(names)}"


def accumulate(task: Task, loader: Loader, cache: str | Path | None) -> NetworkFitted:
    """Two passes over a loader of (inputs, labels): one for the labels, by which it is divided, one for the sums.

    Pairs are taken inside of batches, and every batch is divided by the pairs of all batches: the sums are those of
    one average over all pairs.
    """
    check_loader(loader)
    check_modules(task.network)
    loader = with_fixed_batches(loader)
    reduce = reducer()
    with together(reduce):
        fingerprint = task.encoder.fingerprint()
        file = None if cache is None else StateFile(cache)
        kept = None if file is None else file.read()
        counts, groups, digest = _first_pass(task, loader, 0 if kept is None else kept.done)
    if reduce is not None:
        check_agreement(reduce, f"{task.describe(groups)}, encoder {fingerprint[:12]}")
    own = torch.tensor([counts.positives, counts.negatives, counts.images], dtype=torch.float64)
    own = own.to(task.encoder.head.weight.device)
    positives, negatives, images = (own if reduce is None else reduce(own)).tolist()
    _check_counts(positives, negatives, images)
    about = f"{fingerprint} {positives} {negatives} {task.describe(groups)}"
    sums = Sums.start(about, dict(task.network.named_parameters()), groups)
    if kept is not None and file is not None:
        if kept.about == about and kept.digest == digest and kept.fits(sums):
            LOGGER.info(
                "%s holds the sums of %d batches: the fit goes on from there", file.path.name, kept.done
            )
            kept.tensors = {
                name: tensor.to(task.encoder.head.weight.device) for name, tensor in kept.tensors.items()
            }
            sums = kept
        else:
            LOGGER.warning(
                "%s is of another encoder, loss or order of the images: the fit starts again", file.path.name
            )
    with together(reduce):
        seen = _second_pass(task, loader, groups, (positives, negatives), sums, file)
    counts.check_same(seen, stacklevel=5)
    if reduce is not None:
        sums.reduce(reduce)
    return _finish(task, groups, sums, (positives, negatives, images), fingerprint)


def _batches(task: Task, loader: Loader, title: str) -> Iterator[tuple[int, Any, Tensor]]:
    """Count, inputs and labels of the batches that have images."""
    batches = read(loader, title, labelled=True, progress=task.progress)
    for at, batch in enumerate(batch for batch in batches if Inputs.of(batch.inputs).num_images):
        assert batch.labels is not None
        yield at, batch.inputs, batch.labels


def _first_pass(task: Task, loader: Loader, done: int) -> tuple[Counts, Groups, str]:
    """Pairs and images of all batches, the layers, and the digest of the first ``done`` batches."""
    counts, groups, digest = Counts(0, 0, 0), None, BatchDigest()
    digest_text = ""
    for at, inputs, labels in _batches(task, loader, "labels"):
        counts = counts.plus(labels)
        if groups is None:
            inputs = to_device(inputs, task.encoder)
            groups = choose(task.network, inputs, task.options.layers, task.fixed())
        if at < done:
            digest.add(inputs, labels)
            digest_text = str(digest)
    assert groups is not None
    return counts, groups, digest_text


def _check_counts(positives: float, negatives: float, images: float) -> None:
    """Refuse a loader without pairs, and say what is lost without those of one type."""
    if images < 2:
        raise ValueError("there is 1 image: a pair needs two, and a loss of pairs knows nothing of fewer")
    Counts(round(positives), round(negatives), round(images)).check()
    if not negatives:
        message = (
            "every batch is of one class: there is no negative pair, and the curvature knows nothing of what separates "
            "classes"
        )
    elif not positives:
        message = (
            "no two images of a batch share a class: there is no positive pair, and the curvature is clamped to 0 "
            "wherever negatives push; use batches with several images of each class"
        )
    else:
        return
    warnings.warn(message, CurvatureWarning, stacklevel=5)


def _second_pass(
    task: Task,
    loader: Loader,
    groups: Groups,
    population: Population,
    sums: Sums,
    file: StateFile | None,
) -> Counts:
    names = [name for parameters in groups.values() for name in parameters]
    counts, digest = Counts(0, 0, 0), BatchDigest()
    tracer = Tracer(task.network, names)
    for at, inputs, labels in _batches(task, loader, "curvature"):
        counts = counts.plus(labels)
        inputs = to_device(inputs, task.encoder)
        if file is not None:
            digest.add(inputs, labels)
        if at < sums.done:
            continue
        pairs = Pairs.from_labels(labels.to(task.encoder.head.weight.device), population=population)
        with warnings.catch_warnings():
            # Said once for the loader, not for every batch.
            warnings.simplefilter("ignore", CurvatureWarning)
            _add_batch(task, tracer, names, inputs, pairs, sums)
        sums.done, sums.digest = at + 1, str(digest)
        if file is not None:
            file.write(sums)
    return counts


def _add_batch(
    task: Task, tracer: Tracer, names: Sequence[str], inputs: Any, pairs: Pairs, sums: Sums
) -> None:
    """Add a batch's curvature, and the value and the gradients of its loss."""
    first = tracer.failing is None
    if first:
        with unaltered(task.network):
            tracer(Inputs.of(inputs))
    diagonal = ggn_diagonal(
        task.network,
        inputs,
        pairs,
        task.loss,
        task.options.approximation,
        task.method,
        parameters=names,
        probes=task.probes,
        generator=task.generator,
        # Where a rule is wrong for a layer, it has to be found out again for every batch.
        check=first or bool(tracer.failing),
        memory_budget=task.options.memory_budget,
    )
    with unaltered(task.network):
        traced = trace(task.network, Inputs.of(inputs), names, [])
    summary = summarise(task.loss, traced.u, pairs)
    sums.value += summary.value
    sums.active += summary.active
    leaves = [traced.parameters[name] for name in names]
    for what, part in (("positive", summary.positive_gradient), ("negative", summary.negative_gradient)):
        gradients = torch.autograd.grad(traced.u, leaves, part, retain_graph=True, allow_unused=True)
        for name, gradient in zip(names, gradients, strict=True):
            if gradient is not None:
                sums.tensors[f"{what}/{name}"] += gradient
    for name in names:
        sums.tensors[f"diagonal/{name}"] += diagonal[name]


def _finish(
    task: Task, groups: Groups, sums: Sums, counts: tuple[float, float, float], fingerprint: str
) -> NetworkFitted:
    """Clamp the sums, once."""
    dtype = task.encoder.head.weight.dtype
    curvature = {
        layer: DiagonalCurvature(
            torch.cat([sums.tensors[f"diagonal/{name}"].flatten() for name in names])[None].to(dtype)
        )
        for layer, names in groups.items()
    }
    gradient = {}
    for names in groups.values():
        for name in names:
            positive, negative = (sums.tensors[f"{part}/{name}"] for part in ("positive", "negative"))
            parts = LossSummary(sums.value, positive, negative, sums.active)
            gradient[name] = trained_gradient(task.loss, parts, counts[1]).to(dtype)
    return NetworkFitted(
        groups=groups,
        curvature=curvature,
        gradient=gradient,
        loss_value=sums.value,
        num_images=round(counts[2]),
        num_positives=counts[0],
        num_negatives=counts[1],
        num_batches=sums.done,
        fingerprint=fingerprint,
    )
