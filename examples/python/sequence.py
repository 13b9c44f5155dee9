"""Next-item prediction on click logs in Criteo's format: a causal transformer over the rows of one hash table.

    hotbed-datagen --rows 100000 -o train.tsv
    hotbed-datagen --rows 10000 --skip 100000 -o test.tsv
    python sequence.py train.tsv test.tsv --batch 256 --steps 90
    torchrun --standalone --nproc-per-node 2 sequence.py train.tsv test.tsv --batch 128 --steps 90

A sequence has the categories of one sample, in the order of the columns and without the missing ones.  After each item
the model predicts the next one.  hotbed-datagen draws columns independently, so the model can learn from its logs
which keys a column has and which of them are frequent; real logs have more to learn.  dlrm.py has the log's format.
"""

import itertools

import torch
import torch.distributed as dist
from dlrm import CATEGORIES, flags, join, read_batches
from torch import nn

import hotbed.torch as ht

BEST = 10


def sequences(categories):
    """Turn a batch of features into a batch with one feature, "items": a sequence for each sample."""
    present = categories.lengths().view(CATEGORIES, -1).bool()
    keys = torch.zeros(present.shape, dtype=torch.int64, device=present.device)
    keys[present] = categories.values()
    return ht.KeyedJaggedTensor(["items"], keys.T[present.T], lengths=present.sum(0))


class NextItem(nn.Module):
    """A causal transformer that scores items by the dot product of its output and their rows."""

    def __init__(self, dim, rows, lr, device, ranks):
        super().__init__()
        table = ht.EmbeddingConfig(
            rows,
            dim,
            "items",
            feature_names=["items"],
            weight_init_min=-0.05,
            weight_init_max=0.05,
            use_virtual_table=True,
            evict=ht.Evict.LOWEST,
            score=ht.Score.LFU,
        )
        self.items = ht.EmbeddingCollection([table], device=device, optimizer=ht.Adam(lr=lr), **ranks)
        self.positions = nn.Parameter(0.05 * torch.randn(CATEGORIES, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout=0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(dim), enable_nested_tensor=False)
        mask = nn.Transformer.generate_square_subsequent_mask(CATEGORIES)
        self.register_buffer("mask", mask, persistent=False)
        self.to(device)

    def forward(self, batch):
        """Return a score of every candidate for each predicted item, and the candidate that is right.

        The candidates are the distinct items of the batch: an in-batch softmax.
        """
        rows = self.items.flat(batch)  # a row for each key, [keys, dim]
        keys, lengths = batch.values(), batch.lengths()
        distinct, number = torch.unique(keys, return_inverse=True)
        some = torch.empty_like(distinct).scatter_(0, number, torch.arange(len(keys), device=keys.device))
        candidates = rows[some]  # the places of an item all have the same row

        inside = torch.arange(CATEGORIES, device=keys.device) < lengths[:, None]  # [samples, CATEGORIES]
        padded = rows.new_zeros(*inside.shape, rows.shape[1])
        padded[inside] = rows
        # Padding follows the items, so the causal mask hides it from them.
        states = self.layers(padded + self.positions, mask=self.mask, is_causal=True)

        has_next = inside[:, 1:]
        targets = number.new_zeros(inside.shape)
        targets[inside] = number
        return states[:, :-1][has_next] @ candidates.T, targets[:, 1:][has_next]


def hit_rate(model, batches, ranks):
    """Return how often the next item is among the BEST best candidates, and how often it would be by chance."""
    model.eval()
    hits, chance, n = 0, 0.0, 0
    with torch.no_grad():
        for _, _, categories in batches:
            scores, targets = model(sequences(categories))
            hits += (scores.topk(BEST).indices == targets[:, None]).sum().item()
            chance += len(targets) * BEST / scores.shape[1]
            n += len(targets)
    model.train()
    sums = torch.tensor([hits, chance, n], dtype=torch.float64)
    if ranks:
        dist.all_reduce(sums)
    return (sums[:2] / sums[2]).tolist()


def main():
    parser = flags(__doc__)
    parser.add_argument("test", help="log of other samples, of which four batches of each rank are held out")
    parser.set_defaults(batch=256, dim=32, lr=0.01)
    args = parser.parse_args()
    device = torch.device(args.device)
    rank, world, ranks = join(device)
    torch.manual_seed(1)
    model = NextItem(args.dim, args.rows, args.lr, device, ranks)
    items = model.items
    if ranks:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batches = itertools.islice(read_batches(args.log, args.batch, device), rank, None, world)
    seen = []
    for step in range(1, args.steps + 1):
        _, _, categories = next(batches)
        loss = nn.functional.cross_entropy(*model(sequences(categories)))
        optimizer.zero_grad()
        loss.backward()  # updates the items' rows too
        optimizer.step()
        seen.append(loss.detach())
        if step % 10 == 0:
            print(f"rank {rank}, step {step}: loss {torch.stack(seen[-10:]).mean():.4f}")
    held_out = itertools.islice(read_batches(args.test, args.batch, device), rank, 4 * world, world)
    hits, chance = hit_rate(model, held_out, ranks)
    stats = items.stats("items")
    print(f"rank {rank}: {stats['inserts']} items seen, {stats['evictions']} evicted")
    if rank == 0:
        print(f"held-out hit rate at {BEST}: {hits:.4f}; {chance:.4f} by chance")
    first, last = (torch.stack(part).mean().item() for part in (seen[:5], seen[-5:]))
    if last > 0.9 * first or hits < 2 * chance:
        raise SystemExit(f"rank {rank}: nothing was learned: loss {first:.4f} at first, {last:.4f} at last")


if __name__ == "__main__":
    main()
