"""Fixtures: seeds, and batches of random bags."""

import pytest
import torch

from hotbed.torch import KeyedJaggedTensor


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(20)
    torch.set_num_threads(1)


def batch(features, samples, rows, most=5, weighted=False, index=torch.int64):
    """Bags of up to `most` keys below `rows`, some of them empty."""
    lengths = torch.randint(0, most + 1, (len(features) * samples,))
    values = torch.randint(0, rows, (int(lengths.sum()),))
    weights = torch.rand(values.shape[0]) if weighted else None
    return KeyedJaggedTensor(features, values.to(index), weights, lengths=lengths.to(index))


class Interrupted:
    """The library, but Ctrl-C arrives right after some call."""

    def __init__(self, lib, call):
        self.lib, self.call = lib, call

    def __getattr__(self, name):
        found = getattr(self.lib, name)
        if name != self.call:
            return found

        def run(*arguments):
            found(*arguments)
            raise KeyboardInterrupt

        return run
