"""What a checkpoint has of a model beside its tables: all that ``state_dict()`` has, in the modules' own words."""

import collections
import enum
import io

import numpy as np
import pytest
import torch
from conftest import batch

import hotbed
import hotbed.torch as ht
from hotbed import checkpoint

ROWS, DIM = 20, 4

pytestmark = [pytest.mark.filterwarnings("ignore:.*was saved with seed"), pytest.mark.usefixtures("needs_hdf5")]
TABLES = [ht.EmbeddingBagConfig(ROWS, DIM, "t", feature_names=["f"])]


def collection(seed=0):
    return ht.EmbeddingBagCollection(TABLES, seed=seed)


class Scaled(ht.EmbeddingBagCollection):
    """A collection with a parameter, a buffer, a child and extra state of its own."""

    def __init__(self, seed=0):
        super().__init__(TABLES, seed=seed)
        torch.manual_seed(seed)
        self.top = torch.nn.Linear(DIM, 1)
        self.scale = torch.nn.Parameter(torch.rand(1))
        self.register_buffer("count", torch.rand(1))
        self.extra = seed

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state

    def forward(self, kjt):
        return self.top(super().forward(kjt).values()) * self.scale


class Around(torch.nn.Module):
    """A collection in a model whose other child has an attribute of a collection's name."""

    def __init__(self, seed=0, bags=Scaled):
        super().__init__()
        self.bags = bags(seed)
        self.last = torch.nn.Linear(1, 1)
        self.last.storages = []

    def forward(self, kjt):
        return self.last(self.bags(kjt))


def check_equal(found, wanted):
    found, wanted = found.state_dict(), wanted.state_dict()
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        assert torch.equal(torch.as_tensor(found[name]), torch.as_tensor(value)), name


# --- parts of collections ---------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Scaled, Around])
@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_subclass_adds_to_a_collection_is_saved(is_async, make, tmp_path):
    first, second = make(1), make(2)
    optimizers = [torch.optim.Adam(model.parameters()) for model in (first, second)]
    first(batch(["f"], 3, ROWS)).sum().backward()
    optimizers[0].step()
    if is_async:
        checkpoint.async_save(tmp_path / "c", first, optimizers[0]).wait()
    else:
        checkpoint.save(tmp_path / "c", first, optimizers[0])
    checkpoint.load(tmp_path / "c", second, optimizer=optimizers[1])
    check_equal(second, first)
    states = [optimizer.state_dict()["state"] for optimizer in optimizers]
    assert states[0].keys() == states[1].keys() and len(states[0]) > 0
    for number, values in states[0].items():
        assert all(torch.equal(states[1][number][name], value) for name, value in values.items())
    assert checkpoint.read(tmp_path / "c")["t"].weights.shape == (ROWS, DIM)


def test_a_collection_with_parts_loads_its_tables_alone(tmp_path):
    first, second = Around(1), Around(2)
    checkpoint.save(tmp_path / "c", first)
    scale = second.bags.scale.clone()
    with pytest.warns(UserWarning, match="c has the dense part of another model: .* only the tables are loaded"):
        checkpoint.load(tmp_path / "c", second.bags)
    assert torch.equal(second.bags.weight("t"), first.bags.weight("t"))
    assert torch.equal(second.bags.scale, scale)


# --- versions and hooks -----------------------------------------------------------------------------


class Tempered(torch.nn.Module):
    """Version 2, whose version 1 kept the logarithm of the temperature, under another name."""

    _version = 2

    def __init__(self, seed=0):
        super().__init__()
        self.bags = collection(seed)
        self.temperature = torch.nn.Parameter(torch.tensor([2.0 + seed]))

    def _load_from_state_dict(self, state, prefix, metadata, *more):
        if metadata.get("version") is None or metadata["version"] < 2:
            state[f"{prefix}temperature"] = state.pop(f"{prefix}logarithm").exp()
        super()._load_from_state_dict(state, prefix, metadata, *more)


class Logarithmic(torch.nn.Module):
    """Version 1 of ``Tempered``."""

    def __init__(self, seed=0):
        super().__init__()
        self.bags = collection(seed)
        self.logarithm = torch.nn.Parameter(torch.tensor([2.0 + seed]).log())


@pytest.mark.parametrize("old", [Tempered, Logarithmic])
def test_a_load_knows_the_version_of_each_module(old, tmp_path):
    checkpoint.save(tmp_path / "c", torch.nn.Sequential(old(1), torch.nn.BatchNorm1d(3)))
    model = torch.nn.Sequential(Tempered(), torch.nn.BatchNorm1d(3))
    checkpoint.load(tmp_path / "c", model)
    torch.testing.assert_close(model[0].temperature.data, torch.tensor([3.0]))


def test_layers_with_hooks_of_pytorch_are_loaded(tmp_path):
    def make(seed, inputs=None):
        torch.manual_seed(seed)
        layers = [torch.nn.LazyLinear(3), torch.nn.utils.spectral_norm(torch.nn.Linear(3, 3)), torch.nn.BatchNorm1d(3)]
        layers.append(torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 2)))
        model = torch.nn.ModuleDict({"bags": collection(seed), "layers": torch.nn.Sequential(*layers)})
        if inputs is not None:
            model["layers"](inputs)
        return model

    inputs = torch.rand(5, 4)
    first = make(1, inputs)
    checkpoint.save(tmp_path / "c", first)
    for second in (make(2), make(2, inputs)):  # the first one is lazy still
        checkpoint.load(tmp_path / "c", second)
        check_equal(second, first)
        assert torch.equal(second.eval()["layers"](inputs), first.eval()["layers"](inputs))


class Renamed(torch.nn.Linear):
    """A layer whose hooks rename its weight in state dicts, and that derives a value from what it loads."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.calls = []
        self.derived = self.weight.detach().clone()
        self.register_state_dict_pre_hook(lambda module, prefix, keep_vars: module.calls.append("before save"))
        self.register_state_dict_post_hook(self.renamed)
        self.register_load_state_dict_pre_hook(self.renamed_back)
        self.register_load_state_dict_post_hook(self.loaded)

    @staticmethod
    def renamed(module, state, prefix, metadata):
        module.calls.append("save")
        state[f"{prefix}old"] = state.pop(f"{prefix}weight")

    @staticmethod
    def renamed_back(module, state, prefix, *_):
        module.calls.append("load")
        state[f"{prefix}weight"] = state.pop(f"{prefix}old")

    @staticmethod
    def loaded(module, keys):
        module.calls.append("loaded")
        module.derived = module.weight.detach().clone()


class Outer(torch.nn.Module):
    """A model whose hook renames an entry of a child."""

    def __init__(self, seed=0, layer=Renamed):
        super().__init__()
        self.bags = collection(seed)
        torch.manual_seed(seed)
        self.layer = layer(3, 2)
        self.register_state_dict_post_hook(self.renamed)
        self._register_load_state_dict_pre_hook(self.renamed_back)

    @staticmethod
    def renamed(module, state, prefix, metadata):
        state[f"{prefix}offset"] = state.pop(f"{prefix}layer.bias")

    @staticmethod
    def renamed_back(state, prefix, *_):
        state[f"{prefix}layer.bias"] = state.pop(f"{prefix}offset")


def test_hooks_of_state_dicts_are_called(tmp_path):
    first, second = Outer(1), Outer(2)
    checkpoint.save(tmp_path / "c", first)
    assert first.layer.calls == ["before save", "save"]
    checkpoint.load(tmp_path / "c", second)
    assert second.layer.calls == ["before save", "save", "load", "loaded"]  # names are compared first
    check_equal(second, first)
    assert torch.equal(second.layer.derived, first.layer.weight)


def test_a_dense_part_of_other_names_is_refused_before_rows_are_loaded(tmp_path):
    checkpoint.save(tmp_path / "c", Outer(1, torch.nn.Linear))
    model = Outer(2)
    rows = model.bags.weight("t").clone()
    with pytest.raises(hotbed.StateError, match=r"missing there \['layer.old'\], missing here \['layer.weight'\]"):
        checkpoint.load(tmp_path / "c", model)
    assert torch.equal(model.bags.weight("t"), rows)


def test_a_hook_that_fails_is_named(tmp_path):
    def needs_rows(module, state, prefix, metadata):
        state.pop(f"{prefix}bags.embedding_bags.t.weight")

    model = Around()
    model.register_state_dict_post_hook(needs_rows)
    with pytest.raises(hotbed.UnsupportedError, match=r"of Around '' raised KeyError: .* without the entries"):
        checkpoint.save(tmp_path / "c", model)
    assert not (tmp_path / "c").exists()

    class Failing(torch.nn.Linear):
        def _load_from_state_dict(self, *arguments):
            raise KeyError("weight")

    checkpoint.save(tmp_path / "c", Outer(1, torch.nn.Linear))
    with pytest.raises(hotbed.StateError, match=r"the rows were loaded, but Failing 'layer' .* raised KeyError"):
        checkpoint.load(tmp_path / "c", Outer(2, Failing))


class Counting(torch.nn.Module):
    """A module with an entry that its own ``state_dict()`` adds, as torchmetrics' metrics do."""

    def __init__(self, seed=0):
        super().__init__()
        self.count = seed
        self.inner = torch.nn.Linear(1, 1)

    def state_dict(self, *arguments, destination=None, prefix="", keep_vars=False):
        found = super().state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
        found[f"{prefix}count"] = self.count
        return found

    def _load_from_state_dict(self, state, prefix, *more):
        self.count = state.pop(f"{prefix}count")
        super()._load_from_state_dict(state, prefix, *more)


def test_a_modules_own_state_dict_is_called(tmp_path):
    first, second = (torch.nn.ModuleDict({"bags": collection(s), "metric": Counting(s)}) for s in (1, 2))
    checkpoint.save(tmp_path / "c", first)
    checkpoint.load(tmp_path / "c", second)
    assert second["metric"].count == 1
    check_equal(second, first)

    class Less(Counting):
        def state_dict(self, *arguments, **named):
            found = super().state_dict(*arguments, **named)
            del found[f"{named.get('prefix', '')}inner.bias"]
            return found

        def _load_from_state_dict(self, state, prefix, *more):
            state[f"{prefix}inner.bias"] = torch.zeros(1)
            super()._load_from_state_dict(state, prefix, *more)

    class Tables(Counting):
        def __init__(self):
            super().__init__()
            self.bags = collection()

    less = torch.nn.ModuleDict({"bags": collection(), "metric": Less(1)})
    checkpoint.save(tmp_path / "d", less)
    less["metric"].count = 2
    checkpoint.load(tmp_path / "d", less)
    assert less["metric"].count == 1 and less["metric"].inner.bias == 0
    with pytest.raises(hotbed.UnsupportedError, match=r"Tables 'inner' overrides state_dict\(\), and has tables"):
        checkpoint.save(tmp_path / "e", torch.nn.ModuleDict({"inner": Tables()}))


@pytest.mark.parametrize("method", ["state_dict", "load_state_dict"])
def test_a_state_dict_of_the_models_own_is_refused(method, tmp_path):
    def own(self, *arguments, **named):
        return getattr(torch.nn.Module, method)(self, *arguments, **named)

    model = type("Own", (Around,), {method: own})()
    with pytest.raises(hotbed.UnsupportedError, match=rf"^Own overrides {method}\(\)"):
        checkpoint.save(tmp_path / "c", model)
    checkpoint.save(tmp_path / "c", Around())
    with pytest.raises(hotbed.UnsupportedError, match=rf"^Own overrides {method}\(\)"):
        checkpoint.load(tmp_path / "c", model)


# --- types that torch.load() refuses ----------------------------------------------------------------


class Extra(torch.nn.Module):
    """A model with extra state."""

    def __init__(self, extra):
        super().__init__()
        self.bags = collection()
        self.inner = torch.nn.Linear(1, 1)
        self.extra = extra

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state


class Color(enum.Enum):
    RED = 1


@pytest.mark.parametrize("value", [np.arange(3), Color.RED, collections.deque([1]), np.float64(3.0), lambda: 0])
def test_what_could_not_be_loaded_is_not_saved(value, tmp_path):
    model = torch.nn.ModuleDict({"part": Extra({"value": [value]})})
    for save in (checkpoint.save, checkpoint.async_save):
        with pytest.raises(hotbed.ArgumentError, match=r"'part\._extra_state' cannot be loaded again") as raised:
            save(tmp_path / "c", model)
        assert raised.value.parameter == "part._extra_state"
    assert list(tmp_path.iterdir()) == []


def test_numbers_of_numpy_in_an_optimizer_are_saved(tmp_path):
    first, second = Extra(1), Extra(2)
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.1) for model in (first, second)]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizers[0], lambda step: np.cos(step))
    first.inner(torch.ones(1, 1)).sum().backward()
    optimizers[0].step()
    schedule.step()
    assert isinstance(optimizers[0].param_groups[0]["lr"], np.float64)
    checkpoint.save(tmp_path / "c", first, optimizers[0])
    checkpoint.load(tmp_path / "c", second, optimizer=optimizers[1])
    assert type(optimizers[1].param_groups[0]["lr"]) is float
    assert optimizers[1].param_groups[0]["lr"] == 0.1 * np.cos(1)


def test_a_dense_part_that_is_not_loaded_is_an_error(tmp_path, monkeypatch):
    def pack(state):
        file = io.BytesIO()
        torch.save(state, file)
        return file.getvalue()

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_pack", pack)  # as in a process with add_safe_globals()
        checkpoint.save(tmp_path / "c", Extra(Color.RED))
    model = Extra(0)
    with pytest.raises(hotbed.StateError, match=r"c: the dense part is not loaded: GLOBAL .*add_safe_globals\(\)"):
        checkpoint.load(tmp_path / "c", model)
    model.bags = Scaled()
    with pytest.warns(UserWarning, match="only the tables are loaded"):
        checkpoint.load(tmp_path / "c", model.bags)
