"""tests/checkpoint/test_strace.py - strace kills a save at its system calls, or has them fail.

usage: test_strace.py SAMPLE_PROGRAM HOTBED_CKPT [EVERY]

A program saves three tables of four ranks beside an older checkpoint.  It is killed at each EVERY-th system call of
the save, and each EVERY-th call on a file fails with ENOSPC and EIO, once and for good (37 unless given; 1 takes
minutes): the older one stays as it was, and the new one is whole or not there.  strace counts a thread's
calls of one name, so these are the calls of the thread that saves; tests of the I/O table cover the thread
that writes behind.
Exit status 77: no strace, or it may not trace here.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

FILES = "openat,mkdirat,pwrite64,pread64,fsync,close,renameat,unlinkat,fallocate,newfstatat"
DRAFT = '.tmp-'


def check(condition, what):
    if not condition:
        sys.exit("failed: " + what)


class Bench:
    def __init__(self, program, tool, root):
        self.program, self.tool, self.root = program, tool, root
        self.old, self.new = os.path.join(root, "old"), os.path.join(root, "new")

    def save(self, path, version, wrap=()):
        environment = dict(os.environ, HOTBED_SAMPLE_PATH=path, HOTBED_SAMPLE_RANKS="4", HOTBED_SAMPLE_VERSION=version)
        environment["ASAN_OPTIONS"] = environment.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
        return subprocess.run(list(wrap) + [self.program], env=environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)

    def strace(self, calls, options=()):
        """A save under strace; its exit status, and the calls of its first thread."""
        log = os.path.join(self.root, "log")
        ran = self.save(self.new, "2", ["strace", "-f", "-q", "-s", "256", "-o", log, "-e", "trace=" + calls] +
                        list(options))
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
        """The first thread's calls from the draft's making on to the end: name, and which of that name from 1."""
        status, lines = self.strace(calls)
        check(status == 0 and self.good(self.new), "a save under strace")
        self.clear()
        seen, window, made = {}, [], False
        for line in lines:
            made_file = re.search(r'openat\(.*?"(.*?)".*O_CREAT', line)
            check(not made_file or re.fullmatch(r"MANIFEST|index\.h5|shard-\S+", made_file.group(1)),
                  "a save makes a file beside its own, which a kill would leave: " + line)
            name = line[:line.index("(")]
            seen[name] = seen.get(name, 0) + 1
            made = made or ("mkdirat(" in line and DRAFT in line)
            if made and name != "exit_group":
                window.append((name, seen[name]))
        check(made, "a draft is made")
        return window


def kill(bench, every):
    window = bench.window("all")
    left = {"nothing": 0, "all": 0}
    for name, n in window[::every]:
        bench.strace("all", ["-e", "inject=%s:signal=KILL:when=%d" % (name, n)])
        there = os.path.exists(bench.new)
        check(not there or bench.good(bench.new), "killed at %s %d: the new checkpoint is not whole" % (name, n))
        check(bench.good(bench.old), "killed at %s %d: the old checkpoint is not whole" % (name, n))
        left["all" if there else "nothing"] += 1
        bench.clear()
    print("killed at %d of %d calls: %d times nothing new was there, %d times all of it" %
          (sum(left.values()), len(window), left["nothing"], left["all"]))
    check(left["nothing"] > 0, "no kill came before the end")


def fail(bench, every, error, sticky):
    window = bench.window(FILES)
    failed = 0
    for name, n in window[::every]:
        status, _ = bench.strace(FILES, ["-e", "inject=%s:error=%s:when=%d%s" % (name, error, n, "+" if sticky else "")])
        where = "%s at %s %d" % (error, name, n)
        check(status in (0, 1), where + ": exit status %d" % status)
        there = os.path.exists(bench.new)
        check(there or status != 0, where + ": saved, but nothing is there")
        check(not there or bench.good(bench.new), where + ": the new checkpoint is not whole")
        check(bench.good(bench.old), where + ": the old checkpoint is not whole")
        failed += status != 0
        bench.clear()
    print("%s%s at %d of %d calls on files: %d saves failed" %
          (error, " from then on" if sticky else "", len(window[::every]), len(window), failed))
    check(failed > 0, "no save failed")


def main():
    if shutil.which("strace") is None:
        print("skipped: no strace")
        return 77
    if subprocess.run(["strace", "-f", "-o", os.devnull, "true"], stdout=subprocess.DEVNULL,
                      stderr=subprocess.DEVNULL).returncode != 0:
        print("skipped: strace may not trace here")
        return 77
    every = int(sys.argv[3]) if len(sys.argv) > 3 else 37
    root = tempfile.mkdtemp(prefix="hotbed-strace-")
    try:
        bench = Bench(sys.argv[1], sys.argv[2], root)
        check(bench.save(bench.old, "1").returncode == 0 and bench.good(bench.old), "a save")
        kill(bench, every)
        for error in ("ENOSPC", "EIO"):
            for sticky in (False, True):
                fail(bench, every, error, sticky)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
