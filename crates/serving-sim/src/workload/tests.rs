use super::*;

fn line(at: u64, tokens: u64, ids: &[u64]) -> String {
    format!("{{\"timestamp\": {at}, \"input_length\": {tokens}, \"output_length\": 7, \"hash_ids\": {ids:?}}}\n")
}

#[test]
fn equal_names_get_equal_block_numbers() {
    let text = [line(5, 1_000, &[7, 9]), line(0, 600, &[7, 3])].concat();
    let read = read_mooncake(text.as_bytes(), 512, true).expect("a trace");
    let workload = read.workload;
    assert_eq!((workload.num_blocks(), read.bad.len(), read.odd_lengths), (3, 0, 0));
    let [first, second] = workload.requests() else { panic!("two requests") };
    assert_eq!((first.arrival, second.arrival), (0, 5_000_000), "in the order of arrival");
    assert_eq!(workload.blocks(first)[0], workload.blocks(second)[0]);
    assert_ne!(workload.blocks(first)[1], workload.blocks(second)[1]);
    assert_eq!((second.input_tokens, second.output_tokens), (1_000, 7));
}

#[test]
fn the_first_request_arrives_at_zero_also_by_the_clock() {
    let text = [line(1_700_000_000_250, 512, &[1]), line(1_700_000_000_000, 512, &[1])].concat();
    let workload = read_mooncake(text.as_bytes(), 512, true).expect("a trace").workload;
    assert_eq!(workload.requests().iter().map(|one| one.arrival).collect::<Vec<_>>(), [0, 250_000_000]);
    let late = line(20_000_000_000_000, 512, &[1]);
    assert!(matches!(read_mooncake(late.as_bytes(), 512, true), Err(TraceError::Bad(_))), "no 64 bits of ns");
}

/// Times in seconds were read as milliseconds: the load was a thousand times too high, without a word.
#[test]
fn times_in_seconds_with_fractions_are_refused() {
    let at = |time: &str| line(0, 512, &[1]).replace("\"timestamp\": 0", &format!("\"timestamp\": {time}"));
    let text = [at("0.0"), at("3"), at("4.125"), at("5.5")].concat();
    for strict in [false, true] {
        let error = read_mooncake(text.as_bytes(), 512, strict).expect_err("seconds").to_string();
        assert!(error.starts_with("line 3: timestamp 4.125 has a fraction") && error.contains("1000"), "{error}");
    }
    let whole = [at("0.0"), at("3.0")].concat();
    let load = read_mooncake(whole.as_bytes(), 512, true).expect("whole milliseconds").workload;
    assert_eq!(load.requests()[1].arrival, 3_000_000);
}

#[test]
fn a_truncated_load_has_the_blocks_of_its_requests() {
    let text = [line(9, 1_000, &[7, 9]), line(0, 600, &[7, 3]), line(5, 1_536, &[7, 9, 4])].concat();
    let mut workload = read_mooncake(text.as_bytes(), 512, true).expect("a trace").workload;
    workload.truncate(2);
    let blocks: Vec<&[BlockNumber]> = workload.requests().iter().map(|one| workload.blocks(one)).collect();
    assert_eq!((workload.num_blocks(), blocks), (4, vec![&[0, 1][..], &[0, 2, 3]]));
    workload.truncate(1);
    assert_eq!((workload.num_blocks(), workload.blocks.len()), (2, 2));
}

#[test]
fn bad_lines_are_skipped_and_listed_or_refused_if_strict() {
    let good = line(1, 512, &[1]);
    let bad = [
        ("{\"timestamp\": 1", "EOF while parsing"),
        ("not json", "expected"),
        ("{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 7}", "hash_ids"),
        ("{\"timestamp\": -1, \"input_length\": 5, \"output_length\": 7, \"hash_ids\": [1]}", "not a time"),
        ("{\"timestamp\": 1, \"input_length\": 0, \"output_length\": 7, \"hash_ids\": []}", "input_length is 0"),
        ("{\"timestamp\": 1, \"input_length\": 99999999999, \"output_length\": 7, \"hash_ids\": []}", "more than any"),
        ("{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 7, \"hash_ids\": [-1]}", "invalid value"),
        ("\u{0}\u{1}", "expected"),
    ];
    for (text, words) in bad {
        let trace = format!("{good}\n{text}\n{good}");
        let read = read_mooncake(trace.as_bytes(), 512, false).expect("the other lines are valid");
        assert_eq!((read.workload.requests().len(), read.bad.len()), (2, 1), "{text}");
        let found = read.bad[0].to_string();
        assert!(found.starts_with("line 3: ") && found.contains(words), "{found}");
        let strict = read_mooncake(trace.as_bytes(), 512, true).expect_err("strict");
        assert_eq!(strict.to_string(), found);
    }
    let not_text = [good.as_bytes(), b"\xff\xfe\n"].concat();
    assert_eq!(read_mooncake(not_text.as_slice(), 512, false).expect("one line is valid").bad[0].line, 2);
}

#[test]
fn the_last_line_of_a_truncated_file_is_reported() {
    let text = [line(0, 512, &[1]), line(1, 512, &[1])].concat();
    let cut = &text.as_bytes()[..text.len() - 10];
    let read = read_mooncake(cut, 512, false).expect("the first line is whole");
    assert_eq!(read.workload.requests().len(), 1);
    assert!(read.bad[0].to_string().ends_with("(the file ends within this line)"), "{}", read.bad[0]);
    assert!(matches!(read_mooncake(&b""[..], 512, false), Err(TraceError::Empty)));
    assert!(matches!(read_mooncake(&b"x\n"[..], 512, false), Err(TraceError::Bad(_))), "no valid line");
}

#[test]
fn lengths_that_do_not_match_the_blocks_are_counted() {
    let text = [line(0, 512, &[1, 2, 3]), line(1, 512, &[1])].concat();
    let read = read_mooncake(text.as_bytes(), 512, true).expect("a trace");
    assert_eq!((read.odd_lengths, read.workload.requests().len()), (1, 2));
}

#[test]
fn azure_prompts_share_no_blocks() {
    let text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n\
                2023-11-16 18:15:50.9951690,1396,0\nx,1,1\n2023-11-16 18:15:51.0,12\n2023-11-16 18:15:52.0,-3,1";
    let read = read_azure(text.as_bytes(), 512, false).expect("a trace");
    let [first, second] = read.workload.requests() else { panic!("two requests") };
    assert_eq!((first.arrival, second.arrival), (0, 4_314_579_000));
    assert_eq!((first.output_tokens, second.output_tokens), (44, 1), "an answer has at least one token");
    assert_eq!((read.workload.blocks(first), read.workload.blocks(second)), (&[0][..], &[1, 2, 3][..]));
    let told: Vec<String> = read.bad.iter().map(ToString::to_string).collect();
    assert_eq!(told[0], "line 4: `x` is not a date and time");
    assert_eq!(told[1], "line 5: 2 values instead of 3");
    assert_eq!(told[2], "line 6: ContextTokens `-3` is not a number of tokens (the file ends within this line)");
}

#[test]
fn burstgpt_columns_are_found_by_their_names() {
    // The first lines of the published file, a failed request and three defects.
    let text = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n\
                45,ChatGPT,1087,230,1317,Conversation log\n1106,ChatGPT,0,0,0,Conversation log\n\
                x,GPT-4,1,1,2,API log\n118,GPT-4,417,276\n118,GPT-4,many,276,693,API log\n";
    let read = read_burstgpt(text.as_bytes(), 512, false).expect("a trace");
    let [first, second] = read.workload.requests() else { panic!("two requests") };
    assert_eq!((first.arrival, first.input_tokens, first.output_tokens), (0, 472, 18));
    assert_eq!((second.arrival, second.input_tokens, second.output_tokens), (40_000_000_000, 1_087, 230));
    assert_eq!((read.workload.blocks(first), read.workload.blocks(second)), (&[0][..], &[1, 2, 3][..]));
    let told: Vec<String> = read.bad.iter().map(ToString::to_string).collect();
    assert_eq!(told[0], "line 4: a failed request, without tokens");
    assert_eq!(told[1], "line 5: `x` is not a time in seconds");
    assert_eq!(told[2], "line 6: 4 values instead of 6");
    assert_eq!(told[3], "line 7: Request tokens `many` is not a number of tokens");
    assert!(read_burstgpt(text.as_bytes(), 512, true).is_err(), "strict");
    let later = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
                 5.5,,1.2,ChatGPT,31,7,38,API log\n6,,1.2,ChatGPT,32,8,40,API log\n";
    let read = read_burstgpt(later.as_bytes(), 16, true).expect("a trace");
    let [_, second] = read.workload.requests() else { panic!("two requests") };
    assert_eq!((second.arrival, second.input_tokens, second.output_tokens), (500_000_000, 32, 8));
    let unnamed = read_burstgpt(&b"5,ChatGPT,472,18,490,API log\n"[..], 512, true).expect("a trace");
    assert_eq!(unnamed.workload.requests()[0].output_tokens, 18);
    let lacking = "Timestamp,Model,Total tokens,Request tokens,Answer tokens,Log Type\n5,ChatGPT,9,4,5,API log\n";
    for strict in [false, true] {
        let error = read_burstgpt(lacking.as_bytes(), 512, strict).expect_err("a column is missing").to_string();
        assert_eq!(error, "line 1: no column `Response tokens`");
    }
    let quoted = "\"Timestamp\",\"Response tokens\",\"Request tokens\"\n5,1,2\n";
    assert_eq!(read_burstgpt(quoted.as_bytes(), 512, true).expect("a trace").workload.requests()[0].input_tokens, 2);
}

#[test]
fn generated_lengths_have_their_mean_and_deviation() {
    let spec = Synthetic::tract('a', 20_000, 3.0).expect("workload A");
    let workload = spec.draw(1);
    let lengths: Vec<f64> = workload.requests().iter().map(|request| f64::from(request.input_tokens)).collect();
    let mean = lengths.iter().sum::<f64>() / lengths.len() as f64;
    let deviation = (lengths.iter().map(|length| (length - mean).powi(2)).sum::<f64>() / lengths.len() as f64).sqrt();
    assert!((mean / 4_449.0 - 1.0).abs() < 0.03 && (deviation / 2_424.0 - 1.0).abs() < 0.06, "{mean} ± {deviation}");
    let seconds = workload.requests().last().expect("requests").arrival as f64 / 1e9;
    assert!((20_000.0 / seconds / 3.0 - 1.0).abs() < 0.03, "{seconds} s");
    assert_eq!(spec.draw(1).requests(), workload.requests(), "equal seeds give equal loads");
    assert_ne!(spec.draw(2).requests(), workload.requests());
    assert!(Synthetic::tract('d', 1, 1.0).is_none());
}

#[test]
fn a_prefix_is_shared_within_its_group_only() {
    let spec = Synthetic { unique: Some(Length::fixed(32)), groups: 2, ..Synthetic::tract('A', 200, 0.0).expect("A") };
    let workload = Synthetic { input: Length::fixed(96), ..spec }.draw(5);
    // Two groups with four shared blocks each, and two unshared blocks per prompt.
    assert_eq!(workload.num_blocks(), 2 * 4 + 200 * 2);
}

#[test]
fn cpen_lengths_match_the_paper() {
    let workload = cpen(4_000, 1.0, 1);
    let mean = |of: fn(&Request) -> u32| {
        workload.requests().iter().map(|request| f64::from(of(request))).sum::<f64>() / workload.requests().len() as f64
    };
    let (input, output) = (mean(|request| request.input_tokens), mean(|request| request.output_tokens));
    assert!((input - 32.0).abs() < 1.0 && (output - 88.0).abs() < 4.0, "{input}, {output}");
    // Mean over the run of a request: the blocks of its prompt and of its answer so far.
    let (mut held, mut steps) = (0, 0);
    for request in workload.requests() {
        for generated in 0..request.output_tokens {
            held += u64::from((request.input_tokens + generated).div_ceil(16));
            steps += 1;
        }
    }
    let blocks = held as f64 / f64::from(steps);
    assert!((blocks - 7.5).abs() < 0.6, "{blocks} blocks a request on average");
}

#[test]
fn a_prompt_continues_the_latest_whole_prompt_that_it_begins_with() {
    let mut builder = Builder::new(10);
    // The last block of the first prompt is not full, so it is not compared.
    for (arrival, tokens, names) in [
        (0, 25, &[1, 2, 3][..]),
        (1, 20, &[1, 9]),
        (2, 40, &[1, 2, 4, 5]),
        (3, 8, &[7]),
        (4, 50, &[1, 2, 4, 5, 6]),
        (5, 20, &[8, 10]),
    ] {
        builder.push(arrival, tokens, 1, names);
    }
    let workload = builder.finish();
    assert_eq!(workload.previous_prompts(), [None, None, Some(0), None, Some(2), None]);
    assert_eq!(workload.depths()[..3], [0, 1, 2]);
}
