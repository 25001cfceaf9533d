#!/bin/bash
# Trains until the run has ended, going on from its latest checkpoint after whatever stops it on the way. On several
# hosts, start it on each with the same arguments.
#
#   experiments/launch/until_done.sh PRESET [--option value ...]
#
# Exit status 0: done. 2, a usage error, and 3, a run that cannot go on, would be the same another time. Anything else
# (75: preempted, 1 or 134: another host was lost, or a crash) is started again; but what ends five times in a row within
# ten minutes, and not by preemption, is an error that will not go away, and ends this too.
crashes=0
SECONDS=0
until python -m experiments.train "$@" --resume; do
    status=$?
    if [ "$status" -eq 2 ] || [ "$status" -eq 3 ]; then exit "$status"; fi
    if [ "$status" -eq 75 ] || [ "$SECONDS" -ge 600 ]; then crashes=0; else crashes=$((crashes + 1)); fi
    if [ "$crashes" -ge 5 ]; then
        echo "exit status $status, $crashes times in a row" >&2
        exit "$status"
    fi
    echo "exit status $status, again in 10 s" >&2
    sleep 10
    SECONDS=0
done
