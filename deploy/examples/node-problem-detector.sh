#!/bin/sh
# A custom plugin of the node-problem-detector: is a GPU of this node quarantined? Prints which, and why.
# Exit codes, as the detector reads them: 0 none, 1 at least one, 2 not known.
#
# --host: the detector runs in a pod, with hostPID and privileged, and Autoclave on the host or in a pod of its own.
set -u
export PATH=/opt/autoclave/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin # it runs as root
if [ "${1:-}" = --host ]; then
  nsenter --target 1 --mount -- /bin/sh -c : || exit 2 # its own failure must not count as a quarantined GPU
  exec nsenter --target 1 --mount -- /bin/sh -s <"$0"
fi

if command -v autoclave >/dev/null; then
  inside=
else
  inside="crictl exec $(crictl ps --quiet --label io.kubernetes.container.name=scrubber | head -n 1)"
fi
# shellcheck disable=SC2086 # one word for each part of the command
rows=$(timeout 8 $inside autoclave --service-wait 0s status --state quarantined --no-headers </dev/null) || {
  echo "the scrub service does not answer"
  exit 2
}
[ -n "$rows" ] || exit 0
echo "$rows" | awk '{ printf "%sGPU %s", sep, $1; sep = ", " } END { print " quarantined: run autoclave explain" }'
exit 1
