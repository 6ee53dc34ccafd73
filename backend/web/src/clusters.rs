//! Virtual clusters, as `ibvswitch cluster` shows and changes them.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::{env, io};

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::Semaphore;

/// Most bytes of requests for clusters.
pub(crate) const REQUESTS_MAX: usize = 1 << 20;
/// Most commands at a time.
const COMMANDS_MAX: usize = 4;

/// Runs commands on clusters, with bounds.
#[derive(Debug)]
pub(crate) struct Clusters {
    arguments: Vec<std::ffi::OsString>,
    room: Arc<Semaphore>,
}

impl Clusters {
    /// Those of the daemon with this configuration file and these sockets.
    pub(crate) fn new(config: Option<&Path>, runtime_dir: &Path) -> Self {
        let mut arguments = vec!["--runtime-dir".into(), runtime_dir.into()];
        if let Some(config) = config {
            let config: PathBuf = config.into();
            arguments.extend(["--config".into(), config.into()]);
        }
        Self {
            arguments,
            room: Arc::new(Semaphore::new(COMMANDS_MAX)),
        }
    }

    /// All clusters.
    pub(crate) async fn show(&self) -> Response {
        self.run(&["show", "--json"], String::new()).await
    }

    /// Carries requests out, or shows what they would change.
    pub(crate) async fn apply(&self, requests: String, plan: bool) -> Response {
        match serde_json::from_str(&requests) {
            Err(error) => return failure(StatusCode::BAD_REQUEST, &error.to_string()),
            Ok(requests) if sets_keys(&requests) => {
                let what = "`set` and `vf_set`, which set any key, are for the command line";
                return failure(StatusCode::FORBIDDEN, what);
            }
            Ok(_) => {}
        }
        let arguments: &[&str] = if plan {
            &["apply", "-", "--json", "--dry-run"]
        } else {
            &["apply", "-", "--json"]
        };
        self.run(arguments, requests).await
    }

    async fn run(&self, arguments: &[&str], input: String) -> Response {
        let Ok(room) = Arc::clone(&self.room).try_acquire_owned() else {
            let what = format!("{COMMANDS_MAX} commands are under way; try again");
            return failure(StatusCode::TOO_MANY_REQUESTS, &what);
        };
        let begun = env::current_exe().and_then(|own| {
            let mut command = Command::new(own.with_file_name("ibvswitch"));
            command.args(&self.arguments).arg("cluster").args(arguments);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            command.stderr(Stdio::piped()).spawn()
        });
        // A client that goes away leaves no change half done.
        let ended = tokio::spawn(async move {
            let _room = room;
            let mut child = begun?;
            if let Some(mut stdin) = child.stdin.take() {
                // A command that has read enough says itself what is wrong.
                let _ = stdin.write_all(input.as_bytes()).await;
            }
            child.wait_with_output().await
        });
        let ended: io::Result<_> = ended
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)));
        let output = match ended {
            Ok(output) => output,
            Err(error) => {
                let what = format!("`ibvswitch cluster` cannot be started: {error}");
                return failure(StatusCode::INTERNAL_SERVER_ERROR, &what);
            }
        };
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim_end().trim_start_matches("ibvswitch: ");
        match output.status.code() {
            Some(0) => {
                ([(header::CONTENT_TYPE, "application/json")], output.stdout).into_response()
            }
            Some(2 | 3) => failure(StatusCode::BAD_REQUEST, said),
            Some(4) => failure(StatusCode::BAD_GATEWAY, said),
            Some(5) => failure(StatusCode::NOT_FOUND, said),
            _ => failure(StatusCode::CONFLICT, said),
        }
    }
}

/// Whether requests set keys of the configuration, with all that these can do to the host.
fn sets_keys(requests: &Value) -> bool {
    let list = requests
        .as_array()
        .map_or(std::slice::from_ref(requests), |list| list);
    let sets = |request: &Value| request.get("set").or(request.get("vf_set")).is_some();
    list.iter().any(sets)
}

fn failure(status: StatusCode, message: &str) -> Response {
    (status, axum::Json(json!({ "error": message }))).into_response()
}
