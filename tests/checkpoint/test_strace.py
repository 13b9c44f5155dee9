"""tests/checkpoint/test_strace.py - a save whose system calls strace kills or lets fail leaves no damaged checkpoint.

usage: test_strace.py SAMPLE_PROGRAM HOTBED_CKPT [EVERY]

A program saves three storages of three ranks, and two blobs, beside an older checkpoint.  It is killed at each
EVERY-th system call of the save, and each EVERY-th call on a file fails with ENOSPC and EIO, once and from then on.
The default is HOTBED_TEST_EVERY or 11; 1, as in `./run test full`, takes minutes.  The older checkpoint stays
unchanged, and the new one is whole or does not exist.  strace counts the calls of one name in one thread, so only
calls of the saving thread are chosen; test_checkpoint_faults.c tests the calls of the write-behind thread.
Exit status 77: strace is missing or may not trace.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

FILES = "openat,mkdirat,pwrite64,pread64,fsync,close,renameat2,unlinkat,fallocate,newfstatat"
DRAFT = ".tmp-"


def check(condition, what):
    if not condition:
        sys.exit("failed: " + what)


class Fixture:
    def __init__(self, program, tool, root):
        self.program, self.tool, self.root = program, tool, root
        self.old, self.new = os.path.join(root, "old"), os.path.join(root, "new")

    def save(self, path, version, wrap=()):
        environment = dict(os.environ, HOTBED_SAMPLE_PATH=path, HOTBED_SAMPLE_MODEL="3", HOTBED_SAMPLE_VERSION=version)
        environment["ASAN_OPTIONS"] = environment.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
        return subprocess.run(
            [*wrap, self.program],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=120,
        )

    def strace(self, calls, options=()):
        """Save under strace; return the exit status and the calls of the first thread."""
        log = os.path.join(self.root, "log")
        ran = self.save(self.new, "2", ["strace", "-f", "-q", "-s", "256", "-o", log, "-e", "trace=" + calls, *options])
        lines = [line.split(None, 1) for line in open(log, errors="replace").read().splitlines()]
        first = lines[0][0] if lines else ""
        return ran.returncode, [text for pid, text in lines if pid == first and re.match(r"\w+\(", text)]

    def good(self, path):
        ran = subprocess.run([self.tool, "verify", path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return ran.returncode == 0

    def drafts(self):
        return [name for name in os.listdir(self.root) if name.startswith(DRAFT)]

    def clear(self):
        for name in self.drafts():
            shutil.rmtree(os.path.join(self.root, name))
        shutil.rmtree(self.new, ignore_errors=True)

    def window(self, calls):
        """The first thread's calls from the creation of the draft on: name, and number among calls of the name,
        from 1.
        """
        status, lines = self.strace(calls)
        check(status == 0 and self.good(self.new), "a save under strace")
        self.clear()
        seen, window, made = {}, [], False
        for line in lines:
            made_file = re.search(r'openat\(.*?"(.*?)".*O_CREAT', line)
            check(
                not made_file or re.fullmatch(r"MANIFEST|index\.h5|shard-\S+", made_file.group(1)),
                "a save creates a file outside of its draft, which a kill would leave: " + line,
            )
            name = line[: line.index("(")]
            seen[name] = seen.get(name, 0) + 1
            made = made or ("mkdirat(" in line and DRAFT in line)
            if made and name != "exit_group":
                window.append((name, seen[name]))
        check(made, "no draft was created")
        return window


def kill(fixture, every):
    window = fixture.window("all")
    left = {"nothing": 0, "all": 0}
    for name, n in window[::every]:
        fixture.strace("all", ["-e", f"inject={name}:signal=KILL:when={n}"])
        there = os.path.exists(fixture.new)
        check(not there or fixture.good(fixture.new), f"killed at {name} {n}: the new checkpoint is not whole")
        check(fixture.good(fixture.old), f"killed at {name} {n}: the old checkpoint is not whole")
        left["all" if there else "nothing"] += 1
        fixture.clear()
    print(
        f"killed at {sum(left.values())} of {len(window)} calls: {left['nothing']} times no new checkpoint existed, "
        f"{left['all']} times a whole one"
    )
    check(left["nothing"] > 0, "no kill came before the end")


def fail(fixture, every, error, sticky):
    window = fixture.window(FILES)
    failed = 0
    for name, n in window[::every]:
        status, _ = fixture.strace(FILES, ["-e", f"inject={name}:error={error}:when={n}{'+' if sticky else ''}"])
        where = f"{error} at {name} {n}"
        check(status in (0, 1), where + f": exit status {status}")
        there = os.path.exists(fixture.new)
        check(there or status != 0, where + ": the save succeeded, but the checkpoint does not exist")
        check(not there or fixture.good(fixture.new), where + ": the new checkpoint is not whole")
        check(fixture.good(fixture.old), where + ": the old checkpoint is not whole")
        failed += status != 0
        fixture.clear()
    print(
        f"{error}{' from then on' if sticky else ''} at {len(window[::every])} of {len(window)} calls on files: "
        f"{failed} saves failed"
    )
    check(failed > 0, "no save failed")


def gc_errors(fixture):
    """The errors of a failed removal have the path, and name the rest."""
    place = os.path.join(fixture.root, "place")
    old, gone, left = (os.path.join(place, name) for name in ("step-1", ".tmp-gone-step-1", "step-2"))
    for call, when, said, stays in (
        ("renameat", 1, f"cannot rename {old}: Input/output error\n", ["step-1", "step-2"]),
        ("fsync", 1, f"cannot sync {place}: Input/output error\n", ["step-1", "step-2"]),
        ("unlinkat", 1, f"cannot remove {gone}/", ["step-1", "step-2"]),
        (
            "unlinkat",
            2,
            f"; what is left of step-1 is {gone}, which gc --unfinished removes\n",
            [".tmp-gone-step-1", "step-2"],
        ),
    ):
        shutil.rmtree(place, ignore_errors=True)
        os.mkdir(place)
        for path, version in ((old, "1"), (left, "2")):
            check(fixture.save(path, version).returncode == 0, "a save")
        ran = subprocess.run(
            [
                "strace",
                "-f",
                "-o",
                os.devnull,
                "-e",
                f"inject={call}:error=EIO:when={when}",
                fixture.tool,
                "gc",
                place,
                "--keep",
                "1",
            ],
            capture_output=True,
            text=True,
        )
        check(ran.returncode == 2 and said in ran.stderr, f"gc with {call} {when}: {ran.stderr}")
        check(sorted(os.listdir(place)) == stays, f"gc with {call} {when} left {os.listdir(place)}")
    shutil.rmtree(place)
    print("gc names the paths of failed removals")


def make_chain(fixture, place):
    """Save a full checkpoint of one rank, an increment of it, and a newer full one."""
    os.mkdir(place)
    env = dict(os.environ, HOTBED_SAMPLE_PATH=place, HOTBED_SAMPLE_RANKS="1")
    env["HOTBED_SAMPLE_SAVES"] = "step-1:1 step-2:2:step-1 step-3:3"
    subprocess.run([fixture.program], env=env, check=True, stdout=subprocess.DEVNULL)


def killed(fixture, calls, number, *words):
    """Kill the tool at its n-th of these calls; return whether it was killed, and not done before."""
    inject = ["strace", "-f", "-o", os.devnull, "-e", f"inject={calls}:signal=KILL:when={number}"]
    ran = subprocess.run([*inject, fixture.tool, *words], capture_output=True, text=True)
    check(ran.returncode in (0, -signal.SIGKILL), f"{words}: exit status {ran.returncode}: {ran.stderr}")
    return ran.returncode != 0


def kill_tool(fixture, every):
    """A killed compact or gc leaves whole checkpoints, and directories that gc --unfinished removes."""
    place, out = os.path.join(fixture.root, "chain"), os.path.join(fixture.root, "chain", "out")
    make_chain(fixture, place)

    def tool(*words):
        done = subprocess.run([fixture.tool, *words], capture_output=True, text=True)
        check(done.returncode == 0, f"{words}: {done.stdout}{done.stderr}")
        return done.stdout

    number, kills = 1, 0
    calls = "mkdirat,openat,pwrite64,fsync,renameat,renameat2"
    while killed(fixture, calls, number, "compact", place + "/step-2", out):
        if os.path.exists(out):
            tool("diff", place + "/step-2", out)
            shutil.rmtree(out)
        tool("gc", place, "--keep", "9", "--unfinished")
        check(sorted(os.listdir(place)) == ["step-1", "step-2", "step-3"], f"{number}: {os.listdir(place)}")
        number, kills = number + max(1, every // 2), kills + 1
    tool("diff", place + "/step-2", out)
    shutil.rmtree(out)
    number, left, copy = 0, True, os.path.join(fixture.root, "copy")
    while left:
        number += 1
        shutil.copytree(place, copy)
        left = killed(fixture, "unlinkat,renameat,renameat2,fsync", number, "gc", copy, "--keep", "1")
        states = {e["name"]: e["state"] for e in json.loads(tool("list", copy, "--json"))}
        check(
            set(states.values()) <= {"whole", "unfinished"} and "step-3" in states, f"gc killed at {number}: {states}"
        )
        tool("gc", copy, "--keep", "1", "--unfinished")
        check(os.listdir(copy) == ["step-3"], f"gc killed at {number} left {os.listdir(copy)}")
        shutil.rmtree(copy)
    shutil.rmtree(place)
    check(kills > 0 and number > 1, "compact or gc was not killed")
    print(f"compact killed at {kills} calls, gc at {number - 1}")


def old_file_system(fixture):
    """Without RENAME_NOREPLACE, as on NFS, files and directories get their names all the same."""
    source, place = os.path.join(fixture.root, "source"), os.path.join(fixture.root, "outputs")
    make_chain(fixture, source)
    os.mkdir(place)
    for links in (True, False):
        inject = ["-e", "inject=renameat2:error=EINVAL"] + ([] if links else ["-e", "inject=linkat:error=EPERM"])
        for words in (["compact", "made"], ["convert", "file.h5", "--to", "h5"], ["convert", "npy", "--to", "npy"]):
            words = [words[0], os.path.join(source, "step-1"), os.path.join(place, words[1]), *words[2:]]
            ran = subprocess.run(
                ["strace", "-f", "-o", os.devnull, *inject, fixture.tool, *words], capture_output=True, text=True
            )
            check(ran.returncode == 0, f"{words}, links {links}: {ran.stderr}")
        check(sorted(os.listdir(place)) == ["file.h5", "made", "npy"], f"links {links} left {os.listdir(place)}")
        check(fixture.good(os.path.join(place, "made")), "a checkpoint on an old file system")
        shutil.rmtree(place)
        os.mkdir(place)
    shutil.rmtree(place)
    shutil.rmtree(source)
    print("file systems that cannot rename without replacing")


def main():
    if shutil.which("strace") is None:
        print("skipped: no strace")
        return 77
    tried = subprocess.run(
        ["strace", "-f", "-o", os.devnull, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    if tried.returncode != 0:
        print("skipped: strace may not trace here")
        return 77
    every = int(sys.argv[3]) if len(sys.argv) > 3 else int(os.environ.get("HOTBED_TEST_EVERY", "11"))
    root = tempfile.mkdtemp(prefix="hotbed-strace-")
    try:
        fixture = Fixture(sys.argv[1], sys.argv[2], root)
        check(fixture.save(fixture.old, "1").returncode == 0 and fixture.good(fixture.old), "a save")
        kill(fixture, every)
        for error in ("ENOSPC", "EIO"):
            for sticky in (False, True):
                fail(fixture, every, error, sticky)
        gc_errors(fixture)
        kill_tool(fixture, every)
        old_file_system(fixture)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
