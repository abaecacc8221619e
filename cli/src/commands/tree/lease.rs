//! Granting, keeping, ending and listing leases.

use std::time::Duration;

use clap::{Args, Subcommand};
use duramen::tree::Lease as LeaseOfTree;
use duramen_client::TreeLease;
use serde_json::{Value, json};

use super::remote::Remote;
use super::{Opened, TreeArguments};
use crate::exit::{Exit, Outcome};
use crate::limit::seconds;
use crate::output::Output;
use crate::text::counted;

const EXAMPLES: &str = r"Examples:
  A lease of 30 seconds, and a node that ends with it:
    $ duramen tree put shop web/1 up --lease $(duramen tree lease grant shop 30)
    $ duramen tree lease list shop";

const GRANT_EXAMPLES: &str = r"Examples:
  The command prints the id of the lease:
    $ duramen tree lease grant shop 30
    $ duramen tree lease grant shop 0.5 --json";

const KEEP_EXAMPLES: &str = r"Examples:
  The lease lasts its whole time from now on:
    $ duramen tree lease keep shop $(duramen tree lease grant shop 30)
    $ duramen tree lease keep shop $(duramen tree lease grant shop 30) --json";

const REVOKE_EXAMPLES: &str = r"Examples:
  The lease ends now, and its nodes with it:
    $ duramen tree lease revoke shop $(duramen tree lease grant shop 30)
    $ duramen tree lease revoke shop $(duramen tree lease grant shop 30) --json";

const LIST_EXAMPLES: &str = r"Examples:
  The id, the remaining seconds, all seconds, and the number of nodes:
    $ duramen tree lease list shop
    $ duramen tree lease list shop --json

A lease ends by the server, or by the background thread of a program that has the store open, and not by
this command. A server counts at most 10,000 nodes of a lease.";

/// Grant, keep, end and list leases
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Lease {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Grant a lease
    #[command(after_help = GRANT_EXAMPLES)]
    Grant {
        #[command(flatten)]
        place: TreeArguments,
        /// How long it lasts
        #[arg(value_name = "SECONDS")]
        seconds: f64,
    },
    /// Let a lease last its whole time again
    #[command(after_help = KEEP_EXAMPLES)]
    Keep {
        #[command(flatten)]
        place: TreeArguments,
        /// The id of the lease
        id: u64,
    },
    /// End a lease
    #[command(after_help = REVOKE_EXAMPLES)]
    Revoke {
        #[command(flatten)]
        place: TreeArguments,
        /// The id of the lease
        id: u64,
    },
    /// List the leases
    #[command(after_help = LIST_EXAMPLES)]
    List {
        #[command(flatten)]
        place: TreeArguments,
    },
}

impl Lease {
    pub fn run(self, output: &mut Output) -> Outcome {
        match self.action {
            Action::Grant { place, seconds } => {
                // What is no time at all, the tree refuses.
                let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
                let lease = match place.existing_or_new()? {
                    Opened::Local(local) => local.tree.grant_lease(time)?,
                    Opened::Remote(remote) => {
                        of_server(remote.wait_or_create(async || remote.tree.grant_lease(time, None).await)?)
                    }
                };
                match output.is_json {
                    true => output.json(&object(&lease))?,
                    false => output.line(lease.id)?,
                }
            }
            Action::Keep { place, id } => {
                let lease = match place.existing_to_write()? {
                    Opened::Local(local) => local.tree.keep_lease_alive(id)?,
                    Opened::Remote(Remote { server, tree, .. }) => of_server(server.wait(tree.keep_lease_alive(id))?),
                };
                match output.is_json {
                    true => output.json(&object(&lease))?,
                    false => output.line(format_args!("{} seconds", seconds(lease.remaining)))?,
                }
            }
            Action::Revoke { place, id } => {
                let removed = match place.existing_to_write()? {
                    Opened::Local(local) => local.tree.revoke_lease(id)?,
                    Opened::Remote(Remote { server, tree, .. }) => server.wait(tree.revoke_lease(id))?,
                };
                match output.is_json {
                    true => output.json(&json!({"lease": id, "removed": removed}))?,
                    false => output.line(format_args!("removed {}", counted(removed, "node")))?,
                }
            }
            Action::List { place } => {
                for (lease, nodes) in leases(&place.existing()?)? {
                    if output.is_json {
                        let mut object = object(&lease);
                        object["nodes"] = nodes.into();
                        output.json(&object)?;
                    } else {
                        let (left, all) = (seconds(lease.remaining), seconds(lease.ttl));
                        output.line(format_args!("{}\t{left}\t{all}\t{nodes}", lease.id))?;
                    }
                }
            }
        }
        Ok(Exit::Done)
    }
}

/// The leases, with the numbers of their nodes.
fn leases(opened: &Opened) -> Outcome<Vec<(LeaseOfTree, usize)>> {
    let mut leases = Vec::new();
    match opened {
        Opened::Local(local) => {
            let view = local.tree.view()?;
            for lease in view.leases()? {
                leases.push((lease, view.lease_paths(lease.id, usize::MAX)?.len()));
            }
        }
        Opened::Remote(Remote { server, tree, .. }) => {
            for lease in server.wait(tree.leases())? {
                // It may end between two calls.
                let read = server.wait(async {
                    match tree.lease(lease.lease, u64::MAX).await {
                        Err(error) if error.reason == "LEASE_NOT_FOUND" => Ok(None),
                        read => read.map(Some),
                    }
                })?;
                leases.extend(read.map(|(lease, paths)| (of_server(lease), paths.len())));
            }
        }
    }
    Ok(leases)
}

/// A lease of a server, as a store has it.
fn of_server(lease: TreeLease) -> LeaseOfTree {
    LeaseOfTree {
        id: lease.lease,
        ttl: Duration::from_millis(lease.ttl_ms),
        remaining: Duration::from_millis(lease.remaining_ms),
    }
}

fn object(lease: &LeaseOfTree) -> Value {
    json!({
        "lease": lease.id,
        "seconds": seconds(lease.ttl),
        "remaining_seconds": seconds(lease.remaining),
    })
}
