# shellcheck shell=sh
# Shared by prolog.sh, epilog.sh and health.sh, which read it from their own directory. See docs/without-kubernetes.md.
#
# slurmd starts them without a search path. Set these in the environment of slurmd:
#   AUTOCLAVE_SLURM_LIMIT      seconds that a script may wait in total; less than PrologEpilogTimeout
#   AUTOCLAVE_SLURM_NUMBERING  what Slurm's numbers mean: auto (only if both agree), pci or minor
#   AUTOCLAVE_SLURM_DRAIN      no: only Slurm drains the node, with a shorter reason
#   AUTOCLAVE_SLURM_STATE      where the prolog records the acquired GPUs, readable by root only
#   AUTOCLAVE_SLURM_DRIVER     the driver's information files
set -uf # the shell must not expand patterns in variables to file names
umask 077
PATH="${PATH:+$PATH:}/opt/autoclave/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
export PATH

LIMIT=${AUTOCLAVE_SLURM_LIMIT:-120}
NUMBERING=${AUTOCLAVE_SLURM_NUMBERING:-auto}
# shellcheck disable=SC2034 # used by prolog and epilog
STATE=${AUTOCLAVE_SLURM_STATE:-/run/autoclave-slurm}
DRIVER=${AUTOCLAVE_SLURM_DRIVER:-/proc/driver/nvidia}
JOB=${SLURM_JOB_ID:-${SLURM_JOBID:-}}
BEGAN=$(date +%s)
export AUTOCLAVE_SERVICE_WAIT="${AUTOCLAVE_SERVICE_WAIT:-1500ms}" # for a service that starts: a job waits no longer
NODE=$(uname -n) # Slurm's own name of the node, if it gives one, may contain dots
NODE=${SLURMD_NODENAME:-${NODE%%.*}}

say() { printf 'autoclave: %s\n' "$*" >&2; }

# Exit with a failure, which drains the node. All users can read the reason, so it names no process and no file.
fail() { # CODE TEXT
  say "$2"
  if [ "${AUTOCLAVE_SLURM_DRAIN:-yes}" != no ]; then
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
  [ "$code" -ne 3 ] || fail 3 "job $JOB: GPUs $*: $(meaning 3): run autoclave doctor on $NODE"
  fail "$code" "job $JOB: $(meaning "$code"): $(in_the_way "$@")"
}

# Print why GPUs are not clean, such as "GPU 1 is scrubbing: ready in about 3 s; GPU 3 belongs to job 4710"; or all of them, if nothing says which.
in_the_way() { # GPU...
  # One field of a GPU stands on each line, six spaces deep; those of its scrub are deeper.
  named=$(timeout -k 2 8 autoclave --service-wait 0s status -o json "$@" 2>/dev/null | awk -v job="$JOB" '
    /^      "/ || /"ready_seconds":/ { key = $1; text = NF == 2 ? $2 : ""; gsub(/[":]/, "", key); gsub(/[",]/, "", text); gpu[key] = text }
    /^    }/ && (gpu["state"] != "clean" || gpu["healthy"] != "true") {
      name = gpu["index"] (gpu["slice"] == "null" ? "" : ":" gpu["slice"])
      printf "%sGPU %s ", sep, name; sep = "; "
      if (gpu["owner"] ~ /^[0-9]+$/ && gpu["owner"] != job) printf "belongs to job %s", gpu["owner"]
      else if (gpu["state"] == "scrubbing" && gpu["ready_seconds"] ~ /^[0-9.]+$/) printf "is scrubbing: ready in about %d s", gpu["ready_seconds"] + 1
      else printf "is %s (run autoclave explain %s)", gpu["state"] == "clean" ? "unhealthy" : gpu["state"], name
    }
    /^    }/ { delete gpu["ready_seconds"] }
    /^  \]/ { exit }')
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
  numbered "${numbers:-$visible}"
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
    }' || { say "cannot tell the job's GPUs: their numbers do not say which; see AUTOCLAVE_SLURM_NUMBERING"; return 1; }
}
