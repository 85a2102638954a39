//! Pictures of `top` on terminals of several sizes, and what keys change.

use super::input::Action;
use super::panels::Panel;
use super::picture_of;
use super::state::State;
use crate::findings::Finding;
use crate::gauges::Look;
use crate::observer::Observed;
use crate::rates::Rates;
use crate::snapshot::Snapshot;
use cenote_base::NamespaceId;
use cenote_console::failure::Failure;
use cenote_pool::{Counter, Event as Recorded, HostInfo, NamespaceInfo, PoolInfo, Record, WorkerInfo};
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers};
use std::sync::Arc;
use std::time::Duration;

fn model(row: u16, name: &str, blocks: u64) -> NamespaceInfo {
    NamespaceInfo {
        id: NamespaceId(row),
        label: name.to_owned(),
        fingerprint: format!("{row:064x}"),
        block_bytes: 64 << 10,
        block_tokens: 16,
        num_layers: 2,
        blocks,
        bytes: blocks << 16,
        new_bytes: 0,
        used_bytes: blocks << 16,
        quota_bytes: 1 << 30,
        kept_bytes: 0,
        workers: 1,
    }
}

fn look(lookups: u64, found: u64) -> Look {
    let worker = WorkerInfo { host: 0, slot: 3, pid: 4242, name: "prefill".to_owned(), joined: 0, alive: Some(true) };
    let host = HostInfo {
        host: 0,
        incarnation: 1,
        alive: Some(true),
        silent_ms: None,
        marked_dead: false,
        workers: 1,
        chunks: 6,
    };
    let info = PoolInfo {
        region_bytes: 4 << 30,
        num_chunks: 8,
        chunks_taken: 6,
        blocks_ready: 30,
        bytes_ready: 30 << 16,
        uuid: "ab".to_owned(),
        namespaces: vec![model(1, "llama-8b", 10), model(2, "qwen-32b", 20), model(3, "llama-70b", 0)],
        hosts: vec![host],
        workers: vec![worker],
        counters: [(Counter::Lookups.name(), lookups), (Counter::Found.name(), found)].into(),
        ..PoolInfo::default()
    };
    Look { info, pinned: 5, ..Look::default() }
}

fn observed() -> Observed {
    let (before, now) = (look(1_000, 900), look(2_000, 1_400));
    let record = Record {
        time_us: 1_700_000_000_000_000,
        host: 0,
        slot: Some(3),
        pid: 4242,
        life: 1,
        sequence: 1,
        event: Recorded::Attached,
        operands: [1, 0],
        times: 1,
        what: "attached, as holder 1 of its slot".to_owned(),
    };
    let finding = Finding {
        kind: "quota",
        what: "model llama-8b takes all of its quota".to_owned(),
        why: "It evicts its own blocks.",
        next: "cenote pool quota --region shm:kv 1 SIZE".to_owned(),
    };
    Observed {
        region: "shm:kv".to_owned(),
        rates: Rates::between(&before, &now, 2.0),
        look: Arc::new(now),
        records: vec![record],
        findings: vec![finding],
        now_us: 1_700_000_001_000_000,
    }
}

fn state() -> State {
    let mut state = State::new("shm:kv".to_owned(), Duration::from_secs(1));
    state.take(Ok(observed()));
    state
}

fn press(state: &mut State, keys: &str) {
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\u{1b}' => KeyCode::Esc,
            '\t' => KeyCode::Tab,
            letter => KeyCode::Char(letter),
        };
        let event = Event::Key(KeyEvent::new(code, KeyModifiers::NONE));
        state.apply(Action::of(&event, state.is_typing).expect("the key has a meaning"));
    }
}

/// Each fact stands in one line of the picture.
fn expect(picture: &str, facts: &[&str]) {
    for fact in facts {
        assert!(picture.lines().any(|line| line.contains(fact)), "`{fact}` is missing:\n{picture}");
    }
}

#[test]
fn the_picture_fits_terminals_of_all_sizes() {
    for (width, height) in [(80, 24), (200, 60), (120, 40)] {
        let picture = picture_of(&state(), width, height);
        assert!(picture.lines().count() <= height.into(), "{picture}");
        assert!(picture.lines().all(|line| line.chars().count() <= width.into()), "{picture}");
        expect(
            &picture,
            &[
                "cenote top  shm:kv  4 GiB",
                "6 of 8 chunks taken (75 %)",
                "hits 50.0 %  looked up 500/s  missed 250/s",
                "blocks 30 (1.9 MiB)  pins 5",
                "! model llama-8b takes all of its quota",
                "[1 models]",
                "qwen-32b",
                "? help",
            ],
        );
        assert_eq!(picture.contains("hits in percent"), height >= 32, "{picture}");
    }
    for (width, height) in [(1, 1), (20, 5), (80, 3), (5, 60)] {
        // A window may be made as small as this, which must not end the program.
        let _ = picture_of(&state(), width, height);
        let mut help = state();
        press(&mut help, "?");
        let _ = picture_of(&help, width, height);
    }
}

#[test]
fn each_panel_has_a_key_and_its_rows() {
    let mut state = state();
    let facts =
        ["llama-70b", "alive", "prefill", "pool_lookups_total", "attached, as holder 1", "free chunks", "quota"];
    for ((panel, fact), key) in Panel::ALL.into_iter().zip(facts).zip('1'..) {
        press(&mut state, &key.to_string());
        assert_eq!(state.panel, panel);
        expect(&picture_of(&state, 100, 40), &[&format!("[{key} {}]", panel.name()), fact]);
    }
    press(&mut state, "\t");
    assert_eq!(state.panel, Panel::Models, "after the last comes the first");
}

#[test]
fn rows_are_sorted_filtered_and_zoomed() {
    let mut state = state();
    let names = |state: &State| -> Vec<String> {
        let seen = state.seen.as_ref().unwrap_or_else(|words| panic!("{words}"));
        let rows = state.panel.rows(seen, &state.filter, state.sort());
        rows.into_iter().map(|row| row[0].text.clone()).collect()
    };
    assert_eq!(names(&state), ["llama-8b", "qwen-32b", "llama-70b"], "the region's order");
    press(&mut state, "s");
    assert_eq!(names(&state), ["llama-70b", "llama-8b", "qwen-32b"], "by name");
    press(&mut state, "sss");
    assert_eq!(names(&state), ["qwen-32b", "llama-8b", "llama-70b"], "by blocks, the most first");
    expect(&picture_of(&state, 80, 24), &["blocks▼"]);
    press(&mut state, "r");
    assert_eq!(names(&state), ["llama-70b", "llama-8b", "qwen-32b"]);
    press(&mut state, "/LLAMA");
    expect(&picture_of(&state, 80, 24), &["/LLAMA_"]);
    assert_eq!(names(&state), ["llama-70b", "llama-8b"]);
    press(&mut state, "q\n");
    assert!(!state.is_done && names(&state).is_empty(), "while one types, q is a letter");
    press(&mut state, "\u{1b}z");
    assert_eq!((names(&state).len(), state.is_zoomed), (3, true));
    assert!(!picture_of(&state, 80, 24).contains("cenote top"), "the table has the whole screen");
    press(&mut state, "?");
    expect(&picture_of(&state, 80, 24), &["sort by the next column"]);
    press(&mut state, "\u{1b}\u{1b}");
    assert!(!state.shows_help && !state.is_zoomed && !state.is_done);
    press(&mut state, "\u{1b}");
    assert!(state.is_done);
}

#[test]
fn a_region_that_is_not_there_is_said_and_awaited() {
    let mut state = state();
    state.take(Err(Failure::new("/dev/shm/kv: there is no such region")));
    let picture = picture_of(&state, 80, 24);
    expect(&picture, &["/dev/shm/kv: there is no such region", "`cenote doctor --region shm:kv` says more"]);
    state.take(Ok(observed()));
    expect(&picture_of(&state, 80, 24), &["6 of 8 chunks taken"]);
}

/// The names are those of `pool metrics`.
#[test]
fn json_has_the_names_of_the_metrics() {
    let seen = observed();
    let json = serde_json::to_value(Snapshot::of(&seen)).expect("it is JSON");
    for (at, value) in [
        ("/region", serde_json::json!("shm:kv")),
        ("/gauges/cenote_region_pinned_blocks", 5.0.into()),
        ("/counters/cenote_pool_lookups_total", 2000.into()),
        ("/interval/seconds", 2.0.into()),
        ("/interval/hit_share", 0.5.into()),
        ("/interval/rates/cenote_pool_lookups_total", 500.0.into()),
        ("/models/1/model", "qwen-32b".into()),
        ("/models/1/cenote_model_blocks", 20.0.into()),
        ("/hosts/0/cenote_host_chunks", 6.0.into()),
        ("/workers/0/state", "alive".into()),
        ("/findings/0/kind", "quota".into()),
        ("/events/0/event", "attached".into()),
    ] {
        assert_eq!(json.pointer(at), Some(&value), "{at}: {json}");
    }
}
