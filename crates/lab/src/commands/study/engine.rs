//! `cenote-lab study engine`: the same requests at the same times through the reference engine and
//! through the simulator.

use super::compared::{self, Load, Row, simulated};
use super::real::{measured, setup_of};
use crate::args::StudyEngineArgs;
use crate::commands::live::{LIVE_REGION_BYTES, Live};
use crate::commands::sim::{calibrate::Timed, calibration};
use cenote_console::failure::Failure;
use cenote_console::output;
use cenote_console::region::TemporaryRegion;
use cenote_console::region::own_region_bytes;

pub fn run(args: &StudyEngineArgs) -> Result<(), Failure> {
    compared::check(&args.load)?;
    let region = TemporaryRegion::until_signal("study", own_region_bytes().min(LIVE_REGION_BYTES))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let rows = runtime.block_on(async {
        let mut rows = Vec::new();
        for repeat in 0..args.load.repeats {
            let mut live = Live::start(&args.engine, &region).await?;
            let compared = compare(args, &mut live, args.load.seed + u64::from(repeat)).await;
            live.end().await;
            rows.extend(compared?);
        }
        Ok::<_, Failure>(rows)
    })?;
    compared::show(&args.load, rows, &args.output)
}

async fn compare(args: &StudyEngineArgs, live: &mut Live, seed: u64) -> Result<Vec<Row>, Failure> {
    let given = args.calibration.as_deref().map(calibration).transpose()?;
    let mut timed = Timed::default();
    if given.is_none() {
        timed.more(live).await?;
    }
    let before = given.clone().unwrap_or_else(|| timed.fit(live));
    let loads = compared::loads(&args.load, seed, |load| simulated(&setup_of(live, &before), load))?;
    let mut served = Vec::new();
    for Load { name, requests } in loads {
        let bar = output::progress("serving", u64::from(args.load.requests));
        let answers = live.replay(&requests, &|| bar.inc(1)).await?;
        bar.finish_and_clear();
        live.take_steps();
        served.push((name, measured(&requests, &answers), requests));
    }
    // Calibrate before and after, because a shared machine's speed changes within a minute.
    if given.is_none() {
        timed.more(live).await?;
    }
    let fitted = given.unwrap_or_else(|| timed.fit(live));
    let setup = setup_of(live, &fitted);
    served
        .into_iter()
        .map(|(name, real, load)| Ok(Row::new(name, &real, &simulated(&setup, &load)?, fitted.mean_error)))
        .collect()
}
