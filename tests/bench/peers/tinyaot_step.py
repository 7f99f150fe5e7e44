"""tinyaot's whole training step, compiled for the backend that BENCH_VARIANT names."""

import os

from peer_api import serve

import tinyaot as ta
from peers.tinyaot_common import TinyaotTrainer, versions


class Compiled(TinyaotTrainer):
    def __init__(self, *args):
        super().__init__(*args)
        self.compiled = ta.compile(self.train, backend=os.environ["BENCH_VARIANT"])

    def step(self):
        return self.compiled(self.batch)


if __name__ == "__main__":
    serve(Compiled, versions)
