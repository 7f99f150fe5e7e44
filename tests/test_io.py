"""Files: what is saved comes back, other programs read it, and theirs are read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import tinyaot as ta
from tinyaot import nn, optim
from tinyaot.errors import ArgumentError, DTypeError

DTYPES = ["float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "bool"]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "state.safetensors")


def same(a: Any, b: Any) -> bool:
    """Equal in structure, types, dtypes and values."""
    if isinstance(a, ta.Tensor):
        return (
            isinstance(b, ta.Tensor)
            and a.dtype is b.dtype
            and a.shape == b.shape
            and a.numpy().tobytes() == b.numpy().tobytes()
        )
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)])
def test_every_dtype_and_shape_comes_back(path: str, dtype: str, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 100, shape)
    state = {"x": ta.tensor(values).to(getattr(ta, dtype))}
    ta.save(path, state)
    assert same(ta.load(path), state)


def test_flat_files_are_plain_safetensors(path: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    ta.save(path, model.state_dict())
    arrays = load_file(path)
    assert set(arrays) == set(model.state_dict())
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(arrays[name], tensor.numpy())
    with safe_open(path, framework="np") as file:
        assert file.metadata() == {"format": "pt"}
    assert set(ta.load(path)) == set(model.state_dict())


def test_bfloat16_is_stored_as_such(path: str) -> None:
    ta.save(path, {"x": ta.ones(2, dtype=ta.bfloat16)})
    with open(path, "rb") as file:
        assert b'"dtype":"BF16"' in file.read()
    assert ta.load(path)["x"].numpy().dtype == ml_dtypes.bfloat16


def test_files_of_others_open(path: str) -> None:
    arrays = {"b": np.arange(6, dtype=np.float16).reshape(2, 3), "a": np.array([True, False])}
    save_file(arrays, path, metadata={"author": "somebody"})
    loaded = ta.load(path)
    for name, array in arrays.items():
        assert loaded[name].numpy().dtype == array.dtype
        np.testing.assert_array_equal(loaded[name].numpy(), array)


def test_views_are_saved_as_they_look(path: str) -> None:
    x = ta.tensor(np.arange(6.0).reshape(2, 3))
    ta.save(path, {"t": x.T, "row": x[1], "step": x[:, ::2], "wide": x[0].expand(4, 3)})
    loaded = ta.load(path)
    np.testing.assert_array_equal(loaded["t"].numpy(), x.numpy().T)
    np.testing.assert_array_equal(loaded["step"].numpy(), x.numpy()[:, ::2])
    assert loaded["wide"].shape == (4, 3)


def test_loaded_tensors_can_be_written(path: str) -> None:
    ta.save(path, {"x": ta.ones(2, requires_grad=True)})
    x = ta.load(path)["x"]
    x += 1.0
    assert x.tolist() == [2, 2] and not x.requires_grad


def test_a_checkpoint_comes_back_whole(path: str) -> None:
    model = nn.Linear(2, 2)
    optimizer = optim.AdamW(model.parameters(), 0.1)
    model(ta.ones(1, 2)).sum().backward()
    optimizer.step()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
        "best": float("inf"),
        "history": [1.5, None, "a", True],
        "nested": ({"x": ta.ones(1)}, [], {}),
    }
    ta.save(path, state)
    loaded = ta.load(path)
    assert same(loaded, state)
    other = optim.AdamW(nn.Linear(2, 2).parameters(), 0.5)
    other.load_state_dict(loaded["optimizer"])
    assert other.lr == 0.1
    assert "model.weight" in load_file(path)  # names that others can make sense of


def test_a_failed_save_leaves_the_old_file(path: str) -> None:
    ta.save(path, {"x": ta.ones(1)})
    with pytest.raises(DTypeError, match="a object at 'y' cannot be saved"):
        ta.save(path, {"x": ta.zeros(1), "y": object()})
    assert ta.load(path)["x"].item() == 1
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]


def test_bad_names(path: str) -> None:
    with pytest.raises(ArgumentError, match=r"two tensors would be named 'a\.b'"):
        ta.save(path, {"a.b": ta.ones(1), "a": {"b": ta.ones(1)}})
    with pytest.raises(DTypeError, match="keys must be strings or ints"):
        ta.save(path, {1.5: ta.ones(1)})


def test_bad_files(path: str) -> None:
    with pytest.raises(FileNotFoundError):
        ta.load(path)
    Path(path).write_bytes(b"not a tensor in sight")
    with pytest.raises(ArgumentError, match="is not a safetensors file"):
        ta.load(path)
    save_file({"z": np.ones(2, np.complex64)}, path)
    with pytest.raises(DTypeError, match="'z' has dtype C64"):
        ta.load(path)
