//! `cenote generate`: one prompt, without a server.

use super::support::process::cenote;
use super::support::region::Region;
use super::support::repository;

#[tokio::test]
async fn the_second_run_loads_the_prompt_from_the_region() {
    let region = Region::create("64MiB").await;
    let text = std::fs::read_to_string(repository("models/demo/demo.txt")).expect("the demo's text");
    let prompt: String = text.chars().take(1200).collect();
    let flags = ["generate", "--prompt", &prompt, "--max-tokens", "12", "--ignore-eos", "--json"];
    let generate = |region: &[&'static str]| cenote(flags.iter().copied().chain(region.iter().copied()));
    let alone = generate(&[]).ok().await.json();
    let [first, second] = [
        generate(&[]).env("CENOTE_REGION", &region.name).ok().await.json(),
        generate(&[]).env("CENOTE_REGION", &region.name).ok().await.json(),
    ];
    for answer in [&alone, &first, &second] {
        assert_eq!(answer["text"], alone["text"]);
        assert_eq!(answer["tokens"], alone["tokens"]);
        assert_eq!(answer["usage"]["completion_tokens"], 12, "{answer}");
    }
    assert_eq!(first["usage"]["cached_tokens"], 0, "{first}");
    let cached = second["usage"]["cached_tokens"].as_u64().expect("a count");
    assert!(cached * 2 > second["usage"]["prompt_tokens"].as_u64().expect("a count"), "{second}");
    region.expect_clean_and_idle().await;
}

/// Earlier, the README's prompt was shorter than a block, so it never came from the region, without
/// a message.
#[tokio::test]
async fn the_readmes_prompt_is_loaded_from_the_region() {
    let region = Region::create("64MiB").await;
    let guide = std::fs::read_to_string(repository("docs/guides/start.md")).expect("the guide");
    let (_, example) = guide.split_once("cenote generate ").expect("an example");
    let prompt = &example.split('"').nth(1).expect("a prompt in quotes").replace("\\\n  ", "");
    let generate = |prompt| cenote(["generate", "--region", &region.name, "--prompt", prompt, "--max-tokens", "2"]);
    let first = generate(prompt).ok().await;
    assert!(first.out.contains(", 0 from the region") && !first.err.contains("are shared"), "{first:?}");
    let second = generate(prompt).ok().await;
    assert!(!second.out.contains(", 0 from the region") && !second.err.contains("are shared"), "{second:?}");

    let short = generate("The cave").ok().await;
    assert!(short.out.contains(", 0 from the region"), "{short:?}");
    assert!(short.err.contains("only prompts longer than one block of 16 tokens are shared"), "{short:?}");
    let alone = cenote(["generate", "--prompt", "The cave", "--max-tokens", "2"]).ok().await;
    assert!(!alone.err.contains("are shared"), "without a region nothing is: {alone:?}");
}

#[tokio::test]
async fn a_file_for_json_leaves_stdout_to_people() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("answer.json");
    let flags =
        ["generate", "--chat", "--prompt", "Hello", "--max-tokens", "3", "--json", file.to_str().expect("UTF-8")];
    let outcome = cenote(flags).ok().await;
    assert!(outcome.out.contains("0 from the region"), "{outcome:?}");
    let written = std::fs::read_to_string(&file).expect("the file is there");
    let answer: serde_json::Value = serde_json::from_str(&written).expect("JSON");
    assert!(outcome.out.starts_with(answer["text"].as_str().expect("a text")), "{outcome:?}");
    let nowhere = ["generate", "--prompt", "x", "--max-tokens", "1", "--json", "no-such-dir/answer.json"];
    cenote(nowhere).fails(&["no-such-dir/answer.json", "cannot write"]).await;
}

#[tokio::test]
async fn ungeneratable_requests_are_refused_with_the_field() {
    cenote(["generate", "--prompt", ""]).fails(&["prompt: is empty"]).await;
    cenote(["generate", "--prompt", "x", "--max-tokens", "5000"]).fails(&["max_tokens: is 5000"]).await;
    cenote(["generate", "--prompt", "x", "--temperature", "9"]).fails(&["temperature: is 9"]).await;
    cenote(["generate", "--prompt", "x", "--region", "shm:cenote-test-no-such"])
        .fails(&["no such region", "hint:"])
        .await;
}
