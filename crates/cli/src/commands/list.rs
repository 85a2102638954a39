//! `cenote pool list`: the regions of this machine.

use crate::args::PoolListArgs;
use crate::inventory::{self, Found, State};
use cenote_base::units::ByteSize;
use cenote_console::failure::Failure;
use cenote_console::output::{self, table};
use cenote_mem::cpu;
use std::path::Path;
use std::process::ExitCode;

pub fn run(args: &PoolListArgs) -> Result<ExitCode, Failure> {
    let found = inventory::look(&cpu::probe(Path::new("/")));
    args.output.show(&found, || text(&found))?;
    if found.iter().any(|one| one.state == State::Orphan) {
        output::hint("the next command that makes or joins a region removes the orphans");
    }
    Ok(ExitCode::SUCCESS)
}

fn text(found: &[Found]) -> String {
    if found.is_empty() {
        return "no region that this user can read on this machine; `cenote pool create` makes one".to_owned();
    }
    let mut rows = table(&["region", "size", "memory", "blocks", "state", "used by"]);
    for one in found {
        let users: Vec<String> = one.users.iter().map(|user| format!("{} ({})", user.name, user.pid)).collect();
        rows.add_row([
            one.region.clone(),
            ByteSize(one.bytes).to_string(),
            one.memory_bytes.map_or_else(String::new, |bytes| ByteSize(bytes).to_string()),
            one.blocks.map_or_else(String::new, |blocks| blocks.to_string()),
            one.state.text().to_owned(),
            users.join(", "),
        ]);
    }
    rows.to_string()
}
