"""torch eager with its fused CPU optimizers."""

from peer_api import serve

from peers.torch_common import F, TorchTrainer, optimizer, versions


class Eager(TorchTrainer):
    def __init__(self, *args):
        super().__init__(*args)
        self.optimizer = optimizer(self.workload.optimizer, self.p.values(), fused=True)

    def step(self):
        self.optimizer.zero_grad()
        loss = self.workload.loss(F, self.p, self.batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


if __name__ == "__main__":
    serve(Eager, versions)
