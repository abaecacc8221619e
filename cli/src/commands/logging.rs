//! Where the events of a server go: to standard error, as lines of text or of JSON.

use std::io;

use duramen_server::{Config, LogFormat};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, registry};

/// The crate whose events are logged. Those of other crates may have the headers of requests, so they are left out.
const LOGGED: &str = "duramen_server";

/// Logs the events of this process as the settings `log` and `log_format` say. Call it once, before the server starts.
pub fn start(config: &Config) {
    let lines = fmt::layer().with_writer(io::stderr).with_ansi(false);
    let lines = match config.log_format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let filter = Targets::new().with_target(LOGGED, config.log);
    registry().with(lines.with_filter(filter)).init();
}
