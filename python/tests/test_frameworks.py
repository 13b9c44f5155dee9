"""Lightning, Accelerate and safetensors over tables, on one rank and on two.

Run as a program, this file is Lightning's first rank: ``test_frameworks.py FOLDER``.
"""

import os
import subprocess
import sys

import pytest
import torch
from conftest import run_ranks

import hotbed
import hotbed.torch as ht

DIM, SAMPLES = 4, 8
MOST = ht.ShardedOptions(max_batch_size=SAMPLES, max_keys=200)


def batch(seed):
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 5, (2 * SAMPLES,), generator=random)
    keys = torch.randint(0, 40, (int(lengths.sum()),), generator=random)
    return ht.KeyedJaggedTensor(["s", "h"], keys, lengths=lengths)


class Model(torch.nn.Module):
    """A static and a hash table, and a dense part."""

    def __init__(self, comm=None, seed=1):
        super().__init__()
        tables = [
            ht.EmbeddingBagConfig(41, DIM, "s", feature_names=["s"]),
            ht.EmbeddingBagConfig(200, DIM, "h", feature_names=["h"], use_virtual_table=True),
        ]
        self.bags = ht.EmbeddingBagCollection(
            tables, optimizer=ht.Adam(lr=0.1), seed=seed, comm=comm, sharded=comm and MOST
        )
        self.top = torch.nn.Linear(2 * DIM, 1)

    def forward(self, kjt):
        return self.top(self.bags(kjt).values()).sum()


def rows(state, prefix=""):
    """The rows of a state dict by table and key."""
    found = {("s", key): row.tolist() for key, row in enumerate(state[f"{prefix}bags.embedding_bags.s.weight"])}
    ids, weight = (state[f"{prefix}bags.embedding_bags.h.{part}"] for part in ("weight_id", "weight"))
    found.update({("h", key): row for key, row in zip(ids.tolist(), weight.tolist())})
    return {**found, "top": state[f"{prefix}top.weight"].tolist()}


# --- Lightning --------------------------------------------------------------------------------------


def lightning_module(gathers):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = None

        def configure_model(self):
            if self.model is None:
                world = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
                self.model = Model(hotbed.Comm.from_group() if world > 1 else None)

        def training_step(self, kjt, index):
            return self.model(kjt)

        def configure_optimizers(self):
            return torch.optim.SGD(self.model.top.parameters(), lr=0.1)

        def transfer_batch_to_device(self, kjt, device, index):
            return kjt

        def on_save_checkpoint(self, checkpoint):
            if gathers:
                checkpoint["state_dict"] = ht.full_state_dict(self)
                checkpoint["tables"] = ht.full_state_dict(self.model.bags.fused_optimizer)

        def on_load_checkpoint(self, checkpoint):
            if gathers:
                self.model.bags.fused_optimizer.load_state_dict(checkpoint["tables"])

    return Module()


class Batches(torch.utils.data.IterableDataset):
    def __iter__(self):
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        return iter([batch(2 * step + rank) for step in range(3)])


def lightning_trainer(folder, **more):
    import lightning

    saves = lightning.pytorch.callbacks.ModelCheckpoint(folder, filename="model")
    return lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        callbacks=[saves],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **more,
    )


def fit(trainer, module, **more):
    trainer.fit(module, torch.utils.data.DataLoader(Batches(), batch_size=None), **more)


def lightning_ddp(folder):
    trainer = lightning_trainer(folder, devices=2, strategy="ddp")
    module = lightning_module(gathers=True)
    fit(trainer, module)
    full = ht.full_state_dict(module)
    if trainer.global_rank == 0:
        torch.save(full, f"{folder}/full")
    again = lightning_module(gathers=True)
    fit(lightning_trainer(f"{folder}/again", devices=2, strategy="ddp"), again, ckpt_path=f"{folder}/model.ckpt")
    assert rows(ht.full_state_dict(again), "model.") == rows(full, "model.")  # all epochs were over
    share = {"state_dict": module.state_dict()}  # what Lightning saves without the hook
    with pytest.raises(hotbed.UnsupportedError, match="chunk of the rows, one of 2"):
        trainer.strategy.checkpoint_io.save_checkpoint(share, f"{folder}/share.ckpt")
    trainer.strategy.barrier()


def test_lightning_on_one_rank(tmp_path):
    pytest.importorskip("lightning")
    module = lightning_module(gathers=False)
    fit(lightning_trainer(tmp_path), module)
    saved = torch.load(tmp_path / "model.ckpt", weights_only=False)
    assert rows(saved["state_dict"], "model.") == rows(module.state_dict(), "model.")
    again = lightning_module(gathers=False)
    fit(lightning_trainer(tmp_path / "again"), again, ckpt_path=tmp_path / "model.ckpt")
    assert rows(again.state_dict(), "model.") == rows(module.state_dict(), "model.")


def test_lightning_on_two_ranks(tmp_path):
    pytest.importorskip("lightning")
    environment = {name: value for name, value in os.environ.items() if "pytest" not in name.lower()}
    run = subprocess.run([sys.executable, __file__, str(tmp_path)], capture_output=True, env=environment)
    assert run.returncode == 0, run.stderr.decode()[-5000:]
    saved, full = torch.load(tmp_path / "model.ckpt", weights_only=False), torch.load(tmp_path / "full")
    assert rows(saved["state_dict"], "model.") == rows(full, "model.")
    assert len(saved["state_dict"]["model.bags.embedding_bags.h.weight_id"]) > 20
    one = lightning_module(gathers=True)
    one.configure_model()
    one.load_state_dict(saved["state_dict"])
    one.on_load_checkpoint(saved)
    assert rows(one.state_dict(), "model.") == rows(full, "model.")


# --- Accelerate -------------------------------------------------------------------------------------


def accelerated(accelerator, comm=None):
    model = Model(comm)
    return model, accelerator.prepare(model)


def gather(models, weights, folder):
    weights[:] = [ht.full_state_dict(model) for model in models]


def accelerate_two(folder, rank, world):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    comm = hotbed.Comm.from_group()
    model, wrapped = accelerated(accelerator, comm)
    for step in range(3):
        accelerator.backward(wrapped(batch(2 * step + comm.rank)))
    for safe in (True, False):  # safetensors on each rank, and torch.save() on the first
        try:
            accelerator.save_state(f"{folder}/share", safe_serialization=safe)
            raised = False
        except RuntimeError:
            raised = True
        assert raised == (safe or accelerator.is_main_process)
    accelerator.register_save_state_pre_hook(gather)
    accelerator.save_state(f"{folder}/safe")
    accelerator.save_state(f"{folder}/all", safe_serialization=False)
    full = ht.full_state_dict(model)
    if accelerator.is_main_process:
        torch.save(full, f"{folder}/full")
    with torch.no_grad():
        model.top.weight.zero_()
    model.bags.set_rows("h", torch.arange(200, 220), torch.ones(20, DIM))
    accelerator.wait_for_everyone()
    accelerator.load_state(f"{folder}/all")  # safetensors' load_model() needs tensors with memory in the model
    assert rows(ht.full_state_dict(model)) == rows(full)
    accelerator.end_training()


def test_accelerate_on_one_rank(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model, wrapped = accelerated(accelerator)
    accelerator.backward(wrapped(batch(1)))
    want = rows(model.state_dict())
    for safe in (True, False):
        accelerator.save_state(tmp_path / str(safe), safe_serialization=safe)
        model.bags.set_rows("h", torch.arange(200, 220), torch.ones(20, DIM))
        accelerator.load_state(tmp_path / str(safe))
        assert rows(model.state_dict()) == want
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def test_accelerate_on_two_ranks(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    run_ranks(tmp_path, 2, accelerate_two, tmp_path)
    full = torch.load(tmp_path / "full")
    accelerator = accelerate.Accelerator(cpu=True)  # one rank
    for kind in ("safe", "all"):
        model, _ = accelerated(accelerator)
        accelerator.load_state(tmp_path / kind)
        assert rows(model.state_dict()) == rows(full)
        accelerator.free_memory()
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


# --- safetensors ------------------------------------------------------------------------------------


def test_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    model, again = Model(), Model(seed=2)
    model(batch(1)).backward()
    safetensors.save_file(model.state_dict(), tmp_path / "file")
    again.load_state_dict(safetensors.load_file(tmp_path / "file"))
    assert rows(again.state_dict()) == rows(model.state_dict())
    model(batch(2)).backward()
    safetensors.save_model(model, str(tmp_path / "model"))
    safetensors.load_model(again, tmp_path / "model")
    assert rows(again.state_dict()) == rows(model.state_dict())


if __name__ == "__main__":
    torch.set_num_threads(1)
    lightning_ddp(sys.argv[1])
