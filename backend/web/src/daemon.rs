//! The daemon's control socket, asked from tasks that may not block.

use std::path::PathBuf;

use control::{Client, ClientError, CountersReport, Request, Response, Status, Topology};
use tokio::task::spawn_blocking;

/// Why there is no answer, for people.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DaemonError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("unexpected answer of the daemon; use an `ibvswitch` of the daemon's version")]
    Unexpected,
    #[error("the request was cancelled")]
    Ended,
}

/// All that the page shows, of one moment.
#[derive(Debug)]
pub(crate) struct State {
    pub status: Status,
    pub topology: Topology,
    pub counters: CountersReport,
}

/// Where the daemon is asked.
#[derive(Debug, Clone)]
pub(crate) struct Daemon {
    socket: PathBuf,
}

impl Daemon {
    pub(crate) const fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// Asks for all that the page shows, by one connection.
    pub(crate) async fn state(&self) -> Result<State, DaemonError> {
        self.with(|client| {
            Ok(State {
                status: status(client)?,
                topology: topology(client)?,
                counters: counters(client)?,
            })
        })
        .await
    }

    /// The daemon's metrics in Prometheus' text format.
    pub(crate) async fn metrics(&self) -> Result<String, DaemonError> {
        self.with(|client| {
            let status = status(client)?;
            Ok(report::metrics::exposition(&status, &counters(client)?))
        })
        .await
    }

    /// The nodes and links alone.
    pub(crate) async fn topology(&self) -> Result<Topology, DaemonError> {
        self.with(topology).await
    }

    /// Asks one thing.
    pub(crate) async fn ask(&self, request: Request) -> Result<Response, DaemonError> {
        self.with(move |client| Ok(client.ask(&request)?)).await
    }

    async fn with<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut Client) -> Result<T, DaemonError> + Send + 'static,
    ) -> Result<T, DaemonError> {
        let socket = self.socket.clone();
        let asked = spawn_blocking(move || ask(&mut Client::connect(&socket)?));
        asked.await.unwrap_or(Err(DaemonError::Ended))
    }
}

fn status(client: &mut Client) -> Result<Status, DaemonError> {
    match client.ask(&Request::Status {})? {
        Response::Status(status) => Ok(status),
        _ => Err(DaemonError::Unexpected),
    }
}

fn topology(client: &mut Client) -> Result<Topology, DaemonError> {
    match client.ask(&Request::Topology {})? {
        Response::Topology(topology) => Ok(topology),
        _ => Err(DaemonError::Unexpected),
    }
}

fn counters(client: &mut Client) -> Result<CountersReport, DaemonError> {
    match client.ask(&Request::Counters { node: None })? {
        Response::Counters(counters) => Ok(counters),
        _ => Err(DaemonError::Unexpected),
    }
}
