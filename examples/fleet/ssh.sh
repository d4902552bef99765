#!/bin/sh
# The same program on some hosts that see one folder: ./ssh.sh /shared/job /shared/in /shared/out a b c
# Without hosts, two of this machine. A host that fails does not stop the others; run it again to finish what is left.
set -u
here=$1 input=$2 output=$3
shift 3
run="cd '$here' && ${PYTHON:-python3} job.py '$input' '$output'"
if [ $# -eq 0 ]; then
    sh -c "$run" & sh -c "$run"
else
    for host in "$@"; do
        ssh -o BatchMode=yes "$host" "$run" &
    done
fi
wait
