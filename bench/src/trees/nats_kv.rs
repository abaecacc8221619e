//! NATS JetStream's key-value store, with its server in a process of its own. It keeps one value of each key, in files. A
//! deleted key leaves a marker. A delete does not tell whether there was a key. The reads after the clock tell whether it is
//! gone.

use std::path::Path;

use anyhow::{Result, bail};
use async_nats::ConnectOptions;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::kv::{Config, CreateErrorKind, Store};
use async_nats::jetstream::stream::StorageType;

use crate::answer::Answer;
use crate::answer::Unsupported;
use crate::peer::{Class, Description, Driver, Peer, Setting};
use crate::servers::{NATS, PATIENCE, Server};
use crate::tree::{ServedTree, Tree, TreeConnection};

const BUCKET: &str = "lab";

/// The driver of JetStream's key-value store.
pub struct NatsKv;

impl Driver for NatsKv {
    fn describe(&self) -> Description {
        let description = Description {
            classes: vec![
                (Class::Synced, "sync_interval always".to_string()),
                (
                    Class::Written,
                    "as it comes: written to the file before it is acknowledged, synced every two minutes".to_string(),
                ),
            ],
            options: vec!["a bucket in files, history 1".to_string()],
            is_persistent: true,
            is_tree: true,
            is_no_store: true,
            ..Description::default()
        };
        NATS.describe("nats-kv", "async-nats", description)
    }

    fn open(&self, _directory: &Path, _setting: Setting) -> Result<Box<dyn Peer>> {
        bail!(Unsupported("takes part as a tree"))
    }

    fn open_tree(&self, directory: &Path, setting: Setting) -> Result<Tree> {
        let server = NATS.start(directory, |port| {
            let sync = match setting.class {
                Class::Synced => "sync_interval: always",
                Class::Written | Class::None => "",
            };
            let text = format!("listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: {directory:?}\n {sync} }}\n");
            let path = directory.join("server.conf");
            std::fs::write(&path, text)?;
            Ok(vec!["--config".to_string(), path.display().to_string()])
        })?;
        let opened = Opened { server };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(opened.bucket())?;
        Ok(Tree::Served(Box::new(opened)))
    }
}

struct Opened {
    server: Server,
}

impl Opened {
    /// Connects, and returns the bucket, which is created when it is missing.
    async fn bucket(&self) -> Result<Store> {
        let client = ConnectOptions::new()
            .client_capacity(1 << 16)
            .connect(self.server.address.to_string())
            .await?;
        let context = ContextBuilder::new().timeout(PATIENCE).build(client);
        if let Ok(bucket) = context.get_key_value(BUCKET).await {
            return Ok(bucket);
        }
        let config = Config {
            bucket: BUCKET.to_string(),
            storage: StorageType::File,
            history: 1,
            ..Config::default()
        };
        Ok(context.create_key_value(config).await?)
    }
}

impl ServedTree for Opened {
    fn connect(&self) -> Answer<'_, Box<dyn TreeConnection + '_>> {
        Box::pin(async { Ok(Box::new(Connected(self.bucket().await?)) as Box<dyn TreeConnection>) })
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

struct Connected(Store);

/// Returns a path as text, which keys of NATS are.
fn text(path: &[u8]) -> Result<String> {
    Ok(String::from_utf8(path.to_vec())?)
}

impl TreeConnection for Connected {
    fn create(&self, path: &[u8], payload: &[u8]) -> Answer<'_, bool> {
        let (path, payload) = (text(path), payload.to_vec());
        Box::pin(async move {
            match self.0.create(path?, payload.into()).await {
                Ok(_) => Ok(true),
                Err(error) if error.kind() == CreateErrorKind::AlreadyExists => Ok(false),
                Err(error) => Err(error.into()),
            }
        })
    }

    fn get(&self, path: &[u8]) -> Answer<'_, Option<Vec<u8>>> {
        let path = text(path);
        Box::pin(async move { Ok(self.0.get(path?).await?.map(Into::into)) })
    }

    fn delete(&self, path: &[u8]) -> Answer<'_, bool> {
        let path = text(path);
        Box::pin(async move {
            self.0.delete(path?).await?;
            Ok(true)
        })
    }
}
