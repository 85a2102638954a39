//! `--help` of every command by its structure, and the texts of errors as a snapshot, which
//! `INSTA_UPDATE=always` rewrites.

use super::support::help::expect_pages;
use super::support::process::bare_lab;
use insta::assert_snapshot;

#[tokio::test]
async fn every_command_explains_itself() {
    assert!(expect_pages(|line| bare_lab(line.split_whitespace())).await > 15);
}

#[tokio::test]
async fn errors_name_the_thing_and_the_fact() {
    let mut said = String::new();
    for line in [
        "bench ttft --hits 2 --model no-such-model",
        "sim",
        "sim --trace no-such-file.jsonl",
        "sim --load cpen --pool much",
        "sim --load cpen --pool-link string",
        "sim --load cpen --eviction clock",
        "sim --load cpen --watermark high",
        "torture --processes 1 --hosts 2",
        "torture --hosts 2 --flush none",
        "sing",
    ] {
        let outcome = bare_lab(line.split(' ')).current_dir("/").run().await;
        assert_eq!(outcome.out, "", "{outcome:?}");
        let code = outcome.code.expect("it ends by itself");
        assert_ne!(code, 0, "{outcome:?}");
        said.push_str(&format!("$ cenote-lab {line}\n{}exit code {code}\n\n", outcome.err));
    }
    assert_snapshot!(said);
}
