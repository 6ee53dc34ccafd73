# The head: a job of two nodes, more jobs than nodes while n3 joins, and a job of three.
job() { # of so many nodes
    sbatch --wait --nodes "$1" --output "/shared/ep-$1.out" ep.sbatch
    status=$?
    cat "/shared/ep-$1.out"
    [ $status = 0 ] || exit $status
}

job 2
# Each takes 3 s, so that some still wait when n3 has joined.
sbatch --wait --array 1-8 --nodes 1 --output '/shared/many-%a.out' --wrap 'hostname; sleep 3' &
many=$!
lab-barrier queued
wait $many || exit 1
cat /shared/many-*.out | sort | uniq -c
grep -q n3 /shared/many-*.out || { echo "n3 has joined and computed nothing"; exit 1; }
job 3
[ "$(grep -h '^sum' /shared/ep-*.out | sort -u | wc -l)" = 1 ] || { echo "two nodes and three do not agree"; exit 1; }
lab-barrier done
