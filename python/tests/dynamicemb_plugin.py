"""A pytest plugin that runs dynamicemb's unit tests over hotbed.compat.dynamicemb; see tools/dynamicemb_tests.sh.

It makes ``import dynamicemb`` mean this package.  Without a GPU, or with a library that was built without CUDA, tensors
of CUDA devices are made on the CPU, streams and synchronization do nothing, ``nccl`` is ``gloo``, and FBGEMM's
``SplitTableBatchedEmbeddingBagsCodegen``, which the tests compare with, is replaced by a reference in plain PyTorch.
"""

import fnmatch
import os
import pathlib
import runpy
import subprocess
import sys

import torch
from torch.overrides import TorchFunctionMode

import hotbed
import hotbed.compat.dynamicemb

KNOWN = pathlib.Path(__file__).with_name("dynamicemb_known.txt")
ON_CPU = "cuda" not in hotbed.backends() or not torch.cuda.is_available()


class _Cpu(TorchFunctionMode):
    """Replaces CUDA devices in the arguments of PyTorch's functions."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if getattr(function, "__name__", "") == "cuda":
            return args[0]
        if isinstance(kwargs.get("device"), int):
            kwargs["device"] = "cpu"
        return function(*[_to_cpu(a) for a in args], **{k: _to_cpu(v) for k, v in kwargs.items()})


def _to_cpu(value):
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return "cpu" if isinstance(value, str) and value.startswith("cuda") else value


class _Stream:
    """A stream that does nothing."""

    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def wait_stream(self, _):
        return None

    synchronize = record_event = wait_event = wait_stream


def _gloo(init):
    def call(backend=None, *args, **kwargs):
        return init("gloo", *args, **kwargs)

    return call


class Reference(torch.nn.Module):
    """FBGEMM's batched tables: sums, means and rows of static tables, with the optimizer in the backward."""

    def __init__(self, specs, optimizer, pooling_mode, table_names, feature_table_map, **options):
        super().__init__()
        self.tables = [torch.zeros(rows, dim) for rows, dim, *_ in specs]
        self.feature_table_map = feature_table_map
        self.rows_per_table = torch.tensor([specs[t][0] for t in feature_table_map])
        self.kind, self.pooling = optimizer.value, pooling_mode.name
        defaults = {"learning_rate": 0.01, "eps": 1e-8, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0}
        self.options = {k: options.get(k, v) for k, v in defaults.items()}
        self.states = [[torch.zeros_like(t), torch.zeros_like(t)] for t in self.tables]
        self.step = 0

    def split_embedding_weights(self):
        return self.tables

    def init_embedding_weights_uniform(self, lower, upper):
        for table in self.tables:
            table.uniform_(lower, upper)

    def forward(self, indices, offsets):
        batch = (offsets.numel() - 1) // len(self.feature_table_map)
        bounds, lengths = offsets[::batch].tolist(), offsets[1:] - offsets[:-1]
        used = []  # rows of each feature, as leaves
        for f, t in enumerate(self.feature_table_map):
            keys = indices[bounds[f] : bounds[f + 1]]
            used.append((t, keys, self.tables[t][keys].clone().requires_grad_()))
        parts = []
        for f, (t, _, rows) in enumerate(used):
            if self.pooling == "NONE":
                parts.append(rows)
                continue
            sizes = lengths[f * batch : (f + 1) * batch]
            bags = torch.repeat_interleave(torch.arange(batch), sizes)
            pooled = torch.zeros(batch, self.tables[t].shape[1]).index_add(0, bags, rows)
            parts.append(pooled / sizes.clamp(min=1).unsqueeze(1) if self.pooling == "MEAN" else pooled)
        out = torch.cat(parts, dim=0 if self.pooling == "NONE" else 1)

        def update(gradients):
            self._update([(t, k, rows * 0 if g is None else g) for (t, k, rows), g in zip(used, gradients)])

        torch.autograd.graph.register_multi_grad_hook([rows for _, _, rows in used], update)
        return out

    @torch.no_grad()
    def _update(self, gradients):
        self.step += 1
        o = self.options
        for t, table in enumerate(self.tables):
            mine = [(keys, g) for at, keys, g in gradients if at == t]
            keys = torch.cat([k for k, _ in mine])
            if keys.numel() == 0:
                continue
            unique, inverse = torch.unique(keys, return_inverse=True)
            g = torch.zeros(unique.numel(), table.shape[1]).index_add(0, inverse, torch.cat([g for _, g in mine]))
            w, (m, v) = table[unique], self.states[t]
            if self.kind == "adam":
                m[unique] = o["beta1"] * m[unique] + (1 - o["beta1"]) * g
                v[unique] = o["beta2"] * v[unique] + (1 - o["beta2"]) * g * g
                mean = m[unique] / (1 - o["beta1"] ** self.step)
                root = (v[unique] / (1 - o["beta2"] ** self.step)).sqrt()
                step = mean / (root + o["eps"]) + o["weight_decay"] * w
            elif self.kind == "exact_adagrad":
                m[unique] += g * g
                step = g / (m[unique].sqrt() + o["eps"])
            elif self.kind == "exact_row_wise_adagrad":
                m[unique] += (g * g).mean(dim=1, keepdim=True)
                step = g / (m[unique].sqrt() + o["eps"])
            else:
                step = g
            table[unique] = w - o["learning_rate"] * step


def _run_on_cpu():
    from fbgemm_gpu import split_table_batched_embeddings_ops_training as ops

    cuda = torch.cuda
    cuda.is_available = lambda: True
    cuda.current_device = lambda: 0
    cuda.device_count = lambda: 1
    cuda.get_device_name = lambda *_: "H200"  # their tests refuse a name that they do not know
    for name in ("synchronize", "set_device", "manual_seed", "manual_seed_all", "empty_cache"):
        setattr(cuda, name, lambda *_: None)
    cuda.Stream = _Stream
    cuda.current_stream = lambda *_: _Stream()
    cuda.stream = lambda stream: stream
    torch.distributed.init_process_group = _gloo(torch.distributed.init_process_group)
    barrier = torch.distributed.barrier
    torch.distributed.barrier = lambda group=None, **_: barrier(group=group)
    _Cpu().__enter__()
    ops.SplitTableBatchedEmbeddingBagsCodegen = Reference


if __name__ != "__main__" or sys.argv[1] == "--script":
    hotbed.compat.dynamicemb.install()
    if ON_CPU:
        _run_on_cpu()


# --- results --------------------------------------------------------------------------------------


def known():
    """Patterns of test ids and the reasons why they fail, in the order of the file."""
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


def record(test, outcome, text):
    """Append a result to the file that the environment names."""
    path = os.environ.get("HOTBED_DYNAMICEMB_RESULTS")
    if path:
        with open(path, "a") as file:
            file.write("\t".join((outcome, test, text.replace("\t", " "))) + "\n")


class _Results:
    """Records the result of each test, which is its worst phase's."""

    def __init__(self):
        self.worst = {}

    def pytest_runtest_logreport(self, report):
        order = ("passed", "skipped", "failed")
        before = self.worst.get(report.nodeid, ("passed", ""))
        if order.index(report.outcome) > order.index(before[0]):
            crash = getattr(report.longrepr, "reprcrash", None)
            self.worst[report.nodeid] = (report.outcome, str(crash or report.longrepr).splitlines()[0])
        else:
            self.worst[report.nodeid] = before

    def pytest_collectreport(self, report):
        if report.failed:
            self.worst[report.nodeid] = ("failed", str(report.longrepr).splitlines()[-1])

    def pytest_sessionfinish(self):
        for test, (outcome, text) in self.worst.items():
            record(test, outcome, text)


def pytest_configure(config):
    config.pluginmanager.register(_Results(), "dynamicemb-results")


def report(path):
    """Print passed, failed and skipped by file, the reasons of failures, and failures without one; give their number."""
    files, reasons, new = {}, {}, []
    for line in pathlib.Path(path).read_text().splitlines():
        outcome, test, text = line.split("\t")
        counts = files.setdefault(test.split("::")[0].split(" ")[0], {"passed": 0, "failed": 0, "skipped": 0})
        counts[outcome] += 1
        if outcome == "failed" and reason_of(test):
            reasons.setdefault(reason_of(test), []).append(test)
        elif outcome == "failed":
            new.append(f"{test}: {text}")
    print()
    for file, counts in files.items():
        print(f"{file}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    total = {key: sum(c[key] for c in files.values()) for key in ("passed", "failed", "skipped")}
    print(f"total: {total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    for reason, tests in reasons.items():
        print(f"  {len(tests)} failed as listed: {reason}")
    for text in new:
        print(f"  NOT LISTED: {text}")
    return len(new)


# --- their scripts --------------------------------------------------------------------------------


def case(arguments):
    """Run a script as ``torchrun`` would, and record the result; the arguments are those of ``torchrun``.

    After a failure of a script whose reason begins with "needs", its further cases count as failed without a run.
    """
    at = next(i for i, a in enumerate(arguments) if a.endswith(".py"))
    script, options = arguments[at], arguments[at + 1 :]
    test = " ".join([os.path.relpath(script, "test"), *options])
    reason = reason_of(test)
    log = pathlib.Path(os.environ["HOTBED_DYNAMICEMB_RESULTS"])
    if reason.startswith("needs") and any(
        line.startswith(f"failed\t{test.split(' ')[0]} ")
        for line in (log.read_text() if log.exists() else "").splitlines()
    ):
        record(test, "failed", "not run")
        return
    text = " ".join(arguments[:at]).replace("=", " ")
    ranks = int(text.split("--nproc_per_node ")[1].split()[0]) if "--nproc_per_node " in text else 1
    port = str(20000 + os.getpid() % 20000)
    running = []
    for rank in range(ranks):
        environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
        environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        command = [sys.executable, __file__, "--script", script, *options]
        running.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        )
    errors = [process.communicate()[1] for process in running]
    failed = [e.strip().splitlines() for p, e in zip(running, errors) if p.returncode != 0]
    record(test, "failed" if failed else "passed", (failed[0] or ["no output"])[-1] if failed else "")


def run_script(path, options):
    """Run one of their scripts in this process."""
    sys.argv = [path, *options]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    runpy.run_path(path, run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1] == "--report":
        sys.exit(1 if report(sys.argv[2]) else 0)
    elif sys.argv[1] == "--case":
        case(sys.argv[2:])
    else:
        run_script(sys.argv[2], sys.argv[3:])
