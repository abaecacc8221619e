//! `duramen serve`, `duramen config check` and `duramen health`: the server and what belongs to running one.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Arg, ArgMatches, Args, FromArgMatches, Subcommand, value_parser};
use duramen_server::{Config, Listening, Origin, SETTINGS, ServeError, Setting, Signals};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::logging;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Output, say};

const SERVE_EXAMPLES: &str = r"Examples:
  A store in ./duramen-data, for programs of this machine:
    $ duramen serve
  Another directory, a port that is free, and a socket of the file system:
    $ duramen serve --data-dir shop --listen 127.0.0.1:0 --unix-socket duramen.sock
  With metrics for Prometheus, and a log for programs on standard error:
    $ duramen serve --metrics-listen 127.0.0.1:0 --log-format json

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

/// The settings of a server, as flags. They are made of the server's own list.
#[derive(Debug, Default)]
struct Settings {
    file: Option<PathBuf>,
    flags: Vec<(&'static str, String)>,
}

const FILE: &str = "config";

impl Args for Settings {
    fn augment_args(command: clap::Command) -> clap::Command {
        let file = Arg::new(FILE)
            .long(FILE)
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("Read settings from this TOML file");
        SETTINGS.iter().fold(command.arg(file), |command, setting| {
            let default = match setting.default {
                "" => String::new(),
                default => format!(" [default: {default}]"),
            };
            let flag = Arg::new(setting.name)
                .long(setting.name.replace('_', "-"))
                .value_name(setting.value)
                .help(format!("{}{default}", setting.about));
            command.arg(flag)
        })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Settings::augment_args(command)
    }
}

impl FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Settings, clap::Error> {
        let flag = |setting: &Setting| Some((setting.name, matches.get_one::<String>(setting.name)?.clone()));
        Ok(Settings {
            file: matches.get_one(FILE).cloned(),
            flags: SETTINGS.iter().filter_map(flag).collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Settings::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Settings {
    fn collect(self) -> Outcome<Config> {
        Config::collect(&self.flags, self.file.as_deref()).map_err(|error| {
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

/// Raises the limit of open files as far as the system permits: each connection is one, and the usual limit is 1,024.
fn allow_many_connections() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // Where the system refuses, the server works with fewer connections.
    let _ = setrlimit(Resource::Nofile, raised);
}

impl Serve {
    pub fn run(self, output: &mut Output) -> Outcome {
        let config = self.settings.collect()?;
        serve(&config, output, |listening, output| {
            announce(&config, listening, output)
        })
    }
}

/// Runs a server until it is told to stop. `announce` says where it listens, once it answers requests.
pub(super) fn serve(
    config: &Config,
    output: &mut Output,
    announce: impl FnOnce(&Listening, &mut Output) -> Outcome<()>,
) -> Outcome {
    logging::start(config);
    allow_many_connections();
    let server = duramen_server::start(config).map_err(failure)?;
    // Until here a signal ends the process at once, which loses nothing.
    let signals = Signals::listen().map_err(|error| Failure::of_io("listening to signals", &error))?;
    duramen_server::notify("READY=1");
    announce(server.listening(), output)?;
    output.flush()?;
    signals.wait_for_end_or(server.restored());
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

fn announce(config: &Config, listening: &Listening, output: &mut Output) -> Outcome<()> {
    let scheme = if listening.is_tls { "https" } else { "http" };
    let tcp = listening.tcp.map(|address| format!("{scheme}://{address}"));
    let unix = listening.unix.as_ref().map(|path| format!("unix:{}", path.display()));
    let etcd: Vec<_> = listening
        .etcd
        .iter()
        .map(|address| format!("{scheme}://{address}"))
        .collect();
    if output.is_json {
        let directory = config.data_dir.display().to_string();
        let mut line = json!({"listening": tcp, "unix": unix, "data_dir": directory, "process": std::process::id()});
        if !etcd.is_empty() {
            line["etcd"] = json!(etcd);
        }
        return output.json(&line);
    }
    // The services are the same everywhere, so clients of etcd and others may use each place.
    let places: Vec<_> = tcp.iter().chain(&unix).chain(&etcd).map(String::as_str).collect();
    output.line(format_args!(
        "duramen {} serves {} on {}",
        env!("CARGO_PKG_VERSION"),
        config.data_dir.display(),
        places.join(" and ")
    ))?;
    if !etcd.is_empty() {
        output.line(format_args!("clients of etcd see the tree {:?}", config.etcd.tree))?;
    }
    // A client of TLS needs the certificate of the authority, which this process does not know.
    let without_tls = if listening.is_tls {
        unix.as_ref()
    } else {
        tcp.as_ref().or(unix.as_ref()).or(etcd.first())
    };
    if let Some(place) = without_tls {
        output.line(format_args!("try: duramen health --server {place}"))?;
    }
    Ok(())
}

fn failure(error: ServeError) -> Failure {
    match error {
        ServeError::Store { error, .. } => Failure::from(error),
        restored @ ServeError::Restored { .. } => Failure::new(Exit::Reopen, restored.to_string()),
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
    /// Where the server listens: http://ADDRESS:PORT, https://ADDRESS:PORT, or unix:PATH
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
    /// PEM file with the certificate of the server's authority, for https
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// PEM file with a certificate of this client
    #[arg(long, value_name = "FILE", requires_all = ["ca", "key"])]
    cert: Option<PathBuf>,
    /// PEM file with the private key of the certificate
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

/// How often an absent server is asked again.
const AGAIN: Duration = Duration::from_millis(50);

impl Health {
    pub fn run(self, output: &mut Output) -> Outcome {
        let endpoint = self.endpoint()?;
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

    fn endpoint(&self) -> Outcome<Endpoint> {
        let endpoint = Endpoint::from_shared(self.server.clone()).map_err(|error| {
            Failure::wrong_call(format!("{:?} is no place of a server: {error}", self.server))
                .hint("write http://127.0.0.1:7420 or unix:/run/duramen.sock")
        })?;
        let ca = match (self.server.starts_with("https:"), &self.ca) {
            (false, None) => return Ok(endpoint),
            (true, Some(ca)) => ca,
            (true, None) => {
                let message = format!("{} needs the certificate of the server's authority", self.server);
                return Err(Failure::wrong_call(message).hint("name its file with --ca"));
            }
            (false, Some(_)) => {
                let message = format!("{} is not encrypted, so --ca has no use", self.server);
                return Err(Failure::wrong_call(message).hint("write https://ADDRESS:PORT, or leave --ca out"));
            }
        };
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(ca)?));
        if let (Some(cert), Some(key)) = (&self.cert, &self.key) {
            tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
        }
        endpoint.tls_config(tls).map_err(|error| {
            Failure::wrong_call(format!("the files of TLS cannot be used: {error}"))
                .hint("--ca, --cert and --key name PEM files, as `duramen cert` makes them")
        })
    }
}

fn read(file: &Path) -> Outcome<Vec<u8>> {
    fs::read(file).map_err(|error| Failure::of_io(&format!("reading {}", file.display()), &error))
}

/// Asks once; the error says in words why it does not serve.
async fn ask(endpoint: &Endpoint) -> Result<(), String> {
    let answer = async {
        let channel = endpoint.connect().await.map_err(|error| not_connected(&error))?;
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

fn not_connected(error: &tonic::transport::Error) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    match causes
        .map(ToString::to_string)
        .find(|cause| cause.contains("certificate"))
    {
        Some(cause) => format!("the server and this client do not trust each other: {cause}; look at --ca and --cert"),
        None => "no server listens there; start one with `duramen serve`".into(),
    }
}
