"""Rows by key from Python: a key twice, erasing, expiry."""

import pytest
import torch
from test_sharded import on_threads, well

import hotbed
import hotbed.torch as ht

ROWS, DIM = 1000, 4


def collection(hashed=True, **more):
    config = ht.EmbeddingConfig(ROWS, DIM, "t", feature_names=["f"], use_virtual_table=hashed)
    return ht.EmbeddingCollection([config], optimizer=ht.Adam(lr=0.1), **more)


def each(n):
    """``n`` rows, each of one number."""
    return torch.arange(1.0, n + 1)[:, None].expand(n, DIM).contiguous()


# --- a key twice --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fill", [False, True])
@pytest.mark.parametrize("hashed", [False, True])
def test_a_key_twice_sets_nothing(hashed, fill):
    made = collection(hashed)
    keys = torch.arange(600)
    keys[[400, 500]] = 20
    before = made.rows("t", keys)
    with pytest.raises(hotbed.ArgumentError, match="table 't': key 20 occurs twice, at positions 20 and 400; nothing"):
        made.set_rows("t", keys, each(600), fill=fill)
    assert torch.equal(made.rows("t", keys), before)
    made.set_rows("t", keys[:400], each(400), fill=fill)
    assert torch.equal(made.rows("t", keys[:400]), each(400))


def test_a_state_dict_with_a_key_twice_changes_nothing():
    made = collection()
    made.set_rows("t", torch.tensor([3, 5, 7]), each(3))
    before = {name: part.clone() for name, part in made.state_dict().items()}
    given = {"weight": each(4), "weight_id": torch.tensor([3, 5, 5, 7]), "metadata": torch.arange(4)}
    with pytest.raises(RuntimeError, match="key 5 occurs twice, at positions 1 and 2"):
        made.load_state_dict({f"embeddings.t.{name}": part for name, part in given.items()})
    after = made.state_dict()
    assert all(torch.equal(after[name], part) for name, part in before.items())


def test_optimizer_states_with_a_key_twice_change_nothing():
    made = collection()
    made.set_rows("t", torch.tensor([3, 5]), each(2))
    saved = made.fused_optimizer.state_dict()
    states = saved["state"]["t"]
    states.update(keys=torch.tensor([3, 5, 5]), exp_avg=each(3), exp_avg_sq=each(3))
    with pytest.raises(hotbed.ArgumentError, match="key 5 occurs twice, at positions 1 and 2"):
        made.fused_optimizer.load_state_dict(saved)
    assert not made.fused_optimizer.state_dict()["state"]["t"]["exp_avg"].any()


def test_ranks_name_the_positions_of_the_callers_keys():
    most = ht.ShardedOptions(max_batch_size=4, max_keys=16)

    def body(comm):
        made = collection(comm=comm, sharded=most)
        keys = torch.arange(40)
        keys[30] = 9
        with pytest.raises(hotbed.ArgumentError, match="key 9 occurs twice, at positions 9 and 30"):
            made.set_rows("t", keys, each(40))
        return len(made.keys("t"))

    assert well(on_threads(body)) == [0, 0]


# --- erase --------------------------------------------------------------------------------------------


def lookup(made, keys):
    kjt = ht.KeyedJaggedTensor(["f"], keys, lengths=torch.ones(keys.shape[0], dtype=torch.int64))
    return made(kjt)["f"].values()


def test_erased_keys_are_gone_and_counted():
    made = collection()
    made.set_rows("t", torch.arange(10), each(10))
    assert made.erase("t", torch.tensor([3, 3, 99, 4])) == 2
    assert made.erase("t", torch.tensor([3, 99])) == 0 and made.erase("t", torch.empty(0, dtype=torch.int64)) == 0
    assert made.keys("t").tolist() == [0, 1, 2, 5, 6, 7, 8, 9]
    lookup(made, torch.tensor([3])).sum().backward()  # a new row, with a new state
    assert made.fused_optimizer.state_dict()["state"]["t"]["keys"].tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_rows_of_a_static_table_are_not_erased():
    with pytest.raises(hotbed.ArgumentError, match="table t is static"):
        collection(hashed=False).erase("t", torch.tensor([1]))


def test_keys_in_use_are_not_erased():
    made = collection()
    made.set_rows("t", torch.arange(10), each(10))
    held = lookup(made, torch.tensor([4, 6]))
    with pytest.raises(hotbed.StateError, match=r"2 of 3 keys were not erased, the first is 4: .* cancel\(\)"):
        made.erase("t", torch.tensor([4, 5, 6]))
    assert 5 not in made.keys("t") and {4, 6} <= set(made.keys("t").tolist())
    held.sum().backward()
    lookup(made, torch.tensor([6]))  # without a backward, and freed
    assert made.erase("t", torch.tensor([4, 6])) == 2


def test_ranks_erase_their_own_keys():
    most = ht.ShardedOptions(max_batch_size=4, max_keys=16)

    def body(comm):
        made = collection(comm=comm, sharded=most)
        made.set_rows("t", torch.arange(40), each(40))
        saved = made.fused_optimizer.state_dict()
        erased = made.erase("t", torch.arange(20, 60))
        made.fused_optimizer.load_state_dict(saved)
        return erased, made.keys("t")

    with pytest.warns(UserWarning, match="keys of the optimizer's state dict have rows"):
        found = well(on_threads(body))
    assert sum(n for n, _ in found) == 20 and all(n > 0 for n, _ in found)
    assert sorted(torch.cat([keys for _, keys in found]).tolist()) == list(range(20))


@pytest.mark.parametrize("left", [0, 5])
@pytest.mark.parametrize("by", ["erase", "state dict"])
def test_states_do_not_bring_erased_keys_back(by, left):
    made = collection()
    lookup(made, torch.arange(10)).sum().backward()
    saved = made.fused_optimizer.state_dict()
    if by == "erase":
        assert made.erase("t", torch.arange(left, 10)) == 10 - left
    else:
        made.load_state_dict({name: part[:left].clone() for name, part in made.state_dict().items()})
    with pytest.warns(UserWarning, match=f"table 't': {left} of 10 keys of the optimizer's state dict have rows"):
        made.fused_optimizer.load_state_dict(saved)
    assert made.keys("t").tolist() == list(range(left))
    states = made.fused_optimizer.state_dict()["state"]["t"]
    assert torch.equal(states["exp_avg"], saved["state"]["t"]["exp_avg"][:left])


@pytest.mark.parametrize("trained", [False, True])
def test_states_of_keys_without_rows_wait_for_a_load_of_the_rows(trained):
    """In this order torch.distributed.checkpoint loads stateful objects whose optimizer is first in the alphabet."""
    made, other = collection(), collection()
    lookup(made, torch.arange(10)).sum().backward()
    lookup(other, torch.arange(5, 20)).sum().backward()
    with pytest.warns(
        UserWarning, match=r"'t': 5 of 10 keys .*; the states of the others are set only if the module's"
    ):
        other.fused_optimizer.load_state_dict(made.fused_optimizer.state_dict())
    assert other.keys("t").min() == 5
    if trained:
        lookup(other, torch.arange(15, 20)).sum().backward()
    other.load_state_dict(made.state_dict())
    states = [ebc.fused_optimizer.state_dict()["state"]["t"] for ebc in (made, other)]
    order = [torch.argsort(state.pop("keys")) for state in states]
    for name, state in states[0].items():
        found, wanted = states[1][name][order[1]], state[order[0]]
        assert torch.equal(found[5:], wanted[5:]) and torch.equal(found[:5], wanted[:5]) != trained


@pytest.mark.filterwarnings("error")
def test_ranks_load_full_states_of_the_rows_they_have():
    def body(comm):
        made = collection(comm=comm, sharded=ht.ShardedOptions(max_batch_size=4, max_keys=16))
        made.set_rows("t", torch.arange(40), each(40))
        saved = ht.full_state_dict(made.fused_optimizer)
        made.fused_optimizer.load_state_dict(saved)
        return made.keys("t")

    assert sorted(torch.cat(well(on_threads(body))).tolist()) == list(range(40))


# --- changes ------------------------------------------------------------------------------------------


def tracked(**more):
    configs = [
        ht.EmbeddingConfig(60, DIM, "h", feature_names=["h"], use_virtual_table=True, evict=ht.Evict.LOWEST),
        ht.EmbeddingConfig(40, DIM, "s", feature_names=["s"]),
    ]
    for config in configs:
        config.track_changes = True
    other = ht.EmbeddingConfig(40, DIM, "o", feature_names=["o"])
    return ht.EmbeddingCollection([*configs, other], optimizer=ht.Adam(lr=0.1), **more)


def apply(replica, found):
    """Apply changes to a dict of rows by (table, key)."""
    if found.whole:
        replica.clear()
    for name, table in found.tables.items():
        for key in table.removed.tolist():
            replica.pop((name, key), None)
        for i, key in enumerate(table.keys.tolist()):
            states = [table.states[state][i] for state in sorted(table.states)]
            replica[name, key] = torch.cat([table.rows[i], *states]).cpu()


def check_replica(made, replica):
    whole = made.changes()
    assert whole.whole and sorted(whole.tables) == ["h", "s"]
    expected = {}
    apply(expected, whole)
    assert sorted(replica) == sorted(expected)
    assert all(torch.equal(replica[at], expected[at]) for at in expected)
    for name in whole.tables:
        keys = made.keys(name)
        assert torch.equal(whole.tables[name].keys, keys)
        assert torch.equal(whole.tables[name].rows, made.rows(name, keys))


def train(made, generator):
    keys = torch.randint(0, 40, (3, 20), generator=generator)
    keys[0] += 2**40 * torch.randint(0, 5, (20,), generator=generator)
    batch = ht.KeyedJaggedTensor(["h", "s", "o"], keys.reshape(-1), lengths=torch.ones(60, dtype=torch.int64))
    sum(jagged.values().sum() for jagged in made(batch).values()).backward()


def test_changes_make_a_replica():
    made, generator = tracked(), torch.Generator().manual_seed(3)
    replicas, positions = [{}, {}], [None, None]
    for step in range(12):
        train(made, generator)
        if step % 4 == 1:
            made.erase("h", torch.randint(0, 40, (30,), generator=generator))
        if step % 5 == 2:
            made.set_rows("s", torch.arange(3), each(3))
        if step == 7:
            state = {name: part.clone() for name, part in made.state_dict().items()}
        if step == 9:
            made.load_state_dict(state)
        for number in range(2):
            if step % (2 + number) == 0:
                found = made.changes(positions[number])
                assert found.whole == (positions[number] is None or step in (9, 10))
                positions[number] = found.position
                apply(replicas[number], found)
                check_replica(made, replicas[number])
    made.set_rows("s", torch.tensor([5]), each(1))
    made.erase("h", made.keys("h")[:2])
    gone, last = made.changes(positions[0]), made.changes(made.changes().position)
    assert 5 in gone.tables["s"].keys.tolist() and len(gone.tables["h"].removed) >= 2
    assert all(len(table.keys) == len(table.removed) == 0 for table in last.tables.values())


def test_ranks_have_the_changes_of_their_rows():
    def body(comm):
        most = ht.ShardedOptions(max_batch_size=20, max_keys=60)
        made, generator = tracked(comm=comm, sharded=most), torch.Generator().manual_seed(comm.rank)
        replica, position = {}, None
        for step in range(6):
            train(made, generator)
            if step % 3 == 1:
                made.erase("h", torch.arange(20))
            if step % 2 == 0:
                found = made.changes(position)
                assert found.whole == (position is None)
                position = found.position
                apply(replica, found)
                check_replica(made, replica)
        return set(replica)

    owned = well(on_threads(body))
    assert all(owned) and sum(map(len, owned)) == len(set.union(*owned))


def counted():
    configs = [
        ht.EmbeddingConfig(100, 2, "h", feature_names=["h"], use_virtual_table=True, score=ht.Score.LFU),
        ht.EmbeddingConfig(100, 2, "s", feature_names=["s"]),
    ]
    for config in configs:
        config.track_changes = True
    return ht.EmbeddingCollection(configs, optimizer=ht.SGD(lr=1.0))


def train_pairs(made, **keys):
    """Train keys of the tables; their rows fall by 1 for each occurrence."""
    values = [torch.tensor(keys.get(name, [0])) for name in ("h", "s")]
    most = max(map(len, values))
    lengths = torch.tensor([int(i < len(each)) for each in values for i in range(most)])
    batch = ht.KeyedJaggedTensor(["h", "s"], torch.cat(values), lengths=lengths)
    sum(jagged.values().sum() for jagged in made(batch).values()).backward()


class Sent:
    """A receiver that keeps rows and scores."""

    def __init__(self):
        self.rows, self.scores = {}, {}

    def __call__(self, name, keys):
        at = [(name, key) for key in keys.tolist()]
        rows = torch.stack([self.rows.get(key, torch.zeros(2)) for key in at])
        return rows, torch.tensor([self.scores.get(key, 0) for key in at])

    def take(self, found):
        for name, table in found.tables.items():
            scores = [0] * len(table.keys) if table.scores is None else table.scores.tolist()
            for i, key in enumerate(table.keys.tolist()):
                self.rows[name, key], self.scores[name, key] = table.rows[i].clone(), scores[i]


def test_filters_choose_changes():
    made, sent = counted(), Sent()
    made.set_rows("h", torch.arange(10), torch.zeros(10, 2))
    train_pairs(made, h=[1, 1, 1, 2, 2, 3, 4], s=[1, 1, 2])
    first = made.changes()
    sent.take(first)
    base = first.position

    def found(filters, since):
        got = made.changes(since, {"h": ht.ChangeFilter(**filters)}, sent).tables["h"]
        both = torch.cat([got.keys, got.left_out]).sort().values
        assert torch.equal(both, made.changes(since).tables["h"].keys)
        assert torch.equal(got.rows, made.rows("h", got.keys)) and len(got.scores) == len(got.keys)
        return got.keys.tolist()

    train_pairs(made, h=[1, 3, 3, 4, 7, 7, 7, 8], s=[3])
    assert found({}, base) == [1, 3, 4, 7, 8]
    before = dict(zip(first.tables["h"].keys.tolist(), first.tables["h"].scores.tolist()))
    now = made.changes(base).tables["h"]
    scores = dict(zip(now.keys.tolist(), now.scores.tolist()))
    assert {key: scores[key] - before[key] for key in scores} == {1: 1, 3: 2, 4: 1, 7: 3, 8: 1}
    assert found({"min_occurrences": 2}, base) == [3, 7]
    assert found({"min_change": 2.5}, base) == [3, 7]  # two steps have norm 2.8
    assert found({"min_change": 2.5, "min_occurrences": 3}, base) == [7]
    ranked = sorted(scores, key=lambda key: (-scores[key], key))
    assert found({"most_rows": 2}, base) == sorted(ranked[:2])
    assert found({"min_score": scores[3]}, base) == sorted(key for key in scores if scores[key] >= scores[3])
    # a change that is left out counts until the receiver gets it, also from a later position
    middle = made.changes(base).position
    train_pairs(made, h=[1])
    assert found({"min_occurrences": 2}, middle) == found({"min_change": 2.5}, middle) == [1]
    sent.take(made.changes(base))
    train_pairs(made, h=[1])
    assert found({"min_occurrences": 2}, middle) == [] and found({"min_occurrences": 1}, middle) == [1]
    # all rows are all rows
    assert len(made.changes(None, {"h": ht.ChangeFilter(most_rows=1)}).tables["h"].keys) == 10


def test_wrong_filters_are_named():
    made = counted()
    since = made.changes().position
    train_pairs(made, h=[1], s=[1])
    for filters, receiver, match in (
        ({"x": ht.ChangeFilter()}, None, "no table 'x'"),
        ({"s": ht.ChangeFilter(min_score=1)}, None, "STATIC"),
        ({"s": ht.ChangeFilter(min_occurrences=1)}, None, "STATIC"),
        ({"h": ht.ChangeFilter(min_change=-1)}, None, "min_change -1"),
        ({"h": ht.ChangeFilter(min_occurrences=1)}, None, "pass receiver="),
        ({"s": ht.ChangeFilter(min_change=1)}, lambda name, keys: (None, None), "no rows"),
        ({"s": ht.ChangeFilter(min_change=1)}, lambda name, keys: (torch.zeros(9, 9), None), "rows of table 's' are"),
        (
            {"h": ht.ChangeFilter(min_occurrences=1)},
            lambda name, keys: (None, torch.zeros(9)),
            "scores of table 'h' are",
        ),
    ):
        with pytest.raises(hotbed.ArgumentError, match=match):
            made.changes(since, filters, receiver)
    for wrong in (-1, 2**64, 0.5):
        with pytest.raises(hotbed.ArgumentError, match="min_occurrences is"):
            ht.ChangeFilter(min_occurrences=wrong)


def test_changes_need_the_option():
    with pytest.raises(hotbed.ArgumentError, match="no table has track_changes"):
        collection().changes()
    made, other = tracked(), tracked()
    for since in (ht.Position(((1, 1, 1), (1, 1, 1))), other.changes().position):
        with pytest.raises(hotbed.ArgumentError, match="another collection"):
            made.changes(since)
    assert not made.changes(made.changes().position).whole


# --- expire -------------------------------------------------------------------------------------------


def scored(score):
    config = ht.EmbeddingConfig(ROWS, DIM, "t", feature_names=["f"], use_virtual_table=True, score=score)
    return ht.EmbeddingCollection([config], optimizer=ht.Adam(lr=0.1))


def train_keys(made, keys):
    lookup(made, torch.tensor(keys)).sum().backward()


def kept(made):
    return set(made.keys("t").tolist())


def test_keys_expire_by_steps_scores_and_norms():
    made = collection()
    for keys in ([1, 2, 3], [2, 3], [3], [4]):
        train_keys(made, keys)
    made.expire("t", unseen_steps=3)
    assert kept(made) == {2, 3, 4} and made.stats("t")["expired"] == 1
    made.expire("t", unseen_steps=100)
    assert kept(made) == {2, 3, 4}
    made.set_rows("t", torch.tensor([2, 3, 4]), torch.tensor([[0.5] * 4, [2.0] * 4, [0.0] * 4]))
    made.expire("t", min_norm=1.5)
    assert kept(made) == {3} and made.stats("t")["expired"] == 3
    counted = scored(ht.Score.LFU)
    for keys in ([1, 2], [2], [2, 3], [3]):
        train_keys(counted, keys)
    for _ in range(ROWS // 16 + 5):  # a table has a few more slots than rows
        counted.expire("t", min_score=3, slots=16)
    assert kept(counted) == {2}


def test_keys_expire_by_time():
    made = scored(ht.Score.TIMESTAMP)
    for keys in ([1, 2], [2]):
        train_keys(made, keys)
    made.expire("t", unseen_seconds=1e-6)  # any two forwards are so far apart
    assert kept(made) == {2}
    made.expire("t", unseen_seconds=3600)
    assert kept(made) == {2}


def test_conditions_that_a_table_lacks_are_refused():
    made, static = collection(), collection(hashed=False)
    with pytest.raises(hotbed.ArgumentError, match="unseen, min_score and min_norm are 0, so nothing can expire"):
        made.expire("t")
    with pytest.raises(hotbed.ArgumentError, match=r"table 't' has Score.STEP, not Score.TIMESTAMP, so unseen_seconds"):
        made.expire("t", unseen_seconds=2.0)
    with pytest.raises(hotbed.ArgumentError, match="so unseen_steps cannot be 2"):
        scored(ht.Score.LFU).expire("t", unseen_steps=2)
    with pytest.raises(hotbed.ArgumentError, match="table t is static: its rows do not expire"):
        static.expire("t", min_norm=1.0)
    for wrong in ({"unseen_steps": -1}, {"min_norm": -1.0}, {"min_score": 0.5}, {"min_norm": float("nan")}):
        with pytest.raises(hotbed.ArgumentError):
            made.expire("t", **wrong)
