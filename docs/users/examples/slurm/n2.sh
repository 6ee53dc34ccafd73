lab-barrier queued
lab-barrier done
