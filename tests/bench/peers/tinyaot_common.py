"""tinyaot: the operations, parameters and optimizers that its peers share.

Everything here is the public API, used as its user would.
"""

import os

from peer_api import Trainer

import tinyaot as ta
from tinyaot.nn import functional as tf


class F:
    relu, gelu, tanh, sigmoid = tf.relu, tf.gelu, tf.tanh, tf.sigmoid
    exp, sum, reshape, cross_entropy = ta.exp, ta.sum, ta.reshape, tf.cross_entropy

    @staticmethod
    def linear(x, w, b):
        return x @ w + b

    @staticmethod
    def layernorm(x, g, b):
        return tf.layer_norm(x, x.shape[-1:], g, b)

    @staticmethod
    def embedding(table, ids):
        return tf.embedding(ids, table)

    @staticmethod
    def causal_attention(qkv, heads):
        B, T, D3 = qkv.shape
        q, k, v = qkv.reshape(B, T, 3, heads, D3 // 3 // heads).permute(2, 0, 3, 1, 4).unbind(0)
        out = tf.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(1, 2).reshape(B, T, D3 // 3)

    @staticmethod
    def conv3x3(x, k, b):
        return tf.conv2d(x, k, b, padding=1)

    @staticmethod
    def maxpool2(x):
        return tf.max_pool2d(x, 2)


def versions():
    return {"tinyaot": ta.__version__, "variant": os.environ["BENCH_VARIANT"]}


def optimizer(spec, params):
    if spec.kind == "adamw":
        return ta.optim.AdamW(
            params, lr=spec.lr, betas=spec.betas, eps=spec.eps, weight_decay=spec.weight_decay
        )
    return ta.optim.SGD(params, lr=spec.lr, momentum=spec.momentum)


class TinyaotTrainer(Trainer):
    """Holds what a training step is made of; `train` is the step, as a user writes it."""

    def __init__(self, workload, params, batch, threads):
        self.p = {k: ta.tensor(params.pop(k), requires_grad=True) for k in list(params)}
        self.batch = {k: ta.tensor(v) for k, v in batch.items()}
        self.optimizer = optimizer(workload.optimizer, self.p.values())
        self.loss_of = workload.loss

    def train(self, batch):
        self.optimizer.zero_grad()
        loss = self.loss_of(F, self.p, batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def step(self):
        return self.train(self.batch)

    def wait(self, loss):
        return loss.item()

    def params(self):
        return {k: v.numpy() for k, v in self.p.items()}
