"""HIPS autograd over numpy, updates in place."""

import importlib.metadata

import autograd.numpy as np
import numpy
from autograd import value_and_grad
from autograd.scipy.special import erf
from peer_api import Trainer, serve


class F:
    tanh, exp, sum, reshape = np.tanh, np.exp, np.sum, np.reshape

    @staticmethod
    def relu(x):
        return np.maximum(x, np.float32(0))

    @staticmethod
    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    @staticmethod
    def gelu(x):
        return 0.5 * x * (1 + erf(x * 0.5**0.5))

    @staticmethod
    def linear(x, w, b):
        if x.ndim == 2:
            return np.dot(x, w) + b
        flat = np.dot(np.reshape(x, (-1, x.shape[-1])), w) + b
        return np.reshape(flat, (*x.shape[:-1], w.shape[1]))

    @staticmethod
    def layernorm(x, g, b):
        centred = x - np.mean(x, -1, keepdims=True)
        return centred / np.sqrt(np.mean(centred * centred, -1, keepdims=True) + 1e-5) * g + b

    @staticmethod
    def embedding(table, ids):
        return table[ids]

    @staticmethod
    def causal_attention(qkv, heads):
        B, T, D3 = qkv.shape
        qkv = np.transpose(np.reshape(qkv, (B, T, 3, heads, D3 // 3 // heads)), (2, 0, 3, 1, 4))
        q, k, v = qkv[0], qkv[1], qkv[2]
        mask = numpy.triu(numpy.full((T, T), -numpy.inf, numpy.float32), 1)
        scores = np.matmul(q, np.swapaxes(k, -1, -2)) * (D3 // 3 // heads) ** -0.5 + mask
        e = np.exp(scores - np.max(scores, -1, keepdims=True))
        out = np.matmul(e / np.sum(e, -1, keepdims=True), v)
        return np.reshape(np.transpose(out, (0, 2, 1, 3)), (B, T, D3 // 3))

    @staticmethod
    def cross_entropy(logits, y):
        shifted = logits - np.max(logits, -1, keepdims=True)
        logp = shifted - np.log(np.sum(np.exp(shifted), -1, keepdims=True))
        return -np.mean(logp[numpy.arange(len(y)), y])

    @staticmethod
    def conv3x3(x, k, b):
        n, c, h, w = x.shape
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), "constant")
        columns = np.stack(
            [padded[:, :, i : i + h, j : j + w] for i in range(3) for j in range(3)], 2
        )
        columns = np.reshape(np.transpose(columns, (0, 3, 4, 1, 2)), (n * h * w, c * 9))
        out = np.dot(columns, np.transpose(np.reshape(k, (k.shape[0], -1)))) + b
        return np.transpose(np.reshape(out, (n, h, w, -1)), (0, 3, 1, 2))

    @staticmethod
    def maxpool2(x):
        n, c, h, w = x.shape
        return np.max(np.reshape(x, (n, c, h // 2, 2, w // 2, 2)), (3, 5))


def update(spec, p, g, state, count):
    if spec.kind == "adamw":
        (b1, b2), (m, v) = spec.betas, state
        m *= b1
        m += (1 - b1) * g
        v *= b2
        v += (1 - b2) * g * g
        p *= 1 - spec.lr * spec.weight_decay
        g = m / (numpy.sqrt(v) / (1 - b2**count) ** 0.5 + spec.eps)
        p -= spec.lr / (1 - b1**count) * g
        return
    if spec.kind == "momentum":
        state[0] *= spec.momentum
        state[0] += g
        g = state[0]
    p -= spec.lr * g


class Numpy(Trainer):
    def __init__(self, workload, params, batch, threads):
        self.p, self.spec, self.count = params, workload.optimizer, 0
        self.state = {
            k: [numpy.zeros_like(v) for _ in range(self.spec.states_per_param)]
            for k, v in params.items()
        }
        self.value_and_grad = value_and_grad(lambda p: workload.loss(F, p, batch))

    def step(self):
        loss, grads = self.value_and_grad(self.p)
        self.count += 1
        for k, g in grads.items():
            update(self.spec, self.p[k], g, self.state[k], self.count)
        return loss

    def params(self):
        return self.p


def versions():
    return {name: importlib.metadata.version(name) for name in ("autograd", "numpy", "scipy")}


if __name__ == "__main__":
    serve(Numpy, versions)
