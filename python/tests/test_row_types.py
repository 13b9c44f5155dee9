"""Tables of every row type from Python: training, rows by key, state dicts, checkpoints."""

import io

import pytest
import torch
from test_sharded import on_threads, well

import hotbed
import hotbed.torch as ht
from hotbed import checkpoint
from hotbed._c import lib, text
from hotbed.torch.config import ROW_TYPES, travel_dtype

ROWS, DIM = 100, 8
SCALED = [torch.int8, torch.float8_e4m3fn]
TYPES = [dtype for dtype, _ in ROW_TYPES.values()]


ADAGRAD = ht.Adagrad(lr=0.1)


def collection(dtype, is_hash=False, comm=None, optimizer=ADAGRAD, **fields):
    config = ht.EmbeddingBagConfig(
        ROWS, DIM, "t", feature_names=["f"], data_type=dtype, use_virtual_table=is_hash, **fields
    )
    sharded = None if comm is None else ht.ShardedOptions(max_batch_size=12, max_keys=24)
    return ht.EmbeddingBagCollection([config], optimizer=optimizer, comm=comm, sharded=sharded)


def batch(step, first=0, of=1):
    random = torch.Generator().manual_seed(step)  # ranks are threads
    keys = torch.randint(0, ROWS, (24,), generator=random) // of * of + first
    return ht.KeyedJaggedTensor(["f"], keys.clamp(max=ROWS - 1), lengths=torch.full((12,), 2))


def train(made, steps=range(5)):
    for step in steps:
        out = made(batch(step)).values()
        out.backward(torch.sin(torch.arange(out.numel()).float() + step).reshape(out.shape))


def test_each_type_of_the_library_has_a_type_of_pytorch():
    names = []
    while (name := text(lib.hotbed_dtype_name(len(names) + 1))) != "unknown":
        names.append(name)
    assert names == list(ROW_TYPES)


@pytest.mark.parametrize("is_hash", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_state_dict_keeps_every_byte(dtype, is_hash):
    made, other = collection(dtype, is_hash), collection(dtype, is_hash)
    train(made)
    state, optimizer = made.state_dict(), made.fused_optimizer.state_dict()
    if dtype in SCALED:
        assert state["embedding_bags.t.weight"].dtype == torch.uint8
        assert state["embedding_bags.t.weight"].shape[1] == DIM + 4
    other.load_state_dict(state)
    other.fused_optimizer.load_state_dict(optimizer)
    for collected in (made, other):
        train(collected, range(5, 8))
    keys = made.keys("t")
    assert torch.equal(made.rows("t", keys), other.rows("t", keys))


@pytest.mark.parametrize("dtype", SCALED)
def test_rows_with_scales_train_as_float32(dtype):
    made, exact = collection(dtype), collection(torch.float32)
    exact.set_rows("t", exact.keys("t"), made.rows("t", made.keys("t")))
    for collected in (made, exact):
        train(collected, range(20))
    off = made.rows("t", made.keys("t")) - exact.rows("t", exact.keys("t"))
    assert float(off.abs().mean()) < 0.02 and float(off.abs().max()) < 0.2
    assert abs(float(off.mean())) < 0.002


@pytest.mark.parametrize("is_hash", [False, True])
@pytest.mark.parametrize("dtype", SCALED)
def test_rows_are_set_as_values_or_bytes(dtype, is_hash):
    made = collection(dtype, is_hash)
    keys, values = torch.arange(5), torch.linspace(-1, 1, 5 * DIM).reshape(5, DIM)
    made.set_rows("t", keys, values)
    got = made.rows("t", keys)
    assert got.dtype == torch.float32 and float((got - values).abs().max()) < 0.04
    stored = made.state_dict()["embedding_bags.t.weight"][:5]
    other = collection(dtype, is_hash)
    other.set_rows("t", keys, stored)
    assert torch.equal(other.rows("t", keys), got)
    with pytest.raises(hotbed.ArgumentError, match=r"weight is .*torch.uint8.*not shape"):
        made.set_rows("t", keys, stored[:, :-1])


@pytest.mark.parametrize("dtype", SCALED)
def test_values_of_a_state_dict_of_float32_are_converted(dtype):
    wide, made = collection(torch.float32), collection(dtype)
    train(wide)
    made.load_state_dict(wide.state_dict())
    assert float((made.rows("t", made.keys("t")) - wide.weight("t")).abs().max()) < 0.02


def test_an_init_fn_gets_values():
    made = collection(torch.int8, init_fn=lambda weight: weight.fill_(0.25))
    assert torch.equal(made.rows("t", torch.arange(ROWS)), torch.full((ROWS, DIM), 0.25))
    assert made.weight("t").dtype == torch.uint8


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_is_saved_and_loaded_as_every_other(dtype, tmp_path):
    made = collection(dtype, is_hash=True)
    train(made)
    try:
        checkpoint.save(tmp_path / "c", made)
    except hotbed.UnsupportedError:
        pytest.skip("the library was built without HDF5")
    keys = made.keys("t")
    table = checkpoint.read(tmp_path / "c")["t"]
    order = torch.argsort(torch.from_numpy(table.keys.astype("int64")))
    assert torch.equal(torch.from_numpy(table.weights)[order].float(), made.rows("t", keys).float())
    for to in TYPES:
        other = collection(to, is_hash=True)
        checkpoint.load(tmp_path / "c", other)
        assert torch.equal(other.keys("t"), keys)
        off = (other.rows("t", keys).float() - made.rows("t", keys).float()).abs().max()
        assert float(off) == 0 if to in (dtype, torch.float32) else float(off) < 0.05


@pytest.mark.parametrize("dtype", TYPES)
def test_two_ranks_have_the_bytes_of_one(dtype):
    orders = [torch.randperm(ROWS, generator=torch.Generator().manual_seed(step))[:48] for step in range(4)]

    def learn(made, ranks, scale):
        for step, order in enumerate(orders):  # a key occurs once in a step: no sum depends on the ranks
            keys = torch.cat([order[24 * rank : 24 * rank + 24] for rank in ranks])
            out = made(ht.KeyedJaggedTensor(["f"], keys, lengths=torch.full((keys.numel() // 2,), 2))).values()
            gradients = torch.sin(torch.arange(24 * DIM).float() + step).reshape(24, DIM)
            out.backward(torch.cat([gradients[12 * rank : 12 * rank + 12] for rank in ranks]) * scale)

    def run(comm):
        made = collection(dtype, comm=comm)
        keys = made.keys("t")
        initial = made.rows("t", keys)
        learn(made, [comm.rank], comm.size)  # gradients of ranks are averaged
        state = made.state_dict()
        other = collection(dtype, comm=comm)
        other.load_state_dict(state)
        assert torch.equal(other.weight("t"), made.weight("t"))
        return keys, initial, made.rows("t", keys), state["embedding_bags.t.weight"]

    alone = collection(dtype)
    first = alone.rows("t", torch.arange(ROWS))
    learn(alone, range(2), 1)
    for keys, initial, rows, stored in well(on_threads(run, 2)):
        assert torch.equal(initial, first[keys])
        assert torch.equal(rows, alone.rows("t", keys)) and not torch.equal(rows, initial)
        assert torch.equal(stored, alone.weight("t"))


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_rows_and_gradients_travel_in_16_bits(pooled, precision):
    kinds = (
        (ht.EmbeddingBagConfig, ht.EmbeddingBagCollection) if pooled else (ht.EmbeddingConfig, ht.EmbeddingCollection)
    )

    def run(comm, **fields):
        options = ht.ShardedOptions(max_batch_size=12, max_keys=24, **fields)
        config = kinds[0](ROWS, 16, "t", feature_names=["f"])
        made = kinds[1]([config], optimizer=ht.SGD(lr=0.1), comm=comm, sharded=options)
        for step in range(3):
            out = made(batch(10 * step + comm.rank))
            values = out.values() if pooled else out["f"].values()
            values.backward(torch.full_like(values, 1 + 2**-12))  # 16 bits do not have it
        return values.detach()

    narrow = well(on_threads(lambda comm: run(comm, forward_precision=precision, backward_precision=precision), 2))
    back = well(on_threads(lambda comm: run(comm, backward_precision=precision), 2))
    wide = well(on_threads(run, 2))
    for got, only_gradients, want in zip(narrow, back, wide):
        for rows in (got, only_gradients):
            torch.testing.assert_close(rows, want, rtol=0.02, atol=0.01)
            assert not torch.equal(rows, want)
        if not pooled:
            assert torch.equal(got.to(precision).float(), got)


@pytest.mark.parametrize("exchange", [None, ht.PooledExchange.ROWS, ht.PooledExchange.SUMS])
@pytest.mark.parametrize("precision", [torch.int8, torch.float8_e4m3fn])
def test_rows_and_gradients_travel_in_8_bits(exchange, precision):
    def run(comm, plan=ht.Plan.AUTO, **fields):
        sizes = ht.ShardedOptions(max_batch_size=12, max_keys=24, plan=plan, exchanges=exchange or {}, **fields)
        if exchange is None:
            made = ht.EmbeddingCollection(
                [ht.EmbeddingConfig(ROWS, 128, "t", feature_names=["f"])],
                optimizer=ht.SGD(lr=0.1),
                comm=comm,
                sharded=sizes,
            )
        else:
            made = ht.EmbeddingBagCollection(
                [ht.EmbeddingBagConfig(ROWS, 128, "t", feature_names=["f"])],
                optimizer=ht.SGD(lr=0.1),
                comm=comm,
                sharded=sizes,
            )
        for step in range(4):
            out = made(batch(10 * step + comm.rank))
            values = out["f"].values() if exchange is None else out.values()
            values.backward(torch.linspace(-1, 1, values.numel()).reshape(values.shape))
        return values.detach(), made.exchange_stats()

    narrow = {"forward_precision": precision, "backward_precision": precision}
    wide = well(on_threads(lambda comm: run(comm, ht.Plan.TWO_PHASE), 2))
    first = well(on_threads(lambda comm: run(comm, ht.Plan.TWO_PHASE, **narrow), 2))
    for (values, stats), (want, stats_of_wide) in zip(first, wide):
        torch.testing.assert_close(values, want, rtol=0.1, atol=0.1)
        assert not torch.equal(values, want)
        row = 132 if precision is torch.int8 else 144
        assert stats["rows_sent"] * 512 == stats_of_wide["rows_sent"] * row
        assert stats["gradients_sent"] * 512 == stats_of_wide["gradients_sent"] * row
    for plan in (ht.Plan.FIXED, ht.Plan.ONE_SIDED):
        other = well(on_threads(lambda comm, plan=plan: run(comm, plan, **narrow), 2))
        for (values, _), (want, _) in zip(other, first):
            assert torch.equal(values, want)


@pytest.mark.parametrize("dtype", TYPES)
def test_changes_have_values(dtype):
    made = collection(dtype, track_changes=True)
    train(made)
    changed = made.changes().tables["t"]
    assert len(changed.keys) == ROWS and torch.equal(changed.rows, made.rows("t", changed.keys))


@pytest.mark.parametrize("name", ["value", "rows", "dim", "kind"])
def test_a_table_may_have_the_name_of_a_word_of_the_manifest(tmp_path, name):
    config = ht.EmbeddingBagConfig(ROWS, DIM, name, feature_names=["f"], data_type=torch.int8)
    made = ht.EmbeddingBagCollection([config], optimizer=ht.SGD(lr=0.1))
    try:
        checkpoint.save(tmp_path / "c", made)
    except hotbed.UnsupportedError:
        pytest.skip("the library was built without HDF5")
    table = checkpoint.read(tmp_path / "c")[name]
    assert torch.equal(torch.from_numpy(table.weights), made.rows(name, torch.arange(ROWS)))


def test_a_type_that_the_library_does_not_know_is_named(tmp_path):
    try:
        checkpoint.save(tmp_path / "c", collection(torch.int8))
    except hotbed.UnsupportedError:
        pytest.skip("the library was built without HDF5")
    manifest = tmp_path / "c/MANIFEST"
    manifest.write_text(manifest.read_text().replace(" value int8 ", " value int4 "))
    with pytest.raises(hotbed.CorruptError, match="rows of table 't' have an unknown type 'int4'"):
        checkpoint.read(tmp_path / "c", verify=False)


def test_precisions_have_the_names_of_torchrec():
    qcomm = pytest.importorskip("torchrec.distributed.fbgemm_qcomm_codec")
    options = ht.ShardedOptions(forward_precision=qcomm.CommType.FP16, backward_precision=qcomm.CommType.BF16)
    assert options.forward_precision.name == "FP16"
    types = {"FP32": torch.float32, "FP16": torch.float16, "BF16": torch.bfloat16, "FP8": torch.float8_e4m3fn}
    for name, dtype in (*types.items(), ("INT8", torch.int8)):
        assert travel_dtype(qcomm.CommType[name]) is dtype
    with pytest.raises(hotbed.ArgumentError, match=r"forward_precision .*MX4.* is not float32, float16, bfloat16, fl"):
        ht.ShardedOptions(forward_precision=qcomm.CommType.MX4)


def test_outputs_do_not_have_scales():
    with pytest.raises(hotbed.ArgumentError, match=r"output_dtype torch\.int8"):
        ht.EmbeddingBagCollection([ht.EmbeddingBagConfig(ROWS, DIM, "t", feature_names=["f"])], output_dtype=torch.int8)


def test_torchrecs_names_are_types():
    torchrec = pytest.importorskip("torchrec")
    for name, dtype in (("INT8", torch.int8), ("NFP8", torch.float8_e4m3fn), ("FP16", torch.float16)):
        config = torchrec.EmbeddingBagConfig(num_embeddings=ROWS, embedding_dim=DIM, name="t", feature_names=["f"])
        config.data_type = torchrec.types.DataType[name]
        made = ht.EmbeddingBagCollection([config])
        assert made.rows("t", torch.arange(2)).shape == (2, DIM) and made._tables[0].dtype is dtype


@pytest.mark.parametrize("hashed", [False, True])
def test_bytes_of_another_type_are_refused(hashed):
    """Rows of 16 elements have as many bytes in both types."""

    def made(dtype, seed):
        table = ht.EmbeddingBagConfig(40, 16, "t", dtype, feature_names=["f"], use_virtual_table=hashed)
        return torch.nn.Sequential(ht.EmbeddingBagCollection([table], seed=seed))

    keys = torch.arange(20)
    source, other, same = made(torch.int8, 1), made(torch.float8_e4m3fn, 2), made(torch.int8, 3)
    for model in (source, other):
        model[0].set_rows("t", keys, torch.rand(20, 16))
    before, file = other[0].rows("t", keys), io.BytesIO()
    torch.save(source.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    with pytest.raises(RuntimeError, match=r"the bytes of rows of torch\.int8, but the table has torch\.float8_e4m3fn"):
        other.load_state_dict(state)
    assert torch.equal(other[0].rows("t", keys), before)
    same.load_state_dict(state)
    assert torch.equal(same[0].rows("t", keys), source[0].rows("t", keys))
