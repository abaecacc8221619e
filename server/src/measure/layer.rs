//! A layer around all services of a thread that measures every call.
//!
//! The latency of a call is the time until its response headers. Its code is in these headers when the call failed at
//! once, and in the trailers otherwise. So the body of the response is wrapped, and passes every frame on as it is.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::body::{Body, Frame, SizeHint};
use hyper::{HeaderMap, Request, Response};
use pin_project_lite::pin_project;
use tonic::Code;
use tower::{Layer, Service};

use super::calls::Calls;
use crate::security::{Address, Peer};

/// Measures the calls of one serving thread.
#[derive(Clone, Debug)]
pub(crate) struct MeasureLayer(pub(crate) Arc<Calls>);

impl<S> Layer<S> for MeasureLayer {
    type Service = Measured<S>;

    fn layer(&self, service: S) -> Measured<S> {
        let calls = self.0.clone();
        Measured { service, calls }
    }
}

/// A service whose calls are measured.
#[derive(Clone, Debug)]
pub(crate) struct Measured<S> {
    service: S,
    calls: Arc<Calls>,
}

impl<S, I, O> Service<Request<I>> for Measured<S>
where
    S: Service<Request<I>, Response = Response<O>>,
    O: Body,
{
    type Response = Response<MeasuredBody<O>>;
    type Error = S::Error;
    type Future = MeasuredFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<I>) -> MeasuredFuture<S::Future> {
        let call = Call {
            method: self.calls.methods().position(request.uri().path()),
            peer: request
                .extensions()
                .get::<Peer>()
                .map_or_else(Address::default, |peer| peer.address),
            calls: self.calls.clone(),
            begun: Instant::now(),
            latency: None,
            code: Code::Cancelled,
        };
        MeasuredFuture {
            response: self.service.call(request),
            call: Some(call),
        }
    }
}

/// A call that has not ended. Dropping it ends it: with the code that was noted, or as cancelled by its client.
#[derive(Debug)]
struct Call {
    calls: Arc<Calls>,
    method: usize,
    peer: Address,
    begun: Instant,
    latency: Option<Duration>,
    code: Code,
}

impl Call {
    fn answered(&mut self) {
        let latency = self.begun.elapsed();
        self.latency = Some(latency);
        self.calls.answered(self.method, latency);
    }

    fn end(mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let latency = self.latency.unwrap_or_else(|| self.begun.elapsed());
        self.calls.ended(self.method, latency, self.code, self.peer);
    }
}

/// The code in headers or trailers.
fn code_in(headers: &HeaderMap) -> Option<Code> {
    let status = headers.get("grpc-status")?;
    Some(Code::from_bytes(status.as_bytes()))
}

pin_project! {
    /// A response that is awaited.
    pub(crate) struct MeasuredFuture<F> {
        #[pin]
        response: F,
        call: Option<Call>,
    }
}

impl<F, O, E> Future for MeasuredFuture<F>
where
    F: Future<Output = Result<Response<O>, E>>,
    O: Body,
{
    type Output = Result<Response<MeasuredBody<O>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = ready!(this.response.poll(context))?;
        let mut call = this.call.take();
        if let Some(call) = &mut call {
            call.answered();
        }
        let mut code = code_in(response.headers());
        // Without a code and without a body, no trailers can follow.
        if code.is_none() && response.body().is_end_stream() {
            code = Some(Code::Unknown);
        }
        if let Some(code) = code
            && let Some(call) = call.take()
        {
            call.end(code);
        }
        Poll::Ready(Ok(response.map(|body| MeasuredBody { body, call })))
    }
}

pin_project! {
    /// The body of a response, which knows the call until it has seen its code.
    pub(crate) struct MeasuredBody<B> {
        #[pin]
        body: B,
        call: Option<Call>,
    }
}

impl<B: Body> Body for MeasuredBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let polled = ready!(this.body.poll_frame(context));
        let code = match &polled {
            Some(Ok(frame)) => frame
                .trailers_ref()
                .map(|trailers| code_in(trailers).unwrap_or(Code::Unknown)),
            Some(Err(_)) | None => Some(Code::Unknown),
        };
        if let Some(code) = code
            && let Some(call) = this.call.take()
        {
            call.end(code);
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::io::Write;
    use std::sync::Mutex;

    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::measure::{CODES, CallLog, CallSums, Methods};

    const PUT: &str = "/duramen.v1.Maps/Put";
    const SUBSCRIBE: &str = "/duramen.v1.Topics/Subscribe";

    /// A body of given frames.
    struct Frames(VecDeque<Frame<&'static [u8]>>);

    impl Body for Frames {
        type Data = &'static [u8];
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<&'static [u8]>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(Ok))
        }

        fn is_end_stream(&self) -> bool {
            self.0.is_empty()
        }
    }

    fn status(code: Code) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-status", (code as i32).into());
        headers
    }

    fn calls(slow_call: Option<Duration>) -> Arc<Calls> {
        Arc::new(Calls::new(
            &Arc::new(Methods::of_server()),
            &Arc::new(CallLog::new(slow_call)),
        ))
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(future)
    }

    /// Sends a call whose response has these headers and frames.
    fn send(
        calls: &Arc<Calls>,
        path: &str,
        headers: HeaderMap,
        frames: Vec<Frame<&'static [u8]>>,
    ) -> MeasuredBody<Frames> {
        let mut response = Response::new(Frames(frames.into()));
        *response.headers_mut() = headers;
        let mut response = Some(response);
        let answer =
            service_fn(move |_: Request<()>| std::future::ready(Ok::<_, Infallible>(response.take().unwrap())));
        let request = Request::builder().uri(path).body(()).unwrap();
        run(MeasureLayer(calls.clone()).layer(answer).oneshot(request))
            .unwrap()
            .into_body()
    }

    fn next(body: &mut MeasuredBody<Frames>) -> Option<Frame<&'static [u8]>> {
        let polled = run(std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)));
        polled.map(Result::unwrap)
    }

    fn ended(calls: &Arc<Calls>, path: &str) -> Vec<(&'static str, u64)> {
        let sums = CallSums::of(std::slice::from_ref(calls), calls.methods().position(path));
        let counts = CODES.into_iter().zip(sums.by_code);
        counts.filter(|(_, count)| *count > 0).collect()
    }

    #[test]
    fn the_code_is_taken_from_trailers_and_the_frames_pass_unchanged() {
        let calls = calls(None);
        let frames = vec![Frame::data(&b"one"[..]), Frame::trailers(status(Code::NotFound))];
        let mut body = send(&calls, PUT, HeaderMap::new(), frames);
        assert!(!body.is_end_stream());
        assert_eq!(next(&mut body).unwrap().into_data().unwrap(), b"one");
        assert_eq!(ended(&calls, PUT), []);
        let trailers = next(&mut body).unwrap().into_trailers().unwrap();
        assert_eq!(trailers, status(Code::NotFound));
        assert!(body.is_end_stream());
        assert!(next(&mut body).is_none());
        drop(body);
        assert_eq!(ended(&calls, PUT), [("NOT_FOUND", 1)]);
        let latency = CallSums::of(std::slice::from_ref(&calls), calls.methods().position(PUT)).latency;
        assert_eq!(latency.count(), 1);
    }

    #[test]
    fn a_call_that_fails_at_once_has_its_code_in_the_headers() {
        let calls = calls(None);
        drop(send(&calls, PUT, status(Code::Unavailable), Vec::new()));
        assert_eq!(ended(&calls, PUT), [("UNAVAILABLE", 1)]);
        drop(send(&calls, "/a/b", status(Code::Unimplemented), Vec::new()));
        assert_eq!(ended(&calls, "/c/d"), [("UNIMPLEMENTED", 1)]);
    }

    #[test]
    fn a_call_that_its_client_gives_up_is_cancelled() {
        let calls = calls(None);
        let frames = vec![Frame::data(&b"one"[..]), Frame::data(&b"two"[..])];
        let mut body = send(&calls, SUBSCRIBE, HeaderMap::new(), frames);
        next(&mut body);
        drop(body);
        assert_eq!(ended(&calls, SUBSCRIBE), [("CANCELLED", 1)]);
        // Before its response.
        let never = service_fn(|_: Request<()>| std::future::pending::<Result<Response<Frames>, Infallible>>());
        let request = Request::builder().uri(PUT).body(()).unwrap();
        drop(MeasureLayer(calls.clone()).layer(never).call(request));
        assert_eq!(ended(&calls, PUT), [("CANCELLED", 1)]);
    }

    #[test]
    fn a_response_that_ends_without_a_code_is_unknown() {
        let calls = calls(None);
        let mut body = send(&calls, PUT, HeaderMap::new(), vec![Frame::data(&b"one"[..])]);
        while next(&mut body).is_some() {}
        drop(send(&calls, PUT, HeaderMap::new(), Vec::new()));
        drop(body);
        assert_eq!(ended(&calls, PUT), [("UNKNOWN", 2)]);
    }

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

    fn logged(body: impl FnOnce()) -> Vec<serde_json::Value> {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, body);
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn calls_that_fail_in_the_server_are_logged_once_a_second() {
        let calls = calls(None);
        let lines = logged(|| {
            for code in [Code::NotFound, Code::Internal, Code::DataLoss] {
                drop(send(&calls, SUBSCRIBE, status(code), Vec::new()));
            }
        });
        assert_eq!(lines.len(), 1, "{lines:?}");
        let fields = &lines[0]["fields"];
        assert_eq!(lines[0]["level"], "ERROR");
        assert_eq!(fields["message"], "call failed");
        assert_eq!(fields["method"], "duramen.v1.Topics/Subscribe");
        assert_eq!(fields["code"], "INTERNAL");
        assert_eq!(fields["peer"], "unknown");
    }

    #[test]
    fn a_slow_call_is_logged_unless_it_streams() {
        let calls = calls(Some(Duration::ZERO));
        let lines = logged(|| {
            for path in [SUBSCRIBE, PUT] {
                drop(send(&calls, path, status(Code::Ok), Vec::new()));
            }
        });
        assert_eq!(lines.len(), 1, "{lines:?}");
        let fields = &lines[0]["fields"];
        assert_eq!(fields["message"], "slow call");
        assert_eq!(fields["method"], "duramen.v1.Maps/Put");
        assert_eq!(fields["code"], "OK");
        assert!(fields["duration_ms"].is_f64());
    }
}
