//! Log of the running program: on standard error, filtered by module and level.

use std::env;
use std::io::{self, IsTerminal};

/// Whether standard error is a terminal with colors, and nobody has asked for none (<https://no-color.org>).
fn has_colors() -> bool {
    let none = env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty());
    let dumb = env::var_os("TERM").is_some_and(|it| it == "dumb");
    io::stderr().is_terminal() && !none && !dumb
}

/// Begins to log, filtered by the environment variable `RUST_LOG` or else by `filter`.
///
/// # Errors
/// What is wrong with the filter.
pub fn start(filter: &str) -> Result<(), String> {
    let (origin, filter) = match env::var("RUST_LOG") {
        Ok(filter) if !filter.is_empty() => ("the environment variable RUST_LOG", filter),
        _ => ("the key `log`", filter.to_owned()),
    };
    let filter = config::log_filter(&filter)
        .map_err(|(what, remedy)| format!("{origin} is `{filter}`: {what}; {remedy}"))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(has_colors());
    // systemd's journal has a clock of its own.
    let started = if env::var_os("JOURNAL_STREAM").is_some() {
        builder.without_time().try_init()
    } else {
        builder.try_init()
    };
    started.map_err(|error| format!("the log cannot be started: {error}"))
}
