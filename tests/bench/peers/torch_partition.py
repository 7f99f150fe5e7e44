"""What torch's partitioner does with the models of `partition_models`: one JSON object on stdout.

For each model and each `activation_memory_budget`: bytes of the storages that the forward hands to
the backward beyond its own inputs, FLOPs beyond those of the unpartitioned graph (products by
2mnk, any other op one an element), and whether the backward had the masks of the forward.
"""

import json
import math
import operator
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch._functorch.config as config
from functorch.compile import min_cut_rematerialization_partition
from partition_models import BUDGETS, MODELS, batch_of, loss_of
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.compile_utils import fx_graph_cse
from torch._functorch.partitioners import default_partition
from torch._inductor.decomposition import select_decomp_table

aten = torch.ops.aten
STEP = 0.05  # length of the step whose slope is compared
VIEWS = {
    aten.view, aten._unsafe_view, aten.permute, aten.t, aten.transpose, aten.expand, aten.unsqueeze,
    aten.squeeze, aten.select, aten.slice, aten.alias, aten.detach, aten.reshape, aten.split,
    aten.unbind, aten.as_strided,
}  # fmt: skip


def packet(node):
    return getattr(node.target, "overloadpacket", None)


def root(node):
    """The node whose storage this one sees."""
    while node.op == "call_function" and (packet(node) in VIEWS):
        node = node.args[0]
    return node


def flops_of(node):
    value = node.meta.get("val")
    if node.op != "call_function" or packet(node) in VIEWS or not isinstance(value, torch.Tensor):
        return 0
    if packet(node) in (aten.mm, aten.bmm, aten.addmm):
        left = node.args[1 if packet(node) is aten.addmm else 0].meta["val"]
        return 2 * value.numel() * left.shape[-1]
    return value.numel()


def flops(graph):
    return sum(map(flops_of, graph.nodes))


def size(node):
    value = node.meta.get("val")
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


def split_graph(joint, outputs):
    """The joint graph as a partitioner sees it: by the name of each forward storage that the
    backward may want, its bytes, FLOPs, what it is computed from, and whether it is read."""
    given = next(n for n in joint.nodes if n.op == "output").args[0]
    free = {n for n in joint.nodes if n.op == "placeholder"} | {root(n) for n in given[:outputs]}
    backward = set()
    for n in joint.nodes:
        if (n.op == "placeholder" and "tangents" in n.name) or backward & set(n.all_input_nodes):
            backward.add(n)
    ends = {n for n in given[outputs:] if isinstance(n, torch.fx.Node)}
    runs, stack = set(), list(given[:outputs])
    while stack:
        n = stack.pop()
        if n not in runs:
            runs.add(n)
            stack += n.all_input_nodes

    def wanted(nodes):
        found = {}
        for n in map(root, nodes):
            while n.target is operator.getitem:  # of an op of several results: decided as one
                n = root(n.args[0])
            if n not in free and n not in backward and n.op == "call_function":
                found[n.name] = None
        return list(found)

    rows = {}
    for n in joint.nodes:
        is_own = root(n) is n and n.target is not operator.getitem and n.op == "call_function"
        if is_own and n not in backward and n not in free:
            parts = [u for u in n.users if u.target is operator.getitem]
            cost = sum(map(flops_of, [n, *parts])) if n in runs else 0
            rows[n.name] = [sum(map(size, [n, *parts])), cost, wanted(n.all_input_nodes)]
    read = wanted(i for n in backward for i in n.all_input_nodes if i not in backward)
    read += wanted(n for n in ends if n not in backward)
    return {"rows": rows, "read": sorted(set(read))}


def arrays(name):
    torch.manual_seed(1)
    made = []
    for kind, shape, classes in batch_of(name):
        if kind == "classes":
            made.append(torch.randint(0, classes, shape))
        elif kind == "normal":
            made.append(torch.randn(shape))
        else:
            made.append(torch.full(shape, -1e9).triu(1))
    return made


def run(name, budget, partition):
    """(names of the storages saved, their bytes, FLOPs of both halves, masks right, graph)."""
    torch._dynamo.reset()
    config.activation_memory_budget = budget
    torch.manual_seed(0)
    net = MODELS[name](torch.nn, torch.nn.functional)
    loss = loss_of(name, net, torch.nn.functional)
    batch, graphs = arrays(name), {}

    def keep(half):
        def compiler(module, inputs):
            graphs[half] = module
            return module

        return compiler

    def look(joint, inputs, *, num_fwd_outputs, **options):
        # Equal nodes are merged first, as torch's partitioner does.
        graphs["joint"] = split_graph(fx_graph_cse(joint.graph), num_fwd_outputs)
        return partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **options)

    backend = aot_autograd(
        fw_compiler=keep("forward"),
        bw_compiler=keep("backward"),
        partition_fn=look,
        decompositions=select_decomp_table(),
    )
    same = agrees(torch.compile(loss, backend=backend), net, batch)
    forward = graphs["forward"].graph
    given = next(n for n in forward.nodes if n.op == "output").args[0]
    stored = {root(n): n for n in given[1:] if isinstance(n, torch.fx.Node)}
    user = root(given[0])
    saved = {}
    for base in stored:
        if base.op != "placeholder" and base is not user and size(base):
            whole = base.args[0] if base.target is operator.getitem else base
            saved[whole.name] = saved.get(whole.name, 0) + size(base)
    total = flops(forward) + flops(graphs["backward"].graph)
    return list(saved), sum(saved.values()), total, same, graphs["joint"]


def agrees(loss, net, batch):
    """Whether the gradient is the slope of the loss along itself. The seed fixes the forward's
    masks; a backward that draws others has a gradient of something else."""

    def value(shift):
        with torch.no_grad():
            for p, g in zip(net.parameters(), gradient):
                p += shift * g
        torch.manual_seed(2)
        found = loss(*batch)
        with torch.no_grad():
            for p, g in zip(net.parameters(), gradient):
                p -= shift * g
        return found

    torch.manual_seed(2)
    loss(*batch).backward()
    gradient = [p.grad.clone() for p in net.parameters()]
    square = sum(float((g * g).sum()) for g in gradient)
    step = STEP / math.sqrt(square)
    slope = float(value(step) - value(-step)) / (2 * step)
    return abs(slope - square) < 0.05 * square


def main():
    found = {"torch": torch.__version__}
    for name in MODELS:
        *_, base, _, graph = run(name, 1.0, default_partition)
        rows = {}
        for budget in (1.0, *BUDGETS, 0.0):
            saved, nbytes, total, same, _ = run(name, budget, min_cut_rematerialization_partition)
            rows[budget] = {
                "saved": saved,
                "bytes": nbytes,
                "flops": total - base,
                "masks": same,
            }
        found[name] = {"graph": graph, "budgets": rows}
    print(json.dumps(found))


main()
