"""What does not pass silently: gradients that are not finite."""

import math
import warnings

import pytest
import torch

import hotbed
import hotbed.torch as ht


def collection(**more):
    configs = [
        ht.EmbeddingBagConfig(100, 4, name, feature_names=[name], use_virtual_table=name == "h") for name in ("h", "s")
    ]
    return ht.EmbeddingBagCollection(configs, **{"optimizer": ht.Adagrad(lr=0.1), **more})


def pooled(made, keys=4):
    return made(ht.KeyedJaggedTensor(["h", "s"], torch.arange(keys).repeat(2), lengths=torch.ones(2 * keys).long()))


def train(made, bad):
    """A step whose gradient is `bad` for key 1 of table h, and 1 elsewhere."""
    out = pooled(made).values()
    gradient = torch.ones_like(out)
    gradient[1, 2] = bad
    out.backward(gradient)


# --- gradients that are NaN or infinite ------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_with_a_bad_gradient_stays_and_is_counted(bad):
    made, other = collection(), collection()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(made, 1.0)
        train(other, 1.0)
    before, keys = made.rows("h", torch.arange(4)), torch.arange(4)
    with pytest.warns(UserWarning, match="table 'h': the gradient of key 1 is NaN or infinite; .* see stats"):
        train(made, bad)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one warning for each table
        train(made, bad)
        train(other, 1.0)
        train(other, 1.0)
    assert torch.equal(made.rows("h", keys)[1], before[1])
    assert torch.equal(made.rows("h", keys)[[0, 2, 3]], other.rows("h", keys)[[0, 2, 3]])
    assert made.stats("h")["nonfinite"] == 2 and made.stats("s")["nonfinite"] == 0
    states = made.fused_optimizer.state_dict()["state"]["h"]["sum"]
    assert bool(states.isfinite().all())


def test_a_bad_gradient_may_be_an_error_or_pass():
    made = collection(nonfinite="raise")
    pooled(made)
    with pytest.raises(hotbed.ArgumentError, match="table 'h': the gradient of key 1 is NaN or infinite"):
        train(made, math.nan)
    assert bool(made.rows("h", torch.arange(4)).isfinite().all()) and made.stats("h")["nonfinite"] == 1
    train(made, 1.0)  # goes on
    made = collection(nonfinite="pass")
    train(made, math.nan)
    assert made.rows("h", torch.tensor([1]))[0].isnan().tolist() == [False, False, True, False]
    assert made.stats("h")["nonfinite"] == 0
    with pytest.raises(hotbed.ArgumentError, match=r"nonfinite 'stop' is not one of \['pass', 'raise', 'skip'\]"):
        collection(nonfinite="stop")
