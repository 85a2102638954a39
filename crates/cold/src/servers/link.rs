//! Connections to a server or to the nodes of a cluster: answers have a bound.
//!
//! The client library parses answers and follows a cluster's slots. It keeps whatever a server sends, and
//! a connection whose request was given up goes on reading. So streams are opened here: each request
//! grants the bytes that its answer may have, a stream with more than was granted fails, and a request
//! that ends without an answer ends its connection.

use crate::address::{Address, Listener};
use crate::wait::until;
use cenote_base::Deadline;
use futures::FutureExt;
use futures::future::join_all;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::{ClusterConnection, Connect};
use redis::{
    Arg, AsyncConnectionConfig, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, FromRedisValue, IntoConnectionInfo,
    Pipeline, ProtocolVersion, RedisError, RedisFuture, RedisResult, Value,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Longest time until a node of a cluster is connected. A single server has the deadline of its request.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time for an answer of a cluster's node, after which its connection ends.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Tries after a redirection or a lost connection, and the milliseconds between them.
const RETRIES: u32 = 3;
const RETRY_MS: (u64, u64) = (10, 100);
/// Bytes of an answer that has no block: a number, an error, a handshake.
const LINE_MAX: i64 = 4 << 10;
/// Bytes of a cluster's list of slots.
const SLOTS_MAX: i64 = 4 << 20;

/// A way to the server.
#[derive(Clone)]
pub enum Link {
    One(Node),
    Cluster(ClusterConnection<Node>),
}

/// Hosts with their credentials, resolved once: another thread may change the environment.
pub struct Access {
    infos: Vec<ConnectionInfo>,
    is_cluster: bool,
}

impl Access {
    /// Takes what the address lacks from the environment, and the certificates that this machine trusts.
    pub fn of(address: &Address) -> RedisResult<Self> {
        if address.has_tls {
            LazyLock::force(&TRUSTED);
        }
        Ok(Self { infos: infos(address)?, is_cluster: address.is_cluster })
    }
}

impl Link {
    /// Connects. Nothing bounds the time here, but for nodes of a cluster.
    pub async fn open(access: &Access) -> RedisResult<Self> {
        let infos = access.infos.clone();
        if !access.is_cluster {
            let info = infos.into_iter().next().ok_or_else(|| client_error("no host"))?;
            return Ok(Self::One(Node::connect(info, AsyncConnectionConfig::new().set_response_timeout(None)).await?));
        }
        let client = ClusterClient::builder(infos)
            .connection_timeout(CONNECT_TIMEOUT)
            .response_timeout(ANSWER_TIMEOUT)
            .overall_response_timeout(None)
            .retries(RETRIES)
            .min_retry_wait(RETRY_MS.0)
            .max_retry_wait(RETRY_MS.1)
            .build()?;
        Ok(Self::Cluster(client.get_async_generic_connection().await?))
    }

    /// Sends a command. Those of clones share connections, and do not wait for each other.
    pub async fn call<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        match self.clone() {
            Self::One(mut node) => command.query_async(&mut node).await,
            Self::Cluster(mut cluster) => command.query_async(&mut cluster).await,
        }
    }

    /// Sends commands at once. Those that a cluster's node does not answer until `end` fail alone; a single
    /// server answers all or none.
    pub async fn call_all<T: FromRedisValue>(&self, commands: &[Cmd], end: Deadline) -> Vec<RedisResult<T>> {
        let one = async |command| match self {
            Self::One(_) => self.call(command).await,
            Self::Cluster(_) => {
                let silence = || Err(io::Error::from(io::ErrorKind::TimedOut).into());
                until(end, self.call(command)).await.unwrap_or_else(silence)
            }
        };
        join_all(commands.iter().map(one)).await
    }
}

/// The hosts of an address, with what they share.
fn infos(address: &Address) -> RedisResult<Vec<ConnectionInfo>> {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let user = address.user.clone().or_else(|| variable("REDIS_USERNAME"));
    let password = address.password.clone().or_else(|| variable("REDIS_PASSWORD"));
    let listeners: Vec<ConnectionAddr> = match &address.listener {
        Listener::Unix(path) => vec![ConnectionAddr::Unix(path.clone())],
        Listener::Hosts(hosts) => hosts.iter().cloned().map(|(host, port)| addr(host, port, address.has_tls)).collect(),
    };
    let with_settings = |listener: ConnectionAddr| {
        let info = listener.into_connection_info()?;
        let mut settings =
            info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2).set_db(address.database.into());
        if let Some(user) = &user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &password {
            settings = settings.set_password(password);
        }
        Ok(info.set_redis_settings(settings))
    };
    listeners.into_iter().map(with_settings).collect()
}

fn addr(host: String, port: u16, has_tls: bool) -> ConnectionAddr {
    if has_tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    }
}

fn client_error(what: &'static str) -> RedisError {
    RedisError::from((ErrorKind::InvalidClientConfig, what))
}

/// A connection to one server.
#[derive(Clone)]
pub struct Node {
    connection: MultiplexedConnection,
    budget: Arc<Budget>,
    reader: Arc<Reader>,
}

/// The task that reads a connection; it ends with the last clone of its [`Node`].
struct Reader(AbortHandle);

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Bytes that a server may still send.
struct Budget(AtomicI64);

impl Node {
    async fn connect(info: ConnectionInfo, config: AsyncConnectionConfig) -> RedisResult<Self> {
        let stream = stream(info.addr()).await?;
        // The handshake: a few short answers.
        let budget = Arc::new(Budget(AtomicI64::new(4 * LINE_MAX)));
        let stream = Bounded { stream, budget: Arc::clone(&budget) };
        let (connection, work) = MultiplexedConnection::new_with_config(info.redis_settings(), stream, config).await?;
        let reader = Arc::new(Reader(tokio::spawn(work).abort_handle()));
        budget.0.store(0, Relaxed);
        Ok(Self { connection, budget, reader })
    }

    /// Waits for an answer within the bytes that its request grants. A request that is given up, or has no
    /// answer, ends the connection.
    async fn answered<T>(
        &self,
        grant: i64,
        answer: impl Future<Output = RedisResult<T>>,
        bytes: impl Fn(&T) -> i64,
    ) -> RedisResult<T> {
        self.budget.0.fetch_add(grant, Relaxed);
        let unanswered = EndsReader(Some(&self.reader));
        let answer = answer.await;
        let used = match &answer {
            Ok(answer) => Some(bytes(answer)),
            Err(error) => error.code().map(|code| error_bytes(code, error.detail())),
        };
        if let Some(used) = used {
            self.budget.0.fetch_sub(grant - used, Relaxed);
            unanswered.keep();
        }
        answer
    }
}

/// Ends a connection when it is dropped.
struct EndsReader<'a>(Option<&'a Reader>);

impl EndsReader<'_> {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for EndsReader<'_> {
    fn drop(&mut self) {
        if let Some(reader) = self.0 {
            reader.0.abort();
        }
    }
}

impl ConnectionLike for Node {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        async move {
            let mut connection = self.connection.clone();
            self.answered(grant_of(command), connection.send_packed_command(command), value_bytes).await
        }
        .boxed()
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        async move {
            let mut connection = self.connection.clone();
            let grant = pipeline.cmd_iter().map(grant_of).sum();
            let all = |values: &Vec<Value>| values.iter().map(value_bytes).sum();
            self.answered(grant, connection.send_packed_commands(pipeline, offset, count), all).await
        }
        .boxed()
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }
}

impl Connect for Node {
    fn connect_with_config<'a, T>(info: T, config: AsyncConnectionConfig) -> RedisFuture<'a, Self>
    where
        T: IntoConnectionInfo + Send + 'a,
    {
        async move {
            let connected = Self::connect(info.into_connection_info()?, config);
            tokio::time::timeout(CONNECT_TIMEOUT, connected)
                .await
                .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
        }
        .boxed()
    }
}

/// Most bytes of a command's answer.
fn grant_of(command: &Cmd) -> i64 {
    let mut arguments = command.args_iter().filter_map(|argument| match argument {
        Arg::Simple(bytes) => Some(bytes),
        _ => None,
    });
    match arguments.next() {
        Some(b"GETRANGE") => {
            let last = arguments.last().and_then(|end| std::str::from_utf8(end).ok()?.parse::<i64>().ok());
            last.unwrap_or(0).saturating_add(LINE_MAX)
        }
        Some(name) if name.eq_ignore_ascii_case(b"CLUSTER") => SLOTS_MAX,
        _ => LINE_MAX,
    }
}

/// Bytes of an answer as servers write it.
fn value_bytes(value: &Value) -> i64 {
    let line = |length: usize| length as i64 + 3;
    match value {
        Value::Nil => 5,
        Value::Okay => 5,
        Value::Int(number) => line(number.to_string().len()),
        Value::BulkString(bytes) => line(bytes.len().to_string().len()) + bytes.len() as i64 + 2,
        Value::SimpleString(text) => line(text.len()),
        Value::Array(values) => line(values.len().to_string().len()) + values.iter().map(value_bytes).sum::<i64>(),
        Value::ServerError(error) => error_bytes(error.code(), error.details()),
        // Not of this version of the protocol.
        _ => 0,
    }
}

fn error_bytes(code: &str, detail: Option<&str>) -> i64 {
    (code.len() + detail.map_or(0, |detail| detail.len() + 1)) as i64 + 3
}

/// A stream that reads no more than was granted.
struct Bounded<S> {
    stream: S,
    budget: Arc<Budget>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        let read = (buffer.filled().len() - before) as i64;
        if self.budget.0.fetch_sub(read, Relaxed) < read {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "it sends more than was asked for")));
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

async fn stream(addr: &ConnectionAddr) -> io::Result<Box<dyn Stream>> {
    match addr {
        ConnectionAddr::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
        ConnectionAddr::Tcp(host, port) => Ok(Box::new(tcp(host, *port).await?)),
        ConnectionAddr::TcpTls { host, port, .. } => {
            Ok(Box::new(secured(tcp(host, *port).await?, host, Arc::clone(&TRUSTED)).await?))
        }
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Certificates that this machine trusts, or those that `SSL_CERT_FILE` names.
static TRUSTED: LazyLock<Arc<RootCertStore>> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    Arc::new(roots)
});

/// TLS to a host of this name.
async fn secured(stream: TcpStream, host: &str, roots: Arc<RootCertStore>) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(io::Error::other)?;
    let config = builder.with_root_certificates(roots).with_no_client_auth();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::ServerConfig;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    const CERTIFICATE: &[u8] = include_bytes!("../../tests/fixtures/localhost.cert.der");
    const KEY: &[u8] = include_bytes!("../../tests/fixtures/localhost.key.der");

    /// Connects to a TLS server named `localhost` that repeats what it is sent, and returns what it repeats.
    async fn repeated(host: &str, roots: Arc<RootCertStore>) -> io::Result<[u8; 4]> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let key = PrivateKeyDer::try_from(KEY.to_vec()).expect("a key");
        let config = builder.expect("its versions").with_no_client_auth();
        let config = config.with_single_cert(vec![CertificateDer::from(CERTIFICATE)], key).expect("a pair");
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        tokio::spawn(async move {
            let (socket, _) = listener.accept().await?;
            let mut stream = TlsAcceptor::from(Arc::new(config)).accept(socket).await?;
            let mut bytes = [0; 4];
            stream.read_exact(&mut bytes).await?;
            stream.write_all(&bytes).await?;
            stream.flush().await
        });
        let mut stream = secured(tcp("127.0.0.1", port).await?, host, roots).await?;
        stream.write_all(b"PING").await?;
        stream.flush().await?;
        let mut bytes = [0; 4];
        stream.read_exact(&mut bytes).await?;
        Ok(bytes)
    }

    #[tokio::test]
    async fn tls_needs_a_trusted_certificate_of_the_host() {
        let own = || {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from(CERTIFICATE)).expect("a certificate");
            Arc::new(roots)
        };
        assert_eq!(&repeated("localhost", own()).await.expect("it is trusted"), b"PING");
        assert_eq!(&repeated("127.0.0.1", own()).await.expect("it is trusted"), b"PING");
        assert!(repeated("cache.example", own()).await.is_err(), "another host's certificate");
        assert!(repeated("localhost", Arc::clone(&TRUSTED)).await.is_err(), "one that this machine does not trust");
    }
}
