"""torch.compile in four forms, chosen by BENCH_VARIANT.

split     compiled forward (AOTAutograd compiles its backward), compiled optimizer
fused     compiled forward and backward, eager fused optimizer
whole     one compiled function: gradient by torch.func, in-place update
autotune  `whole` with mode="max-autotune"
"""

import os

import torch
from peer_api import serve

from peers.torch_common import F, TorchTrainer, optimizer, versions


class Split(TorchTrainer):
    def __init__(self, *args):
        super().__init__(*args)
        loss_of, p = self.workload.loss, self.p
        self.loss = torch.compile(lambda p, batch: loss_of(F, p, batch))
        fused = os.environ["BENCH_VARIANT"] == "fused"
        self.optimizer = optimizer(
            self.workload.optimizer,
            p.values(),
            fused=fused or None,
            foreach=None if fused else True,
        )
        self.update = self.optimizer.step if fused else torch.compile(self.optimizer.step)

    def step(self):
        self.optimizer.zero_grad()
        loss = self.loss(self.p, self.batch)
        loss.backward()
        self.update()
        return loss.detach()


class Whole(TorchTrainer):
    def __init__(self, *args):
        super().__init__(*args)
        spec, loss_of = self.workload.optimizer, self.workload.loss
        self.p = {k: v.detach() for k, v in self.p.items()}
        self.state = [
            {k: torch.zeros_like(v) for k, v in self.p.items()}
            for _ in range(spec.states_per_param)
        ]
        self.count = torch.zeros(())

        def step(p, state, count, batch):
            grads, loss = torch.func.grad_and_value(lambda p: loss_of(F, p, batch))(p)
            if spec.kind == "adamw":
                b1, b2 = spec.betas
                count.add_(1)
                step_size = spec.lr / (1 - b1**count)
                root = torch.sqrt(1 - b2**count)
                for k, g in grads.items():
                    m, v = state[0][k], state[1][k]
                    m.lerp_(g, 1 - b1)
                    v.mul_(b2).addcmul_(g, g, value=1 - b2)
                    p[k].mul_(1 - spec.lr * spec.weight_decay)
                    p[k].sub_(step_size * m / (v.sqrt() / root + spec.eps))
            else:
                for k, g in grads.items():
                    if spec.kind == "momentum":
                        g = state[0][k].mul_(spec.momentum).add_(g)
                    p[k].sub_(g, alpha=spec.lr)
            return loss

        mode = "max-autotune" if os.environ["BENCH_VARIANT"] == "autotune" else None
        self.compiled = torch.compile(step, mode=mode, fullgraph=True)

    def step(self):
        return self.compiled(self.p, self.state, self.count, self.batch)


if __name__ == "__main__":
    serve({"whole": Whole, "autotune": Whole}.get(os.environ["BENCH_VARIANT"], Split), versions)
