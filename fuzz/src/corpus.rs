//! Writes the samples of every target to `corpus/NAME/`, where `cargo fuzz run NAME` begins.

use std::fs;
use std::path::Path;

fn main() -> std::io::Result<()> {
    for (name, _) in duramen_fuzz::TARGETS {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        fs::create_dir_all(&directory)?;
        let samples = duramen_fuzz::samples(name);
        for (number, sample) in samples.iter().enumerate() {
            fs::write(directory.join(format!("sample-{number:03}")), sample)?;
        }
        eprintln!("{}: {} samples", directory.display(), samples.len());
    }
    Ok(())
}
