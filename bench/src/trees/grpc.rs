//! The trees of Duramen's server through its Rust client.

use std::path::Path;

use anyhow::Result;
use duramen_client::{Acknowledge, Client, NodePut, Tree as ClientTree, WriteOptions};

use super::duramen::NAME;
use crate::answer::Answer;
use crate::peer::{Class, Setting};
use crate::servers::grpc::{Serving, Shape};
use crate::tree::{ServedTree, Tree, TreeConnection};

struct Opened {
    serving: Serving,
    level: Acknowledge,
}

/// Starts a server with a store in a directory.
pub fn open(shape: Shape, directory: &Path, setting: Setting) -> Result<Tree> {
    let level = match setting.class {
        Class::Synced => Acknowledge::Synced,
        Class::Written | Class::None => Acknowledge::Written,
    };
    let serving = Serving::start(shape, Some(directory))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { Client::connect(&serving.url())?.create_tree(NAME).await })?;
    Ok(Tree::Served(Box::new(Opened { serving, level })))
}

impl ServedTree for Opened {
    fn connect(&self) -> Answer<'_, Box<dyn TreeConnection + '_>> {
        Box::pin(async move {
            let client = Client::builder().connections(1).connect(&self.serving.url())?;
            let tree = client.with(WriteOptions::new().acknowledge(self.level)).tree(NAME);
            // The client connects with its first call, which is none of those that are measured.
            tree.revision().await?;
            Ok(Box::new(Connected(tree)) as Box<dyn TreeConnection>)
        })
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.serving.stop()
    }
}

struct Connected(ClientTree);

impl TreeConnection for Connected {
    fn create(&self, path: &[u8], payload: &[u8]) -> Answer<'_, bool> {
        let put = NodePut::new(path, payload.to_vec()).create();
        Box::pin(async move {
            match self.0.put(put).await {
                Ok(_) => Ok(true),
                Err(error) if error.reason == "NODE_EXISTS" => Ok(false),
                Err(error) => Err(error.into()),
            }
        })
    }

    fn get(&self, path: &[u8]) -> Answer<'_, Option<Vec<u8>>> {
        let path = path.to_vec();
        Box::pin(async move { Ok(self.0.get(path).await?.map(|node| node.payload.into())) })
    }

    fn delete(&self, path: &[u8]) -> Answer<'_, bool> {
        let path = path.to_vec();
        Box::pin(async move { Ok(self.0.delete(path).await?) })
    }
}
