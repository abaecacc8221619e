//! `duramen put`: stores one value, from the command line, a file or standard input.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Seek};
use std::path::{Path, PathBuf};

use clap::Args;
use duramen::VALUE_BYTES_MAX;
use serde_json::json;

use crate::exit::{Exit, Failure, Outcome};
use crate::opening::{MapArguments, NotationArguments};
use crate::output::{Output, say};
use crate::place::{Place, PlaceArguments, Server, is_unknown_map};

const EXAMPLES: &str = r"Examples:
  Store a value; the store and the map are made when they are missing:
    $ duramen put shop apples 12 --map stock
  Bytes that are not text:
    $ duramen put shop 'user\x00\x07' 'Ada\nLovelace' --map users
  A file, or whatever comes through a pipe, exactly as it is:
    $ duramen put shop logo --map files --value-file logo.png
    $ date | duramen put shop opened - --map notes";

/// Store a value; it survives power loss when the command ends
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Put {
    #[command(flatten)]
    place: PlaceArguments,

    /// The key
    #[arg(allow_negative_numbers = true)]
    key: String,

    /// The value; `-` takes it from standard input, as it comes (a value of one dash is `\x2d`)
    #[arg(
        required_unless_present = "value_file",
        conflicts_with = "value_file",
        allow_negative_numbers = true
    )]
    value: Option<String>,

    /// Take the value from a file, as it is (`-`: standard input)
    #[arg(long, value_name = "FILE")]
    value_file: Option<PathBuf>,

    #[command(flatten)]
    map: MapArguments,

    #[command(flatten)]
    notation: NotationArguments,
}

/// A value that is ready to store, with its length.
struct Source {
    bytes: u64,
    stream: Box<dyn Read>,
}

impl Put {
    pub fn run(self, output: &mut Output) -> Outcome {
        let key = self.notation.notation().parse("key", &self.key)?;
        // Reads the source before it opens the store, so that a slow pipe blocks no other process.
        let mut source = self.source()?;
        let place = self.place.open_or_create()?;
        let map = match &place {
            Place::Directory(store) => {
                let map = self.map.existing_or_new(store)?;
                map.put_stream(&key, source.bytes, &mut *source.stream)?;
                map.name().to_string()
            }
            Place::Server(server) => {
                let map = server.map_name(&self.map)?;
                put(server, &map, &key, &mut source)?;
                map
            }
        };
        if output.is_json {
            output.json(&json!({"map": map, "key": self.key, "bytes": source.bytes}))?;
        }
        place.close()?;
        Ok(Exit::Done)
    }

    fn source(&self) -> Outcome<Source> {
        match (&self.value, &self.value_file) {
            (Some(text), _) if text != "-" => {
                let value = self.notation.notation().parse("value", text)?;
                Ok(Source {
                    bytes: value.len() as u64,
                    stream: Box::new(io::Cursor::new(value)),
                })
            }
            (None, Some(path)) if path != Path::new("-") => of_file(path),
            _ => of_stdin(),
        }
    }
}

/// Stores the value on a server, and makes the map when it is missing.
fn put(server: &Server, map: &str, key: &[u8], source: &mut Source) -> Outcome<()> {
    let mut value = Vec::new();
    let read = source.stream.read_to_end(&mut value);
    read.map_err(|error| Failure::of_io("reading the value", &error))?;
    let value = duramen_client::Bytes::from(value);
    server.wait(async {
        let handle = server.client.map(map);
        match handle.put_stream(key, value.clone()).await {
            Err(error) if is_unknown_map(&error) => {}
            done => return done,
        }
        if server.client.create_map(map).await? {
            say(format_args!("made the map {map:?}"));
        }
        handle.put_stream(key, value).await
    })
}

fn of_file(path: &Path) -> Outcome<Source> {
    let failed = |error: io::Error| Failure::of_io(&format!("reading {}", path.display()), &error);
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return spooled(file);
    }
    Ok(Source {
        bytes: metadata.len(),
        stream: Box::new(file),
    })
}

fn of_stdin() -> Outcome<Source> {
    if io::stdin().is_terminal() {
        say("reading the value from the terminal; end it with Ctrl-D");
    }
    spooled(io::stdin())
}

/// Reads a stream of unknown length to its end: in memory while it is short, in a temporary file when it is long.
fn spooled(stream: impl Read) -> Outcome<Source> {
    const IN_MEMORY_BYTES_MAX: usize = 8 << 20;
    let failed = |error: io::Error| Failure::of_io("reading the value", &error);
    let mut spool = tempfile::spooled_tempfile(IN_MEMORY_BYTES_MAX);
    // One byte more than the maximum is enough for the engine to refuse the value with its own message.
    let bytes = io::copy(&mut stream.take(VALUE_BYTES_MAX + 1), &mut spool).map_err(failed)?;
    spool.rewind().map_err(failed)?;
    Ok(Source {
        bytes,
        stream: Box::new(spool),
    })
}
