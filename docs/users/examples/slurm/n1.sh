# The head: a job of two nodes; then nodes are at work while a job of three waits, and n3 boots.
job() { # of so many nodes
    sbatch --wait --nodes "$1" --output "/shared/ep-$1.out" ep.sbatch
    status=$?
    cat "/shared/ep-$1.out"
    return $status
}

job 2 || exit
sbatch --array 1-8 --nodes 1 --output '/shared/many-%a.out' --wrap 'hostname; sleep 3'
job 3 &
three=$!
until squeue --noheader --states=PENDING --format=%D | grep -x 3; do
    kill -0 $three || exit
    usleep 100000
done
sinfo --noheader --states=down --format='%N is down'
ibvswitch lab boot n3
wait $three || exit
[ "$(grep -h '^sum' /shared/ep-*.out | sort -u | wc -l)" = 1 ] || { echo "two nodes and three do not agree"; exit 1; }
lab-barrier done
