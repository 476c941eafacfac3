"""An AccuracyCalculator of pytorch-metric-learning with metrics of uncertainty."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from laplacian_metric.integrations.optional import base_class
from laplacian_metric.metrics.calibration import NUM_BINS, consensus
from laplacian_metric.metrics.positives import Positives
from laplacian_metric.metrics.ranking import check_uncertainty
from laplacian_metric.metrics.statistics import area, auroc, rank_calibration_gap, sparsification_curve

INSTALL = "pytorch-metric-learning>=2.6"
FROM_UNCERTAINTY = ("r_auroc", "ausc", "ece_at_1")
FROM_SAMPLES = ("ece",)

_Calculator: Any = base_class(
    "pytorch_metric_learning.utils.accuracy_calculator", "AccuracyCalculator", INSTALL
)


@dataclass(frozen=True)
class Beside:
    """What is known of queries (Q, Z) beside their points: uncertainties (Q,), joint samples (S, Q, Z), (S, M, Z)."""

    uncertainty: Tensor | None = None
    samples: Tensor | None = None
    reference_samples: Tensor | None = None


class UncertaintyCalculator(_Calculator):
    """An AccuracyCalculator that also says what an uncertainty is worth.

    ``r_auroc``, ``ausc`` and ``ece_at_1`` need the queries' uncertainty, ``ece`` needs joint samples of a posterior.
    Where these are not given the metrics are left out, and naming them in ``include`` is an error. Whether a nearest
    neighbour is right is decided by the library's own search and label comparison, so that they are about the
    same errors as ``precision_at_1``; ``ece`` searches in every sample. Per class, they are those of the
    class's queries; ``avg_of_avgs`` averages over the classes in which they are defined.

    Args:
        include, exclude, avg_of_avgs, return_per_class, k: as in AccuracyCalculator; ``k`` is "max_bin_count" by
            default, which is as deep as its metrics need.
        options: its others.

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
        self._beside = Beside()

    def requires_knn(self) -> list[str]:
        return [*super().requires_knn(), *FROM_UNCERTAINTY]

    @contextmanager
    def beside(self, beside: Beside) -> Iterator[None]:
        """For callers that pass embeddings only, as testers do: what belongs to the queries of the calls inside."""
        before, self._beside = self._beside, beside
        try:
            yield
        finally:
            self._beside = before

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
        """As in AccuracyCalculator, with what is known beside the queries; see `Beside`.

        ``reference_samples`` are drawn with the same weights as ``samples``; not needed where there is no reference
        or it is the queries themselves.
        """
        nothing = uncertainty is None and samples is None and reference_samples is None
        beside = self._beside if nothing else Beside(uncertainty, samples, reference_samples)
        count = len(query)
        own = reference is None or (ref_includes_query and len(reference) == count)
        beside = _checked(beside, count, None if own else len(reference))
        missing = list(FROM_UNCERTAINTY) if beside.uncertainty is None else []
        if beside.samples is None:
            missing += FROM_SAMPLES
        wanted = sorted((frozenset(include) or self._asked) & frozenset(missing))
        if wanted:
            what = "samples=" if wanted == [*FROM_SAMPLES] else "uncertainty="
            raise ValueError(
                f"{', '.join(wanted)} cannot be computed from embeddings alone: pass {what} to get_accuracy, or test "
                "with a LAMTester"
            )
        with self.beside(beside):
            return super().get_accuracy(  # type: ignore[no-any-return]
                query,
                query_labels,
                reference,
                reference_labels,
                ref_includes_query,
                include,
                (*exclude, *missing),
            )

    # --- the metrics; the library finds them by their names ---

    def calculate_r_auroc(self, **inputs: Any) -> Any:
        return self._of_errors(lambda u, right: auroc(u, 1 - right, torch.ones_like(right)), **inputs)

    def calculate_ausc(self, **inputs: Any) -> Any:
        return self._of_errors(
            lambda u, right: area(sparsification_curve(u, right, torch.ones_like(right))), **inputs
        )

    def calculate_ece_at_1(self, **inputs: Any) -> Any:
        return self._of_errors(
            lambda u, right: rank_calibration_gap(u, right, torch.ones_like(right), NUM_BINS), **inputs
        )

    def calculate_ece(
        self,
        query_labels: Tensor,
        reference_labels: Tensor,
        ref_includes_query: bool,
        **_: Any,
    ) -> Any:
        if query_labels.ndim != 1 or self.label_comparison_fn is not torch.eq:
            raise ValueError(
                'ece is of classes: neighbours vote for one. Exclude it where labels are compared: exclude=("ece",)'
            )
        samples, others = self._beside.samples, self._beside.reference_samples
        assert samples is not None
        labels, reference = query_labels.cpu().long(), reference_labels.cpu().long()
        own = ref_includes_query and len(reference) == len(labels)
        if ref_includes_query and not own:
            # The queries come first in the reference, and each must leave out itself.
            assert others is not None
            agreed = consensus(others, reference)
            first = agreed.answerable.nonzero().flatten() < len(labels)
            answerable = agreed.answerable[: len(labels)]
        else:
            if not bool((Positives.from_labels(labels, None if own else reference).counts > 0).any()):
                return self._undefined(labels)
            agreed = consensus(
                samples,
                labels,
                database=None if own else others,
                database_labels=None if own else reference,
            )
            first, answerable = torch.ones_like(agreed.votes, dtype=torch.bool), agreed.answerable

        def error(rows: Tensor) -> float:
            kept = {name: getattr(agreed, name)[first][rows] for name in ("prediction", "votes", "right")}
            return dataclasses.replace(agreed, **kept).error

        return self._averaged(error, labels[answerable.cpu()])

    def _of_errors(
        self,
        metric: Callable[[Tensor, Tensor], Tensor],
        *,
        knn_labels: Tensor,
        query_labels: Tensor,
        not_lone_query_mask: Tensor,
        **_: Any,
    ) -> Any:
        """A metric of the uncertainties (A,) and of whether the nearest neighbour is right, of answerable queries."""
        if not bool(not_lone_query_mask.any()):
            return self._undefined(query_labels)
        assert self._beside.uncertainty is not None
        labels = query_labels[not_lone_query_mask]
        right = self.label_comparison_fn(labels[:, None], knn_labels[not_lone_query_mask][:, :1])
        right = right.reshape(len(labels)).double()
        uncertainty = self._beside.uncertainty.to(right.device)[not_lone_query_mask]
        return self._averaged(lambda rows: float(metric(uncertainty[rows], right[rows])), labels)

    def _averaged(self, metric: Callable[[Tensor], float], labels: Tensor) -> Any:
        """Over all queries, or class by class, as the calculator was asked to."""
        if not (self.avg_of_avgs or self.return_per_class):
            return metric(torch.ones(len(labels), dtype=torch.bool, device=labels.device))
        classes = [(labels == one).reshape(len(labels), -1).all(1) for one in torch.unique(labels, dim=0)]
        values = [metric(rows) for rows in classes]
        return values if self.return_per_class else float(torch.tensor(values).double().nanmean())

    def _undefined(self, labels: Tensor) -> Any:
        nan = float("nan")
        return [nan] * len(torch.unique(labels, dim=0)) if self.return_per_class else nan


def _checked(known: Beside, queries: int, references: int | None) -> Beside:
    """Refuse what does not fit Q queries and M references (None: the queries themselves)."""
    uncertainty = known.uncertainty
    if uncertainty is not None:
        uncertainty = check_uncertainty("uncertainty", uncertainty, queries)
    if known.samples is None:
        return Beside(uncertainty)
    if references is not None and known.reference_samples is None:
        raise ValueError(
            "samples is given without reference_samples: the reference has to be sampled with the same weights"
        )
    for name, number in (("samples", queries), ("reference_samples", references)):
        drawn = getattr(known, name)
        if drawn is not None and number is not None and (drawn.ndim != 3 or drawn.shape[1] != number):
            raise ValueError(f"{name} has shape {tuple(drawn.shape)}, (S, {number}, Z) is needed")
    return Beside(uncertainty, known.samples, known.reference_samples)
