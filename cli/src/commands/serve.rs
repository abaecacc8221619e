//! `duramen serve`, `duramen config check` and `duramen health`: the server and what belongs to running one.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use duramen_server::{Config, Origin, ServeError};
use serde_json::json;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Output, say};

const SERVE_EXAMPLES: &str = r"Examples:
  A store in ./duramen-data, for programs of this machine:
    $ duramen serve
  Another directory, a port that is free, and a socket of the file system:
    $ duramen serve --data-dir shop --listen 127.0.0.1:0 --unix-socket duramen.sock

A setting comes from its flag, or else from its environment variable (DURAMEN_DATA_DIR), or else
from the file that --config or DURAMEN_CONFIG names (data_dir = ...), or else from its default.
`duramen config check` shows all of them. SIGTERM and SIGINT end the server in good order: calls
end, everything reaches the device. Nothing that was acknowledged is lost if it is killed instead.";

const CONFIG_EXAMPLES: &str = r"Examples:
  The settings that `duramen serve` would use, and where each comes from:
    $ duramen config check
  With a flag, for a program:
    $ duramen config check --threads 2 --json";

const HEALTH_EXAMPLES: &str = r"Examples:
  Whether the server on the usual port answers requests:
    $ duramen health --wait 0
  For the health check of a container:
    $ duramen health --server unix:duramen.sock --wait 2 --json

Exit code 0: it serves. 3: it does not, or not yet.";

/// The settings of a server, as flags.
#[derive(Args, Debug)]
struct Settings {
    /// Read settings from this TOML file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The directory of the store; made when it is missing, for this user alone [default: duramen-data]
    #[arg(long, value_name = "DIRECTORY")]
    data_dir: Option<String>,
    /// Address and port for TCP; empty: no TCP [default: 127.0.0.1:7420]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Path of a unix socket to listen on
    #[arg(long, value_name = "PATH")]
    unix_socket: Option<String>,
    /// Let other machines connect without encryption: true or false [default: false]
    #[arg(long, value_name = "BOOL")]
    allow_remote_plaintext: Option<String>,
    /// Threads that serve connections; 0: one for each processor, at most 8 [default: 0]
    #[arg(long, value_name = "COUNT")]
    threads: Option<String>,
    /// What a write survives before it is acknowledged, when the request does not say: written or
    /// synced [default: synced]
    #[arg(long, value_name = "LEVEL")]
    acknowledge: Option<String>,
    /// Bytes of writes that may wait; more are refused with a hint to retry [default: 67108864]
    #[arg(long, value_name = "BYTES")]
    queue_bytes: Option<String>,
    /// The most connections at a time [default: 20000]
    #[arg(long, value_name = "COUNT")]
    max_connections: Option<String>,
    /// Tell the services to tools such as grpcurl: true or false [default: false]
    #[arg(long, value_name = "BOOL")]
    reflection: Option<String>,
    /// Seconds that calls may take to end when the server stops [default: 10]
    #[arg(long, value_name = "SECONDS")]
    grace_seconds: Option<String>,
}

impl Settings {
    fn collect(self) -> Outcome<Config> {
        let flags = [
            ("data_dir", self.data_dir),
            ("listen", self.listen),
            ("unix_socket", self.unix_socket),
            ("allow_remote_plaintext", self.allow_remote_plaintext),
            ("threads", self.threads),
            ("acknowledge", self.acknowledge),
            ("queue_bytes", self.queue_bytes),
            ("max_connections", self.max_connections),
            ("reflection", self.reflection),
            ("grace_seconds", self.grace_seconds),
        ];
        let flags: Vec<_> = flags
            .into_iter()
            .filter_map(|(name, value)| value.map(|value| (name, value)))
            .collect();
        let config = Config::collect(&flags, self.config.as_deref());
        config.map_err(|error| {
            Failure::wrong_call(error.to_string()).hint("`duramen config check` shows all settings and their origins")
        })
    }
}

/// Serve a store to other programs over gRPC
#[derive(Args, Debug)]
#[command(after_help = SERVE_EXAMPLES)]
pub struct Serve {
    #[command(flatten)]
    settings: Settings,
}

impl Serve {
    pub fn run(self, output: &mut Output) -> Outcome {
        let config = self.settings.collect()?;
        let server = duramen_server::start(&config).map_err(failure)?;
        duramen_server::notify("READY=1");
        let listening = server.listening().clone();
        let tcp = listening.tcp.map(|address| format!("http://{address}"));
        let unix = listening.unix.map(|path| format!("unix:{}", path.display()));
        if output.is_json {
            let directory = config.data_dir.display().to_string();
            output
                .json(&json!({"listening": tcp, "unix": unix, "data_dir": directory, "process": std::process::id()}))?;
        } else {
            let places: Vec<_> = tcp.iter().chain(&unix).map(String::as_str).collect();
            output.line(format_args!(
                "duramen {} serves {} on {}",
                env!("CARGO_PKG_VERSION"),
                config.data_dir.display(),
                places.join(" and ")
            ))?;
            if let Some(place) = places.first() {
                output.line(format_args!("try: duramen health --server {place}"))?;
            }
        }
        output.flush()?;
        duramen_server::wait_for_end().map_err(|error| Failure::of_io("waiting for signals", &error))?;
        duramen_server::notify("STOPPING=1");
        if !output.is_json {
            say(format_args!(
                "stopping: calls may take {} s to end; a second signal stops at once",
                config.grace.as_secs()
            ));
        }
        server.stop().map_err(failure)?;
        Ok(Exit::Done)
    }
}

fn failure(error: ServeError) -> Failure {
    match error {
        ServeError::Store { error, .. } => Failure::from(error),
        other => Failure::wrong_call(other.to_string()),
    }
}

/// Look at the configuration of a server
#[derive(Args, Debug)]
#[command(after_help = CONFIG_EXAMPLES)]
pub struct ConfigCommand {
    #[command(subcommand)]
    action: ConfigAction,
}

#[derive(Subcommand, Debug)]
enum ConfigAction {
    Check(CheckConfig),
}

/// Show the settings of `duramen serve`, and where each comes from
#[derive(Args, Debug)]
#[command(after_help = CONFIG_EXAMPLES)]
struct CheckConfig {
    #[command(flatten)]
    settings: Settings,
}

impl ConfigCommand {
    pub fn run(self, output: &mut Output) -> Outcome {
        let ConfigAction::Check(check) = self.action;
        let config = check.settings.collect()?;
        let rows: Vec<_> = config
            .origins
            .iter()
            .map(|(name, value, origin)| (*name, value.clone(), origin_text(name, origin)))
            .collect();
        if output.is_json {
            let settings = rows
                .iter()
                .map(|(name, value, origin)| json!({"setting": name, "value": value, "origin": origin}));
            output.json(&json!({"settings": settings.collect::<Vec<_>>()}))?;
        } else {
            let rows: Vec<_> = rows
                .into_iter()
                .map(|(name, value, origin)| vec![name.to_string(), value, origin])
                .collect();
            output.table(&["setting", "value", "from"], &rows)?;
        }
        Ok(Exit::Done)
    }
}

fn origin_text(name: &str, origin: &Origin) -> String {
    match origin {
        Origin::Flag => duramen_server::flag(name),
        Origin::Environment => duramen_server::variable(name),
        Origin::File { path, line } => format!("{}, line {line}", path.display()),
        Origin::Default => "default".into(),
    }
}

/// Ask a server whether it serves
#[derive(Args, Debug)]
#[command(after_help = HEALTH_EXAMPLES)]
pub struct Health {
    /// Where the server listens: http://ADDRESS:PORT, or unix:PATH
    #[arg(
        long,
        value_name = "PLACE",
        default_value = "http://127.0.0.1:7420",
        env = "DURAMEN_SERVER"
    )]
    server: String,
    /// Seconds to wait for a server that does not serve yet
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    wait: u64,
}

/// How often an absent server is asked again.
const AGAIN: Duration = Duration::from_millis(50);

impl Health {
    pub fn run(self, output: &mut Output) -> Outcome {
        let endpoint = Endpoint::from_shared(self.server.clone()).map_err(|error| {
            Failure::wrong_call(format!("{:?} is no place of a server: {error}", self.server))
                .hint("write http://127.0.0.1:7420 or unix:/run/duramen.sock")
        })?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::of_io("starting to ask", &error))?;
        let until = std::time::Instant::now() + Duration::from_secs(self.wait);
        let answer = runtime.block_on(async {
            loop {
                match ask(&endpoint).await {
                    Err(_) if std::time::Instant::now() < until => tokio::time::sleep(AGAIN).await,
                    answer => return answer,
                }
            }
        });
        let (exit, text) = match answer {
            Ok(()) => (Exit::Done, "serves".to_string()),
            Err(why) => (Exit::TryAgain, why),
        };
        if output.is_json {
            output.json(&json!({"server": self.server, "serves": exit == Exit::Done, "answer": text}))?;
        } else {
            output.line(format_args!("{}: {text}", self.server))?;
        }
        Ok(exit)
    }
}

/// Asks once; the error says in words why it does not serve.
async fn ask(endpoint: &Endpoint) -> Result<(), String> {
    let answer = async {
        let channel = endpoint
            .connect()
            .await
            .map_err(|_| "no server listens there; start one with `duramen serve`".to_string())?;
        let request = HealthCheckRequest { service: String::new() };
        let checked = HealthClient::new(channel).check(request).await;
        let checked = checked.map_err(|status| format!("the server gave an error: {}", status.message()))?;
        match checked.into_inner().status {
            1 => Ok(()),
            _ => Err("the server does not take requests: it starts or stops".to_string()),
        }
    };
    let late = |_| Err("the server did not answer within 2 s".to_string());
    tokio::time::timeout(Duration::from_secs(2), answer)
        .await
        .unwrap_or_else(late)
}
