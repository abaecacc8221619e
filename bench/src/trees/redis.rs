//! Redis with an append-only file, as a tree without revisions: `SET NX`, `GET` and `DEL`. What a reply means is told in
//! [`crate::servers::redis`].

use std::path::Path;

use anyhow::{Result, bail};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Value};

use crate::answer::Answer;
use crate::answer::Unsupported;
use crate::peer::{Description, Driver, Peer, Setting};
use crate::servers::{self, PATIENCE, REDIS, Server};
use crate::tree::{ServedTree, Tree, TreeConnection};

/// The driver of Redis.
pub struct Redis;

impl Driver for Redis {
    fn describe(&self) -> Description {
        let description = Description {
            classes: servers::redis::classes(),
            options: vec!["appendonly yes, no snapshots".to_string()],
            is_persistent: true,
            is_tree: true,
            is_no_store: true,
            ..Description::default()
        };
        REDIS.describe("redis", "redis", description)
    }

    fn open(&self, _directory: &Path, _setting: Setting) -> Result<Box<dyn Peer>> {
        bail!(Unsupported("takes part as a tree"))
    }

    fn open_tree(&self, directory: &Path, setting: Setting) -> Result<Tree> {
        let server = servers::redis::start(directory, &servers::redis::append_only(setting.class))?;
        let client = Client::open(format!("redis://{}", server.address))?;
        let opened = Opened {
            client,
            _server: server,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        servers::redis::wait_until_ready(|| {
            runtime.block_on(async { opened.open().await?.ask(redis::cmd("PING")).await })
        })?;
        Ok(Tree::Served(Box::new(opened)))
    }
}

struct Opened {
    client: Client,
    _server: Server,
}

impl Opened {
    async fn open(&self) -> Result<Connected> {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(2 * PATIENCE));
        let connection = self.client.get_multiplexed_async_connection_with_config(&config);
        Ok(Connected(connection.await?))
    }
}

impl ServedTree for Opened {
    fn connect(&self) -> Answer<'_, Box<dyn TreeConnection + '_>> {
        Box::pin(async { Ok(Box::new(self.open().await?) as Box<dyn TreeConnection>) })
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

struct Connected(MultiplexedConnection);

impl Connected {
    async fn ask(&self, command: Cmd) -> Result<Value> {
        Ok(command.query_async(&mut self.0.clone()).await?)
    }
}

fn command(name: &str, path: &[u8]) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(path);
    command
}

impl TreeConnection for Connected {
    fn create(&self, path: &[u8], payload: &[u8]) -> Answer<'_, bool> {
        let mut command = command("SET", path);
        command.arg(payload).arg("NX");
        Box::pin(async move { Ok(self.ask(command).await? != Value::Nil) })
    }

    fn get(&self, path: &[u8]) -> Answer<'_, Option<Vec<u8>>> {
        let command = command("GET", path);
        Box::pin(async move {
            match self.ask(command).await? {
                Value::Nil => Ok(None),
                Value::BulkString(payload) => Ok(Some(payload)),
                other => bail!("a get has the answer {other:?}"),
            }
        })
    }

    fn delete(&self, path: &[u8]) -> Answer<'_, bool> {
        let command = command("DEL", path);
        Box::pin(async move { Ok(self.ask(command).await? == Value::Int(1)) })
    }
}
