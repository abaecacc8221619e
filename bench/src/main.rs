//! The lab: verified work, equal for Duramen and its peers, measured in one way. See README.md beside this folder.

mod analysis;
mod answer;
mod bars;
mod broker;
mod brokers;
mod charts;
mod children;
mod command_line;
mod compare;
mod connection;
mod crew;
mod curves;
mod data;
mod doctor;
mod drivers;
mod flight;
mod front;
mod gallery;
mod html;
mod load;
mod machine;
mod matrix;
mod measure;
mod memory_group;
mod page;
mod peer;
mod peers;
mod probe;
mod published;
mod reasons;
mod results;
mod runner;
mod scratch;
mod servers;
mod shared;
mod statistics;
mod storage;
mod terminal;
mod text;
mod tree;
mod trees;
mod verdict;
mod versions;
mod workloads;

use std::process::ExitCode;

fn main() -> ExitCode {
    command_line::run().unwrap_or_else(|error| {
        eprintln!("{error:#}");
        ExitCode::from(2)
    })
}
