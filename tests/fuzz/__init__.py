"""A fuzzer: random user programs through the public API, run eager and compiled, and compared.

A program is Python text, so a failure can be pasted: tensors are set up, a function is written, and
a caller calls it, differentiates, and writes to what it holds. It is generated while it runs
eagerly, a statement at a time, so nearly every statement is meaningful (Csmith's and JAX's
generators know types only; here the values are at hand, too). A failure is shrunk by deleting
statements (Zeller and Hildebrandt's delta debugging, greedy).

    python -m tests.fuzz --programs 1000 --seed 0 --backend numpy
"""
