"""Module: a tree of objects that hold parameters.

Everything is kept where Python keeps it: parameters, buffers and submodules are ordinary attributes
(entries of `__dict__`), in the order of their assignment, and are found by looking. So whatever
walks a model's attributes, such as the compiler that lifts its tensors to inputs, needs to know
nothing of modules. Names and behaviour are torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from tinyaot.errors import ArgumentError, DTypeError, TinyaotError
from tinyaot.functional.common import forget_gradients
from tinyaot.functions.operands import as_tensor, cast, check_device, mutate
from tinyaot.nn.parameter import Parameter
from tinyaot.shapes import DType, bfloat16, brief, dtype_of, float16, float32, float64
from tinyaot.tape import no_grad
from tinyaot.tensor import Tensor

Self = TypeVar("Self", bound="Module")


class IncompatibleKeys(NamedTuple):
    """What `load_state_dict(strict=False)` did without."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Module:
    """Base of all models and layers: assign parameters, buffers and modules to attributes, and
    write `forward`."""

    training: bool = True
    _buffer_names: Mapping[str, bool] = {}  # name -> whether it is part of the state

    def __init__(self) -> None:
        self.training = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; subclasses write it."""
        raise NotImplementedError(f"{type(self).__name__} has no forward method; write one")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    # ---- registration ---------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        have = self.__dict__.get(name)
        if isinstance(have, Parameter) and not (value is None or isinstance(value, Parameter)):
            raise DTypeError(
                f"cannot assign a {type(value).__name__} as the parameter {name!r} of "
                f"{type(self).__name__}; assign a Parameter or None, or del it first"
            )
        object.__setattr__(self, name, value)

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Assign a parameter, or None in its place."""
        self._register(name, param)

    def add_module(self, name: str, module: Module | None) -> None:
        """Assign a submodule under a name that need not be an identifier."""
        self._register(name, module)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Assign a tensor that is not learnt; `persistent` ones are part of `state_dict`."""
        if tensor is not None and not isinstance(tensor, Tensor):
            raise DTypeError(f"register_buffer: {name!r} must be a Tensor, got {brief(tensor)}")
        self._register(name, tensor)
        object.__setattr__(self, "_buffer_names", {**self._buffer_names, name: persistent})

    def _register(self, name: str, value: Any) -> None:
        if not name or "." in name:
            raise ArgumentError(
                f"{name!r} cannot name a part of a module: it must not be empty or have dots"
            )
        if hasattr(type(self), name):
            raise ArgumentError(f"{type(self).__name__} has an attribute {name!r} already")
        setattr(self, name, value)

    # ---- looking for the parts ------------------------------------------------------------------

    def _modules(self) -> Iterator[tuple[str, Module]]:
        """The modules among the attributes. A compiled one counts as the module that it is of,
        unless that is an attribute, too, or this module itself."""
        items = list(vars(self).items())
        plain = {id(self), *(id(value) for _, value in items if isinstance(value, Module))}
        for name, value in items:
            module = module_of(value)
            if module is not None and (module is value or id(module) not in plain):
                yield name, module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The direct submodules with their names, each once."""
        seen: set[int] = set()
        for name, module in self._modules():
            if id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def named_modules(
        self, memo: set[int] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """This module and all below it, with dotted names ('' for itself)."""
        memo = set() if memo is None else memo
        if remove_duplicate and id(self) in memo:
            return
        memo.add(id(self))
        yield prefix, self
        for name, module in self._modules():
            below = f"{prefix}.{name}" if prefix else name
            yield from module.named_modules(memo, below, remove_duplicate)

    def _named_tensors(
        self,
        belongs: Callable[[Module, str, Any], bool],
        prefix: str,
        recurse: bool,
        remove_duplicate: bool,
    ) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        modules = (
            self.named_modules(None, prefix, remove_duplicate) if recurse else [(prefix, self)]
        )
        for path, module in modules:
            # Parameters first: the order of torch's states.
            items = sorted(
                vars(module).items(), key=lambda item: not isinstance(item[1], Parameter)
            )
            for name, value in items:
                if belongs(module, name, value) and not (remove_duplicate and id(value) in seen):
                    seen.add(id(value))
                    yield (f"{path}.{name}" if path else name), value

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Parameters with dotted names; one that occurs twice (tied weights) is given once."""
        return self._named_tensors(_is_parameter, prefix, recurse, remove_duplicate)

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Buffers with dotted names."""
        return self._named_tensors(_is_buffer, prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """All parameters, each once."""
        return (p for _, p in self.named_parameters(recurse=recurse))

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """All buffers, each once."""
        return (b for _, b in self.named_buffers(recurse=recurse))

    def children(self) -> Iterator[Module]:
        """The direct submodules."""
        return (m for _, m in self.named_children())

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        return (m for _, m in self.named_modules())

    def get_submodule(self, target: str) -> Module:
        """The module of a dotted name; ArgumentError where there is none."""
        module: Any = self
        for name in target.split(".") if target else ():
            module = module_of(vars(module).get(name)) if isinstance(module, Module) else None
        if not isinstance(module, Module):
            raise ArgumentError(f"{type(self).__name__} has no submodule {target!r}")
        return module

    # ---- modes, dtypes and devices --------------------------------------------------------------

    def train(self: Self, mode: bool = True) -> Self:
        """Set training mode here and below: dropout drops, batch norm uses the batch."""
        for module in self.modules():
            module.training = bool(mode)
        return self

    def eval(self: Self) -> Self:
        """Leave training mode."""
        return self.train(False)

    def requires_grad_(self: Self, requires_grad: bool = True) -> Self:
        """Have all parameters ask for gradients, or none."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, or set them to zero."""
        forget_gradients(self.parameters(), set_to_none)

    def apply(self: Self, fn: Callable[[Module], Any]) -> Self:
        """Call `fn` with every module below, then with this one."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def to(self: Self, *args: Any, dtype: Any = None, device: Any = None) -> Self:
        """Cast all floating parameters and buffers, in place: `to(dtype)`, `to("cpu")` or both.

        The Parameter objects stay, so that optimizers keep them. Raises BackendError for a device
        that eager tensors cannot be on, DTypeError for a dtype that is not floating.
        """
        for arg in args:
            if isinstance(arg, str) and not _is_dtype_name(arg):
                device = arg
            else:
                dtype = arg
        check_device("Module.to", device)
        if dtype is None:
            return self
        new = dtype_of(dtype)
        if not new.is_floating:
            raise DTypeError(f"Module.to casts to floating dtypes only, got {new.name}")
        for tensor in [*self.parameters(), *self.buffers()]:
            if tensor.dtype.is_floating and tensor.dtype is not new:
                _cast_in_place(tensor, new)
        return self

    def float(self: Self) -> Self:
        """Cast to float32."""
        return self.to(float32)

    def double(self: Self) -> Self:
        """Cast to float64."""
        return self.to(float64)

    def half(self: Self) -> Self:
        """Cast to float16."""
        return self.to(float16)

    def bfloat16(self: Self) -> Self:
        """Cast to bfloat16."""
        return self.to(bfloat16)

    def cpu(self: Self) -> Self:
        """Stay on the CPU, where eager tensors are."""
        return self.to("cpu")

    def cuda(self: Self) -> Self:
        """Move to the GPU."""
        return self.to("cuda")

    # ---- state ----------------------------------------------------------------------------------

    def state_dict(self, prefix: str = "") -> dict[str, Tensor]:
        """Parameters and persistent buffers by dotted name, detached, on the same memory."""
        return {name: tensor.detach() for name, tensor in self._state(prefix)}

    def _state(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        def belongs(module: Module, name: str, value: Any) -> bool:
            return _is_parameter(module, name, value) or (
                _is_buffer(module, name, value) and module._buffer_names[name]
            )

        for name, tensor in self._named_tensors(belongs, "", True, False):
            yield prefix + name, tensor

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True
    ) -> IncompatibleKeys:
        """Copy tensors (or arrays) into the parameters and buffers of the same names.

        Raises TinyaotError, and copies nothing, if a shape differs or, when `strict`, if a name is
        missing or unexpected. Returns the names that were.
        """
        if not isinstance(state_dict, Mapping):
            raise DTypeError(
                f"load_state_dict: needs names and tensors as state_dict() gives them, got "
                f"{brief(state_dict)}"
            )
        own = dict(self._state())
        given = {name: as_tensor("load_state_dict", value) for name, value in state_dict.items()}
        missing = [name for name in own if name not in given]
        unexpected = [name for name in given if name not in own]
        problems = [
            f"size mismatch for {name}: the state has shape {given[name].shape}, the module "
            f"{own[name].shape}"
            for name in own
            if name in given and given[name].shape != own[name].shape
        ]
        if strict and missing:
            problems.insert(0, f"missing keys: {', '.join(missing)}")
        if strict and unexpected:
            problems.insert(0, f"unexpected keys: {', '.join(unexpected)}")
        if problems:
            lines = "".join(f"\n  {p}" for p in problems)
            hint = "\n  strict=False ignores names, but not shapes" if missing or unexpected else ""
            raise TinyaotError(f"load_state_dict into {type(self).__name__}:{lines}{hint}")
        with no_grad():
            for name, tensor in own.items():
                if name in given:
                    mutate("load_state_dict_", tensor, cast(given[name], tensor.dtype))
        return IncompatibleKeys(missing, unexpected)

    # ---- for people -----------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """What the printed line says in its parentheses; subclasses write it."""
        return ""

    def __repr__(self) -> str:
        lines = []
        for name, module in self._modules():
            lines.append(f"({name}): {module!r}".replace("\n", "\n  "))
        head, extra = type(self).__name__, self.extra_repr()
        if not lines:
            return f"{head}({extra})"
        body = "".join(f"\n  {line}" for line in ([extra] if extra else []) + lines)
        return f"{head}({body}\n)"


def module_of(value: Any) -> Module | None:
    """A module itself, or the one that a compiled one is of."""
    if isinstance(value, Module):
        return value
    wrapped = getattr(value, "__dict__", {}).get("__wrapped__")
    return wrapped if isinstance(wrapped, Module) else None


def _is_parameter(module: Module, name: str, value: Any) -> bool:
    return isinstance(value, Parameter)


def _is_buffer(module: Module, name: str, value: Any) -> bool:
    return name in module._buffer_names and isinstance(value, Tensor)


def _is_dtype_name(name: str) -> bool:
    try:
        dtype_of(name)
    except DTypeError:
        return False
    return True


def _cast_in_place(tensor: Tensor, dtype: DType) -> None:
    """The same object with its values, and its gradient's, in another dtype."""
    grad = tensor._grad
    array = tensor._concrete("Module.to").astype(dtype.numpy)
    Tensor.__init__(tensor, array, tensor.requires_grad)
    if isinstance(grad, Tensor):
        with no_grad():
            tensor._grad = cast(grad, dtype)
