#!/bin/sh
# Slurm's HealthCheckProgram: drains the node if a finding of `autoclave doctor` is broken. Slurm ignores its exit code.
# shellcheck source=deploy/slurm/autoclave.sh
. "${0%/*}/autoclave.sh"

case $(timeout -k 2 5 scontrol show node "$NODE" 2>/dev/null) in
  *DRAIN*) exit 0 ;; # the reason that it has must stay
esac

REPORT=$(timeout -k 5 30 autoclave doctor --without-kubernetes) # Slurm kills a health check after 60 seconds
code=$?
[ "$code" -ne 0 ] || exit 0
printf '%s\n' "$REPORT" | grep '^broken' >&2
BROKEN=$(printf '%s\n' "$REPORT" | awk '$1 == "broken" && !seen[$2]++ { printf "%s%s", sep, $2; sep = ", " }')
fail "$code" "doctor: ${BROKEN:-no report} broken, exit code $code"
