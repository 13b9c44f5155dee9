"""Makes dynamicemb's unit tests run over hotbed.compat.dynamicemb; imported by dynamicemb_runner.py.

``import dynamicemb`` means this package.  Without a GPU, or with a library that was built without CUDA, CUDA devices
are the CPU, streams and synchronization do nothing, and ``nccl`` is ``gloo``.  Two things of FBGEMM are replaced there:
``SplitTableBatchedEmbeddingBagsCodegen``, which tests compare with, by a reference in plain PyTorch; and Adam of
TorchRec's own tables, which FBGEMM does not have on the CPU, by SGD: no test trains such a table with Adam.

With GPUs, nothing is replaced in tests of as many ranks.  In tests of more ranks, all CUDA devices are the first one,
``nccl`` is ``gloo``, since NCCL refuses two ranks on one GPU, and collective calls go through the CPU's memory.
"""

import copyreg
import gc
import os
import subprocess
import sys
import types

import torch
from torch.overrides import TorchFunctionMode

import hotbed
import hotbed.compat.dynamicemb


def _gpus():
    """The number of GPUs that can be used; another process asks the driver, which then cannot be used after a fork."""
    ask = "import hotbed, torch; print(torch.cuda.device_count() if 'cuda' in hotbed.backends() else 0)"
    return int(subprocess.run([sys.executable, "-c", ask], check=True, stdout=subprocess.PIPE).stdout)


GPUS = _gpus()
DEVICE = "cuda:0" if GPUS else "cpu"  # what every CUDA device is, where devices are replaced


class _Devices(TorchFunctionMode):
    """Replaces CUDA devices in the arguments of PyTorch's functions."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.cuda:
            return args[0].to(_DeviceType.real(DEVICE))
        if not kwargs:
            return function(*([_replaced(a) for a in args] if function is torch.Tensor.to else args))
        if isinstance(kwargs.get("device"), int):
            kwargs["device"] = DEVICE
        return function(*[_replaced(a) for a in args], **{k: _replaced(v) for k, v in kwargs.items()})


def _replaced(value):
    if isinstance(value, torch.device) and value.type == "cuda":
        return _DeviceType.real(DEVICE)
    return DEVICE if isinstance(value, str) and value.startswith("cuda") else value


class _DeviceType(type):
    """The type of ``torch.device`` below."""

    real = torch.device

    def __call__(cls, *args, **kwargs):
        device = cls.real(*args, **kwargs)
        return cls.real(DEVICE) if device.type == "cuda" else device

    def __instancecheck__(cls, instance):
        return isinstance(instance, cls.real)


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


def _without_pinning(init):
    def call(self, *args, **kwargs):
        init(self, *args, **{**kwargs, "pin_memory": False})

    return call


def _without_adam(tables):
    """Give a class of FBGEMM's tables that takes Adam and uses SGD."""

    class Tables(tables):
        def __init__(self, *args, **kwargs):
            optimizer = kwargs.get("optimizer")
            if getattr(optimizer, "name", "") == "ADAM":
                kwargs["optimizer"] = type(optimizer).EXACT_SGD
            super().__init__(*args, **kwargs)

    return Tables


def _run_on_cpu():
    from fbgemm_gpu import split_table_batched_embeddings_ops_training as ops
    from torchrec.distributed import batched_embedding_kernel as kernel

    kernel.SplitTableBatchedEmbeddingBagsCodegen = _without_adam(kernel.SplitTableBatchedEmbeddingBagsCodegen)
    cuda = torch.cuda
    cuda.is_available = lambda: True
    cuda.current_device = lambda: 0
    cuda.device_count = lambda: 1
    torch.optim.Optimizer._accelerator_graph_capture_health_check = lambda _: None
    torch.utils.data.DataLoader.__init__ = _without_pinning(torch.utils.data.DataLoader.__init__)
    cuda.get_device_name = lambda *_: "H200"  # their tests refuse a name that they do not know
    for name in ("synchronize", "set_device", "manual_seed", "manual_seed_all", "empty_cache"):
        setattr(cuda, name, lambda *_: None)
    cuda.Stream = _Stream
    cuda.current_stream = lambda *_: _Stream()
    cuda.stream = lambda stream: stream
    _replace_devices()
    copy = types.ModuleType(ops.__name__)  # what tests import; functions of FBGEMM still find its own class
    vars(copy).update(vars(ops), SplitTableBatchedEmbeddingBagsCodegen=Reference)
    sys.modules[ops.__name__] = copy


def _replace_devices():
    torch.device = _DeviceType("device", (), {"__module__": "torch"})
    copyreg.pickle(_DeviceType.real, lambda device: (torch.device, (str(device),)))
    torch.distributed.init_process_group = _gloo(torch.distributed.init_process_group)
    barrier = torch.distributed.barrier
    torch.distributed.barrier = lambda group=None, **_: barrier(group=group)
    _Devices().__enter__()


COLLECTIVES = (
    "all_to_all_single",
    "all_to_all",
    "all_gather",
    "all_gather_into_tensor",
    "_all_gather_base",
    "all_reduce",
)
COLLECTIVES += ("broadcast", "gather", "reduce", "reduce_scatter", "reduce_scatter_tensor", "_reduce_scatter_base")


def _through_cpu(collective):
    """A collective call on copies of its GPU tensors in the CPU's memory."""

    def call(*args, **kwargs):
        copies = []

        def copied(value):
            if isinstance(value, (list, tuple)):
                return type(value)(copied(v) for v in value)
            if not isinstance(value, torch.Tensor) or not value.is_cuda:
                return value
            copies.append((value, value.detach().to("cpu")))
            return copies[-1][1]

        work = collective(*[copied(a) for a in args], **{k: copied(v) for k, v in kwargs.items()})
        if work is not None:
            work.wait()
        for given, copy in copies:
            given.detach().copy_(copy)
        return work

    return call


def _share_gpu():
    torch.cuda.set_device(0)
    synchronize = torch.cuda.synchronize
    torch.cuda.synchronize = lambda *_: synchronize()
    torch.cuda.set_device = lambda *_: None
    for name in COLLECTIVES:
        setattr(torch.distributed, name, _through_cpu(getattr(torch.distributed, name)))
    _replace_devices()


def _at_own_port(init):
    """Replace the port that a test chose by the runner's, so that tests can run side by side."""

    def call(*args, init_method=None, **kwargs):
        if init_method is not None and init_method.startswith("tcp://127.0.0.1:"):
            init_method = f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
        return init(*args, init_method=init_method, **kwargs)

    return call


def start_rank(rank, ranks):
    """Prepare this process, which is a fork, for a test's rank."""
    torch.distributed.init_process_group = _at_own_port(torch.distributed.init_process_group)
    if GPUS == 0:
        torch.cuda.current_device = lambda: rank
    elif ranks > GPUS:
        _share_gpu()


hotbed.compat.dynamicemb.install()
if GPUS == 0:
    _run_on_cpu()


class Results:
    """Writes the result of each test to a file when the session ends: a line of outcome, test and text.

    A test's outcome is the worst outcome of its phases.
    """

    def __init__(self, path):
        self.path, self.worst = path, {}

    def pytest_runtest_logreport(self, report):
        order = ("passed", "skipped", "failed")
        before = self.worst.get(report.nodeid, ("passed", ""))
        if order.index(report.outcome) > order.index(before[0]):
            crash = getattr(report.longrepr, "reprcrash", None)
            self.worst[report.nodeid] = (report.outcome, str(crash or report.longrepr).splitlines()[0])
        else:
            self.worst[report.nodeid] = before

    def pytest_runtest_logfinish(self):
        gc.collect()  # models are in reference cycles, and their rows take gigabytes

    def pytest_collectreport(self, report):
        if report.failed:
            self.worst[report.nodeid] = ("failed", str(report.longrepr).splitlines()[-1])

    def pytest_sessionfinish(self):
        with open(self.path, "w") as file:
            for test, (outcome, text) in self.worst.items():
                file.write("\t".join((outcome, test, text.replace("\t", " "))) + "\n")
