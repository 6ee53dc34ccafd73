# The head: a job of two nodes, more jobs than nodes while n3 joins, and a job of three.
job() { # of so many nodes
    sbatch --wait --nodes "$1" --output "/shared/ep-$1.out" ep.sbatch
    status=$?
    cat "/shared/ep-$1.out"
    [ $status = 0 ] || exit $status
}

job 2
many=$(sbatch --parsable --array 1-8 --nodes 1 --output '/shared/many-%a.out' --wrap 'hostname; sleep 3') || exit 1
lab-barrier queued
while [ -n "$(squeue --noheader --jobs "$many")" ]; do sleep 0.5; done
cat /shared/many-*.out | sort | uniq -c
grep -q n3 /shared/many-*.out || { echo "n3 has joined and computed nothing"; exit 1; }
job 3
[ "$(grep -h '^sum' /shared/ep-*.out | sort -u | wc -l)" = 1 ] || { echo "two nodes and three do not agree"; exit 1; }
lab-barrier done
