#!/usr/bin/env python3
"""tools/check_layers.py - which files may include which, and which calls belong to which file.

include/hotbed <- base <- storage <- dist <- pipeline; checkpoint uses base, storage and dist, and its tool
serve/base.h; serve uses base, of checkpoint files, digests and lists of storages, and of storage the types of elements;
abi describes include.
In storage: index <- step <- rows <- tiers, external <- tiers.  In dist, comm and exchange do not know each other or the
sharded collections above them.  In checkpoint, format does not know tables, and nobody knows the tool.
A third-party header is included only by the file named below.  A core (x_core.h) includes only what both compilers
understand.  Prints each violation; exit status 1: there is one.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIBRARY = ["base", "storage", "dist", "pipeline", "checkpoint", "serve"]
PROGRAMS = ["examples", "bench"]
SUFFIXES = {".c", ".h", ".cc", ".cu", ".cuh"}

# Every #include "..." of a folder begins with one of these; a folder inside another obeys both.
PUBLIC = r"hotbed/(status|stream|types|version)\.h$"
MAY_INCLUDE = {
    "include": r"hotbed/",
    "base": rf"base/|{PUBLIC}|tests/support/emulate\.h$",
    "storage": rf"base/|storage/|{PUBLIC}"
    r"|hotbed/(storage|index|flat_table|external|optimizer|stats|changes|export|dlpack)\.h$",
    "storage/index": r"base/|storage/(index/|types\.h$)|hotbed/",
    "storage/step": r"base/|storage/(index|step)/|hotbed/",
    "storage/rows": r"base/|storage/(index/|step/|rows/|(external_tier|storage|types)\.h$)|hotbed/",
    "storage/external": r"base/|storage/(external/|types\.h$)|hotbed/",
    "storage/tiers": r"base/|storage/(index/|step/|rows/|external/|tiers/|(external_tier|storage|ticket)\.h$)|hotbed/",
    "dist": rf"base/|storage/(step/[a-z_]*_core|step/scatter|dedup|types)\.h$|dist/|{PUBLIC}|hotbed/",
    "dist/comm": r"base/|dist/comm/|hotbed/",
    "dist/exchange": r"base/|storage/|dist/exchange/|hotbed/",
    "abi": r"base/options\.h$|hotbed/",
    "pipeline": r"base/|storage/|dist/|pipeline/|hotbed/",
    "checkpoint": r"base/|storage/|dist/(comm/comm|exchange/route_core)\.h$|checkpoint/|serve/base\.h$|hotbed/",
    "checkpoint/format": r"base/|storage/types\.h$|checkpoint/format/|hotbed/",
    "serve": r"base/|storage/types\.h$|checkpoint/(storages|positions|format/(digest|io))\.h$|serve/|hotbed/",
    "examples/consumer": r"$^",
    "examples": r"hotbed/|examples/",
}
# One file includes each third-party header; the files of base/ that wrap the CUDA runtime include it.
THIRD_PARTY = {
    "CUB": (r"cub/|thrust/", r"base/sort\.cu$"),
    "HDF5": (r"hdf5", r"checkpoint/format/h5\.c$"),
    "hiredis": (r"hiredis", r"serve/redis_call\.c$"),
    "MPI": (r"mpi\.h", r"dist/comm/comm_mpi\.c$"),
    "NCCL": (r"nccl", r"dist/comm/comm_nccl\.(c|cu)$"),
    "NVTX": (r"nvtx", r"pipeline/nvtx\.c$"),
    "RocksDB": (r"rocksdb", r"storage/external/external_rocksdb\.c$"),
    "Abseil": (r"absl/", r"bench/bench_peer\.cc$"),
    "tsl": (r"tsl/", r"bench/bench_peer\.cc$"),
    "xxHash": (r"xxhash", r"checkpoint/format/digest\.[ch]$"),
    "CUDA": (r"cuda|cooperative_groups", r"base/.*cuda.*\.(c|h|cu)$|base/sort\.cu$"),
}
# Cores: the common subset of C11 and C++17.
CORE = (
    r'<(math|stdbool|stddef|stdint|string)\.h>|"(base/(port|tile|float|philox|fault)\.h|[a-z]+/([a-z]+/)?[a-z0-9_]+_core\.h'
    r'|hotbed/(types|status|storage|index|optimizer|changes|route)\.h)"'
)
# Patterns of a line: folders, files that may have it, why the others may not.
WORD = r"(?:^|[^_a-zA-Z])"
CALL = r"(?:^|[^_a-zA-Z>.])"
LINES = [
    (["base"], r"base/tile\.h$", r'"tests/', "only base/tile.h may"),
    (LIBRARY[1:], None, r"__CUDA_ARCH__|__CUDACC__", "belongs to base/port.h"),
    (
        LIBRARY,
        r"base/(cuda|host)_launch\.[ch]$|.*\.cuh?$",
        r"^(?! ?/?\*| \*).*(__global__|<<<)",
        "kernels live in .cu and .cuh files",
    ),
    (
        LIBRARY,
        r"checkpoint/tool/",
        rf"^(?!.*format\(printf).*{WORD}(printf|fprintf|puts|fputs|perror|exit|_Exit|abort)\s*\(",
        "the library never prints, exits or aborts",
    ),
    # Numbers with a fraction have a decimal point in every locale; the programs never change theirs.
    (
        LIBRARY,
        r"base/text\.c$|checkpoint/tool/",
        rf"{WORD}(vsnprintf|vfprintf|strto(d|f|ld)|atof|sscanf)\s*\(",
        "hotbed_vformat() and hotbed_parse_number() of base/text.h",
    ),
    (["include", *LIBRARY, *PROGRAMS], None, rf"{WORD}setlocale\s*\(", "changes numbers in text"),
    # No descriptor outlives an exec of another thread.
    (
        LIBRARY + PROGRAMS,
        None,
        rf"{CALL}(creat|dup|dup2|pipe|mkstemp|memfd_create|epoll_create|eventfd|accept|popen|system|tmpfile)\s*\(",
        "a form with O_CLOEXEC",
    ),
    # Sockets are opened in one file, which also closes them in forked children.
    (
        LIBRARY + PROGRAMS,
        r"dist/comm/comm_socket\.c$",
        rf"{CALL}(socket|accept4)\s*\(",
        "sockets belong to dist/comm/comm_socket.c",
    ),
]


def statements(text):
    """The statements of a file on one line each, with the numbers of their first lines."""
    line = 1
    for statement in text.split(";"):
        yield line, statement.replace("\n", " ")
        line += statement.count("\n")


def bare_number(statement):
    """Whether a message about a failed system call has a bare number instead of the system's text."""
    call = re.search(r'([a-z_]*fail[a-z_]*|[a-z_]*fault|snprintf) *\((.*".*)', statement)
    if not call:
        return False
    text, count = call[2], 1
    while count:
        text, count = re.subn(r"[A-Za-z_0-9]+ *\([^()]*\)", "", text)
    return re.search(r"%[0-9]*[di]", text) and re.search(r"[^a-zA-Z_.]-?(errno|error)[ ,)]", text)


def check_statements(name, text):
    library = name.split("/")[0] in LIBRARY and not name.startswith("checkpoint/tool/")
    for at, statement in statements(text):
        if library and name != "base/error.c" and re.search(r"(?<!gai_)strerror", statement):
            yield at, "strerror() is for programs, the library has hotbed_reason()"
        if library and name != "base/error.c" and bare_number(statement):
            yield at, "a message with a bare error number: hotbed_reason()"
        if library and name != "base/text.c" and re.search(r"[^_a-z]snprintf *\(.*%[-+ #0-9.*]*[aefgAEFG]", statement):
            yield at, "a number with a fraction: hotbed_format() of base/text.h"
        if re.search(r'[^_a-zA-Z>.]fopen *\([^)]*"[rwa]b?\+?"', statement):
            yield at, 'fopen() without "e"'
        if re.search(r"[^_a-zA-Z>.]open(at)? *\([^)]*O_[A-Z]+", statement) and "O_CLOEXEC" not in statement:
            yield at, "open() without O_CLOEXEC"


def check_file(name, text):
    top = name.split("/")[0]
    first = text.split("\n", 1)[0]
    if f"/* {name.removeprefix('include/')} - " not in first and top != "abi":
        yield 1, 'the first line is not "/* PATH - purpose"'
    for number, line in enumerate(text.split("\n"), 1):
        included = re.match(r'\s*#\s*include\s*([<"])([^>"]*)[>"]', line)
        if included:
            system, header = included[1] == "<", included[2]
            for folder, allowed in MAY_INCLUDE.items():
                if not system and name.startswith(folder + "/") and not re.match(allowed, header):
                    yield number, f'may not include "{header}"'
            if system and top == "include" and not re.match(r"(stdbool|stddef|stdint|string)\.h$", header):
                yield number, f"may not include <{header}>"
            for third, (pattern, owner) in THIRD_PARTY.items():
                if top in LIBRARY and re.match(pattern, header) and not re.match(owner, name):
                    yield number, f"{third} belongs to {owner}"
            if top in LIBRARY and name.endswith("_core.h"):
                written = f"<{header}>" if system else f'"{header}"'
                if not re.fullmatch(CORE, written):
                    yield number, f"a core may not include {written}"
        for folders, owner, pattern, why in LINES:
            if top in folders and not (owner and re.match(owner, name)) and re.search(pattern, line):
                yield number, f"{why}: {line.strip()}"
    if top in LIBRARY + PROGRAMS:
        yield from check_statements(name, text)


def main():
    bad = False
    for folder in ["include", *LIBRARY, "abi", "tests", *PROGRAMS]:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in SUFFIXES:
                continue
            name = str(path.relative_to(ROOT))
            for line, why in check_file(name, path.read_text()):
                print(f"{name}:{line}: {why}")
                bad = True
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
