"""What an encoder computes, what it refuses, and its fingerprint."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from laplacian_metric.encoder import Encoder
from tests.encoder.models import JacobianLinear, Tokens


def make(normalize: bool = True) -> Encoder:
    torch.manual_seed(0)
    return Encoder(nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.Tanh()), nn.Linear(6, 3), normalize)


@settings(max_examples=15)
@given(count=st.integers(0, 5), width=st.integers(1, 6), dim=st.integers(1, 5), bias=st.booleans())
def test_against_plain_products(count: int, width: int, dim: int, bias: bool) -> None:
    h = torch.randn(count, width, dtype=torch.float64) + 0.1
    head = nn.Linear(width, dim, bias=bias, dtype=torch.float64)
    encoder = Encoder(nn.Identity(), head)
    u = h @ head.weight.T + (head.bias if bias else 0)
    assert torch.equal(encoder.features(h), h)
    torch.testing.assert_close(encoder.raw(h), u)
    torch.testing.assert_close(encoder(h), torch.stack([x / x.norm() for x in u]) if count else u)
    torch.testing.assert_close(Encoder(nn.Identity(), head, normalize=False)(h), u)
    assert (encoder.num_features, encoder.dim) == (width, dim)


def test_gradients_go_through_the_norm() -> None:
    encoder = make().double()
    images = torch.randn(3, 12, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(encoder, (images,))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_embeddings_are_finite_where_their_squares_are_not(dtype: torch.dtype) -> None:
    head = nn.Linear(2, 2, bias=False, dtype=dtype)
    with torch.no_grad():
        head.weight.copy_(torch.eye(2))
    z = Encoder(nn.Identity(), head)(torch.tensor([[30000.0, 40000.0]], dtype=dtype))
    assert z.dtype == dtype
    torch.testing.assert_close(z.float(), torch.tensor([[0.6, 0.8]]), atol=1e-2, rtol=0)


def test_it_has_the_modes_that_its_modules_have() -> None:
    backbone = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    encoder = Encoder(backbone, nn.Linear(4, 2))
    assert not encoder.training
    assert not backbone[1].training
    encoder(torch.randn(2, 4))
    assert not backbone[1].training
    assert encoder.train().backbone[1].training  # type: ignore[index]


def test_a_tuple_a_dictionary_and_plain_arguments_are_the_same() -> None:
    encoder = Encoder.from_module(Tokens())
    ids = torch.randint(20, (4, 5))
    mask = torch.rand(4, 5) > 0.3
    mask[:, 0] = True
    expected = encoder(ids, mask)
    for given_inputs in ((ids, mask), [ids, mask], {"ids": ids, "mask": mask}):
        assert torch.equal(encoder(given_inputs), expected)
        assert torch.equal(encoder.raw(given_inputs), encoder.raw(ids, mask=mask))
    assert torch.equal(encoder(ids), encoder({"ids": ids}))
    assert not torch.equal(encoder(ids), expected)


def test_many_weights_at_once_by_vmap() -> None:
    encoder = make()
    images = torch.randn(4, 12)
    weights = torch.randn(5, 3, 6)

    def embed(weight: Tensor) -> Tensor:
        return torch.func.functional_call(encoder, {"head.weight": weight}, (images,))  # type: ignore[no-any-return]

    h = encoder.features(images)
    expected = F.normalize(torch.einsum("szh,nh->snz", weights, h) + encoder.head.bias, dim=2)
    torch.testing.assert_close(torch.func.vmap(embed)(weights), expected)


def test_a_head_with_a_forward_pass_of_its_own_may_compute_the_same() -> None:
    class Same(JacobianLinear):
        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.T + self.bias

    assert isinstance(Encoder(nn.Identity(), Same(4, 2)).head, Same)


# --- fingerprint ---


def test_the_fingerprint_changes_with_everything_that_is_a_tensor() -> None:
    torch.manual_seed(0)
    encoder = Encoder(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.Linear(4, 2))
    seen = {encoder.fingerprint()}
    changed = copy.deepcopy(encoder)
    assert changed.fingerprint() in seen
    for name, tensor in [*changed.named_parameters(), *changed.named_buffers()]:
        with torch.no_grad():
            tensor.view(-1)[-1:] += 1
        fingerprint = changed.fingerprint()
        assert fingerprint not in seen, name
        seen.add(fingerprint)
    changed.normalize = False
    assert changed.fingerprint() not in seen


def test_the_fingerprint_does_not_change_with_anything_else() -> None:
    encoder = make()
    before = encoder.fingerprint()
    assert len(before) == 64
    assert int(before, 16) >= 0
    encoder.eval().requires_grad_(False)
    assert encoder.fingerprint() == before
    with torch.no_grad():  # another layout of the same numbers
        encoder.head.weight = nn.Parameter(encoder.head.weight.T.contiguous().T)
    assert not encoder.head.weight.is_contiguous()
    assert encoder.fingerprint() == before
    encoder(torch.randn(2, 12))
    assert encoder.fingerprint() == before


def test_the_fingerprint_tells_shapes_names_and_dtypes_apart() -> None:
    def of(backbone: nn.Module) -> str:
        head = nn.Linear(2, 2)
        for parameter in (*backbone.parameters(), *head.parameters()):
            nn.init.zeros_(parameter)
        return Encoder(backbone, head).fingerprint()

    class Named(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.register_buffer(name, torch.zeros(2))

    backbones = [
        nn.Linear(2, 3),
        nn.Linear(3, 2, bias=True),
        nn.Linear(2, 3, dtype=torch.float64),
        nn.Linear(2, 3, dtype=torch.bfloat16),
        nn.Sequential(nn.Linear(2, 3)),
        Named("a"),
        Named("b"),
        nn.Identity(),
    ]
    assert len({of(backbone) for backbone in backbones}) == len(backbones)
