#!/bin/sh
# Replays the traces of a folder under GNU parallel and prints their lines as they end (docs/fleet.md).
#
#     fleet.sh FOLDER [OPTION...] > results.ndjson
#
# HOSTS: where, as --sshlogin has it, `:` for this machine (the default), `:,a,8/b` for this one, a, and eight jobs
# at a time on b. All find the traces under the same paths. PORTOLAN: the program, if it is not in the PATH.
# JOBLOG: a file that names each job, how it ended and where it ran. OPTIONs go to `portolan replay`.
# The exit code is 0, or how many jobs ended otherwise (101 for more than 100).
set -eu
folder=$1
shift
find "$folder" -type f \( -name '*trace' -o -name '*trace.[gxz]*' -o -name '*.txt' -o -name '*.txt.[gxz]*' \) -print0 |
    sort --zero-terminated |
    parallel --null --no-run-if-empty --sshlogin "${HOSTS:-:}" --retries 2 --joblog "${JOBLOG:-/dev/null}" \
        "${PORTOLAN:-portolan}" replay --ndjson "$@" {}
