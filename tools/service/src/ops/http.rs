//! `/metrics`, `/healthz` and `/readyz`, on loopback or a Unix socket.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use spoc_page::remove_leftover_socket;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;

use super::metrics::{Metrics, OPENMETRICS_TYPE, PLAIN_TYPE};
use super::observe::Observe;

/// Where operations are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A loopback address: these pages have no access control of their own.
    Loopback(SocketAddr),
    /// A Unix socket, made with mode 0660.
    Socket(PathBuf),
}

impl std::str::FromStr for Address {
    type Err = String;

    /// `127.0.0.1:9464`, `[::1]:9464` or `unix:/run/spoc/ops.sock`.
    fn from_str(text: &str) -> Result<Address, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            if !path.starts_with('/') {
                return Err(format!("{text}: a socket wants an absolute path, as unix:/run/spoc/ops.sock"));
            }
            return Ok(Address::Socket(PathBuf::from(path)));
        }
        let address: SocketAddr = text.parse().map_err(|_| {
            format!("{text}: an address with a port is expected, as 127.0.0.1:9464, or unix:/path")
        })?;
        if !address.ip().is_loopback() {
            return Err(format!(
                "{text}: only loopback, as 127.0.0.1:{}; it has no access control",
                address.port()
            ));
        }
        Ok(Address::Loopback(address))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Loopback(address) => write!(f, "{address}"),
            Address::Socket(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// What the pages are made of.
#[derive(Clone)]
struct Pages {
    metrics: Arc<Metrics>,
    service: Arc<dyn Observe>,
}

/// A bound listener, not serving yet.
#[derive(Debug)]
pub enum Bound {
    /// On loopback.
    Tcp(TcpListener),
    /// On a Unix socket; its file goes when serving ends.
    Unix(UnixListener, PathBuf),
}

impl Bound {
    /// Binds. A socket file that nobody listens on is replaced.
    ///
    /// # Errors
    /// The address is taken or not to be had; the message names it.
    pub async fn new(address: &Address) -> io::Result<Bound> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
        match address {
            Address::Loopback(address) => TcpListener::bind(address).await.map(Bound::Tcp).map_err(named),
            Address::Socket(path) => {
                remove_leftover_socket(path, |path| std::os::unix::net::UnixStream::connect(path).is_ok())
                    .map_err(named)?;
                let listener = UnixListener::bind(path).map_err(named)?;
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660)).map_err(named)?;
                Ok(Bound::Unix(listener, path.clone()))
            }
        }
    }

    /// The address with the port that was given, for a port of 0.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn address(&self) -> io::Result<Address> {
        match self {
            Bound::Tcp(listener) => listener.local_addr().map(Address::Loopback),
            Bound::Unix(_, path) => Ok(Address::Socket(path.clone())),
        }
    }

    /// Serves until `stop` is true or its sender is gone.
    ///
    /// # Errors
    /// The listener failed.
    pub async fn serve(
        self,
        metrics: Metrics,
        service: Arc<dyn Observe>,
        mut stop: watch::Receiver<bool>,
    ) -> io::Result<()> {
        let pages = Pages { metrics: Arc::new(metrics), service };
        let router = Router::new()
            .route("/metrics", get(metrics_page))
            .route("/healthz", get(health_page))
            .route("/readyz", get(ready_page))
            .with_state(pages);
        let stopped = async move {
            let _ = stop.wait_for(|stop| *stop).await;
        };
        match self {
            Bound::Tcp(listener) => axum::serve(listener, router).with_graceful_shutdown(stopped).await,
            Bound::Unix(listener, path) => {
                let served = axum::serve(listener, router).with_graceful_shutdown(stopped).await;
                let _ = std::fs::remove_file(path);
                served
            }
        }
    }
}

async fn metrics_page(State(pages): State<Pages>, headers: HeaderMap) -> Response {
    let accepts = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let is_open = accepts.contains("application/openmetrics-text");
    // A scrape takes locks that a load may hold for a moment.
    let made = tokio::task::spawn_blocking(move || {
        if is_open { pages.metrics.openmetrics() } else { pages.metrics.plain() }
    });
    match made.await {
        Ok(Ok(text)) => {
            let kind = if is_open { OPENMETRICS_TYPE } else { PLAIN_TYPE };
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be written\n").into_response(),
    }
}

async fn health_page(State(pages): State<Pages>) -> Response {
    verdict(pages, |service| service.live()).await
}

async fn ready_page(State(pages): State<Pages>) -> Response {
    verdict(pages, |service| service.ready()).await
}

async fn verdict(pages: Pages, ask: fn(&dyn Observe) -> Result<(), String>) -> Response {
    let said = tokio::task::spawn_blocking(move || ask(&*pages.service)).await;
    match said {
        Ok(Ok(())) => "ok\n".into_response(),
        Ok(Err(why)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "no answer\n").into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::calls::Calls;
    use super::super::observe::Observed;
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    struct Draining;

    impl Observe for Draining {
        fn observe(&self) -> Observed {
            Observed { is_draining: true, ..Observed::default() }
        }
        fn ready(&self) -> Result<(), String> {
            Err("draining".into())
        }
        fn live(&self) -> Result<(), String> {
            Ok(())
        }
    }

    async fn get(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin, path: &str, accept: &str) -> String {
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: x\r\naccept: {accept}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answered");
        answer
    }

    fn parts() -> (Metrics, Arc<dyn Observe>) {
        let service: Arc<dyn Observe> = Arc::new(Draining);
        (Metrics::new(Arc::clone(&service), Arc::new(Calls::new(&[]))), service)
    }

    #[test]
    fn only_loopback_and_absolute_sockets() {
        let parse = |text: &str| text.parse::<Address>();
        for good in ["127.0.0.1:0", "[::1]:9464", "unix:/run/x"] {
            assert_eq!(parse(good).map(|address| address.to_string()), Ok(good.to_owned()));
        }
        for bad in ["0.0.0.0:9464", "192.168.1.1:1", "9464", "localhost:1", "unix:x", ""] {
            assert!(parse(bad).is_err_and(|why| why.starts_with(bad)), "{bad}");
        }
    }

    #[tokio::test]
    async fn the_pages_over_tcp_and_over_a_socket() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("ops.sock");
        let (stop, stopped) = watch::channel(false);
        let tcp = Bound::new(&"127.0.0.1:0".parse().expect("address")).await.expect("bound");
        let Ok(Address::Loopback(address)) = tcp.address() else { panic!("an address") };
        let unix = Bound::new(&Address::Socket(path.clone())).await.expect("bound");
        let (metrics, service) = parts();
        let first = tokio::spawn(tcp.serve(metrics, service, stopped.clone()));
        let (metrics, service) = parts();
        let second = tokio::spawn(unix.serve(metrics, service, stopped));
        let connect = || async { tokio::net::TcpStream::connect(address).await.expect("connected") };
        let answer = get(connect().await, "/healthz", "*/*").await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"), "{answer}");
        let answer = get(connect().await, "/readyz", "*/*").await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.ends_with("draining\n"), "{answer}");
        let answer = get(connect().await, "/metrics", "*/*").await;
        assert!(answer.contains(PLAIN_TYPE) && answer.contains("spoc_draining 1"), "{answer}");
        assert!(get(connect().await, "/else", "*/*").await.starts_with("HTTP/1.1 404"));
        let socket = tokio::net::UnixStream::connect(&path).await.expect("connected");
        let answer = get(socket, "/metrics", "application/openmetrics-text").await;
        assert!(answer.contains(OPENMETRICS_TYPE) && answer.contains("# EOF"), "{answer}");
        let taken = Bound::new(&Address::Socket(path.clone())).await.expect_err("taken");
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        stop.send(true).expect("somebody serves");
        first.await.expect("no panic").expect("served");
        second.await.expect("no panic").expect("served");
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_file_is_not() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("ops.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
        assert!(path.exists());
        drop(Bound::new(&Address::Socket(path.clone())).await.expect("replaced"));
        let file = folder.path().join("file");
        std::fs::write(&file, b"x").expect("written");
        let refused = Bound::new(&Address::Socket(file.clone())).await.expect_err("no socket");
        assert!(refused.to_string().contains("no socket") && file.exists(), "{refused}");
    }
}
