"""Saving and loading: safetensors files, which hold tensors by name and nothing that can run.

A flat mapping of names to tensors, such as `Module.state_dict()`, becomes a file as other
frameworks write it. Anything nested (an optimizer's state, a whole checkpoint) is flattened to such
names, and its shape is kept as JSON in the file's metadata, so that `load` gives back what was
saved; a reader that does not know of it still finds all the tensors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from tinyaot.errors import ArgumentError, DTypeError, FileError, MissingFileError
from tinyaot.shapes import brief
from tinyaot.tensor import Tensor

_STRUCTURE = "tinyaot.structure"  # metadata key
_DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U32": np.uint32,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


def save(path: str | os.PathLike[str], state: Any) -> None:
    """Write `state` to `path`: a mapping of names to tensors, or dicts, lists and tuples of
    tensors, numbers, strings and None.

    The file appears whole or not at all. Raises MissingFileError if there is no such folder,
    FileError if the file cannot be written, and DTypeError for anything else in `state`.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    path = _path("save", path)
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise MissingFileError(f"save: there is no folder {folder}; make it first")
    arrays: dict[str, np.ndarray] = {}
    structure = flatten(state, arrays)
    metadata = {"format": "pt"}  # what other loaders ask for: tensors row by row
    if not _is_flat(state):
        metadata[_STRUCTURE] = json.dumps(structure)
    unfinished = f"{path}.{os.getpid()}.part"
    try:
        save_file(arrays, unfinished, metadata=metadata)
        os.replace(unfinished, path)
    except (SafetensorError, OSError) as error:
        raise FileError(f"save: cannot write {path}: {error}") from None
    finally:
        if os.path.exists(unfinished):
            os.remove(unfinished)


def load(path: str | os.PathLike[str]) -> Any:
    """What `save` wrote to `path`; for a safetensors file of others, its tensors by name.

    Raises MissingFileError (a FileNotFoundError), FileError (an OSError) for a file that cannot be
    read, ArgumentError for a file of another format, and DTypeError for a dtype
    that tinyaot does not have.
    """
    from safetensors import SafetensorError, deserialize

    path = _path("load", path)
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        raise MissingFileError(f"load: there is no file {path}") from None
    except OSError as error:
        raise FileError(f"load: cannot read {path}: {error.strerror}") from None
    try:
        entries: Any = deserialize(data)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise ArgumentError(f"load: {path} is not a safetensors file ({error})") from None
    tensors = {name: Tensor(_array(name, entry)) for name, entry in entries}
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    structure = header.get("__metadata__", {}).get(_STRUCTURE)
    if structure is not None:
        return unflatten(json.loads(structure), tensors)
    order = [name for name in header if name in tensors]
    return {name: tensors[name] for name in order}


def _path(op: str, path: Any) -> str:
    try:
        return os.fsdecode(path)
    except TypeError:
        raise DTypeError(f"{op}: needs the path of a file first, got {brief(path)}") from None


def _array(name: str, entry: Mapping[str, Any]) -> np.ndarray:
    dtype = _DTYPES.get(entry["dtype"])
    if dtype is None:
        raise DTypeError(
            f"load: {name!r} has dtype {entry['dtype']}, which tinyaot does not have; it reads "
            f"{', '.join(_DTYPES)}"
        )
    array = np.frombuffer(entry["data"], dtype=dtype).reshape(entry["shape"])
    return array.copy()  # memory of its own, which may be written


# ---- nested states ------------------------------------------------------------------------------


def flatten(state: Any, arrays: dict[str, np.ndarray], path: str = "") -> Any:
    """The shape of `state` as JSON data; its tensors go to `arrays`, named by their path.

    Dicts become {"dict": [[key, value], ...]} (keys are strings or ints), lists and tuples {"list":
    [...]} and {"tuple": [...]}, tensors {"tensor": name}; numbers, strings and None stay.
    """
    if isinstance(state, (Tensor, np.ndarray)):
        array = state.numpy() if isinstance(state, Tensor) else state
        name = path or "tensor"
        if name in arrays:
            raise ArgumentError(f"save: two tensors would be named {name!r}; rename a key")
        arrays[name] = np.array(array, order="C")
        return {"tensor": name}
    if isinstance(state, Mapping):
        pairs = []
        for key, value in state.items():
            if not isinstance(key, (str, int)):
                raise DTypeError(f"save: keys must be strings or ints, got {key!r} at {path!r}")
            pairs.append([key, flatten(value, arrays, _below(path, key))])
        return {"dict": pairs}
    if isinstance(state, (list, tuple)):
        kind = "tuple" if isinstance(state, tuple) else "list"
        return {kind: [flatten(x, arrays, _below(path, i)) for i, x in enumerate(state)]}
    if state is None or isinstance(state, (bool, int, float, str)):
        return state
    raise DTypeError(
        f"save: a {type(state).__name__} at {path or 'the top'!r} cannot be saved; pass tensors, "
        f"numbers, strings, None, and dicts, lists and tuples of them"
    )


def unflatten(structure: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What `flatten` took apart."""
    if not isinstance(structure, dict):
        return structure
    ((kind, content),) = structure.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: unflatten(value, tensors) for key, value in content}
    parts = [unflatten(x, tensors) for x in content]
    return tuple(parts) if kind == "tuple" else parts


def _below(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _is_flat(state: Any) -> bool:
    """Whether the file's names alone say it all."""
    return isinstance(state, Mapping) and all(
        isinstance(k, str) and isinstance(v, (Tensor, np.ndarray)) for k, v in state.items()
    )
