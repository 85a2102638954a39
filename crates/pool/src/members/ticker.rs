//! Background thread that ticks a pool.

use cenote_mem::fork::ProcessStamp;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// A thread that beats until this is dropped.
pub struct Ticker {
    /// Dropping it ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    stamp: ProcessStamp,
}

impl Ticker {
    /// Calls `beat` every `pace`, the first time when that has passed, until it returns false.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn start(pace: Duration, mut beat: impl FnMut() -> bool + Send + 'static) -> std::io::Result<Self> {
        let (stop, stopped) = channel::<()>();
        let work = move || while stopped.recv_timeout(pace) == Err(RecvTimeoutError::Timeout) && beat() {};
        let thread = std::thread::Builder::new().name("cenote-ticker".to_owned()).spawn(work)?;
        Ok(Self { stop: Some(stop), thread: Some(thread), stamp: ProcessStamp::current() })
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        if self.stamp.is_inherited() {
            // A forked child has no such thread to stop or to wait for, and the thread may have
            // held the channel's lock.
            std::mem::forget((self.stop.take(), self.thread.take()));
            return;
        }
        drop(self.stop.take());
        // The thread may hold the pool last; a process that ended before it would not leave the
        // region in order.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
