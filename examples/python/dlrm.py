"""A DLRM on click logs in Criteo's format: embeddings in Hotbed, the dense part in PyTorch.

    hotbed-datagen --rows 100000 -o train.tsv
    python dlrm.py train.tsv --batch 1024 --steps 90
    torchrun --standalone --nproc-per-node 2 dlrm.py train.tsv --batch 512 --steps 90

Each line has a label, 13 integers and 26 categories, separated by tabs; missing values are empty.  A category's key
is a 64-bit number, so the tables need no vocabulary: a row is created when a category is first seen.  Under torchrun
the ranks share the embeddings' rows, each reads batches of its own, and the dense part has a replica on each.
"""

import argparse
import itertools
import os
import time

import torch
import torch.distributed as dist
from torch import nn

import hotbed.checkpoint
import hotbed.torch as ht

INTEGERS, CATEGORIES = 13, 26
FEATURES = [f"C{i}" for i in range(1, CATEGORIES + 1)]


def read_batches(path, batch, device):
    """Yield batches of the log, again and again.

    Each is labels [batch, 1], integers [batch, 13], and the categories as a KeyedJaggedTensor.
    """
    while True:
        with open(path) as file:
            for number in itertools.count():
                lines = [line.rstrip("\n").split("\t") for line in itertools.islice(file, batch)]
                if number == 0 and len(lines) < batch:
                    raise ValueError(f"{path} has {len(lines)} lines, fewer than a batch of {batch}")
                if len(lines) < batch:
                    break
                labels = torch.tensor([[float(line[0])] for line in lines], device=device)
                integers = [[max(0.0, float(x or 0)) for x in line[1 : 1 + INTEGERS]] for line in lines]
                keys, lengths = [], []
                for c in range(CATEGORIES):
                    for line in lines:
                        word = line[1 + INTEGERS + c]
                        lengths.append(1 if word else 0)
                        if word:
                            keys.append(int(word, 16) + (c << 40))
                kjt = ht.KeyedJaggedTensor(
                    FEATURES, torch.tensor(keys, device=device), lengths=torch.tensor(lengths, device=device)
                )
                yield labels, torch.log1p(torch.tensor(integers, device=device)), kjt


def layers(*widths):
    """Make a multilayer perceptron with a ReLU after each layer except the last."""
    parts = []
    for wide, narrow in zip(widths, widths[1:]):
        parts += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


class Loss(nn.Module):
    """The model and its loss on a batch, which `TrainPipeline` calls."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, batch):
        labels, integers, categories = batch
        return nn.functional.binary_cross_entropy_with_logits(self.model(integers, categories), labels)


class DLRM(nn.Module):
    """The top network receives the dot products of all pairs of embeddings, including the integers' embedding."""

    def __init__(self, dim, rows, lr, device, ranks):
        super().__init__()
        tables = [
            ht.EmbeddingBagConfig(
                rows,
                dim,
                "categories",
                feature_names=FEATURES,
                weight_init_min=-0.05,
                weight_init_max=0.05,
                use_virtual_table=True,
                evict=ht.Evict.LOWEST,
                score=ht.Score.LFU,
            )
        ]
        optimizer = ht.RowWiseAdagrad(lr=lr)
        self.embeddings = ht.EmbeddingBagCollection(tables, device=device, optimizer=optimizer, **ranks)
        self.bottom = layers(INTEGERS, 64, dim)
        pairs = (CATEGORIES + 1) * CATEGORIES // 2
        self.top = layers(dim + pairs, 64, 1)
        self.register_buffer("pairs", torch.triu_indices(CATEGORIES + 1, CATEGORIES + 1, 1), persistent=False)
        self.dim = dim
        self.to(device)

    def forward(self, integers, categories):
        dense = self.bottom(integers)
        rows = self.embeddings(categories).values().view(-1, CATEGORIES, self.dim)
        every = torch.cat([dense.unsqueeze(1), rows], dim=1)
        dots = torch.bmm(every, every.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([dense, dots], dim=1))


def join(device):
    """Return rank, number of ranks, and the collection's arguments for the ranks that torchrun has started."""
    if "RANK" not in os.environ:
        return 0, 1, {}
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    comm = hotbed.Comm.from_group(device=device)
    return comm.rank, comm.size, {"comm": comm, "sharded": ht.ShardedOptions()}


def flags(description):
    """Return a parser with the flags that examples on click logs share."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=description.split("\n")[0])
    parser.add_argument("log", help="click log in Criteo's format")
    parser.add_argument("--batch", type=int, default=1024, help="samples of a rank")
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--rows", type=int, default=1_000_000, help="categories that are kept")
    parser.add_argument("--lr", type=float, default=0.02, help="of the embeddings")
    local = os.environ.get("LOCAL_RANK", "0")
    parser.add_argument("--device", default=f"cuda:{local}" if "cuda" in hotbed.backends() else "cpu")
    return parser


def main():
    parser = flags(__doc__)
    parser.add_argument("--checkpoint", help="directory to write the embeddings to")
    args = parser.parse_args()
    device = torch.device(args.device)
    rank, world, ranks = join(device)
    torch.manual_seed(1)
    model = DLRM(args.dim, args.rows, args.lr, device, ranks)
    embeddings = model.embeddings
    if ranks:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = itertools.islice(read_batches(args.log, args.batch, device), rank, None, world)
    start, seen = time.monotonic(), []
    # Its backward updates the embeddings too; the next batch's are looked up meanwhile.
    pipeline = ht.TrainPipeline(Loss(model), optimizer)
    for step, loss in enumerate(pipeline(itertools.islice(batches, args.steps)), 1):
        seen.append(loss)
        if step % 30 == 0:
            loss = torch.stack(seen[-30:]).mean()
            print(f"rank {rank}, step {step}: loss {loss:.4f}, {time.monotonic() - start:.1f} s")
    stats = embeddings.stats("categories")
    print(f"rank {rank}: {stats['inserts']} categories seen, {stats['evictions']} evicted")
    if args.checkpoint:
        hotbed.checkpoint.save(args.checkpoint, embeddings, step=args.steps)


if __name__ == "__main__":
    main()
