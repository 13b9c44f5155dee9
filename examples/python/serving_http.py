"""Serve an exported model over HTTP, with rows that follow a publisher.

    python serving_http.py published --port 8080
    curl -d '{"keys": [7, 1, 2], "lengths": [[1], [2]]}' http://127.0.0.1:8080/predict

`serving_train.py` writes the directory.  This process has none of its code: the program comes from torch.export.
Needs aiohttp.
"""

import argparse
import asyncio
import os

import torch
from aiohttp import web

import hotbed
import hotbed.serve

MODEL = web.AppKey("model", torch.nn.Module)
MOST_SECONDS = web.AppKey("most_seconds", float)


async def predict(request):
    """Answer with a score for each sample, and the version of the rows."""
    try:
        body = await request.json()
        keys, lengths = (torch.tensor(body[name]) for name in ("keys", "lengths"))
        for given in (keys, lengths):
            if given.dtype != torch.int64 and given.numel() > 0:
                raise ValueError("keys and lengths are not integers")
        keys, lengths = keys.to(torch.int64), lengths.to(torch.int64)
        # torch.export treats one sample as a special case, so a program for any number has at least two.
        one = lengths.shape[1] == 1
        if one:
            lengths = torch.cat([lengths, torch.zeros_like(lengths)], dim=1)
        with torch.inference_mode():
            scores = await asyncio.get_running_loop().run_in_executor(None, request.app[MODEL], keys, lengths)
    except (KeyError, ValueError, TypeError, IndexError, RuntimeError, AssertionError, hotbed.HotbedError) as error:
        raise web.HTTPBadRequest(text=f"{error}\n") from error
    stats = hotbed.serve.reader().stats()
    return web.json_response({"scores": scores[: 1 if one else None].tolist(), "version": stats["version"]})


async def health(request):
    """Answer with 200, or with 503 and the reason why the newest cut is not used."""
    try:
        hotbed.serve.reader().health(request.app[MOST_SECONDS])
    except hotbed.HotbedError as error:
        raise web.HTTPServiceUnavailable(text=f"{error}\n") from error
    return web.json_response(hotbed.serve.reader().stats())


async def metrics(request):
    """Answer in Prometheus's text format."""
    return web.Response(text=hotbed.serve.reader().metrics())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--most-seconds", type=float, default=0, help="age of the rows at which health fails; 0: any")
    args = parser.parse_args()
    torch.set_num_threads(1)
    hotbed.serve.use(args.directory)
    app = web.Application()
    app[MODEL] = torch.export.load(os.path.join(args.directory, "program.pt2")).module()
    app[MOST_SECONDS] = args.most_seconds
    app.add_routes([web.post("/predict", predict), web.get("/health", health), web.get("/metrics", metrics)])
    web.run_app(app, host="127.0.0.1", port=args.port)


if __name__ == "__main__":
    main()
