#!/usr/bin/env python3
"""Replays traces on the workers of a Dask cluster and prints their lines as they end (docs/fleet.md).

    fleet.py TRACE... > results.ndjson                          workers on this machine, one for each CPU
    fleet.py --hosts a,b,c TRACE... > results.ndjson            workers on a, b and c, by SSH
    fleet.py --scheduler tcp://a:8786 TRACE... > results.ndjson a cluster that runs already

Workers find the traces under the same paths, and `portolan` or what --portolan names. What comes after `--` is
handed to `portolan replay`. Exit codes are those of portolan: 1 if a check failed, or else 2 if a trace could not
be replayed.
"""

import argparse
import contextlib
import json
import subprocess
import sys

import dask
from distributed import Client, KilledWorker, LocalCluster, SSHCluster, as_completed


def replay(command, trace):
    """On a worker: the line of a trace, what portolan said beside it, and its exit code."""
    done = subprocess.run([*command, trace], capture_output=True, text=True)
    if not done.stdout.endswith("\n"):
        raise RuntimeError(f"portolan ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout, done.stderr, done.returncode


@contextlib.contextmanager
def started(args):
    """The client of the cluster that is asked for; gone before its cluster is."""
    if args.scheduler:
        cluster = contextlib.nullcontext(args.scheduler)
    elif args.hosts:
        hosts = args.hosts.split(",")
        cluster = SSHCluster([hosts[0], *hosts])
    else:
        cluster = LocalCluster(threads_per_worker=1, dashboard_address=None)
    with cluster as address, Client(address) as client:
        yield client


def tell(trace, task):
    """Prints what a worker says of a trace; its exit code."""
    try:
        line, said, code = task.result()
    except KilledWorker:
        raise
    except Exception as error:
        return give_up(trace, error)
    print(line, end="", flush=True)
    print(said, end="", file=sys.stderr)
    return code


def give_up(trace, error):
    """Prints why there is nothing of a trace; the exit code."""
    line = {"trace": {"source": trace}, "error": f"{type(error).__name__}: {error}"}
    print(json.dumps(line), flush=True)
    print(f"fleet.py: {trace}: {error}", file=sys.stderr)
    return 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--portolan", default="portolan", metavar="PROGRAM")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--hosts", metavar="HOST,...")
    where.add_argument("--scheduler", metavar="ADDRESS")
    parser.add_argument("traces", nargs="+", metavar="TRACE")
    ours, theirs = sys.argv[1:], []
    if "--" in ours:
        at = ours.index("--")
        ours, theirs = ours[:at], ours[at + 1:]
    args = parser.parse_args(ours)

    # A trace with which two workers died is not tried again at once; a worker that dies otherwise loses nothing.
    dask.config.set({"distributed.scheduler.allowed-failures": 1})
    command = [args.portolan, "replay", "--ndjson", *theirs]
    codes = set()
    with started(args) as client:

        def submit(trace):
            return client.submit(replay, command, trace, pure=False)

        tasks = {submit(trace): trace for trace in args.traces}
        suspects = []
        for task in as_completed(tasks):
            try:
                codes.add(tell(tasks[task], task))
            except KilledWorker:
                suspects.append(tasks[task])
        # What only waits on a worker is suspected with what kills it. Alone on the cluster, the culprit is.
        for trace in suspects:
            try:
                codes.add(tell(trace, submit(trace)))
            except KilledWorker as error:
                codes.add(give_up(trace, error))
    return 1 if 1 in codes else max(codes)


if __name__ == "__main__":
    sys.exit(main())
