//! Errors of benchmarks.

use std::io;

use config::ConfigError;
use ibvswitch::daemon::life::assembly::AssemblyError;
use ibvswitch::daemon::life::run::RunError;
use ibvswitch::daemon::life::sockets::SocketError;

/// Why a suite has no result.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The driver failed.
    #[error("the device, as the driver sees it: {0}")]
    Driver(#[from] test_driver::Error),
    /// The driver of an Ethernet card failed.
    #[error("the port, as the driver sees it: {0}")]
    Port(#[from] vhost_user_driver::Error),
    /// A request completed with an error.
    #[error("a request failed: {0:?}")]
    Completion(test_driver::Syndrome),
    /// The payload is not what was sent.
    #[error(transparent)]
    Payload(#[from] test_driver::pattern::Mismatch),
    /// Part of a long segment has another payload than was sent.
    #[error("part {0} of a segment is not what was sent")]
    Part(usize),
    /// A word of the payload is not what was sent.
    #[error("word {index} of the payload is {found}, sent was {expected}")]
    Word {
        /// Its place.
        index: usize,
        /// Received value.
        found: u64,
        /// Sent value.
        expected: u64,
    },
    /// A message does not arrive.
    #[error("waited in vain for {0}")]
    Timeout(&'static str),
    /// A time cannot be counted.
    #[error("a time cannot be counted: {0}")]
    Histogram(String),
    /// The processors are not as needed.
    #[error("{0}")]
    Processors(String),
    /// The daemon's configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The daemon's sockets cannot be had.
    #[error(transparent)]
    Sockets(#[from] SocketError),
    /// The daemon's parts cannot be put together.
    #[error(transparent)]
    Assembly(#[from] AssemblyError),
    /// The daemon stopped.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The daemon process says something else than that it is ready.
    #[error("the daemon process did not start: it said {0:?}")]
    Daemon(String),
    /// A subnet is not as its manager should leave it.
    #[error("the subnet: {0}")]
    Subnet(String),
    /// There is no OpenSM to compare with.
    #[error(transparent)]
    OpenSm(#[from] simulator::opensm::OpenSmError),
    /// Guests, or the kernels in them, do not do their part.
    #[error("{0}")]
    Noise(String),
    /// A figure was asked for and nothing for it was measured.
    #[error("`--plot` draws what the suite `routing` measures; name that suite, too")]
    NothingToPlot,
    /// The page of results cannot be written.
    #[error("{0}")]
    Page(String),
    /// The figure cannot be drawn.
    #[error(transparent)]
    Plot(#[from] simulator::plot::PlotError),
    /// The system refused something.
    #[error("cannot {what}: {source}")]
    System {
        /// The failed action.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl BenchError {
    /// Says what was tried.
    pub(crate) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System {
            what,
            source: source.into(),
        }
    }
}

/// The usual result.
pub type Result<T> = std::result::Result<T, BenchError>;
