"""Optimizer states of bfloat16 from Python: training, state dicts, checkpoints, memory, errors."""

import pytest
import torch
from test_row_types import DIM, ROWS, collection, train

import hotbed
import hotbed.torch as ht
from hotbed import checkpoint
from hotbed.torch.config import ROW_TYPES

BF16 = torch.bfloat16
ADAM = ht.Adam(lr=0.01)


def states(made):
    found = made.fused_optimizer.state_dict()["state"]["t"]
    return {name: found[name] for name in ("exp_avg", "exp_avg_sq")}


@pytest.mark.parametrize("is_hash", [False, True])
@pytest.mark.parametrize("dtype", [dtype for dtype, _ in ROW_TYPES.values()])
def test_training_goes_on_from_a_state_dict_with_the_same_bytes(dtype, is_hash):
    made, other = (collection(dtype, is_hash, optimizer=ADAM, state_type=BF16) for _ in range(2))
    train(made)
    assert {state.dtype for state in states(made).values()} == {BF16}
    other.load_state_dict(made.state_dict())
    other.fused_optimizer.load_state_dict(made.fused_optimizer.state_dict())
    for collected in (made, other):
        train(collected, range(5, 8))
    keys = made.keys("t")
    assert torch.equal(made.rows("t", keys), other.rows("t", keys))
    for name, state in states(made).items():
        assert torch.equal(state, states(other)[name])


def test_states_follow_those_of_float32():
    narrow, wide = collection(torch.float32, optimizer=ADAM, state_type=BF16), collection(torch.float32, optimizer=ADAM)
    for made in (narrow, wide):
        train(made, range(50))
    for name, state in states(narrow).items():
        exact = states(wide)[name]
        assert exact.dtype == torch.float32
        off = (state.float() - exact).abs().mean() / exact.abs().mean()
        assert 0 < float(off) < 0.05, name


def test_states_of_a_state_dict_are_converted_both_ways():
    narrow, wide = collection(torch.float32, optimizer=ADAM, state_type=BF16), collection(torch.float32, optimizer=ADAM)
    train(wide)
    narrow.fused_optimizer.load_state_dict(wide.fused_optimizer.state_dict())
    for name, state in states(narrow).items():
        assert torch.equal(state, states(wide)[name].to(BF16))
    wide.fused_optimizer.load_state_dict(narrow.fused_optimizer.state_dict())
    for name, state in states(wide).items():
        assert torch.equal(state, states(narrow)[name].float())


def test_a_checkpoint_keeps_the_type_and_is_loaded_as_the_other(tmp_path):
    made = {
        BF16: collection(torch.float32, optimizer=ADAM, state_type=BF16),
        torch.float32: collection(torch.float32, optimizer=ADAM),
    }
    for dtype, saved in made.items():
        train(saved)
        try:
            checkpoint.save(tmp_path / str(dtype), saved)
        except hotbed.UnsupportedError:
            pytest.skip("the library was built without HDF5")
        read = checkpoint.read(tmp_path / str(dtype))["t"].states
        for name, state in states(saved).items():
            assert torch.equal(torch.from_numpy(read[name]), state.float())
        for to in made:
            other = collection(torch.float32, optimizer=ADAM, state_type=to)
            checkpoint.load(tmp_path / str(dtype), other)
            for name, state in states(other).items():
                assert torch.equal(state, states(saved)[name].to(to))


def test_memory_counts_two_bytes_an_element():
    narrow, wide = collection(torch.float32, optimizer=ADAM, state_type=BF16), collection(torch.float32, optimizer=ADAM)
    assert narrow.memory()["states"] == ROWS * 2 * DIM * 2
    assert wide.memory()["states"] == ROWS * 2 * DIM * 4
    assert narrow.memory()["weights"] == wide.memory()["weights"]


def test_a_state_of_one_number_stays_float32():
    made = collection(torch.float32, optimizer=ht.RowWiseAdagrad(), state_type=BF16)
    assert made.fused_optimizer.state_dict()["state"]["t"]["momentum1"].dtype == torch.float32


@pytest.mark.parametrize("given", [torch.float16, torch.int8, "BF17", None, 3])
def test_other_types_are_refused(given):
    with pytest.raises(hotbed.ArgumentError, match=r"state_type .* is not torch.float32 or torch.bfloat16") as raised:
        collection(torch.float32, optimizer=ADAM, state_type=given)
    assert raised.value.parameter == "state_type" and raised.value.table == "t"
