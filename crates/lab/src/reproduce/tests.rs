//! Tests of the registry, of what runs may see, and of the committed document.

use super::*;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

#[test]
fn rows_have_names_of_their_own_and_something_to_compare() {
    let mut names = BTreeSet::new();
    for paper in PAPERS {
        for printed in paper.printed {
            assert!(names.insert(printed.id), "{} is there twice", printed.id);
            assert!(is_below(printed.id, paper.id), "{} is no row of {}", printed.id, paper.id);
            let by = paper.experiments.iter().filter(|experiment| experiment.has(printed.id)).count();
            assert!(by == 1 || (by == 0 && printed.is_arithmetic), "{} has {by} experiments", printed.id);
            let len = printed.values.len();
            assert!(printed.axis.is_none_or(|(_, at)| at.len() == len), "{}", printed.id);
            let middles: Vec<f64> = printed.ranges.iter().map(|(least, most)| f64::midpoint(*least, *most)).collect();
            assert!(middles.is_empty() || middles == printed.values, "{}", printed.id);
            assert!(printed.names.is_empty() || printed.names.len() == len, "{}", printed.id);
        }
    }
}

#[test]
fn names_select_rows() {
    let ids = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Selection::new(&names).map(|selection| {
            PAPERS.iter().flat_map(|paper| paper.printed.iter().filter(|row| selection.has(paper, row.id))).count()
        })
    };
    let all: usize = PAPERS.iter().map(|paper| paper.printed.len()).sum();
    assert_eq!((ids(&[]), ids(&["all"])), (Ok(all), Ok(all)));
    assert_eq!(ids(&["speckv.table8.batch"]), Ok(1));
    assert!(ids(&["speckv.table8"]).expect("a table") > 1);
    assert!(ids(&["speckv.prefetch"]).expect("an experiment") > 10);
    assert_eq!(ids(&["all", "speckv.table"]), Err("speckv.table".to_owned()));
}

/// Every row of a group is there.
#[test]
fn groups_have_rows_of_the_papers() {
    let mut seen = BTreeSet::new();
    for row in groups::GROUPS.iter().flat_map(|group| group.rows) {
        assert!(seen.insert(row), "{row} is in two groups");
        assert!(PAPERS.iter().any(|paper| paper.printed.iter().any(|printed| printed.id == *row)), "no row {row}");
    }
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, into);
        } else {
            into.push(path);
        }
    }
}

/// The door file of a paper names its printed values once, for the registry. No experiment may.
#[test]
fn no_run_reads_what_a_paper_prints() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/reproduce");
    let mut files = Vec::new();
    sources(&folder, &mut files);
    let mut doors = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a source file");
        let uses = text.matches("paper::").count();
        let depth = file.strip_prefix(&folder).expect("below the folder").components().count();
        let is_door = depth == 1 && folder.join(file.file_stem().expect("a name")).join("paper.rs").exists();
        doors += usize::from(is_door);
        if is_door {
            assert_eq!(uses, 1, "{}", file.display());
            assert!(text.contains("printed: paper::PRINTED"), "{}", file.display());
        } else if !file.ends_with("tests.rs") {
            assert_eq!(uses, 0, "{}", file.display());
            assert!(!text.contains(".printed") && !text.contains("PAPERS"), "{}", file.display());
        }
    }
    assert_eq!(doors, PAPERS.len());
}

/// Numbers of a text: digits with underscores, one point, and an exponent.
fn literals(text: &str) -> Vec<f64> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '.';
    let words =
        text.split(|letter| !is_part(letter)).filter(|word| word.starts_with(|first: char| first.is_ascii_digit()));
    words.filter_map(|word| word.replace('_', "").trim_end_matches('.').parse().ok()).collect()
}

/// Whether chance hardly gives this number: it has three digits at least, and is neither round nor a power of two.
fn is_telling(value: f64) -> bool {
    let digits: String = value.to_string().chars().filter(char::is_ascii_digit).collect();
    let digits = digits.trim_start_matches('0').trim_end_matches('0');
    digits.len() >= 3 && (value.fract() != 0.0 || !(value as u64).is_power_of_two())
}

/// A test outside this crate that asserts a printed value would tie the product to a paper: then a row could not
/// come out otherwise. Tests of other crates that name a paper have none of the numbers that it prints.
#[test]
fn no_test_of_another_crate_asserts_what_a_paper_prints() {
    const NAMES: [&str; 7] = ["SpecKV", "TraCT", "Oaken", "Engram", "CPEN", "paper", "Table "];
    // Shapes of models and of tables, clocks and steps, which are inputs of both sides.
    const INPUTS: [f64; 2] = [1_024.0, 2_048.0];
    let printed: Vec<f64> = PAPERS
        .iter()
        .flat_map(|paper| paper.printed.iter().flat_map(|row| row.values))
        .copied()
        .filter(|value| is_telling(*value) && !INPUTS.contains(value))
        .collect();
    assert!(printed.len() > 100, "{}", printed.len());
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of all crates");
    let mut found = Vec::new();
    let mut seen = 0;
    for entry in std::fs::read_dir(crates).expect("crates") {
        let folder = entry.expect("an entry").path();
        let mut files = Vec::new();
        for part in ["src", "tests"].map(|part| folder.join(part)).iter().filter(|part| part.is_dir()) {
            sources(part, &mut files);
        }
        let is_own = folder.file_name().is_some_and(|name| name == "lab");
        for file in files.iter().filter(|file| !is_own && file.extension().is_some_and(|kind| kind == "rs")) {
            let text = std::fs::read_to_string(file).expect("a source file");
            // A test begins with the comment above its attribute.
            let parts: Vec<&str> = text.split("#[test]").collect();
            for (above, body) in parts.iter().zip(&parts[1..]) {
                let comment = above.rsplit("\n\n").next().unwrap_or_default();
                let test = format!("{comment}{body}");
                seen += 1;
                if NAMES.iter().any(|name| test.contains(name)) {
                    let told = literals(&test).into_iter().filter(|number| printed.contains(number));
                    found.extend(told.map(|number| format!("{}: {number}", file.display())));
                }
            }
        }
    }
    assert!(seen > 500, "{seen} tests");
    assert!(found.is_empty(), "{found:#?}");
}

/// Engram's tables 1 and 5, which `cenote plan engram` shows beside its own numbers.
#[test]
fn the_planner_has_the_papers_tables() {
    use cenote_plan::{cost::Prices, papers};
    for row in papers::table_5(&Prices::PAPER) {
        assert_eq!(row.ours, row.paper, "{} billion, {} nodes", row.billions, row.paper.nodes);
    }
}

/// The quick experiments give the lines of the committed document, on one thread and on two.
#[test]
fn the_document_has_what_quick_experiments_compute() {
    let document = include_str!("../../../../docs/evidence/papers.md");
    let quick = || PAPERS.iter().flat_map(|paper| paper.experiments.iter().filter(|experiment| experiment.is_quick));
    let names: Vec<String> = quick().map(|experiment| experiment.id.to_owned()).collect();
    let selection = Selection::new(&names).expect("names of experiments");
    let [one, two] =
        [1, 2].map(|threads| run(&selection, Draws { seed: 1, runs: Draws::RUNS }, threads, &|_, _, run| run()));
    let lines = |papers: &[Reproduction]| -> Vec<String> {
        papers.iter().flat_map(|paper| paper.rows.iter().map(report::markdown_line)).collect()
    };
    let one_papers = &one;
    let (one, two) = (lines(one_papers), lines(&two));
    assert!(one.len() >= names.len() && one == two);
    for row in one_papers
        .iter()
        .flat_map(|paper| &paper.rows)
        .filter(|row| row.power == row::Power::Model || row.power == row::Power::Tied)
    {
        assert!(row.sensitivity.is_empty() != row.fixed.is_empty(), "{}: the parameters that it depends on", row.id);
    }
    let stale: Vec<&String> = one.iter().filter(|line| !document.contains(line.as_str())).collect();
    assert!(
        stale.is_empty(),
        "docs/evidence/papers.md is stale: run `cenote-lab reproduce all --markdown`\n{stale:#?}"
    );
}
