//! `cenote worker`: one engine process behind the worker protocol, started by a front.

use crate::args::{RoleArg, WorkerArgs, WorkerSettings};
use cenote_base::Clock;
use cenote_console::args::EngineArgs;
use cenote_console::engine;
use cenote_console::failure::Failure;
use cenote_serve::{Grace, WorkerConfig, WorkerToken, parent_gone, run_worker};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

pub fn run(args: &WorkerArgs) -> Result<(), Failure> {
    let token = WorkerToken::from_environment()?;
    let WorkerSettings { engine: front, region, watch } = WorkerSettings::from_environment()?;
    let name = format!("{}-{}", if args.role == RoleArg::Prefill { "prefill" } else { "decode" }, args.index);
    // Workers of one front share one setting, so each appends its name to the file's.
    let swap_trace = front.swap_trace.clone().map(|path| {
        let mut path = path.into_os_string();
        path.push(format!(".{name}"));
        path.into()
    });
    let engine_args = EngineArgs { swap_trace, ..front };
    let running = engine::start(&engine_args, region.region.is_some().then_some(&region), &watch, &name)?;
    let config = WorkerConfig {
        grace: Grace { drain: Duration::from_secs(args.drain_timeout), ..Grace::default() },
        connections_max: args.max_connections,
        ..WorkerConfig::default()
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let engine = running.engine;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        // A terminal's Ctrl-C reaches the whole process group; the front ends its workers.
        let mut interrupt = signal(SignalKind::interrupt())?;
        // The front reads the file of tenants again and passes it on.
        let mut hangup = signal(SignalKind::hangup())?;
        let ignored = tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = hangup.recv() => {}
                }
            }
        });
        let ended = run_worker(engine, token, config, Clock::system(), async move {
            tokio::select! {
                _ = terminate.recv() => {}
                () = parent_gone() => {}
            }
        })
        .await;
        ignored.abort();
        ended
    })?;
    Ok(())
}
