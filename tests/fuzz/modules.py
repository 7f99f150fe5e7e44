"""Modules, optimizers and schedulers that a program may use: setups, as text."""

from __future__ import annotations

from typing import Any

G = Any  # the Generator

NET = """\
class Net(ta.nn.Module):
    def __init__(self):
        super().__init__()
        {made}

    def forward(self, x):
        {run}

m = Net()"""
# What `__init__` makes and `forward` does, of an x of three columns.
NETS = (
    (
        ("self.fc = ta.nn.Linear(3, 2)", "self.scale = ta.nn.Parameter(ta.tensor([0.5, -1.5]))"),
        ("return ta.tanh(self.fc(x)) * self.scale",),
    ),
    (  # running statistics: buffers that are written
        (
            "self.fc = ta.nn.Linear(3, 2)",
            "self.register_buffer('mean', ta.zeros(2))",
            "self.register_buffer('var', ta.ones(2))",
        ),
        ("return F.batch_norm(self.fc(x), self.mean, self.var, None, None, self.training)",),
    ),
    (
        ("self.norm = ta.nn.BatchNorm2d(3)", "self.fc = ta.nn.Linear(3, 2)"),
        ("y = self.norm(x.reshape(-1, 3, 1, 1))", "return self.fc(y.reshape(-1, 3))"),
    ),
    (  # a buffer that counts, and is read
        ("self.fc = ta.nn.Linear(3, 3)", "self.register_buffer('calls', ta.zeros(1))"),
        (
            "with ta.no_grad():",
            "    self.calls.add_(1)",
            "return self.fc(x) / self.calls",
        ),
    ),
    (  # one parameter in two places
        (
            "self.a = ta.nn.Linear(3, 3)",
            "self.b = ta.nn.Linear(3, 3)",
            "self.b.weight = self.a.weight",
        ),
        ("return x + F.dropout(self.b(ta.relu(self.a(x))), 0.5, self.training)",),
    ),
    (
        ("self.table = ta.nn.Embedding(4, 3)", "self.norm = ta.nn.LayerNorm(3)"),
        ("return self.norm(x + self.table(ta.argmax(x, dim=1)))",),
    ),
    (  # state that is rebound
        ("self.fc = ta.nn.Linear(3, 2)", "self.last = ta.zeros(2)"),
        ("y = self.fc(x)", "self.last = y.detach().sum(0)", "return y + self.last"),
    ),
    (
        ("self.fc = ta.nn.Linear(3, 2)", "self.parts = [ta.nn.Parameter(ta.ones(2)), 2.0]"),
        ("return self.fc(x) * self.parts[0] * self.parts[1]",),
    ),
)
LAYERS = (
    "ta.nn.ReLU()",
    "ta.nn.Dropout(0.5)",
    "ta.nn.GELU()",
    "ta.nn.LayerNorm(2)",
    "ta.nn.RMSNorm(2)",
    "ta.nn.Linear(2, 3)",
    "ta.nn.Linear(2, 3, bias=False)",
)
OPTIMIZERS = (
    "ta.optim.SGD({}, lr=0.1)",
    "ta.optim.SGD({}, lr=0.1, momentum=0.9)",
    "ta.optim.SGD({}, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1)",
    "ta.optim.Adam({}, lr=0.1)",
    "ta.optim.Adam({}, lr=0.05, weight_decay=0.1)",
    "ta.optim.AdamW({}, lr=0.05, weight_decay=0.1)",
    "ta.optim.AdamW({}, lr=0.05, betas=(0.8, 0.9))",
)
SCHEDULERS = ("ta.optim.CosineLR(o, 3)", "ta.optim.WarmupLR(o, 2)")


def module(g: G) -> str:
    """Makes `m`."""
    if g.chance(0.4):
        return f"m = ta.nn.Sequential(ta.nn.Linear(3, 2), {g.one_of(LAYERS)})"
    made, run = g.one_of(NETS)
    return NET.format(made="\n        ".join(made), run="\n        ".join(run))


def optimizer(g: G, parameters: str) -> list[str]:
    """Makes `o`, perhaps with a scheduler `s`."""
    found = [f"o = {g.one_of(OPTIMIZERS).format(parameters)}"]
    if g.chance(0.15):
        found.append(f"s = {g.one_of(SCHEDULERS)}")
    return found


def changes(g: G) -> list[str]:
    """What a caller may do to `m`, `o` and `s` between two calls."""
    found = []
    if "o" in g.space:
        found += ["o.lr = 0.05", "o.param_groups[0]['lr'] = 0.02", "o.zero_grad()"]
    if "s" in g.space:
        found += ["s.step()"] * 2
    if "m" in g.space:
        found += ["m.eval()", "m.train()", "m.load_state_dict(m.state_dict())"]
        name = next((n for n, p in g.space["m"].named_parameters() if p.ndim == 2), "")
        if name and name.count(".") == 1 and name[0] != "0":
            at = f"m.{name}"
            found.append(f"{at} = ta.nn.Parameter({at}.detach() * 0.5)")
    return found
