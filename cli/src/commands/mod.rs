//! The commands, one file each.

mod backup;
mod cert;
mod changes;
mod check;
mod checkpoint;
mod compact;
mod copy;
mod dead_letters;
mod delete;
mod dump;
mod etcd;
mod get;
mod groups;
mod load;
mod logging;
mod maps;
mod meant;
mod publish;
mod put;
mod redrive;
mod salvage;
mod scan;
mod serve;
mod stat;
mod subscribe;
mod token;
mod topics;
mod torture;
mod tour;
mod tree;
mod watch;

use clap::Subcommand;

pub use etcd::as_etcd;

use crate::exit::Outcome;
use crate::output::Output;

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    Get(get::Get),
    Put(put::Put),
    Delete(delete::Delete),
    Scan(scan::Scan),
    Watch(watch::Watch),
    Maps(maps::Maps),
    Topics(topics::Topics),
    Tree(tree::Tree),
    Groups(groups::Groups),
    Publish(publish::Publish),
    Subscribe(subscribe::Subscribe),
    DeadLetters(dead_letters::DeadLetters),
    Redrive(redrive::Redrive),
    Stat(stat::Stat),
    Check(check::Check),
    Salvage(salvage::Salvage),
    Checkpoint(checkpoint::Checkpoint),
    Export(backup::Export),
    Import(backup::Import),
    Verify(backup::Verify),
    Exports(backup::Exports),
    Prune(backup::Prune),
    Backup(backup::Backup),
    Copy(copy::Copy),
    Dump(dump::Dump),
    Load(load::Load),
    Compact(compact::Compact),
    Serve(serve::Serve),
    Etcd(etcd::Etcd),
    Config(serve::ConfigCommand),
    Health(serve::Health),
    Cert(cert::Cert),
    Token(token::Token),
    Torture(torture::Torture),
    Tour(tour::Tour),
    #[command(hide = true)]
    TourChild(tour::TourChild),
    #[command(hide = true)]
    TortureMember(torture::TortureMember),
}

impl Command {
    /// Runs the command.
    pub fn run(self, output: &mut Output) -> Outcome {
        match self {
            Command::Get(get) => get.run(output),
            Command::Put(put) => put.run(output),
            Command::Delete(delete) => delete.run(output),
            Command::Scan(scan) => scan.run(output),
            Command::Watch(watch) => watch.run(output),
            Command::Maps(maps) => maps.run(output),
            Command::Topics(topics) => topics.run(output),
            Command::Tree(tree) => tree.run(output),
            Command::Groups(groups) => groups.run(output),
            Command::Publish(publish) => publish.run(output),
            Command::Subscribe(subscribe) => subscribe.run(output),
            Command::DeadLetters(letters) => letters.run(output),
            Command::Redrive(redrive) => redrive.run(output),
            Command::Stat(stat) => stat.run(output),
            Command::Check(check) => check.run(output),
            Command::Salvage(salvage) => salvage.run(output),
            Command::Checkpoint(checkpoint) => checkpoint.run(output),
            Command::Export(export) => export.run(output),
            Command::Import(import) => import.run(output),
            Command::Verify(verify) => verify.run(output),
            Command::Exports(exports) => exports.run(output),
            Command::Prune(prune) => prune.run(output),
            Command::Backup(backup) => backup.run(output),
            Command::Copy(copy) => copy.run(output),
            Command::Dump(dump) => dump.run(output),
            Command::Load(load) => load.run(output),
            Command::Compact(compact) => compact.run(output),
            Command::Serve(serve) => serve.run(output),
            Command::Etcd(etcd) => etcd.run(output),
            Command::Config(config) => config.run(output),
            Command::Health(health) => health.run(output),
            Command::Cert(cert) => cert.run(output),
            Command::Token(token) => token.run(output),
            Command::Torture(torture) => torture.run(output),
            Command::TortureMember(member) => member.run(output),
            Command::Tour(tour) => tour.run(output),
            Command::TourChild(child) => child.run(output),
        }
    }
}
