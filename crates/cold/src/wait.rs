//! Waits of this crate's runtimes, by the tier's clock.

use cenote_base::Deadline;
use std::pin::pin;
use tokio::runtime::{Builder, Runtime};

/// Threads that wait for sockets. They may be dropped in another runtime's task, where a [`Runtime`] panics.
pub struct Threads(Option<Runtime>);

impl Threads {
    /// Starts two threads with this name.
    ///
    /// # Errors
    /// They cannot be started.
    pub fn start(name: &str) -> std::io::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(2).thread_name(name).enable_all().build()?;
        Ok(Self(Some(runtime)))
    }

    /// Does work here, with their help.
    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.0.as_ref().expect("it is there until the drop").block_on(work)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.0.take().expect("it is dropped once").shutdown_background();
    }
}

/// Work's result; `None` if it is not there when the deadline passes.
pub async fn until<T>(deadline: Deadline, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    loop {
        match tokio::time::timeout(deadline.block_for(), &mut work).await {
            Ok(done) => return Some(done),
            Err(_) if deadline.passed() => return None,
            Err(_) => {}
        }
    }
}
