"""pytorch-metric-learning: its testers with a posterior and its uncertainties, its trainers with our losses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hessians import Pairs
from hessians.pair_loss import PairLoss
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.encoder import Encoder
from laplacian_metric.integrations.optional import base_class
from laplacian_metric.laplace.features import collect_features
from laplacian_metric.laplace.posthoc import LAM
from laplacian_metric.metrics.calibration import consensus
from laplacian_metric.metrics.ranking import check_uncertainty
from laplacian_metric.metrics.statistics import area, auroc, rank_calibration_gap, sparsification_curve
from laplacian_metric.trust.trust import Trust

INSTALL = "pytorch-metric-learning>=2.6"
UNCERTAINTY, SAMPLES, REFERENCE_SAMPLES = "uncertainty", "samples", "reference_samples"
NEEDS = {"r_auroc": UNCERTAINTY, "ausc": UNCERTAINTY, "ece_at_1": UNCERTAINTY, "ece": SAMPLES}

_Tester: Any = base_class("pytorch_metric_learning.testers", "GlobalEmbeddingSpaceTester", INSTALL)
_Calculator: Any = base_class(
    "pytorch_metric_learning.utils.accuracy_calculator", "AccuracyCalculator", INSTALL
)


class UncertaintyCalculator(_Calculator):
    """An AccuracyCalculator with metrics of uncertainty.

    ``r_auroc``, ``ausc`` and ``ece_at_1`` need the queries' uncertainty, ``ece`` needs joint samples of a posterior.
    Where these are not passed the metrics are left out, and naming them in ``include`` is an error. Whether a nearest
    neighbour is right is decided by the library's own search and label comparison, as for ``precision_at_1``; ``ece``
    searches in every sample. ``avg_of_avgs`` averages over the classes in which they are defined.

    Args:
        include, exclude, avg_of_avgs, return_per_class, k: as in AccuracyCalculator; ``k`` is "max_bin_count" by
            default, which is as deep as its metrics need.
        options: its others.

    Attributes:
        beside: name -> what is known of the queries beside their embeddings, for callers that pass embeddings only, as
            testers do; see `get_accuracy`.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.96, 0.28], [0.28, 0.96], [0.0, 1.0]])
        >>> labels = torch.tensor([0, 0, 1, 0])
        >>> calculator = UncertaintyCalculator(include=("r_auroc",), device=torch.device("cpu"))
        >>> calculator.get_accuracy(z, labels, uncertainty=torch.tensor([0.1, 0.2, 0.3, 0.4]))
        {'r_auroc': 1.0}
    """

    def __init__(
        self,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        avg_of_avgs: bool = False,
        return_per_class: bool = False,
        k: int | str | None = "max_bin_count",
        **options: Any,
    ) -> None:
        super().__init__(tuple(include), tuple(exclude), avg_of_avgs, return_per_class, k, **options)
        self._asked = frozenset(include)
        self.beside: dict[str, Tensor] = {}

    def requires_knn(self) -> list[str]:
        return [*super().requires_knn(), *NEEDS]

    def get_accuracy(
        self,
        query: Any,
        query_labels: Any,
        reference: Any = None,
        reference_labels: Any = None,
        ref_includes_query: bool = False,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        *,
        uncertainty: Tensor | None = None,
        samples: Tensor | None = None,
        reference_samples: Tensor | None = None,
    ) -> dict[str, Any]:
        """Return the metrics by name, as AccuracyCalculator does.

        Args:
            query, query_labels, reference, reference_labels, ref_includes_query, include, exclude: as there.
            uncertainty: (Q,), of the queries.
            samples: (S, Q, Z), joint samples of the queries.
            reference_samples: (S, M, Z), of the reference, drawn with the same weights; not needed where there is no
                reference or it is the queries themselves.
        """
        before = self.beside
        passed = {UNCERTAINTY: uncertainty, SAMPLES: samples, REFERENCE_SAMPLES: reference_samples}
        known = {name: tensor for name, tensor in passed.items() if tensor is not None} or before
        own = reference is None or (ref_includes_query and len(reference) == len(query))
        known = _checked(known, len(query), None if own else len(reference))
        missing = [name for name, needed in NEEDS.items() if needed not in known]
        for name in missing:
            if name in self._asked or name in include:
                raise ValueError(
                    f"{name} needs {NEEDS[name]}: pass it to get_accuracy, or test with a LAMTester"
                )
        self.beside = known
        try:
            return super().get_accuracy(  # type: ignore[no-any-return]
                query,
                query_labels,
                reference,
                reference_labels,
                ref_includes_query,
                include,
                (*exclude, *missing),
            )
        finally:
            self.beside = before

    # --- the metrics; the library finds them by their names ---

    def calculate_r_auroc(self, **inputs: Any) -> Any:
        return self._of_errors(lambda u, right: auroc(u, 1 - right, torch.ones_like(right)), **inputs)

    def calculate_ausc(self, **inputs: Any) -> Any:
        return self._of_errors(
            lambda u, right: area(sparsification_curve(u, right, torch.ones_like(right))), **inputs
        )

    def calculate_ece_at_1(self, **inputs: Any) -> Any:
        return self._of_errors(
            lambda u, right: rank_calibration_gap(u, right, torch.ones_like(right)), **inputs
        )

    def calculate_ece(
        self,
        query_labels: Tensor,
        reference_labels: Tensor,
        ref_includes_query: bool,
        not_lone_query_mask: Tensor,
        **_: Any,
    ) -> Any:
        if query_labels.ndim != 1 or self.label_comparison_fn is not torch.eq:
            raise ValueError('ece is of classes: leave it out where labels are compared, by exclude=("ece",)')
        if not bool(not_lone_query_mask.any()):
            return self._averaged(lambda _: float("nan"), query_labels)
        samples, others = self.beside[SAMPLES], self.beside.get(REFERENCE_SAMPLES)
        labels, reference = query_labels.cpu().long(), reference_labels.cpu().long()
        if ref_includes_query:  # the queries come first in the reference, and each leaves out itself
            agreed = consensus(samples if others is None else others, reference)
        else:
            agreed = consensus(samples, labels, database=others, database_labels=reference)
        of_queries = agreed.answerable.nonzero().flatten() < len(labels)

        def error(rows: Tensor) -> float:
            tables = {name: getattr(agreed, name) for name in ("prediction", "votes", "right")}
            kept = {name: table[of_queries][rows] for name, table in tables.items()}
            return dataclasses.replace(agreed, **kept).error

        return self._averaged(error, labels[agreed.answerable[: len(labels)].cpu()])

    def _of_errors(
        self,
        metric: Callable[[Tensor, Tensor], Tensor],
        *,
        knn_labels: Tensor,
        query_labels: Tensor,
        not_lone_query_mask: Tensor,
        **_: Any,
    ) -> Any:
        """Return a metric of the uncertainties (A,) of answerable queries and of whether their neighbour is right."""
        if not bool(not_lone_query_mask.any()):
            return self._averaged(lambda _: float("nan"), query_labels)
        labels = query_labels[not_lone_query_mask]
        right = self.label_comparison_fn(labels[:, None], knn_labels[not_lone_query_mask][:, :1])
        right = right.reshape(len(labels)).double()
        uncertainty = self.beside[UNCERTAINTY].to(right.device)[not_lone_query_mask]
        return self._averaged(lambda rows: float(metric(uncertainty[rows], right[rows])), labels)

    def _averaged(self, metric: Callable[[Tensor], float], labels: Tensor) -> Any:
        """Return a metric over all queries, or class by class, as the calculator was asked to."""
        if not (self.avg_of_avgs or self.return_per_class):
            return metric(torch.ones(len(labels), dtype=torch.bool, device=labels.device))
        classes = [(labels == label).reshape(len(labels), -1).all(1) for label in torch.unique(labels, dim=0)]
        values = [metric(rows) for rows in classes]
        return values if self.return_per_class else float(torch.tensor(values).double().nanmean())


def _checked(known: dict[str, Tensor], queries: int, references: int | None) -> dict[str, Tensor]:
    """Refuse what does not fit Q queries and M references (None: the queries themselves)."""
    if SAMPLES in known and references is not None and REFERENCE_SAMPLES not in known:
        raise ValueError("reference_samples are needed: the reference is sampled with the weights of samples")
    for name, number in ((SAMPLES, queries), (REFERENCE_SAMPLES, references)):
        if name in known and number not in (None, known[name].shape[1]):
            raise ValueError(f"{name} has shape {tuple(known[name].shape)}: (S, {number}, Z) is needed")
    if UNCERTAINTY not in known:
        return known
    return {**known, UNCERTAINTY: check_uncertainty(UNCERTAINTY, known[UNCERTAINTY], queries)}


class LAMTester(_Tester):
    """A GlobalEmbeddingSpaceTester that embeds through a posterior.

    Retrieval is by the trained embeddings, as without it; an `UncertaintyCalculator` gets the uncertainties, and joint
    samples if there are any. In ``end_of_testing_hook(tester)`` and afterwards, ``tester.embedded[split]`` is the
    `StochasticEmbedding` of each split.

    Args:
        lam: fitted; or a function (trunk, embedder) -> LAM that fits one, called at the start of every test: what
            is tested during training has other weights each time.
        samples: how many joint samples; 0 for none, and no ``ece``.
        seed: of these samples.
        accuracy_calculator: an `UncertaintyCalculator` by default.
        options: of GlobalEmbeddingSpaceTester.
    """

    def __init__(
        self,
        lam: LAM | Callable[[nn.Module, nn.Module], LAM],
        *,
        samples: int = 0,
        seed: int = 0,
        accuracy_calculator: Any = None,
        **options: Any,
    ) -> None:
        for name in ("pca", "use_trunk_output"):
            if options.get(name):
                raise ValueError(
                    f"{name} would test something else than the posterior's embeddings: leave it out"
                )
        super().__init__(accuracy_calculator=accuracy_calculator or UncertaintyCalculator(), **options)
        self.lam: Any = lam if isinstance(lam, LAM) else None
        self._make = None if isinstance(lam, LAM) else lam
        self.samples, self.seed = samples, seed
        self.embedded: dict[str, StochasticEmbedding] = {}
        self._parts: list[StochasticEmbedding] = []

    def test(
        self,
        dataset_dict: Mapping[str, Any],
        epoch: int,
        trunk_model: nn.Module | None = None,
        embedder_model: nn.Module | None = None,
        *others: Any,
        **named: Any,
    ) -> Any:
        """As in the library; without models it is the LAM's encoder that is tested."""
        if self._make is not None:
            if trunk_model is None:
                raise ValueError("trunk_model is missing: the LAM is made of it")
            trunk_model.eval()
            self.lam = self._make(trunk_model, nn.Identity() if embedder_model is None else embedder_model)
        models = [self.lam.encoder if trunk_model is None else trunk_model, embedder_model]
        known = {id(p) for model in models if model is not None for p in model.parameters()}
        if not {id(p) for p in self.lam.encoder.parameters()} <= known:
            raise ValueError(
                "trunk_model and embedder_model are not what the LAM was fitted to: leave them out to test its "
                "encoder, or make the tester with a function (trunk, embedder) -> LAM"
            )
        self.embedded = {}
        return super().test(dataset_dict, epoch, *models, *others, **named)

    def get_embeddings_for_eval(
        self, trunk_model: nn.Module, embedder_model: nn.Module, inputs: Any
    ) -> Tensor:
        if self.dtype is not None:
            inputs = inputs.to(self.dtype)
        # The same state for every batch: all images of all splits share the draws.
        generator = torch.Generator(self.lam.encoder.head.weight.device).manual_seed(self.seed)
        e: StochasticEmbedding = self.lam.embed(inputs, samples=self.samples, generator=generator)
        self._parts.append(dataclasses.replace(e, gaussians=None))
        return e.point.to(self.data_device)

    def get_all_embeddings_for_all_splits(
        self, dataset_dict: Any, trunk_model: Any, embedder_model: Any, splits: Sequence[str], collate_fn: Any
    ) -> dict[str, Any]:
        embeddings: dict[str, Any] = {}
        for split in splits:
            self._parts = []
            embeddings |= super().get_all_embeddings_for_all_splits(
                dataset_dict, trunk_model, embedder_model, [split], collate_fn
            )
            self.embedded[split], self._parts = StochasticEmbedding.cat(self._parts), []
        return embeddings

    def do_knn_and_accuracies(
        self,
        accuracies: Any,
        embeddings_and_labels: Any,
        query_split_name: str,
        reference_names: Sequence[str],
    ) -> None:
        calculator, e = self.accuracy_calculator, self.embedded[query_split_name]
        drawn = [part for name in reference_names if (part := self.embedded[name].samples) is not None]
        passed = {UNCERTAINTY: e.uncertainty, SAMPLES: e.samples}
        if drawn:
            passed[REFERENCE_SAMPLES] = torch.cat(drawn, dim=1)
        calculator.beside = {name: tensor for name, tensor in passed.items() if tensor is not None}
        try:
            super().do_knn_and_accuracies(
                accuracies, embeddings_and_labels, query_split_name, reference_names
            )
        finally:
            calculator.beside = {}


class TrainingLoss(nn.Module):
    """A loss over pairs in the form of the library's losses: train with it what its curvature is taken of.

    Args:
        loss: e.g. `hessians.ContrastiveLoss`; it gets the embeddings as they come out of the models.

    Example:
        >>> from hessians import ContrastiveLoss
        >>> loss = TrainingLoss(ContrastiveLoss(margin=1.0))
        >>> u = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        >>> round(loss(u, torch.tensor([0, 0, 1])).item(), 4)
        1.25
    """

    def __init__(self, loss: PairLoss) -> None:
        super().__init__()
        self.loss = loss

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: Sequence[Tensor] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """The mean loss of the batch's pairs, or of those that a miner's tuple (of three or four) lists."""
        if ref_emb is not None or ref_labels is not None:
            raise ValueError(
                "ref_emb is given, but the pairs of this loss are within the batch: leave it out"
            )
        if indices_tuple is not None:
            return self.loss(embeddings, Pairs.from_indices(tuple(indices_tuple), len(embeddings)))
        if labels is None:
            raise ValueError(
                "labels are missing: they, or a miner's indices_tuple, say which images are pairs"
            )
        return self.loss(embeddings, Pairs.from_labels(labels))


def encoder_of(
    models: Mapping[str, nn.Module], *, example_inputs: Any = None, normalize: bool = True
) -> Encoder:
    """The encoder of a trainer's ``models``, {"trunk": ..., "embedder": ...}; its parameters are shared with them.

    Args:
        models: what was passed to the trainer; the embedder is optional, and the last of them ends in a linear layer.
        example_inputs: a few inputs to check the cut with at once.
        normalize: see `Encoder`.

    Example:
        >>> models = {"trunk": nn.Sequential(nn.Linear(4, 8), nn.ReLU()), "embedder": nn.Linear(8, 3)}
        >>> encoder = encoder_of(models)
        >>> encoder.head is models["embedder"], encoder.num_features
        (True, 8)
    """
    unknown = set(models) - {"trunk", "embedder"}
    if "trunk" not in models or unknown:
        raise ValueError(
            f'models has {", ".join(sorted(models)) or "no entry"}: "trunk" and, optionally, "embedder" are needed'
        )
    module, embedder = models["trunk"], models.get("embedder")
    if embedder is not None and not isinstance(embedder, nn.Identity):
        module = nn.Sequential(module, embedder).train(module.training)
    return Encoder.from_module(module, example_inputs=example_inputs, normalize=normalize)


def fit_trust(
    models: Mapping[str, nn.Module],
    gallery: Any,
    queries: Any,
    *,
    batch_size: int = 256,
    progress: bool | None = None,
    **options: Any,
) -> Trust:
    """Return the calibrated trust in the nearest item of a gallery, for a trainer's ``models``.

    Call it in the ``end_of_epoch_hook`` of a trainer, or after training; ``trust(h)`` takes
    ``encoder_of(models).features(images)``.

    Args:
        models: {"trunk": ..., "embedder": ...}, as in `encoder_of`.
        gallery: data set of (image, label) that is searched.
        queries: data set of others that the models were not trained on.
        batch_size: images that are embedded at once.
        progress: whether to show a bar; None asks the terminal.
        options: of `Trust.fit`.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> labels = torch.arange(240) % 3
        >>> images = torch.eye(3)[labels] + 0.4 * torch.randn(240, 3, generator=torch.Generator().manual_seed(0))
        >>> gallery, queries = TensorDataset(images[:120], labels[:120]), TensorDataset(images[120:], labels[120:])
        >>> trunk = nn.Linear(3, 3, bias=False)
        >>> _ = nn.init.eye_(trunk.weight)
        >>> trust = fit_trust({"trunk": trunk}, gallery, queries)
        >>> trust(torch.eye(3)).labels.tolist()
        [0, 1, 2]
    """
    encoder = encoder_of(models)
    rows = [
        collect_features(encoder, DataLoader(part, batch_size=batch_size), progress=progress)
        for part in (gallery, queries)
    ]
    pairs = [(part.features, part.labels) for part in rows]
    return Trust.fit(pairs[0], pairs[1], encoder=encoder, **options)
