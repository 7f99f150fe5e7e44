"""What optimizers share: groups of parameters, their state, and the walk of a step.

An update is plain Python over primitives, so it can be traced with the rest of a training step. All
state is allocated at construction, so a trace finds it; hyperparameters that may change at any time
are read through the engine, so a compiled step takes them as inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, cast

from tinyaot.errors import ArgumentError, DTypeError, ShapeError
from tinyaot.functional.common import forget_gradients, to_dtype, wide
from tinyaot.functions.operands import as_tensor, mutate
from tinyaot.shapes import brief
from tinyaot.tape import enable_grad, no_grad, quiet
from tinyaot.tensor import Tensor, engine

State = dict[str, Tensor]  # of one parameter


class _Number:
    """An attribute that may change at any time: compiled steps take it as an input. They are told
    of code that reads it as a Python number (they are right for this number alone) or sets it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, group: Any, owner: type) -> Any:
        engine().touch_hyper(group, self.name, False)
        return vars(group)[self.name]

    def __set__(self, group: Any, value: Any) -> None:
        engine().touch_hyper(group, self.name, True)
        vars(group)[self.name] = value


class ParamGroup:
    """Parameters with the same hyperparameters, which are attributes (and items, as in torch).

    `state[i]` belongs to `params[i]`.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("lr",)  # read anew at every compiled step
    lr = _Number()

    def __init__(self, params: list[Tensor], options: Mapping[str, Any]) -> None:
        self.params = params
        self.state: list[State] = []
        self.__dict__.update(options)

    def __getitem__(self, name: str) -> Any:
        if name not in self.__dict__:
            raise KeyError(name)
        return getattr(self, name)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def __contains__(self, name: object) -> bool:
        return name in self.__dict__

    def options(self) -> dict[str, Any]:
        """The hyperparameters by name."""
        return {k: self[k] for k in vars(self) if k not in ("params", "state")}

    def __repr__(self) -> str:
        listed = ", ".join(f"{k}={v}" for k, v in self.options().items())
        return f"{len(self.params)} parameters, {listed}"


class Optimizer:
    """Base of optimizers. A subclass says what state a parameter has (`initial_state`) and how it
    moves (`update`).

    `params` is an iterable of leaf tensors, or of dicts {"params": ..., option: value}, which make
    a group each. Raises ArgumentError for no parameters, one given twice or a non-leaf.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("lr",)

    def __init__(self, params: Iterable[Any], defaults: Mapping[str, Any]) -> None:
        if isinstance(params, (Tensor, Mapping)):
            raise DTypeError(
                f"{self._name}: params must be an iterable of tensors or of dicts, got "
                f"one {type(params).__name__}; put it in a list"
            )
        if not isinstance(params, Iterable):
            raise DTypeError(
                f"{self._name}: params must be an iterable of tensors or of dicts, got "
                f"{brief(params)}; of a module take module.parameters()"
            )
        self.defaults = dict(defaults)
        self.param_groups: list[ParamGroup] = []
        given = list(params)
        if not given:
            raise ArgumentError(f"{self._name}: the list of parameters is empty")
        if not any(isinstance(g, Mapping) for g in given):
            given = [{"params": given}]
        for group in given:
            self.add_param_group(group)

    @property
    def _name(self) -> str:
        return type(self).__name__

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Add parameters with options of their own; what they leave out is the default."""
        if not isinstance(group, Mapping) or "params" not in group:
            raise DTypeError(f"{self._name}: a group must be a dict with 'params', got {group!r}")
        options = {k: v for k, v in group.items() if k != "params"}
        unknown = sorted(options.keys() - self.defaults.keys())
        if unknown:
            raise ArgumentError(
                f"{self._name} has no option {unknown[0]!r}; it has {', '.join(self.defaults)}"
            )
        params = group["params"]
        params = [params] if isinstance(params, Tensor) else list(params)
        seen = {id(p) for g in self.param_groups for p in g.params}
        for p in params:
            if not isinstance(p, Tensor):
                raise DTypeError(f"{self._name} moves tensors, got {type(p).__name__}")
            if not p.is_leaf:
                raise ArgumentError(
                    f"{self._name}: a tensor of shape {p.shape} is not a leaf: it was "
                    f"computed, so give the tensors it was computed from"
                )
            if id(p) in seen:
                raise ArgumentError(f"{self._name}: a parameter of shape {p.shape} was given twice")
            seen.add(id(p))
        made = ParamGroup(params, {**self.defaults, **options})
        self.check(made)
        made.state = [self.initial_state(p, made) for p in params]
        self.param_groups.append(made)

    # ---- what a subclass writes -----------------------------------------------------------------

    def check(self, group: ParamGroup) -> None:
        """Raise ArgumentError for hyperparameters out of range."""
        for name in ("lr", "momentum", "eps", "weight_decay", "dampening"):
            value = group.options().get(name, 0.0)
            if not isinstance(value, (int, float)):
                raise DTypeError(f"{self._name}: {name} must be a number, got {brief(value)}")
        for name, value in group.options().items():
            if isinstance(value, (int, float)) and value < 0:
                raise ArgumentError(f"{self._name}: {name} must not be negative, got {value}")

    def initial_state(self, param: Tensor, group: ParamGroup) -> State:
        """The tensors kept for a parameter, by name."""
        return {}

    def update(self, param: Tensor, grad: Tensor, state: State, group: ParamGroup, lr: Any) -> None:
        """Move a parameter and its state in place. `lr` is a number, or f64[] in a trace."""
        raise NotImplementedError

    # ---- what a user calls ----------------------------------------------------------------------

    @property
    def lr(self) -> float:
        """The learning rate (of the first group). Setting it sets that of all groups, and needs no
        recompiling."""
        return cast(float, self.param_groups[0].lr)

    @lr.setter
    def lr(self, value: float) -> None:
        for group in self.param_groups:
            group["lr"] = value

    @no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move every parameter that has a gradient.

        `closure`, if given, is called first, with gradients on; its result is returned.
        """
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        with quiet():
            for group in self.param_groups:
                lr = engine().hyper(group, "lr")
                for param, state in zip(group.params, group.state, strict=True):
                    grad = param.grad
                    if grad is not None:
                        self.update(param, grad, state, group, lr)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, or set them to zero."""
        for group in self.param_groups:
            forget_gradients(group.params, set_to_none)

    @property
    def state(self) -> dict[Tensor, State]:
        """The state of each parameter, by the parameter (as in torch)."""
        return {p: s for g in self.param_groups for p, s in zip(g.params, g.state)}

    # ---- saving ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """{"state": {number: tensors by name}, "param_groups": [options and "params": numbers]}.

        Parameters are numbered through all groups; the tensors are detached, on the same memory.
        """
        state: dict[int, State] = {}
        groups = []
        number = 0
        for group in self.param_groups:
            numbers = list(range(number, number + len(group.params)))
            number += len(numbers)
            groups.append({**group.options(), "params": numbers})
            for n, tensors in zip(numbers, group.state):
                if tensors:
                    state[n] = {name: t.detach() for name, t in tensors.items()}
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Copy what `state_dict` gave into this optimizer, which must have been made alike.

        Raises ArgumentError or ShapeError, and copies nothing, if the groups, the number of their
        parameters or the state differ.
        """
        if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= set(state_dict):
            raise DTypeError(
                f"{self._name}: needs a dict with 'state' and 'param_groups', as "
                f"state_dict() gives it, got {brief(state_dict)}"
            )
        name, groups = self._name, list(state_dict["param_groups"])
        sizes, own = [len(g["params"]) for g in groups], [len(g.params) for g in self.param_groups]
        if sizes != own:
            raise ArgumentError(f"{name}: groups of {own} parameters, but the state has {sizes}")
        writes = [
            write
            for group, given in zip(self.param_groups, groups)
            for number, state in zip(given["params"], group.state)
            for write in _writes(name, number, state, state_dict["state"].get(number, {}))
        ]
        for group, given in zip(self.param_groups, groups):
            for key, value in given.items():
                if key != "params":
                    group[key] = tuple(value) if isinstance(value, list) else value
        with no_grad():
            for dst, src in writes:
                assign(dst, src)

    def __repr__(self) -> str:
        groups = "".join(f"\n  {g!r}" for g in self.param_groups)
        return f"{type(self).__name__}({groups}\n)"


def _writes(name: str, number: int, state: State, given: Any) -> Iterator[tuple[Tensor, Tensor]]:
    if state.keys() != given.keys():
        raise ArgumentError(
            f"{name}: parameter {number} has state {list(state)}, but {list(given)} is given"
        )
    for key, dst in state.items():
        src = as_tensor("load_state_dict", given[key])
        if src.shape != dst.shape:
            raise ShapeError(
                f"{name}: {key} of parameter {number} has shape {dst.shape}, but {src.shape} is "
                f"given"
            )
        yield dst, src


# ---- arithmetic of updates ----------------------------------------------------------------------


def assign(dst: Tensor, value: Any) -> None:
    """Write `value` into `dst`, in dst's dtype."""
    mutate("assign_", dst, to_dtype(value, dst.dtype))


def number(x: Any, like: Tensor) -> Any:
    """A hyperparameter ready for a primitive: itself, or in a trace cast to the dtype of `like`."""
    return to_dtype(x, like.dtype) if isinstance(x, Tensor) else x


__all__ = [
    "Optimizer",
    "ParamGroup",
    "State",
    "assign",
    "number",
    "wide",
]
