//! Prints the public items of a crate, one a line, from the JSON that rustdoc wrote about it.
//!
//! `scripts/api` makes the JSON, runs this program and compares what it prints with the listing in the repository. Blanket
//! and auto-trait implementations are left out: other crates and the compiler decide about them.

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let path: PathBuf = std::env::args_os().nth(1).ok_or("usage: api-listing FILE.json")?.into();
    let api = public_api::Builder::from_rustdoc_json(path)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .build()?;
    for item in api.items() {
        println!("{item}");
    }
    Ok(())
}
