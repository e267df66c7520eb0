#!/bin/sh
# Gives the jobs of a CI runner proven GPUs, as root: docs/without-kubernetes.md.
#
#   gpu-job.sh begin OWNER GPU...               before a job: its GPUs are clean and belong to OWNER, or it fails
#   gpu-job.sh end OWNER                        after the job: the GPUs are given back, and are scrubbed
#   gpu-job.sh run OWNER GPU... -- ARGUMENT...  both, around `docker run --rm --gpus device=GPU,... ARGUMENT...`
#
# OWNER runs one job at a time: `begin` takes for granted that its last job is over.
set -uf
PATH=/opt/autoclave/bin:/usr/local/bin:/usr/bin:/bin # it runs as root: a caller's PATH may name programs of the caller
LIMIT=600 # seconds that `begin` may wait for a proof

say() { printf 'autoclave: %s\n' "$*" >&2; }

ask() { timeout -k 5 "$LIMIT" autoclave "$@" >&2; }

begin() { # OWNER GPU...
  owner=$1
  shift
  # A job that was killed has not ended its grants. Who asks again for the same GPUs would get them without a scrub.
  end "$owner" || return
  ask acquire --owner "$owner" "$@"
  code=$?
  if [ "$code" -eq 1 ]; then # a scrub may need longer than the policy's budget
    ask scrub --quiet "$@" && ask acquire --owner "$owner" "$@"
    code=$?
  fi
  [ "$code" -eq 0 ] || say "the job gets no GPU of $*: for the reason, run autoclave explain on $(uname -n)"
  return "$code"
}

end() { # OWNER
  ask release --owner "$1" && return
  code=$?
  say "GPUs of $1 cannot be taken back: a job has left a container on them, or the service does not answer"
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
  # shellcheck disable=SC2086 # one word for each GPU
  begin "$owner" $gpus || return
  trap : INT TERM # docker ends the container; the GPUs must be given back
  docker run --rm --gpus "\"device=$(echo "${gpus# }" | tr ' ' ',')\"" "$@"
  code=$?
  end "$owner" || return
  return "$code"
}

case ${1:-} in
  begin) [ $# -ge 3 ] ;;
  end) [ $# -eq 2 ] ;;
  run) [ $# -ge 5 ] && [ "$3" != -- ] && case " $* " in *" -- "*) ;; *) false ;; esac ;;
  *) false ;;
esac || {
  say "usage: gpu-job.sh begin OWNER GPU... | end OWNER | run OWNER GPU... -- ARGUMENT..."
  exit 2
}
"$@"
