//! Codecs from end to end: a profile is made, codecs are evaluated, encoded blocks are stored.

use super::support::process::{cenote, lab};
use super::support::region::Region;
use super::support::repository;

fn text() -> String {
    repository("models/demo/demo.txt").display().to_string()
}

#[tokio::test]
async fn a_profile_serves_evaluation_and_storing() {
    let dir = tempfile::tempdir().expect("a directory");
    let profile = dir.path().join("demo.safetensors").display().to_string();
    let (text, page) = (text(), dir.path().join("report.html").display().to_string());
    cenote(["profile", "--text", &text, "--prompts", "8", "--context", "64", "--out", &profile]).ok().await;

    let codecs = "raw,int8,int8+delta+rle,oaken,oaken-mean,qpack:0.5,qpackz:0.5,kivi:4,kvquant:4,group:4:32";
    let eval =
        ["eval", "--text", &text, "--profile", &profile, "--codec", codecs, "--windows", "4", "--context", "128"];
    let report = lab(eval.iter().copied().chain(["--html", &page, "--json"])).ok().await.json();
    let of = |codec: &str| {
        let rows = report["codecs"].as_array().expect("rows");
        rows.iter().find(|row| row["codec"] == codec).unwrap_or_else(|| panic!("no {codec}: {report}")).clone()
    };
    let number = |codec: &str, field: &str| of(codec)[field].as_f64().expect("a number");
    // Half precision has almost no effect, and finer steps diverge less.
    assert!(number("raw", "kl") < 1e-6 && (16.0..16.2).contains(&number("raw", "bits")));
    assert!(number("int8", "kl") < number("qpack:0.5", "kl") && number("qpack:0.5", "kl") < 0.01);
    assert!(number("int8", "greedy_agreement") > 0.97);
    // The same codes, in fewer bits. (Rarely, one of them keeps a value exactly and the other does
    // not.)
    assert!((number("qpackz:0.5", "kl") / number("qpack:0.5", "kl") - 1.0).abs() < 0.2);
    assert!(number("qpackz:0.5", "bits") < number("qpack:0.5", "bits") - 0.2);
    assert!(number("qpack:0.5", "ratio") > 3.5, "{report}");
    let html = std::fs::read_to_string(&page).expect("a page");
    assert!(html.contains("<svg") && html.contains("qpackz:0.5") && html.ends_with("</html>\n"));

    // Encoded blocks are stored, and found by engines with the profile; engines without it compute.
    let region = Region::create("64MiB").await;
    let prompt: String = std::fs::read_to_string(&text).expect("the demo's text").chars().take(1200).collect();
    let flags = ["generate", "--prompt", &prompt, "--max-tokens", "8", "--ignore-eos", "--json"];
    let generate = || cenote(flags).env("CENOTE_REGION", &region.name);
    let encoded = || generate().env("CENOTE_CODEC", "0=int8,qpack:0.25").env("CENOTE_PROFILE", &profile);
    let first = encoded().ok().await.json();
    let second = encoded().ok().await.json();
    let cached = |answer: &serde_json::Value| answer["usage"]["cached_tokens"].as_u64().expect("a count");
    assert_eq!(cached(&first), 0);
    assert!(cached(&second) * 2 > second["usage"]["prompt_tokens"].as_u64().expect("a count"), "{second}");
    let without = generate().ok().await.json();
    assert_eq!(cached(&without), 0, "frames are no pages: {without}");
    assert_eq!(without["text"], first["text"], "both computed the whole prompt");
    region.expect_clean_and_idle().await;
}

/// Frames of several layers: in evaluations, in the region, and beside engines without them.
#[tokio::test]
async fn prism_needs_bases_and_serves_evaluation_and_storing() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (text, plain, bases) = (text(), path("plain.safetensors"), path("bases.safetensors"));
    let made = |out: &str| cenote(["profile", "--text", &text, "--prompts", "8", "--context", "64", "--out", out]);
    made(&plain).ok().await;
    let flags = ["profile", "--text", &text, "--prompts", "24", "--context", "128", "--bases", "--out", &bases];
    cenote(flags).ok().await;

    let codecs = "prism:1,prism:4,kivi:4";
    let eval =
        ["eval", "--text", &text, "--codec", codecs, "--windows", "4", "--context", "128", "--json", "--profile"];
    lab(eval.iter().copied().chain([plain.as_str()])).fails(&["needs a profile with bases", "--bases"]).await;
    let report = lab(eval.iter().copied().chain([bases.as_str()])).ok().await.json();
    let number = |codec: &str, field: &str| {
        let rows = report["codecs"].as_array().expect("rows");
        let row = rows.iter().find(|row| row["codec"] == codec);
        row.and_then(|row| row[field].as_f64()).unwrap_or_else(|| panic!("no {field} of {codec}: {report}"))
    };
    assert!(number("prism:1", "bits") < number("kivi:4", "bits"), "{report}");
    assert!(number("prism:4", "bits") < number("prism:1", "bits") - 1.0, "{report}");
    assert!(number("prism:1", "kl") < number("prism:4", "kl") && number("prism:4", "kl") < 0.1, "{report}");
    let by_token = eval.iter().copied().chain([bases.as_str(), "--by-token"]);
    lab(by_token).fails(&["several layers together"]).await;
    let choose = ["choose", "--text", &text, "--profile", &bases, "--codec", "prism:1", "--windows", "2"];
    lab(choose).fails(&["several layers together"]).await;

    let region = Region::create("64MiB").await;
    let prompt: String = std::fs::read_to_string(&text).expect("the demo's text").chars().take(1200).collect();
    let flags = ["generate", "--prompt", &prompt, "--max-tokens", "8", "--ignore-eos", "--json"];
    let generate = |codec: &str| {
        let named = cenote(flags).env("CENOTE_REGION", &region.name).env("CENOTE_PROFILE", &bases);
        named.env("CENOTE_CODEC", codec)
    };
    let cached = |answer: &serde_json::Value| answer["usage"]["cached_tokens"].as_u64().expect("a count");
    assert_eq!(cached(&generate("prism:1").ok().await.json()), 0);
    let second = generate("prism:1").ok().await.json();
    assert!(cached(&second) * 2 > second["usage"]["prompt_tokens"].as_u64().expect("a count"), "{second}");
    // Other steps are another codec: its blocks are not found under this one's.
    assert_eq!(cached(&generate("prism:2").ok().await.json()), 0);
    region.expect_clean_and_idle().await;
    generate("0=int8,prism:1").fails(&["together with all of 0-3"]).await;
}

#[tokio::test]
async fn codecs_are_chosen_by_layer_and_the_limit_holds_together() {
    let (text, dir) = (text(), tempfile::tempdir().expect("a directory"));
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (profile, table) = (path("demo.safetensors"), path("codecs.json"));
    cenote(["profile", "--text", &text, "--prompts", "6", "--context", "64", "--out", &profile]).ok().await;
    let sizes = ["--windows", "3", "--context", "96"];
    let choose = |more: &[&str]| {
        let flags = ["choose", "--text", &text, "--profile", &profile, "--out", &table, "--json"];
        lab(flags.iter().chain(&sizes).chain(more).copied())
    };
    let codecs = "raw,int8,qpack:0.35,qpack:0.9,qpackz:0.9";
    let chosen = choose(&["--codec", codecs, "--kl-max", "4e-4"]).ok().await.json();
    let choices = chosen["choices"].as_array().expect("choices");
    let number = |of: &serde_json::Value, field: &str| of[field].as_f64().expect("a number");
    assert_eq!(number(&choices[0], "pressure"), 0.0);
    assert!(choices.iter().all(|choice| number(choice, "kl") <= 4e-4), "{chosen}");
    assert!(choices.windows(2).all(|pair| number(&pair[0], "ratio") < number(&pair[1], "ratio")), "{chosen}");
    let last = choices.last().expect("a choice");
    assert!(number(last, "ratio") > 2.0 && number(last, "kl_predicted") <= 4e-4, "{chosen}");
    let file: serde_json::Value = serde_json::from_slice(&std::fs::read(&table).expect("a table")).expect("JSON");
    assert_eq!(file, chosen);
    let rows = chosen["layers"].as_array().expect("layers");
    assert!(rows.len() == 4 && rows.iter().all(|rows| rows.as_array().is_some_and(|rows| rows.len() == 4)), "{chosen}");

    // Blocks are stored with the table's codecs, and found by engines with the same table or the
    // same codecs.
    let region = Region::create("64MiB").await;
    let prompt: String = std::fs::read_to_string(&text).expect("the demo's text").chars().take(900).collect();
    let flags = ["generate", "--prompt", &prompt, "--max-tokens", "4", "--ignore-eos", "--json"];
    let generate = |codec: &str| {
        let named = cenote(flags).env("CENOTE_REGION", &region.name).env("CENOTE_PROFILE", &profile);
        named.env("CENOTE_CODEC_TABLE", &table).env("CENOTE_CODEC", codec)
    };
    let cached = |answer: &serde_json::Value| answer["usage"]["cached_tokens"].as_u64().expect("a count");
    assert_eq!(cached(&generate("auto").ok().await.json()), 0);
    assert!(cached(&generate("auto").ok().await.json()) > 0);
    assert!(cached(&generate(choices[0]["codec"].as_str().expect("a codec")).ok().await.json()) > 0);
    region.expect_clean_and_idle().await;
    // The codec of cold blocks may come from the table, too.
    let cold = |codec: &str| generate("auto").env("CENOTE_COLD_CODEC", codec);
    cold("auto").ok().await;
    cold("0-1=int8").fails(&["layer 2 has no codec"]).await;

    // The limit may be below the table's, but not above.
    generate("auto").env("CENOTE_KL_MAX", "1e-5").ok().await;
    generate("auto").env("CENOTE_KL_MAX", "1e-3").fails(&["at most 0.0004", "hint:"]).await;
    let other = path("other.safetensors");
    cenote(["profile", "--text", &text, "--prompts", "5", "--context", "64", "--out", &other]).ok().await;
    generate("auto").env("CENOTE_PROFILE", &other).fails(&["another profile", "hint:"]).await;
    let serve = ["serve", "--port", "0", "--prefill", "1", "--codec", "auto", "--profile", &other];
    cenote(serve).fails(&["needs a codec table", "hint:"]).await;
    cenote(serve.iter().copied().chain(["--codec-table", &table])).fails(&["another profile"]).await;
    let outliers = path("outliers");
    lab(["outliers", "--out", &outliers]).ok().await;
    let plain = choose(&["--codec", "int8", "--loss-max", "1"]).ok().await.json();
    assert!(plain["choices"].as_array().is_some_and(|all| all.iter().all(|one| number(one, "loss_percent") <= 1.0)));
    let elsewhere = cenote(flags).env("CENOTE_MODEL", &outliers).env("CENOTE_REGION", &region.name);
    let elsewhere = elsewhere.env("CENOTE_CODEC", "auto").env("CENOTE_CODEC_TABLE", &table);
    elsewhere.fails(&["the codec table of another model", "hint:"]).await;
    std::fs::write(&table, "{}").expect("written");
    generate("auto").fails(&["not a codec table"]).await;
    choose(&["--kl-max", "0"]).fails(&["positive"]).await;
    lab(["choose", "--text", &text]).fails(&["needs a profile", "hint:"]).await;
}

#[tokio::test]
async fn profiles_of_two_texts_are_compared() {
    let (text, dir) = (text(), tempfile::tempdir().expect("a directory"));
    let other = dir.path().join("source.txt").display().to_string();
    std::fs::copy(repository("crates/lab/src/args.rs"), &other).expect("copied");
    let sizes = ["--windows", "4", "--context", "64", "--codec", "oaken,qpack:0.5"];
    let flags = ["eval", "--text", &text, "--profile-text", &text, "--profile-text"];
    let report = lab(flags.into_iter().chain([other.as_str(), "--json"]).chain(sizes)).ok().await.json();
    let (apart, rows) = (report["thresholds"].as_array().expect("rows"), report["rows"].as_array().expect("rows"));
    assert_eq!((apart.len(), rows.len()), (8, 4), "K and V of four layers, two codecs by two profiles: {report}");
    for spread in apart {
        let [mean, worst] = ["mean", "worst"].map(|field| spread[field].as_f64().expect("a number"));
        assert!(0.0 < mean && mean <= worst && worst < 2.0, "{spread}");
    }
    let names: Vec<_> = rows.iter().map(|row| (row["codec"].as_str(), row["profile"].as_str())).collect();
    assert_eq!(names[1], (Some("oaken"), Some(other.as_str())), "{names:?}");
    assert!(rows.iter().all(|row| row["kl"].as_f64().is_some_and(|kl| kl < 0.05)), "{report}");
}

#[tokio::test]
async fn oversized_requests_are_refused() {
    let (text, dir) = (text(), tempfile::tempdir().expect("a directory"));
    lab(["eval", "--text", &text, "--codec", "qpack", "--context", "64", "--windows", "2"]).ok().await;
    cenote(["generate", "--prompt", "x", "--region", "shm:cenote-test-no-such", "--codec", "qpack"])
        .fails(&["no such region"])
        .await;
    lab(["eval", "--text", &text, "--codec", "int5"]).fails(&["`int5` is no codec", "hint:"]).await;
    lab(["eval", "--text", "no-such-text"]).fails(&["no-such-text"]).await;
    lab(["eval", "--text", &text, "--codec", "raw", "--context", "100"]).fails(&["not whole blocks of 32"]).await;
    lab(["eval", "--text", &text, "--codec", "raw", "--context", "32"]).fails(&["no token would read encoded"]).await;
    lab(["eval", "--text", &text, "--codec", "kivi:4", "--by-token", "--context", "64", "--windows", "2"])
        .fails(&["kivi:4: it does not quantize each token alone"])
        .await;
    let serve = ["serve", "--port", "0", "--prefill", "1", "--codec"];
    let with = |codec: &'static str| cenote(serve.iter().copied().chain([codec]));
    with("0-1=int8,qpack").fails(&["`qpack:0.5` needs a profile", "hint:"]).await;
    with("0-1=int8").fails(&["layer 2 has no codec"]).await;
    with("int8").env("CENOTE_COLD_CODEC", "qpack").fails(&["needs a profile", "hint:"]).await;
    let other = dir.path().join("outliers");
    let other_name = other.display().to_string();
    lab(["outliers", "--out", &other_name]).ok().await;
    lab(["outliers", "--out", &other_name]).fails(&["there is a model already"]).await;
    let profile = dir.path().join("other.safetensors").display().to_string();
    let flags = ["profile", "--text", &text, "--prompts", "2", "--context", "32", "--out", &profile];
    cenote(flags.iter().copied().chain(["--model", &other_name])).ok().await;
    lab(["eval", "--text", &text, "--codec", "qpack", "--profile", &profile]).fails(&["another model", "hint:"]).await;
    std::fs::write(&profile, b"not a profile").expect("written");
    lab(["eval", "--text", &text, "--codec", "qpack", "--profile", &profile]).fails(&["not a safetensors file"]).await;
}

#[tokio::test]
async fn tasks_are_scored_over_seeds() {
    let (text, dir) = (text(), tempfile::tempdir().expect("a directory"));
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (file, drawn) = (path("piqa.jsonl"), path("drawn.jsonl"));
    let line = |label: usize| {
        format!("{{\"goal\": \"To open a door\", \"sol1\": \"push it\", \"sol2\": \"eat it\", \"label\": {label}}}\n")
    };
    std::fs::write(&file, line(0) + &line(1)).expect("written");
    let sizes = ["--windows", "2", "--context", "64", "--seeds", "2", "--lengths", "96", "--json"];
    let eval = |more: &[&str]| lab(["eval", "--text", &text].iter().chain(more).chain(&sizes).copied());
    let tasks = format!("perplexity,choices,retrieval,bleu,{file}");
    let flags = ["--task", &tasks, "--codec", "raw,kivi:2", "--items", "2", "--items-out", &drawn];
    let report = eval(&flags).ok().await.json();
    assert_eq!(report, eval(&flags).ok().await.json(), "seeds decide all");
    let tables = report["tasks"].as_array().expect("tables");
    let names: Vec<_> = tables.iter().map(|table| table["task"].as_str().expect("a name")).collect();
    assert_eq!(names, ["perplexity", "choices", "retrieval from 96 tokens", "BLEU", "piqa"]);
    for table in tables {
        let codecs: Vec<_> = table["rows"].as_array().expect("rows").iter().map(|row| row["codec"].as_str()).collect();
        assert_eq!(codecs, [Some("none"), Some("raw"), Some("kivi:2")]);
    }
    let mean = |task: usize, row: usize, score: usize| {
        report["tasks"][task]["rows"][row]["scores"][score]["mean"]["mean"].as_f64().expect("a number")
    };
    assert!(mean(0, 1, 2) < mean(0, 2, 2), "two bits diverge more: {report}");
    assert_eq!(mean(3, 0, 0), 100.0);
    // The two lines ask the same with opposite labels.
    assert_eq!((mean(4, 0, 0), mean(4, 2, 0)), (50.0, 50.0));
    // The drawn items are a task of their own, half of them for each seed.
    assert_eq!(std::fs::read_to_string(&drawn).expect("items").lines().count(), 4);
    let again = eval(&["--task", &drawn, "--codec", "raw", "--items", "9"]).ok().await.json();
    let about = again["tasks"][0]["about"].as_str().expect("words");
    assert!(about.contains("2 seeds of 2 items (9 were asked for) out of 4"), "{again}");
    lab(["eval", "--text", &text, "--task", &drawn, "--codec", "raw"]).fails(&["4 items for 5 seeds"]).await;
    let blocks = ["--codec", "raw", "--block-tokens", "128"];
    eval(&[&["--task", "bleu"][..], &blocks].concat()).fails(&["raw encodes nothing"]).await;
    lab(["eval", "--text", &text, "--task", "bleu", "--codec", "raw", "--context", "1000000000000"])
        .fails(&["0 prompts for 5 seeds"])
        .await;

    std::fs::write(&file, "{\"goal\": \"x\", \"sol1\": \"a\", \"sol2\": \"b\"}").expect("written");
    eval(&["--task", &file, "--codec", "raw"]).fails(&["line 1", "no `label`", "hint:"]).await;
    eval(&["--task", "hellaswag"]).fails(&["hellaswag", "perplexity, choices", "hint:"]).await;
    eval(&["--task", "bleu", "--codec", "atom:4"]).fails(&["`atom:4` needs a profile", "hint:"]).await;
    lab(["eval", "--text", &text, "--task", "retrieval", "--lengths", "9000"]).fails(&["--lengths 9000", "4096"]).await;
}

#[tokio::test]
async fn any_llama_directory_is_evaluated_and_others_are_refused() {
    let (text, dir) = (text(), tempfile::tempdir().expect("a directory"));
    let path = |name: &str| dir.path().join(name);
    let model = path("other");
    let name = model.display().to_string();
    let shape = ["--layers", "1", "--hidden", "128", "--intermediate", "64", "--kv-heads", "1"];
    lab(["random-model", "--out", &name].into_iter().chain(shape)).ok().await;
    let sizes = ["--windows", "2", "--context", "64", "--profile-text", &text, "--json"];
    let eval = |model: &str| {
        let codecs = "raw,tender:4,atom:4,qserve:4,oaken,oaken-sign";
        lab(["eval", "--text", &text, "--model", model, "--codec", codecs].into_iter().chain(sizes))
    };
    let report = eval(&name).ok().await.json();
    assert_eq!(report["codecs"].as_array().map(Vec::len), Some(6), "{report}");
    // One head of 64: codes, and scales by token, by page or by group.
    let bits = |row: usize| report["codecs"][row]["bits"].as_f64().expect("a number");
    assert!((bits(3) - 4.5).abs() < 1e-9 && (bits(2) - (4.125 + 1.0)).abs() < 1e-9, "{report}");
    assert!((bits(1) - (4.0 + 16.0 / 2048.0)).abs() < 1e-9, "{report}");
    assert!((bits(4) - bits(5)).abs() < 0.2, "the same bits and a header: {report}");

    eval("no-such-model").fails(&["no-such-model", "no such model directory", "hint:"]).await;
    for (file, facts) in [
        ("tokenizer.json", ["tokenizer.json", ""]),
        ("model.safetensors", ["safetensors", ""]),
        ("config.json", ["config.json", ""]),
    ] {
        let kept = std::fs::read(model.join(file)).expect("a file");
        std::fs::remove_file(model.join(file)).expect("removed");
        eval(&name).fails(&facts).await;
        std::fs::write(model.join(file), kept).expect("restored");
    }
    let config = std::fs::read_to_string(model.join("config.json")).expect("a config");
    std::fs::write(model.join("config.json"), config.replace("LlamaFor", "MambaFor")).expect("written");
    eval(&name).fails(&["config.json", "MambaForCausalLM"]).await;
}
