//! The command line of `ibvswitch web`.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use config::{Config, ConfigError, Source};
use nix::sys::prctl;
use nix::unistd::{Gid, Uid, geteuid, gethostname, setgid, setgroups, setuid};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::address::{Listen, host};
use crate::clusters::Clusters;
use crate::guard::{Guard, new_token};
use crate::listener::Bounded;
use crate::server::{Extent, serve};
use crate::tls::{self, TlsError};

/// Show a running daemon in a browser: the subnet, VFs, counters, links, and migrations as they happen.
#[derive(Debug, Parser)]
#[command(
    name = "ibvswitch web",
    bin_name = "ibvswitch web",
    version,
    max_term_width = 100,
    after_help = "\
The printed address contains a token, which the browser keeps as a cookie. The server speaks plain
HTTP and listens on this machine only; from another machine use ssh, or give it a certificate:

  ssh -L 8421:127.0.0.1:8421 HOST
  ibvswitch web --listen :8421 --host lab.example --tls-cert chain.pem --tls-key key.pem"
)]
struct Cli {
    /// Configuration file.
    #[arg(
        long,
        short,
        value_name = "FILE",
        env = "IBVSWITCH_CONFIG",
        hide_env_values = true
    )]
    config: Option<PathBuf>,
    /// Directory of the daemon's sockets, in place of the configured one.
    #[arg(
        long,
        value_name = "DIR",
        env = "IBVSWITCH_RUNTIME_DIR",
        hide_env_values = true
    )]
    runtime_dir: Option<PathBuf>,
    /// Address to listen on: ADDRESS:PORT, NAME:PORT, :PORT for all addresses, or PORT for 127.0.0.1. With port 0 the
    /// system chooses a port.
    #[arg(long, value_name = "[ADDRESS:]PORT", default_value = "127.0.0.1:8421", value_parser = Listen::parse)]
    listen: Listen,
    /// Another name in browsers' addresses, such as the name of a proxy; may be given several times.
    #[arg(long = "host", value_name = "NAME", value_parser = host)]
    hosts: Vec<String>,
    /// Let the page take links down and up, and migrate VMs, and programs change clusters.
    #[arg(long, conflicts_with = "metrics")]
    allow_changes: bool,
    /// Read the token from the first line of this file, in place of a new one.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Speak HTTPS, with the certificate in this PEM file, and those between it and its root. It is read once, at the
    /// start.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of that certificate, as PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Serve only metrics for Prometheus, at /metrics; without a token, unless --token-file names one.
    #[arg(long)]
    metrics: bool,
}

/// Reasons why the server does not start.
#[derive(Debug, thiserror::Error)]
enum WebError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot listen on {address}: {source}; choose another address with --listen")]
    Listen {
        address: String,
        source: std::io::Error,
    },
    #[error("cannot read {}: {source}; name a file that this user may read", .path.display())]
    Token {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("the token in {} has to be at least 16 letters, digits, `-`, `_` and `.`", .0.display())]
    ShortToken(PathBuf),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the rights of root cannot be given up: {0}")]
    Rights(nix::Error),
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// Reads the command line and serves until SIGINT or SIGTERM.
pub fn main() -> ExitCode {
    // On a mistake, clap prints it and leaves with 2.
    let cli = Cli::parse();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ibvswitch web: {error}");
            ExitCode::from(if matches!(error, WebError::Config(_)) {
                3
            } else {
                1
            })
        }
    }
}

fn run(cli: &Cli) -> Result<(), WebError> {
    let config = Source {
        file: cli.config.clone(),
        runtime_dir: cli.runtime_dir.clone(),
    }
    .load()?;
    let token = match &cli.token_file {
        Some(path) => Some(read_token(path)?),
        None if cli.metrics => None,
        None => Some(new_token()?),
    };
    let tls = match (&cli.tls_cert, &cli.tls_key) {
        (Some(certificate), Some(key)) => Some(tls::acceptor(certificate, key)?),
        _ => None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(listen(cli, &config, token, tls))
}

async fn listen(
    cli: &Cli,
    config: &Config,
    token: Option<String>,
    tls: Option<TlsAcceptor>,
) -> Result<(), WebError> {
    let failed = |source| WebError::Listen {
        address: cli.listen.text.clone(),
        source,
    };
    let listener = TcpListener::bind(&cli.listen.addresses[..])
        .await
        .map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let control_socket = config.control_socket();
    give_up_rights(&control_socket).map_err(WebError::Rights)?;
    if !address.ip().is_loopback() && token.is_some() && tls.is_none() {
        eprintln!(
            "an eavesdropper on this network can read the token: give --tls-cert and --tls-key, or \
             prefer 127.0.0.1, and ssh -L from another machine"
        );
    }
    let extent = if cli.metrics {
        Extent::Metrics
    } else {
        Extent::Page
    };
    let name = name(address);
    let scheme = if tls.is_some() { "https" } else { "http" };
    match (extent, &token) {
        (Extent::Metrics, _) => println!("{scheme}://{name}/metrics"),
        (Extent::Page, Some(token)) if cli.token_file.is_none() => {
            println!("{scheme}://{name}/?token={token}");
        }
        (Extent::Page, _) => println!("{scheme}://{name}/?token=..."),
    }
    let guard = match extent {
        Extent::Metrics => Guard::anywhere(address, token),
        Extent::Page => {
            let names = cli.hosts.iter().chain([&name]);
            Guard::new(address, names, token, cli.allow_changes)
        }
    };
    let guard = guard.with_tls(tls.is_some());
    let listener = Bounded::new(listener, tls);
    let clusters = Clusters::new(cli.config.as_deref(), &config.runtime_dir);
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        served = serve(listener, guard, extent, &control_socket, clusters, &config.runtime_dir) => Ok(served?),
        interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
        _ = terminate.recv() => Ok(()),
    }
}

/// The address with the port, as a client can write it: this machine's name where the server listens on all addresses.
fn name(address: SocketAddr) -> String {
    if !address.ip().is_unspecified() {
        return address.to_string();
    }
    let name = gethostname().ok().and_then(|name| name.into_string().ok());
    let name = name.unwrap_or_else(|| "localhost".to_owned());
    format!("{name}:{}", address.port())
}

/// A process of root becomes one of the daemon's user, and no process gets new rights by what it executes. Where the
/// daemon is root's itself, so is its control socket, and nobody else could ask it.
fn give_up_rights(control_socket: &Path) -> nix::Result<()> {
    prctl::set_no_new_privs()?;
    let owner = std::fs::metadata(control_socket).ok();
    if let Some(owner) = owner.filter(|owner| geteuid().is_root() && owner.uid() != 0) {
        setgroups(&[])?;
        setgid(Gid::from_raw(owner.gid()))?;
        setuid(Uid::from_raw(owner.uid()))?;
    }
    Ok(())
}

fn read_token(path: &Path) -> Result<String, WebError> {
    let text = std::fs::read_to_string(path).map_err(|source| WebError::Token {
        path: path.to_owned(),
        source,
    })?;
    let token = text.lines().next().unwrap_or_default().trim();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if token.len() >= 16 && token.bytes().all(plain) {
        Ok(token.to_owned())
    } else {
        Err(WebError::ShortToken(path.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn tokens_of_files_are_long_enough() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("token");
        for (text, token) in [
            ("0123456789abcdef\nmore\n", Some("0123456789abcdef")),
            ("  a-b_c.d-0123456789  ", Some("a-b_c.d-0123456789")),
            ("short", None),
            ("", None),
            ("0123456789abcde;", None),
        ] {
            std::fs::write(&path, text).expect("is writable");
            assert_eq!(read_token(&path).ok().as_deref(), token, "{text}");
        }
    }
}
