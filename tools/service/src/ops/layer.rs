//! Counts and times every call without the methods' taking part.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tower::{Layer, Service};

use super::calls::Calls;

/// Header, or trailer, of a failed call.
const KIND: &str = "spoc-error-kind";

/// A layer that counts into [`Calls`].
#[derive(Clone, Debug)]
pub struct CountCalls(pub Arc<Calls>);

impl<S> Layer<S> for CountCalls {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, calls: Arc::clone(&self.0) }
    }
}

/// A service whose calls are counted.
#[derive(Clone, Debug)]
pub struct Counted<S> {
    inner: S,
    calls: Arc<Calls>,
}

impl<S, Q, A> Service<http::Request<Q>> for Counted<S>
where
    S: Service<http::Request<Q>, Response = http::Response<A>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Counting<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Q>) -> Self::Future {
        let uri = request.uri().clone();
        Counting {
            inner: self.inner.call(request),
            calls: Arc::clone(&self.calls),
            uri,
            began: Instant::now(),
        }
    }
}

pin_project_lite::pin_project! {
    /// A call under way.
    pub struct Counting<F> {
        #[pin]
        inner: F,
        calls: Arc<Calls>,
        uri: http::Uri,
        began: Instant,
    }
}

impl<F, A, E> Future for Counting<F>
where
    F: Future<Output = Result<http::Response<A>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let answer = ready!(this.inner.poll(context));
        let kind = match &answer {
            Ok(response) => failure(response.headers()),
            Err(_) => Some("transport"),
        };
        this.calls.count(this.uri.path(), kind, this.began.elapsed());
        Poll::Ready(answer)
    }
}

/// The kind of a call that failed before its first message: gRPC then puts its trailers where headers stand.
fn failure(headers: &http::HeaderMap) -> Option<&str> {
    let status = headers.get("grpc-status")?;
    if status.as_bytes() == b"0" {
        return None;
    }
    Some(headers.get(KIND).and_then(|kind| kind.to_str().ok()).unwrap_or("transport"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_read_from_the_headers() {
        let headers = |pairs: &[(&'static str, &'static str)]| {
            pairs
                .iter()
                .map(|(name, value)| {
                    (http::HeaderName::from_static(name), http::HeaderValue::from_static(value))
                })
                .collect::<http::HeaderMap>()
        };
        assert_eq!(failure(&headers(&[])), None);
        assert_eq!(failure(&headers(&[("grpc-status", "0")])), None);
        assert_eq!(failure(&headers(&[("grpc-status", "5"), (KIND, "not_resident")])), Some("not_resident"));
        assert_eq!(failure(&headers(&[("grpc-status", "12")])), Some("transport"));
    }
}
