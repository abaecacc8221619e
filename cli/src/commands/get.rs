//! `duramen get`: prints one value.

use std::io::{self, Read, Write};

use clap::Args;
use serde_json::json;

use crate::exit::{Exit, Failure, Outcome};
use crate::opening::{MapArguments, NotationArguments};
use crate::output::{Output, say};
use crate::place::{Place, PlaceArguments};

const EXAMPLES: &str = r"Examples:
  Print a value:
    $ duramen get shop apples --map stock
  A key with bytes that are not text, and the value in hexadecimal:
    $ duramen get shop 'user\x00\x07' --map users
    $ duramen get shop 757365720007 --map users --hex
  Write a value to a file exactly as it is:
    $ duramen get shop logo --map files --raw > logo.png
  From a server:
    $ duramen get --server unix:duramen.sock apples --map stock

Exit code 1 when the key is not there.";

/// Print the value of a key
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Get {
    #[command(flatten)]
    place: PlaceArguments,

    /// The key
    #[arg(allow_negative_numbers = true)]
    key: String,

    #[command(flatten)]
    map: MapArguments,

    #[command(flatten)]
    notation: NotationArguments,

    /// Print the value's bytes as they are, without a line end
    #[arg(long, conflicts_with = "json")]
    raw: bool,
}

impl Get {
    pub fn run(self, output: &mut Output) -> Outcome {
        let key = self.notation.notation().parse("key", &self.key)?;
        match self.place.open_to_read()? {
            Place::Directory(store) => {
                let map = self.map.existing(&store)?;
                let snapshot = store.snapshot()?;
                if !self.raw {
                    return self.print(map.name(), snapshot.get(&map, &key)?.as_deref(), output);
                }
                let Some(mut value) = snapshot.stream(&map, &key)? else {
                    return self.missing(map.name());
                };
                copy_out(&mut value, output)?;
                Ok(Exit::Done)
            }
            Place::Server(server) => {
                let map = server.map_name(&self.map)?;
                let value = server.wait(whole(&server.client.map(&map), &key))?;
                self.print(&map, value.as_deref(), output)
            }
        }
    }

    fn print(&self, map: &str, value: Option<&[u8]>, output: &mut Output) -> Outcome {
        let notation = self.notation.notation();
        if output.is_json {
            let text = value.map(|value| notation.show(value));
            output.json(&json!({"map": map, "key": self.key, "found": value.is_some(), "value": text}))?;
            return Ok(if value.is_some() { Exit::Done } else { Exit::NotFound });
        }
        let Some(value) = value else {
            return self.missing(map);
        };
        if self.raw {
            output.write_all(value)?;
        } else {
            notation.write(output, value)?;
            output.write_all(b"\n")?;
        }
        Ok(Exit::Done)
    }

    fn missing(&self, map: &str) -> Outcome {
        say(format_args!(
            "duramen: there is no key {:?} in the map {map:?}",
            self.key
        ));
        Ok(Exit::NotFound)
    }
}

/// Copies a value to the output, like `io::copy`, but keeps store errors apart from output errors.
fn copy_out(value: &mut dyn Read, output: &mut Output) -> Outcome<()> {
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = value.read(&mut buffer).map_err(of_store)?;
        if count == 0 {
            return Ok(());
        }
        output.write_all(&buffer[..count])?;
    }
}

/// Unwraps the engine's error from a stream error. `Read` knows only input/output errors, so the stream wraps the
/// engine's.
fn of_store(error: io::Error) -> Failure {
    match error.downcast::<duramen::Error>() {
        Ok(error) => error.into(),
        Err(error) => Failure::of_io("reading the value", &error),
    }
}

/// Reads a value of any length from a server.
async fn whole(map: &duramen_client::Map, key: &[u8]) -> duramen_client::Result<Option<Vec<u8>>> {
    let Some(mut parts) = map.get_stream(key).await? else {
        return Ok(None);
    };
    let mut value = Vec::new();
    while let Some(part) = parts.next().await {
        value.extend_from_slice(&part?);
    }
    Ok(Some(value))
}
