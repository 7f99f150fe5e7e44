"""Optimizers and learning rate schedules, with torch's names and formulas."""

from tinyaot.optim.adam import Adam, AdamW
from tinyaot.optim.optimizer import Optimizer, ParamGroup
from tinyaot.optim.schedulers import CosineLR, Scheduler, WarmupLR
from tinyaot.optim.sgd import SGD

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "CosineLR",
    "Optimizer",
    "ParamGroup",
    "Scheduler",
    "WarmupLR",
]
