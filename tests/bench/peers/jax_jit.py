"""jax.jit of gradient and update in one function, parameters and state donated."""

import jax
import jax.numpy as jnp
import numpy as np
from peer_api import Trainer, serve


class F:
    relu, tanh, sigmoid, exp = jax.nn.relu, jnp.tanh, jax.nn.sigmoid, jnp.exp
    sum, reshape = jnp.sum, jnp.reshape

    @staticmethod
    def gelu(x):
        return jax.nn.gelu(x, approximate=False)

    @staticmethod
    def linear(x, w, b):
        return x @ w + b

    @staticmethod
    def layernorm(x, g, b):
        mean = x.mean(-1, keepdims=True)
        centred = x - mean
        return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * g + b

    @staticmethod
    def embedding(table, ids):
        return table[ids]

    @staticmethod
    def causal_attention(qkv, heads):
        B, T, D3 = qkv.shape
        q, k, v = jnp.moveaxis(qkv.reshape(B, T, 3, heads, D3 // 3 // heads), 2, 0)
        return jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(B, T, D3 // 3)

    @staticmethod
    def cross_entropy(logits, y):
        logp = jax.nn.log_softmax(logits)
        return -jnp.take_along_axis(logp, y[:, None], 1).mean()

    @staticmethod
    def conv3x3(x, k, b):
        return jax.lax.conv(x, k, (1, 1), "SAME") + b[:, None, None]

    @staticmethod
    def maxpool2(x):
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def make_step(workload):
    spec = workload.optimizer

    def step(p, state, count, batch):
        loss, grads = jax.value_and_grad(lambda p: workload.loss(F, p, batch))(p)
        if spec.kind == "sgd":
            return {k: p[k] - spec.lr * g for k, g in grads.items()}, state, count, loss
        if spec.kind == "momentum":
            m = {k: spec.momentum * state[0][k] + g for k, g in grads.items()}
            return {k: p[k] - spec.lr * m[k] for k in p}, [m], count, loss
        (b1, b2), count = spec.betas, count + 1
        m = {k: b1 * state[0][k] + (1 - b1) * g for k, g in grads.items()}
        v = {k: b2 * state[1][k] + (1 - b2) * g * g for k, g in grads.items()}
        c1, c2 = 1 - b1**count, jnp.sqrt(1 - b2**count)
        new = {
            k: p[k] * (1 - spec.lr * spec.weight_decay)
            - spec.lr / c1 * m[k] / (jnp.sqrt(v[k]) / c2 + spec.eps)
            for k in p
        }
        return new, [m, v], count, loss

    return jax.jit(step, donate_argnums=(0, 1, 2))


class Jit(Trainer):
    def __init__(self, workload, params, batch, threads):
        self.p = jax.tree.map(jnp.array, params)
        self.state = [
            jax.tree.map(jnp.zeros_like, self.p) for _ in range(workload.optimizer.states_per_param)
        ]
        self.count = jnp.zeros(())
        self.batch = jax.tree.map(jnp.array, batch)
        self.compiled = make_step(workload)

    def step(self):
        self.p, self.state, self.count, loss = self.compiled(
            self.p, self.state, self.count, self.batch
        )
        return loss

    def wait(self, loss):
        jax.block_until_ready((self.p, self.state))
        return float(loss)

    def params(self):
        return {k: np.asarray(v) for k, v in self.p.items()}


if __name__ == "__main__":
    serve(Jit, lambda: {"jax": jax.__version__, "devices": str(jax.devices())})
