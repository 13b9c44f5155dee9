"""Train, publish and serve on one machine: a table shows predictions, version and lag move.

    python serving_demo.py --seconds 60

Starts `serving_train.py` and `serving_http.py` as processes of their own, asks the server once a second, and writes
lag.svg, a picture of the lag: the age of the rows when they were first used.
"""

import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent


def ask(port, path, body=None):
    """Return the answer; None: the server does not answer yet."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data, timeout=5) as answer:
            return json.load(answer)
    except (urllib.error.URLError, ConnectionError):
        return None


def draw(path, lags):
    """Write lags, pairs of (seconds, lag), as a picture."""
    wide, high, most = 640, 240, max(lag for _, lag in lags)
    end = max(at for at, _ in lags) or 1
    dots = [(40 + 580 * at / end, 200 - 160 * lag / most) for at, lag in lags]
    parts = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#4878a8"/>' for x, y in dots]
    parts.append('<line x1="40" y1="200" x2="620" y2="200" stroke="black"/>')
    parts.append('<text x="40" y="24">lag of each version, seconds since its copy in the trainer</text>')
    parts.append(f'<text x="4" y="44">{most:.2f}</text><text x="16" y="204">0</text>')
    parts.append(f'<text x="560" y="222">{end:.0f} seconds</text>')
    style = 'font-family="sans-serif" font-size="13"'
    text = f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" {style}>{"".join(parts)}</svg>'
    path.write_text(text + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--every", type=float, default=3)
    parser.add_argument("--picture", type=pathlib.Path, default=pathlib.Path("lag.svg"))
    args = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        train = [sys.executable, HERE / "serving_train.py", directory, "--seconds", "86400"]
        trainer = subprocess.Popen([*train, "--every", str(args.every)])
        server = None
        try:
            while trainer.poll() is None and not any(name.startswith("cut-") for name in os.listdir(directory)):
                time.sleep(0.1)
            server = subprocess.Popen(
                [sys.executable, HERE / "serving_http.py", directory, "--port", str(port)], stdout=subprocess.DEVNULL
            )
            lags = watch(args.seconds, (trainer, server), port)
        finally:
            for process in filter(None, (server, trainer)):
                process.terminate()
                process.wait()
    if len(lags) < 2:
        sys.exit("serving_demo: the server has used fewer than two versions")
    draw(args.picture, lags)
    values = sorted(lag for _, lag in lags)
    print(
        f"{len(values)} versions; lag median {values[len(values) // 2]:.3f} s, most {values[-1]:.3f} s; {args.picture}"
    )


def watch(seconds, processes, port):
    """Print a row each second, as long as both processes run; return the lag of each version."""
    begin, seen, lags = None, 0, []
    while all(process.poll() is None for process in processes):
        health = ask(port, "/health")
        found = ask(port, "/predict", {"keys": [0, 0, 0, 1], "lengths": [[1, 1], [1, 1]]})
        if health is not None and found is not None:
            if begin is None:
                begin = time.monotonic()
                print(
                    f"{'second':>6} {'version':>8} {'step':>8} {'age s':>6} {'lag s':>6}   user 0 likes item 0, item 1"
                )
            at = time.monotonic() - begin
            if health["version"] != seen:
                seen = health["version"]
                lags.append((at, health["lag"]))
            scores = "   ".join(f"{score:.3f}" for score in found["scores"])
            print(
                f"{at:6.0f} {seen:8} {health['step']:8} {health['age']:6.1f} {health['lag']:6.3f}   {scores}",
                flush=True,
            )
            if at > seconds:
                break
        time.sleep(1)
    return lags


if __name__ == "__main__":
    main()
