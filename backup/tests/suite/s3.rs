//! Backups in an S3-compatible server of this machine: moto, which the test installs where Python and a network are. Elsewhere
//! the test says why it does nothing.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::*;
use duramen::Store;
use duramen_backup::{Backup, BackupError, ExportOptions, Moment, Policy};

const MOTO: &str = "moto[server]==5.1.18";
const BUCKET: &str = "backups";

/// Python with moto. An error is the reason to skip.
fn python() -> Result<PathBuf, String> {
    let probe = "import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 9))";
    let probed = Command::new("python3").args(["-c", probe]).output();
    if !probed.is_ok_and(|probed| probed.status.success()) {
        return Err("there is no python3 of version 3.9 or newer with venv".into());
    }
    let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join("moto");
    let (python, is_complete) = (venv.join("bin/python"), venv.join("complete"));
    if !is_complete.exists() {
        let made = Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(&venv)
            .status();
        assert!(made.unwrap().success());
        let pip = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--retries",
            "1",
            MOTO,
        ];
        let installed = Command::new(&python).args(pip).output().unwrap();
        if !installed.status.success() {
            return Err(format!(
                "{MOTO} cannot be installed: {}",
                String::from_utf8_lossy(&installed.stderr)
            ));
        }
        std::fs::write(is_complete, "").unwrap();
    }
    Ok(python)
}

/// A server with an empty bucket.
struct Server {
    child: Child,
    endpoint: String,
}

impl Server {
    fn start(python: &Path) -> Server {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new(python.with_file_name("moto_server"))
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Server {
            child,
            endpoint: format!("http://127.0.0.1:{port}"),
        };
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            std::thread::sleep(Duration::from_millis(50));
        }
        let create = format!(
            "import boto3; boto3.client('s3', endpoint_url='{}', aws_access_key_id='a', aws_secret_access_key='b', \
             region_name='us-east-1').create_bucket(Bucket='{BUCKET}')",
            server.endpoint
        );
        assert!(Command::new(python).args(["-c", &create]).status().unwrap().success());
        server
    }

    fn backup(&self) -> Backup {
        let settings = [
            ("AWS_ENDPOINT", &self.endpoint[..]),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "a"),
            ("AWS_SECRET_ACCESS_KEY", "b"),
        ];
        Backup::open_with(&format!("s3://{BUCKET}/a folder"), settings).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_bucket_holds_backups_as_a_directory_does() {
    let python = match python() {
        Ok(python) => python,
        Err(reason) => {
            eprintln!("n/a: {reason}");
            return;
        }
    };
    let server = Server::start(&python);
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("store")).unwrap();
    let mut rng = fastrand::Rng::with_seed(5);
    let backup = server.backup();
    let mut states = Vec::new();
    for number in 1..=4 {
        change(&store, &mut rng);
        // The first attempt meets a network that fails somewhere.
        let faulty = Faulty::over(
            backup.objects(),
            [Fault::Fail, Fault::FailAfterwards][number % 2],
            number as i64,
        );
        let unlucky = Backup::over(faulty, "the bucket").unwrap();
        let first = unlucky.export(&store, &ExportOptions::new(), &mut |_| ());
        drop(unlucky);
        if first.is_err() {
            backup.export(&store, &ExportOptions::new(), &mut |_| ()).unwrap();
        }
        states.push(content(&store));
    }
    let exports = backup.list().unwrap();
    assert_eq!(exports.len(), 4);
    for (export, state) in exports.iter().zip(&states) {
        backup.verify(Moment::Export(export.number), &mut |_| ()).unwrap();
        let target = directory.path().join(format!("copy {}", export.number));
        backup
            .import(Moment::Export(export.number), &target, &mut |_| ())
            .unwrap();
        assert!(content(&Store::open(&target).unwrap()) == *state);
    }
    // Both exporters create export 5 there, and one of them is told.
    let mut has_run = false;
    let other = server.backup();
    store.map("stock").unwrap().put("more", "value").unwrap();
    let taken = backup.export(&store, &ExportOptions::new(), &mut |_| {
        if !std::mem::replace(&mut has_run, true) {
            let twin = Store::open(directory.path().join("copy 4")).unwrap();
            std::thread::scope(|scope| {
                let export = || other.export(&twin, &ExportOptions::new(), &mut |_| ());
                scope.spawn(export).join().unwrap().unwrap();
            });
        }
    });
    assert!(
        matches!(taken, Err(BackupError::TakenMeanwhile { number: 5 })),
        "{taken:?}"
    );
    let pruned = backup.prune(Policy::keep_last(1), &mut |_| ()).unwrap();
    assert_eq!((pruned.exports, pruned.kept), (vec![4, 3, 2, 1], 1));
    backup.verify(Moment::Newest, &mut |_| ()).unwrap();
}
