"""Dropout between the layers of an encoder: where it goes, and what it does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.dropout import Pieces, dropout
from tests.encoder.dropout_cases import conv_encoder
from tests.generators import seeded


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Residual(nn.Sequential):
    """A sequence with a forward pass of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


SHARED = nn.Linear(4, 4)
PIECES = [
    (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Block()), [1]),
    (Block(), [1]),
    (nn.Sequential(nn.Sequential(Block())), [1]),
    (nn.Sequential(nn.Linear(4, 4), SHARED, nn.Tanh(), SHARED), [2, 1, 1]),
    (Residual(nn.Linear(4, 4), nn.Linear(4, 4)), [1]),
]


class TestPieces:
    def test_dropout_goes_before_every_layer_but_the_first(self) -> None:
        encoder = conv_encoder()
        pieces = Pieces.of(encoder)
        second = encoder.backbone[2]
        assert pieces.start == (encoder.backbone[0], encoder.backbone[1])
        assert pieces.rest == ((second[0], second[1], second[2], encoder.backbone[3]), (encoder.head,))

    def test_without_dropout_it_is_the_encoder(self) -> None:
        encoder, images = conv_encoder(), torch.rand(5, 1, 8, 8)
        pieces = Pieces.of(encoder)
        seen: list[tuple[int, ...]] = []

        def look(h: Tensor) -> Tensor:
            seen.append(tuple(h.shape))
            return h

        assert torch.equal(pieces.finish(pieces.begin(images), look), encoder.raw(images))
        assert seen == [(5, 3, 6, 6), (5, 16)]

    def test_the_encoders_own_pass_draws_the_same(self) -> None:
        encoder, images = conv_encoder(), torch.rand(5, 1, 8, 8)
        pieces = Pieces.of(encoder)
        expected = pieces.finish(pieces.begin(images), dropout(0.5, seeded(0)))
        dropped = pieces.raw(images, dropout(0.5, seeded(0)))
        assert torch.equal(dropped, expected)
        assert not torch.equal(dropped, encoder.raw(images))
        assert not any(module._forward_pre_hooks for module in encoder.modules())

    def test_the_hooks_are_gone_after_an_error(self) -> None:
        encoder = conv_encoder()
        with pytest.raises(RuntimeError):
            Pieces.of(encoder).raw(torch.rand(5, 2, 8, 8), lambda h: h)
        assert not any(module._forward_pre_hooks for module in encoder.modules())

    def test_a_layer_that_runs_twice_is_not_hooked(self) -> None:
        layer = nn.Linear(4, 4)
        encoder = Encoder(nn.Sequential(nn.Linear(4, 4), layer, layer), nn.Linear(4, 2))
        pieces, x = Pieces.of(encoder), torch.rand(3, 4)
        expected = pieces.finish(pieces.begin(x), dropout(0.5, seeded(1)))
        assert torch.equal(pieces.raw(x, dropout(0.5, seeded(1))), expected)

    @pytest.mark.parametrize("backbone", [nn.Identity(), nn.Flatten(), nn.Sequential(nn.Linear(4, 4))])
    def test_the_head_always_has_it(self, backbone: nn.Module) -> None:
        encoder = Encoder(backbone, nn.Linear(4, 2))
        pieces, x = Pieces.of(encoder), torch.rand(3, 4)
        assert pieces.rest == ((encoder.head,),)
        assert torch.equal(pieces.finish(pieces.begin(x), lambda h: 0 * h), encoder.head.bias.expand(3, 2))

    @pytest.mark.parametrize(("backbone", "lengths"), PIECES)
    def test_the_pieces_make_up_the_encoder(self, backbone: nn.Module, lengths: list[int]) -> None:
        encoder = Encoder(backbone, nn.Linear(4, 2))
        pieces, x = Pieces.of(encoder), torch.rand(3, 4)
        assert [len(piece) for piece in pieces.rest] == lengths
        assert torch.equal(pieces.finish(pieces.begin(x), lambda h: h), encoder.raw(x))
        assert Pieces.of(encoder, only_head=True).rest == ((encoder.head,),)


class TestDropout:
    def test_it_drops_the_rate_and_keeps_the_mean(self) -> None:
        h = torch.full((400, 500), 3.0, dtype=torch.float64)
        dropped = dropout(0.2, seeded(0))(h)
        assert dropped.dtype == torch.float64
        assert dropped.unique().tolist() == [0.0, pytest.approx(3.0 / 0.8)]
        share = float((dropped == 0).double().mean())
        assert abs(share - 0.2) < 5 * (0.2 * 0.8 / h.numel()) ** 0.5

    def test_independent_masks_differ_between_images_and_shared_ones_do_not(self) -> None:
        h = torch.ones(6, 3, 5, 5)
        shared, own = (dropout(0.5, seeded(0), shared=flag)(h) for flag in (True, False))
        assert bool((shared == shared[0]).all())
        assert not bool((own == own[0]).all())
        assert 0 < float((shared[0, 0] == 0).float().mean()) < 1  # entry by entry, not channel by channel

    def test_a_shared_mask_does_not_depend_on_how_many_images_there_are(self) -> None:
        few, many = (dropout(0.5, seeded(3), shared=True)(torch.ones(n, 40)) for n in (1, 7))
        assert torch.equal(few[0], many[5])

    def test_rate_zero_changes_nothing(self) -> None:
        h = torch.rand(4, 4)
        assert dropout(0.0, seeded(0))(h) is h
