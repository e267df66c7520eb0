#!/bin/sh
# Slurm's Prolog, Epilog and HealthCheckProgram in one file, which reads no other file: docs/slurm.md.
#
# Which of them runs is said by the only argument, the file's name, Soperator or Slurm, in this order. Where the caller
# says none of these, write `set -- prolog`, `set -- epilog` or `set -- health` below this comment.

# Settings. Change them here: Slurm gives its scripts nothing of slurmd's environment.
LIMIT=${AUTOCLAVE_SLURM_LIMIT:-120}                   # seconds that it may wait in total; less than PrologEpilogTimeout
NUMBERING=${AUTOCLAVE_SLURM_NUMBERING:-auto}          # what Slurm's numbers mean: auto (only if both agree), pci or minor
GRES=${AUTOCLAVE_SLURM_GRES:-}                        # if gres.conf names only some GPUs as gpu: those, as 0-2,4-7
DRAIN=${AUTOCLAVE_SLURM_DRAIN:-yes}                   # no: only Slurm drains the node, with a shorter reason
STATE=${AUTOCLAVE_SLURM_STATE:-/run/autoclave-slurm}  # where the prolog records the acquired GPUs, readable by root only
DRIVER=${AUTOCLAVE_SLURM_DRIVER:-/proc/driver/nvidia} # the driver's information files
CGROUPS=${AUTOCLAVE_SLURM_CGROUPS:-/sys/fs/cgroup}    # the control groups of version 2
export AUTOCLAVE_RUN_DIR="${AUTOCLAVE_RUN_DIR:-/run/autoclave}" # of the scrub service
export AUTOCLAVE_SERVICE_WAIT="${AUTOCLAVE_SERVICE_WAIT:-1500ms}" # for a service that starts: a job waits no longer

set -uf # the shell must not expand patterns in variables to file names
umask 077
# It runs as root: a caller's PATH may name programs of others. Where Slurm or autoclave is elsewhere, add it here.
export PATH=/opt/autoclave/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin

JOB=${SLURM_JOB_ID:-${SLURM_JOBID:-}}
BEGAN=$(date +%s)
NODE=$(uname -n) # Slurm's own name of the node, if it gives one, may contain dots
NODE=${SLURMD_NODENAME:-${NODE%%.*}}

say() { printf 'autoclave: %s\n' "$*" >&2; }

# Exit with a failure, which drains the node. All users can read the reason, so it names no process and no file.
fail() { # CODE TEXT
  say "$2"
  if [ -n "${CHECKS_CONTEXT:-}" ] && { true >&3; } 2>/dev/null; then # Soperator drains the node, with this as the reason
    printf '%s\n' "$2" >&3
  elif [ "$DRAIN" != no ]; then
    timeout -k 2 10 scontrol update "nodename=$NODE" state=drain "reason=autoclave: $2" >&2 ||
      say "cannot set the reason: Slurm drains the node with its own"
  fi
  exit "$1"
}

# The same after a failure of ask: names the job, those of its GPUs that are in the way, and what to do.
fail_for() { # CODE GPU...
  code=$1
  shift
  # A service that does not answer is not asked again.
  [ "$code" -ne 3 ] || fail 3 "job $JOB: GPUs $*: $(meaning 3): run autoclave doctor --without-kubernetes on $NODE"
  fail "$code" "job $JOB: $(meaning "$code"): $(in_the_way "$@")"
}

# Print why GPUs are not clean, such as "GPU 1 is scrubbing: ready in about 3 s; GPU 3 belongs to job 4710"; or all of them, if nothing says which.
in_the_way() { # GPU...
  # One field of a GPU stands on each line, six spaces deep; those of its scrub are deeper.
  named=$(timeout -k 2 8 autoclave --service-wait 0s status -o json "$@" 2>/dev/null | awk -v job="$JOB" '
    /^    "ledger_fault": ".+"/ { fault = 1 }
    /^  \]/ { told = 1 }
    told { next }
    /^      "/ || /"ready_seconds":/ { key = $1; text = NF == 2 ? $2 : ""; gsub(/[":]/, "", key); gsub(/[",]/, "", text); gpu[key] = text }
    /^    }/ && (gpu["state"] != "clean" || gpu["healthy"] != "true") {
      name = gpu["index"] (gpu["slice"] == "null" ? "" : ":" gpu["slice"])
      all = all sep "GPU " name; sep = "; "
      if (gpu["owner"] ~ /^[0-9]+$/ && gpu["owner"] != job) all = all " belongs to job " gpu["owner"]
      else if (gpu["state"] == "scrubbing" && gpu["ready_seconds"] ~ /^[0-9.]+$/) all = all sprintf(" is scrubbing: ready in about %d s", gpu["ready_seconds"] + 1)
      else { sub(/_/, " ", gpu["state"]); all = all sprintf(" is %s (run autoclave explain %s)", gpu["state"] == "clean" ? "unhealthy" : gpu["state"], name) }
    }
    /^    }/ { delete gpu["ready_seconds"] }
    END { print fault ? "the scrub service cannot write its ledger (run autoclave doctor --without-kubernetes)" : all }')
  echo "${named:-GPUs $*}"
}

# Run autoclave within the remaining time; 124 or 137 means that the time is over.
ask() {
  left=$((BEGAN + LIMIT - $(date +%s)))
  [ "$left" -gt 0 ] || return 124
  timeout -k 5 "$left" autoclave "$@" >&2
}

# The meaning of an exit code of ask.
meaning() {
  case $1 in
    1) echo "not proven clean" ;;
    2) echo "unknown to the scrub service, or named wrongly" ;;
    3) echo "not proven clean: the scrub service does not answer" ;;
    4) echo "left alone" ;;
    124 | 137) echo "not proven clean within $LIMIT s" ;;
    127) echo "not proven clean: there is no autoclave in the PATH that the script sets" ;;
    *) echo "not proven clean: autoclave failed with exit code $1" ;;
  esac
}

# Check the job's number, which is also a file name.
demand_job() {
  case $JOB in
    '' | *[!0-9]*) fail 2 "cannot tell which job this is" ;;
  esac
}

# Print the job's GPUs as autoclave names them: one on each line, nothing for none. Return 1 if they cannot be determined.
job_gpus() {
  numbers=$(listed "${SLURM_JOB_GPUS:-}") && visible=$(listed "${CUDA_VISIBLE_DEVICES:-}") || return 1
  case $visible in
    *GPU-* | *MIG-*)
      ! printf '%s\n' "$visible" | grep -qE '^[0-9]' ||
        { say "cannot tell the job's GPUs: CUDA_VISIBLE_DEVICES mixes names and numbers"; return 1; }
      [ -z "$numbers" ] || [ "$(count "$numbers")" = "$(count "$visible")" ] ||
        { say "cannot tell the job's GPUs: SLURM_JOB_GPUS and CUDA_VISIBLE_DEVICES are not as many"; return 1; }
      printf '%s\n' "$visible"
      return
      ;;
  esac
  [ -z "$numbers" ] || [ -z "$visible" ] || [ "$numbers" = "$visible" ] ||
    { say "cannot tell the job's GPUs: SLURM_JOB_GPUS and CUDA_VISIBLE_DEVICES differ"; return 1; }
  numbers=$(placed "${numbers:-$visible}") || return 1
  numbered "$numbers"
}

# The GPUs of the job that runs this, for people. In a job that Slurm restricts to its devices, CUDA_VISIBLE_DEVICES
# counts them from 0; 0,1,... is taken for that, also where Slurm restricts nothing.
own_gpus() {
  numbers=$(listed "${SLURM_JOB_GPUS:-}") || return 1
  [ "${CUDA_VISIBLE_DEVICES:-}" != "$(seq -s , 0 $(($(count "$numbers") - 1)))" ] || CUDA_VISIBLE_DEVICES=
  job_gpus
}

# Slurm's number of a GPU is its place in gres.conf. If that leaves out a GPU, print the /dev/nvidiaN at this place of GRES.
placed() {
  [ -n "$GRES" ] && [ -n "$1" ] || { printf '%s\n' "$1"; return; }
  NUMBERING=minor
  list=$(listed "$GRES") || return 1
  # shellcheck disable=SC2016 # fields of awk
  printf '%s\n' "$1" | LIST=$list awk '
    BEGIN { n = split(ENVIRON["LIST"], list, "\n") }
    $1 + 1 > n { exit 1 }
    { print list[$1 + 1] }' || { say "cannot tell the job's GPUs: GRES in this file names fewer GPUs than Slurm"; return 1; }
}

count() { printf '%s\n' "$1" | grep -c .; }

# Print the entries of a Slurm list (0,2-3), one on each line, each once.
listed() {
  [ "$1" != NoDevFiles ] || return 0
  printf '%s\n' "$1" | tr ',' '\n' | awk '
    /^[ \t]*$/ { next }
    /^[0-9]+-[0-9]+$/ {
      split($0, ends, "-")
      if (ends[2] < ends[1] + 0 || ends[2] - ends[1] > 255) { exit 1 }
      for (n = ends[1] + 0; n <= ends[2] + 0; n++) if (!seen[n]++) print n
      next
    }
    /^[0-9]+$/ { if (!seen[$0 + 0]++) print $0 + 0; next }
    /^(GPU|MIG)-[0-9A-Za-z-]+$/ { if (!seen[$0]++) print; next }
    { exit 1 }' || { say "cannot tell the job's GPUs: '$1' is not a list of them"; return 1; }
}

# Convert numbers to UUIDs with the driver's files. Simulated GPUs have none; there, autoclave knows the numbers itself.
numbered() {
  [ -n "$1" ] || return 0
  [ -d "$DRIVER/gpus" ] || { printf '%s\n' "$1"; return; }
  [ -z "$(find "$DRIVER/capabilities" -path '*/mig/gi*' 2>/dev/null)" ] ||
    { say "cannot tell the job's GPUs: numbers do not name MIG slices, see gres.conf, Flags=env_uuid"; return 1; }
  # The driver's files are named by PCI address, so their order is the order of the bus.
  # shellcheck disable=SC2016 # fields of awk
  find "$DRIVER/gpus" -name information | LC_ALL=C sort | WANTED=$1 BY=$NUMBERING xargs awk '
    BEGIN { by = ENVIRON["BY"] }
    FNR == 1 { place++ }
    /^GPU UUID:/ { uuid[place] = $NF }
    /^Device Minor:/ { minor[place] = $NF }
    END {
      for (p = 1; p <= place; p++) {
        if (by == "auto" && minor[p] != p - 1) exit 3
        name[by == "minor" ? minor[p] : p - 1] = uuid[p]
      }
      n = split(ENVIRON["WANTED"], numbers, "\n")
      for (i = 1; i <= n; i++) if (name[numbers[i]] !~ /^GPU-[0-9a-f-]+$/) exit 4
      for (i = 1; i <= n; i++) print name[numbers[i]]
    }' || { say "cannot tell the job's GPUs: their numbers do not say which; set NUMBERING in this file"; return 1; }
}

# The job starts only if its GPUs are proven clean. Only exit code 0 means success.
prolog() {
  GPUS=$(job_gpus) || fail 2 "cannot tell which GPUs job $JOB has"
  [ -n "$GPUS" ] || exit 0
  demand_job
  [ -z "${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-}${SLURM_SHARDS_ON_NODE:-}" ] ||
    fail 2 "job $JOB shares a GPU, and what is shared cannot be proven clean"

  # shellcheck disable=SC2086 # one word for each GPU
  set -- $GPUS
  # With PrologFlags=RunInJob, it runs in the job: then the fence is open to the job alone.
  group=$(sed -n "s|^0::\(/.*\)/step_extern/.*|$CGROUPS\1|p" /proc/self/cgroup)
  [ -d "$group" ] || group=
  # If a GPU needs longer than the policy's budget, the scrub waits for it. A GPU of another job is refused by both commands.
  # Another program may open a GPU after its scrub, so this is tried three times.
  for try in 1 2 3; do
    ask acquire ${group:+"--cgroup=$group"} --owner "$JOB" "$@"
    code=$?
    if [ "$code" -ne 1 ] || [ "$try" -eq 3 ]; then break; fi
    ask scrub "$@" || { code=$?; break; }
  done
  [ "$code" -eq 0 ] || fail_for "$code" "$@"

  # For the epilog: by then, Slurm's numbers may mean other GPUs.
  { mkdir -p "$STATE" && printf '%s\n' "$GPUS" >"$STATE/$JOB"; } || fail 1 "cannot note what job $JOB has"
}

# Release the job's GPUs and wait until they are proven clean, or drain the node.
epilog() {
  if [ -n "$JOB" ] && demand_job && [ -e "$STATE/$JOB" ]; then
    GPUS=$(cat "$STATE/$JOB") || fail 1 "cannot read what job $JOB had"
  else # the prolog acquired no GPU, or was killed before it recorded them
    GPUS=$(job_gpus) || fail 2 "cannot tell which GPUs job $JOB had"
    [ -n "$GPUS" ] || exit 0
    demand_job
  fi

  worst=0
  failed=
  note() { # CODE GPU...
    # 4: a GPU belongs to another job, to which only a clean GPU is given. The commands leave it alone; it is not a fault of the node.
    if [ "$1" -eq 0 ] || [ "$1" -eq 4 ]; then return; fi
    [ "$1" -le "$worst" ] || worst=$1
    shift
    failed="$failed $*"
  }

  released=
  code=0
  for gpu in $GPUS; do # one by one: a GPU that cannot be given back must not keep the job's others
    # A service that does not answer is not asked again for each GPU.
    if [ "$code" -ne 3 ]; then
      ask release --owner "$JOB" "$gpu"
      code=$?
    fi
    note "$code" "$gpu"
    [ "$code" -ne 0 ] || released="$released $gpu"
  done

  # An operator may run the epilog again: it then takes the GPUs that the job still has.
  # shellcheck disable=SC2086 # one word for each GPU
  if [ -z "$failed" ]; then rm -f "$STATE/$JOB"; elif [ -e "$STATE/$JOB" ]; then printf '%s\n' $failed >"$STATE/$JOB"; fi

  # shellcheck disable=SC2086 # one word for each GPU
  if [ -n "$released" ] && [ "$code" -ne 3 ]; then
    ask scrub $released
    note $? $released
  fi
  # shellcheck disable=SC2086 # one word for each GPU
  [ -z "$failed" ] || fail_for "$worst" $failed
}

# Drain the node if a finding of `autoclave doctor` is broken. Slurm ignores the exit code.
health() {
  case $(timeout -k 2 5 scontrol show node "$NODE" 2>/dev/null) in
    *DRAIN*) exit 0 ;; # the reason that it has must stay
  esac

  REPORT=$(timeout -k 5 30 autoclave doctor --without-kubernetes) # Slurm kills a health check after 60 seconds
  code=$?
  [ "$code" -ne 0 ] || exit 0
  printf '%s\n' "$REPORT" | grep '^broken' >&2
  BROKEN=$(printf '%s\n' "$REPORT" | awk '$1 == "broken" && !seen[$2]++ { printf "%s%s", sep, $2; sep = ", " }')
  fail "$code" "doctor: ${BROKEN:-no report} broken, exit code $code"
}

usage() {
  cat <<TEXT
Usage: ${0##*/} [prolog | epilog | health | gpus]

  prolog   acquire the job's GPUs: the job starts only if they are proven clean
  epilog   release the job's GPUs, and wait until they are proven clean
  health   drain the node if 'autoclave doctor' finds something broken
  gpus     in a job: print which GPUs it has

Slurm calls the first three, which drain the node after a failure: docs/slurm.md.
TEXT
}

case $*:$# in
  -h:1 | --help:1 | help:1) usage; exit ;;
  prolog:1 | epilog:1 | health:1 | gpus:1 | :[01]) ;;
  *) # a person has typed it: the file's name must not make it a turn
    say "cannot run '$*': the only argument is prolog, epilog, health or gpus"
    usage >&2
    exit 2
    ;;
esac
for word in "${1:-}" "${0##*/}" "${CHECKS_CONTEXT:-}" "${SLURM_SCRIPT_CONTEXT:-}"; do
  case $word in
    *slurmctld* | *_task | *_srun) say "the script must run as Prolog or Epilog of slurmd, not as $word"; exit 2 ;;
    *prolog*) prolog ;;
    *epilog*) epilog ;;
    *health* | hc_program) health ;;
    gpus) own_gpus ;; # for people, in a job: what the job's GPUs are
    *) continue ;;
  esac
  exit
done
# No turn was named, so nothing is drained. After a prolog or an epilog, Slurm drains the node by itself.
say "cannot tell whether this is the prolog, the epilog or the health check"
usage >&2
exit 2
