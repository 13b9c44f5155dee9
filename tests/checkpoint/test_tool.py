"""tests/checkpoint/test_tool.py - hotbed-ckpt from outside: what it prints, writes and returns.

usage: test_tool.py SAMPLE_PROGRAM HOTBED_CKPT

Exit status 77: Python has no numpy.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    system = "/usr/bin/python3"  # a distribution's numpy is seen by the distribution's Python
    if os.path.exists(system) and os.path.realpath(sys.executable) != os.path.realpath(system):
        os.execv(system, [system] + sys.argv)
    print("skipped: Python has no numpy")
    sys.exit(77)
try:
    import h5py
except ImportError:
    h5py = None
    print("without h5py: the HDF5 export is not read")

PROGRAM = os.path.abspath(sys.argv[1])
TOOL = os.path.abspath(sys.argv[2])


def check(condition, what):
    if not condition:
        sys.exit("failed: " + what)


def sample(path, **variables):
    environment = dict(os.environ, HOTBED_SAMPLE_PATH=path, **variables)
    subprocess.run([PROGRAM], env=environment, check=True, stdout=subprocess.DEVNULL)


def tool(*words, status=0):
    done = subprocess.run([TOOL] + list(words), capture_output=True, text=True)
    check(
        done.returncode == status,
        "%s returned %d, not %d: %s" % (" ".join(words), done.returncode, status, done.stderr),
    )
    return done.stdout


def tool_json(*words, status=0):
    return json.loads(tool(*words, "--json", status=status))


def same(a, b):
    rows = tool_json("diff", a, b)
    check(all(r["added"] == r["removed"] == r["changed"] == 0 for r in rows), "diff of equal ones")


def contents(path):
    return {t["name"]: t["content"] for t in tool_json("inspect", path)["tables"]}


def flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def check_usage(root):
    check("reshard IN OUT" in tool("--help"), "help")
    for words in (
        [],
        ["nothing"],
        ["list"],
        ["list", root, "--what"],
        ["reshard", "a", "b"],
        ["reshard", "a", "b", "--ranks", "0"],
        ["reshard", "a", "b", "--ranks", "x"],
        ["gc", root],
        ["convert", "a", "b"],
        ["convert", "a", "b", "--to", "pickle"],
        ["inspect", os.path.join(root, "not-there")],
        ["list", os.path.join(root, "not-there")],
    ):
        tool(*words, status=2)


def check_show(root):
    path = os.path.join(root, "ranks")
    sample(path, HOTBED_SAMPLE_RANKS="3")
    description = tool_json("inspect", path)
    check(description["ranks"] == 3 and description["kind"] == "full", "inspect")
    check([t["rows"] for t in description["tables"]] == [400, 90, 5], "rows of tables")
    check(description["tables"][0]["route"] == "hash_roundrobin", "route")
    check("optimizer adam" in tool("inspect", path), "inspect as text")
    check("good" in tool("verify", path), "verify")
    tool("verify", "--quick", path)
    os.mkdir(os.path.join(root, ".tmp-0123"))
    entries = tool_json("list", root)
    check([e["state"] for e in entries] == ["whole", "unfinished"], "list")
    check(entries[0]["rows"] == 495, "rows in the list")

    bad = os.path.join(root, "bad")
    shutil.copytree(path, bad)
    shard = os.path.join(bad, "shard-00001-of-00003.h5")
    flip(shard, os.path.getsize(shard) // 2)
    result = tool_json("verify", path, bad, status=1)
    check([r["status"] for r in result] == ["OK", "CORRUPT"], "verify of a damaged one")
    check("shard-00001" in result[1]["error"], "name of what is damaged")
    flip(os.path.join(bad, "MANIFEST"), 100)
    check("damaged" in [e["state"] for e in tool_json("list", root, status=1)], "damaged in list")
    shutil.rmtree(bad)
    shutil.rmtree(os.path.join(root, ".tmp-0123"))


def check_reshard(root):
    path = os.path.join(root, "ranks")
    for n, words in ((1, []), (2, []), (7, []), (5, ["--route", "hash_roundrobin"]), (3, ["--route", "roundrobin"])):
        out = os.path.join(root, "out")
        tool("reshard", path, out, "--ranks", str(n), *words, "--progress")
        tool("verify", out)
        check(tool_json("inspect", out)["ranks"] == n, "ranks of a resharded one")
        check(contents(out) == contents(path), "content of a resharded one")
        same(path, out)
        tool("reshard", path, out, "--ranks", "2", status=2)  # it exists
        shutil.rmtree(out)
    tool("reshard", path, os.path.join(root, "no", "such"), "--ranks", "2", status=2)
    check(os.listdir(root) == ["ranks"], "nothing is left beside")


def check_diff(root):
    a, b = os.path.join(root, "a"), os.path.join(root, "b")
    sample(a, HOTBED_SAMPLE_RANKS="2")
    sample(b, HOTBED_SAMPLE_RANKS="3", HOTBED_SAMPLE_VERSION="2")
    rows = tool_json("diff", a, b, status=1)
    check([r["changed"] for r in rows] == [400, 90, 5], "changed rows")
    check("changed 400" in " ".join(tool("diff", a, b, status=1).split()), "diff as text")
    tool("diff", a, os.path.join(root, "c"), status=2)
    shutil.rmtree(a)
    shutil.rmtree(b)


def check_npy(root):
    path, out, back = (os.path.join(root, name) for name in ("ranks", "npy", "back"))
    tool("convert", path, out, "--to", "npy")
    weight = np.load(os.path.join(out, "hash.weight.npy"))
    check(weight.shape == (400, 6) and weight.dtype == np.float32, "weights in .npy")
    check(np.load(os.path.join(out, "static.weight.npy")).dtype == np.float32, "bf16 in .npy")
    check(np.load(os.path.join(out, "hash.exp_avg.npy")).shape == (400, 6), "states in .npy")
    check(len(np.unique(np.load(os.path.join(out, "hash.weight_id.npy")))) == 400, "keys in .npy")
    tool("convert", out, back, "--from", "npy")
    tool("verify", back)
    a, b = contents(path), contents(back)
    check(a["hash"] == b["hash"] and a["small"] == b["small"], "there and back")
    check(a["static"] != b["static"], "bf16 comes back as f32")
    for what in ("hash.weight.npy", "hash.metadata.npy"):
        name = os.path.join(out, what)
        data = open(name, "rb").read()
        shutil.rmtree(back, ignore_errors=True)
        for cut in (0, 5, 60, len(data) - 1):
            open(name, "wb").write(data[:cut])
            tool("convert", out, back, "--from", "npy", status=1)
        open(name, "wb").write(data)
    np.save(os.path.join(out, "hash.exp_avg.npy"), np.zeros((400, 5), np.float32))
    tool("convert", out, back, "--from", "npy", status=1)
    np.save(os.path.join(out, "hash.exp_avg.npy"), np.zeros((400, 6), np.float64))
    tool("convert", out, back, "--from", "npy", status=1)
    ids = os.path.join(out, "hash.weight_id.npy")
    np.save(ids, np.zeros(400, np.int64))
    os.remove(os.path.join(out, "hash.exp_avg.npy"))
    tool("convert", out, back, "--from", "npy", status=2)  # a key twice
    check(not os.path.exists(back), "nothing after a failure")
    shutil.rmtree(out)


def check_times(root):
    path, increment, full, wide, npy, back, one = (
        os.path.join(root, name) for name in ("pairs", "more", "full", "wide", "npy", "back", "one.h5"))
    sample(path, HOTBED_SAMPLE_RANKS="2", HOTBED_SAMPLE_TIMES="1", HOTBED_SAMPLE_INCREMENT=increment)
    tool("compact", increment, full)
    tool("reshard", path, wide, "--ranks", "3")
    for what in (path, increment, full, wide):
        tool("verify", what)
        check(tool_json("inspect", what)["format"] == "1.2", "format of times")
    check(contents(wide) == contents(path), "content with times")
    tool("convert", path, npy, "--to", "npy")
    times = np.load(os.path.join(npy, "hash.times.npy"))
    check(times.shape == (400,) and len(np.unique(times)) > 300, "times in .npy")
    check(not os.path.exists(os.path.join(npy, "small.times.npy")), "a table without times")
    tool("convert", npy, back, "--from", "npy")
    check(contents(back)["hash"] == contents(path)["hash"], "times there and back")
    tool("convert", back, one, "--to", "h5")
    if h5py is not None:
        with h5py.File(one, "r") as file, h5py.File(os.path.join(back, "index.h5"), "r") as index:
            check((file["embeddings/hash/times"][:] == index["embeddings/hash/times"][:]).all(), "times in one file")
            check((np.sort(index["embeddings/hash/times"][:]) == np.sort(times)).all(), "times in the index")
    for name in (path, increment, full, wide, npy, back):
        shutil.rmtree(name)
    os.remove(one)


def check_h5(root):
    path, out = os.path.join(root, "ranks"), os.path.join(root, "one.h5")
    tool("convert", path, out, "--to", "h5")
    tool("convert", path, out, "--to", "h5", status=2)  # it exists
    if h5py is not None:
        with h5py.File(out, "r") as one, h5py.File(os.path.join(path, "index.h5"), "r") as index:
            a, b = one["embeddings/hash"], index["embeddings/hash"]
            x, y = np.argsort(a["weight_id"][:]), np.argsort(b["weight_id"][:])
            check(a["weight"][:][x].tobytes() == b["weight"][:][y].tobytes(), "weights in one file")
            name = "optimizer/embeddings.hash.weight/hash.exp_avg"
            check(one[name][:][x].tobytes() == index[name][:][y].tobytes(), "states in one file")
            check(
                one["embeddings/static/weight"][:].tobytes()
                == index["embeddings/static/weight"][:].tobytes(),
                "static rows in one file",
            )
    os.remove(out)


def check_dynamicemb(root):
    raw, out, npy = (os.path.join(root, name) for name in ("raw", "out", "npy"))
    os.mkdir(raw)
    random = np.random.default_rng(1)
    keys = random.choice(1 << 40, 100, replace=False).astype(np.int64) - (1 << 39)
    values = random.random((100, 8), np.float32)
    scores = random.integers(0, 1 << 40, 100)
    states = random.random((100, 16), np.float32)
    for r in range(2):
        mine = keys % 2 == r
        for part, data in (("emb_keys", keys), ("emb_values", values), ("emb_scores", scores), ("opt_values", states)):
            data[mine].tofile(os.path.join(raw, "user.id_%s.rank_%d.world_size_2" % (part, r)))
        for part in ("counter_keys", "counter_frequencies"):
            data = np.arange(5 * r + 1, 5 * r + 6, dtype=np.int64)
            data.tofile(os.path.join(raw, "user.id_%s.rank_%d.world_size_2" % (part, r)))
    open(os.path.join(raw, "user.id_opt_args.json"), "w").write("{}")
    tool("convert", raw, out, "--from", "dynamicemb")
    tool("verify", out)
    table = tool_json("inspect", out)["tables"][0]
    check(table["name"] == "user.id" and table["rows"] == 100 and table["counted"] == 10, "import")
    check(tool_json("inspect", out)["optimizer"] == "adam", "optimizer by its state's width")
    tool("convert", out, npy, "--to", "npy")
    order = {key: i for i, key in enumerate(keys)}
    ids = np.load(os.path.join(npy, "user.id.weight_id.npy"))
    rows = [order[key] for key in ids]
    for name, data in (("weight", values), ("metadata", scores.astype(np.uint64)), ("exp_avg", states[:, :8]), ("exp_avg_sq", states[:, 8:])):
        check((np.load(os.path.join(npy, "user.id.%s.npy" % name)) == data[rows]).all(), "imported " + name)
    shutil.rmtree(npy)
    shutil.rmtree(out)
    tool("convert", raw, out, "--from", "dynamicemb", "--ages")
    tool("convert", out, npy, "--to", "npy")
    aged = np.load(os.path.join(npy, "user.id.metadata.npy"))
    check((np.argsort(aged) == np.argsort(-scores[rows])).all() and aged.min() == 1, "ages")
    shutil.rmtree(npy)
    tool("reshard", out, npy, "--ranks", "3")
    check(tool_json("inspect", npy)["tables"][0]["counted"] == 10, "counters are kept")
    shutil.rmtree(npy)
    shutil.rmtree(out)
    tool("convert", raw, out, "--from", "dynamicemb", "--optimizer", "adagrad", status=1)
    tool("convert", raw, out, "--from", "dynamicemb", "--optimizer", "what", status=2)
    os.truncate(os.path.join(raw, "user.id_emb_values.rank_1.world_size_2"), 33)
    tool("convert", raw, out, "--from", "dynamicemb", status=1)
    os.remove(os.path.join(raw, "user.id_emb_keys.rank_1.world_size_2"))
    tool("convert", raw, out, "--from", "dynamicemb", status=1)
    check(not os.path.exists(out), "nothing after a failed import")
    shutil.rmtree(raw)


def check_increments(root):
    place = os.path.join(root, "chain")
    os.mkdir(place)
    full, one, out = (os.path.join(place, name) for name in ("full", "one", "compact"))
    sample(full, HOTBED_SAMPLE_RANKS="2", HOTBED_SAMPLE_INCREMENT=one)
    entries = tool_json("list", place)
    check(sorted(e["kind"] for e in entries) == ["delta", "full"], "kinds in the list")
    description = tool_json("inspect", one)
    check(description["parent"] == tool_json("inspect", full)["id"], "parent")
    check(description["tables"][0]["rows"] == 41 and description["tables"][0]["erased"] == 37, "rows of an increment")
    tool("verify", one)
    tool("compact", one, out)
    tool("verify", out)
    same(one, out)
    rows = {r["table"]: r for r in tool_json("diff", full, one, status=1)}
    check(rows["hash"]["removed"] == 37 and rows["hash"]["changed"] == 41, "diff along a chain")
    shutil.rmtree(place)
    os.mkdir(place)
    sample(full, HOTBED_SAMPLE_RANKS="1", HOTBED_SAMPLE_INCREMENT=one)
    check(tool_json("gc", place, "--keep", "1") == [], "an increment stays with its parent")
    shutil.rmtree(full)
    tool("compact", one, out, status=2)
    check(not os.path.exists(out), "nothing without the parent")
    shutil.rmtree(place)


def check_gc(root):
    place = os.path.join(root, "gc")
    os.mkdir(place)
    for i in range(4):
        sample(os.path.join(place, "step-%d" % i), HOTBED_SAMPLE_RANKS="1")
    os.mkdir(os.path.join(place, ".tmp-00"))
    os.mkdir(os.path.join(place, "not-a-checkpoint"))
    check(tool_json("gc", place, "--keep", "2", "--dry-run") == ["step-0", "step-1"], "dry run")
    check(len(os.listdir(place)) == 6, "a dry run removes nothing")
    check(tool_json("gc", place, "--keep", "2") == ["step-0", "step-1"], "gc")
    check(sorted(os.listdir(place)) == [".tmp-00", "not-a-checkpoint", "step-2", "step-3"], "kept")
    tool("gc", place, "--keep", "5", "--unfinished")
    check(sorted(os.listdir(place)) == ["not-a-checkpoint", "step-2", "step-3"], "unfinished")
    shutil.rmtree(place)


def main():
    with tempfile.TemporaryDirectory() as root:
        check_usage(root)
        check_show(root)
        check_reshard(root)
        check_diff(root)
        check_npy(root)
        check_times(root)
        check_h5(root)
        check_dynamicemb(root)
        check_increments(root)
        check_gc(root)
        print("ok   hotbed-ckpt")


main()
