//! What a store that fails leaves in the log.

use std::future::Future;
use std::io::Write;
use std::sync::{Arc, Mutex};

use duramen::topic::TopicsOptions;
use duramen::{Durability, Options};
use duramen_io::{FailKind, FailSpan, SimDisk};
use duramen_proto::command::command::Change;
use duramen_proto::command::outcome::Outcome;
use duramen_proto::command::{Command, CreateMap};
use duramen_server::{Applier, Level, Limits, Pipeline};

/// Where a subscriber writes its lines.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn run<T>(body: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(body)
}

#[test]
fn a_device_that_fails_is_logged_and_a_refused_command_is_not() {
    let disk = SimDisk::new(1);
    let options = Options::new().durability(Durability::Written);
    let store = options.open_on(disk.platform()).unwrap();
    let applier = Applier::new(&store, TopicsOptions::new().background(false)).unwrap();
    let pipeline = Pipeline::new(applier, Limits::default());
    let create = |map: &str| Command {
        change: Some(Change::CreateMap(CreateMap {
            map: map.into(),
            ..Default::default()
        })),
        ..Default::default()
    };
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let text = || String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    tracing::subscriber::with_default(subscriber, || {
        run(async {
            pipeline.submit(create("m"), Level::Synced).await.unwrap();
            let refused = pipeline.submit(create(""), Level::Synced).await.unwrap().unwrap();
            assert!(matches!(refused.outcome, Some(Outcome::Refused(_))), "{refused:?}");
            assert_eq!(text(), "");
            disk.fail(1, FailKind::Io, FailSpan::Forever);
            for number in 0..5 {
                let name = format!("m{number}");
                let _ = pipeline.submit(create(&name), Level::Synced).await;
            }
        });
    });
    let text = text();
    let refusals = text.lines().filter(|line| line.contains("the store refuses writes"));
    assert!(refusals.count() >= 1, "{text}");
    assert!(text.contains("ERROR duramen_server::pipeline"), "{text}");
}
