"""tests/checkpoint/test_tool.py - hotbed-ckpt as a program: its output, files and exit status.

usage: test_tool.py SAMPLE_PROGRAM HOTBED_CKPT [GC_BESIDE]

Exit status 77: Python has no numpy.
"""

import fcntl
import itertools
import json
import os
import pty
import random
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import termios

try:
    import numpy as np
except ImportError:
    system = "/usr/bin/python3"  # only the distribution's Python finds the distribution's numpy
    if os.path.exists(system) and os.path.realpath(sys.executable) != os.path.realpath(system):
        os.execv(system, [system, *sys.argv])
    print("skipped: Python has no numpy")
    sys.exit(77)
try:
    import h5py
except ImportError:
    h5py = None
    print("without h5py: the HDF5 export is not read")

PROGRAM = os.path.abspath(sys.argv[1])
TOOL = os.path.abspath(sys.argv[2])
GC_BESIDE = os.path.abspath(sys.argv[3]) if len(sys.argv) > 3 else None
SEED = int(os.environ.get("HOTBED_TEST_SEED", "1"))
IMPORTS = 8 if "HOTBED_TEST_SMALL" in os.environ else 40  # of damaged directories


def check(condition, what):
    if not condition:
        sys.exit("failed: " + what)


def sample(path, **variables):
    environment = dict(os.environ, HOTBED_SAMPLE_PATH=path, **variables)
    subprocess.run([PROGRAM], env=environment, check=True, stdout=subprocess.DEVNULL)


def tool_run(*words, **options):
    """Run the tool, and check that each line of an error has a text, not only a status."""
    done = subprocess.run([TOOL, *words], capture_output=True, text=True, errors="surrogateescape", **options)
    for line in [] if "--progress" in words else done.stderr.splitlines():
        check(line.startswith("hotbed-ckpt: ") and not line.rstrip().endswith(":"), "error line: " + repr(line))
    return done


def tool(*words, status=0, **options):
    done = tool_run(*words, **options)
    check(
        done.returncode == status,
        f"{' '.join(words)} returned {done.returncode}, not {status}: {done.stderr}",
    )
    check(done.returncode == 0 or done.stderr or words[0] in ("list", "verify", "diff"), f"{words}: no text")
    return done.stdout


def tool_json(*words, status=0):
    return json.loads(tool(*words, "--json", status=status))


def same(a, b):
    *rows, last = tool_json("diff", a, b)
    check(all(r["added"] == r["removed"] == r["changed"] == 0 for r in rows), "diff of equal ones")
    check(last == {"verdict": "equal"}, "the verdict on equal ones")


def limited(limit, value):
    """Options that run the tool under a resource limit."""
    return {"preexec_fn": lambda: resource.setrlimit(limit, (value, value))}


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
        ["list", "--", "--json"],
        ["list", "--json=1", root],
        ["list", ""],
        ["gc", root, "--keep="],
        ["gc", root, "--keep"],
        ["reshard", "a", "b", "--ranks=65537"],
        ["verify"],
    ):
        tool(*words, status=2)
    check("hotbed-ckpt 0." in tool("--version"), "version")
    with open("/dev/full", "w") as full:
        done = subprocess.run([TOOL, "--help"], stdout=full, stderr=subprocess.PIPE, text=True)
        check(done.returncode == 2 and "standard output" in done.stderr, "a full disk under the output")
    os.mkdir(os.path.join(root, "--json"))
    check(tool("list", "--", "--json", cwd=root) == "", "a path that begins with a dash")
    os.rmdir(os.path.join(root, "--json"))


def check_mistakes(root):
    """A mistake gets one line with the mistake and what is allowed."""
    path, place = os.path.join(root, "ranks"), os.path.join(root, "place")
    sample(path, HOTBED_SAMPLE_RANKS="2")
    os.mkdir(place)
    other = os.path.join(place, "logs")
    os.mkdir(other)
    os.symlink("logs", os.path.join(place, "latest"))
    for words, expected in (
        (
            ["lst", root],
            "the commands are list, inspect, verify, diff, reshard, compact, convert, publish, gc, not lst",
        ),
        (["gc", root, "--kep", "1"], "gc takes --json, --keep, --dry-run, --leave-damaged, --unfinished, not --kep"),
        (["convert", path, place], "convert needs --from, --to, --dtype or --state-dtype"),
        (
            ["convert", path, place, "--to", "h5", "--state-dtype", "f32"],
            "convert takes --state-dtype neither with --from nor with --to",
        ),
        (["convert", path, place, "--to=h5", "--from=npy"], "convert takes --from or --to, not both"),
        (["list", path], path + " is a checkpoint, not a directory of checkpoints"),
        (["gc", path, "--keep", "1"], path + " is a checkpoint, not a directory of checkpoints"),
        (
            ["inspect", root],
            root + "/MANIFEST is missing: " + root + " is damaged, or is not a checkpoint; it contains",
        ),
        (
            ["diff", path, root],
            root + " is damaged, or is not a checkpoint; it contains checkpoints: see 'hotbed-ckpt",
        ),
    ):
        lines = tool_run(*words).stderr.splitlines()
        check(len(lines) == 1 and expected in lines[0], f"{words}: {lines}")
    check(tool("gc", place, "--keep=1") == "", "gc mentions what is no checkpoint")
    os.remove(os.path.join(path, "MANIFEST"))
    for words in (["list", path], ["gc", path, "--keep", "1"]):  # or a file that does not belong there
        done = tool_run(*words)
        check(
            done.returncode == 2
            and path + " seems to be a damaged checkpoint, not a directory of" in done.stderr
            and any(f"{path}/MANIFEST is missing, but {name} is there: " in done.stderr for name in os.listdir(path)),
            f"{words} of a damaged checkpoint: {done}",
        )
    shutil.rmtree(place)
    shutil.rmtree(path)
    os.mkdir(place)
    np.save(os.path.join(place, "t.weight.npy"), np.zeros((2, 4), np.float32))
    done = tool_run("convert", place, path, "--from=npy", "--optimizer=Adam")
    check("--optimizer takes one of sgd, adam, adagrad, rowwise_adagrad, ftrl, " in done.stderr, done.stderr)
    check("not 'Adam'" in done.stderr, done.stderr)
    shutil.rmtree(place)


COMMANDS = {  # with the number of paths
    "list": 1,
    "inspect": 1,
    "verify": 1,
    "diff": 2,
    "reshard": 2,
    "compact": 2,
    "convert": 2,
    "publish": 2,
    "gc": 1,
}
WITH_BAR = "verify diff reshard compact convert publish"
OPTIONS = {  # the commands that take an option, and a value
    "--json": (" ".join(COMMANDS), None),
    "--progress": (WITH_BAR, None),
    "--quiet": (WITH_BAR, None),
    "--quick": ("verify", None),
    "--ranks": ("reshard compact", "3"),
    "--route": ("reshard compact", "roundrobin"),
    "--from": ("convert", "npy"),
    "--to": ("convert", "h5"),
    "--optimizer": ("convert", "sgd"),
    "--keys": ("convert", "u64"),
    "--ages": ("convert", None),
    "--state-dtype": ("convert", "bf16"),
    "--encoding": ("publish", "f16"),
    "--keep": ("gc", "2"),
    "--dry-run": ("gc", None),
    "--leave-damaged": ("gc", None),
    "--unfinished": ("gc", None),
}
NEEDED = {"reshard": ["--ranks", "2"], "convert": ["--to", "npy"], "gc": ["--keep", "1"]}


def check_options(root):
    """Each command refuses the options of other commands, and names the commands that take them."""
    paths = [os.path.join(root, "absent"), os.path.join(root, "absent-too")]
    for other in (["--to", "h5"], ["--to", "npy"], ["--from", "npy"]):  # without them convert takes it
        done = tool_run("convert", *paths, *other, "--dtype", "f16")
        message = "convert takes --dtype neither with --from npy nor with --to"
        check(done.returncode == 2 and message in done.stderr, f"--dtype with {other}: {done.stderr}")
    for (command, n), (option, (takers, value)) in itertools.product(COMMANDS.items(), OPTIONS.items()):
        words = [option] if value is None else [option, value]
        needed = NEEDED.get(command, [])
        if command == "convert" and option in ("--from", "--to"):
            needed = []
        elif command == "convert" and option == "--state-dtype":
            needed = []
        elif command == "convert" and option in ("--optimizer", "--keys", "--ages"):
            message = "convert takes this option only with --from: " + option
            check(message in tool_run("convert", *paths, "--to", "npy", *words).stderr, message)
            needed = ["--from", "npy"]
        if option == "--route" and command in takers.split():
            needed = ["--ranks", "2"]
        elif option == "--leave-damaged" and command in takers.split():
            needed = ["--keep", "1"]
        done = tool_run(command, *paths[:n], *needed, *words)
        check(done.returncode == 2 or command == "verify", f"{command} {option} returns {done.returncode}")
        message = f"{command} does not take {option}, which is an option of {', '.join(takers.split())} (see"
        if command not in takers.split():
            check(message in done.stderr, f"{command} {option}: {done.stderr}")
            also = tool_run(command, *paths[:n], option + "=1")
            check(also.returncode == 2 and message in also.stderr, f"{command} {option}=1: {also.stderr}")
        else:  # it is about the path
            check("absent" in done.stderr + done.stdout and "--help" not in done.stderr, f"{command} {option}")
    text = tool("--help")
    for option in OPTIONS:
        check(option in text, "the help lacks " + option)


def check_show(root):
    path = os.path.join(root, "ranks")
    sample(path, HOTBED_SAMPLE_RANKS="3")
    description = tool_json("inspect", path)
    check(description["ranks"] == 3 and description["kind"] == "full", "inspect")
    check([t["rows"] for t in description["tables"]] == [400, 90, 5], "rows of tables")
    check(description["tables"][0]["route"] == "hash_roundrobin", "route")
    check(description["storages"][0]["seed"] == 3, "seed")
    check("optimizer adam" in tool("inspect", path), "inspect as text")
    check(", seed 3, optimizer adam" in tool("inspect", path), "seed as text")
    check("good" in tool("verify", path), "verify")
    check("   3 ranks   3 tables" in tool("list", root), "the numbers of ranks and tables")
    tool("verify", "--quick", *[path] * 200)
    tool("verify", "--quick", ".", cwd=path)
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
    check("shard-00001" in result[1]["error"], "name of the damaged file")
    tool("diff", path, bad, status=2)  # 1 would mean that they differ
    flip(os.path.join(bad, "MANIFEST"), 100)
    check("damaged" in [e["state"] for e in tool_json("list", root, status=1)], "damaged in list")
    shutil.rmtree(bad)
    shutil.copytree(path, bad)
    index = os.path.join(bad, "index.h5")
    flip(index, 2000)
    check("index.h5: the index is damaged: digest " in tool("verify", "--quick", bad, status=1), "what is damaged")
    os.remove(index)
    for words in (["--quick"], []):
        check("index.h5 is missing" in tool("verify", bad, *words, status=1), "verify without index.h5")
    os.remove(os.path.join(bad, "MANIFEST"))
    states = {e["name"]: e["state"] for e in tool_json("list", root, status=1)}
    check(states == {"ranks": "whole", "bad": "damaged", ".tmp-0123": "unfinished"}, f"the list has {states}")
    check("MANIFEST is missing" in tool("list", root, status=1), "the same as text")
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
        tool("reshard", path, out, "--ranks=2", status=2)  # it exists
        shutil.rmtree(out)
    tool("reshard", path, os.path.join(root, "no", "such"), "--ranks", "2", status=2)
    for words in (["reshard", path, out, "--ranks", "1"], ["compact", path, out]):
        done = tool_run(*words, "--route", "roundrobin")
        check(done.returncode == 2 and "--route needs --ranks of 2 or more" in done.stderr, "a route of one shard")
    # Refused at the start: MANIFEST would be too large, or too many files would be open.
    tool("reshard", path, out, "--ranks", "65536", status=2, timeout=60)
    few = limited(resource.RLIMIT_NOFILE, 300)
    check("ulimit -n" in tool_run("reshard", path, out, "--ranks=60", **few).stderr, "limit of open files")
    check(os.listdir(root) == ["ranks"], "nothing is left beside")


def on_terminal(columns, *words):
    """Run the tool with a terminal of so many columns (0: unknown) as standard error, and return what it gets."""
    control, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 25, columns, 0, 0))
    with subprocess.Popen([TOOL, *words], stdout=subprocess.DEVNULL, stderr=terminal) as process:
        os.close(terminal)
        text = b""
        while True:
            try:
                part = os.read(control, 4096)
            except OSError:  # the tool has ended
                break
            text += part
        check(process.wait() == 0, f"{words} on a terminal: {text}")
    os.close(control)
    return text.decode()


def check_progress(root):
    """A bar leaves the last column free: a line that is longer would not be overwritten by the next one."""
    path = os.path.join(root, "ranks")
    for columns in (0, 1, 7, 8, 12, 13, 20, 52, 53, 300):
        lines = on_terminal(columns, "verify", path).replace("\n", "\r").split("\r")
        check("100.0 %" in lines[-3] or "100.0 %" in lines[-2], f"the end of the bar: {lines}")
        check(max(map(len, lines)) < max(columns or 80, 8), f"{columns} columns: {lines}")
        check(("[" in lines[1]) == (columns == 0 or columns > 12), f"{columns} columns: {lines}")
    check("" == on_terminal(80, "verify", path, "--quiet"), "--quiet")
    check("#" in on_terminal(80, "verify", path, "--progress"), "--progress")


#: An import of Adam's states, whose names LAMB has, too.
FROM_NPY = ("--from", "npy", "--optimizer", "adam")


def check_not_finite(root, a):
    """diff counts weights that have become NaN or infinite, and has the largest difference of the others."""
    npy, x, y = (os.path.join(root, name) for name in ("npy", "x", "y"))
    tool("convert", a, npy, "--to", "npy")
    tool("convert", npy, x, *FROM_NPY)
    path = os.path.join(npy, "hash.weight.npy")
    weights = np.load(path)
    weights[0, :2] = np.nan, np.inf
    weights[1, 0] += 0.5
    np.save(path, weights)
    tool("convert", npy, y, *FROM_NPY)
    for pair in ((x, y), (y, x)):
        row = next(r for r in tool_json("diff", *pair, status=1) if r["table"] == "hash")
        check(row["not_finite"] == 2 and row["weights_changed"] == 2, f"NaN and infinity: {row}")
        check(0.4 < row["largest_difference"] < 0.6, f"the other elements: {row}")
        text = " ".join(tool("diff", *pair, status=1).split())
        check("hash NaN or infinite in a or b: 2 elements" in text, text)
    for name in (npy, x, y):
        shutil.rmtree(name)


def check_scores(root, a):
    """diff says of how many rows weights, states and scores differ, and can ignore scores."""
    npy, x, y = (os.path.join(root, name) for name in ("npy", "x", "y"))
    tool("convert", a, npy, "--to", "npy")
    tool("convert", npy, x, *FROM_NPY)
    scores, state = (os.path.join(npy, f"hash.{column}.npy") for column in ("metadata", "exp_avg"))
    changed = np.load(scores)
    changed[:3] += 1
    np.save(scores, changed)
    tool("convert", npy, y, *FROM_NPY)
    for pair in ((x, y), (y, x)):
        row = next(r for r in tool_json("diff", *pair, status=1) if r["table"] == "hash")
        found = [row[f"{what}_changed"] for what in ("weights", "states", "scores")]
        check(row["changed"] == 3 and found == [0, 0, 3], f"scores: {row}")
        text = " ".join(tool("diff", *pair, status=1).split())
        check("changed 3: weights of 0, states of 0, scores of 3; largest difference of weights 0" in text, text)
        rows = [r for r in tool_json("diff", "--ignore-scores", *pair) if "table" in r]
        check(all(r["changed"] == r["scores_changed"] == 0 for r in rows), f"scores are ignored: {rows}")
    shutil.rmtree(y)
    changed = np.load(state)
    changed[:2] += 1
    np.save(state, changed)
    tool("convert", npy, y, *FROM_NPY)
    row = next(r for r in tool_json("diff", "--ignore-scores", x, y, status=1) if r["table"] == "hash")
    check(row["changed"] == row["states_changed"] == 2 and row["weights_changed"] == 0, f"states: {row}")
    for name in (npy, x, y):
        shutil.rmtree(name)


def check_dealt(root):
    """A static table whose rows were dealt to ranks in turn has the same rows as one in blocks, in every form."""
    place = os.path.join(root, "place")
    os.mkdir(place)
    dealt, more, blocks, out = (os.path.join(place, name) for name in ("dealt", "more", "blocks", "out"))
    sample(dealt, HOTBED_SAMPLE_RANKS="3", HOTBED_SAMPLE_DEALT="1", HOTBED_SAMPLE_INCREMENT=more)
    sample(blocks, HOTBED_SAMPLE_RANKS="2")
    tool("verify", dealt, more)
    check(tool_json("inspect", dealt)["tables"][1]["route"] == "roundrobin", "the route of a static table")
    same(dealt, blocks)
    hashed = {"hash_roundrobin": "continuous", "roundrobin": "roundrobin"}  # the routes of static tables
    for source in (dealt, blocks):
        for words in (["--ranks", "1"], ["--ranks", "4"], *(["--ranks", "7", "--route", rule] for rule in hashed)):
            tool("reshard", source, out, *words)
            tool("verify", out)
            same(out, blocks)
            routes = [t["route"] for t in tool_json("inspect", out)["tables"]]
            if "--route" in words:
                check(routes == [words[-1], hashed[words[-1]], words[-1]], f"routes of {words}: {routes}")
            shutil.rmtree(out)
    tool("compact", more, out)
    same(out, more)
    for path in (out, more):
        tool("convert", path, path + ".npy", "--to", "npy")
    npy = [np.load(os.path.join(path + ".npy", "static.weight.npy")) for path in (out, more)]
    check(npy[0].shape == (90, 3) and npy[0].tobytes() == npy[1].tobytes(), "rows of a static table as npy")
    shutil.rmtree(place)


def check_diff_of_damaged(root, path):
    """A damaged checkpoint is not compared, and what was compared before an error is no whole JSON value."""
    bad = os.path.join(root, "bad")
    for damage in ("no index", "index", "rows"):
        shutil.copytree(path, bad)
        index, shard = os.path.join(bad, "index.h5"), os.path.join(bad, "shard-00001-of-00002.h5")
        if damage == "no index":
            os.remove(index)
        else:
            name = index if damage == "index" else shard
            flip(name, os.path.getsize(name) - 9)
        for words in ([path, bad], [bad, path]):
            tool("diff", *words, status=2)
            done = tool_run("diff", *words, "--json")
            try:
                json.loads(done.stdout)
                check(False, f"{damage}: a whole value: {done.stdout}")
            except json.JSONDecodeError:
                pass
            both = subprocess.run(
                [TOOL, "diff", *words, "--json"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            check(both.stdout.splitlines()[-1].startswith("hotbed-ckpt: CORRUPT: "), f"{damage}: {both.stdout}")
        shutil.rmtree(bad)


def check_diff(root):
    a, b = os.path.join(root, "a"), os.path.join(root, "b")
    sample(a, HOTBED_SAMPLE_RANKS="2")
    sample(b, HOTBED_SAMPLE_RANKS="3", HOTBED_SAMPLE_VERSION="2")
    rows = [r for r in tool_json("diff", a, b, status=1) if "table" in r]
    check([r["changed"] for r in rows] == [400, 90, 5], "changed rows")
    check("changed 400" in " ".join(tool("diff", a, b, status=1).split()), "diff as text")
    tool("diff", a, os.path.join(root, "c"), status=2)
    check(tool_json("diff", a, b, status=1)[-1] == {"verdict": "different"}, "the verdict")
    check(tool("diff", a, b, status=1).splitlines()[-1] == "different: 3 of 3 tables", "the verdict as text")
    check(tool("diff", a, a) == "equal: 3 tables\n", "equal ones as text")
    shutil.rmtree(b)
    check_diff_of_damaged(root, a)
    check_not_finite(root, a)
    check_scores(root, a)
    differs = []

    def both_ways(what, *expect):
        """diff reports the expected differences in both directions."""
        for x, y in ((a, b), (b, a)):
            items = tool_json("diff", x, y, status=1)
            tool("diff", x, y, status=1)
            found = {r["field"] for r in items if "field" in r}
            found |= {k for r in items for k, v in r.items() if v and k.startswith(("counts_", "times_"))}
            check(found == set(expect), f"{what}: diff says {items}")
            differs.append(items)
        shutil.rmtree(b)

    sample(b, HOTBED_SAMPLE_RANKS="2", HOTBED_SAMPLE_TIMES="1")
    both_ways("times in one of two", "times_only_in", "state.time")
    check([i[0]["times_only_in"] for i in differs] == ["b", "a"], "which one has times")
    sample(b, HOTBED_SAMPLE_RANKS="2", HOTBED_SAMPLE_EXTRA="of the caller")
    both_ways("a blob in one of two", "blob.extra")
    shutil.rmtree(a)
    sample(a, HOTBED_SAMPLE_RANKS="2", HOTBED_SAMPLE_EXTRA="of a caller..")
    sample(b, HOTBED_SAMPLE_RANKS="2", HOTBED_SAMPLE_EXTRA="of the caller")
    both_ways("other bytes in a blob", "blob.extra")
    shutil.rmtree(a)
    place = os.path.join(root, "place")
    os.mkdir(place)
    sample(place, HOTBED_SAMPLE_RANKS="1", HOTBED_SAMPLE_SAVES="x:1")
    os.rename(os.path.join(place, "x"), a)
    sample(place, HOTBED_SAMPLE_RANKS="1", HOTBED_SAMPLE_SAVES="x:2")
    os.rename(os.path.join(place, "x"), b)
    both_ways("steps", "step")
    shutil.rmtree(a)
    for keys, path in (([1, 2, 3], a), ([2, 3, 4], b)):
        raw = os.path.join(root, "raw")
        os.mkdir(raw)
        write_raw(
            raw,
            "t",
            0,
            1,
            emb_keys=np.arange(9),
            emb_values=np.zeros((9, 4), np.float32),
            counter_keys=np.array(keys) + 100,
            counter_frequencies=np.array(keys) % 3,
        )
        write_args(raw, "t")
        tool("convert", raw, path, "--from", "dynamicemb", "--optimizer=" + ("adam" if path == a else "sgd"))
        shutil.rmtree(raw)
    both_ways("counts, and the optimizer", "counts_added", "counts_removed", "optimizer")
    shutil.rmtree(a)
    for now, path in ((100, a), (200, b)):
        os.mkdir(raw)
        rows = np.zeros((9, 4), np.float32)
        write_raw(raw, "t", 0, 1, emb_keys=np.arange(9), emb_values=rows, emb_scores=(now - np.arange(9)) * 1000)
        write_args(raw, "t", evict_strategy="EvictStrategy.KLru", hotbed_time=now)
        tool("convert", raw, path, "--from", "dynamicemb")
        shutil.rmtree(raw)
    tool("diff", "--ignore-scores", a, b)
    both_ways("the time of a storage", "state.time")
    shutil.rmtree(a)
    os.rmdir(place)


def write_raw(directory, table, rank, world, **parts):
    for part, data in parts.items():
        data = data.astype(np.int64) if data.dtype.kind == "i" else data
        data.tofile(os.path.join(directory, f"{table}_{part}.rank_{rank}.world_size_{world}"))


def write_args(directory, table, **args):
    with open(os.path.join(directory, table + "_opt_args.json"), "w") as file:
        json.dump(args, file)


def read_rows(path):
    """All rows of a checkpoint: the columns of each table, in order of the keys."""
    out = path + "-rows"
    tool("convert", path, out, "--to", "npy")
    tables = rows_of_npy(out)
    shutil.rmtree(out)
    return tables


def spoil(random, directory):
    """Change a directory so that it may no longer be complete."""
    names = sorted(os.listdir(directory))
    path = os.path.join(directory, random.choice(names))
    table = os.path.basename(path).split(".")[0].split("_emb")[0]
    how = random.randrange(9)
    if how <= 3:
        os.remove(path)
    elif how == 4:  # an optional column, of a single rank or table or of all
        word = random.choice(("opt_values", "scores", "counter", "exp_avg", "metadata"))
        some = [n for n in names if word in n]
        for name in some if random.random() < 0.5 else random.sample(some, min(1, len(some))):
            os.remove(os.path.join(directory, name))
    elif how == 5:
        to = random.choice([".", ".hid", "_", "x y", "a" * 80, "t\u00e9"])
        for name in names:
            if name.startswith(table):
                os.rename(os.path.join(directory, name), os.path.join(directory, to + name[len(table) :]))
    elif how == 6:
        name = random.choice(
            ["notes.txt", ".hidden", "x.weight", "sub", "x.exp_avg.npy", "x_emb_keys.rank_1.world_size_2"]
        )
        if name == "sub":
            os.makedirs(os.path.join(directory, name), exist_ok=True)
        else:
            open(os.path.join(directory, name), "w").close()
    elif how == 7:
        data = open(path, "rb").read()
        open(path, "wb").write(data[: random.randrange(len(data) + 1)])
    else:
        os.rename(path, path[:-1] + random.choice("0123yz"))


def check_whole(root, source, kind, expected_rows):
    """An import of a changed directory fails with a message and leaves nothing, or has all rows of the files, and no
    optimizer states that are in no file."""
    chance = random.Random(SEED)
    work, out = os.path.join(root, "work"), os.path.join(root, "imported")
    taken = 0
    for _ in range(IMPORTS):
        shutil.copytree(source, work)
        for _ in range(chance.choice([1, 1, 2])):
            if os.listdir(work):
                spoil(chance, work)
        done = tool_run("convert", work, out, *(FROM_NPY if kind == "npy" else ("--from", kind)))
        if done.returncode == 0:
            found, right = read_rows(out), expected_rows(work)
            taken += 1
            check(sorted(found) == sorted(right), f"tables {sorted(found)}, not {sorted(right)}")
            for table, columns in right.items():
                made = set(found[table]) - set(columns) - {"metadata"}
                check(not made, f"{table} has {made}, which is in no file of {sorted(os.listdir(work))}")
                for column, data in columns.items():
                    check(
                        found[table][column].tobytes() == data.tobytes(),
                        f"{table}.{column} differs from the file: {sorted(os.listdir(work))}",
                    )
            shutil.rmtree(out)
        else:
            check(done.returncode in (1, 2) and done.stderr, f"import returned {done.returncode}: {done.stderr}")
            check(
                sorted(os.listdir(root)) == sorted(set(os.listdir(root)) - {"imported"}),
                "a failed import leaves something",
            )
            check(not [n for n in os.listdir(root) if n.startswith(".tmp-")], "a failed import leaves a draft")
        shutil.rmtree(work)
    check(IMPORTS < 40 or 1 <= taken <= 35, f"seed {SEED}: {taken} of {IMPORTS} were imported")


def rows_of_npy(directory):
    tables = {}
    for name in os.listdir(directory):
        table, column, _ = name.rsplit(".", 2)
        tables.setdefault(table, {})[column] = np.load(os.path.join(directory, name))
    for columns in tables.values():
        if "weight_id" in columns:
            order = np.argsort(columns["weight_id"])
            for column in columns:
                columns[column] = columns[column][order]
    return tables


def rows_of_raw(directory):
    types = {
        "emb_keys": np.int64,
        "emb_values": np.float32,
        "emb_scores": np.uint64,
        "emb_opt_values": np.float32,
        "counter_keys": np.int64,
        "counter_frequencies": np.int64,
    }
    tables = {}
    for name in sorted(os.listdir(directory)):
        if name.endswith("_opt_args.json"):
            continue
        stem = name.split(".rank_")[0]
        part = next(p for p in types if stem.endswith("_" + p))
        data = np.fromfile(os.path.join(directory, name), types[part])
        tables.setdefault(stem[: -len(part) - 1], {}).setdefault(part, []).append(data)
    rows = {}
    for table, parts in tables.items():
        parts = {p: np.concatenate(d) for p, d in parts.items()}
        order = np.argsort(parts["emb_keys"])
        n = len(order)
        rows[table] = {"weight_id": parts["emb_keys"][order], "weight": parts["emb_values"].reshape(n, -1)[order]}
        if "emb_scores" in parts:
            rows[table]["metadata"] = parts["emb_scores"][order]
        if "emb_opt_values" in parts:
            states = parts["emb_opt_values"].reshape(n, -1)[order]
            half = states.shape[1] // 2
            rows[table].update(exp_avg=states[:, :half], exp_avg_sq=states[:, half:])
    return rows


def check_imports(root):
    path, npy, raw = (os.path.join(root, name) for name in ("full", "npy", "raw"))
    sample(path, HOTBED_SAMPLE_RANKS="2", HOTBED_SAMPLE_TIMES="1")
    tool("convert", path, npy, "--to", "npy")
    os.rename(os.path.join(npy, "static.weight.npy"), os.path.join(npy, "..weight.npy"))  # a table named "."
    for state in ("exp_avg", "exp_avg_sq"):
        os.rename(os.path.join(npy, f"static.{state}.npy"), os.path.join(npy, f"..{state}.npy"))
    check_whole(root, npy, "npy", rows_of_npy)
    os.mkdir(raw)
    chance = np.random.default_rng(3)
    for table, rank in itertools.product(("u", ".hid"), range(2)):
        keys = np.arange(20) * 2 + rank
        write_raw(
            raw,
            table,
            rank,
            2,
            emb_keys=keys,
            emb_values=chance.random((20, 4), np.float32),
            emb_scores=keys + 5,
            emb_opt_values=chance.random((20, 8), np.float32),
            counter_keys=keys + 1000,
            counter_frequencies=keys + 1,
        )
        write_args(raw, table, opt_type="adam")
    check_whole(root, raw, "dynamicemb", rows_of_raw)
    # States of different widths on two ranks, though each file fits its keys.
    np.zeros((20, 4), np.float32).tofile(os.path.join(raw, "u_emb_opt_values.rank_1.world_size_2"))
    tool("convert", raw, os.path.join(root, "out"), "--from", "dynamicemb", status=1)
    for name in (path, npy, raw):
        shutil.rmtree(name)
    check(not os.listdir(root) or os.listdir(root) == ["ranks"], f"imports leave {os.listdir(root)}")


def check_cut_short(root):
    """A limit of the size of files is an error with a message. The draft of a killed export is no input."""
    path, out = os.path.join(root, "ranks"), os.path.join(root, "npy")
    if tool_run("--version", **limited(resource.RLIMIT_FSIZE, 0)).returncode < 0:
        return  # TSan's runtime writes files itself
    for size in (0, 64, 3000):
        before = set(os.listdir(root))
        for words in (
            ["convert", path, out, "--to", "npy"],
            ["convert", path, out, "--to", "h5"],
            ["compact", path, out],
        ):
            done = tool_run(*words, **limited(resource.RLIMIT_FSIZE, size))
            check(done.returncode == 2 and "File too large" in done.stderr, f"a limit of {size} bytes: {done}")
        check(set(os.listdir(root)) == before, "a command over the limit leaves files")
    unfinished = os.path.join(root, ".tmp-00")
    tool("convert", path, out, "--to", "npy")
    os.rename(out, unfinished)
    link = os.path.join(root, "link")
    os.symlink(unfinished, link)
    for given in (unfinished, unfinished + "/", unfinished + "//", ".", link, link + "/"):
        done = tool_run("convert", given, out + "-back", *FROM_NPY, cwd=unfinished)
        check(done.returncode == 2 and f"{given} is an unfinished export" in done.stderr, f"{given}: {done}")
    os.remove(link)
    shutil.rmtree(unfinished)


def check_npy(root):
    path, out, back = (os.path.join(root, name) for name in ("ranks", "npy", "back"))
    tool("convert", path, out, "--to", "npy")
    weight = np.load(os.path.join(out, "hash.weight.npy"))
    check(weight.shape == (400, 6) and weight.dtype == np.float32, "weights in .npy")
    check(np.load(os.path.join(out, "static.weight.npy")).dtype == np.float32, "bf16 in .npy")
    check(np.load(os.path.join(out, "hash.exp_avg.npy")).shape == (400, 6), "states in .npy")
    check(len(np.unique(np.load(os.path.join(out, "hash.weight_id.npy")))) == 400, "keys in .npy")
    done = tool_run("convert", out, back, "--from", "npy")
    several = "exp_avg and exp_avg_sq: states of several optimizers (adam, partial_rowwise_adam, lamb, rowwise_adam)"
    check(done.returncode == 2 and several in done.stderr, f"states of several optimizers: {done}")
    tool("convert", out, back, *FROM_NPY)
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
            tool("convert", out, back, *FROM_NPY, status=1)
        open(name, "wb").write(data)
    np.save(os.path.join(out, "hash.exp_avg.npy"), np.zeros((400, 5), np.float32))
    tool("convert", out, back, *FROM_NPY, status=1)
    np.save(os.path.join(out, "hash.exp_avg.npy"), np.zeros((400, 6), np.float64))
    tool("convert", out, back, *FROM_NPY, status=1)
    ids = os.path.join(out, "hash.weight_id.npy")
    np.save(ids, np.arange(399))
    done = tool_run("convert", out, back, *FROM_NPY)
    check(ids + " has 399 keys for 400 rows of the weights" in done.stderr, f"too few keys: {done.stderr}")
    np.save(ids, np.zeros(400, np.int64))
    np.save(os.path.join(out, "hash.exp_avg.npy"), np.zeros((400, 6), np.float32))
    tool("convert", out, back, *FROM_NPY, status=2)  # a key twice
    for name in [name for name in os.listdir(out) if ".metadata." in name]:
        os.remove(os.path.join(out, name))
    done = tool_run("convert", out, back, *FROM_NPY, "--ages")
    check(done.returncode == 2 and "--ages: no table has scores" in done.stderr, done)
    check(not os.path.exists(back), "nothing after a failure")
    shutil.rmtree(out)


def hashes(keys):
    """The hashes of keys that docs/formats.md has under "Order of rows"."""
    k = keys.copy()
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        k ^= k >> np.uint64(33)
        k *= np.uint64(factor)
    return k ^ k >> np.uint64(33)


def published(directory, number):
    """The tables of a cut of one rank, as docs/formats.md describes them: (encoding, keys, rows as bytes) by name."""
    with open(os.path.join(directory, f"cut-{number:012}"), "rb") as file:
        cut = file.read()
    with open(os.path.join(directory, f"rows-{number:012}-00000"), "rb") as file:
        rows = file.read()
    found = {}
    for t in range(struct.unpack_from("<I", cut, 12)[0]):
        name = cut[128 + 128 * t :][:64].rstrip(b"\0").decode()
        encoding = struct.unpack_from("<I", cut, 128 + 128 * t + 68)[0]
        n, _, keys, starts, values = struct.unpack_from("<5Q", rows, 64 + 128 * t)
        bits, width = struct.unpack_from("<2I", rows, 64 + 128 * t + 112)
        values = np.frombuffer(rows, np.uint8, n * width, values).reshape(n, width)
        keys = np.frombuffer(rows, np.uint64, n, keys)
        order = hashes(keys)
        check(np.all(order[1:] > order[:-1]), f"keys of {name} are not in the order of their hashes")
        if n > 0:
            starts = np.frombuffer(rows, np.uint32, (1 << bits) + 1, starts)
            buckets = order >> np.uint64(64 - bits) if bits > 0 else np.zeros(n, np.uint64)
            check(np.array_equal(starts, np.searchsorted(buckets, np.arange((1 << bits) + 1))), f"starts of {name}")
        found[name] = encoding, keys, values
    return found


def check_publish(root):
    """A full checkpoint of ranks, and then a chain of increments, become cuts of one directory."""
    path, place = os.path.join(root, "ranks"), os.path.join(root, "place")
    out, npy = os.path.join(root, "published"), os.path.join(root, "npy")
    shutil.rmtree(place, ignore_errors=True)
    os.mkdir(place)
    increment = os.path.join(place, "increment")
    sample(os.path.join(place, "full"), HOTBED_SAMPLE_RANKS="3", HOTBED_SAMPLE_INCREMENT=increment)
    for number, source in ((1, path), (2, increment)):
        result = tool_json("publish", source, out)
        tool("convert", source, npy, "--to", "npy")
        found = published(out, number)
        check(result["cut"] == number, f"publish says {result}")
        check(result["rows"] == sum(len(keys) for _, keys, _ in found.values()), f"publish says {result}")
        for name, (encoding, keys, values) in found.items():
            wanted = np.load(os.path.join(npy, name + ".weight.npy"))
            ids = os.path.join(npy, name + ".weight_id.npy")
            ids = np.load(ids).view(np.uint64) if os.path.exists(ids) else np.arange(len(wanted), dtype=np.uint64)
            if encoding == 3:  # the upper halves of f32
                values = np.stack([np.zeros_like(values.view(np.uint16)), values.view(np.uint16)], -1).view(np.uint32)
            order, wanted_order = np.argsort(keys), np.argsort(ids)
            check(np.array_equal(keys[order], ids[wanted_order]), f"keys of {name}")
            got = np.ascontiguousarray(values[order]).view(np.uint32).reshape(wanted.shape)  # bits: some are NaN
            check(np.array_equal(got, wanted[wanted_order].view(np.uint32)), f"rows of {name}")
        shutil.rmtree(npy)
    tool("publish", path, out, "--encoding", "bf16")
    check({encoding for encoding, _, _ in published(out, 3).values()} == {3}, "encoding")
    done = tool_run("publish", path, out, "--encoding", "int8")
    check(done.returncode == 2 and "table 'hash', key " in done.stderr, done.stderr)
    done = tool_run("publish", path, out, "--encoding", "f8")
    check("--encoding takes f32, f16, bf16 or int8, not f8" in done.stderr, done.stderr)
    shard = os.path.join(place, "full", "shard-00001-of-00003.h5")
    flip(shard, os.path.getsize(shard) // 2)
    tool("publish", os.path.join(place, "full"), out, status=1)
    check(max(os.listdir(out)) == "rows-000000000003-00000", "a cut after a failure")
    check("lock" in os.listdir(out) and "good" in tool("verify", out), "the cuts stay after a failure")
    empty, none = os.path.join(root, "empty"), os.path.join(root, "none")
    os.mkdir(empty)
    for words in ([os.path.join(place, "full")], [path, "--encoding", "int8"]):
        for to in (empty, none):
            done = tool_run("publish", words[0], to, *words[1:])
            check(done.returncode in (1, 2) and not os.path.exists(none), f"a failure leaves a directory: {done}")
            check(os.listdir(empty) == [], f"a failure leaves {os.listdir(empty)}: {done}")
    os.rmdir(empty)
    shutil.rmtree(place)
    shutil.rmtree(out)


def check_verify_published(out):
    """verify says which of two cuts readers use, and what is wrong with the newer one; others name it."""
    two = "cut 2, base 2, step 0, tables 2, keys 18"
    check(tool("verify", out) == f"{out}: good; readers have {two}\n", "verify")
    value = {"path": out, "status": "OK", "error": "", "cut": 2, "base": 2, "step": 0, "tables": 2, "keys": 18}
    check(tool_json("verify", out) == [{**value, "others": []}], "verify --json")
    done = tool_run("verify", "--quick", out)
    check(done.returncode == 2 and "is a published directory: --quick is for checkpoints" in done.stdout, done)
    done = tool_run("list", out)
    check("it is a published directory, which 'verify' checks" in done.stderr, done)
    done = tool_run("inspect", out)
    check(f"it is a published directory: see 'hotbed-ckpt verify {out}'" in done.stderr, done)
    rows = os.path.join(out, "rows-000000000002-00000")
    flip(rows, os.path.getsize(rows) // 2)
    text = tool("verify", out, status=1)
    check("rows-000000000002-00000" in text and "; readers have cut 1, base 1, step 0," in text, text)
    (value,) = tool_json("verify", out, status=1)
    check(value["status"] == "CORRUPT" and value["cut"] == 1, value)
    first = os.path.join(out, "rows-000000000001-00000")
    os.rename(first, out + ".rows")
    text = tool("verify", out, status=1)
    check("rows-" in text and "readers have" not in text, text)
    os.rename(out + ".rows", first)
    flip(rows, os.path.getsize(rows) // 2)
    check("good" in tool("verify", out), "restored")
    early = out + ".early"  # a publisher has made it, and published nothing
    os.mkdir(early)
    open(os.path.join(early, "lock"), "w").close()
    check("has no whole cut" in tool("verify", early, status=1), "verify before the first cut")
    shutil.rmtree(early)


def check_published_places(root):
    """Cuts are published neither in checkpoints nor beside them, and a directory has the cuts of one model."""
    path, place, out = (os.path.join(root, name) for name in ("ranks", "place", "published"))
    shutil.rmtree(place, ignore_errors=True)
    os.mkdir(place)
    for step in ("step-1", "step-2"):
        shutil.copytree(path, os.path.join(place, step))
    one = os.path.join(place, "step-1")
    before = sorted(os.listdir(one))
    for words, where, why in (
        (["publish", path, one], root, "is a checkpoint"),
        (["publish", path, place], root, "contains checkpoints (step-"),
        (["publish", path, os.path.join(one, "sub")], root, "is in a checkpoint"),
        (["publish", path, "."], one, "is a checkpoint"),
        (["publish", path, "."], place, "contains checkpoints (step-"),
        (["convert", path, os.path.join(one, "out.h5"), "--to", "h5"], root, "is a checkpoint, in which nothing"),
    ):
        done = tool_run(*words, cwd=where)
        check(done.returncode == 2 and "ARGUMENT" in done.stderr and why in done.stderr, f"{words}: {done}")
        check(sorted(os.listdir(one)) == before and sorted(os.listdir(place)) == ["step-1", "step-2"], f"{words}")
    check(tool_json("verify", one)[0]["others"] == [], "no other files")
    open(os.path.join(one, "cut-000000000001"), "w").close()
    check(tool("verify", one) == one + ": good; not of the checkpoint: cut-000000000001\n", "another file")
    check(tool_json("verify", one)[0]["others"] == ["cut-000000000001"], "another file in JSON")
    tool("publish", path, os.path.join(place, "published"))  # a directory of its own, beside checkpoints
    shutil.rmtree(place)

    npy, model, other = (os.path.join(root, name) for name in ("npy", "model", "other"))

    def make(to, **tables):
        os.mkdir(npy)
        for name, dim in tables.items():
            np.save(os.path.join(npy, name + ".weight.npy"), np.ones((9, dim), np.float32))
        tool("convert", npy, to, "--from", "npy")
        shutil.rmtree(npy)

    make(model, a=4, b=2)
    for _ in range(2):
        tool("publish", model, out)
    before = sorted(os.listdir(out))
    check_verify_published(out)
    for tables, text in (
        ({"a": 4, "b": 3}, "table 'b' has dim 3, but 2 in cut-"),
        ({"a": 4}, "1 tables, but cut-"),
        ({"a": 4, "c": 2}, "table number 1 is 'c', but 'b' in cut-"),
        ({"a": 4, "b": 2, "c": 1}, "3 tables, but cut-"),
    ):
        make(other, **tables)
        done = tool_run("publish", other, out)
        check(done.returncode == 2 and "STATE" in done.stderr and text in done.stderr, f"{tables}: {done}")
        check(sorted(os.listdir(out)) == before, "the cuts of the model stay")
        shutil.rmtree(other)
    # Only whole bases are counted: an empty cut, and one without its rows, take no place of the two.
    open(os.path.join(out, "cut-000000000009"), "w").close()
    os.remove(os.path.join(out, "rows-000000000002-00000"))
    check(tool_json("publish", model, out)["cut"] == 10, "the number after all names")
    names = os.listdir(out)
    check({"cut-000000000001", "rows-000000000001-00000", "cut-000000000010"} <= set(names), f"whole bases: {names}")
    tool("publish", model, out)
    names = [name for name in sorted(os.listdir(out)) if name.startswith("cut-")]
    check(names == ["cut-000000000010", "cut-000000000011"], f"two whole bases: {names}")
    shutil.rmtree(out)
    shutil.rmtree(model)


def check_scores_of_npy(root):
    """A score that a table cannot compare is refused with table, row and value."""
    npy, path = os.path.join(root, "npy"), os.path.join(root, "path")
    for column in ("metadata", "times"):
        for value, status, text in (
            (np.int64(-5), 1, "row 1 of table 't', key 1, has -5; scores, times and ages are not negative"),
            (np.int64(1 << 52), 2, "table 't', row 1: score or time 4503599627370496 is over 2^52 - 1"),
            (np.uint64((1 << 64) - 5), 2, "table 't', row 1: score or time 18446744073709551611 is over 2^52 - 1"),
            (np.int64((1 << 52) - 1), 0, ""),
        ):
            os.mkdir(npy)
            np.save(os.path.join(npy, "t.weight.npy"), np.ones((3, 2), np.float32))
            np.save(os.path.join(npy, "t.weight_id.npy"), np.arange(3))
            scores = np.array([98, 100, 100], value.dtype)
            np.save(os.path.join(npy, "t.metadata.npy"), scores)
            scores[1] = value
            np.save(os.path.join(npy, f"t.{column}.npy"), scores)
            done = tool_run("convert", npy, path, "--from", "npy")
            check(done.returncode == status and text in done.stderr, f"{column} {value}: {done}")
            check(os.path.exists(path) == (status == 0), "nothing after a failure")
            if status == 0:
                name = {"metadata": "metadata", "times": "times"}[column]
                check(sorted(read_rows(path)["t"][name].tolist()) == sorted(scores.tolist()), "scores are kept")
                shutil.rmtree(path)
            shutil.rmtree(npy)


def check_many_files(root):
    """The number of files and tables of an import has no limit of its own."""
    raw, npy, out = (os.path.join(root, name) for name in ("raw", "npy", "out"))
    world = 2048
    os.mkdir(raw)
    write_args(raw, "t", dist_type="roundrobin")
    for rank in range(world):  # 2 files each, and the arguments
        write_raw(raw, "t", rank, world, emb_keys=np.array([rank]), emb_values=np.full((1, 2), rank, np.float32))
    check(len(os.listdir(raw)) > 4096, "many files")
    tool("convert", raw, out, "--from", "dynamicemb")
    check(read_rows(out)["t"]["weight"][:, 0].tolist() == list(range(world)), "rows of many ranks")
    shutil.rmtree(out)
    name = os.path.join(raw, "t_emb_keys.rank_0.world_size_2048")
    os.rename(name, name[:-4] + "4000000000")
    done = tool_run("convert", raw, out, "--from", "dynamicemb")
    check(done.returncode == 1 and f"4000000000 ranks, but {raw} has only 4097 files" in done.stderr, f"ranks: {done}")
    shutil.rmtree(raw)
    os.mkdir(npy)
    for table in range(1100):
        np.save(os.path.join(npy, f"t{table}.weight.npy"), np.full((1, 2), table, np.float32))
    tool("convert", npy, out, "--from", "npy")
    check(len(tool_json("inspect", out)["tables"]) == 1100, "many tables")
    shutil.rmtree(out)
    shutil.rmtree(npy)


def check_publish_memory(root):
    """Rows pass through memory in pieces, of hash tables and of static ones, whose order changes."""
    if subprocess.run([TOOL, "--version"], capture_output=True, **limited(resource.RLIMIT_AS, 1 << 33)).returncode != 0:
        return  # a sanitizer's memory is its own
    npy, path, out = (os.path.join(root, name) for name in ("npy", "path", "published"))
    peaks = []
    for rows in (2000, 200_000):  # of 256 bytes: 100 MB in both tables
        os.mkdir(npy)
        values = np.arange(rows * 64, dtype=np.float32).reshape(rows, 64)
        keys = np.arange(rows, dtype=np.int64) * 2654435761 - 7
        np.save(os.path.join(npy, "hash.weight.npy"), values)
        np.save(os.path.join(npy, "hash.weight_id.npy"), keys)
        np.save(os.path.join(npy, "static.weight.npy"), values)
        tool("convert", npy, path, "--from", "npy")
        running = subprocess.Popen([TOOL, "publish", path, out])
        _, status, usage = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
        check(running.returncode == 0, f"publish returned {running.returncode}")
        peaks.append(usage.ru_maxrss << 10)
        found = published(out, len(peaks))
        for name, wanted in (("hash", keys.view(np.uint64)), ("static", np.arange(rows, dtype=np.uint64))):
            order, wanted_order = np.argsort(found[name][1]), np.argsort(wanted)
            check(np.array_equal(found[name][1][order], wanted[wanted_order]), f"keys of {name}")
            got = np.ascontiguousarray(found[name][2][order]).view(np.float32)
            check(np.array_equal(got, values[wanted_order]), f"rows of {name}")
        shutil.rmtree(npy)
        shutil.rmtree(path)
    check(peaks[1] - peaks[0] < 64 << 20, f"publish took {peaks} bytes")
    check(sorted(os.listdir(out))[-1] == "rows-000000000002-00000", "files beside the cuts")
    shutil.rmtree(out)


def check_row_types(root):
    """Rows of each type are written as each other type, the nearest values of it; the source is an import and ranks."""
    directory, path = os.path.join(root, "npy"), os.path.join(root, "wide")
    os.mkdir(directory)
    weights = (np.arange(40 * 70, dtype=np.float32).reshape(40, 70) % 97) / 50 - 1
    np.save(os.path.join(directory, "t.weight.npy"), weights)
    tool("convert", directory, path, "--from", "npy")
    errors = {"f32": 0, "f16": 0.0005, "bf16": 0.004, "int8": 0.0041, "fp8": 0.0626}

    def read(name):
        out = os.path.join(root, "out")
        tool("convert", name, out, "--to", "npy")
        found = rows_of_npy(out)["t"]["weight"]
        shutil.rmtree(out)
        return found.astype(np.float32)

    for first in errors:
        one = os.path.join(root, first)
        tool("convert", path, one, "--dtype", first)
        tool("verify", one)
        check(tool_json("inspect", one)["tables"][0]["dtype"] == first, f"the type of {first}")
        values = read(one)
        check(np.abs(values - weights).max() <= errors[first], f"the values of {first}")
        file = one + ".h5"
        tool("convert", one, file, "--to", "h5")
        if h5py is not None:
            with h5py.File(file, "r") as opened:
                found = dict(opened["embeddings/t/weight"].attrs)
                check(found == {"dtype": first.encode(), "dim": 70}, f"what rows of {first} are: {found}")
        os.remove(file)
        for second in errors:
            other = os.path.join(root, "other")
            check(tool_json("convert", one, other, "--dtype", second)["ranks"] == 1, "shards of a converted one")
            check(np.abs(read(other) - values).max() <= errors[second], f"{first} as {second}")
            if second == first:
                same(one, other)
            if second == "f32":
                check((read(other) == values).all(), f"{first} as f32")
            shutil.rmtree(other)
        shutil.rmtree(one)
    sample(os.path.join(root, "ranks2"), HOTBED_SAMPLE_RANKS="2")
    tool("convert", os.path.join(root, "ranks2"), path, "--dtype", "f32", status=2)  # it exists
    shutil.rmtree(path)
    tool("convert", os.path.join(root, "ranks2"), path, "--dtype", "f32")  # which has all values of others
    tool("verify", path)
    made = tool_json("inspect", path)
    check(made["ranks"] == 2 and {t["dtype"] for t in made["tables"]} == {"f32"}, "two shards")
    kept = {t["name"]: t["state_dtype"] for t in made["tables"]}
    check(kept == {"hash": "f32", "static": "bf16", "small": "f32"}, "states keep their type")
    for words in (["--from", "dynamicemb", "--dtype", "int8"], ["--to", "npy", "--dtype", "f16"], ["--dtype", "i8"]):
        check("--dtype" in tool_run("convert", path, directory, *words).stderr, f"refused: {words}")
    shutil.rmtree(path)
    shutil.rmtree(directory)
    check_state_types(root, os.path.join(root, "ranks2"))
    shutil.rmtree(os.path.join(root, "ranks2"))


def check_lost_values(root):
    """A value that a type does not have is refused with table, key and value, by convert and publish alike."""
    npy, path, out = (os.path.join(root, name) for name in ("npy", "path", "out"))
    inf, nan = float("inf"), float("nan")
    large = {"int8": 65504, "f16": 65519, "bf16": 3.39e38}  # larger numbers are lost
    lacks = {"int8": (inf, nan), "fp8": (inf,)}
    for value in (1e6, inf, -inf, nan, 65505, -65520, 3e38, 3.4e38):
        os.mkdir(npy)
        rows = np.full((3, 5), 0.5, np.float32)
        rows[1, 3] = value
        np.save(os.path.join(npy, "t.weight.npy"), rows)
        np.save(os.path.join(npy, "t.weight_id.npy"), np.array([8, -9, 10]))
        np.save(os.path.join(npy, "t.sum.npy"), rows)
        tool("convert", npy, path, "--from", "npy")
        refused = {t for t, most in large.items() if most < abs(value) < inf}
        refused |= {t for t, values in lacks.items() if str(abs(value)) in map(str, values)}
        for dtype in ("f32", "f16", "bf16", "int8", "fp8"):
            for words in (["convert", path, out, "--dtype", dtype], ["publish", path, out, "--encoding", dtype]):
                if words[0] == "publish" and dtype == "fp8":
                    continue
                done = tool_run(*words)
                text = f"ARGUMENT: table 't', key -9: {dtype} does not have the value {value:g}"
                check((done.returncode == 2) == (dtype in refused), f"{value} as {dtype}: {done}")
                check(dtype not in refused or text in done.stderr, f"{value} as {dtype}: {done.stderr}")
                check(dtype in refused or "good" in tool("verify", out), "verify of what was written")
                check(os.path.exists(out) == (dtype not in refused), "nothing after a failure")
                if words[0] == "convert":
                    check(not any(name.startswith(".tmp-") for name in os.listdir(root)), "no draft after a failure")
                shutil.rmtree(out, ignore_errors=True)
        done = tool_run("convert", path, out, "--state-dtype", "bf16")
        check(done.returncode == (2 if value == 3.4e38 else 0), f"states of {value}: {done}")
        check(done.returncode == 0 or "key -9, state sum: bf16 does not have the value 3.4e+38" in done.stderr, done)
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(path)
        shutil.rmtree(npy)


def check_state_types(root, source):
    """States are written as the other type, the nearest values of it, and rows as they are."""
    brief, again, wide, out = (os.path.join(root, name) for name in ("brief", "again", "wide", "out"))

    def read(name):
        tool("convert", name, out, "--to", "npy")
        found = rows_of_npy(out)
        shutil.rmtree(out)
        return found

    tool("convert", source, wide, "--state-dtype", "f32")  # NaNs of any bits become quiet
    tool("convert", wide, out, "--to", "npy")
    shutil.rmtree(wide)
    for name in os.listdir(out):
        if ".exp_avg" in name:  # bf16 has no finite numbers beyond these
            part = np.load(os.path.join(out, name))
            np.save(os.path.join(out, name), np.where(np.isfinite(part), np.clip(part, -3.38e38, 3.38e38), part))
    tool("convert", out, wide, *FROM_NPY)
    shutil.rmtree(out)
    source = os.path.join(root, "clipped")
    os.rename(wide, source)
    tool("convert", source, brief, "--state-dtype", "bf16")
    tool("verify", brief)
    made = tool_json("inspect", brief)
    check({t["state_dtype"] for t in made["tables"]} == {"bf16"}, "the type of states")
    check(" states bf16 " in tool("inspect", brief), "the type of states as text")
    tool("convert", brief, wide, "--state-dtype", "f32")
    tool("convert", wide, again, "--state-dtype", "bf16")
    same(brief, again)
    before, after, back = read(source), read(brief), read(wide)
    for table, parts in before.items():
        for name, part in parts.items():
            state, found = name in ("exp_avg", "exp_avg_sq"), after[table][name]
            if state:  # random bits: also NaN, infinities, and numbers below bf16's normal ones
                finite = np.isfinite(part) & np.isfinite(found)
                check(finite.mean() > 0.9, f"finite {name} of {table}")
                off = np.abs(found[finite].astype(np.float64) - part[finite])
                check((off <= np.abs(part[finite]) / 256 + 1e-40).all(), f"{name} of {table}")
            check(state or found.tobytes() == part.tobytes(), f"{name} of {table} stays")
            check(found.tobytes() == back[table][name].tobytes(), f"{name} of {table} as f32")
    check("bf16" in tool_run("diff", source, brief).stderr, "states of another type are not compared")
    check("--state-dtype" in tool_run("convert", source, out, "--state-dtype", "f16").stderr, "f16 is refused")
    tool("convert", brief, out, "--to", "h5")
    os.remove(out)
    for path in (brief, again, wide, source):
        shutil.rmtree(path)


def check_times(root):
    path, increment, full, wide, npy, back, one = (
        os.path.join(root, name) for name in ("pairs", "more", "full", "wide", "npy", "back", "one.h5")
    )
    sample(path, HOTBED_SAMPLE_RANKS="2", HOTBED_SAMPLE_TIMES="1", HOTBED_SAMPLE_INCREMENT=increment)
    tool("compact", increment, full)
    tool("reshard", path, wide, "--ranks", "3")
    for what in (path, increment, full, wide):
        tool("verify", what)
        check(tool_json("inspect", what)["format"] == 1, "format of times")
    check(contents(wide) == contents(path), "content with times")
    tool("convert", path, npy, "--to", "npy")
    times = np.load(os.path.join(npy, "hash.times.npy"))
    check(times.shape == (400,) and len(np.unique(times)) > 300, "times in .npy")
    check(not os.path.exists(os.path.join(npy, "small.times.npy")), "a table without times")
    tool("convert", npy, back, *FROM_NPY)
    check(contents(back)["hash"] == contents(path)["hash"], "times there and back")
    tool("convert", back, one, "--to", "h5")
    if h5py is not None:
        with h5py.File(one, "r") as file, h5py.File(os.path.join(back, "index.h5"), "r") as index:
            check((file["embeddings/hash/times"][:] == index["embeddings/hash/times"][:]).all(), "times in one file")
            check((np.sort(index["embeddings/hash/times"][:]) == np.sort(times)).all(), "times in the index")
    for name in (path, increment, full, wide, npy, back):
        shutil.rmtree(name)
    os.remove(one)


def check_no_times(path):
    """Each object without the time of day, which would make the bytes of two equal files differ."""

    def see(name, found):
        del found
        check(h5py.h5g.get_objinfo(file.id, name.encode()).mtime == 0, f"{path}: {name} has a time")

    with h5py.File(path, "r") as file:
        file.visititems(see)


def check_h5(root):
    path, out = os.path.join(root, "ranks"), os.path.join(root, "one.h5")
    tool("convert", path, out, "--to", "h5")
    tool("convert", path, out, "--to", "h5", status=2)  # it exists
    if h5py is not None:
        for name in [out] + [os.path.join(path, n) for n in os.listdir(path) if n.endswith(".h5")]:
            check_no_times(name)
        with h5py.File(out, "r") as one, h5py.File(os.path.join(path, "index.h5"), "r") as index:
            a, b = one["embeddings/hash"], index["embeddings/hash"]
            x, y = np.argsort(a["weight_id"][:]), np.argsort(b["weight_id"][:])
            check(a["weight"][:][x].tobytes() == b["weight"][:][y].tobytes(), "weights in one file")
            name = "optimizer/embeddings.hash.weight/hash.exp_avg"
            check(one[name][:][x].tobytes() == index[name][:][y].tobytes(), "states in one file")
            check(
                one["embeddings/static/weight"][:].tobytes() == index["embeddings/static/weight"][:].tobytes(),
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
            data[mine].tofile(os.path.join(raw, f"user.id_{part}.rank_{r}.world_size_2"))
        for part in ("counter_keys", "counter_frequencies"):
            data = np.arange(5 * r + 1, 5 * r + 6, dtype=np.int64)
            data.tofile(os.path.join(raw, f"user.id_{part}.rank_{r}.world_size_2"))
    write_args(raw, "user.id", opt_type="adam")
    tool("convert", raw, out, "--from", "dynamicemb")
    tool("verify", out)
    table = tool_json("inspect", out)["tables"][0]
    check(table["name"] == "user.id" and table["rows"] == 100 and table["counted"] == 10, "import")
    check(tool_json("inspect", out)["storages"][0]["optimizer"] == "adam", "the dump's optimizer")
    tool("convert", out, npy, "--to", "npy")
    order = {key: i for i, key in enumerate(keys)}
    ids = np.load(os.path.join(npy, "user.id.weight_id.npy"))
    rows = [order[key] for key in ids]
    for name, data in (
        ("weight", values),
        ("metadata", scores.astype(np.uint64)),
        ("exp_avg", states[:, :8]),
        ("exp_avg_sq", states[:, 8:]),
    ):
        check((np.load(os.path.join(npy, f"user.id.{name}.npy")) == data[rows]).all(), "imported " + name)
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
    tool("convert", raw, out, "--from", "dynamicemb", "--optimizer", "adagrad", status=2)
    tool("convert", raw, out, "--from", "dynamicemb", "--optimizer", "what", status=2)
    for part in ("counter_frequencies", "counter_keys", "emb_scores", "emb_values"):
        for name in (os.path.join(raw, f"user.id_{part}.rank_{r}.world_size_2") for r in range(2)):
            os.rename(name, name + ".away")
            done = tool_run("convert", raw, out, "--from", "dynamicemb")
            check(done.returncode == 1 and name + " is missing" in done.stderr, f"without {name}: {done.stderr}")
            os.rename(name + ".away", name)
    os.truncate(os.path.join(raw, "user.id_emb_values.rank_1.world_size_2"), 33)
    tool("convert", raw, out, "--from", "dynamicemb", status=1)
    os.remove(os.path.join(raw, "user.id_emb_keys.rank_1.world_size_2"))
    tool("convert", raw, out, "--from", "dynamicemb", status=1)
    check(not os.path.exists(out), "nothing after a failed import")
    shutil.rmtree(raw)


def check_dump_args(root):
    """An import reads <table>_opt_args.json, and refuses a dump of which nothing says what it contains."""
    raw, out = os.path.join(root, "raw"), os.path.join(root, "out")
    keys, scores = np.arange(4), np.arange(4) + 1
    numbers = np.arange(64, dtype=np.float32)
    states = {"emb_opt_values": numbers.reshape(4, 16)}

    def dump(args, world=1, **parts):
        shutil.rmtree(raw, ignore_errors=True)
        os.mkdir(raw)
        parts = {"emb_keys": keys, "emb_values": numbers[:32].reshape(4, 8), "emb_scores": scores, **parts}
        for rank in range(world):
            write_raw(raw, "t", rank, world, **{p: data[rank::world] for p, data in parts.items()})
        if args is not None:
            write_args(raw, "t", **args)

    def taken(*options, warns=False):
        done = tool_run("convert", raw, out, "--from", "dynamicemb", *options)
        check(done.returncode == 0, f"import of a dump: {done.stderr}")
        check(("has no t_opt_args.json" in done.stderr) == warns, f"warning: {done.stderr}")
        rows, description = read_rows(out)["t"], tool_json("inspect", out)
        shutil.rmtree(out)
        return rows, description

    def refused(*words, options=(), status=2):
        done = tool_run("convert", raw, out, "--from", "dynamicemb", *options)
        check(done.returncode == status, f"{words}: {done.returncode}, {done.stderr}")
        check(all(word in done.stderr for word in words), f"{words}: {done.stderr}")
        check(not os.path.exists(out), "a refused import leaves something")

    # The optimizer, its arguments, and both names of its states.
    adam = {"opt_type": "adam", "lr": 0.25, "beta1": 0.5, "beta2": 0.75, "eps": 1e-3, "iters": 3, "weight_decay": 0.5}
    for name in ("emb_opt_values", "opt_values"):
        dump(adam, **{name: numbers.reshape(4, 16)})
        rows, description = taken()
        check((rows["exp_avg"] == numbers.reshape(4, 16)[:, :8]).all(), "first state of " + name)
        check((rows["exp_avg_sq"] == numbers.reshape(4, 16)[:, 8:]).all(), "second state of " + name)
        check(description["storages"][0]["optimizer"] == "adam", "the dump's optimizer")
        check(description["storages"][0]["optimizer_steps"] == 3, "the dump's step count")
    dump(adam, opt_values=numbers.reshape(4, 16), **states)
    refused("t_opt_values.rank_0.world_size_1 exists beside", status=1)
    dump({"opt_type": "madgrad"}, **states)
    refused("opt_type is 'madgrad'", "without the files emb_opt_values")
    dump({"opt_type": "ftrl", "lr": 0.5, "learning_rate_power": -0.75, "ftrl_beta": 1, "l1_reg": 2}, **states)
    rows, description = taken()
    check((rows["linear"] == numbers.reshape(4, 16)[:, :8]).all(), "FTRL's first state")
    check((rows["accum"] == numbers.reshape(4, 16)[:, 8:]).all(), "FTRL's second state")
    check(description["storages"][0]["optimizer"] == "ftrl", "FTRL")
    dump({"opt_type": "ftrl", "lr": 0}, **states)
    refused("learning_rate 0 of ftrl is not above 0")
    dump({"opt_type": "exact_adagrad"}, **states)
    refused("64 bytes of optimizer state per row, but adagrad with dim 8 has 32", status=1)
    refused("--optimizer adam contradicts", options=["--optimizer", "adam"])
    dump({}, **states)
    refused("does not say opt_type: give it with --optimizer")
    check(
        taken("--optimizer", "adam")[1]["storages"][0]["optimizer"] == "adam", "an optimizer that the dump does not say"
    )
    dump(None, **states)
    refused("has no t_opt_args.json, which has opt_type: give it with --optimizer")
    description = taken("--optimizer", "adam", warns=True)[1]
    check(description["storages"][0]["optimizer"] == "adam", "an optimizer that an option gives")
    dump({"opt_type": "exact_row_wise_adagrad"}, emb_opt_values=numbers[:16].reshape(4, 4))  # padded to 16 bytes
    check(taken()[0]["momentum1"].ravel().tolist() == [0, 4, 8, 12], "a row-wise state with its padding")
    dump({"opt_type": "madgrad"})
    check("exp_avg" not in taken()[0], "rows without states, whatever their optimizer was")
    done = tool_run("convert", raw, out, "--from", "dynamicemb")
    check("opt_type is 'madgrad', but table 't' has no files of states" in done.stderr, f"no states: {done.stderr}")
    shutil.rmtree(out)
    dump({name: value for name, value in adam.items() if name != "iters"}, **states)
    done = tool_run("convert", raw, out, "--from", "dynamicemb")
    check("does not say iters: the states of table 't' are read as those of adam" in done.stderr, done.stderr)
    shutil.rmtree(out)
    for wrong, value in (("beta1", -1), ("iters", 0.5), ("lr", "much"), ("eps", [1])):
        dump({**adam, wrong: value}, **states)
        refused(wrong + " is '", status=1)

    # The type of rows and states.
    for dtype in ("float16", "torch.float16"):
        half = numbers.astype(np.float16).reshape(4, 16)
        dump(
            {"opt_type": "exact_adagrad", "embedding_dtype": dtype, "embedding_dim": 16, "optim_state_dtype": dtype},
            emb_values=half,
            emb_opt_values=half + 1,
        )
        rows, _ = taken()
        check(rows["weight"].dtype == np.float16 and (rows["weight"] == half).all(), "rows of f16")
        check(rows["sum"].dtype == np.float32 and (rows["sum"] == half + 1).all(), "states of f16")
    brain = (numbers.view(np.uint32) >> 16).astype(np.uint16).reshape(4, 16)
    dump({"embedding_dtype": "bfloat16"}, emb_values=brain)
    check((taken()[0]["weight"] == numbers.reshape(4, 16)).all(), "rows of bf16")
    dump({"embedding_dim": 16}, emb_values=half)
    refused("32 bytes per row are not 16 elements of f32", status=1)
    check(taken("--dtype", "f16")[0]["weight"].shape == (4, 16), "a type that the dump does not say")
    dump({"embedding_dtype": "float16"}, emb_values=half)
    refused("--dtype f32 contradicts", options=["--dtype", "f32"])
    dump({"embedding_dtype": "float8_e4m3fn"}, emb_values=half)
    refused("embedding_dtype is 'float8_e4m3fn', not float32, float16 or bfloat16")
    dump(None, emb_values=half)
    refused("has no t_opt_args.json, which has the type of the rows: give it with --dtype")
    check((taken("--dtype", "f16")[0]["weight"] == half).all(), "a type that an option gives")

    # Scores: ages in nanoseconds, and pairs.
    dump({"evict_strategy": "EvictStrategy.KLru"}, emb_scores=np.array([9000, 5000, 7000, 0]))
    check(taken()[0]["metadata"].tolist() == [1, 5, 3, 10], "ages")
    dump({"evict_strategy": "EvictStrategy.KLru", "hotbed_time": 100}, emb_scores=np.array([9000, 5000, 7000, 0]))
    check(taken()[0]["metadata"].tolist() == [91, 95, 93, 100], "ages before a known time")
    dump({"evict_strategy": "EvictStrategy.KLru", "hotbed_time": 12345}, emb_scores=np.array([9000, 5000, 7000, 1000]))
    tool("convert", raw, out, "--from", "dynamicemb")
    check(" time 12345\n" in open(os.path.join(out, "MANIFEST")).read(), "the time of the dump")
    shutil.rmtree(out)
    dump({"evict_strategy": "EvictStrategy.KLru"}, emb_scores=np.array([9, 5, -7, 0]))
    refused("row 2 of table 't', key 2, has -7; scores, times and ages are not negative", status=1)
    for strategy in ({}, {"evict_strategy": "EvictStrategy.KLfu"}):
        dump(strategy, world=2, emb_scores=np.array([1, 2, 3, -1]))
        refused("t_emb_scores.rank_1.world_size_2: row 1 of table 't', key 3, has -1", status=1)
    counted = {"counter_keys": np.array([8, 9]), "counter_frequencies": np.array([3, -2])}
    dump({}, **counted)
    refused("table 't': key 9 is counted -2 times; counts are not negative", status=1)
    dump({}, **{**counted, "counter_frequencies": np.array([1 << 52, 3])})
    refused("table 't': key 8 is counted 4503599627370496 times, at most 2^52 - 1")
    dump({"evict_strategy": "EvictStrategy.KLfu"})
    check(taken()[0]["metadata"].tolist() == [1, 2, 3, 4], "counts")
    refused("--ages contradicts", "evict_strategy is 'EvictStrategy.KLfu'", options=["--ages"])
    dump({"evict_strategy": "EvictStrategy.KClock"})
    refused("evict_strategy is 'EvictStrategy.KClock'")
    pairs = np.stack([scores * 1000, 9 - scores], axis=1)
    for names, order, columns in (
        ("TIMESTAMP,LFU", "time,count", pairs),
        ("LFU,TIMESTAMP", "count,time", pairs[:, ::-1].copy()),
    ):
        for args, options in (({"score_strategy": names}, ()), ({}, ("--scores", order))):
            dump({"evict_strategy": "EvictStrategy.KLfu", **args}, emb_scores=columns)
            rows, _ = taken(*options)
            check(rows["times"].tolist() == [1, 2, 3, 4], f"times of {names}")
            check(rows["metadata"].tolist() == [8, 7, 6, 5], f"counts of {names}")
    refused("does not say the order of the two scores of each key: give it with --scores")
    dump({"score_strategy": "LFU,TIMESTAMP"}, emb_scores=pairs)
    refused("--scores time,count contradicts", options=["--scores", "time,count"])
    dump({})
    refused("--scores time,count: no table has two scores for each key", options=["--scores", "time,count"])
    dump({}, emb_scores=np.ones((4, 3), np.int64))
    refused("scores have 24 bytes, not 8 or 16")

    # Keys, or positions in a rank's block of keys.
    for dist_type in ("roundrobin", "hash_roundrobin"):
        dump({"dist_type": dist_type}, 2)
        check(taken()[0]["weight_id"].tolist() == [0, 1, 2, 3], "keys of two ranks")
    dump({}, 2)
    check(taken()[0]["weight_id"].tolist() == [0, 1, 2, 3], "an older dump, whose keys are roundrobin")
    dump({"dist_type": "continuous"}, 2)
    refused("dist_type is 'continuous', with which the files of 2 ranks have positions instead of keys")
    dump({"dist_type": "continuous"})
    check(taken()[0]["weight_id"].tolist() == [0, 1, 2, 3], "one rank's keys")
    dump({"dist_type": "by_table"}, 2)
    refused("dist_type is 'by_table', not roundrobin, hash_roundrobin or continuous")
    dump({}, 2, emb_keys=np.array([0, 2, 4, 6]))
    refused("nothing says which dist_type it has, and it is not roundrobin: rank 1 of 2 has key 2")
    dump({}, 2, emb_keys=np.array([-5, -3, -1, 1]))
    refused("rank 0 of 2 has key -5")
    refused("rank 0 of 2 has key 18446744073709551611", options=["--keys", "u64"])

    # The file itself, a table without rows, and two tables.
    for text in ("", "[]", '{"lr": }', '{"lr": 1', '{"lr": 1} x', '{"a": "\n"}', '{"a": "\\q"}', "[" * 40, '{"a": 1,}'):
        dump({})
        with open(os.path.join(raw, "t_opt_args.json"), "w") as file:
            file.write(text)
        refused("t_opt_args.json is not a JSON object", status=1)
    dump({"a": {"b": [1, {"c": None}, "\u00e9\\"], "d": {}}, "lr": None, "embedding_dim": 8})
    taken()
    empty = {"emb_keys": keys[:0], "emb_values": numbers[:0], "emb_scores": scores[:0]}
    dump({"embedding_dim": 8}, **empty)
    check(tool_json("convert", raw, out, "--from", "dynamicemb")["tables"] == 1, "a table without rows")
    check(tool_json("inspect", out)["tables"][0]["dim"] == 8, "the dim that the dump says")
    shutil.rmtree(out)
    dump({}, **empty)
    refused("has no rows, so its dim is unknown")
    dump(adam, **states)
    write_raw(raw, "u", 0, 1, emb_keys=keys, emb_values=numbers[:32], **states)
    write_args(raw, "u", **{**adam, "iters": 4})
    refused("table 'u' has another optimizer, or other arguments of it", "adam after 4 steps, before adam after 3")
    for options in (["--dtype", "f64"], ["--scores", "age"]):
        tool("convert", raw, out, "--from", "dynamicemb", *options, status=2)
    for options in (["--from", "npy", "--dtype", "f16"], ["--to", "npy", "--scores", "time,count"]):
        tool("convert", raw, out, *options, status=2)
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
    check(tool("verify", one) == one + ": good; an increment, whose parents were not read\n", "verify of an increment")
    tool("compact", one, out)
    check(tool("verify", out) == out + ": good\n", "verify of a full checkpoint")
    same(one, out)
    rows = {r["table"]: r for r in tool_json("diff", full, one, status=1) if "table" in r}
    check(rows["hash"]["removed"] == 37 and rows["hash"]["changed"] == 41, "diff along a chain")
    shutil.rmtree(place)
    os.mkdir(place)
    sample(full, HOTBED_SAMPLE_RANKS="1", HOTBED_SAMPLE_INCREMENT=one)
    check(tool_json("gc", place, "--keep", "1") == [], "an increment stays with its parent")
    tool("compact", ".", out, cwd=one)
    same(one, out)
    shutil.rmtree(out)
    link = os.path.join(root, "latest")  # in the directory of its target
    os.symlink(one, link)
    same(link, one)
    os.remove(link)
    elsewhere = os.path.join(root, "elsewhere")
    os.rename(full, elsewhere)
    tool("compact", one, out, status=2)
    os.rename(elsewhere, full)
    os.remove(os.path.join(full, "index.h5"))
    tool("compact", one, out, status=1)
    check(not os.path.exists(out), "nothing without the parent")
    shutil.rmtree(place)
    os.mkdir(place)
    sample(place, HOTBED_SAMPLE_RANKS="1", HOTBED_SAMPLE_SAVES="a:1 b:2:a c:3:b d:4:c")
    parent = tool_json("inspect", os.path.join(place, "a"))["id"]
    os.rename(os.path.join(place, "a"), elsewhere)
    orphans = {
        "b": f"its parent {parent} was not found in this directory",
        "c": "it follows b, which is orphaned",
        "d": "it follows c, which is orphaned",
    }
    check({e["name"]: e["error"] for e in tool_json("list", place, status=1)} == orphans, "orphans name their parents")
    missing = f"{place}/d follows {place}/b: its parent {parent} was not found in {place}"
    check(missing + "\n" in tool_run("compact", os.path.join(place, "d"), out).stderr, "a parent that is missing")
    os.mkdir(os.path.join(place, "a"))  # it may be this one
    open(os.path.join(place, "a", "MANIFEST"), "w").close()
    for name in "bd":
        said = tool_run("compact", os.path.join(place, name), out).stderr
        check(f"was not found in {place}; it may be a, which is damaged: {place}/a/MANIFEST" in said, said)
    shutil.rmtree(os.path.join(place, "a"))
    os.remove(os.path.join(elsewhere, "index.h5"))
    os.symlink(elsewhere, os.path.join(place, "a"))
    orphans["b"] = "it follows a, a link to a checkpoint that cannot be used"
    errors = {e["name"]: e["error"] for e in tool_json("list", place, status=1) if "error" in e}
    check(errors == orphans, f"a link to a damaged parent: {errors}")
    said = tool_run("compact", os.path.join(place, "d"), out).stderr
    check(f"d follows {place}/a, a link to a checkpoint that cannot be used: {elsewhere}" in said, said)
    shutil.rmtree(elsewhere)
    os.remove(os.path.join(place, "a"))
    for name in "bcd":  # however far away the missing parent is
        for words in (["compact", out], ["convert", out, "--to", "h5"], ["diff", os.path.join(place, name)]):
            done = tool_run(words[0], os.path.join(place, name), *words[1:])
            check(done.returncode == 2 and "STATE" in done.stderr, f"{words} of {name}: {done.stderr}")
    shutil.rmtree(place)


def check_links_to_increments(root):
    """Parents are searched for beside the link, then beside its target."""
    place, beside, out = (os.path.join(root, name) for name in ("chain", "beside", "out"))
    os.mkdir(place)
    os.mkdir(beside)
    sample(place, HOTBED_SAMPLE_RANKS="1", HOTBED_SAMPLE_SAVES="a:1 b:2:a")
    link = os.path.join(beside, "b")
    os.symlink(os.path.join(place, "b"), link)
    shutil.copytree(os.path.join(place, "a"), os.path.join(beside, "a"))
    os.remove(os.path.join(beside, "a", "index.h5"))
    same(link, os.path.join(place, "b"))
    os.remove(os.path.join(place, "a", "index.h5"))
    said = tool_run("compact", link, out).stderr
    check(f"{link} follows {beside}/a, which is damaged: {beside}/a/index.h5" in said, f"two damaged parents: {said}")
    tool("compact", link, out, status=1)
    os.rename(os.path.join(place, "a"), os.path.join(place, ".tmp-a"))
    os.mkdir(os.path.join(place, "c"))
    open(os.path.join(place, "c", "MANIFEST"), "w").close()
    done = tool_run("compact", link, out)
    check(done.returncode == 1 and "/a, which is damaged" in done.stderr, f"a damaged parent: {done.stderr}")
    shutil.rmtree(place)
    shutil.rmtree(beside)


def check_long_paths(root):
    """Messages name a file by its whole path."""
    place = os.path.join(root, *("d" * 120 + str(i) for i in range(5)))
    os.makedirs(place)
    sample(place, HOTBED_SAMPLE_RANKS="1", HOTBED_SAMPLE_SAVES="a:1")
    path = os.path.join(place, "a")
    os.remove(os.path.join(path, "index.h5"))
    expected = path + "/index.h5 is missing"
    check(expected in tool("verify", path, status=1), "verify of a long path")
    check(expected in tool("list", place, status=1), "list of a long path")
    shutil.rmtree(os.path.join(root, "d" * 120 + "0"))


def check_long_chain(root):
    """compact reads a chain that has more files than may be open."""
    place = os.path.join(root, "long")
    os.mkdir(place)
    saves = ["s0:0"] + [f"s{i}:{i}:s{i - 1}" for i in range(1, 70)]
    sample(place, HOTBED_SAMPLE_RANKS="5", HOTBED_SAMPLE_SAVES=" ".join(saves))
    last, out = os.path.join(place, "s69"), os.path.join(place, "out")
    tool("compact", last, out, **limited(resource.RLIMIT_NOFILE, 380))
    tool("verify", out)
    same(last, out)
    shutil.rmtree(place)


def check_gc(root):
    """Cases of gc that test_tool_gc.py does not generate."""
    place = os.path.join(root, "gc")
    os.mkdir(place)
    sample(place, HOTBED_SAMPLE_RANKS="1", HOTBED_SAMPLE_SAVES="step-0:0 step-1:1 step-2:2 step-3:3")
    os.mkdir(os.path.join(place, ".tmp-00"))
    os.mkdir(os.path.join(place, "not-a-checkpoint"))
    check("   1 rank    3 tables" in tool("list", place), "the number of ranks")
    check("\n1 rank, blocks" in tool("inspect", os.path.join(place, "step-0")), "the number of ranks")
    check(tool_json("gc", place, "--keep", "2", "--dry-run") == ["step-0", "step-1"], "dry run")
    check(len(os.listdir(place)) == 6, "a dry run removes nothing")
    check(tool_json("gc", place, "--keep", "2") == ["step-0", "step-1"], "gc")
    check(sorted(os.listdir(place)) == [".tmp-00", "not-a-checkpoint", "step-2", "step-3"], "kept")
    tool("gc", place, "--keep", "5", "--unfinished")
    check(sorted(os.listdir(place)) == ["not-a-checkpoint", "step-2", "step-3"], "unfinished")
    export = ".tmp-0123456789abcdef0123456789abcdef"  # of a killed convert --to h5
    for name in (export, ".tmp-notes"):
        open(os.path.join(place, name), "w").close()
    listed = {e["name"]: e["state"] for e in tool_json("list", place)}
    check(listed.get(export) == "unfinished" and ".tmp-notes" not in listed, f"unfinished exports: {listed}")
    check(tool_json("gc", place, "--keep", "5") == [], "an unfinished export stays")
    check(tool_json("gc", place, "--keep", "5", "--unfinished") == [export], "an unfinished export")
    check(not os.path.exists(os.path.join(place, export)), "an unfinished export is removed")
    os.remove(os.path.join(place, ".tmp-notes"))
    os.symlink("step-2", os.path.join(place, "best"))
    said = tool("gc", place, "--keep", "1")
    check("kept step-2: best leads to it" in said, "why it is kept")
    check(said.endswith("newest kept: step-3 (its rows were not verified)\n"), f"the newest one: {said}")
    check("Reads no rows: run verify on the newest" in tool("--help"), "the help says that gc reads no rows")
    inside = os.path.join(place, "step-3", "out")
    done = tool_run("reshard", os.path.join(place, "step-2"), inside, "--ranks", "1")
    check(done.returncode == 2 and "step-3 is a checkpoint, in which nothing can be saved as out" in done.stderr, done)
    lock = open(os.path.join(place, ".hotbed-train.lock"), "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.mkdir(os.path.join(place, ".tmp-00"))
    done = tool_run("gc", place, "--keep", "1", "--unfinished")
    check(done.returncode == 2 and place + ": a hotbed-train that holds .hotbed-train.lock" in done.stderr, done)
    check(os.path.exists(os.path.join(place, ".tmp-00")), "a save that is running")
    tool("gc", place, "--keep", "1")
    lock.write("process 1 on another\n")
    lock.close()
    done = tool_run("gc", place, "--unfinished")
    check(done.returncode == 2 and "a hotbed-train on another may be saving here" in done.stderr, done)
    os.remove(os.path.join(place, ".hotbed-train.lock"))
    os.mkfifo(os.path.join(place, ".hotbed-train.lock"))
    tool("gc", place, "--keep", "1", "--unfinished", "--dry-run")
    os.remove(os.path.join(place, ".hotbed-train.lock"))
    open(os.path.join(place, ".hotbed-train.lock"), "w").close()
    tool("gc", place, "--keep", "1", "--unfinished")
    check(not os.path.exists(os.path.join(place, ".tmp-00")), "a lock without an owner")
    os.remove(os.path.join(place, ".hotbed-train.lock"))
    os.remove(os.path.join(place, "step-3", "index.h5"))
    done = tool_run("gc", place, "--keep", "1")
    check(done.returncode == 1 and "step-3 is damaged" in done.stderr and "CORRUPT" in done.stderr, "gc of damage")
    check("--leave-damaged" in done.stderr and done.stdout == "", "what can be done about it")
    shutil.rmtree(place)
    os.mkdir(place)
    sample(place, HOTBED_SAMPLE_RANKS="1", HOTBED_SAMPLE_SAVES="step-0:0 step-1:1:step-0 step-2:2 step-3:3 step-4:4")
    os.remove(os.path.join(place, "step-1", "index.h5"))
    gone = tool_json("gc", place, "--keep", "1", "--leave-damaged")
    check(gone == ["step-2", "step-3"], f"a damaged increment keeps what it follows: {gone}")
    sample(place, HOTBED_SAMPLE_RANKS="1", HOTBED_SAMPLE_SAVES="step-5:5")
    os.remove(os.path.join(place, "step-1", "MANIFEST"))
    said = tool("gc", place, "--keep", "1", "--leave-damaged")
    check("kept step-0: step-1, which may follow it, is damaged\n" in said, f"an unknown parent: {said}")
    check(sorted(os.listdir(place)) == ["step-0", "step-1", "step-4", "step-5"], "possible parents stay")
    shutil.rmtree(place)
    os.mkdir(place)
    sample(place, HOTBED_SAMPLE_RANKS="1", HOTBED_SAMPLE_SAVES="step-0:0 step-1:1:step-0 step-2:2 step-3:3")
    moved = os.path.join(root, "moved")
    os.rename(os.path.join(place, "step-0"), moved)
    os.symlink(moved, os.path.join(place, "step-0"))
    os.symlink("step-3", os.path.join(place, "latest"))
    said = tool("gc", place, "--keep", "1")
    check("kept the increments that follow step-0, a link\n" in said and "follow latest" not in said, said)
    check(sorted(os.listdir(place)) == ["latest", "step-0", "step-1", "step-3"], "a link in place of a parent")
    os.mkdir(os.path.join(place, "step-3", "logs"))
    sample(place, HOTBED_SAMPLE_RANKS="1", HOTBED_SAMPLE_SAVES="step-4:4")
    os.remove(os.path.join(place, "latest"))
    for words in (["--dry-run"], []):
        done = tool_run("gc", place, "--keep", "1", *words)
        check(done.returncode == 2, f"a directory in a checkpoint: {done}")
        check(f"{place}/step-3 contains a directory, logs, and is not removed: move that" in done.stderr, done.stderr)
    sample(place, HOTBED_SAMPLE_RANKS="1", HOTBED_SAMPLE_SAVES="step-5:5")
    done = tool_run("gc", place, "--keep", "1", "--json")
    check(done.returncode == 2 and done.stdout == '["step-4"\n', f"no whole JSON value after a failure: {done}")
    shutil.rmtree(moved)
    shutil.rmtree(place)


def check_unfinished_alone(root):
    """Without --keep, gc --unfinished removes only what interrupted saves left, beside damaged checkpoints too."""
    place = os.path.join(root, "unfinished")
    os.mkdir(place)
    sample(place, HOTBED_SAMPLE_RANKS="1", HOTBED_SAMPLE_SAVES="step-0:0 step-1:1 step-2:2")
    os.remove(os.path.join(place, "step-1", "index.h5"))
    os.mkdir(os.path.join(place, ".tmp-00"))
    check(tool_json("gc", place, "--unfinished", "--dry-run") == [".tmp-00"], "a dry run")
    check(tool_json("gc", place, "--unfinished") == [".tmp-00"], "what an interrupted save left")
    check(sorted(os.listdir(place)) == ["step-0", "step-1", "step-2"], "nothing else")
    done = tool_run("gc", place)
    check(done.returncode == 2 and "gc needs --keep or --unfinished" in done.stderr, done)
    above = os.path.join(root, "above")
    os.makedirs(os.path.join(above, "a"))
    for words in (["list"], ["list", "--json"], ["gc", "--keep", "3"]):
        done = tool_run(words[0], above, *words[1:])
        check(done.stderr == f"hotbed-ckpt: no checkpoints in {above}\n", f"one level too high: {done}")
    shutil.rmtree(above)
    done = tool_run("gc", place, "--unfinished", "--leave-damaged")
    check(done.returncode == 2 and "gc takes --leave-damaged only with --keep" in done.stderr, done)
    shutil.rmtree(place)


def check_list_beside_gc(root):
    """A checkpoint that gc removes while list reads it is gone, not damaged."""
    if GC_BESIDE is None:
        return
    place = os.path.join(root, "beside")
    for victim, left in (("step-0", ["step-2"]), ("step-2", ["step-0", "step-1"])):
        os.mkdir(place)
        sample(place, HOTBED_SAMPLE_RANKS="1", HOTBED_SAMPLE_SAVES="step-0:0 step-1:1:step-0 step-2:2")
        if victim == "step-0":  # gc removes increments first
            shutil.rmtree(os.path.join(place, "step-1"))
        environment = dict(os.environ, LD_PRELOAD=GC_BESIDE, GC_VICTIM=victim)
        listed = json.loads(tool("list", place, "--json", env=environment))
        found = sorted(e["name"] for e in listed if e["state"] == "whole")
        check(found == left and not os.path.exists(os.path.join(place, victim)), f"list beside gc: {listed}")
        shutil.rmtree(place)


def check_two_gcs(root):
    """A gc succeeds although another one runs from begin to end before any of its calls, and removes the same."""
    if GC_BESIDE is None:
        return
    pool, place, said = (os.path.join(root, name) for name in ("pool", "two", "said"))
    os.mkdir(pool)
    sample(pool, HOTBED_SAMPLE_RANKS="1", HOTBED_SAMPLE_SAVES="step-0:0 step-1:1:step-0 step-2:2")
    os.mkdir(os.path.join(pool, ".tmp-00"))
    for name in (".tmp-00/shard-00000-of-00001.h5", ".tmp-0123456789abcdef0123456789abcdef"):
        open(os.path.join(pool, name), "w").close()
    expected = sorted(set(os.listdir(pool)) - {"step-2"})
    words = ["gc", place, "--keep", "1", "--unfinished", "--json"]
    environment = dict(os.environ, LD_PRELOAD=GC_BESIDE, GC_COMMAND=f"{TOOL} {' '.join(words)} > {said}")
    for call in range(1, 1000):
        shutil.copytree(pool, place, copy_function=os.link)
        done = tool_run(*words, env=dict(environment, GC_CALL=str(call)))
        check(done.returncode == 0 and done.stderr == "", f"a gc beside another, at call {call}: {done}")
        check(os.listdir(place) == ["step-2"], f"two gc left {os.listdir(place)}, at call {call}")
        removed = json.loads(done.stdout)
        shutil.rmtree(place)
        if not os.path.exists(said):
            check(removed == ["step-1", "step-0", *expected[:2]], f"gc alone: {removed}")
            break
        with open(said) as file:
            removed += json.load(file)
        os.remove(said)
        check(set(expected) <= set(removed), f"two gc removed {removed}, at call {call}")
    check(call > 40, f"a gc has only {call} calls")
    shutil.rmtree(pool)


def check_renamed(root):
    """A checkpoint that hotbed-train --resume has renamed is not the newest whole one."""
    place = os.path.join(root, "renamed")
    os.mkdir(place)
    sample(place, HOTBED_SAMPLE_RANKS="1", HOTBED_SAMPLE_SAVES="step-0:0 step-1:1 step-2:2 step-3:3:step-2 step-4:4")
    shard = os.path.join(place, "step-2", "shard-00000-of-00001.h5")
    flip(shard, os.path.getsize(shard) - 4)
    for name, new in (("step-2", "step-2.damaged"), ("step-4", "step-4.damaged-12")):
        os.rename(os.path.join(place, name), os.path.join(place, new))
    states = {e["name"]: e["state"] for e in tool_json("list", place, status=1)}
    check(
        states
        == {
            "step-0": "whole",
            "step-1": "whole",
            "step-2.damaged": "damaged",
            "step-3": "orphaned",
            "step-4.damaged-12": "damaged",
        },
        f"states after a renaming: {states}",
    )
    done = tool_run("gc", place, "--keep", "1")
    check(done.returncode == 1 and "step-2.damaged is damaged: a load found damage" in done.stderr, done.stderr)
    check(tool_json("gc", place, "--keep", "1", "--leave-damaged") == ["step-0"], "the newest whole one stays")
    for name in ("a.damage", "a.damaged-", "a.damaged-x", "a.damaged.b"):
        os.rename(os.path.join(place, "step-1"), os.path.join(place, name))
        check([e["state"] for e in tool_json("list", place, status=1) if e["name"] == name] == ["whole"], name)
        os.rename(os.path.join(place, name), os.path.join(place, "step-1"))
    shutil.rmtree(place)


def check_names(root):
    """The output is valid JSON for every file name."""
    place = os.path.join(root, "names")
    names = [
        b"\xff",
        b"a\xc3",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xc0\xaf",
        "\u00e9\U0001f600".encode(),
        b'"\\\n\x7f',
        b"\xe2\x82",
    ]
    os.mkdir(place)
    for name in names:
        os.mkdir(os.path.join(place.encode(), name))
    found = subprocess.run([TOOL, "list", place, "--json"], capture_output=True).stdout
    right = [
        "".join(
            "\\x%02x" % (ord(c) - 0xDC00) if 0xDC80 <= ord(c) <= 0xDCFF else c
            for c in name.decode("utf-8", "surrogateescape")
        )
        for name in names
    ]
    check(sorted(e["name"] for e in json.loads(found.decode("utf-8"))) == sorted(right), f"names: {found!r}")
    os.mkdir(os.path.join(place.encode(), b"\x1b[2J\r"))
    lines = subprocess.run([TOOL, "list", place], capture_output=True).stdout.splitlines()
    check(len(lines) == len(names) + 1 and any(b"\\x1b[2J\\x0d" in line for line in lines), f"a terminal's: {lines}")
    check(not any(c < 0x20 for line in lines for c in line), f"control characters: {lines}")
    shutil.rmtree(place)
    # The name of a damaged parent, in the error of its increment, and a path.
    os.mkdir(place)
    sample(place, HOTBED_SAMPLE_RANKS="1", HOTBED_SAMPLE_SAVES="step-0:0 step-1:1:step-0 step-2:2")
    parent = os.path.join(place, "up\n\x1b[31m")
    os.rename(os.path.join(place, "step-0"), parent)
    os.remove(os.path.join(parent, "index.h5"))
    text = "it follows up\\x0a\\x1b[31m, which is damaged"
    check(tool("list", place, status=1).splitlines()[1].endswith("orphaned: " + text), "a parent in list")
    check(text in [e.get("error") for e in tool_json("list", place, status=1)], "a parent in list --json")
    for words in (["gc", place, "--keep", "1"], ["verify", parent], ["list", parent], ["lst\n\x1b"], ["lst", "\n"]):
        done = tool_run(*words)
        said = (done.stdout + done.stderr).splitlines()
        check(done.returncode != 0 and not any(c < " " for line in said for c in line), f"control characters: {done}")
    check(any(text in line for line in tool_run("gc", place, "--keep", "1").stderr.splitlines()), "a parent in gc")
    check(tool("verify", parent, status=1).count("\n") == 1, "a path in verify")
    shutil.rmtree(place)


def main():
    with tempfile.TemporaryDirectory() as root:
        check_usage(root)
        check_options(root)
        check_mistakes(root)
        check_show(root)
        check_reshard(root)
        check_progress(root)
        check_diff(root)
        check_dealt(root)
        check_npy(root)
        check_publish(root)
        check_published_places(root)
        check_publish_memory(root)
        check_row_types(root)
        check_lost_values(root)
        check_times(root)
        check_scores_of_npy(root)
        check_many_files(root)
        check_h5(root)
        check_dynamicemb(root)
        check_dump_args(root)
        check_increments(root)
        check_imports(root)
        check_cut_short(root)
        check_long_chain(root)
        check_long_paths(root)
        check_links_to_increments(root)
        check_gc(root)
        check_unfinished_alone(root)
        check_list_beside_gc(root)
        check_two_gcs(root)
        check_renamed(root)
        check_names(root)
        print("ok   hotbed-ckpt")


if __name__ == "__main__":
    main()
