//! `cenote-lab bench` on the pool alone. The figures depend on the machine; the names of the rows
//! do not.

use super::support::process::bare_lab;

#[tokio::test]
async fn a_row_names_measurement_design_and_percentiles() {
    let report = bare_lab(["bench", "all", "--quick", "--only", "pins,lines", "--json"]).ok().await.json();
    let rows = report["rows"].as_array().expect("rows");
    let of = |design: &str| rows.iter().filter(|row| row["design"] == design).count();
    assert!(of("cenote") > 0 && of("cenote") + of("plain") == rows.len() && of("plain") > 0, "{report}");
    for row in rows {
        assert_eq!(row["bench"], "pool", "{row}");
        let [p50, p99, p999] = ["p50", "p99", "p999"].map(|key| row[key].as_f64().expect("a number"));
        assert!(p50 <= p99 && p99 <= p999, "{row}");
        // The goal is a bound of the median, in the row's unit.
        match row["goal"].as_str() {
            None => assert!(row["met"].is_null(), "{row}"),
            Some(goal) => {
                let bound = goal.strip_prefix("<= ").and_then(|goal| goal.strip_suffix(" ns")).expect("a bound");
                let bound: f64 = bound.parse().expect("a number");
                let ratio = row["ratio"].as_f64().expect("a number");
                assert!((ratio - p50 / bound).abs() < 1e-9, "{row}");
                assert_eq!((row["met"].as_bool(), &row["design"]), (Some(p50 <= bound), &"cenote".into()), "{row}");
            }
        }
    }
    // Each fabric of a design has a row of each part, and no other.
    for part in ["pin and unpin", "publish a line"] {
        let named = rows.iter().filter(|row| row["name"].as_str().is_some_and(|name| name.ends_with(part)));
        assert_eq!(2 * named.count(), rows.len(), "{part}: {report}");
    }
    bare_lab(["bench", "lock", "--only", "pins"]).fails(&["there is no such part", "parts: locks"]).await;
}

#[tokio::test]
async fn codecs_are_held_against_copies_with_and_without_kernels() {
    for (more, has_goals) in [(&["--level", "scalar"][..], false), (&["--element", "f16", "--tokens", "32"][..], true)]
    {
        let args = ["bench", "codec", "--quick", "--only", "int8,qpack", "--json"].iter().chain(more).copied();
        let report = bare_lab(args).ok().await.json();
        let rows = report["rows"].as_array().expect("rows");
        assert_eq!(rows.len(), 8, "two codecs, both ways, in two places: {report}");
        let vectors = report["kernel"] != "scalar";
        assert!(has_goals || !vectors, "{report}");
        for row in rows {
            let [bits, ratio, share] =
                ["bits", "ratio", "checksum_share"].map(|key| row[key].as_f64().expect("a number"));
            assert!((2.0..16.0).contains(&bits) && ratio > 0.0 && (0.0..=1.0).contains(&share), "{row}");
            assert!(row["goal"].is_null() || vectors, "{row}");
        }
    }
    bare_lab(["bench", "codec", "--only", "qpaque"]).fails(&["there is no such codec", "codecs: raw, int8"]).await;
}

#[tokio::test]
async fn a_new_region_finds_what_the_cold_tier_holds() {
    let report = bare_lab(["bench", "cold", "--quick", "--only", "cold-copies", "--json"]).ok().await.json();
    let rows = report["rows"].as_array().expect("rows");
    let found = rows.iter().find(|row| row["name"].as_str().is_some_and(|name| name.starts_with("blocks found")));
    let found = found.expect("its row");
    assert_eq!((found["ratio"].as_f64(), found["met"].as_bool()), (Some(1.0), Some(true)), "{report}");
}

#[tokio::test]
async fn a_new_region_finds_what_a_redis_server_holds() {
    let Some(server) = cenote_base::testing::redis::Server::start(&[]) else { return };
    let parts = ["bench", "cold", "--quick", "--only", "cold-server,cold-server-ttft", "--json", "--server"];
    let report = bare_lab([&parts[..], &[&server.url()]].concat()).ok().await.json();
    let rows = report["rows"].as_array().expect("rows");
    let found = rows.iter().filter(|row| row["name"].as_str().is_some_and(|name| name.contains("found of")));
    let met: Vec<Option<bool>> = found.map(|row| row["met"].as_bool()).collect();
    assert_eq!(met, [Some(true); 2], "{report}");
    let cluster = ["bench", "cold", "--only", "cold-server", "--server", "redis-cluster://127.0.0.1:1"];
    bare_lab(cluster).fails(&["no single Redis"]).await;
}

#[tokio::test]
async fn guesses_are_timed_without_a_text_and_counted_with_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("text.txt");
    std::fs::write(&text, "The rows of the next step depend on one more token , which is guessed .\n".repeat(900))
        .unwrap();
    let text = text.to_str().expect("a name");
    let report = bare_lab(["bench", "predict", "--quick", "--json", "--text", text]).ok().await.json();
    let rows = report["rows"].as_array().expect("rows");
    let goals: Vec<_> = rows.iter().filter(|row| row["goal"].is_string()).collect();
    assert!(goals.len() == 1 && goals[0]["met"].is_boolean() && goals[0]["ratio"].is_number(), "{report}");
    let accuracy = report["accuracy"].as_array().expect("accuracy");
    for row in accuracy {
        let top: Vec<f64> = row["top"].as_array().expect("four").iter().map(|share| share.as_f64().unwrap()).collect();
        assert!(top.is_sorted() && top[0] >= 0.0 && top[3] <= 1.0, "{row}");
        // The text repeats itself, so what reads the request knows its next tokens.
        let reads = row["predictor"] == "suffix" || row["predictor"] == "n-gram";
        assert!(!reads || row["horizon"] != 1 || top[1] > 0.95, "{row}");
    }
    for row in report["early"].as_array().expect("early") {
        let [needed, fetched, used, wasted] =
            ["needed", "fetched", "used", "wasted"].map(|key| row[key].as_f64().unwrap());
        assert!(needed == 32.0 && used <= needed && (fetched - used - wasted).abs() < 1e-9, "{row}");
    }
    assert!(!report["hidden"].as_array().expect("hidden").is_empty() && report["skipped"].is_null());
    bare_lab(["bench", "predict", "--text", "no-such-text"]).fails(&["no-such-text"]).await;
}
