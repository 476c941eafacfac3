"""Types of options with their bounds, which pydantic dataclasses check."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(ge=1)]
Draws = Annotated[int, Field(ge=2)]  # of fewer no spread is known
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Real = Annotated[float, Field(allow_inf_nan=False)]
Variance = Annotated[
    float, Field(gt=1e-6, le=1e12)
]  # that a network may start from: softplus has a floor of 1e-6
Probability = Annotated[float, Field(ge=0, lt=1)]  # that an entry is dropped
