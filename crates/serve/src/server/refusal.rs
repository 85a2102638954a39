//! Answers connections that are refused for lack of room.

use crate::openai::ApiError;
use crate::time::before;
use bytes::Bytes;
use cenote_base::Clock;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Most refused connections that get time to read their answer; others are closed at once.
const LINGERING_MAX: usize = 64;
/// That time.
const LINGER: Duration = Duration::from_secs(1);
/// Most bytes that are read and dropped from such a client: closing a socket with unread bytes
/// resets the connection, and the client would not see its answer.
const DISCARD_BYTES_MAX: usize = 64 << 10;

/// Refused connections that are not closed yet.
pub(super) struct Refusals {
    answer: Bytes,
    clock: Clock,
    lingering: JoinSet<()>,
}

impl Refusals {
    pub(super) fn new(connections_max: usize, clock: Clock) -> Self {
        let message = format!("all {connections_max} connections are busy; try again later");
        let body = ApiError::overloaded(message, 1).body().to_string();
        let answer = format!(
            "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
             retry-after: 1\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        Self { answer: answer.into(), clock, lingering: JoinSet::new() }
    }

    /// Answers and closes without waiting. Keeps a limited number of sockets.
    pub(super) fn refuse(&mut self, mut socket: TcpStream) {
        if self.lingering.len() >= LINGERING_MAX {
            // The send buffer of a new socket is empty, so the answer fits; if not, the client gets
            // none.
            let _ = socket.try_write(&self.answer);
            return;
        }
        let (answer, clock) = (self.answer.clone(), self.clock);
        self.lingering.spawn(async move {
            let mut scratch = [0; 1024];
            // A client that gets an answer before it has sent a request treats the connection as
            // broken.
            let _ = before(clock.after(LINGER), socket.peek(&mut scratch)).await;
            let _ = before(clock.after(LINGER), async {
                socket.write_all(&answer).await?;
                socket.shutdown().await?;
                let mut discarded = 0;
                while discarded <= DISCARD_BYTES_MAX {
                    match socket.read(&mut scratch).await? {
                        0 => break,
                        length => discarded += length,
                    }
                }
                io::Result::Ok(())
            })
            .await;
        });
    }

    /// Waits for one that has closed; forever if there is none.
    pub(super) async fn closed(&mut self) {
        if self.lingering.join_next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}
