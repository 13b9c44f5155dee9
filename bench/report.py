#!/usr/bin/env python3
"""bench/report.py - write the tables and the picture of docs/performance.md from bench/results/*.json.

    bench/report.py [--check]     --check: write nothing, status 1 when the page is not up to date

Only Python's own library is used; the picture is written as SVG.
"""
import glob
import html
import json
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = os.path.join(ROOT, "bench", "results")
PAGE = os.path.join(ROOT, "docs", "performance.md")
PICTURE = os.path.join(ROOT, "docs", "performance.svg")

# Kernels of a step and of an eval, in the order of the file, by what the reader knows them as.
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
    kinds = {"workloads": [], "baseline": [], "exchange": [], "checkpoint": [], "micro": [], "plans": [], "link": []}
    for path in sorted(glob.glob(os.path.join(RESULTS, "*.json"))):
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        document["file"] = os.path.basename(path)
        form = document.get("format", "")
        if form.startswith("hotbed-workloads"):
            kinds["workloads"].append(document)
        elif form.startswith("hotbed-baseline"):
            kinds["baseline"].append(document)
        elif form.startswith("hotbed-exchange"):
            kinds["exchange"].append(document)
        elif form.startswith("hotbed-plans"):
            kinds["plans"].append(document)
        elif form.startswith("hotbed-link"):
            kinds["link"].append(document)
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
    """Columns beside ours: (name, {phase: ms})."""
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
            columns.append(
                (name, {p: result.get(f"{key}_{p}_ms") for p in ("forward", "backward", "train", "eval")})
            )
    name, other = baseline_of(kinds, document, result)
    if other:
        columns.append(
            (name.split(",")[0], {p: other[f"eager_{p}_ms"] for p in ("forward", "backward", "train", "eval")})
        )
    return columns


def phase_table(kinds, document, result):
    """Each phase beside its limit and what others need, and what separates them."""
    columns = references(kinds, document, result)
    header = ["ms", "eager", "graph"] + [name for name, _ in columns] + [
        f"graph / {name}" for name, _ in columns
    ]
    rows = []
    for phase, label in (("forward", "fwd"), ("backward", "bwd"), ("train", "train"), ("eval", "eval")):
        ours = result[f"graph_{phase}_ms"]
        row = [label, ms(result[f"eager_{phase}_ms"]), ms(ours)]
        row += [ms(values[phase]) for _, values in columns]
        row += [ratio(ours, values[phase]) for _, values in columns]
        rows.append(row)
    return table(header, rows)


def stage_table(result):
    """Where a step's time goes, beside the least that the stage's bytes take."""
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
    """The sentence that says what is between us, the static tables and the floor."""
    if "tbe_train_ms" not in result or not stages_of(result):
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
    """What the link between the tiers reaches, by copies and by row."""
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
    """What crosses the link in each workload that has two tiers."""
    rows = []
    for result in document["results"]:
        if "mode" not in result:
            continue
        lru = result.get("lru_rows_a_step")
        train = result["eager_train_ms"]
        overlap = result.get("overlap_train_ms")
        dense = result.get("overlap_dense_ms", 0)
        rows.append(
            [
                result["workload"],
                result["mode"],
                f"{result['upper_rows']:,} of {result['keys']:,}",
                f"{result['fetched_a_step']:,.0f}",
                f"{lru:,.0f}" if lru is not None else "",
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
        "exact LRU",
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
            f"([{document['file']}](../bench/results/{document['file']}))"
        )
        for result in document["results"]:
            checked = result["rows_checked"]
            parts.append(
                f"**{result['workload']}**, {result['optimizer']}, scale {result['scale']:g}: "
                f"{result['keys_a_step']:,} keys a step, {result['unique_a_step']:,} distinct, "
                f"{result['rows']:,} rows a table, {'full to' if 'mode' in result else 'load'} {result['load']:.2f}; copy "
                f"{result['limit_copy_gb_per_s']:,.0f} GB/s, gather "
                f"{result['limit_gather_gb_per_s']:,.0f} GB/s; host waits a step "
                f"{result['host_waits_a_step']:g}, allocations {result['allocations_a_step']:g}; "
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
    if any(chart_bars(kinds, d) for d in kinds["workloads"]):
        parts.append("![Times of the workloads beside limits and peers](performance.svg)")
    return "\n\n".join(parts)


# --- microbenchmarks -----------------------------------------------------------------------------


def rate(value, unit):
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.2f} {prefix}{unit}"
    return f"{value:.1f} {unit}"


def micro_name(name):
    """module/operation and its arguments, without what Google Benchmark adds."""
    parts = [p for p in name.split("/") if p != "manual_time" and not p.startswith("iterations:")]
    return "/".join(parts[:2]), " ".join(p for p in parts[2:] if ":" in p)


def find_rates(document):
    """{arguments: {operation: keys a second}} of the index and of other libraries' maps on the host."""
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
    """Find in the index beside hash maps of other libraries."""
    rates = find_rates(document)
    peers = sorted({name for rate in rates.values() for name in rate if name.startswith("peer/")})
    rows = [
        [arguments, f"{rate['index/alone_find']:.1f}"]
        + [f"{rate[p]:.1f}" if p in rate else "" for p in peers]
        + [f"{rate['index/alone_find'] / max(rate[p] for p in peers if p in rate):.2f}x"]
        for arguments, rate in rates.items()
    ]
    names = [p[len("peer/") : -len("_find")] for p in peers]
    return table(["find, M keys/s", "index"] + names + ["to the best map"], rows)


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
            share = entry.get("of_copy")
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
            f"([{document['file']}](../bench/results/{document['file']}))"
        )
        if find_rates(document):
            parts.append(map_table(document))
        parts.append(table(["kernel", "arguments", "median us", "items", "bytes", "of copy"], rows))
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
                [operation[len("checkpoint/") :], backend, f"{count:,}", f"{moved:.2f}", f"{median * 1e3:,.{0 if median >= 0.01 else 2}f}"]
                + [f"{moved / median:.2f}"]
                + [
                    f"{entry[rate_of]:.2f}, **{entry[share]:.2f}**" if share in entry else ""
                    for rate_of, share in probes
                ]
                + [f"{entry['others'] * 100:.0f} %" if "others" in entry else ""]
            )
        devices = [context[key] for key in sorted(context) if key.endswith("_device")]
        parts.append(
            f"{'; '.join(devices)}; commit {context.get('commit', 'unknown')}, {context.get('date', '')} "
            f"([{document['file']}](../bench/results/{document['file']})):\n"
            f"`{context.get('command', '')}`"
        )
        header = ["", "backend", "rows", "GB", "median ms", "GB/s", "probe: GB/s, share", "huge pages", "others"]
        parts.append(table(header, rows))
    return "\n\n".join(parts) if parts else "No results yet: `./run bench`, or `./run gpu bench` on a machine with a GPU."


# --- ranks -----------------------------------------------------------------------------------------

EXCHANGES = {"keys": "keys", "rows": "rows", "gradients": "rows"}  # beside which all-to-all each phase stands


def exchange_table(document):
    """Phases of each plan beside an all-to-all of as many bytes."""
    plans = sorted({plan for result in document["results"] for plan in result["exchange"]})
    rows = []
    for result in document["results"]:
        for phase, beside in EXCHANGES.items():
            own = result[f"{beside}_own_ms"]
            times = [result["exchange"].get(plan, {}).get(f"{phase}_ms") for plan in plans]
            rows.append(
                [str(result["ranks"]), phase, f"{result[f'{beside}_bytes'] / 1e6:.2f}", ms(own)]
                + [f"{ms(t)} ({ratio(t, own)})" if t else "" for t in [result[f"{beside}_comm_ms"]] + times]
            )
    names = [plan.replace("_eager", "").replace("_graph", ", graph") for plan in plans]
    return table(["ranks", "phase", "MB a rank", document["own"], "communicator"] + names, rows)


def scaling_table(document):
    """Steps of W1 by each plan: ms, and how much of one rank's speed each rank keeps."""
    alone = {plan: times["step_ms"] for result in document["results"] if result["ranks"] == 1
             for plan, times in result["scaling"].items()}
    plans = sorted({plan for result in document["results"] for plan in result["scaling"]})
    rows = []
    for result in document["results"]:
        cells = []
        for plan in plans:
            step = result["scaling"].get(plan, {}).get("step_ms")
            share = alone[plan] / step if step and plan in alone and result["ranks"] > 1 else None
            cells.append("" if not step else ms(step) + (f" ({share:.2f})" if share else ""))
        rows.append([str(result["ranks"]), ms(result["single_ms"]) if result["single_ms"] else ""] + cells)
    names = [plan.replace("_eager", "").replace("_graph", ", graph") for plan in plans]
    return table(["ranks", "a storage alone"] + names, rows)


def exchange_section(kinds):
    parts = []
    for document in kinds["exchange"]:
        first = document["results"][0]
        parts.append(f"### {document['device']}, {document['transport']}")
        parts.append(
            f"`{document['command']}`, commit {document['commit']}, {document['date']} "
            f"([{document['file']}](../bench/results/{document['file']})); {first['keys']:,} keys a rank, "
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
            f"steps, commit {document['commit']}, {document['date']} "
            f"([{document['file']}](../bench/results/{document['file']})): exchange and prefetch "
            f"{ms(document['ahead_ms'])} ms, dense model {ms(document['dense_ms'])} ms, floor {ms(document['floor_ms'])} ms; "
            f"sw-auto / prefetch {document['auto_over_prefetch']:.3f}{spread_of_ratio(document)}."
        )
        rows = [
            [plan["plan"], ms(plan["step_ms"]), ms(plan["exposed_ms"]), f"{100 * plan['hidden']:.0f} %"]
            for plan in document["plans"]
        ]
        parts.append(table(["plan", "step, ms", "exposed, ms", "hidden"], rows))
        tried = ", ".join(
            f"{ms(c['predicted_ms'])} and {ms(c['measured_ms'])}" for c in document.get("candidates", [])
        )
        if tried:
            parts.append(f"Candidates, ms predicted and measured: {tried}.")
        parts.append(f"Schedule found (task:stage): {document['schedule']}.")
    return "\n\n".join(parts) if parts else "No results yet: `./run bench`, or `./run gpu bench`."


def moves_section(kinds):
    parts = []
    cases = ["read", "write", "both"]
    for document in kinds["link"]:
        parts.append(f"### Ways to move rows, {document['device']}")
        parts.append(
            f"{document['rows']:,} rows each way of {document['gib']:g} GiB, a model of {document['layers']} layers, priority: "
            f"{document['priority']}; commit {document['commit']}, {document['date']} "
            f"([{document['file']}](../bench/results/{document['file']})): `{document['command']}`"
        )
        rows = []
        for result in document["results"]:
            count = next(f"{result[unit]} {unit}" for unit in ("engine", "warps", "sms") if unit in result)
            rows.append(
                [str(result["row_bytes"]), result["way"], count]
                + [f"{result[f'{case}_gb_per_s']:.1f}" for case in cases]
                + [f"{result[f'model_beside_{case}']:.2f} ({result[f'{case}_beside_gb_per_s']:.1f})" for case in cases]
            )
        parts.append(
            table(
                ["rows, bytes", "way", "each way", "read, GB/s", "write", "both"]
                + ["the model's time beside reads (GB/s meanwhile)", "beside writes", "beside both"],
                rows,
            )
        )
    return "\n\n".join(parts) if parts else "No results yet: `hotbed-link`, or `./run gpu bench`."


# --- picture -------------------------------------------------------------------------------------

COLOURS = {
    "graph": "#1f6f8b",
    "eager": "#6fb1c7",
    "limit": "#b9c0c6",
    "floor": "#8d979f",
    "goal": "#3f8f4f",
    "TBE": "#d08c2f",
    "dynamicemb": "#b5493b",
}


def chart_bars(kinds, document):
    """[(group, [(name, ms)])] of one document."""
    groups = []
    for result in document["results"]:
        for phase in ("train", "eval"):
            bars = [("graph", result[f"graph_{phase}_ms"]), ("eager", result[f"eager_{phase}_ms"])]
            for name, values in references(kinds, document, result):
                if values[phase] is not None:
                    bars.append((name, values[phase]))
            groups.append((f"{result['workload']} {phase}", bars))
    return groups


def picture(kinds):
    """One panel a document: horizontal bars, each group on its own scale."""
    width, left, bar, right = 760, 210, 18, 80
    out = []
    y = 20
    for document in kinds["workloads"]:
        groups = chart_bars(kinds, document)
        if not groups:
            continue
        out.append(f'<text x="12" y="{y + 12}" class="title">{html.escape(document["device"])}, ms</text>')
        y += 30
        for group, bars in groups:
            most = max(value for _, value in bars)
            out.append(f'<text x="12" y="{y + 13}" class="group">{html.escape(group)}</text>')
            for name, value in bars:
                long = max(1.0, value / most * (width - left - right))
                colour = COLOURS.get(name, "#7a6aa8")
                out.append(
                    f'<text x="{left - 8}" y="{y + 13}" class="name">{html.escape(name.split(",")[0])}</text>'
                    f'<rect x="{left}" y="{y}" width="{long:.1f}" height="{bar - 4}" fill="{colour}"/>'
                    f'<text x="{left + long + 6:.1f}" y="{y + 12}" class="value">{ms(value)}</text>'
                )
                y += bar
            y += 10
        y += 16
    style = (
        "text{font-family:sans-serif;fill:#222}.title{font-size:14px;font-weight:bold}"
        ".group{font-size:13px;font-weight:bold}.name{font-size:12px;text-anchor:end}.value{font-size:12px}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" viewBox="0 0 {width} {y}">\n'
        f'<style>{style}</style>\n<rect width="{width}" height="{y}" fill="#ffffff"/>\n'
        + "\n".join(out)
        + "\n</svg>\n"
    )


# --- page ----------------------------------------------------------------------------------------


def replace(page, name, text):
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if begin not in page or end not in page:
        raise SystemExit(f"report: docs/performance.md has no {begin} ... {end}")
    head, rest = page.split(begin, 1)
    return head + begin + "\n" + text + "\n" + end + rest.split(end, 1)[1]


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
    old = read(PAGE)
    page = replace(replace(old, "workloads", workload_section(kinds)), "micro", micro_section(kinds))
    page = replace(page, "exchange", exchange_section(kinds))
    page = replace(page, "checkpoint", checkpoint_section(kinds))
    page = replace(page, "plans", plans_section(kinds))
    page = replace(page, "link", moves_section(kinds))
    files = {PAGE: page}
    if kinds["workloads"]:
        files[PICTURE] = picture(kinds)
    stale = {path: text for path, text in files.items() if read(path) != text}
    for path, text in stale.items():
        print(("stale: " if check else "wrote ") + os.path.relpath(path, ROOT))
        if not check:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
    if not stale:
        print("report: up to date")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
