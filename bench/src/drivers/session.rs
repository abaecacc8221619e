//! The process of a driver: starts it, and exchanges one request and one answer at a time. Every wait has a limit.
//!
//! The driver shares our standard error. It ends when its standard input ends. It is also killed when the thread that
//! started it ends, and when the session is dropped. It therefore cannot continue to write into a directory that is
//! about to be removed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::protocol::{Hello, Request, VERSION};
use crate::answer::Unsupported;
use crate::children::end_with_this_thread;

/// Maximum time of a request without a time of its own, and extra time of a request with one.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// A running driver.
pub struct Session {
    name: String,
    child: Child,
    requests: ChildStdin,
    answers: Receiver<std::io::Result<String>>,
    patience: Duration,
}

impl Session {
    /// Starts a driver and reads its description.
    pub fn start(name: &str, mut command: Command, patience: Duration) -> Result<(Session, Hello)> {
        end_with_this_thread(&mut command);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting the driver {name}"))?;
        let requests = child.stdin.take().context("the input of a driver is a pipe")?;
        let output = child.stdout.take().context("the output of a driver is a pipe")?;
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut session = Session {
            name: name.to_string(),
            child,
            requests,
            answers,
            patience,
        };
        let hello: Hello = session.ask(&Request::Hello, Duration::ZERO)?;
        if hello.protocol != VERSION {
            bail!(
                "the driver {name} speaks version {} of the protocol, the lab {VERSION}",
                hello.protocol
            );
        }
        Ok((session, hello))
    }

    /// Returns the PID of the driver.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Sends a request that may take `time` beyond the usual patience, and reads the answer.
    pub fn ask<T: DeserializeOwned>(&mut self, request: &Request, time: Duration) -> Result<T> {
        let line = request.line()?;
        let word = line.split('\t').next().unwrap_or_default().to_string();
        // A broken pipe says less than how the process ended, which is determined below.
        let _ = self.requests.write_all(format!("{line}\n").as_bytes());
        let answer = match self.answers.recv_timeout(self.patience.saturating_add(time)) {
            Ok(answer) => answer.with_context(|| format!("reading what the driver {} answers to {word}", self.name))?,
            Err(RecvTimeoutError::Timeout) => bail!(
                "the driver {} did not answer {word} within {:.1} s",
                self.name,
                self.patience.saturating_add(time).as_secs_f64()
            ),
            Err(RecvTimeoutError::Disconnected) => bail!(
                "the driver {} ended in the middle of {word} ({})",
                self.name,
                self.child.wait()?
            ),
        };
        self.understood(&word, &answer)
    }

    fn understood<T: DeserializeOwned>(&self, word: &str, answer: &str) -> Result<T> {
        let name = &self.name;
        let object: Value = serde_json::from_str(answer)
            .with_context(|| format!("the driver {name} answered {word} with {:?}", shortened(answer)))?;
        let text = |field: &str| object.get(field).and_then(Value::as_str);
        if let Some(error) = text("error") {
            bail!("the driver {name}: {word}: {error}");
        }
        if let Some(reason) = text("unsupported") {
            // Leaks at most once for each phase of a run.
            bail!(Unsupported(reason.to_string().leak()));
        }
        serde_json::from_value(object.clone())
            .with_context(|| format!("the driver {name} answered {word} with {:?}", shortened(answer)))
    }
}

/// Shortens a line so that it fits a message.
fn shortened(line: &str) -> String {
    line.chars().take(200).collect()
}

impl Drop for Session {
    fn drop(&mut self) {
        // The process may have ended already; then there is nothing to kill or report.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const HELLO: &str =
        r#"echo '{"protocol":1,"name":"shell","version":"1","classes":[],"options":[],"persistent":true}'"#;

    fn shell(script: &str) -> Result<(Session, Hello)> {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("read request; {script}")]);
        Session::start("shell", command, Duration::from_millis(500))
    }

    fn error_of<T>(result: Result<T>) -> String {
        result.err().map(|error| format!("{error:#}")).expect("an error")
    }

    fn sync_after_hello(script: &str) -> String {
        let (mut session, hello) =
            shell(&format!("{HELLO}; read request; {script}")).expect("a driver that says hello");
        assert_eq!(hello.name, "shell");
        error_of(session.ask::<Value>(&Request::Sync, Duration::ZERO))
    }

    #[test]
    fn driver_that_ends_says_in_which_request_and_how() {
        let error = sync_after_hello("exit 7");
        assert!(error.contains("ended in the middle of sync"), "{error}");
        assert!(error.contains("exit status: 7"), "{error}");
        assert!(error_of(shell("exit 1")).contains("in the middle of hello"));
    }

    #[test]
    fn driver_that_prints_rubbish_is_quoted() {
        let error = sync_after_hello("echo Segmentation fault; sleep 5");
        assert!(error.contains("answered sync with \"Segmentation fault\""), "{error}");
        let error = error_of(shell("echo '{\"protocol\":1}'; sleep 5"));
        assert!(
            error.contains("answered hello") && error.contains("missing field"),
            "{error}"
        );
    }

    #[test]
    fn driver_that_is_silent_is_not_waited_for_for_ever() {
        let error = sync_after_hello("sleep 60");
        assert!(error.contains("did not answer sync within 0.5 s"), "{error}");
    }

    #[test]
    fn driver_of_another_protocol_is_refused() {
        let other = HELLO.replace("\"protocol\":1", "\"protocol\":2");
        let error = error_of(shell(&format!("{other}; sleep 5")));
        assert!(error.contains("version 2"), "{error}");
    }

    #[test]
    fn error_of_a_driver_is_told_and_what_it_cannot_do_is_not_an_error_of_the_run() -> Result<()> {
        let error = sync_after_hello(r#"echo '{"error":"the disk is full"}'"#);
        assert!(error.contains("shell: sync: the disk is full"), "{error}");
        let (mut session, _) = shell(&format!(r#"{HELLO}; read request; echo '{{"unsupported":"no"}}'"#))?;
        let error = session
            .ask::<Value>(&Request::Compact, Duration::ZERO)
            .expect_err("unsupported");
        assert!(error.is::<Unsupported>(), "{error:#}");
        Ok(())
    }

    #[test]
    fn answers_come_in_the_order_of_the_requests() -> Result<()> {
        let (mut session, _) = shell(&format!(
            "{HELLO}; while read request; do echo \"{{\\\"was\\\":\\\"$request\\\"}}\"; done"
        ))?;
        let was: Value = session.ask(&Request::Sync, Duration::ZERO)?;
        assert_eq!(was, json!({"was": "sync"}));
        let was: Value = session.ask(&Request::Close, Duration::ZERO)?;
        assert_eq!(was, json!({"was": "close"}));
        Ok(())
    }

    #[test]
    fn driver_ends_with_its_session() -> Result<()> {
        let (session, _) = shell(&format!("{HELLO}; sleep 60"))?;
        let process = session.process();
        drop(session);
        assert!(!std::path::Path::new(&format!("/proc/{process}")).exists());
        Ok(())
    }
}
