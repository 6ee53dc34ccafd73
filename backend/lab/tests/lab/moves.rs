//! A node that moves to another hypervisor while commands run in it.

use std::thread;

use crate::place::Place;

impl Place {
    /// Returns the output of a command in a node, which has to succeed.
    fn runs(&self, node: &str, line: &str) -> String {
        self.prints(&["exec", node, "--", line])
    }
}

const COUNT: &str = "touch /root/counts; i=0; until [ -e /root/stop ]; do i=$((i + 1)); echo $i; usleep 10000; done";
const SESSION: &str =
    "ssh n1 'touch /root/session; until [ -e /root/stop ]; do usleep 100000; done; echo end'";
const BEGUN: &str = "until [ -e /root/counts ] && [ -e /root/session ]; do usleep 10000; done";
const LID: &str = "cat /sys/class/infiniband/mlx5_0/ports/1/lid";

#[test]
fn commands_and_connections_move_along() {
    let place = Place::new();
    place.prints(&["up", "--migratable", "--control", "--nodes", "2"]);
    let lid = place.runs("n1", LID);
    let [counted, session] = thread::scope(|scope| {
        let running = [("n1", COUNT), ("n2", SESSION)]
            .map(|(node, line)| scope.spawn(|| place.runs(node, line)));
        place.runs("n1", BEGUN);
        let report = place.prints(&["migrate", "n1", "--to", "h-n2"]);
        assert!(report.contains("n1 runs at h-n2"), "{report}");
        // And back, as the node itself asks for.
        let report = place.runs("n1", "ibvswitch vm migrate n1 --to h-n1");
        assert!(report.contains("n1 runs at h-n1"), "{report}");
        place.runs("n1", "touch /root/stop");
        running.map(|it| it.join().unwrap())
    });
    let counted: Vec<usize> = counted.lines().map(|line| line.parse().unwrap()).collect();
    assert!(!counted.is_empty() && counted.iter().copied().eq(1..=counted.len()));
    assert_eq!(session, "end\n");

    assert_eq!(place.runs("n1", LID), lid);
    place.runs("n2", "ping -c 1 n1-ib");
    for (arguments, why) in [
        (["migrate", "n3", "--to", "h-n1"], "there is no node n3"),
        (["migrate", "n1", "--to", "h3"], "there is no hypervisor h3"),
    ] {
        let error = place.fails(&arguments);
        assert!(error.contains(why), "{error}");
    }
    let error = place.fails(&["cp", "/etc/hostname", "n1:/root/"]);
    assert!(error.contains("--migratable"), "{error}");
    place.prints(&["down"]);
    place.await_nobody();
    assert!(place.left().is_empty());
}
