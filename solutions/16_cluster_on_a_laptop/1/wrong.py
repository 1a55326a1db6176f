"""Wrong and right answers to question 16.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ASKED, SAVED = "the_tasks_are_asked_before_the_limit", "both_tasks_save"
QUEUE, RESUMED = "the_job_goes_back_into_the_queue", "each_attempt_resumes_where_the_last_stopped"
ANSWERS = (
    WrongAnswer(
        "kills_srun", "sends SIGTERM to srun, which kills its tasks",
        check=ASKED, says="srun was sent SIGTERM, and killed both tasks", look="scancel --signal", edit="""
        -trap 'echo "SIGTERM: the time limit is near"; scancel --signal=TERM "$SLURM_JOB_ID.0"' TERM
        +trap 'echo "SIGTERM: the time limit is near"; kill -TERM $!' TERM
    """),
    WrongAnswer(
        "no_signal", "does not ask Slurm for a signal",
        check=ASKED, says="no signal came before the time limit", look="#SBATCH --signal", edit="""
        -#SBATCH --signal=B:TERM@120
    """),
    WrongAnswer(
        "exits_in_the_trap", "ends the script in the trap, while the tasks are saving",
        check=SAVED, says="the script ended with exit code 75 while the tasks were saving", edit="""
        -trap 'echo "SIGTERM: the time limit is near"; scancel --signal=TERM "$SLURM_JOB_ID.0"' TERM
        +trap 'scancel --signal=TERM "$SLURM_JOB_ID.0"; exit 75' TERM
    """),
    WrongAnswer(
        "too_late", "asks the tasks to save half a minute before the limit",
        check=SAVED, says="SIGTERM came 30 s before the time limit", look="90 s", edit="""
        -#SBATCH --signal=B:TERM@120
        +#SBATCH --signal=B:TERM@30
    """),
    WrongAnswer(
        "may_not_be_requeued", "has no #SBATCH --requeue",
        check=QUEUE, says="`scontrol requeue` was refused", look="#SBATCH --requeue", edit="""
        -#SBATCH --requeue
    """),
    WrongAnswer(
        "leaves_it_to_slurm", "ends with 75 and expects the job to come back",
        check=QUEUE, says="the script ended with exit code 75, and no requeue", look="scontrol requeue", edit="""
        -if [ "$code" -eq 75 ]; then scontrol requeue "$SLURM_JOB_ID" && sleep 60; fi
    """),
    WrongAnswer(
        "a_folder_for_each_attempt", "names the folder after the attempt",
        check=RESUMED, says="attempt 1: task 0 began at step 0, in runs/4711-1; saved was step 100", look="one folder",
        edit="""
        -RUN=runs/$SLURM_JOB_ID
        +RUN=runs/$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}
    """),
    WrongAnswer(
        "named_after_the_machines", "names the folder after the machines, which differ from attempt to attempt",
        check=RESUMED, says="attempt 1: task 0 began at step 0", edit="""
        -RUN=runs/$SLURM_JOB_ID
        +RUN=runs/$SLURM_JOB_NODELIST
    """),
    WrongAnswer(
        "truncates_the_output", "lets each attempt overwrite what the last one printed",
        check="the_output_of_all_attempts_is_kept", says="the output file has 1 of 3 attempts", look="--open-mode", edit="""
        -#SBATCH --open-mode=append
    """),
    WrongAnswer(
        "requeues_after_a_signal", "requeues the job that got the signal, whatever the tasks' exit code",
        check="what_is_over_stays_over", says="after SIGTERM: the tasks ended with exit code 0, and the job went back",
        look="75 another attempt", edit="""
        -trap 'echo "SIGTERM: the time limit is near"; scancel --signal=TERM "$SLURM_JOB_ID.0"' TERM
        +trap 'asked=1; scancel --signal=TERM "$SLURM_JOB_ID.0"' TERM
        @@
        -if [ "$code" -eq 75 ]; then scontrol requeue "$SLURM_JOB_ID" && sleep 60; fi
        +if [ -n "${asked:-}" ]; then scontrol requeue "$SLURM_JOB_ID" && sleep 60; fi
    """),
    WrongAnswer(
        "requeues_the_killed", "takes every exit code above 128 for the time limit",
        check="what_is_over_stays_over", says="exit code 137, and the job went back", look="75 another attempt", edit="""
        -if [ "$code" -eq 75 ]; then scontrol requeue "$SLURM_JOB_ID" && sleep 60; fi
        +if [ "$code" -eq 75 ] || [ "$code" -gt 128 ]; then scontrol requeue "$SLURM_JOB_ID" && sleep 60; fi
    """),
    RightAnswer(
        "slurm_tells_the_tasks", "without B: the signal goes to the tasks, and srun can stay in the foreground", edit="""
        -#SBATCH --signal=B:TERM@120
        +#SBATCH --signal=TERM@120
        @@
        -trap 'echo "SIGTERM: the time limit is near"; scancel --signal=TERM "$SLURM_JOB_ID.0"' TERM
        -srun train --run-dir "$RUN" --resume &
        -while wait $!; code=$?; kill -0 $! 2>/dev/null; do :; done
        -[ "$code" -ne 143 ] || { wait $!; code=$?; }
        +srun train --run-dir "$RUN" --resume
        +code=$?
    """),
    RightAnswer(
        "another_signal_and_two_waits", "USR1 to the shell, TERM to all steps of the job; waits once more after the trap",
        edit="""
        -#SBATCH --signal=B:TERM@120
        +#SBATCH --signal=B:USR1@300
        @@
        -trap 'echo "SIGTERM: the time limit is near"; scancel --signal=TERM "$SLURM_JOB_ID.0"' TERM
        -srun train --run-dir "$RUN" --resume &
        -while wait $!; code=$?; kill -0 $! 2>/dev/null; do :; done
        -[ "$code" -ne 143 ] || { wait $!; code=$?; }
        +trap 'asked=1; scancel -s SIGTERM $SLURM_JOBID' USR1
        +srun --wait=0 train --resume --run-dir="$SLURM_SUBMIT_DIR/$RUN" &
        +pid=$!
        +wait "$pid"; code=$?
        +if [ -n "${asked:-}" ]; then wait "$pid"; code=$?; fi
    """),
    RightAnswer(
        "as_the_template", "runs a function on each node, which traps the signal too; asks squeue before it requeues",
        edit="""
        -srun train --run-dir "$RUN" --resume &
        +node() {
        +  asked=
        +  trap 'asked=1' TERM
        +  train --run-dir "$RUN" "$@" &
        +  while wait $!; code=$?; kill -0 $! 2>/dev/null; do :; done
        +  [ "$code" -ne 143 ] || { wait $!; code=$?; }
        +  [ -n "$asked" ] && [ "$code" -ne 0 ] && exit 75
        +  exit "$code"
        +}
        +export -f node
        +export RUN
        +srun --wait=60 bash -c 'node "$@"' node --resume &
        @@
        -if [ "$code" -eq 75 ]; then scontrol requeue "$SLURM_JOB_ID" && sleep 60; fi
        +if [ "$code" -eq 75 ] && [ "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)" = RUNNING ]; then
        +  scontrol requeue "$SLURM_JOB_ID" && sleep 60
        +fi
    """),
    RightAnswer(
        "looks_every_second", "polls for the exit code in a file that srun's subshell writes, instead of waiting", edit="""
        -srun train --run-dir "$RUN" --resume &
        -while wait $!; code=$?; kill -0 $! 2>/dev/null; do :; done
        -[ "$code" -ne 143 ] || { wait $!; code=$?; }
        +rm -f code.txt
        +{ srun train --run-dir "$RUN" --resume; echo $? > code.txt; } &
        +until [ -s code.txt ]; do sleep 1; done
        +code=$(cat code.txt)
    """),
)
