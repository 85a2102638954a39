//! Write deadlines: a client that stops reading is disconnected, so that it does not occupy its
//! connection and its answer forever.

use crate::time::{Wait, sleep_until};
use cenote_base::Clock;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Fails a write that has made no progress for the timeout.
pub(super) struct StallGuard<S> {
    socket: S,
    timeout: Duration,
    clock: Clock,
    /// Runs while a write waits.
    stalled: Option<Wait>,
}

impl<S> StallGuard<S> {
    pub(super) const fn new(socket: S, timeout: Duration, clock: Clock) -> Self {
        Self { socket, timeout, clock, stalled: None }
    }

    /// Passes a write's result on, and starts, stops or checks the timer.
    fn watch<T>(&mut self, result: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.stalled = None;
            return result;
        }
        let (timeout, clock) = (self.timeout, self.clock);
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep_until(clock.after(timeout))));
        stalled.as_mut().poll(context).map(|()| {
            let message = format!("the client has read nothing for {} s", timeout.as_secs_f64());
            Err(io::Error::new(io::ErrorKind::TimedOut, message))
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.watch(result, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.socket).poll_write_vectored(context, slices);
        self.watch(result, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.socket).poll_flush(context);
        self.watch(result, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.socket).poll_shutdown(context);
        self.watch(result, context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::testing::ManualTime;
    use futures::poll;
    use std::pin::pin;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_reader_that_stops_fails_the_write_and_a_slow_one_does_not() {
        let time = ManualTime::start();
        let (near, mut far) = tokio::io::duplex(8);
        let mut guarded = StallGuard::new(near, TIMEOUT, time.clock());
        {
            let mut write = pin!(guarded.write_all(&[7; 64]));
            let mut bytes = [0; 8];
            // Every read comes just before the timeout; together they take seven times as long.
            for _ in 0..7 {
                assert!(poll!(&mut write).is_pending());
                time.advance(TIMEOUT - Duration::from_nanos(1));
                assert!(poll!(&mut write).is_pending());
                far.read_exact(&mut bytes).await.expect("it is written");
                assert_eq!(bytes, [7; 8]);
            }
            write.await.expect("the last bytes fit");
        }
        let mut write = pin!(guarded.write_all(&[0; 64]));
        assert!(poll!(&mut write).is_pending());
        time.advance(TIMEOUT);
        let error = write.await.expect_err("the peer reads nothing");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
