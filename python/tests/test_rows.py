"""Rows by key from Python: a key twice, erasing."""

import pytest
import torch
from test_sharded import on_threads, well

import hotbed
import hotbed.torch as ht

ROWS, DIM = 1000, 4


def collection(hashed=True, **more):
    config = ht.EmbeddingConfig(ROWS, DIM, "t", feature_names=["f"], use_virtual_table=hashed)
    return ht.EmbeddingCollection([config], optimizer=ht.Adam(lr=0.1), **more)


def each(n):
    """``n`` rows, each of one number."""
    return torch.arange(1.0, n + 1)[:, None].expand(n, DIM).contiguous()


# --- a key twice --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fill", [False, True])
@pytest.mark.parametrize("hashed", [False, True])
def test_a_key_twice_sets_nothing(hashed, fill):
    made = collection(hashed)
    keys = torch.arange(600)
    keys[[400, 500]] = 20
    before = made.rows("t", keys)
    with pytest.raises(hotbed.ArgumentError, match="table 't': key 20 occurs twice, at positions 20 and 400; nothing"):
        made.set_rows("t", keys, each(600), fill=fill)
    assert torch.equal(made.rows("t", keys), before)
    made.set_rows("t", keys[:400], each(400), fill=fill)
    assert torch.equal(made.rows("t", keys[:400]), each(400))


def test_a_state_dict_with_a_key_twice_changes_nothing():
    made = collection()
    made.set_rows("t", torch.tensor([3, 5, 7]), each(3))
    before = {name: part.clone() for name, part in made.state_dict().items()}
    given = {"weight": each(4), "weight_id": torch.tensor([3, 5, 5, 7]), "metadata": torch.arange(4)}
    with pytest.raises(RuntimeError, match="key 5 occurs twice, at positions 1 and 2"):
        made.load_state_dict({f"embeddings.t.{name}": part for name, part in given.items()})
    after = made.state_dict()
    assert all(torch.equal(after[name], part) for name, part in before.items())


def test_optimizer_states_with_a_key_twice_change_nothing():
    made = collection()
    made.set_rows("t", torch.tensor([3, 5]), each(2))
    saved = made.fused_optimizer.state_dict()
    states = saved["state"]["t"]
    states.update(keys=torch.tensor([3, 5, 5]), exp_avg=each(3), exp_avg_sq=each(3))
    with pytest.raises(hotbed.ArgumentError, match="key 5 occurs twice, at positions 1 and 2"):
        made.fused_optimizer.load_state_dict(saved)
    assert not made.fused_optimizer.state_dict()["state"]["t"]["exp_avg"].any()


def test_ranks_name_the_positions_of_the_callers_keys():
    most = ht.ShardedOptions(max_batch_size=4, max_keys=16)

    def body(comm):
        made = collection(comm=comm, sharded=most)
        keys = torch.arange(40)
        keys[30] = 9
        with pytest.raises(hotbed.ArgumentError, match="key 9 occurs twice, at positions 9 and 30"):
            made.set_rows("t", keys, each(40))
        return len(made.keys("t"))

    assert well(on_threads(body)) == [0, 0]
