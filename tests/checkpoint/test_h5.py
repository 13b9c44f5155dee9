"""tests/checkpoint/test_h5.py - h5py, pandas and h5dump read checkpoints as docs/formats.md describes them.

usage: test_h5.py SAMPLE_PROGRAM FORMATS_MD

Parses MANIFEST from its description in docs/formats.md alone, and compares the rows that h5py reads with the formula
by which the sample program fills its tables.  The lines for pandas are taken from docs/formats.md.
Exit status 77: Python has no h5py.
"""

import os
import shutil
import subprocess
import sys
import tempfile

try:
    import h5py
    import numpy as np
except ImportError:
    system = "/usr/bin/python3"  # only the distribution's Python finds the distribution's h5py
    if os.path.exists(system) and os.path.realpath(sys.executable) != os.path.realpath(system):
        os.execv(system, [system, *sys.argv])
    print("skipped: Python has no h5py")
    sys.exit(77)
try:
    import xxhash
except ImportError:
    xxhash = None
    print("without digests: Python has no xxhash")

TABLES = [  # name, group, hash?, dim, rows: tests/checkpoint/sample.c
    ("user.id", "user.id", True, 16, 300),
    ("item", "item", True, 8, 200),
    ("geo-x", "geo-x", False, 5, 37),
    ("nothing", "nothing", True, 4, 0),
    (".", "+", True, 1, 20),
]
STATES = {
    "sgd": [],
    "adam": ["exp_avg", "exp_avg_sq"],
    "adagrad": ["sum"],
    "rowwise_adagrad": ["momentum1"],
    "ftrl": ["linear", "accum"],
    "partial_rowwise_adam": ["exp_avg", "exp_avg_sq"],
    "rowwise_adam": ["exp_avg", "exp_avg_sq"],
    "row_steps_adam": ["exp_avg", "exp_avg_sq_steps"],
}
ONE_NUMBER = {("rowwise_adagrad", 0), ("partial_rowwise_adam", 1), ("rowwise_adam", 0), ("rowwise_adam", 1)}
BITS = 6
MASK = (1 << 64) - 1


def bucket_of(key):
    key &= MASK
    key ^= key >> 33
    key = key * 0xFF51AFD7ED558CCD & MASK
    key ^= key >> 33
    key = key * 0xC4CEB9FE1A85EC53 & MASK
    key ^= key >> 33
    return key >> (64 - BITS)


def check(condition, what):
    if not condition:
        sys.exit("failed: " + what)


def read_manifest(path):
    """Extents by (table, column): offset, length, root."""
    extents = {}
    lines = open(os.path.join(path, "MANIFEST"), "rb").read().decode().splitlines()
    check(lines[0] == "hotbed-checkpoint 1", "first line")
    check(lines[-1].startswith("end "), "last line")
    for line in lines:
        words = line.split(" ")
        if words[0] == "extent":
            extents[words[1], words[3]] = (int(words[5]), int(words[7]), words[9])
        if words[0] in ("blocks", "blob"):
            extents["", words[0]] = (int(words[3]), int(words[5]), words[7])
    if xxhash is not None:
        text = "\n".join(lines[:-1]) + "\n"
        check(lines[-1] == "end " + xxhash.xxh3_128_hexdigest(text.encode()), "digest of MANIFEST")
    return extents


def root_of(data):
    digests = b""
    for at in range(0, len(data), 4 << 20):
        digests += xxhash.xxh3_128_digest(data[at : at + (4 << 20)])[::-1]  # low, high
    return xxhash.xxh3_128_hexdigest(digests)


def check_content(path, optimizer):
    """Compare the content lines with the sums of the digests of the rows that h5py reads."""
    if xxhash is None:
        return
    lines = open(os.path.join(path, "MANIFEST")).read().splitlines()
    found = dict(line.split(" ")[1:] for line in lines if line.startswith("content "))
    with h5py.File(os.path.join(path, "shard-00000-of-00001.h5"), "r") as shard:
        for name, group, is_hash, _, rows in TABLES:
            table = shard["tables/" + group]
            columns = [table["keys"][:] if is_hash else np.arange(rows, dtype=np.int64)]
            values = table["values"]
            if name == "item":  # bf16: the bytes, not their values
                bits = np.empty(values.shape, np.uint16)
                values.id.read(h5py.h5s.ALL, h5py.h5s.ALL, bits, values.id.get_type())
                columns.append(bits)
            else:
                columns.append(values[:])
            columns += [table["scores"][:]] if is_hash else []
            columns += [table["opt/" + state][:] for state in STATES[optimizer]]
            content = 0
            for row in range(rows):
                data = b"".join(column[row : row + 1].tobytes() for column in columns)
                content += xxhash.xxh3_128_intdigest(data)
            check(found[name] == "%032x" % (content & ((1 << 128) - 1)), "content of " + name)


def check_extents(path, extents):
    shard_path = os.path.join(path, "shard-00000-of-00001.h5")
    data = open(shard_path, "rb").read()
    with h5py.File(shard_path, "r") as shard:
        for (table, column), (offset, length, root) in extents.items():
            group = "+" if table == "." else table
            name = {"blocks": "/integrity/blocks", "blob": "/blobs/extra"}.get(column)
            dataset = shard[name or f"/tables/{group}/{column}"]
            check(dataset.size * dataset.id.get_type().get_size() == length, "length of " + dataset.name)
            check(length == 0 or dataset.id.get_offset() == offset, "place of " + dataset.name)
            check(dataset.chunks is None and dataset.compression is None, "layout of " + dataset.name)
            if xxhash is not None:
                check(root_of(data[offset : offset + length]) == root, "root of " + dataset.name)
        check(bytes(shard["blobs/extra"][:]) == b"extra bytes of the caller", "extra")
        check(shard.attrs["step"] == 1234 and shard.attrs["byte_order"] == b"little", "attributes")
        check(shard["tables/item"].attrs["dtype"] == b"bf16", "dtype of item")
        check(shard["tables/item"].attrs["fqn"] == b"embeddings.item.weight", "fqn of item")


def check_table(index, number, optimizer):
    name, group, is_hash, dim, rows = TABLES[number]
    weight = index[f"state_dict/embeddings.{name}.weight"]
    check(weight == index[f"embeddings/{group}/weight"], "link of " + name)
    check(weight.shape == (rows, dim), "shape of " + name)
    keys = np.arange(rows)
    if is_hash:
        keys = index[f"state_dict/embeddings.{name}.weight_id"][:]
        scores = index[f"state_dict/embeddings.{name}.metadata"][:]
        check(sorted(keys) == [i * 7919 + 3 for i in range(rows)], "keys of " + name)
        check((scores == keys % 100000).all(), "scores of " + name)
        order = [(bucket_of(int(k)), int(k)) for k in keys]
        check(order == sorted(order), "order of " + name)
        counts = index["state_dict"].get(f"embeddings.{name}.bucket")
        check((counts is None) == (rows < 1 << BITS), "whether there are buckets of " + name)
        if counts is not None:
            check(
                list(counts[:]) == list(np.bincount([b for b, _ in order], minlength=1 << BITS)),
                "buckets of " + name,
            )
    else:
        check(f"embeddings.{name}.weight_id" not in index["state_dict"], "keys of " + name)
    elements = np.arange(dim)
    wanted = (keys[:, None] % 32 + number + elements[None, :]) / 2
    check((weight[:].astype(np.float64) == wanted).all(), "weights of " + name)
    for c, state in enumerate(STATES[optimizer]):
        data = index[f"optimizer/embeddings.{name}.weight/{name}.{state}"]
        width = dim + 1 if state == "exp_avg_sq_steps" else dim
        wanted = ((keys % 1000 + 10 * number) / 8)[:, None] + c + np.arange(width)[None, :]
        if (optimizer, c) in ONE_NUMBER:
            wanted = wanted[:, 0]
        check(data.shape == wanted.shape and (data[:] == wanted).all(), state + " of " + name)


def check_fast_bf16(path):
    """Read bf16 as bits by the lines in docs/formats.md, without libhdf5's slow conversion."""
    with h5py.File(os.path.join(path, "shard-00000-of-00001.h5"), "r") as shard:
        dataset = shard["tables/item/values"]
        bits = np.empty(dataset.shape, np.uint16)
        dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, bits, dataset.id.get_type())
        fast = (bits.astype(np.uint32) << 16).view(np.float32)
        check((fast == dataset[:]).all(), "bf16 as bits")


def check_pandas(path, lines):
    try:
        import pandas
    except ImportError:
        return
    lines = lines.replace("ckpt/", path + "/").replace("user_id", "user.id")
    names = {}
    exec(lines, names)
    check(isinstance(names["frame"], pandas.DataFrame), "a data frame")
    check(names["frame"].shape == (300, 16) and names["frame"].loc[3, 0] == 1.5, "row of key 3 in pandas")
    names["t"].file.close()


def check_h5dump(path):
    if shutil.which("h5dump") is None:
        return
    for name in ("index.h5", "shard-00000-of-00001.h5"):
        done = subprocess.run(["h5dump", os.path.join(path, name)], capture_output=True, cwd=tempfile.gettempdir())
        check(done.returncode == 0 and len(done.stdout) > 10000, "h5dump of " + name)


def check_missing_shard(path):
    """A view whose shard is missing reads as NaN and the least key."""
    os.remove(os.path.join(path, "shard-00000-of-00001.h5"))
    with h5py.File(os.path.join(path, "index.h5"), "r") as index:
        check(np.isnan(index["embeddings/user.id/weight"][:]).all(), "fill of weight")
        check(
            (index["embeddings/user.id/weight_id"][:] == np.iinfo(np.int64).min).all(),
            "fill of weight_id",
        )


def check_ranks(path):
    """Shards of three ranks: the index has one view of all rows, and h5dump reads every file."""
    names = sorted(os.listdir(path))
    check(len(names) == 5 and names[2] == "shard-00000-of-00003.h5", "files of three ranks")
    with h5py.File(os.path.join(path, "index.h5"), "r") as index:
        ids = index["embeddings/hash/weight_id"][:]
        check(len(set(ids)) == 400, "keys of three ranks")
        check(index["embeddings/hash/weight"].shape == (400, 6), "rows of three ranks")
        check(index["embeddings/static/weight"].shape == (90, 3), "static rows of three ranks")
        at = 0
        for rank in range(3):
            with h5py.File(os.path.join(path, names[2 + rank]), "r") as shard:
                table = shard["tables/hash"]
                rows = int(table.attrs["rows"])
                check((table["keys"][:] == ids[at : at + rows]).all(), "keys of a rank")
                view = index["embeddings/hash/weight"][at : at + rows]
                check(table["values"][:].tobytes() == view.tobytes(), "rows of a rank")
                at += rows
                first, end = (shard["tables/static"].attrs[w] for w in ("first_row", "end_row"))
                check((first, end) == (30 * rank, 30 * rank + 30), "static rows of a rank")
        check(at == 400, "rows of all ranks")
    if shutil.which("h5dump") is not None:
        for name in names:
            if name != "MANIFEST":
                subprocess.run(["h5dump", os.path.join(path, name)], check=True, stdout=subprocess.DEVNULL)


def check_dealt(path, blocks):
    """Rows that are dealt to three ranks in turn: the view has them in the order of their numbers."""
    names = ["weight", "static.exp_avg", "static.exp_avg_sq"]
    parts = ["values", "opt/exp_avg", "opt/exp_avg_sq"]
    group = "optimizer/embeddings.static.weight/"
    with h5py.File(os.path.join(path, "index.h5")) as dealt, h5py.File(os.path.join(blocks, "index.h5")) as right:
        for name, part in zip(names, parts, strict=True):
            where = "embeddings/static/weight" if name == "weight" else group + name
            view = dealt[where][:]
            check(view.shape == (90, 3) and view.tobytes() == right[where][:].tobytes(), "rows by number: " + where)
            for rank in range(3):
                with h5py.File(os.path.join(path, f"shard-{rank:05}-of-00003.h5")) as shard:
                    table = shard["tables/static"]
                    first, end, step = (table.attrs[w] for w in ("first_row", "end_row", "row_step"))
                    check((first, end, step) == (rank, 90, 3), "numbers of a rank's rows")
                    check(table[part][:].tobytes() == view[first:end:step].tobytes(), "rows of a rank: " + part)


def print_versions():
    print(f"h5py {h5py.version.version}, HDF5 {h5py.version.hdf5_version}, numpy {np.__version__}")
    try:
        import pandas

        print("pandas " + pandas.__version__)
    except ImportError:
        print("without pandas: Python has none")
    if shutil.which("h5dump") is None:
        print("without h5dump: it is not installed")
    else:
        print(subprocess.run(["h5dump", "--version"], capture_output=True, text=True).stdout.strip())


def main():
    program = os.path.abspath(sys.argv[1])
    pandas_lines = open(sys.argv[2]).read().split("```python\n", 1)[1].split("```", 1)[0]
    check(len(pandas_lines.splitlines()) == 3, "three lines for pandas")
    print_versions()
    with tempfile.TemporaryDirectory() as root:
        for optimizer in STATES:
            path = os.path.join(root, optimizer)
            environment = dict(
                os.environ,
                HOTBED_SAMPLE_PATH=path,
                HOTBED_SAMPLE_OPTIMIZER=optimizer,
                HOTBED_SAMPLE_BITS=str(BITS),
            )
            subprocess.run([program], env=environment, check=True, stdout=subprocess.DEVNULL)
            check(sorted(os.listdir(root)) == [optimizer], "names beside the checkpoint")
            check_extents(path, read_manifest(path))
            check_content(path, optimizer)
            moved = os.path.join(root, "moved")
            shutil.move(path, moved)  # views name shards relative to the index
            with h5py.File(os.path.join(moved, "index.h5"), "r") as index:
                for number in range(len(TABLES)):
                    check_table(index, number, optimizer)
            check_fast_bf16(moved)
            check_pandas(moved, pandas_lines)
            check_h5dump(moved)
            check_missing_shard(moved)
            shutil.rmtree(moved)
            print("ok   " + optimizer)
        path = os.path.join(root, "ranks")
        environment = dict(os.environ, HOTBED_SAMPLE_PATH=path, HOTBED_SAMPLE_RANKS="3")
        subprocess.run([program], env=environment, check=True, stdout=subprocess.DEVNULL)
        check_ranks(path)
        dealt = os.path.join(root, "dealt")
        environment = dict(environment, HOTBED_SAMPLE_PATH=dealt, HOTBED_SAMPLE_DEALT="1")
        subprocess.run([program], env=environment, check=True, stdout=subprocess.DEVNULL)
        check_dealt(dealt, path)
        print("ok   ranks")


main()
