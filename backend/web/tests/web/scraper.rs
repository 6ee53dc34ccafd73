//! A Prometheus in another network namespace, which reaches the host by a link of its own.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use testing::wait_until;

use crate::page::configuration;
use crate::place::Place;

/// Name of the host in the namespace.
const NAME: &str = "ibvswitch.example";

/// A namespace with a Prometheus, and the link to it. Both go with the process.
struct Elsewhere {
    process: Child,
    /// Addresses of the host's end and of the other.
    addresses: [String; 2],
    _dir: tempfile::TempDir,
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split(' ')).output();
    let done = done.expect("ip is installed: ./scripts/setup");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "ip {arguments}: {said}");
}

/// Whether this user may have a network namespace with a link to this one.
fn may_link() -> bool {
    let trial = "ip link add ibvtrial type veth && ip link del ibvtrial";
    let tried = Command::new("unshare")
        .args(["--net", "--mount", "sh", "-c", trial])
        .output();
    nix::unistd::geteuid().is_root() && tried.is_ok_and(|it| it.status.success())
}

impl Elsewhere {
    /// Starts it, to scrape this port of the host by address and by name.
    fn scraping(port: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        // Those of TEST-NET-1, by fours (RFC 5737).
        let id = std::process::id();
        let at = id % 63 * 4;
        let addresses = [1, 2].map(|end| format!("192.0.2.{}", at + end));
        let [host, other] = &addresses;
        let file = |name: &str, text: String| {
            std::fs::write(dir.path().join(name), text).expect("is writable");
        };
        file("hosts", format!("{host} {NAME}\n"));
        let targets = format!("[\"{host}:{port}\", \"{NAME}:{port}\"]");
        file(
            "prometheus.yml",
            format!(
                "global: {{scrape_interval: 1s}}\nscrape_configs:\n- job_name: ibvswitch\n  \
                 static_configs:\n  - targets: {targets}\n"
            ),
        );
        let link = format!("ibv{id}");
        let script = format!(
            "echo there; read linked; mount --bind hosts /etc/hosts; ip address add {other}/30 dev {link}b; \
             ip link set {link}b up; exec prometheus --config.file=prometheus.yml --storage.tsdb.path=data \
             --web.listen-address={other}:9090 --log.level=error"
        );
        let mut process = Command::new("unshare")
            .args(["--net", "--mount", "sh", "-ec", &script])
            .current_dir(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare is installed");
        let mut said = BufReader::new(process.stdout.take().expect("is piped"));
        said.read_line(&mut String::new()).expect("it is there");
        let pid = process.id();
        ip(&format!(
            "link add {link}a type veth peer name {link}b netns {pid}"
        ));
        ip(&format!("address add {host}/30 dev {link}a"));
        ip(&format!("link set {link}a up"));
        let mut stdin = process.stdin.take().expect("is piped");
        stdin.write_all(b"linked\n").expect("it reads");
        Self {
            process,
            addresses,
            _dir: dir,
        }
    }

    /// Targets of which Prometheus has this value of a metric.
    fn targets_with(&self, metric: &str, value: &str) -> Vec<String> {
        let url = format!(
            "http://{}:9090/api/v1/query?query={metric}",
            self.addresses[1]
        );
        let Ok(mut answer) = ureq::get(&url).call() else {
            return Vec::new();
        };
        let text = answer.body_mut().read_to_string().expect("is text");
        let answer: serde_json::Value = serde_json::from_str(&text).expect("is JSON");
        let results = answer["data"]["result"].as_array().expect("a list");
        let found = results.iter().filter(|it| it["value"][1] == *value);
        let target = |it: &serde_json::Value| it["metric"]["instance"].as_str().map(str::to_owned);
        let mut targets: Vec<String> = found.filter_map(target).collect();
        targets.sort();
        targets
    }
}

#[test]
fn a_prometheus_elsewhere_scrapes_by_address_and_by_name() {
    if !may_link() {
        eprintln!("not tested: this user may not have a network namespace with a link");
        return;
    }
    let place = Place::new(configuration());
    let metrics = place.metrics_at(":0");
    let origin = metrics.origin();
    let (_, port) = origin.rsplit_once(':').expect("a port");
    let elsewhere = Elsewhere::scraping(port);
    let mut expected = vec![
        format!("{}:{port}", elsewhere.addresses[0]),
        format!("{NAME}:{port}"),
    ];
    expected.sort();
    for metric in ["up", "ibvswitch_up"] {
        wait_until(metric, || elsewhere.targets_with(metric, "1") == expected);
    }
}
