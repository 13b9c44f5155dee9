"""The files of a dump: a table's JSON file, and the columns of one rank."""

from __future__ import annotations

import errno
import json
import os
from typing import Any, Dict, Iterator, Optional, Tuple

import numpy
import torch

from hotbed.errors import CorruptError, FileError

#: PyTorch's types by the names that a JSON file has, and NumPy's types of the same bytes.
_DTYPES: Dict[str, Tuple[torch.dtype, Any]] = {
    "float32": (torch.float32, numpy.float32),
    "float16": (torch.float16, numpy.float16),
    "bfloat16": (torch.bfloat16, numpy.int16),
}


def read_meta(path: str) -> Dict[str, Any]:
    """Return the members of a table's JSON file.

    Raises:
        ValueError: the file is not a JSON object.
    """
    with open(path) as file:
        meta = json.load(file)
    if not isinstance(meta, dict):
        raise ValueError(f"{path}: a {type(meta).__name__} is not a JSON object")
    return meta


def _dtype(meta: Dict[str, Any], name: str) -> Tuple[torch.dtype, Any]:
    """Return the type that the JSON file names; float32, which all older dumps have, if it names none."""
    text = str(meta.get(name, "float32"))
    if text.replace("torch.", "", 1) not in _DTYPES:
        raise ValueError(f"the dump's {name} is {text!r}, not one of {sorted(_DTYPES)}")
    return _DTYPES[text.replace("torch.", "", 1)]


def refuse_duplicates(keys: torch.Tensor, what: str) -> None:
    """Raise if a key occurs twice.

    Raises:
        ValueError: it does; the text has the key.
    """
    ordered = torch.sort(keys).values
    same = (ordered[1:] == ordered[:-1]).nonzero()
    if same.shape[0] > 0:
        raise ValueError(f"{what}: key {int(ordered[same[0, 0]])} occurs twice")


class Dump:
    """One rank's files of a table, mapped into memory.

    Args:
        meta: members of the JSON file.
        keys: path of the keys.
        values: path of the rows.
        scores: path of the scores, or None.
        states: path of the optimizer's states, or None.
        dim: number of elements in a row.
        words: number of scores per key.
        state_dim: number of a row's state elements.
        padded: whether older dumps have more state elements, of which only the first ``state_dim`` were used.

    Raises:
        FileError: the keys or rows do not exist.
        ValueError: types or sizes do not fit.
    """

    def __init__(
        self,
        meta: Dict[str, Any],
        keys: str,
        values: str,
        scores: Optional[str],
        states: Optional[str],
        dim: int,
        words: int,
        state_dim: int,
        padded: bool,
    ) -> None:
        for path in (keys, values):
            if not os.path.exists(path):
                raise FileError(f"{path} does not exist", errno=errno.ENOENT)
        if meta.get("embedding_dim") not in (None, dim):
            raise ValueError(f"{values}: the dump's embedding_dim is {meta['embedding_dim']}, the table's dim {dim}")
        self.path = keys
        self._value_dtype, value_bytes = _dtype(meta, "embedding_dtype")
        self._state_dtype, state_bytes = _dtype(meta, "optim_state_dtype")
        self._state_dim = state_dim
        found = _map(keys, numpy.int64, 1, None)
        assert found is not None
        n = found.shape[0]
        self._keys = found[:, 0]
        self._values = _map(values, value_bytes, dim, n)
        self._scores = _map(scores, numpy.int64, words, n)
        width = state_dim
        if padded and states is not None and os.path.exists(states) and n > 0:
            width = max(state_dim, os.path.getsize(states) // (n * numpy.dtype(state_bytes).itemsize))
        self._states = _map(states, state_bytes, width, n)

    def __len__(self) -> int:
        """Return the number of keys."""
        return int(self._keys.shape[0])

    @property
    def has_scores(self) -> bool:
        """Whether there is a file of scores."""
        return self._scores is not None

    @property
    def has_states(self) -> bool:
        """Whether there is a file of states."""
        return self._states is not None

    def keys(self) -> torch.Tensor:
        """Return all keys, int64."""
        return torch.from_numpy(numpy.array(self._keys))

    def refuse_negative_scores(self, table: str) -> None:
        """Raise if a score, time or age is negative: read as unsigned words, it would be the highest.

        Raises:
            CorruptError: the first one, with its key.
        """
        if self._scores is None or len(self) == 0 or self._scores.min() >= 0:
            return
        row, word = (int(i) for i in numpy.argwhere(self._scores < 0)[0])
        key, value = int(self._keys[row]), int(self._scores[row, word])
        raise CorruptError(
            f"{self.path}: row {row} of table {table!r}, key {key}, has the score {value}; scores, times and ages are "
            "not negative",
            value=value,
            table=table,
            key=key,
            path=self.path,
        )

    def oldest(self) -> int:
        """Return the largest score; 0 without scores."""
        return int(self._scores.max()) if self._scores is not None and len(self) > 0 else 0

    def batches(self, size: int) -> Iterator[Tuple[Any, Any, Any, Any]]:
        """Iterate over the rows: keys ``[n]``, rows ``[n, dim]``, scores ``[n, words]`` or None, states or None."""
        for begin in range(0, len(self), size):
            keys, *columns = [
                None if c is None else torch.from_numpy(numpy.array(c[begin : begin + size]))
                for c in (self._keys, self._values, self._scores, self._states)
            ]
            values, scores, states = columns
            if states is not None:
                states = states.view(self._state_dtype)[:, : self._state_dim].float()
            assert values is not None
            yield keys, values.view(self._value_dtype), scores, states


def _map(path: Optional[str], dtype: Any, width: int, rows: Optional[int]) -> Optional[Any]:
    """Return a file as an array ``[rows, width]``; None if it does not exist."""
    if path is None or not os.path.exists(path):
        return None
    size, row = os.path.getsize(path), numpy.dtype(dtype).itemsize * width
    if size % row != 0 or rows not in (None, size // row):
        of = "" if rows is None else f"{rows} rows of "
        raise ValueError(f"{path}: {size} bytes are not {of}{width} elements of {numpy.dtype(dtype).itemsize} bytes")
    shape = (size // row, width)
    return numpy.memmap(path, dtype, "r", shape=shape) if size > 0 else numpy.empty(shape, dtype)
