//! `cenote pool share`: lets other hosts read a region.

use super::serve::cannot_listen;
use crate::args::PoolShareArgs;
use cenote_base::Clock;
use cenote_console::failure::Failure;
use cenote_console::signals::EndSignals;
use cenote_console::{output, peers};
use cenote_reach::{Key, Share};
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Pause between looks for readers, and between looks at the region's name.
const PAUSE: Duration = Duration::from_millis(10);
const FOLLOW_PAUSE: Duration = Duration::from_millis(500);

/// What happened to a reader.
type Heard = dyn Fn(SocketAddr, std::io::Result<()>) + Send + Sync;

pub fn run(args: &PoolShareArgs) -> Result<ExitCode, Failure> {
    let pauses = EndSignals::catch()?.into_pauses();
    let source = args.region.source()?;
    let (key, nixl) = (Key::from_file(&args.key_file)?, peers::nixl(args.nixl.as_deref())?);
    let listener = TcpListener::bind(args.listen)
        .map_err(|error| cannot_listen(args.listen, ["--listen", "port of --listen"], &error))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let clock = Clock::system();
    let share = Arc::new(Share::new(source.clone(), nixl, key, clock));
    let mut told = String::new();
    let mut follow = || {
        let now = match share.follow() {
            Ok(offer) => format!("{source}: shared at {address} (registration {})", offer.registration),
            Err(error) => format!("{source}: not shared: {error}"),
        };
        if now != told {
            output::say(&now);
            told = now;
        }
    };
    follow();
    output::print(&address.to_string())?;
    let heard: Arc<Heard> = Arc::new(|from, outcome| match outcome {
        Ok(()) => tracing::info!(%from, "a reader was told where the region is"),
        Err(error) => tracing::warn!(%from, %error, "a reader was refused"),
    });
    let mut next = clock.after(FOLLOW_PAUSE);
    share.serve(&listener, &heard, || {
        if next.passed() {
            follow();
            next = clock.after(FOLLOW_PAUSE);
        }
        pauses.pause(PAUSE)
    });
    Ok(ExitCode::SUCCESS)
}
