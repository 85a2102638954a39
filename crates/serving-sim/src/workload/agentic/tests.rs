use super::*;
use crate::workload::{BlockNumber, Workload};

/// Tools of two blocks and a system prompt of one; a rewound branch; a subagent.
const SESSION: &str = "{\"session\": 7, \"block\": 64, \"tool_tokens\": 128, \"system_tokens\": 70, \"requests\": [\
     [0.0, 260, 9, [[1, 4]], 0, 0.0, 1.5], [19.5, 330, 0, [[1, 3], [9, 2]], 0, null, 2.0], \
     [1.25, 200, 5, [[20, 3]], 1, 0.5, null]]}\n";

fn at_once(count: usize) -> Sessions {
    Sessions { count: Some(count), gap: 0, ..Sessions::default() }
}

fn read(text: &str, sessions: &Sessions) -> Read {
    read_agentic(text.as_bytes(), 64, true, sessions).expect("sessions")
}

fn prompts(load: &Workload) -> Vec<&[BlockNumber]> {
    load.requests().iter().map(|request| load.blocks(request)).collect()
}

#[test]
fn a_session_is_requests_in_order_with_its_own_blocks() {
    let read = read(SESSION, &at_once(1));
    let load = &read.workload;
    assert_eq!(prompts(load), [&[0, 1, 2, 3][..], &[4, 5, 6], &[0, 1, 2, 7, 8]]);
    let of = |one: &crate::Request| (one.arrival, one.input_tokens, one.output_tokens);
    let requests: Vec<_> = load.requests().iter().map(of).collect();
    assert_eq!(requests, [(0, 260, 9), (1_250_000_000, 200, 5), (19_500_000_000, 330, 1)]);
    assert_eq!((read.bad.len(), read.odd_lengths), (0, 0));
    assert!(read.remarks()[1].contains("share no blocks"), "{:?}", read.remarks());
}

#[test]
fn a_session_that_is_drawn_again_is_another_one() {
    let read = read(SESSION, &at_once(3));
    assert_eq!((read.workload.requests().len(), read.workload.num_blocks()), (9, 27));
    assert!(read.remarks()[0].starts_with("3 sessions of 1,"), "{:?}", read.remarks());
}

#[test]
fn the_seed_decides_order_and_starts() {
    let text: String = (1..40)
        .map(|count| format!("{{\"block\": 64, \"requests\": [[0, {}, 1, [[1, {count}]], 0, 0, 0]]}}\n", 64 * count))
        .collect();
    let drawn = |seed, count| read(&text, &Sessions { count, seed, ..Sessions::default() }).workload;
    let lengths = |load: &Workload| load.requests().iter().map(|one| one.input_tokens).collect::<Vec<_>>();
    assert_eq!(drawn(1, Some(20)).requests(), drawn(1, Some(20)).requests());
    assert_ne!(lengths(&drawn(1, Some(20))), lengths(&drawn(2, Some(20))));
    let mut all = lengths(&drawn(3, None));
    all.sort_unstable();
    assert_eq!(all, (1..40).map(|count| 64 * count).collect::<Vec<_>>(), "each session once");
    let last = drawn(1, Some(4_000)).requests().last().expect("requests").arrival as f64 / 1e9;
    assert!((last / 4_000.0 - 60.0).abs() < 4.0, "a start in {} s", last / 4_000.0);
}

#[test]
fn prefixes_are_shared_only_if_assumed_and_equally_long() {
    let other_system = SESSION.replace("\"system_tokens\": 70", "\"system_tokens\": 90");
    let other_tools = SESSION.replace("\"tool_tokens\": 128", "\"tool_tokens\": 129");
    let shared = |other: &str| {
        let assumed = Sessions { shares_prefix: true, ..at_once(2) };
        let read = read(&format!("{SESSION}{other}"), &assumed);
        assert!(read.remarks()[1].contains("assumed"), "{:?}", read.remarks());
        18 - read.workload.num_blocks()
    };
    // Never the subagent's three blocks, nor the blocks behind the prefix.
    assert_eq!((shared(SESSION), shared(&other_system), shared(&other_tools)), (3, 2, 0));
    assert_eq!(read(&SESSION.repeat(2), &at_once(2)).workload.num_blocks(), 18);
}

#[test]
fn hostile_lines_are_named_and_left_out() {
    let with = |request: &str| format!("{{\"block\": 64, \"requests\": [[0, 64, 1, [[1, 1]], 0, 0, 0], {request}]}}");
    let lines = [
        ("{\"block\": 64".to_owned(), "EOF"),
        ("{\"block\": 16, \"requests\": []}".to_owned(), "have 16 tokens, the load's blocks 64"),
        ("{\"block\": 0, \"requests\": []}".to_owned(), "have 0 tokens"),
        ("{\"block\": 64, \"requests\": []}".to_owned(), "without requests"),
        (
            "{\"block\": 64, \"tool_tokens\": 99999999999, \"requests\": [[0, 64, 1, [[1, 1]], 0, 0, 0]]}".to_owned(),
            "tool_tokens",
        ),
        (with("[-1, 64, 1, [[1, 1]], 0, 0, 0]"), "request 2: -1 is not a time"),
        (with("[1e300, 64, 1, [[1, 1]], 0, 0, 0]"), "request 2: 1"),
        (with("[0, 0, 1, [], 0, 0, 0]"), "request 2: its input is 0"),
        (with("[0, 99999999999, 1, [], 0, 0, 0]"), "more than any"),
        (with("[0, 64, 1, [[1, 0]], 0, 0, 0]"), "run [1, 0]"),
        (with("[0, 64, 1, [[1, 18446744073709551615]], 0, 0, 0]"), "one for each of its 1 full"),
        (with("[0, 64, 1, [[18446744073709551615, 1]], 0, 0, 0]"), "32-bit numbers"),
        (with("[0, 64, 1, [], 0, 0, 0]"), "0 ids for 1 full blocks"),
        (with("[0, 64, 1, [[1, 1]]]"), "invalid length"),
        ("[[[[[[".to_owned(), "expected"),
    ];
    for (line, words) in lines {
        let text = format!("{SESSION}{line}\n{SESSION}");
        let found = read_agentic(text.as_bytes(), 64, false, &at_once(2)).expect("two sessions are valid");
        assert_eq!((found.workload.requests().len(), found.bad.len()), (6, 1), "{line}");
        let said = found.bad[0].to_string();
        assert!(said.starts_with("line 2: ") && said.contains(words), "{said}");
        let strict = read_agentic(text.as_bytes(), 64, true, &at_once(2)).expect_err("strict");
        assert_eq!(strict.to_string(), said);
    }
    assert!(matches!(read_agentic(&b""[..], 64, false, &at_once(2)), Err(TraceError::Empty)));
    assert!(matches!(read_agentic(&b"x\n"[..], 64, false, &Sessions::default()), Err(TraceError::Bad(_))));
}

/// A few bytes name a quarter of a million blocks: a small file asked for more memory than there is.
#[test]
fn sessions_with_too_many_blocks_are_refused_before_they_take_memory() {
    let huge = "[0, 16777216, 1, [[1, 262144]], 0, 0, 0]";
    let requests = vec![huge; (LOAD_BLOCKS_MAX >> 18) as usize].join(",");
    let text = format!("{{\"block\": 64, \"requests\": [{requests}]}}\n");
    let error = read_agentic(text.as_bytes(), 64, false, &at_once(1)).expect_err("too many blocks").to_string();
    assert!(error.starts_with("line 1: ") && error.contains("draw fewer"), "{error}");
    // Requests without blocks are limited, too.
    let empty = format!("{{\"block\": 64, \"requests\": [{}]}}\n", vec!["[0, 1, 1, [], 0, 0, 0]"; 1000].join(","));
    let error = read_agentic(empty.as_bytes(), 64, false, &at_once(1)).expect("a load").workload.num_blocks();
    assert_eq!(error, 0);
}

#[test]
fn conversations_have_the_blocks_of_the_load_and_their_think_times() {
    let text = SESSION.repeat(2);
    let drawn = read_conversations(text.as_bytes(), 64, true, &at_once(2), |_| true).expect("sessions");
    assert_eq!((drawn.drawn.len(), drawn.eligible), (2, (2, 2)));
    let first = &drawn.drawn[0];
    // By time; the third is 19.5 - (1.25 + 0) seconds after the second, and records nothing.
    let thinks: Vec<_> = first.turns().map(|turn| (turn.think, turn.input_tokens, turn.output_tokens)).collect();
    assert_eq!(thinks, [(0, 260, 9), (500_000_000, 200, 5), (18_250_000_000, 330, 0)]);
    let names = |one: &Conversation, turn| one.names(turn).collect::<Vec<_>>();
    assert_eq!(names(first, 0)[..3], names(first, 2)[..3]);
    assert_ne!(names(first, 0)[3], names(first, 2)[3]);
    assert!(names(&drawn.drawn[1], 0).iter().all(|name| !names(first, 0).contains(name)));

    let assumed = Sessions { shares_prefix: true, ..at_once(2) };
    let shared = read_conversations(text.as_bytes(), 64, true, &assumed, |_| true).expect("sessions").drawn;
    assert_eq!(names(&shared[0], 0)[..3], names(&shared[1], 0)[..3]);
    assert_ne!(names(&shared[0], 0)[3], names(&shared[1], 0)[3]);
}

#[test]
fn only_sessions_that_fit_are_drawn() {
    let long = SESSION.replace("260, 9, [[1, 4]]", "640, 9, [[1, 10]]");
    let text = format!("{SESSION}{long}");
    let fits = |prompts: &mut dyn Iterator<Item = u32>| prompts.filter(|tokens| *tokens >= 600).count() == 0;
    let found = read_conversations(text.as_bytes(), 64, true, &at_once(4), fits).expect("one fits");
    assert_eq!((found.drawn.len(), found.eligible), (4, (1, 2)));
    assert!(found.drawn.iter().all(|one| one.turns().next().is_some_and(|turn| turn.input_tokens == 260)));
    let none = read_conversations(text.as_bytes(), 64, true, &at_once(4), |_| false);
    assert!(matches!(none, Err(TraceError::Empty)));
    let bad = SESSION.replace("0, 0.0, 1.5", "0, -1, 1.5");
    let bad = read_conversations(bad.as_bytes(), 64, false, &at_once(1), |_| true).expect_err("no line is valid");
    assert!(bad.to_string().contains("request 1: -1 is not a time"), "{bad}");
}
