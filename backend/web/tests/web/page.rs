//! The page beside a running daemon: in a real browser, and asked by who should not be answered.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::browser::Browser;
use crate::place::Place;
use testing::Configuration;

pub fn configuration() -> Configuration {
    Configuration::new()
        .hypervisor("hv1", ["vm1"])
        .hypervisor("hv2", ["vm2"])
        .spare_vfs(1)
}

/// The cell of a row of the table of VFs.
fn cell(vf: &str, at: usize) -> String {
    format!("document.querySelector('tr[data-key=\"vf {vf}\"]')?.cells[{at}].textContent")
}

#[test]
fn a_link_goes_down_and_a_vm_moves() {
    let place = Place::new(configuration());
    let web = place.web(&["--allow-changes"]);
    let browser = Browser::open(web.url());
    browser.wait(&cell("vm1", 3), "Active");
    browser.wait(&cell("vm1", 1), "hv1");
    // The manager's host.
    browser.wait(
        "document.querySelector('#adapters tbody tr')?.cells[5].textContent",
        "sw1:3",
    );
    browser.wait(
        "String(document.getElementById('drawing').naturalWidth > 0)",
        "true",
    );
    browser.keep("page.png");

    // By a command, which the page hears of.
    place.ibvswitch(&["link", "down", "hv1:1"]);
    let link = "document.querySelector('#links tr[data-key*=\"hv1:1\"]')";
    browser.wait(&format!("{link}?.cells[2].textContent"), "Down");
    browser.wait_for("document.getElementById('events').textContent", "→ Down");
    browser.keep("link-down.png");

    // By the page itself.
    browser.run(&format!("{link}.querySelector('button').click()"));
    browser.wait(&format!("{link}.cells[2].textContent"), "Active");
    browser.wait(&cell("vm1", 3), "Active");
    let row = "document.querySelector('tr[data-key=\"vf vm1\"]')";
    browser.run(&format!(
        "{row}.querySelector('select').value = 'hv2'; {row}.querySelector('button').click()"
    ));
    browser.wait_for(&cell("hv2-spare1", 2), "vm1");
    browser.wait_for(
        "document.getElementById('events').textContent",
        "vm1 moved from hv1",
    );
    browser.keep("migration.png");
    let status = place.ibvswitch(&["vf", "show", "hv2-spare1", "--json"]);
    assert!(status.contains("\"holds\": \"vm1\""), "{status}");

    // Nothing was refused by the page's own rules.
    assert_eq!(browser.complaints(), Vec::<String>::new());
    drop(place);
    browser.wait("document.body.dataset.state", "away");
    browser.wait_for(
        "document.getElementById('away').textContent",
        "no daemon answers",
    );
}

#[test]
fn who_has_no_token_gets_nothing() {
    let place = Place::new(configuration());
    let web = place.web(&[]);
    let paths = [
        "/",
        "/page.js",
        "/events",
        "/metrics",
        "/topology.svg",
        "/capture?seconds=1",
        "/nothing",
    ];
    for path in paths {
        assert_eq!(web.get(path, &[]).status, 401, "{path}");
        let wrong = ("Authorization", "Bearer 00000000000000000000000000000000");
        assert_eq!(web.get(path, &[wrong]).status, 401, "{path}");
        let elsewhere = ("Host", "evil.example");
        assert_eq!(
            web.get(path, &[elsewhere, web.bearer()]).status,
            421,
            "{path}"
        );
    }
    let page = web.get("/", &[web.bearer()]);
    assert_eq!(page.status, 200);
    assert!(
        page.policy.starts_with("default-src 'none'"),
        "{}",
        page.policy
    );
    // With its own token it may look, and not touch.
    let origin = web.origin();
    for (path, body) in [
        ("/link", r#"{"node":"hv1","port":1,"up":false}"#),
        ("/migrate", r#"{"vm":"vm1","to":"hv2"}"#),
    ] {
        let answer = web.post(path, body, &[web.bearer(), ("Origin", &origin)]);
        assert_eq!(answer.status, 403, "{path}");
    }
    let links = place.ibvswitch(&["link", "show", "hv1:1"]);
    assert!(links.contains("Active"), "{links}");
}

#[test]
fn changes_come_from_the_page_alone() {
    let place = Place::new(configuration());
    let web = place.web(&["--allow-changes"]);
    let down = r#"{"node":"hv1","port":1,"up":false}"#;
    for origin in ["http://evil.example", "null", "http://localhost:1"] {
        let answer = web.post("/link", down, &[web.bearer(), ("Origin", origin)]);
        assert_eq!(answer.status, 403, "{origin}");
    }
    assert_eq!(web.post("/link", down, &[web.bearer()]).status, 403);
    let origin = web.origin();
    let own = [web.bearer(), ("Origin", origin.as_str())];
    // What makes no sense is said to.
    for (path, body, status) in [
        ("/link", "{", 400),
        (
            "/link",
            r#"{"node":"hv1","port":1,"up":false,"more":1}"#,
            422,
        ),
        ("/link", r#"{"node":"nobody","port":1,"up":false}"#, 404),
        ("/migrate", r#"{"vm":"nobody","to":"hv2"}"#, 404),
        ("/nothing", "{}", 404),
    ] {
        assert_eq!(web.post(path, body, &own).status, status, "{path} {body}");
    }
    let long = format!("{{\"node\":\"{}\"}}", "x".repeat(5000));
    assert_eq!(web.post("/link", &long, &own).status, 413);
    assert_eq!(web.post("/link", down, &own).status, 200);
    let link = place.ibvswitch(&["link", "show", "hv1:1"]);
    assert!(link.contains("Down"), "{link}");
}

/// A cluster by HTTP is the one of the command, and needs the rights of other changes.
#[test]
fn clusters_are_given_out() {
    let place = Place::new(configuration());
    let create = r#"{"action":"create","name":"red","vms":2,"per_host":1}"#;
    let reader = place.web(&[]);
    let origin = reader.origin();
    let own = [reader.bearer(), ("Origin", origin.as_str())];
    assert_eq!(reader.get("/clusters", &[]).status, 401);
    assert_eq!(reader.post("/clusters", create, &own).status, 403);
    let web = place.web(&["--allow-changes"]);
    let origin = web.origin();
    let own = [web.bearer(), ("Origin", origin.as_str())];
    assert_eq!(web.post("/clusters", create, &[web.bearer()]).status, 403);
    assert_eq!(web.post("/clusters?plan=true", create, &own).status, 200);
    let none = web.get("/clusters", &[web.bearer()]);
    assert_eq!((none.status, &none.body[..]), (200, &b"[]\n"[..]));
    let created = web.post("/clusters", create, &own);
    let body = String::from_utf8(created.body).expect("is text");
    assert_eq!(created.status, 200, "{body}");
    assert!(body.contains("red-2"), "{body}");
    let shown = web.get("/clusters", &[web.bearer()]);
    let command = place.ibvswitch(&["cluster", "show", "--json"]);
    assert_eq!(String::from_utf8(shown.body).expect("is text"), command);
    for (requests, status) in [
        (r#"{"action":"resize","name":"blue","vms":2}"#, 404),
        (r#"{"action":"resize","name":"red","vms":2000}"#, 409),
        ("{", 400),
        (
            r#"[{"action":"create","name":"blue","vms":1,"vf_set":["smp=fabric"]}]"#,
            403,
        ),
    ] {
        assert_eq!(
            web.post("/clusters", requests, &own).status,
            status,
            "{requests}"
        );
    }
}

#[test]
fn a_capture_is_one() {
    let place = Place::new(configuration());
    let web = place.web(&[]);
    // Management packets of a sweep while it is made.
    let sweep = std::thread::scope(|scope| {
        let capture = scope.spawn(|| web.get("/capture?seconds=3", &[web.bearer()]));
        while !capture.is_finished() {
            place.ibvswitch(&["sm", "sweep"]);
        }
        capture.join().expect("does not panic")
    });
    assert_eq!(sweep.status, 200);
    // A pcap file with times in nanoseconds, with some records.
    assert_eq!(sweep.body.get(..4), Some(&[0x4d, 0x3c, 0xb2, 0xa1][..]));
    assert!(sweep.body.len() > 300, "{} bytes", sweep.body.len());
    for path in ["/capture?seconds=0", "/capture?seconds=601", "/capture"] {
        assert_eq!(web.get(path, &[web.bearer()]).status, 400, "{path}");
    }
}

#[test]
fn prometheus_gets_metrics() {
    let place = Place::new(configuration());
    let metrics = place.metrics();
    let answer = metrics.get("/metrics", &[]);
    assert_eq!(answer.status, 200);
    let text = String::from_utf8(answer.body).expect("is text");
    let command = place.ibvswitch(&["metrics"]);
    let names = |text: &str| -> Vec<String> {
        text.lines()
            .filter(|line| line.starts_with("# TYPE"))
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(names(&text), names(&command));
    // Nothing else is there.
    assert_eq!(metrics.get("/", &[]).status, 404);
    // By every name: metrics are for all who reach the address.
    for host in ["node7.example:9843", "10.1.2.3"] {
        assert_eq!(metrics.get("/metrics", &[("Host", host)]).status, 200);
    }
}

/// An address to listen on may be a port or a name; the printed one is for clients.
#[test]
fn metrics_on_all_addresses() {
    let place = Place::new(configuration());
    for listen in [":0", "0", "localhost:0", "0.0.0.0:0"] {
        let metrics = place.metrics_at(listen);
        let (host, port) = {
            let origin = metrics.origin();
            let (host, port) = origin.rsplit_once(':').expect("a port");
            (host.to_owned(), port.to_owned())
        };
        let all = [":0", "0.0.0.0:0"].contains(&listen);
        assert_eq!(host != "http://127.0.0.1", all, "{host}");
        let address = if all { "127.0.0.7" } else { "127.0.0.1" };
        let url = format!("http://{address}:{port}/metrics");
        let mut answer = ureq::get(&url).call().expect("is answered");
        let text = answer.body_mut().read_to_string().expect("is text");
        assert!(text.contains("ibvswitch_up 1\n"), "{text}");
    }
}

/// Clients that connect and send half a request take the place of nobody who sends a whole one.
#[test]
fn half_requests_deny_the_server_to_nobody() {
    let place = Place::new(configuration());
    let (page, metrics) = (place.web(&[]), place.metrics());
    for web in [&page, &metrics] {
        let origin = web.origin();
        let address = origin.strip_prefix("http://").expect("is one");
        let mut events = web.open("/events", &[web.bearer()]);
        let halves: Vec<TcpStream> = (0..300)
            .map(|_| {
                let mut stream = TcpStream::connect(address).expect("listens");
                // One that had to make room may be closed already.
                let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n");
                stream
            })
            .collect();
        assert_eq!(web.get("/metrics", &[web.bearer()]).status, 200);
        // Those with the token stay.
        if web.origin() == page.origin() {
            events.read_exact(&mut [0; 8]).expect("goes on");
        }
        // The eldest are closed, the youngest are there.
        let is_closed = |mut stream: &TcpStream| {
            stream.set_nonblocking(true).expect("is a socket");
            let read = stream.read(&mut [0; 8]);
            !read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        };
        assert!(is_closed(&halves[0]));
        assert!(!is_closed(&halves[299]));
    }
}
