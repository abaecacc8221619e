//! Where a command works: in the directory of a store, or on a server.
//!
//! A command opens its place, gets its data from the store or from the server, and prints the data with the same code.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Command};
use duramen::{Options, Store};
use duramen_client::{Client, Error, ErrorKind, Group, TlsOptions, Topic};
use tokio::runtime::{Builder, Runtime};

use crate::exit::{Exit, Failure, Outcome};
use crate::opening::{MapArguments, StoreArguments, only_name};
use crate::text::is_pattern;

/// How long a call to a server may take, unless `--wait` is longer.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long the server may take to read or rewrite its whole store.
const LONG_DEADLINE: Duration = Duration::from_secs(300);

/// The heading of the options for a server in the help.
const HEADING: &str = "On a server, without DIR";

const DIRECTORY: &str = "directory";
const SERVER: &str = "server";

/// Which store or server.
#[derive(Args, Debug)]
#[group(args = [DIRECTORY, SERVER])]
pub struct PlaceArguments {
    #[command(flatten)]
    store: StoreArguments,

    #[command(flatten)]
    server: ServerArguments,
}

/// Which server, and how to reach it.
#[derive(Args, Debug)]
struct ServerArguments {
    /// Work on the server at HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH; a call may take 10 seconds, or what
    /// --wait says if it is longer
    #[arg(long, help_heading = HEADING, value_name = "PLACE")]
    server: Option<String>,

    /// Present this token
    #[arg(long, help_heading = HEADING, value_name = "TOKEN", env = "DURAMEN_TOKEN", hide_env_values = true)]
    token: Option<String>,

    /// Present the token in this file
    #[arg(long, help_heading = HEADING, value_name = "FILE", requires = SERVER)]
    token_file: Option<PathBuf>,

    /// PEM file with the certificate of the server's authority, for https
    #[arg(long, help_heading = HEADING, value_name = "FILE", requires = SERVER)]
    ca: Option<PathBuf>,

    /// PEM file with a certificate of this client
    #[arg(long, help_heading = HEADING, value_name = "FILE", requires_all = ["ca", "client_key"])]
    client_cert: Option<PathBuf>,

    /// PEM file with the private key of the certificate
    #[arg(long, help_heading = HEADING, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
}

/// A store that is open, or a server.
pub enum Place {
    Directory(Store),
    Server(Server),
}

/// A server that receives calls.
pub struct Server {
    runtime: Box<Runtime>,
    pub client: Client,
    place: String,
}

/// Returns the command line for these arguments: with `--server`, no command has a directory as its first argument.
pub fn fitted(command: Command, arguments: impl Iterator<Item = OsString>) -> Command {
    let mut options = arguments.take_while(|argument| argument != "--");
    let is_server = |argument: OsString| {
        let argument = argument.to_string_lossy();
        argument == "--server" || argument.starts_with("--server=")
    };
    match options.any(is_server) {
        true => without_directory(command),
        false => command,
    }
}

fn without_directory(command: Command) -> Command {
    let has = |name| command.get_arguments().any(|argument| argument.get_id() == name);
    let command = match has(DIRECTORY) && has(SERVER) {
        // A hidden option takes no place among the arguments.
        true => command.mut_arg(DIRECTORY, |directory| {
            directory.long(DIRECTORY).hide(true).required(false).default_value(".")
        }),
        false => command,
    };
    command.mut_subcommands(without_directory)
}

impl PlaceArguments {
    /// Returns the directory; `None`: the place is a server.
    pub fn directory_only(&self) -> Option<&StoreArguments> {
        self.server.server.is_none().then_some(&self.store)
    }

    /// Opens the place for reading; nothing in a directory changes.
    pub fn open_to_read(&self) -> Outcome<Place> {
        self.open(StoreArguments::open_to_read)
    }

    /// Opens an existing place.
    pub fn open_to_write(&self) -> Outcome<Place> {
        self.open(StoreArguments::open_to_write)
    }

    /// Opens the place, and creates the store of a directory when it is missing.
    pub fn open_or_create(&self) -> Outcome<Place> {
        self.open(|store| store.open_or_create(Options::new()))
    }

    fn open(&self, open: impl FnOnce(&StoreArguments) -> Outcome<Store>) -> Outcome<Place> {
        match &self.server.server {
            Some(_) => self.connect(DEADLINE.max(self.store.wait())).map(Place::Server),
            None => open(&self.store).map(Place::Directory),
        }
    }

    /// Connects to a server for a call that takes long, once the server has answered a short one.
    pub fn with_patience(&self, place: Place) -> Outcome<Place> {
        let Place::Server(server) = place else { return Ok(place) };
        server.wait(server.client.statistics())?;
        self.connect(LONG_DEADLINE).map(Place::Server)
    }

    fn connect(&self, deadline: Duration) -> Outcome<Server> {
        let arguments = &self.server;
        let place = arguments.address();
        let mut builder = Client::builder().connections(1).deadline(deadline);
        if let Some(token) = arguments.token()? {
            builder = builder.token(token);
        }
        if let Some(ca) = &arguments.ca {
            let mut tls = TlsOptions::new(ca);
            if let (Some(certificate), Some(key)) = (&arguments.client_cert, &arguments.client_key) {
                tls = tls.identity(certificate, key);
            }
            builder = builder.tls(tls);
        }
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::of_io("preparing the connection", &error))?;
        let client = {
            let _entered = runtime.enter();
            builder.connect(&place).map_err(|error| failure(&place, error))?
        };
        Ok(Server {
            runtime: Box::new(runtime),
            client,
            place,
        })
    }
}

impl ServerArguments {
    /// Returns the place in the form that the client takes.
    fn address(&self) -> String {
        let place = self.server.as_deref().unwrap_or_default();
        match (place, &self.ca) {
            _ if place.contains("://") || place.starts_with("unix:") => place.into(),
            _ if place.contains('/') => format!("unix:{place}"),
            (_, Some(_)) => format!("https://{place}"),
            (_, None) => format!("http://{place}"),
        }
    }

    fn token(&self) -> Outcome<Option<String>> {
        let Some(file) = &self.token_file else {
            return Ok(self.token.clone());
        };
        let read = fs::read_to_string(file);
        let read = read.map_err(|error| Failure::of_io(&format!("reading {}", file.display()), &error))?;
        Ok(Some(read.trim().into()))
    }
}

impl Place {
    /// Closes the store of a directory.
    pub fn close(self) -> Outcome<()> {
        match self {
            Place::Directory(store) => Ok(store.close()?),
            Place::Server(_) => Ok(()),
        }
    }
}

impl Server {
    /// Waits for the answer of a call.
    pub fn wait<T>(&self, call: impl Future<Output = duramen_client::Result<T>>) -> Outcome<T> {
        self.runtime.block_on(call).map_err(|error| self.failure(error))
    }

    /// Waits for the next item of a stream.
    pub fn next<T>(&self, next: impl Future<Output = Option<duramen_client::Result<T>>>) -> Outcome<Option<T>> {
        self.wait(async { next.await.transpose() })
    }

    /// Returns the name of the map that a command names, or of the only map. A named map may be missing.
    pub fn map_name(&self, arguments: &MapArguments) -> Outcome<String> {
        match arguments.name() {
            Some(name) => Ok(name.into()),
            None => only_name(self.wait(self.client.list_maps())?),
        }
    }

    /// Returns a handle of a topic. A server takes no patterns.
    pub fn topic(&self, name: &str) -> Outcome<Topic> {
        match is_pattern(name) {
            true => Err(Failure::wrong_call(format!(
                "{name:?} is a pattern, and a server takes the name of a topic"
            ))),
            false => Ok(self.client.topic(name)),
        }
    }

    /// Returns a handle of a group of a topic.
    pub fn group(&self, topic: &str, name: &str) -> Outcome<Group> {
        Ok(self.topic(topic)?.group(name))
    }

    fn failure(&self, error: Error) -> Failure {
        failure(&self.place, error)
    }
}

/// Whether the call failed because the server has no such map.
pub fn is_unknown_map(error: &Error) -> bool {
    error.reason == "MAP_NOT_FOUND"
}

fn failure(place: &str, error: Error) -> Failure {
    let exit = match (error.kind, &error.reason[..]) {
        (ErrorKind::Overloaded, "NO_SPACE" | "TOPIC_FULL" | "QUOTA_REACHED") => Exit::NoSpace,
        (_, "STORE_STOPPED") => Exit::Reopen,
        (ErrorKind::Overloaded | ErrorKind::Unavailable | ErrorKind::DeadlineExceeded, _) => Exit::TryAgain,
        (_, "LOST" | "LEASE_NOT_FOUND" | "SNAPSHOT_ENDED") => Exit::TryAgain,
        (ErrorKind::UnknownOutcome, _) => Exit::NotSynced,
        (ErrorKind::DataLoss, _) => Exit::Damaged,
        _ => Exit::WrongCall,
    };
    let failure = Failure::new(exit, format!("the server at {place}: {}", error.message));
    let hint = match (error.kind, &error.reason[..]) {
        (_, "MAP_NOT_FOUND") => "`duramen maps --server PLACE` lists the maps",
        (_, "TREE_NOT_FOUND") => "`duramen tree list --server PLACE` lists the trees",
        (_, "TOPIC_NOT_FOUND") => "`duramen topics --server PLACE` lists the topics",
        (_, "CHECKPOINT_NOT_FOUND") => "`duramen checkpoint list --server PLACE` lists the checkpoints",
        (_, "GROUP_NOT_FOUND") => "`duramen groups --server PLACE TOPIC` lists the groups",
        (ErrorKind::Unavailable | ErrorKind::DeadlineExceeded, _) => {
            "`duramen health --server PLACE` tells whether it serves; correct the place, or start `duramen serve`"
        }
        (ErrorKind::Unauthenticated, _) | (_, "BAD_TOKEN") => {
            "give a valid token with --token-file or DURAMEN_TOKEN; `duramen token create` makes tokens"
        }
        (ErrorKind::PermissionDenied, _) => "use a token with this permission; `duramen token create` makes tokens",
        (_, "BAD_TLS") => "--ca names the authority's certificate, and --client-cert and --client-key the client's",
        (ErrorKind::UnknownOutcome, _) => "the write may have taken effect; look before you repeat it",
        _ => return failure,
    };
    failure.hint(hint)
}
