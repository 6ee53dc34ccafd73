# Nodes stay on until the head has ended.
lab-barrier done
