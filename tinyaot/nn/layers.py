"""Layers: a functional and the parameters it is called with. Names and initial values: torch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinyaot import functional as F
from tinyaot import ops
from tinyaot.errors import ArgumentError, ShapeError
from tinyaot.functional.common import pair
from tinyaot.functions.operands import check_device, mutate
from tinyaot.nn import init
from tinyaot.nn.module import Module
from tinyaot.nn.parameter import Parameter
from tinyaot.shapes import as_int, dtype_of, float32, int64, normalize_axis
from tinyaot.tape import no_grad
from tinyaot.tensor import Tensor


def filled(value: float, *shape: int, device: Any, dtype: Any) -> Parameter:
    """A parameter with one value everywhere; float32 by default."""
    check_device("Parameter", device)
    shape = tuple(as_int("a layer", n) for n in shape)
    if min(shape, default=0) < 0:
        raise ShapeError(f"a layer: sizes must not be negative, got {shape} for a parameter")
    chosen = float32 if dtype is None else dtype_of(dtype)
    return Parameter(ops.full(value=value, shape=shape, dtype=chosen))


def empty(*shape: int, device: Any, dtype: Any) -> Parameter:
    """A parameter that an initialiser will fill."""
    return filled(0.0, *shape, device=device, dtype=dtype)


# ---- linear maps and tables ---------------------------------------------------------------------


class Linear(Module):
    """x @ weight.T + bias, from [..., in_features] to [..., out_features]."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = empty(out_features, in_features, device=device, dtype=dtype)
        self.bias = empty(out_features, device=device, dtype=dtype) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new values: uniform within 1 / sqrt(in_features)."""
        init.fan_in_uniform_(self.weight, self.in_features)
        if self.bias is not None:
            init.fan_in_uniform_(self.bias, self.in_features)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        has_bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={has_bias}"


class Embedding(Module):
    """Rows of a table, from integers [...] to [..., embedding_dim]; drawn from N(0, 1)."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        if padding_idx is not None:
            padding_idx = normalize_axis("Embedding padding_idx", padding_idx, num_embeddings)
        self.padding_idx = padding_idx
        self.weight = empty(num_embeddings, embedding_dim, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new values; the padding row is zero."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                row = ops.slice_axis(self.weight, 0, self.padding_idx, self.padding_idx + 1)
                mutate("zero_", row, ops.zeros_like(row))

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(input, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


# ---- normalisations -----------------------------------------------------------------------------


def _shape_of(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    return (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)


class LayerNorm(Module):
    """`layer_norm` over the trailing dims, with a learnt scale and shift."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _shape_of(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        shape = self.normalized_shape
        self.weight = (
            filled(1.0, *shape, device=device, dtype=dtype) if elementwise_affine else None
        )
        self.bias = (
            filled(0.0, *shape, device=device, dtype=dtype) if elementwise_affine and bias else None
        )

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        affine = self.elementwise_affine
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={affine}"


class RMSNorm(Module):
    """`rms_norm` over the trailing dims, with a learnt scale."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        *,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _shape_of(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        shape = self.normalized_shape
        self.weight = (
            filled(1.0, *shape, device=device, dtype=dtype) if elementwise_affine else None
        )

    def forward(self, input: Tensor) -> Tensor:
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        affine = self.elementwise_affine
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={affine}"


class _BatchNorm(Module):
    """What batch norms of all ranks share: parameters, running statistics, their update."""

    ranks: tuple[int, ...] = ()

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        self.weight = filled(1.0, num_features, device=device, dtype=dtype) if affine else None
        self.bias = filled(0.0, num_features, device=device, dtype=dtype) if affine else None
        kind = float32 if dtype is None else dtype_of(dtype)
        mean = variance = batches = None
        if track_running_stats:
            mean = ops.full(value=0.0, shape=(num_features,), dtype=kind)
            variance = ops.full(value=1.0, shape=(num_features,), dtype=kind)
            batches = ops.full(value=0, shape=(), dtype=int64)
        self.register_buffer("running_mean", mean)
        self.register_buffer("running_var", variance)
        self.register_buffer("num_batches_tracked", batches)

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in self.ranks:
            ranks = " or ".join(f"{r}-d" for r in self.ranks)
            raise ShapeError(f"{type(self).__name__} takes {ranks} input, got {input.shape}")
        momentum: Any = self.momentum
        if self.training and self.num_batches_tracked is not None:
            with no_grad():
                batches = ops.add(self.num_batches_tracked, 1)
                mutate("add_", self.num_batches_tracked, batches)
                if momentum is None:  # a plain mean over all batches
                    momentum = ops.div(1.0, ops.cast(batches, dtype=float32))
        by_batch = self.training or self.running_mean is None
        moving = self.training and self.track_running_stats
        return F.batch_norm(
            input,
            self.running_mean if moving or not by_batch else None,
            self.running_var if moving or not by_batch else None,
            self.weight,
            self.bias,
            by_batch,
            momentum,
            self.eps,
        )

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, "
            f"affine={self.affine}, track_running_stats={self.track_running_stats}"
        )


class BatchNorm1d(_BatchNorm):
    """`batch_norm` of [n, channels] or [n, channels, length], with running statistics."""

    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """`batch_norm` of images [n, channels, height, width], with running statistics.

    `momentum=None` keeps a plain mean over all batches.
    """

    ranks = (4,)


# ---- windows ------------------------------------------------------------------------------------


class Conv2d(Module):
    """`conv2d` with a learnt kernel [out, in / groups, kh, kw] and bias; zero padding."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ArgumentError(
                f"Conv2d: {groups} groups do not divide {in_channels} and {out_channels} channels"
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = pair("Conv2d", "kernel_size", kernel_size)
        self.stride = pair("Conv2d", "stride", stride)
        if isinstance(padding, str) and padding not in ("same", "valid"):
            raise ArgumentError(
                f"Conv2d: padding must be an int, a pair, 'same' or 'valid', got {padding!r}"
            )
        self.padding = padding if isinstance(padding, str) else pair("Conv2d", "padding", padding)
        self.dilation = pair("Conv2d", "dilation", dilation)
        self.groups = groups
        self.weight = empty(
            out_channels, in_channels // groups, *self.kernel_size, device=device, dtype=dtype
        )
        self.bias = empty(out_channels, device=device, dtype=dtype) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new values: uniform within 1 / sqrt(elements that one output sees)."""
        fan_in, _ = init.fan_in_and_out(self.weight)
        init.fan_in_uniform_(self.weight, fan_in)
        if self.bias is not None:
            init.fan_in_uniform_(self.bias, fan_in)

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self.dilation,
            self.groups,
        )

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"groups={self.groups}, bias={self.bias is not None}"
        )
