//! The control socket, as well-behaved and ill-behaved clients see it.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ibvswitch::capture::{Subscription, Wish};
use ibvswitch::control::{
    CLIENTS_MAX, Client, ClientError, Counters, CountersReport, Doorbells, EngineCalls, ErrorKind,
    FabricStatus, FirmwareReport, FirmwareRequest, LinkAction, LinkEnd, LinkReport, LinkRequest,
    LiveDone, LiveMigration, LiveRequest, Mads, ManagerPlace, Migrated, MigrationRequest,
    MigrationsReport, MigrationsRequest, Move, MoveOutcome, Objects, PinRequest, Pinned,
    REQUEST_MAX, RefusedMad, Request, Response, Sandbox, Server, SmAction, SmStatus,
    StallDirection, Status, StatusSource, StepPackets, Topology, UpgradeRequest, VfStatus,
};
use nix::poll::{PollFd, PollFlags, poll};

#[derive(Debug)]
struct Fixed;

impl StatusSource for Fixed {
    fn status(&self) -> Status {
        Status {
            version: "0.1.0".to_owned(),
            pid: 7,
            uptime_s: 3,
            runtime_dir: "/run/ibvswitch".to_owned(),
            full_mode: Vec::new(),
            clusters: Vec::new(),
            config: Some("/etc/ibvswitch.toml".to_owned()),
            fabric: FabricStatus {
                switches: 3,
                subnet_prefix: "fe80:0000:0000:0000".to_owned(),
                sm_lid: 1,
                manager: ManagerPlace::Embedded,
                sweeps: 2,
                smps: 40,
                subnets: Vec::new(),
            },
            vfs: vec![VfStatus {
                name: "vm1".to_owned(),
                hypervisor: "hv1".to_owned(),
                subnet: None,
                state: "Active".to_owned(),
                lid: 3,
                cluster: Some("a".to_owned()),
                virtual_lid: Some(1),
                sm_lid: 1,
                node_guid: "0002:c903:0000:0101".to_owned(),
                port_guid: "0002:c903:0000:0101".to_owned(),
                pkeys: vec!["0xffff".to_owned()],
                smp: "own-port".to_owned(),
                mads: Mads {
                    passed: 5,
                    refused: [("smp".to_owned(), 1)].into(),
                    last_refused: vec![RefusedMad {
                        at_ms: 1500,
                        packet: "SubnDirectedSet(PortInfo)".to_owned(),
                        dlid: 0xffff,
                        reason: "smp".to_owned(),
                    }],
                },
                doorbells: Doorbells::Poll,
                ethernet: None,
                holds: Some("vm1".to_owned()),
                socket: "/run/ibvswitch/vm1.sock".to_owned(),
                client_connected: true,
                memory_unshared: false,
                objects: Objects {
                    qp: 2,
                    ..Objects::default()
                },
                counters: Counters {
                    xmit_bytes: u64::MAX,
                    ..Counters::default()
                },
            }],
            adapters: Vec::new(),
            passthrough: Vec::new(),
            commands: Vec::new(),
            placement: None,
            upgraded: None,
            sandbox: Sandbox::default(),
            warnings: Vec::new(),
        }
    }

    fn migrate(&self, request: &MigrationRequest) -> Result<Migrated, (ErrorKind, String)> {
        Err((
            ErrorKind::Unknown,
            format!("there is no VM `{}`", request.vm),
        ))
    }

    fn migrate_all(
        &self,
        request: &MigrationsRequest,
    ) -> Result<MigrationsReport, (ErrorKind, String)> {
        let fail = |each: &Move| MoveOutcome::Failed {
            vm: each.vm.clone(),
            to: each.to.clone(),
            round: None,
            error: "no".to_owned(),
        };
        Ok(MigrationsReport {
            moves: request.moves.iter().map(fail).collect(),
            packets: StepPackets::default(),
        })
    }

    fn migrate_live(
        &self,
        request: &LiveRequest,
    ) -> Result<(Box<dyn LiveMigration>, LiveDone), (ErrorKind, String)> {
        Err((
            ErrorKind::Unknown,
            format!("there is no VM `{}`", request.moves[0].vm),
        ))
    }

    fn settle_live(&self, _: &str) {}

    fn manager(&self, _: SmAction, _: Option<&str>) -> Result<Vec<SmStatus>, (ErrorKind, String)> {
        Err((ErrorKind::Failed, "there is no manager".to_owned()))
    }

    fn pin(&self, _: &PinRequest) -> Result<Pinned, (ErrorKind, String)> {
        Err((ErrorKind::Failed, "there is one engine".to_owned()))
    }

    fn engine_calls(&self) -> EngineCalls {
        EngineCalls {
            long_ns: 1,
            longest_ns: 2,
        }
    }

    fn upgrade(&self, _: &UpgradeRequest) -> (ErrorKind, String) {
        (ErrorKind::Failed, "no program".to_owned())
    }

    fn link(&self, request: &LinkRequest) -> Result<LinkReport, (ErrorKind, String)> {
        let end = |node: &str, port| LinkEnd {
            node: node.to_owned(),
            guid: "0002:c903:0000:0100".to_owned(),
            port,
        };
        Ok(LinkReport {
            port: end(&request.node, request.port),
            peer: end("hv1", 1),
            cable: request.action != LinkAction::Down,
            state: "Active".to_owned(),
            physical_state: "LinkUp".to_owned(),
            lost_per_million: 0,
            delay_us: 2500,
            overrun_every: 0,
            stalled: StallDirection::Off,
        })
    }

    fn topology(&self) -> Topology {
        Topology {
            nodes: Vec::new(),
            links: Vec::new(),
            subnets: Vec::new(),
            elsewhere: Vec::new(),
        }
    }

    fn firmware(&self, _: &FirmwareRequest) -> Result<FirmwareReport, (ErrorKind, String)> {
        unreachable!("nobody asks for it")
    }

    fn netlist(&self) -> String {
        String::new()
    }

    fn counters(&self, _: Option<&str>) -> Result<CountersReport, (ErrorKind, String)> {
        Ok(CountersReport::default())
    }

    fn external(&self, host: Option<&str>) -> Result<(String, String), (ErrorKind, String)> {
        match host {
            Some(host) => Err((ErrorKind::Unknown, format!("there is no node `{host}`"))),
            None => Ok(("ibvswitch".to_owned(), "sw1".to_owned())),
        }
    }

    fn capture(&self, _: &Wish) -> Result<Subscription, String> {
        Err("there is nothing to capture".to_owned())
    }
}

struct Daemon {
    _dir: tempfile::TempDir,
    path: PathBuf,
    server: Option<Server>,
}

impl Daemon {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("control.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        let server = Server::start(listener, Arc::new(Fixed)).expect("starts");
        Self {
            _dir: dir,
            path,
            server: Some(server),
        }
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.path).expect("is listening")
    }
}

/// Sends bytes and reads one line.
fn exchange(stream: &UnixStream, bytes: &[u8]) -> String {
    let mut writer = stream;
    writer.write_all(bytes).expect("is read");
    let mut line = String::new();
    BufReader::new(stream)
        .read_line(&mut line)
        .expect("is answered");
    line
}

#[test]
fn client_and_server_agree() {
    let daemon = Daemon::start();
    let mut client = Client::connect(&daemon.path).expect("is listening");
    for _ in 0..3 {
        let response = client.ask(&Request::Status {}).expect("is answered");
        assert_eq!(response, Response::Status(Fixed.status()));
    }
    let response = client.ask(&Request::Topology {}).expect("is answered");
    assert_eq!(response, Response::Topology(Fixed.topology()));
}

/// The text itself, which scripts depend on.
#[test]
fn status_in_json() {
    let daemon = Daemon::start();
    let line = exchange(&daemon.connect(), b"{\"request\":\"status\"}\n");
    assert_eq!(
        line,
        concat!(
            r#"{"response":"status","version":"0.1.0","pid":7,"uptime_s":3,"#,
            r#""runtime_dir":"/run/ibvswitch","config":"/etc/ibvswitch.toml","#,
            r#""fabric":{"switches":3,"subnet_prefix":"fe80:0000:0000:0000","sm_lid":1,"#,
            r#""manager":"embedded","sweeps":2,"smps":40},"#,
            r#""vfs":[{"name":"vm1","hypervisor":"hv1","state":"Active","lid":3,"#,
            r#""cluster":"a","virtual_lid":1,"sm_lid":1,"#,
            r#""node_guid":"0002:c903:0000:0101","port_guid":"0002:c903:0000:0101","#,
            r#""pkeys":["0xffff"],"smp":"own-port","#,
            r#""mads":{"passed":5,"refused":{"smp":1},"last_refused":[{"at_ms":1500,"#,
            r#""packet":"SubnDirectedSet(PortInfo)","dlid":65535,"reason":"smp"}]},"#,
            r#""doorbells":"poll","holds":"vm1","socket":"/run/ibvswitch/vm1.sock","#,
            r#""client_connected":true,"#,
            r#""objects":{"pd":0,"mr":0,"cq":0,"eq":0,"srq":0,"qp":2},"#,
            r#""counters":{"xmit_bytes":18446744073709551615,"rcv_bytes":0,"xmit_packets":0,"#,
            r#""rcv_packets":0,"retries":{"local_ack_timeout_err":0,"packet_seq_err":0,"#,
            r#""implied_nak_seq_err":0,"rnr_nak_retry_err":0,"out_of_sequence":0,"#,
            r#""duplicate_request":0}}}],"sandbox":{"landlock":"none","seccomp":false}}"#,
            "\n"
        )
    );
}

#[test]
fn malformed_requests_are_answered_and_the_connection_goes_on() {
    let daemon = Daemon::start();
    let stream = daemon.connect();
    for bad in [
        "\n",
        "hello\n",
        "{}\n",
        "[]\n",
        "{\"request\":\"reboot\"}\n",
        "{\"request\":\"status\",\"extra\":1}\n",
        "\u{0}\n",
    ] {
        let line = exchange(&stream, bad.as_bytes());
        assert!(
            line.starts_with(r#"{"response":"error","kind":"bad-request","#),
            "{bad:?}: {line}"
        );
    }
    let line = exchange(&stream, b"\xff\xfe\n");
    assert!(line.contains("bad-request"), "{line}");
    let line = exchange(&stream, b"{\"request\":\"status\"}\n");
    assert!(line.contains("\"vm1\""), "{line}");
}

#[test]
fn nested_json_does_not_exhaust_the_stack() {
    let daemon = Daemon::start();
    let bytes = [vec![b'['; REQUEST_MAX - 1], b"\n".to_vec()].concat();
    let line = exchange(&daemon.connect(), &bytes);
    assert!(line.contains("bad-request"), "{line}");
}

#[test]
fn an_overlong_request_ends_the_connection() {
    let daemon = Daemon::start();
    let stream = daemon.connect();
    let line = exchange(&stream, &vec![b'a'; REQUEST_MAX]);
    assert!(
        line.starts_with(r#"{"response":"error","kind":"too-long","#),
        "{line}"
    );
    let mut rest = Vec::new();
    (&stream).read_to_end(&mut rest).expect("is closed");
    assert!(rest.is_empty());
}

/// Clients that send half a request: if there are too many, the eldest make room for others, and the others stay. A whole
/// request does not wait for them.
#[test]
fn clients_with_half_a_request_make_room() {
    let daemon = Daemon::start();
    let (half, rest) = (b"{\"request\":", b"\"status\"}\n");
    let mut silent: Vec<UnixStream> = (0..300)
        .map(|_| {
            let stream = daemon.connect();
            (&stream).write_all(half).expect("is buffered");
            stream
        })
        .collect();
    let line = exchange(&daemon.connect(), &[&half[..], rest].concat());
    assert!(line.contains("\"vm1\""), "{line}");
    for stream in &silent {
        // The eldest have been hung up on.
        let _ = (&*stream).write_all(rest);
    }
    let answered = |stream: &UnixStream| {
        let mut line = String::new();
        // A reset is an end, too.
        let _ = BufReader::new(stream).read_line(&mut line);
        !line.is_empty()
    };
    silent.retain(answered);
    assert_eq!(silent.len(), 255);
}

/// A client learns in words that the daemon does not answer.
#[test]
fn a_daemon_that_is_late() {
    let (socket, limit) = ("/run/c.sock".into(), Duration::from_secs(10));
    let error = ClientError::Late { socket, limit }.to_string();
    assert!(error.contains("has not answered within 10 s"), "{error}");
}

/// Clients that ask and do not take what they are told are no better than silent ones.
#[test]
fn a_client_that_does_not_read_makes_room() {
    let daemon = Daemon::start();
    let request = b"{\"request\":\"status\"}\n";
    let deaf: Vec<(UnixStream, usize)> = (0..CLIENTS_MAX)
        .map(|_| {
            let stream = daemon.connect();
            stream.set_nonblocking(true).expect("is a socket");
            let mut asked = 0;
            // Until neither side's buffer takes more, for as long as it takes to be sure of that.
            let is_writable = || {
                let mut polled = [PollFd::new(stream.as_fd(), PollFlags::POLLOUT)];
                poll(&mut polled, 200_u16).expect("is a socket") == 1
            };
            while is_writable() {
                match (&stream).write(request) {
                    Ok(written) => assert_eq!(written, request.len()),
                    Err(_) => continue,
                }
                asked += 1;
            }
            stream.set_nonblocking(false).expect("is a socket");
            (stream, asked)
        })
        .collect();
    let line = exchange(&daemon.connect(), request);
    assert!(line.contains("\"vm1\""), "{line}");
    // The others get all of their answers.
    let served = deaf.iter().filter(|(stream, asked)| {
        let lines = BufReader::new(stream).lines();
        lines.take(*asked).map_while(Result::ok).count() == *asked
    });
    assert_eq!(served.count(), CLIENTS_MAX - 1);
}

/// Clients that connect and say nothing take places, but only until they go.
#[test]
fn silent_clients_hold_up_nobody_for_good() {
    let daemon = Daemon::start();
    let mut silent: Vec<UnixStream> = (0..CLIENTS_MAX).map(|_| daemon.connect()).collect();
    let waiting = daemon.connect();
    (&waiting)
        .write_all(b"{\"request\":\"status\"}\n")
        .expect("is buffered");
    silent.pop();
    let mut line = String::new();
    BufReader::new(&waiting)
        .read_line(&mut line)
        .expect("is answered");
    assert!(line.contains("\"vm1\""), "{line}");
}

#[test]
fn stopping_ends_all_connections() {
    let mut daemon = Daemon::start();
    let stream = daemon.connect();
    exchange(&stream, b"{\"request\":\"status\"}\n");
    drop(daemon.server.take());
    let mut rest = Vec::new();
    (&stream).read_to_end(&mut rest).expect("is closed");
    assert!(rest.is_empty());
}

#[test]
fn a_daemon_that_is_not_there() {
    let error = Client::connect(Path::new("/nonexistent/control.sock")).expect_err("is not there");
    assert!(matches!(error, ClientError::NotRunning { .. }));
    let message = error.to_string();
    assert!(
        message.starts_with("no daemon answers on /nonexistent/control.sock: "),
        "{message}"
    );
    assert!(
        message.contains("start one with `ibvswitch run`"),
        "{message}"
    );
}

#[test]
fn a_daemon_that_hangs_up() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("control.sock");
    let listener = UnixListener::bind(&path).expect("a socket");
    let server = std::thread::spawn(move || drop(listener.accept()));
    let mut client = Client::connect(&path).expect("is listening");
    server.join().expect("ends");
    let error = client.ask(&Request::Status {}).expect_err("is gone");
    assert!(matches!(error, ClientError::Broken { .. }), "{error}");
}

#[test]
fn a_migration_in_json() {
    let daemon = Daemon::start();
    let request = b"{\"request\":\"migrate\",\"vm\":\"vm9\",\"to\":\"hv2\"}\n";
    assert_eq!(
        exchange(&daemon.connect(), request),
        "{\"response\":\"error\",\"kind\":\"unknown\",\"message\":\"there is no VM `vm9`\"}\n"
    );
    let request = b"{\"request\":\"migrate-all\",\"moves\":[{\"vm\":\"vm1\",\"to\":\"hv2\"}]}\n";
    let none = "{\"sent\":0,\"updated\":0}";
    assert_eq!(
        exchange(&daemon.connect(), request),
        format!(
            "{{\"response\":\"migrations\",\"moves\":[{{\"outcome\":\"failed\",\"vm\":\"vm1\",\
             \"to\":\"hv2\",\"error\":\"no\"}}],\"packets\":{{\"functions\":{none},\"drops\":{none},\
             \"vswitches\":{none},\"switches\":{none}}}}}\n"
        )
    );
}
