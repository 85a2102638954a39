//! `cenote pool share`: lets other hosts read a region. This process has the key and answers readers. Another one
//! holds the memory ([`keeper`]), because over some transports a peer reaches all memory of that process.

mod confine;
mod holder;
mod keeper;

pub use holder::run as run_holder;

use super::serve::cannot_listen;
use crate::args::PoolShareArgs;
use cenote_base::Clock;
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_console::signals::EndSignals;
use cenote_reach::{Key, Share};
use keeper::{Keeper, News};
use rustix::process::DumpableBehavior;
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Pause between looks for readers.
const PAUSE: Duration = Duration::from_millis(10);

/// What happened to a reader.
type Heard = dyn Fn(SocketAddr, std::io::Result<()>) + Send + Sync;

pub fn run(args: &PoolShareArgs) -> Result<ExitCode, Failure> {
    let pauses = EndSignals::catch()?.into_pauses();
    let (source, clock) = (args.region.source()?, Clock::system());
    // Processes of this user can neither read the key in this one's memory nor change it.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let key = Key::from_file(&args.key_file)?;
    let listener = TcpListener::bind(args.listen)
        .map_err(|error| cannot_listen(args.listen, ["--listen", "port of --listen"], &error))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let share = Arc::new(Share::new(key, clock));
    let mut keeper = Keeper::start(args, clock)?;
    let tell = |news: &News| {
        share.set(if let News::Registered(registration) = news { Some(registration) } else { None });
        output::say(&match news {
            News::Registered(registration) => {
                format!("{source}: shared at {address} (registration {})", registration.registration)
            }
            News::None(reason) => format!("{source}: not shared: {reason}"),
            News::Ended(how) => format!("{source}: not shared: the process with its memory ended ({how})"),
        });
    };
    // Readers that come at once are told of the region.
    let first = loop {
        let news = keeper.news();
        if !news.is_empty() {
            break news;
        }
        if !pauses.pause(PAUSE) {
            return Ok(ExitCode::SUCCESS);
        }
    };
    if let Some(News::Ended(how)) = first.first() {
        return Err(Failure::new(format!("the process for the region's memory ended at once ({how})")));
    }
    first.iter().for_each(tell);
    output::print(&address.to_string())?;
    let heard: Arc<Heard> = Arc::new(|from, outcome| match outcome {
        Ok(()) => tracing::info!(%from, "a reader was told where the region is"),
        Err(error) => tracing::warn!(%from, %error, "a reader was refused"),
    });
    share.serve(&listener, &heard, || {
        keeper.news().iter().for_each(tell);
        pauses.pause(PAUSE)
    });
    Ok(ExitCode::SUCCESS)
}
