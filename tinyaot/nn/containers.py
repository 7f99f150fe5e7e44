"""Modules that hold modules in order. The parts are attributes named "0", "1", ..."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from tinyaot.errors import DTypeError, IndexingError
from tinyaot.nn.module import Module, module_of


class ModuleList(Module):
    """A list of modules: index, slice, append, insert, extend and iterate."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.extend(modules)

    def _parts(self) -> dict[str, Module]:
        return {n: value for n, value in vars(self).items() if module_of(value) is not None}

    def _rebuild(self, modules: Iterable[Module]) -> None:
        for name in self._parts():
            del self.__dict__[name]
        for i, module in enumerate(modules):
            self.add_module(str(i), _checked(module))

    def _name(self, index: Any) -> str:
        names = list(self._parts())
        try:
            return names[operator.index(index)]
        except IndexError:
            raise IndexingError(f"index {index} is out of range for {len(names)} modules") from None

    def __len__(self) -> int:
        return len(self._parts())

    def __iter__(self) -> Iterator[Module]:
        return iter(self._parts().values())

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)._of(list(self)[index])
        return vars(self)[self._name(index)]

    @classmethod
    def _of(cls, modules: list[Module]) -> Any:
        return cls(modules)

    def __setitem__(self, index: Any, module: Module) -> None:
        setattr(self, self._name(index), _checked(module))

    def __delitem__(self, index: Any) -> None:
        modules = list(self)
        del modules[index if isinstance(index, slice) else operator.index(index)]
        self._rebuild(modules)

    def append(self, module: Module) -> Any:
        """Put a module at the end."""
        self.add_module(str(len(self)), _checked(module))
        return self

    def extend(self, modules: Iterable[Module]) -> Any:
        """Put modules at the end."""
        for module in list(modules):
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> None:
        """Put a module before `index`."""
        modules = list(self)
        modules.insert(index, module)
        self._rebuild(modules)


class Sequential(ModuleList):
    """Modules called one after the other, each with what the one before gave.

    Takes them as arguments, or as one mapping from names to modules.
    """

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                self.add_module(name, _checked(module))
        else:
            self.extend(modules)

    @classmethod
    def _of(cls, modules: list[Module]) -> Any:
        return cls(*modules)

    def forward(self, input: Any) -> Any:
        for module in self:
            input = module(input)
        return input


def _checked(module: Any) -> Module:
    if module_of(module) is None:
        raise DTypeError(
            f"a container of modules cannot hold a {type(module).__name__}; wrap it in a Module"
        )
    return cast(Module, module)
