"""tests/dist/test_torchrec.py - Hotbed's sharded collections train as TorchRec's do, on two ranks.

usage: test_torchrec.py TORCHREC_CASE

Row-wise sharding on the CPU, over gloo.  The same tables, batches and gradients go through TorchRec's
ShardedEmbeddingCollection (index dedup off and on) and ShardedEmbeddingBagCollection, and, in the program
torchrec_case, through Hotbed's collections with all three plans.  Each rank compares, for each step, the embeddings
and, of sequences, the keys and lengths that input_dist delivers; and after the last step the rows.  What input_dist
delivers of bags depends on what travels, rows or sums, and TorchRec has nothing like it.  With SGD at rate 1 the rows
change by the gradients, so this compares gradients too.  Two differences are intended:

- After dedup TorchRec has the distinct keys of a table in ascending order, spread over the rows of all features of the
  table; Hotbed has them by table, in the order of first occurrence.  The test compares sets.
- FBGEMM implements dedup (jagged_unique_indices) for GPUs only.  The test registers an implementation for the CPU;
  all further processing is TorchRec's.

Exit status 77: Python lacks PyTorch, TorchRec or FBGEMM.
"""

import itertools
import logging
import os
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
try:
    import fbgemm_gpu
    import torch
    import torch.distributed
    import torch.multiprocessing
    import torchrec
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec.distributed import comm_ops
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
    from torchrec.distributed.types import ShardingEnv
except Exception as reason:  # missing, or incompatible versions
    print(f"skipped: no TorchRec: {type(reason).__name__}: {str(reason).partition(chr(10))[0]}")
    sys.exit(77)

WORLD, STEPS, DIM = 2, 3, 12
ROWS = [11, 40, 7]  # of the tables; for two of them the last rank owns fewer rows than the first
TABLES = [0, 0, 1, 2, 2]  # the table of each feature
FEATURES = [f"f{f}" for f in range(len(TABLES))]
PLANS = ["fixed", "two_phase", "one_sided"]
KINDS = {
    "sgd": (1, EmbOptimType.EXACT_SGD),
    "adagrad": (3, EmbOptimType.EXACT_ADAGRAD),
    "rowwise_adagrad": (4, EmbOptimType.EXACT_ROWWISE_ADAGRAD),
}
# name: pooled, dedup, optimizer, rate, whether gradients are divided by the number of ranks (TorchRec's default)
CASES = {
    "sequence, sgd": (False, False, "sgd", 1.0, True),
    "sequence, adagrad": (False, False, "adagrad", 0.125, False),
    "sequence, dedup, sgd": (False, True, "sgd", 1.0, True),
    "sequence, dedup, rowwise_adagrad": (False, True, "rowwise_adagrad", 0.125, False),
    "sequence, dedup, adagrad": (False, True, "adagrad", 0.125, True),
    "pooled, sgd": (True, False, "sgd", 1.0, False),
    "pooled, adagrad": (True, False, "adagrad", 0.125, True),
}
EPS = 1e-8


def weights_of(table):
    return torch.rand(ROWS[table], DIM, generator=torch.Generator().manual_seed(table)) - 0.5


def batch_of(step, rank, pooled):
    """Samples, lengths [features * samples], keys, gradient; one batch has no keys.  Ranks have different numbers of
    samples, except in pooled batches: over gloo TorchRec accepts only equal ones."""
    random = torch.Generator().manual_seed(100 * step + rank)
    samples = 5 - step + (0 if pooled else 2 * rank)
    lengths = torch.randint(0, 4, (len(TABLES), samples), generator=random)
    lengths[(step + rank) % len(TABLES)] = 0
    if step == 2 and rank == 1:
        lengths[:] = 0
    keys = torch.cat(
        [torch.randint(0, ROWS[table], (int(lengths[f].sum()),), generator=random) for f, table in enumerate(TABLES)]
    )
    rows = samples if pooled else len(keys)
    width = DIM * len(TABLES) if pooled else DIM
    return samples, lengths.flatten(), keys, torch.rand(rows, width, generator=random) * 2 - 1


# --- TorchRec ------------------------------------------------------------------------------------------


def jagged_unique_indices(hash_size_cumsum, hash_size_offsets, offsets, keys):
    """For the CPU, as FBGEMM has it for GPUs: the distinct keys of each table in ascending order, spread evenly over
    the rows of the table's features; and the number of each key's distinct key."""
    features = len(hash_size_cumsum) - 1
    rows = (len(offsets) - 1) // features
    lengths = offsets[1:] - offsets[:-1]
    first = hash_size_cumsum[:-1].repeat_interleave(rows).repeat_interleave(lengths)
    unique, inverse = torch.unique(keys + first, sorted=True, return_inverse=True)
    spread = torch.zeros(features * rows, dtype=torch.int64)
    values, begin = [], 0
    while begin < features:  # the features of one table
        end = begin + int(hash_size_offsets[begin + 1] - hash_size_offsets[begin])
        low, high = int(hash_size_cumsum[begin]), int(hash_size_cumsum[end])
        mine = unique[(unique >= low) & (unique < high)] - low
        slots = (end - begin) * rows
        for slot in range(slots):
            spread[begin * rows + slot] = len(mine) // slots + (slot < len(mine) % slots)
        values.append(mine)
        begin = end
    return spread, torch.cat([torch.zeros(1, dtype=torch.int64), spread.cumsum(0)]), torch.cat(values), inverse


def make_collection(pooled, dedup, optimizer, rate):
    config = torchrec.EmbeddingBagConfig if pooled else torchrec.EmbeddingConfig
    tables = [
        config(
            num_embeddings=rows,
            embedding_dim=DIM,
            name=f"t{t}",
            feature_names=[name for name, table in zip(FEATURES, TABLES) if table == t],
        )
        for t, rows in enumerate(ROWS)
    ]
    fused = {"optimizer": KINDS[optimizer][1], "learning_rate": rate, "eps": EPS}
    if pooled:
        module = torchrec.EmbeddingBagCollection(device=torch.device("cpu"), tables=tables)
        sharder = EmbeddingBagCollectionSharder(fused_params=fused)
    else:
        module = torchrec.EmbeddingCollection(device=torch.device("cpu"), tables=tables)
        sharder = EmbeddingCollectionSharder(fused_params=fused, use_index_dedup=dedup)
    plan = construct_module_sharding_plan(
        module,
        {f"t{t}": row_wise(compute_kernel="fused") for t in range(len(ROWS))},
        sharder,
        local_size=WORLD,
        world_size=WORLD,
        device_type="cpu",
    )
    env = ShardingEnv.from_process_group(torch.distributed.group.WORLD)
    sharded = sharder.shard(module, plan, env, torch.device("cpu"))
    with torch.no_grad():
        for t, shard in enumerate(shards_of(sharded)):
            first, n = shard.metadata.shard_offsets[0], shard.metadata.shard_sizes[0]
            shard.tensor.copy_(weights_of(t)[first : first + n])
    return sharded


def shards_of(sharded):
    """This rank's shard of each table."""
    state = {name.split(".")[-2]: value for name, value in sharded.state_dict().items()}
    return [state[f"t{t}"].local_shards()[0] for t in range(len(ROWS))]


def train_case(rank, pooled, dedup, optimizer, rate, divided):
    comm_ops.set_gradient_division(divided)
    module = make_collection(pooled, dedup, optimizer, rate)
    seen = []
    for step in range(STEPS):
        _, lengths, keys, gradient = batch_of(step, rank, pooled)
        context = module.create_context()
        kjt = torchrec.KeyedJaggedTensor(keys=FEATURES, values=keys, lengths=lengths)
        received = module.input_dist(context, kjt).wait().wait()
        assert len(received) == 1 and received[0].keys() == FEATURES
        got = (received[0].values().clone(), received[0].lengths().clone())
        output = module.compute_and_output_dist(context, received).wait()
        if pooled:
            output = output.values()
        else:
            output = torch.cat([output[name].values() for name in FEATURES])
        (output * gradient).sum().backward()
        seen.append((*got, output.detach().clone()))
    return seen, [shard.tensor.detach().clone() for shard in shards_of(module)]


def torchrec_rank(rank, folder):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # the host name may resolve to an address that is not local
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    name = "fbgemm::jagged_unique_indices"
    if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"):
        library = torch.library.Library("fbgemm", "IMPL")
        library.impl("jagged_unique_indices", jagged_unique_indices, "CPU")
    results = {name: train_case(rank, *case) for name, case in CASES.items()}
    torch.save(results, f"{folder}/torchrec.{rank}")
    torch.distributed.destroy_process_group()


# --- Hotbed --------------------------------------------------------------------------------------------


def write_case(path, pooled, dedup, optimizer, rate, divided):
    words = [
        WORLD,
        STEPS,
        int(pooled),
        int(dedup),
        KINDS[optimizer][0],
        rate,
        EPS,
        1 / WORLD if divided else 1.0,
        DIM,
        len(ROWS),
    ]
    for t, rows in enumerate(ROWS):
        words += [rows, *weights_of(t).flatten().tolist()]
    words += [len(TABLES), *TABLES]
    for step, rank in itertools.product(range(STEPS), range(WORLD)):
        samples, lengths, keys, gradient = batch_of(step, rank, pooled)
        words += [samples, *lengths.tolist(), *keys.tolist(), *gradient.flatten().tolist()]
    with open(path, "w", encoding="ascii") as file:
        file.write(" ".join(word.hex() if isinstance(word, float) else str(word) for word in words))


def hotbed_results(program, folder, case):
    """[plan][rank]{(name, number): values}"""
    environment = dict(os.environ, TORCHREC_CASE=f"{folder}/case", TORCHREC_RESULT=f"{folder}/hotbed")
    write_case(environment["TORCHREC_CASE"], *case)
    subprocess.run([program], env=environment, check=True, stdout=subprocess.DEVNULL)
    return [[read_result(f"{folder}/hotbed.{plan}.{rank}") for rank in range(WORLD)] for plan in range(len(PLANS))]


def read_result(path):
    result = {}
    with open(path, encoding="ascii") as file:
        for line in file:
            name, number, *values = line.split()
            floats = name in ("output", "rows")
            result[name, int(number)] = (
                torch.tensor([float.fromhex(v) for v in values])
                if floats
                else torch.tensor([int(v) for v in values], dtype=torch.int64)
            )
    return result


# --- comparison -----------------------------------------------------------------------------------------


def check_received(result, step, values, lengths, dedup):
    keys, offsets = result["keys", step], result["offsets", step]
    samples = [batch_of(step, rank, False)[0] for rank in range(WORLD)]
    rows = sum(samples)
    sent = [part.sum() for part in lengths.view(len(TABLES), rows).split(samples, dim=1)]
    assert int(sum(sent)) == len(values) == len(keys)
    if not dedup:
        assert torch.equal(offsets[1:] - offsets[:-1], lengths.view(len(TABLES), rows).sum(1))
        assert torch.equal(keys, values)
    else:  # the same set of keys for each table and rank; the order differs
        by_row = values.split(lengths.tolist())
        for t in range(len(ROWS)):
            ours = keys[offsets[t] : offsets[t + 1]]
            begin = 0
            for rank in range(WORLD):
                theirs = [
                    by_row[f * rows + sum(samples[:rank]) + s]
                    for f, table in enumerate(TABLES)
                    if table == t
                    for s in range(samples[rank])
                ]
                theirs = torch.cat(theirs)
                mine = ours[begin : begin + len(theirs)]
                assert torch.equal(mine.sort().values, theirs.sort().values)
                begin += len(theirs)
            assert begin == len(ours)


def difference(ours, theirs):
    assert len(ours) == theirs.numel()
    return float((ours - theirs.flatten()).abs().max()) if len(ours) else 0.0


def compare(name, case, theirs, ours):
    pooled, dedup = case[:2]
    outputs, rows = [], []
    for plan, rank in itertools.product(range(len(PLANS)), range(WORLD)):
        result = ours[plan][rank]
        seen, weights = theirs[rank][name]
        for step, (values, lengths, output) in enumerate(seen):
            if not pooled:
                check_received(result, step, values, lengths, dedup)
            outputs.append(difference(result["output", step], output))
        rows += [difference(result["rows", t], weight) for t, weight in enumerate(weights)]
    print(f"{name:34} embeddings differ by {max(outputs):.3g}, rows by {max(rows):.3g}")
    assert max(outputs + rows) < 1e-6, name  # values are below 4


def main():
    print(f"PyTorch {torch.__version__}, TorchRec {torchrec.__version__}, FBGEMM {fbgemm_gpu.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(torchrec_rank, (folder,), WORLD)
        theirs = [torch.load(f"{folder}/torchrec.{rank}") for rank in range(WORLD)]
        for name, case in CASES.items():
            compare(name, case, theirs, hotbed_results(sys.argv[1], folder, case))


if __name__ == "__main__":
    main()
