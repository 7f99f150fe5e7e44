"""tinygrad's TinyJit on its CPU device (kernels compiled by clang)."""

import importlib.metadata

from peer_api import Trainer, serve
from tinygrad import Context, Device, Tensor, TinyJit
from tinygrad.nn.optim import SGD, AdamW


class F:
    relu, tanh, sigmoid, exp = Tensor.relu, Tensor.tanh, Tensor.sigmoid, Tensor.exp
    sum, reshape = Tensor.sum, Tensor.reshape

    @staticmethod
    def gelu(x):
        return 0.5 * x * (1 + (x * 0.5**0.5).erf())

    @staticmethod
    def linear(x, w, b):
        return x.linear(w, b)

    @staticmethod
    def layernorm(x, g, b):
        return x.layernorm(eps=1e-5) * g + b

    @staticmethod
    def embedding(table, ids):
        return table[ids]

    @staticmethod
    def causal_attention(qkv, heads):
        B, T, D3 = qkv.shape
        q, k, v = qkv.reshape(B, T, 3, heads, D3 // 3 // heads).permute(2, 0, 3, 1, 4).split(1)
        out = q[0].scaled_dot_product_attention(k[0], v[0], is_causal=True)
        return out.transpose(1, 2).reshape(B, T, D3 // 3)

    @staticmethod
    def cross_entropy(logits, y):
        return logits.sparse_categorical_crossentropy(y)

    @staticmethod
    def conv3x3(x, k, b):
        return x.conv2d(k, b, padding=1)

    @staticmethod
    def maxpool2(x):
        return x.max_pool2d((2, 2))


class Jit(Trainer):
    def __init__(self, workload, params, batch, threads):
        spec = workload.optimizer
        self.p = {k: Tensor(v).contiguous().realize() for k, v in params.items()}
        self.p = {k: v.is_param_() if hasattr(v, "is_param_") else v for k, v in self.p.items()}
        data = {k: Tensor(v).contiguous().realize() for k, v in batch.items()}
        tensors = list(self.p.values())
        if spec.kind == "adamw":
            opt = AdamW(
                tensors,
                lr=spec.lr,
                b1=spec.betas[0],
                b2=spec.betas[1],
                eps=spec.eps,
                weight_decay=spec.weight_decay,
            )
        else:
            opt = SGD(tensors, lr=spec.lr, momentum=spec.momentum)

        @TinyJit
        def step():
            with Context(TRAINING=1):
                opt.zero_grad()
                loss = workload.loss(F, self.p, data)
                loss.backward()
                return loss.realize(*opt.schedule_step())

        self.step = step

    def wait(self, loss):
        Device["CPU"].synchronize()
        return loss.item()

    def params(self):
        return {k: v.numpy() for k, v in self.p.items()}


if __name__ == "__main__":
    serve(Jit, lambda: {"tinygrad": importlib.metadata.version("tinygrad")})
