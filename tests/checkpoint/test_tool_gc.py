"""tests/checkpoint/test_tool_gc.py - hotbed-ckpt list and gc on random directories, against a model.

usage: test_tool_gc.py SAMPLE_PROGRAM HOTBED_CKPT

A directory has checkpoints and increments from a pool, whole or damaged, copies of them, links of all kinds, leftovers
of saves and removals, and unrelated files and directories.  HOTBED_TEST_SEED is the seed, HOTBED_TEST_ROUNDS the
number of directories (60, or 15 if HOTBED_TEST_SMALL is set).
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

PROGRAM = os.path.abspath(sys.argv[1])
TOOL = os.path.abspath(sys.argv[2])
SEED = int(os.environ.get("HOTBED_TEST_SEED", "1"))
ROUNDS = int(os.environ.get("HOTBED_TEST_ROUNDS", "15" if "HOTBED_TEST_SMALL" in os.environ else "60"))

# Name, step, and parent of each checkpoint; d1 is newer than the full checkpoints after d.
POOL = [
    ("a", 10, None),
    ("a1", 20, "a"),
    ("a2", 30, "a1"),
    ("b", 40, None),
    ("b1", 50, "b"),
    ("b2", 60, "b"),
    ("c", 70, None),
    ("d", 80, None),
    ("d1", 200, "d"),
    ("e", 90, None),
    ("e1", 95, "e"),
]
STEP = {name: step for name, step, _ in POOL}
PARENT = {name: parent for name, _, parent in POOL}


def root_of(member):
    return member if PARENT[member] is None else root_of(PARENT[member])


def ancestors(member):
    return [] if PARENT[member] is None else [PARENT[member], *ancestors(PARENT[member])]


class Entry:
    """A directory or a link in the directory under test."""

    def __init__(self, member=None, good=False, described=False, state="other"):
        self.member = member  # of the pool, or None
        self.good = good  # all files are correct
        self.described = described  # its MANIFEST can be read
        self.state = state  # of its own files, whatever its parents are
        self.renamed = False  # its name says that it is damaged, while its files are correct
        self.nested = False  # it contains a directory
        self.link = False
        self.target = None  # of a link: the entry that it leads to or into


class Round:
    def __init__(self, number, root, pool):
        self.random = random.Random(SEED * 100003 + number)
        self.pool = pool
        self.place = os.path.join(root, b"place")
        self.outside = os.path.join(root, b"outside")
        self.entries = {}  # by name, bytes
        os.mkdir(self.place)
        os.mkdir(self.outside)
        self.external = {}  # members outside of the directory
        self.fill()

    def path(self, *names):
        return os.path.join(self.place, *names)

    # --- the content of the directory ---

    def copy(self, member, to):
        os.mkdir(to)
        for file in os.listdir(os.path.join(self.pool, member.encode())):
            os.link(os.path.join(self.pool, member.encode(), file), os.path.join(to, file))

    def name_for(self, member):
        name = self.random.choice(
            [
                b"%s",
                b"%s",
                b"%s",
                b"step-%s",
                b".%s",
                b"%s.damaged",
                b"%s.damaged-2",
                b"%s \xff\xc3",
                '%s-\u00e9"\\'.encode(),
                b"%s" + b"x" * 250,
            ]
        )
        name = (name % member.encode())[:255]
        while name in self.entries:
            name = (name + b"'")[-255:]
        return name

    def damage(self, entry, path):
        """Damage a checkpoint.  A file is replaced, not written to: it is a hard link to the pool's."""
        shard, index, manifest = (os.path.join(path, n) for n in (b"shard-00000-of-00002.h5", b"index.h5", b"MANIFEST"))
        how = self.random.randrange(12)
        entry.good = False
        entry.state = "damaged"
        if how <= 3:
            os.remove((shard, index, manifest, os.path.join(path, b"shard-00001-of-00002.h5"))[how])
            entry.described = how != 2
        elif how <= 5:
            file = (shard, index)[how - 4]
            data = open(file, "rb").read()
            os.remove(file)
            open(file, "wb").write(data[:-1] if self.random.random() < 0.5 else data + b"x")
        elif how == 6:  # a load refuses a link in the place of a file
            os.remove(shard)
            os.symlink(os.path.join(self.pool, entry.member.encode(), b"shard-00000-of-00002.h5"), shard)
        elif how == 7:
            os.remove(shard)
            os.mkdir(shard)
            entry.nested = True
        elif how <= 9:
            data = open(manifest, "rb").read()
            os.remove(manifest)
            open(manifest, "wb").write(b"" if how == 8 else data[:50] + bytes([data[50] ^ 1]) + data[51:])
            entry.described = False
        elif how == 10:
            os.remove(manifest)
            os.symlink(os.path.join(self.pool, entry.member.encode(), b"MANIFEST"), manifest)
            entry.described = False
        else:
            for file in os.listdir(path):
                os.remove(os.path.join(path, file))
            entry.described = False
            entry.state = "other"

    def add_checkpoint(self, member, damaged):
        name = self.name_for(member)
        entry = Entry(member, True, True, "whole")
        self.entries[name] = entry
        self.copy(member, self.path(name))
        if damaged:
            self.damage(entry, self.path(name))
        elif self.random.random() < 0.1:
            open(self.path(name, b"notes.txt"), "w").write("of somebody")
        elif self.random.random() < 0.1:
            os.mkdir(self.path(name, b"sub"))
            open(self.path(name, b"sub", b"file"), "w").write("of somebody")
            entry.nested = True
        if entry.state == "whole" and re.search(rb"\.damaged(-[0-9]+)?$", name):
            entry.renamed, entry.good, entry.state = True, False, "damaged"

    def add_link(self, name, target, entry=None):
        if os.path.lexists(self.path(name)):
            return
        os.symlink(target, self.path(name))
        entry = entry or Entry()
        entry.link = True
        entry.state = "link"
        self.entries[name] = entry

    def add_parents(self):
        """Add parents outside of the directory, which links lead to."""
        here = {e.member for e in self.entries.values()}
        for member in sorted({PARENT[m] for m in here if m and PARENT[m]} - here):
            if self.random.random() < 0.5:
                self.external[member] = os.path.join(self.outside, b"parent-" + member.encode())
                self.copy(member, self.external[member])
                self.add_link(b"to-" + member.encode(), self.external[member], Entry(member, True, True))

    def add_links(self):
        names = [n for n, e in self.entries.items() if not e.link]
        for i in range(self.random.choice([0, 0, 1, 1, 2, 3])):
            name = self.random.choice([b"latest%d", b".tmp-link%d", b"best%d\xfe", b".tmp-gone-%d"]) % i
            how = self.random.randrange(8)
            if how <= 3 and names:
                to = self.random.choice(names)
                entry = self.entries[to]
                copied = Entry(entry.member, entry.good or entry.renamed, entry.described)
                copied.target = to
                text = [to, self.path(to), os.path.join(b"..", b"place", to), os.path.join(to, b"index.h5")][how]
                if how == 3:
                    if not os.path.exists(self.path(text)):
                        continue
                    copied = Entry()
                    copied.target = to
                self.add_link(name, text, copied)
                if self.random.random() < 0.3:
                    self.add_link(name + b"-again", name, copied)
            elif how == 4:
                self.add_link(name, os.path.join(self.outside, b"precious"))
            elif how == 5:
                self.add_link(name, self.random.choice([b".", b"..", b"nowhere", b"/"]))
            elif self.external:
                member = self.random.choice(sorted(self.external))
                self.add_link(name, self.external[member], Entry(member, True, True))

    def fill(self):
        os.mkdir(os.path.join(self.outside, b"precious"))
        open(os.path.join(self.outside, b"precious", b"MANIFEST.txt"), "w").write("keep me")
        for member in self.random.sample(sorted(STEP), self.random.randrange(3)):
            self.external[member] = os.path.join(self.outside, b"archive-" + member.encode())
            self.copy(member, self.external[member])
        share, damage = self.random.choice([0.3, 0.6, 1.0]), self.random.choice([0.0, 0.0, 0.1, 0.4])
        for member in STEP:
            while self.random.random() < share:
                self.add_checkpoint(member, self.random.random() < damage)
                if self.random.random() > 0.15:
                    break
        for i in range(self.random.choice([0, 0, 1, 2])):
            names = [n for n, e in self.entries.items() if len(n) < 200]
            name = self.random.choice([b".tmp-%032x" % i, b".tmp-%d" % i] + [b".tmp-gone-" + n for n in names])
            if os.path.lexists(self.path(name)):
                continue
            os.mkdir(self.path(name))
            entry = self.entries[name] = Entry(state="unfinished")
            if self.random.random() < 0.8:
                open(self.path(name, b"shard-00000-of-00001.h5"), "w").write("x")
            if self.random.random() < 0.15:
                os.mkdir(self.path(name, b"sub"))
                entry.nested = True
        for i in range(self.random.choice([0, 1, 2])):
            os.mkdir(self.path(b"logs%d" % i))
            self.entries[b"logs%d" % i] = Entry()
            open(self.path(b"logs%d" % i, b"x.log"), "w").write("of somebody")
            open(self.path(b"file%d" % i), "w").write("of somebody")
            open(self.path(b".tmp-file%d" % i), "w").write("of somebody")
        self.add_parents()
        self.add_links()

    # --- the model ---

    def whole(self, entry):
        """All files are correct, and some copy of each of its parents is whole."""
        if not entry.good:
            return False
        parent = PARENT[entry.member]
        return parent is None or any(e.member == parent and self.whole(e) for e in self.entries.values())

    def states(self):
        return {n: "orphaned" if e.state == "whole" and not self.whole(e) else e.state for n, e in self.entries.items()}

    def snapshot(self, top):
        found = {}
        for directory, directories, files in os.walk(top):
            for name in directories + files:
                path = os.path.join(directory, name)
                stat = os.lstat(path)
                is_directory = os.path.isdir(path) and not os.path.islink(path)
                found[path] = (stat.st_ino, None if is_directory else stat.st_size)
        return found

    def expected(self, keep, unfinished):
        """The names that gc removes; None if the pool has a member twice, since the choice is then open."""
        states = self.states()
        real = {n: e for n, e in self.entries.items() if states[n] == "whole"}
        members = [e.member for e in self.entries.values() if e.described]
        go = {n for n, e in self.entries.items() if e.state == "unfinished"} if unfinished else set()
        stay = {e.target for e in self.entries.values() if e.link}
        if len(set(members)) != len(members):
            return None
        fulls = sorted({e.member for e in real.values() if PARENT[e.member] is None}, key=STEP.get)
        roots = set(fulls[-keep:])
        if real:
            roots.add(root_of(max((e.member for e in real.values()), key=STEP.get)))
        for n, e in self.entries.items():
            known = e.described and all(m in members for m in ancestors(e.member))
            if known and (e.link or n in stay or states[n] != "whole"):
                roots.add(root_of(e.member))
            if not known and states[n] in ("damaged", "orphaned"):  # it may follow any checkpoint before it
                roots |= {m for m in STEP if PARENT[m] is None and not (e.described and STEP[m] > STEP[e.member])}
        return (go | {n for n, e in real.items() if root_of(e.member) not in roots}) - stay

    # --- runs of the tool ---

    def run(self, *words, status=None):
        done = subprocess.run([TOOL, *words], capture_output=True)
        self.check(status is None or done.returncode in status, f"{words} returned {done.returncode}: {done.stderr}")
        self.check(done.returncode == 0 or b": " in done.stderr or words[0] == "list", "an error without a text")
        return done

    def check(self, condition, what):
        if not condition:
            entries = "\n".join(f"{n!r} {vars(e)}" for n, e in sorted(self.entries.items()))
            sys.exit(f"failed: seed {SEED}: {what}\n{entries}")

    def json_name(self, name):
        text = name.decode("utf-8", "surrogateescape")
        return "".join("\\x%02x" % (ord(c) - 0xDC00) if 0xDC80 <= ord(c) <= 0xDCFF else c for c in text)

    def check_list(self):
        states = self.states()
        broken = any(s in ("damaged", "orphaned", "unreadable") for s in states.values())
        listed = json.loads(self.run("list", self.place, "--json", status=[1 if broken else 0]).stdout.decode())
        self.check(
            {e["name"]: e["state"] for e in listed} == {self.json_name(n): s for n, s in states.items()},
            f"list shows {listed}",
        )
        steps = [e["step"] for e in listed if "step" in e]
        self.check(steps == sorted(steps), "list is not in order")
        return broken

    def gc(self):
        broken = self.check_list()
        keep = self.random.choice([1, 1, 2, 3])
        unfinished, leave = self.random.random() < 0.4, self.random.random() < 0.7
        words = ["gc", self.place, "--json", f"--keep={keep}"]
        words += ["--unfinished"] * unfinished + ["--leave-damaged"] * leave
        place, outside, pool = self.snapshot(self.place), self.snapshot(self.outside), self.snapshot(self.pool)
        dry = self.run(*words, "--dry-run", status=[0, 1, 2])
        self.check(self.snapshot(self.place) == place, "a dry run changed something")
        done = self.run(*words) if dry.stdout != b"[]\n" else dry
        self.check(done.returncode == dry.returncode, f"a dry run returned {dry.returncode}, gc {done.returncode}")
        self.check(self.snapshot(self.outside) == outside, "something outside is gone")
        self.check(self.snapshot(self.pool) == pool, "something behind a link is gone")
        if broken and not leave:
            self.check(done.returncode == 1 and done.stdout == b"", "gc did not refuse what is damaged")
            for n, s in self.states().items():
                self.check(
                    s not in ("damaged", "orphaned", "unreadable") or n + b" is " + s.encode() in done.stderr,
                    f"{n!r} is not named",
                )
            self.check(self.snapshot(self.place) == place, "a gc that refused changed something")
            return
        names = {self.json_name(n): n for n in self.entries}
        end = "]" if done.returncode == 2 else ""  # a gc that failed prints no whole JSON value
        removed = [names[n] for n in json.loads(done.stdout.decode() + end)]
        dry_removed = [names[n] for n in json.loads(dry.stdout.decode() + end)]
        self.check(removed == dry_removed, f"a dry run says {dry_removed}, gc {removed}")
        self.check_after(place, keep, unfinished, removed, done)

    def check_after(self, place, keep, unfinished, removed, done):
        expected = self.expected(keep, unfinished)
        if expected is not None:
            # A directory in a checkpoint keeps it, and what it follows.
            nested = {n for n in expected if self.entries[n].nested}
            trees = {root_of(self.entries[n].member) for n in nested if self.entries[n].member}
            left = expected - set(removed)
            self.check(set(removed) <= expected, f"{removed} are gone, expected {expected}")
            self.check(
                nested <= left and all(n in nested or root_of(self.entries[n].member) in trees for n in left),
                f"{left} stayed, expected {nested} and what they follow",
            )
            self.check(done.returncode == (2 if nested else 0), f"gc returned {done.returncode}: {done.stderr}")
            self.check(all(n in done.stderr for n in nested) or len(trees) < len(nested), "it is not said what stays")
        gone = tuple(self.path(n) + b"/" for n in removed)
        left = {p: s for p, s in place.items() if not (p + b"/").startswith(gone)}
        self.check(self.snapshot(self.place) == left, "the remaining files have changed")
        whole = {n for n, s in self.states().items() if s == "whole"}
        for n in removed:
            self.check(n in whole or (unfinished and self.entries[n].state == "unfinished"), f"{n!r} was removed")
            later = {self.entries[m].member for m in removed[removed.index(n) + 1 :]}
            self.check(
                not any(self.entries[n].member in ancestors(m) for m in later if m),
                f"{n!r} was removed before its increments",
            )
        for n, e in self.entries.items():
            self.check(e.target is None or e.target not in removed, f"{e.target!r}, to which {n!r} leads, was removed")
        # The remaining checkpoints are as whole as before: none lost a parent.
        newest = max((self.entries[n].member for n in whole), key=STEP.get, default=None)
        fulls = sorted({self.entries[n].member for n in whole if PARENT[self.entries[n].member] is None}, key=STEP.get)
        for n in removed:
            del self.entries[n]
        still = {n for n, s in self.states().items() if s == "whole"}
        self.check(still == whole - set(removed), "gc made something an orphan")
        members = {self.entries[n].member for n in still}
        self.check(newest is None or newest in members, "the newest checkpoint was removed")
        self.check(set(fulls[-keep:]) <= members, "one of the newest full checkpoints was removed")
        if removed and self.random.random() < 0.3:
            self.check_list()


def main():
    with tempfile.TemporaryDirectory() as root:
        root = root.encode()
        pool = os.path.join(root, b"pool")
        os.mkdir(pool)
        saves = " ".join(f"{n}:{s}{':' + p if p else ''}" for n, s, p in POOL)
        subprocess.run(
            [PROGRAM],
            check=True,
            stdout=subprocess.DEVNULL,
            env=dict(
                os.environ, HOTBED_SAMPLE_PATH=os.fsdecode(pool), HOTBED_SAMPLE_RANKS="2", HOTBED_SAMPLE_SAVES=saves
            ),
        )
        for number in range(ROUNDS):
            place = os.path.join(root, b"%d" % number)
            os.mkdir(place)
            Round(number, place, pool).gc()
            shutil.rmtree(place)
        print(f"ok   hotbed-ckpt gc, {ROUNDS} directories, seed {SEED}")


main()
