lab-barrier queued
lab-join
lab-barrier done
