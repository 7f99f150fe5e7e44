"""PyTensor: one function of gradient and updates, in its default mode (numba)."""

import numpy as np
import pytensor
import pytensor.tensor as pt
from peer_api import Trainer, serve


class F:
    tanh, sigmoid, exp, sum, reshape = pt.tanh, pt.sigmoid, pt.exp, pt.sum, pt.reshape

    @staticmethod
    def relu(x):
        return pt.maximum(x, np.float32(0))

    @staticmethod
    def gelu(x):
        return np.float32(0.5) * x * (np.float32(1) + pt.erf(x * np.float32(0.5**0.5)))

    @staticmethod
    def linear(x, w, b):
        if x.ndim == 2:
            return pt.dot(x, w) + b
        flat = pt.dot(x.reshape((-1, x.shape[-1])), w) + b
        return flat.reshape((x.shape[0], x.shape[1], w.shape[1]))

    @staticmethod
    def layernorm(x, g, b):
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        return centred / pt.sqrt(variance + np.float32(1e-5)) * g + b

    @staticmethod
    def embedding(table, ids):
        return table[ids]

    @staticmethod
    def causal_attention(qkv, heads):
        B, T, D3 = qkv.type.shape
        d = D3 // 3 // heads
        q, k, v = (
            qkv.reshape((B, T, 3, heads, d))[:, :, i].transpose(0, 2, 1, 3) for i in range(3)
        )
        mask = np.triu(np.full((T, T), -1e30, np.float32), 1)
        scores = pt.matmul(q, k.transpose(0, 1, 3, 2)) * np.float32(d**-0.5) + mask
        out = pt.matmul(pt.special.softmax(scores, axis=-1), v)
        return out.transpose(0, 2, 1, 3).reshape((B, T, D3 // 3))

    @staticmethod
    def cross_entropy(logits, y):
        logp = pt.special.log_softmax(logits, axis=-1)
        return -logp[pt.arange(y.shape[0]), y].mean()

    @staticmethod
    def conv3x3(x, k, b):
        raise NotImplementedError("not written for pytensor")


def share(value, name):
    return pytensor.shared(value, name=name, borrow=True, shape=value.shape)


class Function(Trainer):
    def __init__(self, workload, params, batch, threads):
        spec = workload.optimizer
        self.p = {k: share(v, k) for k, v in params.items()}
        data = {k: share(v, k) for k, v in batch.items()}
        loss = workload.loss(F, self.p, data)
        grads = dict(zip(self.p, pt.grad(loss, list(self.p.values()))))
        updates, f32 = {}, np.float32
        count = pytensor.shared(np.float32(0))
        if spec.kind == "adamw":
            updates[count] = count + f32(1)
            c1 = f32(1) - f32(spec.betas[0]) ** updates[count]
            c2 = pt.sqrt(f32(1) - f32(spec.betas[1]) ** updates[count])
        for k, g in grads.items():
            state = [share(np.zeros_like(params[k]), k) for _ in range(spec.states_per_param)]
            if spec.kind == "adamw":
                b1, b2 = map(f32, spec.betas)
                m = updates[state[0]] = b1 * state[0] + (f32(1) - b1) * g
                v = updates[state[1]] = b2 * state[1] + (f32(1) - b2) * g * g
                move = f32(spec.lr) / c1 * m / (pt.sqrt(v) / c2 + f32(spec.eps))
                updates[self.p[k]] = self.p[k] * f32(1 - spec.lr * spec.weight_decay) - move
                continue
            if spec.kind == "momentum":
                g = updates[state[0]] = f32(spec.momentum) * state[0] + g
            updates[self.p[k]] = self.p[k] - f32(spec.lr) * g
        self.step = pytensor.function([], loss, updates=updates)
        self.step.trust_input = True

    def params(self):
        return {k: v.get_value() for k, v in self.p.items()}


if __name__ == "__main__":
    serve(Function, lambda: {"pytensor": pytensor.__version__, "linker": pytensor.config.linker})
