//! Answers of the server.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Query, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use control::{ClientError, ErrorKind, LinkAction, LinkRequest, MigrationRequest, Request as Ask};
use futures_util::stream::{self, Stream};
use parking_lot::Mutex;
use report::picture::{self, Theme};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::{Semaphore, watch};

use crate::clusters::{Clusters, REQUESTS_MAX};
use crate::daemon::{Daemon, DaemonError};
use crate::download::{CaptureError, Captures, Wish};
use crate::guard::{Guard, Refused};
use crate::listener::{Bounded, Peer};
use crate::page::{DOCUMENT, DRAWING_POLICY, POLICY, SCRIPT, STYLE};
use crate::snapshot::{self, Line};

/// Most bytes of a request's body.
const BODY_MAX: usize = 4096;
/// Most browsers that are told of what happens, at a time.
const WATCHERS: usize = 32;
/// Interval at which a browser hears that the connection lives.
const ALIVE: Duration = Duration::from_secs(15);

/// State that all requests share.
struct Shared {
    daemon: Daemon,
    guard: Guard,
    captures: Captures,
    clusters: Clusters,
    lines: watch::Sender<Line>,
    watchers: Arc<Semaphore>,
    /// The last drawing, and what it is of.
    drawing: Mutex<Option<(String, String)>>,
}

type Here = State<Arc<Shared>>;

/// Extent of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// The page and all that belongs to it.
    Page,
    /// Prometheus' metrics alone.
    Metrics,
}

/// Serves until the process ends.
///
/// # Errors
/// The socket fails.
pub(crate) async fn serve(
    listener: Bounded,
    guard: Guard,
    extent: Extent,
    control_socket: &Path,
    clusters: Clusters,
    runtime_dir: &Path,
) -> std::io::Result<()> {
    let daemon = Daemon::new(control_socket.to_owned());
    let (lines, _) = watch::channel(None);
    tokio::spawn(snapshot::watch(daemon.clone(), lines.clone()));
    let shared = Arc::new(Shared {
        daemon,
        guard,
        captures: Captures::new(runtime_dir),
        clusters,
        lines,
        watchers: Arc::new(Semaphore::new(WATCHERS)),
        drawing: Mutex::new(None),
    });
    let router = router(shared, extent).into_make_service_with_connect_info::<Peer>();
    axum::serve(listener, router).await
}

fn router(shared: Arc<Shared>, extent: Extent) -> Router {
    let metrics = Router::new().route("/metrics", get(metrics));
    let routes = match extent {
        Extent::Metrics => metrics,
        Extent::Page => metrics
            .route("/", get(|| part(DOCUMENT, "text/html; charset=utf-8")))
            .route("/page.js", get(|| part(SCRIPT, "text/javascript")))
            .route("/page.css", get(|| part(STYLE, "text/css")))
            .route("/topology.svg", get(drawing))
            .route("/events", get(events))
            .route("/capture", get(capture))
            .route(
                "/clusters",
                get(clusters)
                    .post(change_clusters)
                    .layer(DefaultBodyLimit::max(REQUESTS_MAX)),
            )
            .route("/link", post(link))
            .route("/migrate", post(migrate)),
    };
    routes
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), admit))
        .with_state(shared)
}

#[derive(Debug, Deserialize)]
struct Given {
    token: Option<String>,
}

/// Every request passes here, and every answer leaves here.
async fn admit(
    State(shared): Here,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let turn = peer.begin();
    let checked = check(&shared.guard, &request);
    if checked.is_ok() {
        peer.admit();
    }
    let mut response = match checked {
        Ok(Admitted::Request) => next.run(request).await,
        Ok(Admitted::Arrival(cookie)) => {
            let mut response = Redirect::to("/").into_response();
            if let Ok(value) = HeaderValue::from_str(&cookie) {
                response.headers_mut().insert(header::SET_COOKIE, value);
            }
            response
        }
        Err(refused) => (refused.status(), format!("{refused}\n")).into_response(),
    };
    let headers = response.headers_mut();
    let constant = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ];
    for (name, value) in constant {
        headers
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
    }
    response.map(|body: Body| turn.until_sent(body))
}

enum Admitted {
    /// To be answered.
    Request,
    /// With a token in the address: the browser gets this cookie for it.
    Arrival(String),
}

fn check(guard: &Guard, request: &Request) -> Result<Admitted, Refused> {
    let headers = request.headers();
    guard.host(headers)?;
    let given = Query::<Given>::try_from_uri(request.uri()).ok();
    if let Some(token) = given.and_then(|given| given.0.token)
        && request.uri().path() == "/"
        && guard.knows(&token)
        && let Some(cookie) = guard.cookie()
    {
        return Ok(Admitted::Arrival(cookie));
    }
    guard.read(headers)?;
    if !request.method().is_safe() {
        guard.change(headers)?;
    }
    Ok(Admitted::Request)
}

/// Failure, with its codes for programs and its text for people.
enum Failure {
    Daemon(DaemonError),
    Capture(CaptureError),
    TooMany,
}

impl From<DaemonError> for Failure {
    fn from(error: DaemonError) -> Self {
        Self::Daemon(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (status, message) = match self {
            Self::Daemon(error) => {
                let status = match &error {
                    DaemonError::Client(ClientError::Refused { kind, .. }) => match kind {
                        ErrorKind::Unknown => StatusCode::NOT_FOUND,
                        ErrorKind::BadRequest | ErrorKind::TooLong => StatusCode::BAD_REQUEST,
                        ErrorKind::Failed => StatusCode::CONFLICT,
                    },
                    _ => StatusCode::BAD_GATEWAY,
                };
                (status, error.to_string())
            }
            Self::Capture(error) => {
                let status = match &error {
                    CaptureError::Length => StatusCode::BAD_REQUEST,
                    CaptureError::Busy => StatusCode::TOO_MANY_REQUESTS,
                    CaptureError::Program(_) => StatusCode::INTERNAL_SERVER_ERROR,
                };
                (status, error.to_string())
            }
            Self::TooMany => (
                StatusCode::TOO_MANY_REQUESTS,
                format!("{WATCHERS} browsers are connected, the maximum; close one"),
            ),
        };
        (status, Json(json!({ "error": message }))).into_response()
    }
}

async fn part(text: &'static str, kind: &'static str) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, kind)], text)
}

async fn metrics(State(shared): Here) -> Result<impl IntoResponse, Failure> {
    let text = shared.daemon.metrics().await?;
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text))
}

#[derive(Debug, Deserialize)]
struct Look {
    /// Input of the drawing: equal inputs have equal drawings.
    #[serde(default)]
    of: String,
}

async fn drawing(State(shared): Here, Query(look): Query<Look>) -> Result<Response, Failure> {
    let of = look.of;
    let known = shared.drawing.lock().clone();
    let svg = match known {
        Some((known, svg)) if known == of => svg,
        _ => {
            let topology = shared.daemon.topology().await?;
            // To lay out a large subnet takes a while.
            let drawn = tokio::task::spawn_blocking(move || {
                picture::svg(&topology, Theme::Auto).map_err(|error| error.to_string())
            });
            match drawn.await.unwrap_or_else(|error| Err(error.to_string())) {
                Ok(svg) => {
                    *shared.drawing.lock() = Some((of, svg.clone()));
                    svg
                }
                // Too large to draw: the tables show it.
                Err(message) => {
                    return Ok((StatusCode::UNPROCESSABLE_ENTITY, message).into_response());
                }
            }
        }
    };
    let headers = [
        (header::CONTENT_TYPE, "image/svg+xml"),
        (header::CONTENT_SECURITY_POLICY, DRAWING_POLICY),
    ];
    Ok((headers, svg).into_response())
}

/// The state of the daemon once, and then whenever it has been asked again.
async fn events(
    State(shared): Here,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Failure> {
    let room = Arc::clone(&shared.watchers).try_acquire_owned();
    let room = room.map_err(|_| Failure::TooMany)?;
    let rights = json!({ "changes": shared.guard.allows_changes() }).to_string();
    let receiver = shared.lines.subscribe();
    let lines = stream::unfold((receiver, room), |(mut receiver, room)| async move {
        loop {
            receiver.changed().await.ok()?;
            let line = receiver.borrow_and_update().clone();
            if let Some(line) = line {
                return Some((Ok(Event::default().data(line)), (receiver, room)));
            }
        }
    });
    let first = Event::default().event("rights").data(rights);
    let all = stream::StreamExt::chain(stream::iter([Ok(first)]), lines);
    Ok(Sse::new(all).keep_alive(KeepAlive::new().interval(ALIVE)))
}

async fn capture(State(shared): Here, Query(wish): Query<Wish>) -> Result<Response, Failure> {
    let body = shared.captures.start(&wish).map_err(Failure::Capture)?;
    let headers = [
        (header::CONTENT_TYPE, "application/vnd.tcpdump.pcap"),
        (
            header::CONTENT_DISPOSITION,
            "attachment; filename=\"ibvswitch.pcap\"",
        ),
    ];
    Ok((headers, body).into_response())
}

async fn clusters(State(shared): Here) -> Response {
    shared.clusters.show().await
}

#[derive(Debug, Deserialize)]
struct Manner {
    /// Whether nothing is to change.
    #[serde(default)]
    plan: bool,
}

async fn change_clusters(
    State(shared): Here,
    Query(manner): Query<Manner>,
    requests: String,
) -> Response {
    shared.clusters.apply(requests, manner.plan).await
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkChange {
    node: String,
    port: u8,
    /// Whether the cable is to be in.
    up: bool,
}

async fn link(
    State(shared): Here,
    Json(LinkChange { node, port, up }): Json<LinkChange>,
) -> Result<Json<impl Serialize>, Failure> {
    let action = if up { LinkAction::Up } else { LinkAction::Down };
    let request = Ask::Link(LinkRequest { node, port, action });
    Ok(Json(shared.daemon.ask(request).await?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Migration {
    vm: String,
    to: String,
}

async fn migrate(
    State(shared): Here,
    Json(Migration { vm, to }): Json<Migration>,
) -> Result<Json<impl Serialize>, Failure> {
    let request = MigrationRequest {
        vm,
        to,
        vf: None,
        method: None,
        drop_first: false,
        every_switch: false,
        destination_routed: false,
        wait_s: None,
    };
    Ok(Json(shared.daemon.ask(Ask::Migrate(request)).await?))
}
