//! A daemon, and what serves the page beside it.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use testing::Configuration;

/// This program and those beside it.
fn program(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_ibvswitch-web")).with_file_name(name);
    let built = path.is_file();
    assert!(
        built,
        "there is no {}; `cargo build` builds it",
        path.display()
    );
    path
}

/// A process that is killed when it is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended is as good as killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A daemon that serves.
pub struct Place {
    dir: tempfile::TempDir,
    _daemon: Process,
}

impl Place {
    pub fn new(config: Configuration) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("ibvswitch.toml");
        std::fs::write(&file, config.to_string()).expect("is writable");
        let mut child = Command::new(program("ibvswitch"))
            .arg("run")
            .arg("--config")
            .arg(&file)
            .arg("--runtime-dir")
            .arg(dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the daemon starts");
        let lines = BufReader::new(child.stdout.take().expect("is piped")).lines();
        let daemon = Process(child);
        let ready = lines
            .map_while(Result::ok)
            .any(|line| line.starts_with("ready"));
        assert!(ready, "the daemon ends before it is ready");
        Self {
            dir,
            _daemon: daemon,
        }
    }

    /// Returns the output of a command, which has to succeed.
    pub fn ibvswitch(&self, arguments: &[&str]) -> String {
        let output = Command::new(program("ibvswitch"))
            .arg("--config")
            .arg(self.dir.path().join("ibvswitch.toml"))
            .args(arguments)
            .arg("--runtime-dir")
            .arg(self.dir.path())
            .output()
            .expect("runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).expect("is text")
    }

    /// The page's server, as users start it.
    pub fn web(&self, arguments: &[&str]) -> Web {
        let mut command = Command::new(program("ibvswitch"));
        command.arg("--runtime-dir").arg(self.dir.path());
        let config = self.dir.path().join("ibvswitch.toml");
        command.arg("--config").arg(config);
        command
            .args(["web", "--listen", "127.0.0.1:0"])
            .args(arguments);
        Web::start(command)
    }

    /// The server of metrics.
    pub fn metrics(&self) -> Web {
        self.metrics_at("127.0.0.1:0")
    }

    /// The same at this address.
    pub fn metrics_at(&self, listen: &str) -> Web {
        let mut command = Command::new(program("ibvswitch"));
        command.arg("--runtime-dir").arg(self.dir.path());
        command.args(["metrics", "--listen", listen]);
        Web::start(command)
    }
}

/// Returns the error of the page's server for arguments with which it does not start.
pub fn fails(arguments: &[&str]) -> String {
    let mut command = Command::new(program("ibvswitch-web"));
    command.args(["--listen", "127.0.0.1:0"]).args(arguments);
    let output = command.output().expect("runs");
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A server that listens.
pub struct Web {
    url: String,
    bearer: String,
    _process: Process,
}

/// Answer of the server.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub policy: String,
    pub body: Vec<u8>,
}

impl Web {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
        let mut url = String::new();
        let stdout = child.stdout.take().expect("is piped");
        let process = Process(child);
        BufReader::new(stdout)
            .read_line(&mut url)
            .expect("says where it is");
        let url = url.trim().to_owned();
        let token = url.split_once("token=").map_or("", |(_, token)| token);
        Self {
            bearer: format!("Bearer {token}"),
            url,
            _process: process,
        }
    }

    /// Where it is, with the token.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Scheme, host and port.
    pub fn origin(&self) -> String {
        self.url
            .splitn(4, '/')
            .take(3)
            .collect::<Vec<_>>()
            .join("/")
    }

    /// The header with the token.
    pub fn bearer(&self) -> (&'static str, &str) {
        ("Authorization", &self.bearer)
    }

    pub fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let request = agent().get(format!("{}{path}", self.origin()));
        answer(with(request, headers).call())
    }

    /// An answer without end, as it comes.
    pub fn open(&self, path: &str, headers: &[(&str, &str)]) -> impl Read + use<> {
        let request = agent().get(format!("{}{path}", self.origin()));
        let response = with(request, headers).call().expect("the server answers");
        response.into_body().into_reader()
    }

    pub fn post(&self, path: &str, body: &str, headers: &[(&str, &str)]) -> Answer {
        let request = agent().post(format!("{}{path}", self.origin()));
        let request = with(request, headers).header("Content-Type", "application/json");
        answer(request.send(body))
    }
}

fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder().http_status_as_error(false);
    config.build().into()
}

fn with<B>(request: ureq::RequestBuilder<B>, headers: &[(&str, &str)]) -> ureq::RequestBuilder<B> {
    headers.iter().fold(request, |request, (name, value)| {
        request.header(*name, *value)
    })
}

fn answer(result: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Answer {
    let mut response = result.expect("the server answers");
    let policy = response.headers().get("content-security-policy");
    Answer {
        status: response.status().as_u16(),
        policy: policy.map_or_else(String::new, |value| {
            value.to_str().expect("is text").to_owned()
        }),
        // A capture has no bound of its own.
        body: (response.body_mut().with_config().limit(u64::MAX))
            .read_to_vec()
            .expect("is whole"),
    }
}
