#!/usr/bin/env python3
"""bench/report.py - write the long tables, the plots and the generated sentences from bench/results/*.json.

    bench/report.py [--check]     --check: write nothing; status 1 if a file is not up to date

Long tables go to bench/results/*.md, plots to docs/figures/*.svg, sentences into docs/performance.md, and the runs on
GPUs (bench/results/verification.json) to bench/results/verification.md.  Needs only Python's standard library.
"""

import glob
import json
import os
import sys
import textwrap

import plots

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = os.path.join(ROOT, "bench", "results")
PAGE = os.path.join(ROOT, "docs", "performance.md")
FIGURES = os.path.join(ROOT, "docs", "figures")
VERIFICATION = os.path.join(RESULTS, "verification")

# Kernels of a step and of an eval: the name in the JSON, and the name in the tables.
STAGES = {
    "layout": "layout of the batch",
    "dedup": "dedup",
    "find": "find, pin",
    "place": "new keys and their rows",
    "forward": "forward",
    "update": "sums, optimiser, unpin",
    "eval_find": "eval: find",
    "eval_forward": "eval: rows",
}


def stages_of(result):
    """[(stage, ms)] of a result."""
    return [
        (key[len("stage_") : -len("_ms")], value)
        for key, value in result.items()
        if key.startswith("stage_") and key.endswith("_ms")
    ]


def load():
    """All result files by kind, each kind ordered by device."""
    kinds = {
        "workloads": [],
        "baseline": [],
        "exchange": [],
        "checkpoint": [],
        "micro": [],
        "plans": [],
        "curves": [],
        "host": [],
    }
    for path in sorted(glob.glob(os.path.join(RESULTS, "*.json"))):
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        document["file"] = os.path.basename(path)
        form = document.get("format", "")
        if form.startswith(("hotbed-verification", "hotbed-deltas")):
            continue
        if form.startswith("hotbed-workloads"):
            kinds["workloads"].append(document)
        elif form.startswith("hotbed-baseline"):
            kinds["baseline"].append(document)
        elif form.startswith("hotbed-exchange"):
            kinds["exchange"].append(document)
        elif form.startswith("hotbed-plans"):
            kinds["plans"].append(document)
        elif form.startswith("hotbed-curves"):
            kinds["curves"].append(document)
        elif form.startswith("hotbed-host"):
            kinds["host"].append(document)
        elif "benchmarks" in document:
            names = [entry["name"] for entry in document["benchmarks"]]
            disk = all(name.startswith("checkpoint/") for name in names)
            kinds["checkpoint" if disk else "micro"].append(document)
        else:
            print(f"report: {path}: not a result of the benchmarks, left out", file=sys.stderr)
    kinds["workloads"].sort(key=lambda d: (d["backend"] != "cuda", d["device"]))
    return kinds


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def ms(value):
    return "" if value is None else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def ratio(value, by):
    return "" if value is None or not by else f"{value / by:.2f}x"


def baseline_of(kinds, document, result):
    """A result of the same workload on the same machine in another library."""
    for other in kinds["baseline"]:
        if other["device"] != document["device"]:
            continue
        for candidate in other["results"]:
            if candidate["workload"] == result["workload"] and candidate["scale"] == result["scale"]:
                return other["name"], candidate
    return None, None


def references(kinds, document, result):
    """Columns to compare with: (name, {phase: ms})."""
    forward = result["limit_forward_ms"] + result.get("limit_link_ms", 0)
    columns = [
        (
            "limit",
            {
                "forward": forward,
                "backward": result["limit_backward_ms"],
                "train": forward + result["limit_backward_ms"],
                "eval": result["limit_eval_ms"],
            },
        )
    ]
    for key, name in (("floor", "floor"), ("goal", "goal"), ("tbe", "TBE"), ("dynamicemb", "dynamicemb")):
        if f"{key}_train_ms" in result:
            columns.append((name, {p: result.get(f"{key}_{p}_ms") for p in ("forward", "backward", "train", "eval")}))
    name, other = baseline_of(kinds, document, result)
    if other:
        columns.append(
            (name.split(",")[0], {p: other[f"eager_{p}_ms"] for p in ("forward", "backward", "train", "eval")})
        )
    return columns


def phase_table(kinds, document, result):
    """Time of each phase, its limit, the times of other libraries, and ratios."""
    columns = references(kinds, document, result)
    header = ["ms", "eager", "graph"] + [name for name, _ in columns] + [f"graph / {name}" for name, _ in columns]
    rows = []
    for phase, label in (("forward", "fwd"), ("backward", "bwd"), ("train", "train"), ("eval", "eval")):
        ours = result[f"graph_{phase}_ms"]
        row = [label, ms(result[f"eager_{phase}_ms"]), ms(ours)]
        row += [ms(values[phase]) for _, values in columns]
        row += [ratio(ours, values[phase]) for _, values in columns]
        rows.append(row)
    return table(header, rows)


def stage_table(result):
    """Time of each stage of a step, and the time to move the stage's bytes."""
    least = {
        "update": result["limit_backward_ms"],
        "eval_forward": result["limit_eval_ms"],
        "forward": result["limit_eval_ms"],
    }
    rows = []
    for key, value in stages_of(result):
        bound = least.get(key)
        over = value - bound if bound else value
        rows.append([STAGES.get(key, key), ms(value), ms(bound), ms(over)])
    return table(["stage, eager", "ms", "its limit", "above it"], rows)


def separates(result):
    """A sentence on the differences between Hotbed, static tables and the lower bound."""
    if "tbe_train_ms" not in result or "floor_train_ms" not in result or not stages_of(result):
        return ""
    train, evaluation = result["graph_train_ms"], result["graph_eval_ms"]
    others = ("forward", "update", "eval_find", "eval_forward")
    index = sum(value for key, value in stages_of(result) if key not in others)

    def gap(value, other):
        return f"{abs(value - other):.3f} ms {'above' if value > other else 'below'}"

    return (
        f"Train is {gap(train, result['tbe_train_ms'])} TBE and "
        f"{gap(train, result['floor_train_ms'])} the floor; eval is "
        f"{gap(evaluation, result['tbe_eval_ms'])} TBE and "
        f"{gap(evaluation, result['floor_eval_ms'])} the floor. Keys cost {index:.3f} ms of a step "
        "(layout, dedup, find or insert), which a static table has in its backward as a sort "
        "and the floor does not have."
    )


LINK_ROWS = [
    (f"{size} bytes{', sorted' if order else ''}", f"{order}{size}")
    for size in ("512", "1536")
    for order in ("", "sorted_")
]


def link_table(document):
    """Rates of the link between the tiers, for copies and for rows."""
    link = document["link"]
    text = (
        f"The link between the tiers, GB/s: copies down {link['down_gb_per_s']:.1f}, up {link['up_gb_per_s']:.1f}, "
        f"both at once {link['both_gb_per_s']:.1f}; and rows at random places of {link['footprint_gib']:.2f} GiB:"
    )
    rows = [
        [name] + [f"{link[f'{what}_{key}_gb_per_s']:.1f}" for what in ("gather", "scatter", "host_gather")]
        for name, key in LINK_ROWS
    ]
    return text + "\n\n" + table(["rows of", "gather", "scatter", "gather by the host's threads"], rows)


def tier_table(document):
    """Traffic over the link in each workload with two tiers."""
    rows = []
    for result in document["results"]:
        if "mode" not in result:
            continue
        train = result["eager_train_ms"]
        overlap = result.get("overlap_train_ms")
        dense = result.get("overlap_dense_ms", 0)
        rows.append(
            [
                result["workload"],
                result["mode"],
                f"{result['upper_rows']:,} of {result['keys']:,}",
                f"{result['fetched_a_step']:,.0f}",
                ", ".join(
                    f"{result[f'{p}_rows_a_step']:,.0f}"
                    for p in ("lru", "lfu", "optimal")
                    if f"{p}_rows_a_step" in result
                ),
                f"{result['in_place_a_step']:,.0f}",
                f"{result['written_a_step']:,.0f}",
                f"{result['link_read_mb_a_step']:.1f}, {result['link_write_mb_a_step']:.1f}",
                f"{result['link_gb_per_s']:.1f}",
                f"{ms(result['prefetch_ms'])} ({ms(result['limit_link_ms'])})",
                f"{ms(overlap)} ({ms(train + dense)})" if overlap else "",
                ms(result.get("goal_overlap_ms")),
            ]
        )
    header = [
        "",
        "mode",
        "rows above",
        "fetched a step",
        "exact LRU, LFU, optimum",
        "in place",
        "written",
        "MB read, written",
        "GB/s of a step",
        "prefetch (its bytes alone), ms",
        "overlapped (one after the other), ms",
        "goal",
    ]
    return table(header, rows)


def workload_section(kinds):
    parts = []
    for document in kinds["workloads"]:
        driver = f", driver {document['driver']}" if document["driver"] else ""
        parts.append(f"### {document['device']} ({document['backend']})")
        parts.append(
            f"`{document['command']}`, commit {document['commit']}, {document['date']}{driver} "
            f"([{document['file']}]({document['file']}))"
        )
        for result in document["results"]:
            checked = result["rows_checked"]
            parts.append(
                f"**{result['workload']}**, {result['optimizer']}, scale {result['scale']:g}: "
                f"{result['keys_a_step']:,} keys a step, {result['unique_a_step']:,} distinct, {result['rows']:,} rows "
                f"a table, {'full to' if 'mode' in result else 'load'} {result['load']:.2f}; copy "
                f"{result['limit_copy_gb_per_s']:,.0f} GB/s, gather {result['limit_gather_gb_per_s']:,.0f} GB/s; host "
                f"waits a step {result['host_waits_a_step']:g}, allocations {result['allocations_a_step']:g}; "
                + (f"{checked} rows compared bit for bit." if checked else "not checked.")
            )
            parts.append(phase_table(kinds, document, result))
            if stages_of(result):
                parts.append(stage_table(result))
            if separates(result):
                parts.append(separates(result))
        if any("mode" in result for result in document["results"]):
            parts.append(tier_table(document))
            parts.append(link_table(document))
    if not parts:
        parts.append("No results yet: `hotbed-workloads --check --json bench/results/workloads-DEVICE.json`.")
    return "\n\n".join(parts)


# --- microbenchmarks -----------------------------------------------------------------------------


def rate(value, unit):
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.2f} {prefix}{unit}"
    return f"{value:.1f} {unit}"


def micro_name(name):
    """module/operation and its arguments, without the parts that Google Benchmark adds."""
    parts = [p for p in name.split("/") if p != "manual_time" and not p.startswith("iterations:")]
    return "/".join(parts[:2]), " ".join(p for p in parts[2:] if ":" in p)


def find_rates(document):
    """{arguments: {operation: keys per second}} for the index and for other libraries' hash maps, on the host."""
    rates = {}
    for entry in document["benchmarks"]:
        operation, arguments = micro_name(entry["name"])
        if entry["name"].split("/")[2] != "host" or not entry.get("median_us"):
            continue
        if operation == "index/alone_find" or operation.startswith("peer/"):
            keys = int(dict(a.split(":") for a in arguments.split())["n"])
            rates.setdefault(arguments, {})[operation] = keys / entry["median_us"]
    return {a: r for a, r in rates.items() if len(r) > 1 and "index/alone_find" in r}


def map_table(document):
    """Lookups per second in the index and in hash maps of other libraries."""
    rates = find_rates(document)
    peers = sorted({name for rate in rates.values() for name in rate if name.startswith("peer/")})
    rows = [
        [arguments, f"{rate['index/alone_find']:.1f}"]
        + [f"{rate[p]:.1f}" if p in rate else "" for p in peers]
        + [f"{rate['index/alone_find'] / max(rate[p] for p in peers if p in rate):.2f}x"]
        for arguments, rate in rates.items()
    ]
    names = [p[len("peer/") : -len("_find")] for p in peers]
    return table(["find, M keys/s", "index", *names, "to the best map"], rows)


def micro_section(kinds):
    parts = []
    for document in kinds["micro"]:
        context = document["context"]
        rows = []
        backends = []
        for entry in document["benchmarks"]:
            if entry.get("error_occurred") or "median_us" not in entry:
                continue
            operation, arguments = micro_name(entry["name"])
            backend = entry["name"].split("/")[2]
            if backend not in backends:
                backends.append(backend)
            median = entry["median_us"] * 1e-6
            mean = entry["real_time"] * 1e-6
            items = entry.get("items_per_second", 0) * mean / median if median else 0
            moved = entry.get("bytes_per_second", 0) * mean / median if median else 0
            # Older files have of_copy.
            share = entry.get("of_copy") or (1 / entry["to_limit"] if entry.get("to_limit") else None)
            rows.append(
                [
                    operation,
                    arguments,
                    f"{median * 1e6:,.1f}",
                    rate(items, "/s") if items else "",
                    rate(moved, "B/s") if moved else "",
                    f"{share * 100:.0f} %" if share else "",
                ]
            )
        machines = "; ".join(
            f"{b}: {context.get(b + '_device', '?')}, copy {float(context.get(b + '_copy_gb_per_s', 0)):,.0f} GB/s"
            for b in backends
        )
        parts.append(f"### {machines}")
        parts.append(
            f"commit {context.get('commit', 'unknown')}, {context.get('date', '')} "
            f"([{document['file']}]({document['file']}))"
        )
        if find_rates(document):
            parts.append(map_table(document))
        parts.append(table(["kernel", "arguments", "median us", "items", "bytes", "of limit"], rows))
    if not parts:
        parts.append("No results yet: `./run bench`, or `./run gpu bench` on a machine with a GPU.")
    return "\n\n".join(parts)


# --- checkpoints ------------------------------------------------------------------------------------


def checkpoint_section(kinds):
    parts = []
    for document in kinds["checkpoint"]:
        context = document["context"]
        rows = []
        for entry in document["benchmarks"]:
            if entry.get("error_occurred") or "median_us" not in entry:
                continue
            operation, arguments = micro_name(entry["name"])
            backend = entry["name"].split("/")[2]
            count = int(dict(a.split(":") for a in arguments.split())["rows"])
            median = entry["median_us"] * 1e-6
            moved = entry["bytes_per_second"] * entry["real_time"] * 1e-6 / 1e9
            probes = [("probe_gb_per_s", "of_probe"), ("huge_probe_gb_per_s", "of_huge_probe")]
            rows.append(
                [
                    operation[len("checkpoint/") :],
                    backend,
                    f"{count:,}",
                    f"{moved:.2f}",
                    f"{median * 1e3:,.{0 if median >= 0.01 else 2}f}",
                    f"{moved / median:.2f}",
                ]
                + [
                    f"{entry[rate_of]:.2f}, **{entry[share]:.2f}**" if share in entry else ""
                    for rate_of, share in probes
                ]
                + [f"{entry['others'] * 100:.0f} %" if "others" in entry else ""]
            )
        devices = [context[key] for key in sorted(context) if key.endswith("_device")]
        parts.append(
            f"{'; '.join(devices)}; commit {context.get('commit', 'unknown')}, {context.get('date', '')} "
            f"([{document['file']}]({document['file']})):\n"
            f"`{context.get('command', '')}`"
        )
        header = ["", "backend", "rows", "GB", "median ms", "GB/s", "probe: GB/s, share", "huge pages", "others"]
        parts.append(table(header, rows))
    if not parts:
        parts.append("No results yet: `./run bench`, or `./run gpu bench` on a machine with a GPU.")
    return "\n\n".join(parts)


# --- ranks -----------------------------------------------------------------------------------------

EXCHANGES = {"keys": "keys", "rows": "rows", "gradients": "rows"}  # the all-to-all to compare each phase with


def exchange_table(document):
    """Times of each plan's phases, and of an all-to-all of as many bytes."""
    plans = sorted({plan for result in document["results"] for plan in result["exchange"]})
    rows = []
    for result in document["results"]:
        for phase, beside in EXCHANGES.items():
            own = result[f"{beside}_own_ms"]
            times = [result["exchange"].get(plan, {}).get(f"{phase}_ms") for plan in plans]
            rows.append(
                [str(result["ranks"]), phase, f"{result[f'{beside}_bytes'] / 1e6:.2f}", ms(own)]
                + [f"{ms(t)} ({ratio(t, own)})" if t else "" for t in [result[f"{beside}_comm_ms"], *times]]
            )
    names = [plan.replace("_eager", "").replace("_graph", ", graph") for plan in plans]
    return table(["ranks", "phase", "MB a rank", document["own"], "communicator", *names], rows)


def scaling_table(document):
    """Steps of W1 with each plan: ms, and the speed of each rank relative to a single rank."""
    alone = {
        plan: times["step_ms"]
        for result in document["results"]
        if result["ranks"] == 1
        for plan, times in result["scaling"].items()
    }
    plans = sorted({plan for result in document["results"] for plan in result["scaling"]})
    rows = []
    for result in document["results"]:
        cells = []
        for plan in plans:
            step = result["scaling"].get(plan, {}).get("step_ms")
            share = alone[plan] / step if step and plan in alone and result["ranks"] > 1 else None
            cells.append("" if not step else ms(step) + (f" ({share:.2f})" if share else ""))
        rows.append([str(result["ranks"]), ms(result["single_ms"]) if result["single_ms"] else "", *cells])
    names = [plan.replace("_eager", "").replace("_graph", ", graph") for plan in plans]
    return table(["ranks", "a storage alone", *names], rows)


def pooled_table(document):
    """Steps of pooled features as graphs: ms, the share of the limit of the run, and the phases."""
    phases = [
        "input_dist",
        "wait_input",
        "prefetch",
        "compute",
        "output_dist",
        "wait_output",
        "backward_dist",
        "update",
    ]
    rows = []
    for result in document["results"]:
        for bags in result.get("bags", []):
            times = {
                plan: bags[plan] for plan in ("one_sided_graph", "fixed_graph") if "train_ms" in bags.get(plan, {})
            }
            for plan, time in times.items():
                share = bags["limit_train_ms"] / time["train_ms"]
                rows.append(
                    [str(result["ranks"]), bags["name"], plan.replace("_graph", "")]
                    + [f"{ms(time['train_ms'])} ({share:.2f})", ms(time["eval_ms"])]
                    + [ms(time[f"{phase}_ms"]) for phase in phases]
                )
    return table(["ranks", "workload", "plan", "train (limit / this)", "eval", *phases], rows)


def exchange_section(kinds):
    parts = []
    for document in kinds["exchange"]:
        first = document["results"][0]
        parts.append(f"### {document['device']}, {document['transport']}")
        parts.append(
            f"`{document['command']}`, commit {document['commit']}, {document['date']} "
            f"([{document['file']}]({document['file']})); {first['keys']:,} keys a rank, "
            f"{first['row_bytes']} bytes a row; a copy by all ranks at once: "
            + ", ".join(f"{r['copy_gb_per_s']:,.1f} GB/s a rank of {r['ranks']}" for r in document["results"])
        )
        parts.append(exchange_table(document))
        if "scaling" in first:
            parts.append(
                f"W1 at scale {document['scale']}, ms a step (efficiency), {first['step_keys']:,} keys a rank, "
                f"up to {first['step_uniques']:,} distinct:"
            )
            parts.append(scaling_table(document))
        if "bags" in first:
            parts.append("Pooled, as a graph, ms; the phases are timed one by one:")
            parts.append(pooled_table(document))
    if not parts:
        parts.append("No results yet: `./run bench`, or `./run gpu bench` on a machine with several GPUs.")
    return "\n\n".join(parts)


# --- plans ---------------------------------------------------------------------------------------


def spread_of_ratio(document):
    """Quartiles of sw-auto / prefetch, round by round, as text."""
    if "candidates" not in document:
        return ""
    rounds = {plan["plan"]: plan["step_ms_rounds"] for plan in document["plans"]}
    ratios = sorted(a / b for a, b in zip(rounds["sw-auto"], rounds["prefetch"]))
    return f", of a round {ratios[len(ratios) // 4]:.2f} to {ratios[3 * len(ratios) // 4]:.2f} (quartiles)"


def plans_section(kinds):
    parts = []
    for document in kinds["plans"]:
        sms = f", rows moved by {document['move_sms']} SMs" if document.get("move_sms") else ""
        parts.append(f"### {document['workload']}, {document['device']} ({document['backend']}){sms}")
        parts.append(
            f"Scale {document['scale']}, {document['insertion']}, {document['rounds']} rounds of {document['steps']} "
            f"steps, commit {document['commit']}, {document['date']} ([{document['file']}]({document['file']})): "
            f"exchange and prefetch {ms(document['ahead_ms'])} ms, dense model {ms(document['dense_ms'])} ms, floor "
            f"{ms(document['floor_ms'])} ms; sw-auto / prefetch "
            f"{document['auto_over_prefetch']:.3f}{spread_of_ratio(document)}."
        )
        rows = [
            [plan["plan"], ms(plan["step_ms"]), ms(plan["exposed_ms"]), f"{100 * plan['hidden']:.0f} %"]
            for plan in document["plans"]
        ]
        parts.append(table(["plan", "step, ms", "exposed, ms", "hidden"], rows))
        tried = ", ".join(f"{ms(c['predicted_ms'])} and {ms(c['measured_ms'])}" for c in document.get("candidates", []))
        if tried:
            parts.append(f"Candidates, ms predicted and measured: {tried}.")
        parts.append(f"Schedule found (task:stage): {document['schedule']}.")
    return "\n\n".join(parts) if parts else "No results yet: `./run bench`, or `./run gpu bench`."


# --- figures of docs/performance.md ------------------------------------------------------------------


# --- the host backend beside other libraries -------------------------------------------------------


HOST_LIBRARIES = (("torch", "EmbeddingBag"), ("fbgemm", "TBE"))


def host_steps(document):
    """(workload, phase, kind of table, Hotbed's ms, {library: ms}) for each phase that another library has."""
    for workload, times in document["least_ms"].items():
        for phase in ("forward", "train", "eval"):
            others = {label: times[name][phase] for name, label in HOST_LIBRARIES if phase in times.get(name, {})}
            for name, ours in times.items():
                if name.startswith("Hotbed ") and others:
                    yield workload, phase, name.split(" ")[1], ours[phase], others


def host_finds(document):
    """(sizes, Hotbed's us, {library: us}) for each lookup."""
    for sizes, times in document["least_find_us"].items():
        others = {name[: -len("_find")]: us for name, us in times.items() if name != "alone_find"}
        if "alone_find" in times and others:
            yield sizes, times["alone_find"], others


def host_section(kinds):
    parts = []
    for document in kinds["host"]:
        libraries = "; ".join(document["libraries"].values())
        parts.append(f"### {document['device']}")
        parts.append(
            f"`{document['command']}`, commit {document['commit']}, {document['date']} "
            f"([{document['file']}]({document['file']})). {libraries}."
        )
        labels = [label for _, label in HOST_LIBRARIES]
        rows = [
            [f"{workload} {phase}", kind, ms(ours)]
            + [ms(others.get(label)) for label in labels]
            + [f"{min(others.values()) / ours:.2f}x"]
            for workload, phase, kind, ours, others in host_steps(document)
        ]
        parts.append(table(["step, ms", "tables", "Hotbed", *labels, "faster than the better one"], rows))
        finds = list(host_finds(document))
        if not finds:
            continue
        names = list(finds[0][2])
        rows = [
            [sizes, f"{ours:,.0f}"] + [f"{others[n]:,.0f}" for n in names] + [f"{min(others.values()) / ours:.2f}x"]
            for sizes, ours, others in finds
        ]
        parts.append(table(["find, us", "index", *names, "faster than the better one"], rows))
    return "\n\n".join(parts) if parts else "No results yet: `bench/host.py`."


def host_figure(kinds):
    """No figure: sentences for the page."""
    lines = []
    for document in kinds["host"]:
        ratios = {}
        for _, phase, _, ours, others in host_steps(document):
            ratios.setdefault(phase, []).append(min(others.values()) / ours)
        spread = "; ".join(f"{phase} {min(r):.1f} to {max(r):.1f} times" for phase, r in ratios.items())
        finds = [min(others.values()) / ours for _, ours, others in host_finds(document)]
        more = (
            f"; a find in the index {min(finds):.1f} to {max(finds):.1f} times the better hash map's speed"
            if finds
            else ""
        )
        threads = "one thread" if document["threads"] == 1 else f"{document['threads']} threads"
        lines.append(f"With {threads}, Hotbed's speed relative to the better library: {spread}{more}.")
    return None, " ".join(lines) + "\n\n" + sources(kinds["host"]) if lines else "No results yet."


def by_date(documents):
    """The oldest first, so that newer results replace older ones."""
    return sorted(documents, key=lambda document: document["date"])


def default_results(kinds, backend):
    """{workload: (document, result)} with the default insertion policy; static and hash tables are different
    workloads.
    """
    found = {}
    for document in by_date(kinds["workloads"]):
        if document["backend"] != backend:
            continue
        for result in document["results"]:
            name, _, policy = result["workload"].partition(" ")
            if policy == "probation" or "mode" not in result:
                found[name if policy == "probation" else result["workload"]] = (document, result)
    return dict(sorted(found.items(), key=lambda item: (len(item[0].split()[0]), item[0])))


def source(document, command=None):
    """The device, commit and command of a result file."""
    command = command or document["command"]
    return f"{document['device']}, commit {document['commit'][:7]}: `{command}`"


def sources(documents):
    lines = []
    for document in documents:
        line = source(document)
        if line not in lines:
            lines.append(line)
    return "\n".join(f"- {line}" for line in lines)


def peers_figure(kinds):
    found = default_results(kinds, "cuda")
    plain = {r["workload"]: r for d in by_date(kinds["workloads"]) if d["backend"] == "cuda" for r in d["results"]}
    groups, wins, losses = [], [], []
    for name, (_, result) in found.items():
        for phase in ("train", "eval"):
            ours = result[f"graph_{phase}_ms"]
            group = [("Hotbed", ours, ms(ours))]
            if "mode" in result and name in plain:
                value = plain[name][f"graph_{phase}_ms"]
                group.append(("Hotbed, plain insertion", value, ms(value)))
            others = [result.get(f"{peer}_{phase}_ms") for peer in ("tbe", "dynamicemb")]
            published = "*" if name in ("W7", "W8") else ""
            for peer, value in zip(("FBGEMM TBE", "dynamicemb"), others):
                mark = published if peer == "FBGEMM TBE" else ""
                group.append((peer, value, f"{ms(value)}{mark} ({value / ours:.1f}x)" if value else ""))
            groups.append((f"{name} {phase}", group))
            best = min((v for v in others if v), default=None)
            if best:
                (wins if ours <= best else losses).append((best / ours, f"{name} {phase}"))
    text = f"Hotbed is faster than the faster peer in {len(wins)} of {len(wins) + len(losses)} cases"
    if wins:
        text += f", by {min(wins)[0]:.2f} ({min(wins)[1]}) to {max(wins)[0]:.1f} times ({max(wins)[1]})"
    unchecked = [name for name, (_, result) in found.items() if not result["rows_checked"]]
    text += ". Rows were compared bit for bit with a plain model in the same runs" + (
        f", except for {', '.join(unchecked)}" if unchecked else ""
    )
    text += (
        ". W3 to W8 are with the default insertion policy, probation, which the repeating batches of these workloads "
        "favour; the bars of plain insertion show them without it. * published for an H100.\n\n"
    )
    if losses:
        rows = [[name, f"{1 / r:.2f}"] for r, name in sorted(losses)]
        text += table(["slower than the faster peer", "times"], rows) + "\n\n"
    text += sources([document for document, _ in found.values()])
    title = "Time of a step, ms (log scale); in brackets: the peer's time over Hotbed's"
    return plots.bars(title, groups, log=True), text


def limits_figure(kinds):
    found = default_results(kinds, "cuda")
    groups = []
    for name, (_, result) in found.items():
        limit = result["limit_forward_ms"] + result.get("limit_link_ms", 0) + result["limit_backward_ms"]
        train, evaluation = result["graph_train_ms"] / limit, result["graph_eval_ms"] / result["limit_eval_ms"]
        # The limit ignores rows that eval reads in the lower tier.
        if "upper_rows" in result and result["upper_rows"] < result["keys"]:
            evaluation = None
        groups.append(
            (name, [("train", train, f"{train:.2f}"), ("eval", evaluation, f"{evaluation:.2f}" if evaluation else "")])
        )
    nearest = min((g[1][0][1], g[0]) for g in groups)
    text = (
        f"Training is closest to the reference in {nearest[1]} ({nearest[0]:.2f} times). The reference is the time in "
        "which the copy rate of the same run moves each byte of the step once, and the link the rows that this run "
        "fetched; it is not a strict bound, since sorted moves use the link better than its probe. Eval of W5 to W8 is "
        "left out, because its reference does not count the rows that it reads in host memory."
    )
    title = "Time of a step over the reference time of the same run (dashed: 1; shorter is better)"
    return plots.bars(title, groups, line=1.0), text


def scaling_figure(kinds):
    documents = [d for d in kinds["exchange"] if d["transport"] == "nccl" and d["results"][-1]["ranks"] > 1]
    if not documents:
        return None, "No results yet: `hotbed-exchange --transport nccl`."
    document = max(documents, key=lambda d: d["date"])
    alone = next(r for r in document["results"] if r["ranks"] == 1)
    names = [("one_sided_graph", "ONE_SIDED, graph"), ("fixed_graph", "FIXED, graph"), ("two_phase_eager", "TWO_PHASE")]
    groups, best = [], None
    for result in document["results"]:
        group = []
        for plan, name in names:
            key = plan if plan in result["scaling"] else plan.replace("_eager", "")
            step = result["scaling"].get(key, {}).get("step_ms")
            base = alone["scaling"].get(key, {}).get("step_ms")
            share = base / step if step and base else None
            group.append((name, share, f"{share:.2f} ({ms(step)} ms)" if share else ""))
            best = share if plan == "one_sided_graph" and share else best
        groups.append((f"{result['ranks']} GPU" + ("s" if result["ranks"] > 1 else ""), group))
    single = next((r["single_ms"] for r in document["results"] if r["single_ms"]), None)
    last = document["results"][-1]["ranks"]
    text = (
        f"A storage without a collection takes {ms(single)} ms for a step of W1; a collection on one GPU takes longer, "
        f"and from there to {last} GPUs a rank keeps {best:.2f} of its speed with the ONE_SIDED plan. The dashed line "
        "is the goal, 0.9.\n\n" + sources([document])
    )
    return plots.bars("Weak scaling of W1: share of one GPU's speed", groups, line=0.9), text


def plans_figure(kinds):
    documents = [d for d in kinds["plans"] if d["backend"] == "cuda"]
    if not documents:
        return None, "No results yet: `hotbed-plans --backend cuda`."
    groups = []
    for name in [plan["plan"] for plan in documents[0]["plans"] if plan["plan"] not in ("sw-serial", "sparse-dist")]:
        group = []
        for document in documents:
            plan = next((p for p in document["plans"] if p["plan"] == name), None)
            sms = f"{document.get('move_sms') or 8} SMs move rows"
            group.append((sms, 100 * plan["hidden"] if plan else None, f"{100 * plan['hidden']:.0f} %" if plan else ""))
        groups.append((name, group))
    document = documents[0]
    exposed = next(p for p in document["plans"] if p["plan"] == "prefetch")["exposed_ms"]
    text = (
        f"Beside a dense model of the same length, the plan with prefetch leaves {exposed:.1f} of "
        f"{document['ahead_ms']:.1f} ms exposed when {document.get('move_sms') or 8} SMs move rows. With fewer SMs "
        "exchange and prefetch take longer, and so does the dense model beside them: the shares of different numbers "
        "of SMs do not compare directly.\n\n"
        + "\n".join(
            f"- {d['device']}, commit {d['commit'][:7]}: `hotbed-plans --backend cuda --insertion {d['insertion']}"
            + (f" --move-sms {d['move_sms']}`" if d.get("move_sms") else "`")
            for d in documents
        )
    )
    return plots.bars("Share of exchange and prefetch of W5 that a plan hides, %", groups), text


def checkpoint_figure(kinds):
    groups, rates = [], []
    for document in kinds["checkpoint"]:
        device = next(document["context"][k] for k in sorted(document["context"]) if k.endswith("_device"))
        for entry in document["benchmarks"]:
            if entry.get("error_occurred") or "median_us" not in entry or "of_probe" not in entry:
                continue
            operation, _ = micro_name(entry["name"])
            moved = entry["bytes_per_second"] * entry["real_time"] * 1e-6 / 1e9
            rate_of = moved / (entry["median_us"] * 1e-6)
            where = "H200" if "H200" in device else "host"
            groups.append(
                (
                    f"{operation[len('checkpoint/') :].replace('_', ' ')}, {where}, {moved:.1f} GB",
                    [
                        ("Hotbed", rate_of, f"{rate_of:.2f}"),
                        ("O_DIRECT probe", entry["probe_gb_per_s"], f"{entry['probe_gb_per_s']:.2f}"),
                    ],
                )
            )
            rates.append(entry["of_probe"])
    if not groups:
        return None, "No results yet: `hotbed-bench --benchmark_filter=checkpoint/`."
    text = (
        f"Saves and loads with checksums reach {min(rates):.2f} to {max(rates):.2f} of a raw O_DIRECT probe of the "
        "same bytes, measured just before each of them; the probe moves 4 MiB at a time from one thread, a save has "
        "four writers."
    )
    return plots.bars("Checkpoints, GB/s", groups), text


PARAMETERS = {
    "batch": "samples a step",
    "bag": "keys of a bag",
    "dim": "floats of a row",
    "tables": "tables",
    "load": "load of the index",
    "skew": "exponent of the keys",
}


def curves_figure(kinds):
    """Prefers a GPU's results to the host's.  The text has the figure's link, since there may be no figure."""
    if not kinds["curves"]:
        return None, "No results yet: `hotbed-workloads --curves --json bench/results/curves-DEVICE.json`."
    document = min(kinds["curves"], key=lambda d: d["backend"] != "cuda")
    panels, rows = [], []
    for name, label in PARAMETERS.items():
        points = [r for r in document["results"] if r["curve"] == name]
        lines = [
            [(r["value"], r[f"{field}_ms"] * 1e6 / r["keys_a_step"]) for r in points]
            for field in ("train", "limit_train", "eval", "limit_eval")
        ]
        panels.append((label, name not in ("load", "skew"), lines))
        ends = [f(points, key=lambda r: r[f"{phase}_to_limit"]) for phase in ("train", "eval") for f in (min, max)]
        values = [r[f"{phase}_to_limit"] for r, phase in zip(ends, ("train", "train", "eval", "eval"))]
        rows.append([name, *(f"{value:.1f} at {r['value']:g}" for value, r in zip(values, ends))])
    text = (
        "![Time for each key while one parameter varies](figures/curves.svg)\n\n"
        "Time over the limit, which moves each byte of the step once at the copy rate of the same run:\n\n"
        + table(["parameter", "train, lowest", "highest", "eval, lowest", "highest"], rows)
        + "\n\n"
        + sources([document])
    )
    return plots.curves("Time for each key of a step, ns", ["train", "eval"], panels), text


# --- verification ----------------------------------------------------------------------------------------


def verification():
    """The page of test runs on GPUs, newest first."""
    with open(VERIFICATION + ".json", encoding="utf-8") as file:
        records = sorted(json.load(file)["runs"], key=lambda r: r["date"], reverse=True)
    rows = [[r["date"][:10], f"`{r['commit'][:7]}`", r["device"], r["what"], r["seen"]] for r in records]
    return (
        "# Verification on GPUs\n\n"
        "The last run of each kind of test and tool on a GPU: commit, machine and what it reported. Written by "
        "`./run report` from\n"
        "`verification.json`, in which a run replaces the one before; do not edit.\n\n"
        + table(["date", "commit", "device", "what", "result"], rows)
        + "\n"
    )


# --- pages -----------------------------------------------------------------------------------------------

LONG = {
    "workloads": (
        "Workloads",
        workload_section,
        "`hotbed-workloads` measures them; docs/performance.md describes them.",
    ),
    "exchange": (
        "Exchanges between ranks",
        exchange_section,
        "`hotbed-exchange` measures them. *Efficiency*, in brackets, is the same plan's step on one rank over this "
        "one's.",
    ),
    "plans": (
        "Exchange and prefetch beside the model",
        plans_section,
        "`hotbed-plans` measures them: steps of W5 beside a dense model as long as exchange and prefetch together.",
    ),
    "checkpoint": (
        "Checkpoints",
        checkpoint_section,
        "`hotbed-bench --benchmark_filter=checkpoint/` measures them. *Share* is the probe's time over Hotbed's; "
        "*others* the share of the processors that other programs used.",
    ),
    "host": (
        "The host backend beside other libraries",
        host_section,
        "`bench/host.py` measures them: the fastest of many steps, on the same cores. *EmbeddingBag* is PyTorch's, "
        "with sparse gradients (its AdaGrad has a state for each element; the others' is row-wise); *TBE* is FBGEMM's "
        "for processors, which has no Adam. Both are static: they do no hashing. The hash maps are looped over, "
        "without prefetching, and hold their keys in two to four times the memory of the index.",
    ),
    "micro": (
        "Kernels one by one",
        micro_section,
        "`hotbed-bench` measures them. *Of limit* is the least time over the median: for the index the time in which "
        "plain code reads as many random lines, for others that in which a large copy moves the bytes.",
    ),
}
FIGURE_OF = {
    "peers": peers_figure,
    "limits": limits_figure,
    "scaling": scaling_figure,
    "plans": plans_figure,
    "checkpoint": checkpoint_figure,
    "curves": curves_figure,
    "host": host_figure,
}


def wrapped(text):
    """Break the lines of paragraphs and lists at 120 columns."""
    lines = []
    for line in text.split("\n"):
        rest = "  " if line.startswith("- ") else ""
        more = textwrap.wrap(line, 120, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False)
        lines += [line] if line.startswith("|") or not line else more
    return "\n".join(lines)


def replace(page, name, text):
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if begin not in page or end not in page:
        raise SystemExit(f"report: docs/performance.md has no {begin} ... {end}")
    head, rest = page.split(begin, 1)
    return head + begin + "\n" + wrapped(text) + "\n" + end + rest.split(end, 1)[1]


def read(path):
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8") as file:
        return file.read()


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        raise SystemExit(__doc__)
    kinds = load()
    files = {}
    for name, (title, section, text) in LONG.items():
        files[os.path.join(RESULTS, name + ".md")] = (
            f"# {title}\n\nWritten by `./run report` from the JSON files beside it; do not edit. {text}\n\n"
            f"{section(kinds)}\n"
        )
    page = read(PAGE)
    for name, figure in FIGURE_OF.items():
        svg, text = figure(kinds)
        if svg:
            files[os.path.join(FIGURES, name + ".svg")] = svg
        page = replace(page, name, text)
    files[PAGE] = page
    files[VERIFICATION + ".md"] = verification()
    stale = {path: text for path, text in files.items() if read(path) != text}
    for path, text in stale.items():
        print(("stale: " if check else "wrote ") + os.path.relpath(path, ROOT))
        if not check:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
    if not stale:
        print("report: up to date")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
