"""PyTorch: the operations, parameters and optimizers that its peers share."""

import torch
import torch.nn.functional as tf
from peer_api import Trainer


class F:
    relu, gelu, tanh, sigmoid, exp = tf.relu, tf.gelu, torch.tanh, torch.sigmoid, torch.exp
    sum, reshape, cross_entropy = torch.sum, torch.reshape, tf.cross_entropy

    @staticmethod
    def linear(x, w, b):
        return tf.linear(x, w.t(), b)

    @staticmethod
    def layernorm(x, g, b):
        return tf.layer_norm(x, x.shape[-1:], g, b, 1e-5)

    @staticmethod
    def embedding(table, ids):
        return tf.embedding(ids, table)

    @staticmethod
    def causal_attention(qkv, heads):
        B, T, D3 = qkv.shape
        q, k, v = qkv.view(B, T, 3, heads, D3 // 3 // heads).permute(2, 0, 3, 1, 4)
        out = tf.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(1, 2).reshape(B, T, D3 // 3)

    @staticmethod
    def conv3x3(x, k, b):
        return tf.conv2d(x, k, b, padding=1)

    @staticmethod
    def maxpool2(x):
        return tf.max_pool2d(x, 2)


def versions():
    return {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}


def optimizer(spec, params, **how):
    params = list(params)
    if spec.kind == "adamw":
        return torch.optim.AdamW(
            params,
            lr=spec.lr,
            betas=spec.betas,
            eps=spec.eps,
            weight_decay=spec.weight_decay,
            **how,
        )
    return torch.optim.SGD(params, lr=spec.lr, momentum=spec.momentum, **how)


class TorchTrainer(Trainer):
    def __init__(self, workload, params, batch, threads):
        torch.set_num_threads(threads)
        self.workload = workload
        self.p = {k: torch.from_numpy(v).requires_grad_() for k, v in params.items()}
        self.batch = {k: torch.from_numpy(v) for k, v in batch.items()}

    def wait(self, loss):
        return loss.item()

    def params(self):
        return {k: v.detach().numpy() for k, v in self.p.items()}
