#!/bin/sh
# Gives the jobs of a CI runner proven GPUs, as root: docs/without-kubernetes.md.
#
#   gpu-job.sh begin OWNER GPU...               before a job: its GPUs are clean and belong to OWNER, or it fails
#   gpu-job.sh end OWNER                        after the job: the GPUs are given back, and are scrubbed
#   gpu-job.sh run OWNER GPU... -- ARGUMENT...  both, around `docker run --rm --gpus device=GPU,... ARGUMENT...`
#
# OWNER runs one job at a time: `begin` takes for granted that its last job is over.
set -uf
export PATH=/opt/autoclave/bin:/usr/local/bin:/usr/bin:/bin # it runs as root: a caller's PATH may name programs of the caller
LIMIT=600 # seconds that `begin` may wait for a proof
GROUP= # of `begin`: the control group that the fence is open to alone, such as /sys/fs/cgroup/system.slice/runner.service

say() { printf 'autoclave: %s\n' "$*" >&2; }

ask() { timeout -k 5 "$LIMIT" autoclave "$@" >&2; }

USAGE='gpu-job.sh begin OWNER GPU... | end OWNER | run OWNER GPU... -- IMAGE ARGUMENT...'

wrong() { # WHY
  say "$1"
  say "usage: $USAGE"
  exit 2
}

begin() { # OWNER GPU...
  owner=$1
  shift
  # A job that was killed has not ended its grants. Who asks again for the same GPUs would get them without a scrub.
  end "$owner" --quiet || { code=$?; say "the job gets no GPU of $*, for the reason above"; return "$code"; }
  said=$(ask acquire ${GROUP:+"--cgroup=$GROUP"} --owner "$owner" "$@" 2>&1)
  code=$?
  if [ "$code" -eq 1 ]; then # a scrub may need longer than the policy's budget; if it fails too, it says why
    said=$(timeout -k 5 "$LIMIT" autoclave scrub --quiet "$@" 2>&1 >/dev/null) &&
      said=$(ask acquire ${GROUP:+"--cgroup=$GROUP"} --owner "$owner" "$@" 2>&1)
    code=$?
  fi
  [ -z "$said" ] || printf '%s\n' "$said" >&2
  [ "$code" -eq 0 ] || say "the job gets no GPU of $*, for the reason above"
  return "$code"
}

end() { # OWNER [--quiet]
  ask release --owner "$@" && return
  code=$?
  say "the GPUs of $1 are not given back, for the reason above"
  return "$code"
}

run() { # OWNER GPU... -- ARGUMENT...
  owner=$1
  gpus=
  shift
  while [ "$1" != -- ]; do
    gpus="$gpus $1"
    shift
  done
  shift
  # The fence is open to a slice that holds the container alone. Without systemd, it is open to all.
  slice=autoclave_$(echo "${gpus# }" | tr -c '[:alnum:]\n' _).slice
  GROUP=/sys/fs/cgroup/$slice
  systemctl start "$slice" 2>/dev/null && [ -d "$GROUP" ] || slice='' GROUP=''
  # shellcheck disable=SC2086 # one word for each GPU
  begin "$owner" $gpus || return
  trap : INT TERM # docker ends the container; the GPUs must be given back
  docker run --rm ${slice:+"--cgroup-parent=$slice"} --gpus "\"device=$(echo "${gpus# }" | tr ' ' ',')\"" "$@"
  code=$?
  end "$owner" || return
  return "$code"
}

verb=${1:-}
case $verb in
  begin | end | run) ;;
  -h | --help)
    echo "usage: $USAGE"
    exit 0
    ;;
  *) wrong "the first word must be begin, end or run, not '$verb'" ;;
esac
case ${2:-} in
  *[![:space:]]*) ;;
  *) wrong "OWNER is missing or empty" ;;
esac
for word; do
  case $word in
    --) break ;;
    -*) wrong "OWNER and GPU must be names, not '$word'" ;; # a question for help succeeds, and acquires nothing
  esac
done
case $verb in
  begin) [ $# -ge 3 ] || wrong "GPU is missing: name at least one" ;;
  end) [ $# -eq 2 ] || wrong "only OWNER may follow end" ;;
  run)
    [ "${3:---}" != -- ] || wrong "GPU is missing: name at least one"
    for gpu; do
      case $gpu in
        --) break ;;
        all | [0-9]*-*) wrong "name each GPU: docker takes no '$gpu'" ;;
      esac
    done
    case " $* " in
      *" -- "*[![:space:]]*) ;;
      *) wrong "IMAGE is missing: name it after --" ;;
    esac
    ;;
esac
command -v autoclave >/dev/null || { say "there is no autoclave in $PATH: add its directory to the line PATH of $0"; exit 1; }
"$@"
