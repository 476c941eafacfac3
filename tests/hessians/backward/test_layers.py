"""Every layer rule alone, in many configurations, against the definition; and that it is the rule that was at work."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from hessians.backward import convolution, find_rule
from tests.hessians.jacobians import (
    LABELS,
    Readout,
    check,
    fallbacks,
    left_to_autograd,
    random_input,
    randomise,
)

N = len(LABELS)

# The layer and the shape of its input beside the images.
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (partial(nn.Linear, 5, 4), (5,)),
    "linear without bias": (partial(nn.Linear, 5, 4, bias=False), (5,)),
    "linear, few positions, many features": (partial(nn.Linear, 40, 3), (2, 40)),
    "linear, many positions, few features": (partial(nn.Linear, 2, 3), (30, 2)),
    "linear, two extra axes": (partial(nn.Linear, 4, 3), (3, 2, 4)),
    "conv1d": (partial(nn.Conv1d, 2, 3, 3), (2, 8)),
    "conv1d, stride, padding, dilation": (
        partial(nn.Conv1d, 2, 3, 3, stride=2, padding=2, dilation=2),
        (2, 9),
    ),
    "conv2d": (partial(nn.Conv2d, 2, 3, 3), (2, 5, 6)),
    "conv2d without bias": (partial(nn.Conv2d, 2, 3, 3, bias=False), (2, 5, 5)),
    "conv2d, everything uneven": (
        partial(nn.Conv2d, 4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2),
        (4, 7, 6),
    ),
    "conv2d, depthwise": (partial(nn.Conv2d, 4, 4, 3, groups=4, padding=1), (4, 4, 4)),
    "conv2d, depthwise, two outputs": (partial(nn.Conv2d, 3, 6, 3, groups=3), (3, 4, 4)),
    "conv2d, same, even kernel": (partial(nn.Conv2d, 2, 3, 4, padding="same"), (2, 5, 5)),
    "conv2d, same, dilated": (partial(nn.Conv2d, 2, 3, 3, padding="same", dilation=2), (2, 6, 6)),
    "conv2d, valid": (partial(nn.Conv2d, 2, 3, 3, padding="valid"), (2, 5, 5)),
    "conv2d, one position left": (partial(nn.Conv2d, 2, 3, 4), (2, 4, 4)),
    "conv2d, 1x1": (partial(nn.Conv2d, 5, 3, 1), (5, 3, 3)),
    "conv2d, circular": (partial(nn.Conv2d, 2, 3, 3, padding=1, padding_mode="circular"), (2, 5, 5)),
    "conv2d, reflect": (partial(nn.Conv2d, 2, 3, 3, padding=2, padding_mode="reflect"), (2, 5, 5)),
    "conv2d, replicate, same": (
        partial(nn.Conv2d, 2, 3, 2, padding="same", padding_mode="replicate"),
        (2, 5, 5),
    ),
    "conv3d": (partial(nn.Conv3d, 2, 4, 2, stride=2, padding=1, groups=2), (2, 3, 4, 3)),
    "conv transpose 1d": (
        partial(nn.ConvTranspose1d, 2, 3, 3, stride=2, padding=1, output_padding=1),
        (2, 5),
    ),
    "conv transpose 2d": (partial(nn.ConvTranspose2d, 2, 3, 3), (2, 4, 3)),
    "conv transpose 2d, everything uneven": (
        partial(
            nn.ConvTranspose2d,
            4,
            6,
            (3, 2),
            stride=(2, 3),
            padding=(1, 0),
            output_padding=(1, 2),
            dilation=(1, 2),
            groups=2,
        ),
        (4, 3, 2),
    ),
    "conv transpose 2d, padding beyond the kernel": (
        partial(nn.ConvTranspose2d, 2, 3, 2, padding=2),
        (2, 6, 6),
    ),
    "conv transpose 3d": (partial(nn.ConvTranspose3d, 2, 2, 2, stride=2, bias=False), (2, 2, 2, 2)),
    "batch norm 1d": (partial(nn.BatchNorm1d, 5), (5,)),
    "batch norm 1d, sequence": (partial(nn.BatchNorm1d, 3), (3, 4)),
    "batch norm 2d": (partial(nn.BatchNorm2d, 3, eps=0.1), (3, 4, 4)),
    "batch norm 3d": (partial(nn.BatchNorm3d, 2), (2, 2, 3, 2)),
    "layer norm": (partial(nn.LayerNorm, 5), (5,)),
    "layer norm, extra axes": (partial(nn.LayerNorm, 5, eps=0.01), (3, 2, 5)),
    "layer norm, two axes": (partial(nn.LayerNorm, (3, 4)), (2, 3, 4)),
    "layer norm without bias": (partial(nn.LayerNorm, 5, bias=False), (3, 5)),
    "group norm": (partial(nn.GroupNorm, 2, 6), (6, 3, 3)),
    "group norm, vectors": (partial(nn.GroupNorm, 2, 6), (6,)),
    "instance norm 1d": (partial(nn.InstanceNorm1d, 3, affine=True), (3, 6)),
    "instance norm 2d": (partial(nn.InstanceNorm2d, 3, affine=True), (3, 3, 3)),
    "instance norm 2d, running statistics": (
        partial(nn.InstanceNorm2d, 3, affine=True, track_running_stats=True),
        (3, 3, 3),
    ),
    "instance norm 3d": (partial(nn.InstanceNorm3d, 2, affine=True, eps=0.1), (2, 2, 2, 2)),
    "rms norm": (partial(nn.RMSNorm, 5), (4, 5)),
    "rms norm, eps, two axes": (partial(nn.RMSNorm, (2, 5), eps=0.1), (2, 5)),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize(
    ("distance", "approximation", "memory_budget"),
    [
        ("arccos", "full", 1 << 28),
        ("arccos", "fixed", 1 << 28),
        ("euclidean", "clipped", 1 << 28),
        ("arccos", "full", 1),
    ],
    ids=["full", "fixed", "clipped", "full, one at a time"],
)
@pytest.mark.parametrize("case", LAYERS)
def test_rule(
    case: str, distance: str, approximation: str, memory_budget: int, caplog: pytest.LogCaptureFixture
) -> None:
    make, shape = LAYERS[case]
    model = randomise(Readout(make()))
    assert find_rule(model.layer) is not None
    options: dict[str, Any] = {
        "distance": distance,
        "approximation": approximation,
        "memory_budget": memory_budget,
    }
    assert not left_to_autograd(caplog, model, random_input(N, *shape), **options)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("memory_budget", [1 << 28, 1])
@pytest.mark.parametrize("case", [name for name in LAYERS if name.startswith("conv2d")])
def test_kernels_of_the_processor(case: str, memory_budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large images in single precision have another way to the gradients of each image; here in double precision."""
    make, shape = LAYERS[case]
    model = randomise(Readout(make()))
    monkeypatch.setattr(convolution, "_LARGE_IMAGE", 1)
    monkeypatch.setattr(convolution, "_FAST_DTYPES", (torch.float64,))
    called = []

    def counted(*args: Any, **options: Any) -> Tensor:
        called.append(1)
        return conv2d_weight(*args, **options)

    monkeypatch.setattr(convolution, "conv2d_weight", counted)
    check(model, random_input(N, *shape), memory_budget=memory_budget)
    assert bool(called) == (model.layer.groups == 1 and model.layer.stride == (1, 1))


EMBEDDINGS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "one each": (partial(nn.Embedding, 4, 3), ()),
    "sequences": (partial(nn.Embedding, 5, 3), (7,)),
    "more rows than are used": (partial(nn.Embedding, 90, 2), (4,)),
    "padding": (partial(nn.Embedding, 4, 3, padding_idx=2), (6,)),
    "two axes": (partial(nn.Embedding, 6, 2), (2, 3)),
}


@pytest.mark.parametrize("approximation", ["full", "fixed"])
@pytest.mark.parametrize("case", EMBEDDINGS)
def test_embedding(case: str, approximation: str, caplog: pytest.LogCaptureFixture) -> None:
    make, shape = EMBEDDINGS[case]
    model = randomise(Readout(make()))
    ids = torch.randint(0, 4, (N, *shape), generator=torch.Generator().manual_seed(3))
    with caplog.at_level(logging.INFO, "hessians"):
        diagonals = check(model, ids, approximation=approximation)
    assert fallbacks(caplog) == []
    unused = torch.ones(len(diagonals["layer.weight"]), dtype=torch.bool)
    unused[ids.flatten()] = False
    assert not diagonals["layer.weight"][unused].any()


def masks(kind: str, length: int, heads: int) -> dict[str, Any]:
    """Keyword arguments of an attention call over sequences of one length."""
    generator = torch.Generator().manual_seed(4)
    hidden = torch.rand(length, length, generator=generator) < 0.3
    hidden[:, 0] = False  # every query sees something
    padding = torch.zeros(N, length, dtype=torch.bool)
    padding[0, 1:] = padding[1, 2:] = True
    return {
        "none": {},
        "no weights": {"need_weights": False},
        "boolean": {"attn_mask": hidden},
        "additive": {"attn_mask": torch.randn(length, length, generator=generator, dtype=torch.float64)},
        "causal": {"attn_mask": torch.ones(length, length, dtype=torch.bool).triu(1), "is_causal": True},
        "of each head": {
            "attn_mask": torch.randn(N * heads, length, length, generator=generator, dtype=torch.float64)
        },
        "padding": {"key_padding_mask": padding},
        "padding and boolean": {"key_padding_mask": padding, "attn_mask": hidden},
    }[kind]


class SelfAttention(nn.Module):
    """Attention of a sequence to itself, with the masks as constants."""

    def __init__(self, batch_first: bool, mask: str, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first, **options)
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1 if self.attention.batch_first else 0]
        images = x.shape[0 if self.attention.batch_first else 1]
        mask = masks(self.mask, length, 2)
        if images < N:  # the model is asked for the first image alone, too
            mask = {
                key: value[: images * 2] if getattr(value, "ndim", 0) == 3 else value
                for key, value in mask.items()
            }
            mask = {
                key: value[:images] if key == "key_padding_mask" else value for key, value in mask.items()
            }
        return self.attention(x, x, x, **mask)[0]


@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "sequence first"])
@pytest.mark.parametrize(
    "mask",
    ["none", "no weights", "boolean", "additive", "causal", "of each head", "padding", "padding and boolean"],
)
def test_self_attention(mask: str, batch_first: bool, caplog: pytest.LogCaptureFixture) -> None:
    model = randomise(Readout(SelfAttention(batch_first, mask), sequence_first=not batch_first))
    shape = (N, 3, 4) if batch_first else (3, N, 4)
    inputs = random_input(*shape)
    if not batch_first:
        # The images have to come first in what the model is given.
        model, inputs = nn.Sequential(Transpose(), model), inputs.transpose(0, 1)
    assert not left_to_autograd(caplog, model, inputs)


class Transpose(nn.Module):
    """The first two axes exchanged."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1)


class CrossAttention(nn.Module):
    """Attention to another sequence, of another width."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, kdim=3, vdim=5, bias=False, batch_first=True)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.attention(query, key=key, value=value)[0]


@pytest.mark.parametrize("approximation", ["full", "fixed"])
def test_cross_attention(approximation: str, caplog: pytest.LogCaptureFixture) -> None:
    model = randomise(Readout(CrossAttention()))
    inputs = (random_input(N, 2, 4), random_input(N, 5, 3, seed=2), random_input(N, 5, 5, seed=3))
    assert not left_to_autograd(caplog, model, inputs, approximation=approximation)


def test_attention_whose_weights_matter_is_left_to_autograd(caplog: pytest.LogCaptureFixture) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            out, weights = self.attention(x, x, x)
            return torch.cat([out.flatten(1), weights.flatten(1)], dim=1)

    assert (
        "layer.attention.in_proj_weight"
        in left_to_autograd(caplog, randomise(Readout(Both())), random_input(N, 3, 4), check=False)[0]
    )


@pytest.mark.parametrize(
    "options", [{"add_bias_kv": True}, {"add_zero_attn": True}], ids=lambda keywords: next(iter(keywords))
)
def test_attention_with_extra_keys_is_exact_too(options: dict[str, bool]) -> None:
    model = randomise(Readout(SelfAttention(True, "none", **options)))
    assert find_rule(model.layer.attention) is None
    check(model, random_input(N, 3, 4))


@pytest.mark.parametrize(
    "options", [{"max_norm": 0.5}, {"scale_grad_by_freq": True}], ids=lambda keywords: next(iter(keywords))
)
def test_embeddings_whose_gradient_is_not_a_derivative_have_no_rule(options: dict[str, Any]) -> None:
    assert find_rule(nn.Embedding(4, 3, **options)) is None
