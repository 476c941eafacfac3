"""The contrastive loss: value, active set, weights, gradient and output Hessian of one and the same function."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from hessians.approximations import Approximation
from hessians.checks import Choice, CurvatureWarning, widest_dtype, without_autocast
from hessians.graph import DENSE_IMAGES, DenseGraph, EdgeGraph, Edges, PairGraph, PositiveGraph, RowGraph
from hessians.output_hessian import OutputHessian, StructuredHessian
from hessians.pair_loss import PairBlocks, PairLoss, TypeWeights, warn_about_pairs
from hessians.pairs import ListedPairs, Pairs, PairSums, row_blocks
from hessians.unsquared import UnsquaredHessian

# Un-squared distances below this share of the margin count as this share: |z_i - z_j| has no derivative at 0, and its
# curvature 1/d no bound near it.
CLOSEST = 1e-3
# Of 1/|u|^2, as a share of the smallest normal number's root: averages over a million images keep their digits.
LARGEST_NORM = 1e-3


class Distance(Choice):
    """Where the l2 norm is counted; the value of the loss is the same, its generalised Gauss-Newton matrix is not."""

    EUCLIDEAN = "euclidean"
    """The norm belongs to the network and is linearised with it."""

    ARCCOS = "arccos"
    """The norm belongs to the loss, whose full curvature in u is kept."""


class Negatives(Choice):
    """What the average over the negatives runs over when the loss is trained."""

    ALL = "all"
    """All negatives of the population, the loss whose curvature is taken."""

    ACTIVE = "active"
    """The negatives of the list that lie inside the margin: what mining does, and what learns best."""


@dataclass(frozen=True)
class ContrastiveLoss(PairLoss):
    r"""The contrastive loss over pairs (Eq. 20-24 of the paper), d the distance of two embeddings:

        2 [ (1 - w) average over positives of d^2/2  +  w average over negatives of max(0, margin^2 - d^2)/2 ].

    With ``power=1`` a positive pair costs d instead, and a negative pair max(0, margin - d). There d stands for
    max(d, margin/1000): closer pairs count as coincident, and have neither gradient nor curvature.

    A negative is active iff d < margin. Embeddings u are raw; with ``normalize`` they are put on the unit sphere.

    Args:
        margin: on the distance d, not on its square.
        distance: "arccos" or "euclidean", see :class:`Distance`.
        negative_weight: w in [0, 1]; acts on value and curvature alike. 1/2 is the plain sum of the two averages.
        normalize: False leaves the norm out altogether; there is then no "arccos".
        negatives: "active" averages the value (training) over the active negatives only. The curvature always has
            the weights of the population: this corrects the bias of mining (Eq. 10, 30 of the paper), and is the
            only difference between what is trained and what is curved.
        power: 2 for the squared distance, 1 for the distance itself.

    Example:
        >>> u = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        >>> loss = ContrastiveLoss(margin=1.0)
        >>> round(loss(u, Pairs.from_labels([0, 0, 1])).item(), 4)  # positive: 2/2; negatives: 1/2 and 0, averaged
        1.25
        >>> unsquared = ContrastiveLoss(margin=1.0, power=1)
        >>> round(unsquared(u, Pairs.from_labels([0, 0, 1])).item(), 4)  # sqrt(2); negatives: 1 - 0.001 and 0, averaged
        1.9137
    """

    margin: float = 0.7
    distance: Distance | str = Distance.ARCCOS
    negative_weight: float = 0.5
    normalize: bool = True
    negatives: Negatives | str = Negatives.ALL
    power: int = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "distance", Distance.parse(self.distance))
        object.__setattr__(self, "negatives", Negatives.parse(self.negatives))
        if not self.margin > 0:
            raise ValueError(f"margin is {self.margin}, a positive distance is needed")
        if not 0 <= self.negative_weight <= 1:
            raise ValueError(f"negative_weight is {self.negative_weight}, a number between 0 and 1 is needed")
        if self.power not in (1, 2):
            raise ValueError(
                f"power is {self.power!r}: 2 is needed for the squared distance, or 1 for the distance itself"
            )
        if not self.normalize and self.distance is Distance.ARCCOS:
            raise ValueError(
                'distance "arccos" counts the norm to the loss, so it needs normalize=True: take "euclidean"'
            )

    # --- one pair ---

    def pair_values(self, first: Tensor, second: Tensor, positive: bool) -> Tensor:
        return self._values_of(self._costs(self._squared_distance(first, second)), positive)

    def pair_blocks(self, first: Tensor, second: Tensor, positive: bool) -> PairBlocks:
        """Eq. 95 and 105-107 of the paper, times 1 for positives, -1 for active and 0 for inactive negatives.

        With ``power=1`` they are divided by d, and R delta (R delta)^T/d^3 is subtracted from them, delta = z_i - z_j.
        """
        identity = torch.eye(first.shape[1], dtype=first.dtype, device=first.device).expand(
            len(first), -1, -1
        )
        if not self.normalize:
            difference = along_i = along_j = first - second
            blocks = PairBlocks(identity, -identity, identity)
        else:
            (z_i, r_i), (z_j, r_j) = self.on_sphere(first), self.on_sphere(second)
            difference = z_i - z_j
            cosine = (z_i * z_j).sum(1)[:, None, None]
            ii, jj, ij = _outer(z_i, z_i), _outer(z_j, z_j), _outer(z_i, z_j)
            cross = (-identity + ii + jj - cosine * ij) * (r_i * r_j)[:, None, None]
            if self.distance is Distance.EUCLIDEAN:
                own, other = identity - ii, identity - jj
            else:
                own = cosine * identity + ij + ij.mT - 3 * cosine * ii
                other = cosine * identity + ij + ij.mT - 3 * cosine * jj
            blocks = PairBlocks(own * r_i.square()[:, None, None], cross, other * r_j.square()[:, None, None])
            along_i = (difference - (difference * z_i).sum(1, keepdim=True) * z_i) * r_i[:, None]
            along_j = (difference - (difference * z_j).sum(1, keepdim=True) * z_j) * r_j[:, None]
        squared = difference.square().sum(1)
        slope = self._derivative(squared, positive)[:, None, None]
        if self.power == 2:
            return PairBlocks(*(slope * block for block in blocks))
        bend = self._derivative(squared, positive, exponent=3)[:, None, None]
        return PairBlocks(
            slope * blocks.first - bend * _outer(along_i, along_i),
            slope * blocks.cross + bend * _outer(along_i, along_j),
            slope * blocks.second - bend * _outer(along_j, along_j),
        )

    def _costs(self, squared: Tensor) -> Tensor:
        """What positive pairs cost, from squared distances: d^2/2, or d."""
        return squared / 2 if self.power == 2 else squared.clamp(min=(CLOSEST * self.margin) ** 2).sqrt()

    def _values_of(self, costs: Tensor, positive: bool) -> Tensor:
        """The values of pairs from what they would cost as positives."""
        limit = self.margin**2 / 2 if self.power == 2 else self.margin
        return costs if positive else (limit - costs).clamp(min=0)

    def _derivative(self, squared: Tensor, positive: bool, exponent: int = 1) -> Tensor:
        """The derivative of a pair's value in d^2/2, 0 where it is inactive; minus the second one for exponent 3."""
        derivative = torch.ones_like(squared) if positive else -(squared < self.margin**2).to(squared.dtype)
        return derivative if self.power == 2 else derivative * self._inverse_distance(squared, exponent)

    def _inverse_distance(self, squared: Tensor, exponent: int) -> Tensor:
        """1/d^exponent, 0 where a pair counts as coincident."""
        closest = (CLOSEST * self.margin) ** 2
        return squared.clamp(min=closest).rsqrt_().pow(exponent).masked_fill_(squared <= closest, 0)

    def _squared_distance(self, first: Tensor, second: Tensor) -> Tensor:
        if self.normalize:
            first, second = self.on_sphere(first)[0], self.on_sphere(second)[0]
        return (first - second).square().sum(1)

    # --- a set of pairs ---

    def on_sphere(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """z = u/|u| of shape (N, Z) and r = 1/|u| of shape (N,); a zero vector has no direction and is refused."""
        norm = torch.linalg.vector_norm(u, dim=1)
        # 1/|u|^2 has to be finite too: the curvature divides by it.
        limit = torch.finfo(norm.dtype).tiny ** 0.5
        zero, large = norm.detach() < limit, norm.detach() > LARGEST_NORM / limit
        if bool((zero | large).any()):  # both at once: a GPU is waited for here
            _refuse_lengths(norm.detach(), zero, large)
        inverse = norm.reciprocal()
        return u * inverse[:, None], inverse

    def __call__(self, u: Tensor, pairs: Pairs) -> Tensor:
        """The loss of raw embeddings u (N, Z), a differentiable scalar."""
        u = self.checked(u, pairs)
        return self.value_of_points(self.on_sphere(u)[0] if self.normalize else u, pairs)

    def value_of_points(self, points: Tensor, pairs: Pairs) -> Tensor:
        """The loss as a function of the points z (N, Z) between which distances are taken."""
        weights = self.type_weights(pairs)
        positive, negative, active = self.sums(points, pairs)
        if self.negatives is Negatives.ACTIVE:
            return weights.positive * positive + 2 * self.negative_weight * negative / active.clamp(min=1)
        return weights.positive * positive + weights.negative * negative

    def sums(self, points: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
        """Sums of the values over the positives and over the negatives, and the number of active negatives."""
        totals = [points.sum() * 0, points.sum() * 0]
        active = torch.zeros((), dtype=torch.long, device=points.device)
        if isinstance(pairs, ListedPairs):
            for kind, positive in enumerate((True, False)):
                first, second, count = next(pairs.listed(positive))
                squared = (points[first] - points[second]).square().sum(1)
                values = count * self._values_of(self._costs(squared), positive)
                totals[kind] = totals[kind] + values.sum()
                active = (count * (squared.detach() < self.margin**2)).sum()
            return totals[0], totals[1], active
        centred = self._centre(points)
        for start, stop in row_blocks(len(points)):
            squared = _squared_distances(centred, start, stop)
            costs, chosen = self._costs(squared), pairs.block(start, stop)
            for kind, positive in enumerate((True, False)):
                # Every pair is in two rows, hence the half.
                values = chosen[kind] * self._values_of(costs, positive)
                totals[kind] = totals[kind] + (values.sum() / 2).to(points.dtype)
            active = active + (chosen[1] & (squared.detach() < self.margin**2)).sum()
        return totals[0], totals[1], active // 2

    def _centre(self, points: Tensor) -> Tensor:
        """The points for `_squared_distances`, where |a|^2 + |b|^2 - 2ab loses digits.

        Without a norm they may lie far from the origin: they are moved. The root of a small squared distance has half
        of its digits only: they are doubled.
        """
        if not self.normalize and len(points):
            points = points - points.detach().mean(0)
        return points.to(widest_dtype(points.device)) if self.power == 1 else points

    def gradient(self, u: Tensor, pairs: Pairs) -> Tensor:
        """d loss / du, (N, Z), in closed form, with the weights of the population (``negatives`` plays no part)."""
        u = self.checked(u, pairs)
        u = u.detach()
        points, inverse = self.on_sphere(u) if self.normalize else (u, None)
        row_sums, product = row_sums_and_product(self.graph(points, pairs), points)
        gradient = row_sums[:, None] * points - product  # L z, L the graph Laplacian of Y
        if inverse is None:
            return gradient
        return (gradient - (gradient * points).sum(1, keepdim=True) * points) * inverse[:, None]

    def graph(
        self, points: Tensor, pairs: Pairs, weights: TypeWeights | None = None, *, exponent: int = 1
    ) -> PairGraph:
        """The pair weights Y (Eq. 23, 30): 2(1-w)/|P| at positives, -2w/|Q| at active negatives, 0 elsewhere.

        With ``power=1`` they are divided by d, or by d^exponent. ``weights`` takes the place of those of the types; a
        graph of positives alone needs no distances otherwise.
        """
        if weights is not None and not weights.negative and self.power == 2:
            return PositiveGraph(pairs, weights.positive, points.dtype)
        weights = self.type_weights(pairs) if weights is None else weights
        if isinstance(pairs, ListedPairs):
            return self._edge_graph(points, pairs, weights, exponent)
        centred = self._centre(points)

        def rows(start: int, stop: int) -> Tensor:
            positive, negative = pairs.block(start, stop)
            squared = _squared_distances(centred, start, stop)
            active = negative & (squared < self.margin**2)
            block = positive.to(squared.dtype).mul_(weights.positive).masked_fill_(active, -weights.negative)
            if self.power == 1:
                block *= self._inverse_distance(squared, exponent)
            return block.to(points.dtype)

        count = pairs.num_images
        return DenseGraph(rows(0, count)) if count <= DENSE_IMAGES else RowGraph(rows, count)

    def _edge_graph(
        self, points: Tensor, pairs: ListedPairs, weights: TypeWeights, exponent: int
    ) -> PairGraph:
        kinds = []
        for positive, weight in zip((True, False), weights, strict=True):
            first, second, count = next(pairs.listed(positive))
            squared = (points[first] - points[second]).square().sum(1)
            y = weight * (count * self._derivative(squared, positive, exponent))
            active = y != 0
            kinds.append(Edges(first[active], second[active], y[active]))
        return EdgeGraph(Edges(*map(torch.cat, zip(*kinds, strict=True))), pairs.num_images)

    @without_autocast
    def output_hessian(
        self, u: Tensor, pairs: Pairs, approximation: str | Approximation = Approximation.FULL
    ) -> OutputHessian:
        """The Hessian of the loss in u (N, Z), or an approximation of it, with the weights of the population.

        Example:
            >>> u, pairs = torch.eye(3, dtype=torch.float64), Pairs.from_labels([0, 0, 1])
            >>> ContrastiveLoss(margin=1.0).output_hessian(u, pairs, "positive").dense().shape
            torch.Size([3, 3, 3, 3])
        """
        approximation = Approximation.parse(approximation)
        u = self.checked(u, pairs)
        warn_about_pairs(pairs, approximation)
        u = u.detach()
        points, inverse = self.on_sphere(u) if self.normalize else (u, None)
        only_positives = TypeWeights(1 / pairs.num_positives if pairs.num_positives else 0.0, 0.0)
        kept = None
        if approximation is Approximation.POSITIVE:
            kept = self.graph(points, pairs, only_positives)
            row_sums, product = row_sums_and_product(kept, points)
        elif approximation is Approximation.FIXED and pairs.sums is not None:
            row_sums, product = self.known_sums(points, pairs.sums, self.type_weights(pairs))
        else:
            graph = self.graph(points, pairs)
            row_sums, product = row_sums_and_product(graph, points)
            kept = None if approximation is Approximation.FIXED else graph
        base = self._structured(points, inverse, row_sums, product, kept)
        hessian: StructuredHessian | UnsquaredHessian = base
        if self.power == 1:
            weights = only_positives if approximation is Approximation.POSITIVE else None
            bend = self.graph(points.double(), pairs, weights, exponent=3)
            hessian = UnsquaredHessian(base, points, bend, row_sums[:, None] * points - product)
        elif approximation is Approximation.FIXED and base.radial is None:
            # With every negative active and classes of equal size it is 0 for the Euclidean distance.
            rounding = len(u) * torch.finfo(u.dtype).eps * self.type_weights(pairs).positive
            if pairs.num_positives and pairs.num_negatives and bool((base.nodes.abs() <= rounding).all()):
                warnings.warn(
                    'the "fixed" curvature is 0 for every image: all negatives are inside the margin; train longer, '
                    "lower the margin, or use another approximation",
                    CurvatureWarning,
                    stacklevel=2,
                )
        return hessian.positive_part() if approximation is Approximation.CLIPPED else hessian

    def known_sums(self, points: Tensor, sums: PairSums, weights: TypeWeights) -> tuple[Tensor, Tensor]:
        """Y 1, (N,), and Y z, (N, Z), from what is known of the partners of the images at z (N, Z)."""
        if sums.margin != self.margin or self.power != 2:
            raise ValueError("the pairs know no sums for this loss: pass pairs without sums")
        total = sums.positive(points).mul_(weights.positive).sub_(sums.active, alpha=weights.negative)
        return total[:, 0], total[:, 1:]

    def node_term(self, points: Tensor, inverse: Tensor | None, sums: Tensor) -> Tensor:
        """The diagonals (N, Z) of the blocks of single images, "fixed", from sums [Y 1, Y z] (N, 1 + Z)."""
        return self._structured(points, inverse, sums[:, 0], sums[:, 1:], None).diagonal_per_dimension()

    def _structured(
        self,
        points: Tensor,
        inverse: Tensor | None,
        row_sums: Tensor,
        product: Tensor,
        kept: PairGraph | None,
    ) -> StructuredHessian:
        if inverse is None:
            return StructuredHessian(None, None, row_sums, kept, None, points.shape[1])
        if self.distance is Distance.EUCLIDEAN:
            return StructuredHessian(points, inverse, row_sums, kept, None, points.shape[1])
        along = (points * product).sum(1)
        radial = product - along[:, None] * points
        return StructuredHessian(points, inverse, along, kept, radial, points.shape[1])


def row_sums_and_product(graph: PairGraph, points: Tensor) -> tuple[Tensor, Tensor]:
    """Y 1, (N,), and Y z, (N, Z), in one pass over Y."""
    sums = graph.product(torch.cat([points.new_ones(len(points), 1), points], dim=1))
    return sums[:, 0], sums[:, 1:]


def _squared_distances(points: Tensor, start: int, stop: int) -> Tensor:
    """Squared distances of the points start..stop-1 to all N, (stop - start, N), twice differentiable."""
    square = points.square().sum(1)
    return torch.addmm(square, points[start:stop], points.T, alpha=-2) + square[start:stop, None]


def _outer(first: Tensor, second: Tensor) -> Tensor:
    """(P, Z) x (P, Z) -> (P, Z, Z)."""
    return first[:, :, None] * second[:, None, :]


def _refuse_lengths(norm: Tensor, zero: Tensor, large: Tensor) -> None:
    """Name the embeddings without a direction, or those that are too long, of (N,) norms."""
    if bool(zero.any()):
        rows = zero.nonzero().flatten()
        raise ValueError(
            f"{len(rows)} of {len(norm)} embeddings have norm zero, the first is row {int(rows[0])}: they have no "
            "direction; remove those images, or use normalize=False"
        )
    raise ValueError(
        f"{int(large.sum())} of {len(norm)} embeddings are too long for {norm.dtype}, the first is row "
        f"{int(large.nonzero()[0])} with norm {float(norm[large][0]):.2g}, and 1/|u|^2 would be rounded to 0: "
        "divide the features by their standard deviation, or compute in float64"
    )
