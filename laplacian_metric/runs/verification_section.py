"""The part of a cell that says how pairs of test images are verified."""

from __future__ import annotations

from pydantic import Field

from laplacian_metric.runs.section import Section


class VerificationSection(Section):
    """How pairs of images of the test set, and of every one of `data.tests`, are verified, as in the HIB paper.

    Attributes:
        pairs: whose average precision is measured; half of them match.
        random_pairs: any two images, whose average precision is compared with their uncertainty.
        neighbours: that vote for an image's class.
        bins: of equal size, from the lowest to the highest uncertainty.
        samples: K of each image, where a method has distributions.
        repeats: how often what is drawn is drawn anew; what is measured of pairs, and what uncertainty tells, are
            means over that. Neighbours are looked for with the first draws.
        seed: of the pairs and the draws.
        galleries: for some of `data.tests` another test set of the same images in the same order, among which
            neighbours are looked for too; an image's twin there is passed over.
        drawn: so many images of each set, taken at random, are kept for pictures, where spaces have two or three
            dimensions.
    """

    pairs: int = Field(default=10_000, ge=2, multiple_of=2)
    random_pairs: int = Field(default=200_000, ge=2)
    neighbours: int = Field(default=5, ge=1)
    bins: int = Field(default=20, ge=2)
    samples: int = Field(default=8, ge=1)
    repeats: int = Field(default=10, ge=1)
    seed: int = Field(default=0, ge=0)
    galleries: dict[str, str] = Field(default_factory=dict)
    drawn: int = Field(default=200, ge=0)
