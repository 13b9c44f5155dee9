"""Train a small click model, and publish its tables while it trains.

    python serving_train.py published --seconds 60 --every 3

Users like one half of the items, and change their minds every 20 seconds, so predictions move.  The dense part is
trained first, and exported once with lookups for serving: published/program.pt2.  After that only rows change.
`serving_http.py` serves both.
"""

import argparse
import os
import time

import torch

import hotbed.serve
import hotbed.torch as ht

USERS, ITEMS, DIM = 2000, 500, 16


class Clicks(torch.nn.Module):
    """Scores of users for the items of a list, whose lengths differ."""

    def __init__(self):
        super().__init__()
        tables = [
            ht.EmbeddingBagConfig(USERS, DIM, "user", feature_names=["user"], use_virtual_table=True),
            ht.EmbeddingBagConfig(ITEMS, DIM, "item", feature_names=["items"], pooling=ht.PoolingType.MEAN),
        ]
        self.embeddings = ht.EmbeddingBagCollection(tables, optimizer=ht.RowWiseAdagrad(lr=0.2))
        self.top = torch.nn.Sequential(torch.nn.Linear(3 * DIM, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def forward(self, keys, lengths):
        """Take the keys of both features, and their number for each sample, [2, samples]."""
        batch = ht.KeyedJaggedTensor(["user", "items"], keys, lengths=lengths.reshape(-1))
        rows = self.embeddings(batch).values()
        user, items = rows[:, :DIM], rows[:, DIM:]
        return torch.sigmoid(self.top(torch.cat([rows, user * items], dim=1)))[:, 0]


def draw(samples, mood):
    """Draw a batch, and whether each user clicks: even users like even items in mood 0, odd ones in mood 1."""
    users = torch.randint(0, USERS, (samples,))
    items = torch.randint(0, ITEMS, (samples,))
    labels = ((users + items + mood) % 2 == 0).float()
    return torch.cat([users, items]), torch.ones(2, samples, dtype=torch.int64), labels


def export(model, path):
    """Write the program that `serving_http.py` loads; it has no rows, and needs no code of this file."""
    samples, keys = torch.export.Dim("samples", min=2, max=1 << 16), torch.export.Dim("keys", min=2, max=1 << 24)
    example = (torch.zeros(5, dtype=torch.int64), torch.tensor([[1, 1], [1, 2]]))
    served = hotbed.serve.for_serving(model)
    program = torch.export.export(served, example, dynamic_shapes=({0: keys}, {1: samples}))
    torch.export.save(program, path + ".new.pt2")
    os.rename(path + ".new.pt2", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--every", type=float, default=3, help="seconds between two cuts")
    parser.add_argument("--encoding", default="f16")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Clicks()
    optimizer = torch.optim.Adam(model.top.parameters(), lr=0.01)
    with hotbed.serve.Publisher(args.directory, model, args.encoding) as publisher:
        begin = published = None
        for step in range(1 << 60):
            now = time.monotonic()
            if begin is not None and now - begin > args.seconds:
                break
            keys, lengths, labels = draw(256, 0 if begin is None else int((now - begin) / 20) % 2)
            loss = torch.nn.functional.binary_cross_entropy(model(keys, lengths), labels)
            optimizer.zero_grad()
            loss.backward()
            if begin is None:
                optimizer.step()
                if step == 300:
                    export(model, os.path.join(args.directory, "program.pt2"))
                    begin = time.monotonic()
            elif (published is None or now - published > args.every) and not publisher.busy:
                publisher.publish(step)
                published = now
        publisher.publish(step)
    print(f"loss {loss.item():.3f} after {step} steps")


if __name__ == "__main__":
    main()
