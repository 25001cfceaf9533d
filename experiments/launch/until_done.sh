#!/bin/bash
# Trains until the run has ended, going on from its latest checkpoint after whatever stops it on the way. On several
# hosts, start it on each with the same arguments.
#
#   experiments/launch/until_done.sh PRESET [--option value ...]
#
# Exit status 0: done. 2, a usage error, and 3, a run that cannot go on, would be the same another time. Anything else
# (75: preempted, 1 or 134: another host was lost) is started again.
until python -m experiments.train "$@" --resume; do
    status=$?
    if [ "$status" -eq 2 ] || [ "$status" -eq 3 ]; then exit "$status"; fi
    echo "exit status $status, again in 10 s" >&2
    sleep 10
done
