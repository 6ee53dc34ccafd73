//! Log of the running program: on standard error, filtered by module and level.

use std::env;
use std::io::{self, IsTerminal};

/// Begins to log, filtered by the environment variable `RUST_LOG` or else by `filter`.
///
/// # Errors
/// What is wrong with the filter.
pub fn start(filter: &str) -> Result<(), String> {
    let (origin, filter) = match env::var("RUST_LOG") {
        Ok(filter) if !filter.is_empty() => ("the environment variable RUST_LOG", filter),
        _ => ("the key `log`", filter.to_owned()),
    };
    let filter = config::log_filter(&filter).map_err(|error| {
        format!(
            "{origin} is `{filter}`: {error}; write something like `info,ibvswitch_vfio_user=debug`"
        )
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    // systemd's journal has a clock of its own.
    let started = if env::var_os("JOURNAL_STREAM").is_some() {
        builder.without_time().try_init()
    } else {
        builder.try_init()
    };
    started.map_err(|error| format!("the log cannot be started: {error}"))
}
