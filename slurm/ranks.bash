# Sourced by the batch scripts beside it: one rank of slipstream for each task of the job, and its exit code.
# The batch scripts remember signals from their first command on: `asked`, `cancelled`.
# SLIPSTREAM names another build, LAUNCHER=mpirun (or srun) another way to start the ranks.

job= teller= woken=

# A launcher hands a signal to the ranks that it has started by then: it is said again.
tell() {
  [ -n "$job" ] && [ -z "$teller" ] || return
  while kill -USR1 $job 2>/dev/null; do sleep 1; done &
  teller=$!
}
trap 'asked=1; woken=1; tell' USR1
trap 'asked=1; cancelled=1; woken=1; tell' TERM

executable=${SLIPSTREAM:-build/release/slipstream}
if [ ! -x "$executable" ]; then
  echo "$executable is missing: build it (cmake --preset release && cmake --build --preset release), or name another in SLIPSTREAM" >&2
  exit 2
fi
if [ -z "$LAUNCHER" ]; then # srun where it and MPI meet in PMIx; else mpirun, which asks Slurm for its nodes
  if srun --mpi=list 2>&1 | grep -q pmix; then LAUNCHER=srun; else LAUNCHER=mpirun; fi
fi
case "$LAUNCHER" in
  srun) start=(srun --mpi=pmix --wait=60) ;; # --wait: when ranks have ended because another is gone, one that hangs is not waited for
  mpirun) start=(mpirun --bind-to none -x OMP_NUM_THREADS) ;;
  *) echo "LAUNCHER is srun or mpirun, found '$LAUNCHER'" >&2; exit 2 ;;
esac

export OMP_NUM_THREADS=1
export OMPI_MCA_mpi_yield_when_idle=1 # ranks wait politely
export OMPI_MCA_orte_execute_quiet=1 # what mpirun --quiet is in Open MPI 4; 5 has no such option
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # containers
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK # since Slurm 22.05 srun does not take it from the job
[ -n "$SRUN_CPUS_PER_TASK" ] || unset SRUN_CPUS_PER_TASK

# ranks COMMAND OPTIONS...: runs it; $code is its exit code. A signal to this script (--signal=B:USR1@SECONDS before the
# time limit; TERM from scancel) is handed to the ranks as USR1: they save and return 75.
ranks() {
  "${start[@]}" "$executable" "$@" &
  job=$!
  [ -z "$asked" ] || tell # it came before
  while :; do # a wait that a signal interrupts returns 128 + its number, and the ranks are still there
    woken=
    wait $job
    code=$?
    [ -n "$woken" ] || break
  done
  [ -z "$teller" ] || kill $teller 2>/dev/null
}

# requeue_if_saved: ranks that were stopped and have saved go on in the next round of the job, unless it was cancelled.
requeue_if_saved() {
  case "$asked:$code" in # 138: ended by USR1; 244: an mpirun that a signal met while it started
    *:138 | 1:244)
      echo "stopped before the ranks had started; there was nothing to save"
      code=75
      ;;
  esac
  [ "$code" = 75 ] || return
  if [ -n "$cancelled" ]; then
    echo "saved and stopped; cancelled, so not put back into the queue"
  else
    echo "saved and stopped; back to the queue"
    scontrol requeue "$SLURM_JOB_ID"
  fi
}
