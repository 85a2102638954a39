//! SIGINT and SIGTERM for commands that are not asynchronous.

use crate::failure::Failure;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals are caught from the creation of this value on, so that none is lost before the resource
/// that it would remove exists.
pub struct EndSignals {
    runtime: Runtime,
    interrupt: Signal,
    terminate: Signal,
}

impl EndSignals {
    /// Catches SIGINT and SIGTERM from now on.
    ///
    /// # Errors
    /// The handlers cannot be installed.
    pub fn catch() -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let context = runtime.enter();
        let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        drop(context);
        Ok(Self { runtime, interrupt, terminate })
    }

    /// On the first signal, runs `act` on a thread of its own with the exit code of shells for it:
    /// 128 and the signal's number.
    pub fn then(mut self, act: impl FnOnce(u8) + Send + 'static) {
        std::thread::spawn(move || {
            let code = self.runtime.block_on(async {
                tokio::select! {
                    _ = self.interrupt.recv() => 130,
                    _ = self.terminate.recv() => 143,
                }
            });
            act(code);
        });
    }
}
