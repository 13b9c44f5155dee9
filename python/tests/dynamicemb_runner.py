"""Runs dynamicemb's unit tests for tools/dynamicemb_tests.sh.

``serve SOCKET RESULTS JOBS`` imports everything once and then runs up to JOBS cases at once, each rank in a fork of its
own.  ``ask SOCKET torchrun|pytest ARGUMENTS...`` stands in for these programs in dynamicemb's shell scripts: it waits
until the server has started the case, and always succeeds, so that a script goes on.  ``report RESULTS`` prints the
counts.
"""

import contextlib
import ctypes
import fnmatch
import json
import os
import pathlib
import runpy
import signal
import socket
import sys
import tempfile
import time
import traceback

KNOWN = pathlib.Path(__file__).with_name("dynamicemb_known.txt")
SECONDS = 3600  # of a case
PR_SET_THP_DISABLE = 41  # of Linux's prctl()
ORDER = ("passed", "skipped", "failed")
LINES = 200  # of a failed case's log, printed
PORTS, PORTS_EACH = range(20_000, 29_000), 100  # below the ports that Linux gives to sockets without one
ON_GPU = "on a GPU, "  # begins the reason of a case that passes on the CPU


# --- cases ----------------------------------------------------------------------------------------


def ask(path, program, arguments):
    """Have the server start a case; return when it has been started."""
    with socket.socket(socket.AF_UNIX) as to:
        to.connect(path)
        to.sendall(json.dumps([program, arguments, os.getcwd(), dict(os.environ)]).encode() + b"\n")
        while to.recv(4096):
            pass


def serve(path, results, jobs):
    """Run cases until the connection's other end asks for "stop"."""
    import click  # noqa: F401
    import dynamicemb_plugin  # noqa: F401
    import pytest  # noqa: F401
    import torch

    torch.set_num_threads(1)
    ports = reserve_ports()
    # The tests make tables of gigabytes and touch few rows: use small pages, so that memory is zeroed for these only.
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
    running = {}  # the save path of each process that runs a case
    left_out = set()  # paths that cases with too many ranks would have written
    with socket.socket(socket.AF_UNIX) as at:
        at.bind(path)
        at.listen()
        while True:
            with at.accept()[0] as connection, connection.makefile() as lines:
                program, arguments, folder, environment = json.loads(lines.readline())
                if program == "stop":
                    while running:
                        running.pop(os.wait()[0])
                    return
                os.chdir(folder)
                os.environ.update(environment)
                program, ranks, arguments = parsed(program, arguments)
                save = dict(zip(arguments, arguments[1:])).get("--save-path")
                if ranks > int(os.environ.get("DYNAMICEMB_RANKS", ranks)) or save in left_out:
                    left_out.update([save] if save else [])
                    continue
                while len(running) >= int(jobs) or (save and save in running.values()):
                    running.pop(os.wait()[0])
                port = next(ports)
                child = os.fork()
                if child == 0:
                    lines.close()
                    connection.close()  # the other end waits for this
                    try:
                        found = run(program, ranks, arguments, port)
                    except BaseException as error:
                        found = [("failed", " ".join(arguments), repr(error))]
                    text = "".join("\t".join(case) + "\n" for case in found)
                    with open(results, "a") as file:
                        file.write(text)
                    print(text, end="", flush=True)
                    os._exit(0)
                running[child] = save


def reserve_ports():
    """Iterate over ports that no other server on this machine uses, while this process exists."""
    for first in range(PORTS.start, PORTS.stop, PORTS_EACH):
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0dynamicemb_runner.{first}")  # Linux frees such an address when its socket is closed
        except OSError:
            lock.close()
            continue
        while True:
            for port in range(first, first + PORTS_EACH):
                with socket.socket() as free, contextlib.suppress(OSError):
                    free.bind(("127.0.0.1", port))
                    free.close()
                    yield port
    raise RuntimeError(f"all ports of {PORTS} are reserved")


def parsed(program, arguments):
    """The program that a command line of torchrun or pytest runs, its number of ranks and its arguments."""
    ranks, arguments = 1, list(arguments)
    if program == "torchrun":
        while arguments and arguments[0].startswith("--"):
            name, _, value = arguments.pop(0).partition("=")
            value = value or arguments.pop(0)
            ranks = int(value) if name == "--nproc_per_node" else ranks
        if arguments[:2] == ["-m", "pytest"]:
            program, arguments = "pytest", arguments[2:]
    return program, ranks, arguments


def run(program, ranks, arguments, port):
    """Run a program on so many ranks, and give outcome, name and text of its tests."""
    script = next(a for a in arguments if a.endswith(".py"))
    with tempfile.TemporaryDirectory() as folder:
        codes = spawn(ranks, port, program, script, arguments[arguments.index(script) + 1 :], folder)
        logs = [pathlib.Path(folder, f"log.{rank}").read_text(errors="replace") for rank in range(ranks)]
        found = {}
        for path in pathlib.Path(folder).glob("results.*"):
            for line in path.read_text().splitlines():
                outcome, test, text = line.split("\t")
                if ORDER.index(outcome) >= ORDER.index(found.get(test, ("passed",))[0]):
                    found[test] = (outcome, text)
    for log, code in zip(logs, codes):
        if code != 0:
            print(*log.splitlines()[-LINES:], sep="\n", flush=True)
    where = os.path.relpath(script, "test") + (f" ({ranks} ranks)" if ranks > 1 else "")
    if program == "pytest" and found:
        return [(o, test.replace(".py", f".py ({ranks} ranks)", ranks > 1), text) for test, (o, text) in found.items()]
    name = " ".join([where, *arguments[arguments.index(script) + 1 :]])
    failed = [log for log, code in zip(logs, codes) if code != 0] or [log for log in logs if "mismatched" in log]
    if not failed:
        return [("passed", name, "")]
    lines = [line for line in failed[0].splitlines() if line.strip()] or [f"exit status {codes}, no output"]
    return [("failed", name, next((at for at in lines if "mismatched" in at), lines[-1]).replace("\t", " "))]


def spawn(ranks, port, program, script, options, folder):
    """Run a program in a process a rank, and give their exit codes."""
    left = {}
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(BaseException):
                code = be_rank(rank, ranks, port, program, script, options, folder)
            os._exit(code)
        left[child] = rank
    codes, deadline = [-1] * ranks, time.monotonic() + SECONDS
    while left:
        done, status = os.waitpid(-1, os.WNOHANG)
        if done in left:
            codes[left.pop(done)] = os.waitstatus_to_exitcode(status)
            if codes[-1] != 0 or any(c > 0 for c in codes):
                deadline = min(deadline, time.monotonic() + 30)  # the other ranks may wait for this one
        elif time.monotonic() > deadline:
            for child in left:
                os.kill(child, signal.SIGKILL)
        else:
            time.sleep(0.02)
    return codes


def be_rank(rank, ranks, port, program, script, options, folder):
    """Run the program in this process, which is a fork."""
    log = os.open(os.path.join(folder, f"log.{rank}"), os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    import random

    import dynamicemb_plugin
    import torch

    dynamicemb_plugin.start_rank(rank, ranks)
    random.seed(rank)
    torch.manual_seed(rank)
    try:
        if program == "pytest":
            import pytest
            from dynamicemb_plugin import Results

            quiet = [
                "-q",
                "-p",
                "no:cacheprovider",
                "-c",
                os.devnull,
                "-W",
                "ignore",
                "--tb=short",
                "--rootdir",
                "test",
            ]
            return int(pytest.main([*quiet, script], plugins=[Results(os.path.join(folder, f"results.{rank}"))]))
        sys.argv = [script, *options]
        sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


# --- results --------------------------------------------------------------------------------------


def known():
    """Patterns of test names and the reasons why they fail, in the order of the file."""
    found = []
    for line in KNOWN.read_text().splitlines():
        if line and not line.startswith("#"):
            pattern, _, reason = line.partition(" : ")
            found.append((pattern.strip(), reason.strip()))
    return found


def reason_of(test):
    """Why a test is known to fail; "" if it is not.  In patterns "*" is the only special character."""
    for pattern, reason in known():
        if fnmatch.fnmatchcase(test, pattern.replace("[", "[[]")):
            return reason
    return ""


def report(path):
    """Print counts by file, the reasons of failures, and failures without a reason; give the number of the latter."""
    files, reasons, new = {}, {}, []
    for line in pathlib.Path(path).read_text().splitlines():
        outcome, test, text = line.split("\t")
        counts = files.setdefault(test.split("::")[0].split(" ")[0], dict.fromkeys(ORDER, 0))
        counts[outcome] += 1
        if outcome == "passed" and reason_of(test) and not reason_of(test).startswith(ON_GPU):
            print(f"listed as failing, but it passed: {test}")
        elif outcome == "failed" and reason_of(test):
            reasons.setdefault(reason_of(test), []).append(test)
        elif outcome == "failed":
            new.append(f"{test}: {text}")
    print()
    for file, counts in files.items():
        print(f"{file}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    total = {key: sum(c[key] for c in files.values()) for key in ORDER}
    print(f"total: {total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    for reason, tests in reasons.items():
        print(f"  {len(tests)} failed as listed: {reason}")
    for text in new:
        print(f"  NOT LISTED: {text}")
    return len(new)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(*sys.argv[2:])
    elif sys.argv[1] == "ask":
        ask(sys.argv[2], sys.argv[3], sys.argv[4:])
    else:
        sys.exit(1 if report(sys.argv[2]) else 0)
