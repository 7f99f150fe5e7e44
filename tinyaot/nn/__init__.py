"""Models: modules, layers and their functional forms (`nn.functional`), with torch's names."""

from tinyaot.nn import functional, init
from tinyaot.nn.attention import MultiHeadAttention
from tinyaot.nn.clip import clip_grad_norm_
from tinyaot.nn.containers import ModuleList, Sequential
from tinyaot.nn.layers import (
    BatchNorm1d,
    BatchNorm2d,
    Conv2d,
    Embedding,
    LayerNorm,
    Linear,
    RMSNorm,
)
from tinyaot.nn.module import Module
from tinyaot.nn.parameter import Parameter
from tinyaot.nn.stateless import (
    GELU,
    AvgPool2d,
    Dropout,
    Flatten,
    Identity,
    MaxPool2d,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)

__all__ = [
    "GELU",
    "AvgPool2d",
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv2d",
    "Dropout",
    "Embedding",
    "Flatten",
    "Identity",
    "LayerNorm",
    "Linear",
    "MaxPool2d",
    "Module",
    "ModuleList",
    "MultiHeadAttention",
    "Parameter",
    "RMSNorm",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
    "clip_grad_norm_",
    "functional",
    "init",
]
