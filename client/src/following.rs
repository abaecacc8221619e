//! Streams that go on after a break: a task receives responses and passes them on through a channel of one response, so
//! a slow program slows the server. After a break it asks again, behind the last response that it received completely.
//! A response arrives whole or not at all, so nothing is lost and nothing arrives twice.

use tokio::sync::mpsc;
use tokio::time::sleep;
use tonic::{Status, Streaming};

use crate::call::Pauses;
use crate::client::Client;
use crate::error::{Error, Failure, Result};

/// How a stream is opened, and where it goes on.
pub(crate) trait Follow: Send + 'static {
    /// What the server sends.
    type Response: Send + 'static;

    /// Opens the stream behind what was received.
    fn open(&self, client: &Client) -> impl Future<Output = Result<Streaming<Self::Response>>> + Send;

    /// Notes that a response was received.
    fn received(&mut self, response: &Self::Response);

    /// Why the stream cannot go on after a break; `None`: it can.
    fn cannot_resume(&self) -> Option<Error> {
        None
    }
}

/// Opens a stream, and follows it until an error that a retry cannot cure, or until the receiver is dropped.
pub(crate) async fn open<F: Follow>(client: Client, follow: F) -> Result<mpsc::Receiver<Result<F::Response>>> {
    let responses = follow.open(&client).await?;
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let closed = sender.clone();
        tokio::select! {
            () = closed.closed() => {}
            () = pass_on(&client, follow, responses, sender) => {}
        }
    });
    Ok(receiver)
}

async fn pass_on<F: Follow>(
    client: &Client,
    mut follow: F,
    mut responses: Streaming<F::Response>,
    sender: mpsc::Sender<Result<F::Response>>,
) {
    let mut pauses = Pauses::default();
    loop {
        let mut ended = loop {
            match responses.message().await {
                Ok(Some(response)) => {
                    pauses = Pauses::default();
                    follow.received(&response);
                    if sender.send(Ok(response)).await.is_err() {
                        return;
                    }
                }
                Ok(None) => break None,
                Err(status) => break Some(error_of(&status)),
            }
        };
        if let Some(error) = follow.cannot_resume() {
            let _ = sender
                .send(Err(ended.filter(|ended| !ended.is_transient()).unwrap_or(error)))
                .await;
            return;
        }
        responses = loop {
            if let Some(error) = ended.as_ref().filter(|error| !error.is_transient()) {
                let _ = sender.send(Err(error.clone())).await;
                return;
            }
            sleep(pauses.next(ended.and_then(|error| error.retry_after))).await;
            match follow.open(client).await {
                Ok(responses) => break responses,
                Err(error) => ended = Some(error),
            }
        };
    }
}

fn error_of(status: &Status) -> Error {
    Failure::of(status).error
}
